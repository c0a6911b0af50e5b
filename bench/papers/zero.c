/* The tables of ZeRO (Rajbhandari et al., SC20, arXiv 1910.02054). */
#include "bench/papers/outline.h"
#include "bench/papers/papers.h"

#include <stdio.h>

#define GB 1e9

/* Bytes of a parameter: 16-bit weights, 16-bit gradients, and an fp32 master with two moments. */
enum { WEIGHTS_BYTES = 2, GRADS_BYTES = 2, OPTIMIZER_BYTES = 12 };

static double states_by_equation(double parameters, int zero, double ranks) {
    return parameters * (WEIGHTS_BYTES / (zero >= SW_ZERO_WEIGHTS ? ranks : 1.0) +
                         GRADS_BYTES / (zero >= SW_ZERO_GRADS ? ranks : 1.0) +
                         OPTIMIZER_BYTES / (zero >= SW_ZERO_OPTIMIZER ? ranks : 1.0));
}

/* Models of the paper's sizes. The paper names no shape; these have GPT's. */
static const struct {
    const char *name;
    int64_t parameters, layers, hidden;
} models[] = {{"7.5B", INT64_C(7500000000), 36, 4096},
              {"128B", INT64_C(128000000000), 70, 12288},
              {"1T", INT64_C(1000000000000), 127, 25600}};
static const int ranks_of[] = {1, 4, 16, 64, 256, 1024};
enum { MODELS = 3, RANKS = 6, STAGES = 3 };

/* Table 1: stages 1 to 3. */
static const char *const printed_gb[MODELS][RANKS][STAGES] = {
    {{"120", "120", "120"},
     {"52.5", "41.25", "30"},
     {"35.6", "21.6", "7.5"},
     {"31.4", "16.6", "1.88"},
     {"30.4", "15.4", "0.47"},
     {"30.1", "15.1", "0.12"}},
    {{"2048", "2048", "2048"},
     {"896", "704", "512"},
     {"608", "368", "128"},
     {"536", "284", "32"},
     {"518", "263", "8"},
     {"513", "257", "2"}},
    {{"16000", "16000", "16000"},
     {"7000", "5500", "4000"},
     {"4750", "2875", "1000"},
     {"4187", "2218", "250"},
     {"4046", "2054", "62.5"},
     {"4011", "2013", "15.6"}},
};

static sw_status fill_memory(int model, int at, int stage, struct sw_paper_number *out) {
    const struct sw_paper_case which = {.layers = models[model].layers,
                                        .hidden = models[model].hidden,
                                        .parameters = models[model].parameters,
                                        .ranks = ranks_of[at],
                                        .zero = stage + 1};
    struct sw_paper_plan plan;
    const sw_status status = sw_paper_open(&which, &plan);
    if (status == SW_OK) {
        out->printed = printed_gb[model][at][stage];
        out->paper = states_by_equation((double)models[model].parameters, stage + 1, ranks_of[at]) / GB;
        out->ours = sw_paper_states_bytes(plan.job.plan) / GB;
    }
    sw_paper_close(&plan);
    return status;
}

sw_status sw_paper_zero_memory(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "zero_memory",
        .title = "Memory of model states a rank, by ZeRO stage",
        .source = "ZeRO, arXiv 1910.02054, table 1",
        .unit = "GB",
        .column = {{.heading = "stage 1", .low = -0.001, .high = 0.01},
                   {.heading = "stage 2", .low = -0.001, .high = 0.01},
                   {.heading = "stage 3",
                    .low = -0.001,
                    .high = 0.12,
                    .reason = "shards are whole grains of 16,384 elements; of the 12,292 of a block of the 7.5B the "
                              "first of 1024 ranks has 13."}},
        .columns = STAGES,
    };
    for (int m = 0; m < MODELS; m++)
        for (int n = 0; n < RANKS; n++) {
            struct sw_paper_row *row = &out->row[out->rows++];
            snprintf(row->name, sizeof row->name, "%s, %d", models[m].name, ranks_of[n]);
            for (int s = 0; s < STAGES; s++)
                SW_TRY(fill_memory(m, n, s, &row->number[s]));
        }
    return SW_OK;
}

#define STATES_HERE "weights=device,grads=device,optimizer=device,acts=host"
/* Table 2, and the memory of a GPU in it. */
enum { LARGEST_RANKS = 64, MOST_LAYERS = 1024 };
#define LARGEST_BYTES INT64_C(32000000000)
static const struct {
    const char *name, *printed;
    int64_t hidden;
} largest[] = {{"stage 0", "2", 1536}, {"stage 1", "7.6", 2560}, {"stage 2", "14.4", 3072}, {"stage 3", "128", 6144}};

/* Tells whether a model of so many layers fits, and how many parameters it has. */
static sw_status try_layers(int zero, int64_t layers, bool *out_fits, double *out_parameters) {
    const struct sw_paper_case which = {.layers = layers,
                                        .hidden = largest[zero].hidden,
                                        .tiles = 4,
                                        .ranks = LARGEST_RANKS,
                                        .zero = zero,
                                        .place = STATES_HERE,
                                        .device_bytes = LARGEST_BYTES};
    struct sw_paper_plan plan;
    const sw_status status = sw_paper_open(&which, &plan);
    *out_fits = status == SW_OK;
    if (status == SW_OK)
        *out_parameters = plan.parameters;
    sw_paper_close(&plan);
    if (status != SW_ERR_BUDGET)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Bisects the layers: `low` fit, `high` do not. */
static sw_status find_largest(int zero, double *out_parameters) {
    int64_t low = 0, high = MOST_LAYERS;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        bool fits;
        SW_TRY(try_layers(zero, middle, &fits, out_parameters));
        *(fits ? &low : &high) = middle;
    }
    return SW_OK;
}

sw_status sw_paper_zero_largest(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "zero_largest",
        .title = "Largest model of 64 GPUs of 32 GB, all states there, checkpoints on the host",
        .source = "ZeRO, arXiv 1910.02054, table 2 (states alone)",
        .unit = "billion parameters",
        .column = {{.heading = "largest",
                    .low = -0.16,
                    .high = 0.0,
                    .reason =
                        "the paper counts states alone; here the memory also holds what computes: a unit's weights and "
                        "fp32 accumulator (--tiles 4), the tied table and its accumulator, rings, logits and sums."}},
        .columns = 1,
        .rows = SW_ZERO_WEIGHTS + 1,
    };
    for (int zero = 0; zero < out->rows; zero++) {
        struct sw_paper_row *row = &out->row[zero];
        snprintf(row->name, sizeof row->name, "%s", largest[zero].name);
        row->number[0].printed = largest[zero].printed;
        row->number[0].paper = (double)LARGEST_BYTES / states_by_equation(1.0, zero, LARGEST_RANKS) / GB;
        SW_TRY(find_largest(zero, &row->number[0].ours));
        row->number[0].ours /= GB;
    }
    return SW_OK;
}

/* Section 7: every gradient is reduced once; weights are gathered once, or at stage 3 for each pass. */
static sw_status fill_traffic(int zero, struct sw_paper_number *out) {
    const struct sw_paper_case which = {.layers = models[0].layers,
                                        .hidden = models[0].hidden,
                                        .parameters = models[0].parameters,
                                        .ranks = LARGEST_RANKS,
                                        .zero = zero};
    const struct sw_paper_machine machine = {.comm_bytes_per_s = GB};
    struct sw_paper_plan plan;
    struct sw_simulation step;
    sw_status status = sw_paper_open(&which, &plan);
    if (status == SW_OK)
        status = sw_paper_simulate(&plan, SW_PROGRAM_UPDATE, &machine, &step);
    if (status == SW_OK) {
        out->paper = (zero >= SW_ZERO_WEIGHTS ? 3.0 : 2.0) * (LARGEST_RANKS - 1.0) / LARGEST_RANKS;
        out->ours = step.lane_busy_s[SW_LANE_COMM] * GB / (WEIGHTS_BYTES * plan.parameters);
    }
    sw_paper_close(&plan);
    return status;
}

sw_status sw_paper_zero_traffic(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "zero_traffic",
        .title = "Elements that a rank sends a step, of a 7.5B on 64 ranks",
        .source = "ZeRO, arXiv 1910.02054, section 7",
        .unit = "elements a parameter",
        .column = {{.heading = "sent",
                    .low = -0.03,
                    .high = 0.01,
                    .reason = "stage 3 gathers embedding, head and the last block, where the passes meet, once a step "
                              "and not twice; units are padded to grains."}},
        .columns = 1,
        .rows = SW_ZERO_WEIGHTS + 1,
    };
    for (int zero = 0; zero < out->rows; zero++) {
        snprintf(out->row[zero].name, sizeof out->row[zero].name, "%s", largest[zero].name);
        SW_TRY(fill_traffic(zero, &out->row[zero].number[0]));
    }
    return SW_OK;
}
