#include "job/job.h"
#include "offload/simulate/simulate.h"
#include "tests/bench/papers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model of the GPT-2 family, how it is trained and where its state lives. Members that are 0 take the default. */
struct sw_paper_case {
    int64_t layers, hidden;
    int64_t heads;      /* 0: heads of 128 */
    int64_t parameters; /* the vocabulary is as large as makes this number; 0: GPT-2's vocabulary */
    int64_t sequences;  /* of 1024 tokens in a micro-batch; 0: one */
    int64_t tiles;
    int ranks, zero;
    const char *place;    /* as --place; NULL: everything on the device */
    int64_t device_bytes; /* memory of the device; 0: no limit */
    bool two_generations; /* as by default; otherwise the store keeps one generation (--durability none) */
};
enum { SW_PAPER_SEQ = 1024 };

struct sw_paper_plan {
    struct sw_settings settings;
    struct sw_job job; /* its plan is an outline, until it is simulated */
    double parameters;
    double tokens; /* of a step and rank */
};

/* A machine of four rates. A lane without a rate takes no time. */
struct sw_paper_machine {
    double flops_per_s;
    double link_bytes_per_s; /* each way */
    double read_bytes_per_s, write_bytes_per_s;
    double host_bytes_per_s; /* memory traffic of updates on the host */
    double comm_bytes_per_s;
};

/* More memory than any model here takes; budgets are added up, so it is far from the largest integer. */
#define UNLIMITED_BYTES (INT64_C(1) << 56)
#define FAST 1e30
#define EVERYTHING_HERE "weights=device,grads=device,optimizer=device,acts=device"
enum { HEAD_DIM = 128, BLOCK_PARAMETERS = 12, BACKWARD_FLOPS = 2 };

static struct sw_profile boundless(void) {
    struct sw_profile machine = {.device = {.name = "a device of any size",
                                            .memory_bytes = UNLIMITED_BYTES,
                                            .memory_bytes_per_s = FAST,
                                            .tf32_flops_per_s = FAST,
                                            .attention_forward_flops_per_s = FAST,
                                            .attention_backward_flops_per_s = FAST},
                                 .host_bytes = UNLIMITED_BYTES};
    for (int type = 0; type < SW_DTYPES; type++)
        machine.device.product_flops_per_s[type] = FAST;
    return machine;
}

static sw_status choose_config(const struct sw_paper_case *which, struct sw_model_config *c) {
    SW_TRY(sw_config_load("gpt2-124m", c));
    c->layers = which->layers;
    c->hidden = which->hidden;
    c->ffn = 4 * which->hidden;
    c->heads = c->kv_heads = which->heads > 0 ? which->heads : which->hidden / HEAD_DIM;
    c->head_dim = c->hidden / c->heads;
    const int64_t blocks = BLOCK_PARAMETERS * c->layers * c->hidden * c->hidden;
    if (which->parameters > 0)
        c->vocab = (which->parameters - blocks) / c->hidden - c->max_positions;
    return SW_OK;
}

static sw_status case_settings(const struct sw_paper_case *which, struct sw_settings *s) {
    SW_TRY(sw_options_defaults(&sw_plan_command, s));
    free(s->place);
    s->place = strdup(which->place != NULL ? which->place : EVERYTHING_HERE);
    if (s->place == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings");
    s->precision = SW_PRECISION_BF16;
    s->recompute = SW_OPTION_RECOMPUTE_ALL;
    s->durability = which->two_generations ? SW_DURABILITY_STEP : SW_DURABILITY_NONE;
    s->update = SW_UPDATE_HOST;
    s->ring_chunks = SW_RING_CHUNKS;
    s->ranks = which->ranks > 1 ? which->ranks : 0;
    s->zero = which->zero;
    s->tiles = which->tiles > 0 ? which->tiles : 1;
    s->seq = SW_PAPER_SEQ;
    s->micro_batch = which->sequences > 0 ? which->sequences : 1;
    s->batch_tokens = s->seq * s->micro_batch * sw_settings_ranks(s);
    s->device_memory = which->device_bytes > 0 ? which->device_bytes : UNLIMITED_BYTES;
    s->host_memory = UNLIMITED_BYTES;
    return SW_OK;
}

/* Makes the outline of rank 0. The caller closes it, even after an error. */
static sw_status paper_open(const struct sw_paper_case *which, struct sw_paper_plan *out) {
    const struct sw_profile machine = boundless();
    struct sw_model_config config;
    const struct sw_job_spec spec = {.settings = &out->settings, .config = &config, .machine = &machine, .folder = "."};
    struct sw_job *job = &out->job;
    *out = (struct sw_paper_plan){0};
    SW_TRY(choose_config(which, &config));
    SW_TRY(case_settings(which, &out->settings));
    SW_TRY(sw_job_open(&spec, job));
    out->parameters = (double)sw_units_parameters(sw_model_get_units(job->model));
    out->tokens = (double)(job->settings->micro_batch * job->settings->seq);
    return SW_OK;
}

static void paper_close(struct sw_paper_plan *plan) {
    sw_job_release(&plan->job);
    sw_options_release(&sw_plan_command, &plan->settings);
}

/* Returns the bytes of the slots, in all tiers, that keep weights, gradients and optimizer state. */
static double paper_states_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < plan->slot_count; s++) {
        const struct sw_slot *slot = &plan->slot[s];
        if (slot->resident && (slot->content == SW_CONTENT_WEIGHTS || slot->content == SW_CONTENT_GRADS ||
                               slot->content == SW_CONTENT_OPTIMIZER))
            bytes += slot->bytes;
    }
    return (double)bytes;
}

/* Returns the bytes of all slots of a name; shared: of those that belong to no unit, else of those that do. */
static double paper_slot_bytes(const struct sw_plan *plan, const char *name, bool shared) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < plan->slot_count; s++)
        if (strcmp(plan->slot[s].name, name) == 0 && (plan->slot[s].unit < 0) == shared)
            bytes += plan->slot[s].bytes;
    return (double)bytes;
}

static struct sw_rate rate_of(double bytes_per_s) {
    return (struct sw_rate){.bytes_per_s = bytes_per_s > 0.0 ? bytes_per_s : FAST};
}

/* Completes the plan and simulates a step, whose products run at the machine's rate. */
static sw_status paper_simulate(struct sw_paper_plan *p, sw_program_kind kind, const struct sw_paper_machine *machine,
                                struct sw_simulation *out) {
    const struct sw_plan *plan = p->job.plan;
    const int64_t count = plan->spec.units->count;
    const double flops_per_s = machine->flops_per_s > 0.0 ? machine->flops_per_s : FAST;
    struct sw_unit_seconds *seconds = calloc((size_t)count, sizeof *seconds);
    if (seconds == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the rates of units");
    for (int64_t u = 0; u < count; u++) {
        seconds[u].forward_s = seconds[u].recompute_s = plan->spec.cost[u].forward_flops / flops_per_s;
        seconds[u].backward_s = (u + 1 == count ? 1 + BACKWARD_FLOPS : BACKWARD_FLOPS) * seconds[u].forward_s;
    }
    const struct sw_rates rates = {.cores = 1.0,
                                   .upload = rate_of(machine->link_bytes_per_s),
                                   .download = rate_of(machine->link_bytes_per_s),
                                   .update = rate_of(machine->host_bytes_per_s),
                                   .update_on_device = rate_of(0.0),
                                   .finish = rate_of(0.0),
                                   .zero = rate_of(0.0),
                                   .read = rate_of(machine->read_bytes_per_s),
                                   .write = rate_of(machine->write_bytes_per_s),
                                   .read_write_slowdown = 1.0,
                                   .gather = rate_of(machine->comm_bytes_per_s),
                                   .reduce = rate_of(machine->comm_bytes_per_s),
                                   .units = seconds};
    sw_status status = sw_plan_complete(p->job.plan);
    if (status == SW_OK)
        status = sw_simulate(plan, kind, false, &rates, NULL, out);
    free(seconds);
    return status;
}

/* The tables of ZeRO (Rajbhandari et al., SC20, arXiv 1910.02054). */

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
    const sw_status status = paper_open(&which, &plan);
    if (status == SW_OK) {
        out->printed = printed_gb[model][at][stage];
        out->paper = states_by_equation((double)models[model].parameters, stage + 1, ranks_of[at]) / GB;
        out->ours = paper_states_bytes(plan.job.plan) / GB;
    }
    paper_close(&plan);
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
    const sw_status status = paper_open(&which, &plan);
    *out_fits = status == SW_OK;
    if (status == SW_OK)
        *out_parameters = plan.parameters;
    paper_close(&plan);
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
    sw_status status = paper_open(&which, &plan);
    if (status == SW_OK)
        status = paper_simulate(&plan, SW_PROGRAM_UPDATE, &machine, &step);
    if (status == SW_OK) {
        out->paper = (zero >= SW_ZERO_WEIGHTS ? 3.0 : 2.0) * (LARGEST_RANKS - 1.0) / LARGEST_RANKS;
        out->ours = step.lane_busy_s[SW_LANE_COMM] * GB / (WEIGHTS_BYTES * plan.parameters);
    }
    paper_close(&plan);
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

/* The memory that ZeRO-Infinity counts (Rajbhandari et al., SC21, arXiv 2104.07857, section 3). */

#define GIB ((double)SW_GIB)
#define TIB (1024.0 * GIB)
#define K INT64_C(1024)

/* Sequences of 1,024 tokens whose checkpoints and whose working memory the paper counts. */
enum { CHECKPOINT_SEQUENCES = 32, WORKING_SEQUENCES = 4, ROWS = 5 };
/* Our tiles of each half of a block, for the paper's largest linear layer. */
enum { TILES = 4 };

static const struct {
    const char *name;
    int64_t layers, hidden, heads;
    const char *states_tib, *checkpoints_tib, *states_gib, *activations_gib; /* as figure 2a prints them */
} infinity_models[ROWS] = {
    {"0.1T", 80, 10 * K, 128, "1.83", "0.05", "1.56", "1.63"},
    {"0.5T", 100, 20 * K, 160, "9.16", "0.12", "6.25", "2.50"},
    {"1T", 128, 25 * K, 256, "18.31", "0.20", "9.77", "3.56"},
    {"10T", 195, 64 * K, 512, "182.8", "0.76", "64", "8"},
    {"101T", 315, 160 * K, 1024, "1845.7", "3.08", "400", "18"},
};

static struct sw_paper_case case_of(int model, int64_t sequences, int64_t tiles) {
    return (struct sw_paper_case){.layers = infinity_models[model].layers,
                                  .hidden = infinity_models[model].hidden,
                                  .heads = infinity_models[model].heads,
                                  .sequences = sequences,
                                  .tiles = tiles,
                                  .place = "weights=nvme,grads=nvme,optimizer=nvme,acts=host"};
}

static void name_row(int model, struct sw_paper_row *out) {
    snprintf(out->name, sizeof out->name, "%s: %lld x %lldK", infinity_models[model].name,
             (long long)infinity_models[model].layers, (long long)(infinity_models[model].hidden / K));
}

/* Section 3: a checkpoint of 16 bits for each block. */
static double inputs_bytes(const struct sw_paper_plan *plan) {
    return 2.0 * plan->tokens * (double)plan->job.config.hidden * (double)plan->job.config.layers;
}

static sw_status fill_infinity(int model, struct sw_paper_row *out) {
    const struct sw_paper_case which = case_of(model, CHECKPOINT_SEQUENCES, 1);
    const double layers = (double)which.layers, hidden = (double)which.hidden;
    struct sw_paper_plan plan;
    const sw_status status = paper_open(&which, &plan);
    name_row(model, out);
    if (status == SW_OK) {
        out->number[0] = (struct sw_paper_number){.printed = infinity_models[model].states_tib,
                                                  .paper = 240.0 * layers * hidden * hidden / TIB,
                                                  .ours = paper_states_bytes(plan.job.plan) / TIB};
        out->number[1] = (struct sw_paper_number){.printed = infinity_models[model].checkpoints_tib,
                                                  .paper = inputs_bytes(&plan) / TIB,
                                                  .ours = paper_slot_bytes(plan.job.plan, "block input", false) / TIB};
    }
    paper_close(&plan);
    return status;
}

sw_status sw_paper_infinity_memory(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "infinity_memory",
        .title = "Model states and activation checkpoints (32 sequences)",
        .source = "ZeRO-Infinity, arXiv 2104.07857, figure 2a, section 3",
        .unit = "TiB",
        .column = {{.heading = "states",
                    .low = -0.21,
                    .high = -0.18,
                    .reason =
                        "16 bytes a parameter and not 20: gradients leave a unit's fp32 accumulator rounded to 16 "
                        "bits, so no fp32 gradients are kept. The second generation of a crash-safe store adds 12."},
                   {.heading = "checkpoints", .low = -0.001, .high = 0.001}},
        .columns = 2,
        .rows = ROWS,
    };
    for (int m = 0; m < ROWS; m++)
        SW_TRY(fill_infinity(m, &out->row[m]));
    return SW_OK;
}

static sw_status fill_working(int model, struct sw_paper_row *out) {
    const struct sw_paper_case which = case_of(model, WORKING_SEQUENCES, TILES);
    const double hidden = (double)which.hidden, heads = (double)which.heads;
    struct sw_paper_plan plan;
    const sw_status status = paper_open(&which, &plan);
    name_row(model, out);
    if (status == SW_OK) {
        out->number[0] = (struct sw_paper_number){.printed = infinity_models[model].states_gib,
                                                  .paper = 16.0 * hidden * hidden / GIB,
                                                  .ours = (paper_slot_bytes(plan.job.plan, "weights of a unit", true) +
                                                           paper_slot_bytes(plan.job.plan, "accumulator", true)) /
                                                          GIB};
        out->number[1] = (struct sw_paper_number){
            .printed = infinity_models[model].activations_gib,
            .paper = plan.tokens * (16.0 * hidden + 2.0 * heads * SW_PAPER_SEQ) / GIB,
            .ours = (paper_slot_bytes(plan.job.plan, "saved", true) + paper_slot_bytes(plan.job.plan, "derived", true) +
                     paper_slot_bytes(plan.job.plan, "work", true)) /
                    GIB};
        out->number[2] = (struct sw_paper_number){.paper = inputs_bytes(&plan) / GIB,
                                                  .ours = paper_slot_bytes(plan.job.plan, "block input", false) / GIB};
    }
    paper_close(&plan);
    return status;
}

sw_status sw_paper_infinity_working(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "infinity_working",
        .title = "Working memory of states and activations (4 sequences), and inputs kept",
        .source = "ZeRO-Infinity, arXiv 2104.07857, figure 2a, section 3",
        .unit = "GiB",
        .column = {{.heading = "states",
                    .low = -0.01,
                    .high = 0.01,
                    .reason = "two slots for a unit's weights and one fp32 accumulator: with --tiles 4 as much as the "
                              "paper's largest linear layer; whole blocks take 6 times as much, --tiles 16 a quarter."},
                   {.heading = "activations",
                    .low = -0.65,
                    .high = -0.3,
                    .reason = "no attention scores are kept, and a tile has a quarter of the inner layers."},
                   {.heading = "inputs",
                    .low = 4.9,
                    .high = 5.1,
                    .reason = "the price of --tiles 4: the backward pass starts from six kept inputs a layer and not "
                              "from one."}},
        .columns = 3,
        .rows = ROWS,
    };
    for (int m = 0; m < ROWS; m++)
        SW_TRY(fill_working(m, &out->row[m]));
    return SW_OK;
}

/* The least bytes that a parameter moves in a step by layer, and the tokens whose compute hides them. */

#define FLOPS_PER_PARAMETER 8.0 /* of a token: forward, backward, and the forward pass again */

/* A machine like bench/machines/rtx4090.json expects. */
static const struct sw_paper_machine rtx4090 = {.flops_per_s = 150e12,
                                                .link_bytes_per_s = 26 * GB,
                                                .read_bytes_per_s = 6.5 * GB,
                                                .write_bytes_per_s = 5 * GB,
                                                .host_bytes_per_s = 55 * GB};

/* A direction of a placement: the least bytes a parameter on its lane. */
struct traffic {
    const char *name, *place;
    sw_program_kind kind;
    sw_lane lane;
    double bytes;
};
#define RESIDENT "weights=device,grads=host,optimizer=host,acts=device"
#define STREAMED "weights=host,grads=host,optimizer=host,acts=device"
#define DRIVES "weights=nvme,grads=host,optimizer=nvme,acts=device"
#define ALL_DRIVES "weights=nvme,grads=nvme,optimizer=nvme,acts=device"
static const struct traffic traffics[] = {
    {"weights resident: down", RESIDENT, SW_PROGRAM_UPDATE, SW_LANE_DOWNLOAD, 2},
    {"weights resident: up", RESIDENT, SW_PROGRAM_UPDATE, SW_LANE_UPLOAD, 2},
    {"weights streamed: down", STREAMED, SW_PROGRAM_UPDATE, SW_LANE_DOWNLOAD, 2},
    {"weights streamed: up", STREAMED, SW_PROGRAM_UPDATE, SW_LANE_UPLOAD, 4},
    {"states on NVMe: read", DRIVES, SW_PROGRAM_UPDATE, SW_LANE_READ, 14},
    {"states on NVMe: written", DRIVES, SW_PROGRAM_UPDATE, SW_LANE_WRITE, 14},
    {"speculated update: read", DRIVES, SW_PROGRAM_REDO_SPECULATE, SW_LANE_READ, 16},
    {"gradients there too: read", ALL_DRIVES, SW_PROGRAM_UPDATE, SW_LANE_READ, 16},
    {"gradients there too: written", ALL_DRIVES, SW_PROGRAM_UPDATE, SW_LANE_WRITE, 16},
    {"update on the CPU: memory", DRIVES, SW_PROGRAM_UPDATE, SW_LANE_UPDATE, 28},
};
enum { TRAFFICS = sizeof traffics / sizeof traffics[0] };

static double lane_rate(sw_lane lane) {
    switch (lane) {
    case SW_LANE_READ: return rtx4090.read_bytes_per_s;
    case SW_LANE_WRITE: return rtx4090.write_bytes_per_s;
    case SW_LANE_UPDATE: return rtx4090.host_bytes_per_s;
    default: return rtx4090.link_bytes_per_s;
    }
}

/* A lane's seconds of a step beside those of compute. */
struct lanes {
    double parameters, tokens, compute_s, lane_s;
};

static sw_status simulate(const struct traffic *traffic, struct lanes *out) {
    const struct sw_paper_case which = {.layers = 36, .hidden = 4096, .place = traffic->place, .two_generations = true};
    struct sw_paper_plan plan;
    struct sw_simulation step;
    sw_status status = paper_open(&which, &plan);
    if (status == SW_OK)
        status = paper_simulate(&plan, traffic->kind, &rtx4090, &step);
    if (status == SW_OK)
        *out = (struct lanes){plan.parameters, plan.tokens, step.lane_busy_s[SW_LANE_COMPUTE],
                              step.lane_busy_s[traffic->lane]};
    paper_close(&plan);
    return status;
}

static sw_status fill_row(const struct traffic *traffic, struct sw_paper_row *out) {
    const double bytes_per_s = lane_rate(traffic->lane);
    struct lanes lanes;
    SW_TRY(simulate(traffic, &lanes));
    snprintf(out->name, sizeof out->name, "%s", traffic->name);
    out->number[0].paper = traffic->bytes;
    out->number[0].ours = lanes.lane_s * bytes_per_s / lanes.parameters;
    out->number[1].paper = traffic->bytes / bytes_per_s * rtx4090.flops_per_s / FLOPS_PER_PARAMETER;
    out->number[1].ours = lanes.tokens * lanes.lane_s / lanes.compute_s;
    return SW_OK;
}

sw_status sw_paper_least_bytes(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "least_bytes",
        .title = "Least bytes a parameter and step by layer, and tokens whose compute hides them",
        .source = "counted by hand as ZeRO-Infinity counts; bytes / rate = 8 flops x tokens / rate, at 150 TFLOP/s, "
                  "link 26 GB/s each way, drive 6.5 and 5, host memory 55",
        .unit = "one device",
        .column = {{.heading = "bytes",
                    .low = -0.04,
                    .high = 0.01,
                    .reason = "the last block, where the passes meet, and the tied table are fetched once a step."},
                   {.heading = "tokens",
                    .low = -0.05,
                    .high = 0.01,
                    .reason = "attention computes too, and what is fetched once hides sooner."}},
        .columns = 2,
        .rows = TRAFFICS,
    };
    for (int t = 0; t < TRAFFICS; t++)
        SW_TRY(fill_row(&traffics[t], &out->row[t]));
    return SW_OK;
}

/* Arithmetic intensities, and efficiencies without overlap, as ZeRO-Infinity counts them (section 4): by the lanes of
 * simulated steps, whose bytes are those of the plan's ops, and whose seconds of compute are those of their flops. */

#define PEAK_FLOPS_PER_S 70e12 /* a V100's, as the paper takes it */
#define PERCENT 100.0

/* A kind of bytes, the link or the drive that moves it, and flops of a step for each byte as the paper counts them, at
 * one sequence a device. */
struct flow {
    const char *name, *place;
    bool drives;
    double intensity, intensity_per_hidden;
};
enum { STATES, OPTIMIZER, CHECKPOINTS, FLOWS };
static const struct flow flows[FLOWS] = {
    [STATES] = {"weights, gradients", "weights=host,grads=host,optimizer=host,acts=device", false, SW_PAPER_SEQ, 0.0},
    [OPTIMIZER] = {"optimizer", "weights=device,grads=device,optimizer=nvme,acts=device", true, SW_PAPER_SEQ / 4.0,
                   0.0},
    [CHECKPOINTS] = {"checkpoints", "weights=device,grads=device,optimizer=device,acts=host", false, 0.0, 24.0},
};
enum { LAYERS = 80 };

static double intensity_of(const struct flow *flow, int64_t hidden) {
    return flow->intensity + flow->intensity_per_hidden * (double)hidden;
}

/* Seconds of a step, where a link or drive moves `bytes_per_s` each way; moved_s: both ways, one after the other. */
struct balance {
    double compute_s, moved_s;
};

static sw_status weigh(const struct flow *flow, int64_t hidden, double bytes_per_s, struct balance *out) {
    const struct sw_paper_case which = {.layers = LAYERS, .hidden = hidden, .place = flow->place};
    const struct sw_paper_machine machine = {.flops_per_s = PEAK_FLOPS_PER_S,
                                             .link_bytes_per_s = flow->drives ? 0.0 : bytes_per_s,
                                             .read_bytes_per_s = flow->drives ? bytes_per_s : 0.0,
                                             .write_bytes_per_s = flow->drives ? bytes_per_s : 0.0};
    struct sw_paper_plan plan;
    struct sw_simulation step;
    sw_status status = paper_open(&which, &plan);
    if (status == SW_OK)
        status = paper_simulate(&plan, SW_PROGRAM_UPDATE, &machine, &step);
    if (status == SW_OK) {
        out->compute_s = step.lane_busy_s[SW_LANE_COMPUTE];
        out->moved_s = flow->drives ? step.lane_busy_s[SW_LANE_READ] + step.lane_busy_s[SW_LANE_WRITE]
                                    : step.lane_busy_s[SW_LANE_UPLOAD] + step.lane_busy_s[SW_LANE_DOWNLOAD];
    }
    paper_close(&plan);
    return status;
}

sw_status sw_paper_infinity_intensity(struct sw_paper_table *out) {
    static const int64_t widths[] = {2 * K, 8 * K, 10 * K};
    *out = (struct sw_paper_table){
        .name = "infinity_intensity",
        .title = "Arithmetic intensity at 1024 tokens a step, by hidden size",
        .source = "ZeRO-Infinity, arXiv 2104.07857, section 4.1",
        .unit = "flops a byte",
        .column = {{.heading = "weights",
                    .low = 0.33,
                    .high = 0.45,
                    .reason = "weights and gradients move 6 bytes a parameter and not 8, because the backward pass "
                              "recomputes with the "
                              "weights that it fetches. Attention and head add flops, most to the narrow model."},
                   {.heading = "optimizer",
                    .low = 0.33,
                    .high = 0.45,
                    .reason = "24 bytes a parameter move and not 32, as there are no fp32 gradients."},
                   {.heading = "checkpoints", .low = -0.01, .high = 0.07}},
        .columns = FLOWS,
        .rows = sizeof widths / sizeof widths[0],
    };
    for (int r = 0; r < out->rows; r++)
        for (int f = 0; f < FLOWS; f++) {
            struct balance balance;
            SW_TRY(weigh(&flows[f], widths[r], GB, &balance));
            snprintf(out->row[r].name, sizeof out->row[r].name, "%lldK", (long long)(widths[r] / K));
            out->row[r].number[f].paper = intensity_of(&flows[f], widths[r]);
            out->row[r].number[f].ours = balance.compute_s * PEAK_FLOPS_PER_S / (balance.moved_s * GB);
        }
    return SW_OK;
}

/* The efficiencies that the paper names. */
static const struct {
    int flow;
    int64_t hidden;
    double bytes_per_s;
    const char *printed;
} named[] = {{STATES, 10 * K, 70 * GB, "50.6"}, {CHECKPOINTS, 2 * K, 2 * GB, "58"}, {CHECKPOINTS, 8 * K, 3 * GB, "89"}};

sw_status sw_paper_infinity_efficiency(struct sw_paper_table *out) {
    *out = (struct sw_paper_table){
        .name = "infinity_efficiency",
        .title = "Efficiency without overlap, at 70 TFLOP/s",
        .source = "ZeRO-Infinity, arXiv 2104.07857, section 4.2, figure 3",
        .unit = "% of the peak",
        .column = {{.heading = "efficiency", .low = -0.01, .high = 0.16, .reason = "as the intensities deviate."}},
        .columns = 1,
        .rows = sizeof named / sizeof named[0],
    };
    for (int r = 0; r < out->rows; r++) {
        const struct flow *flow = &flows[named[r].flow];
        const double flops_per_s = intensity_of(flow, named[r].hidden) * named[r].bytes_per_s;
        struct balance balance;
        SW_TRY(weigh(flow, named[r].hidden, named[r].bytes_per_s, &balance));
        snprintf(out->row[r].name, sizeof out->row[r].name, "%s, %lldK, %.0f GB/s", flow->name,
                 (long long)(named[r].hidden / K), named[r].bytes_per_s / GB);
        out->row[r].number[0].printed = named[r].printed;
        out->row[r].number[0].paper = PERCENT * flops_per_s / (flops_per_s + PEAK_FLOPS_PER_S);
        out->row[r].number[0].ours = PERCENT * balance.compute_s / (balance.compute_s + balance.moved_s);
    }
    return SW_OK;
}

/* Published runs of other programs, and what our planner predicts for this program on machines that are described and
 * not here. */

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

static sw_status choose_settings(const struct training *training, struct sw_settings *s) {
    char path[PATH_CHARS];
    snprintf(path, sizeof path, SW_TEST_MACHINES "/%s.json", training->machine);
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

static sw_status predict(const struct training *training, struct prediction *out) {
    struct sw_settings settings = {0};
    struct sw_job job = {0};
    sw_status status = choose_settings(training, &settings);
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

sw_status sw_paper_runs(struct sw_paper_table *out) {
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
        SW_TRY(predict(&runs[r].training, &by));
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

sw_status sw_paper_ratios(struct sw_paper_table *out) {
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
        SW_TRY(predict(&ratios[r].over, &over));
        SW_TRY(predict(&ratios[r].under, &under));
        snprintf(out->row[r].name, sizeof out->row[r].name, "%s", ratios[r].name);
        out->row[r].number[0] = (struct sw_paper_number){
            .printed = ratios[r].printed, .ours = ratios[r].scale * over.tokens_per_s / under.tokens_per_s};
    }
    return SW_OK;
}
