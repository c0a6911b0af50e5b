/* Published runs of other programs, and what our planner predicts for this program on machines that are described and
 * not here. */
#include "bench/papers/papers.h"
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TERA 1e12
enum { PATH_CHARS = 4096, SEQ = 1024 };

/* A training that is planned, on one device. */
struct training {
    const char *machine, *model;
    int64_t batch_tokens;
    const char *place, *order; /* NULL: the planner chooses */
    int drives;                /* so many of the described drive, striped; 0: one */
};

/* A training's tokens a second: expected, and with all of the machine's assumed numbers slow or fast. */
struct prediction {
    double tokens_per_s, slow_tokens_per_s, fast_tokens_per_s;
    double flops_per_token; /* of the model, without recomputation */
};

static sw_status replace(char **text, const char *by) {
    if (by == NULL)
        return SW_OK;
    free(*text);
    *text = strdup(by);
    return *text != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the settings");
}

static sw_status choose_settings(const char *machines, const struct training *training, struct sw_settings *s) {
    char path[PATH_CHARS];
    if (snprintf(path, sizeof path, "%s/%s.json", machines, training->machine) >= (int)sizeof path)
        return sw_fail(SW_ERR_USAGE, "--machines %s is too long", machines);
    SW_TRY(sw_options_defaults(&sw_plan_command, s));
    SW_TRY(replace(&s->machine, path));
    SW_TRY(replace(&s->model, training->model));
    SW_TRY(replace(&s->place, training->place));
    SW_TRY(replace(&s->order, training->order));
    s->seq = SEQ;
    s->batch_tokens = training->batch_tokens;
    return SW_OK;
}

/* Reads the machine. Its drives add up. The bounds, which are read from the machine's file, then hold no more. */
static sw_status read_machine(const struct training *training, const char *path, struct sw_profile *out) {
    SW_TRY(sw_profile_describe(path, SW_MACHINE_EXPECTED, out));
    if (training->drives > 1) {
        out->rates.read.bytes_per_s *= training->drives;
        out->rates.write.bytes_per_s *= training->drives;
    }
    return SW_OK;
}

static sw_status predict_by(const struct training *training, struct sw_settings *settings, struct sw_job *job,
                            struct prediction *out) {
    struct sw_profile machine;
    const struct sw_job_spec spec = {.settings = settings, .folder = ".", .machine = &machine};
    const double tokens = (double)training->batch_tokens;
    SW_TRY(read_machine(training, settings->machine, &machine));
    SW_TRY(sw_job_open(&spec, job));
    SW_TRY(sw_job_predict(job));
    const struct sw_job_price *price = &job->price;
    *out = (struct prediction){.tokens_per_s = tokens / price->prediction.plain.step_s,
                               .flops_per_token = sw_model_flops_per_token(&job->config, SEQ)};
    if (training->drives <= 1 && price->slow_s > 0.0 && price->fast_s > 0.0) {
        out->slow_tokens_per_s = tokens / price->slow_s;
        out->fast_tokens_per_s = tokens / price->fast_s;
    }
    return SW_OK;
}

static sw_status predict(const char *machines, const struct training *training, struct prediction *out) {
    struct sw_settings settings = {0};
    struct sw_job job = {0};
    sw_status status = choose_settings(machines, training, &settings);
    if (status == SW_OK)
        status = predict_by(training, &settings, &job, out);
    sw_job_release(&job);
    sw_options_release(&sw_plan_command, &settings);
    return status;
}

/* Some authors print tokens a second, others the model's flops. */
struct run {
    const char *name, *printed;
    struct training training;
    bool in_tflops;
};
static const struct run runs[] = {
    {"llmq, H100, Qwen2.5-7B", "13800", {.machine = "h100", .model = "qwen2.5-7b", .batch_tokens = 524288}, false},
    {"llmq, H100, Qwen2.5-14B", "6300", {.machine = "h100", .model = "qwen2.5-14b", .batch_tokens = 524288}, false},
    {"llmq, RTX 4090, Qwen2.5-7B",
     "2800",
     {.machine = "rtx4090", .model = "qwen2.5-7b", .batch_tokens = 524288},
     false},
    {"llmq, RTX 4090, Qwen2.5-14B",
     "1350",
     {.machine = "rtx4090", .model = "qwen2.5-14b", .batch_tokens = 524288},
     false},
    {"LoHan, RTX 4090, 13B, TFLOP/s",
     "37.5",
     {.machine = "rtx4090", .model = "qwen2.5-14b", .batch_tokens = 32768},
     true},
    {"LoHan, the same with 12 drives",
     "142",
     {.machine = "rtx4090", .model = "qwen2.5-14b", .batch_tokens = 32768, .drives = 12},
     true},
    {"SuperOffload, GH200, TFLOP/s", "600", {.machine = "gh200", .model = "qwen2.5-14b", .batch_tokens = 131072}, true},
};
enum { RUNS = sizeof runs / sizeof runs[0] };

sw_status sw_paper_runs(const char *machines, struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "runs",
        .title = "Speeds: published by their authors for their programs, PREDICTED for ours",
        .source = "llmq at 524,288 tokens a step, LoHan, SuperOffload; 1024 tokens a sequence",
        .unit = "tokens/s",
        .column =
            {{.heading = "published",
              .low = -0.6,
              .high = 0.4,
              .reason =
                  "predictions by the rates in bench/machines, which are assumed, and wide bounds. llmq keeps 6 bytes "
                  "a parameter and ours 16: the 14B's optimizer does not fit into the 128 GiB beside the H100, so that "
                  "its one drive carries the rest. The last three are Qwen2.5-14B here, at 32,768 and 131,072 tokens: "
                  "LoHan's batch, and SuperOffload's model and batch, are not known here."}},
        .columns = 1,
        .rows = RUNS,
    };
    for (int r = 0; r < RUNS; r++) {
        struct prediction by;
        SW_TRY(predict(machines, &runs[r].training, &by));
        const double scale = runs[r].in_tflops ? by.flops_per_token / TERA : 1.0;
        snprintf(out->row[r].name, sizeof out->row[r].name, "%s", runs[r].name);
        out->row[r].number[0] = (struct sw_paper_number){.printed = runs[r].printed,
                                                         .ours = by.tokens_per_s * scale,
                                                         .slow = by.slow_tokens_per_s * scale,
                                                         .fast = by.fast_tokens_per_s * scale};
    }
    return SW_OK;
}

/* A published ratio of two trainings' speeds. */
static const struct ratio {
    const char *name, *printed;
    struct training over, under;
    double scale;
} ratios[] = {
    {"ZeRO-Offload of resident, A100, %",
     "17.6",
     {.machine = "a100",
      .model = "qwen2.5-1.5b",
      .batch_tokens = 16384,
      .place = "weights=device,grads=device,optimizer=host,acts=device"},
     {.machine = "a100",
      .model = "qwen2.5-1.5b",
      .batch_tokens = 16384,
      .place = "weights=device,grads=device,optimizer=device,acts=device"},
     100.0},
    {"GreedySnake's order, A100, 65B, times",
     "1.96",
     {.machine = "a100", .model = "llama-70b", .batch_tokens = 65536, .order = "layer"},
     {.machine = "a100", .model = "llama-70b", .batch_tokens = 65536, .order = "batch"},
     1.0},
};
enum { RATIOS = sizeof ratios / sizeof ratios[0] };

sw_status sw_paper_ratios(const char *machines, struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "ratios",
        .title = "Ratios of speeds: published by their authors, PREDICTED for our program",
        .source = "ZeRO-Offload (2 A100, Qwen2.5-1.5B), GreedySnake against ZeRO-Infinity",
        .unit = "as named",
        .column = {{.heading = "published",
                    .low = -0.5,
                    .high = 6.0,
                    .reason = "their batches are not said: ours are 16,384 tokens with the optimizer on the host or "
                              "on the GPU, and 65,536 of a 70B by layer or by batch, 16 micro-batches. Our updates run "
                              "under the next forward pass, theirs after the backward pass."}},
        .columns = 1,
        .rows = RATIOS,
    };
    for (int r = 0; r < RATIOS; r++) {
        struct prediction over, under;
        SW_TRY(predict(machines, &ratios[r].over, &over));
        SW_TRY(predict(machines, &ratios[r].under, &under));
        snprintf(out->row[r].name, sizeof out->row[r].name, "%s", ratios[r].name);
        out->row[r].number[0] = (struct sw_paper_number){
            .printed = ratios[r].printed, .ours = ratios[r].scale * over.tokens_per_s / under.tokens_per_s};
    }
    return SW_OK;
}
