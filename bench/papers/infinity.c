/* The memory that ZeRO-Infinity counts (Rajbhandari et al., SC21, arXiv 2104.07857, section 3). */
#include "bench/papers/outline.h"
#include "bench/papers/papers.h"

#include <stdio.h>

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
} models[ROWS] = {
    {"0.1T", 80, 10 * K, 128, "1.83", "0.05", "1.56", "1.63"},
    {"0.5T", 100, 20 * K, 160, "9.16", "0.12", "6.25", "2.50"},
    {"1T", 128, 25 * K, 256, "18.31", "0.20", "9.77", "3.56"},
    {"10T", 195, 64 * K, 512, "182.8", "0.76", "64", "8"},
    {"101T", 315, 160 * K, 1024, "1845.7", "3.08", "400", "18"},
};

static struct sw_paper_case case_of(int model, int64_t sequences, int64_t tiles) {
    return (struct sw_paper_case){.layers = models[model].layers,
                                  .hidden = models[model].hidden,
                                  .heads = models[model].heads,
                                  .sequences = sequences,
                                  .tiles = tiles,
                                  .place = "weights=nvme,grads=nvme,optimizer=nvme,acts=host"};
}

static void name_row(int model, struct sw_paper_row *out) {
    snprintf(out->name, sizeof out->name, "%s: %lld x %lldK", models[model].name, (long long)models[model].layers,
             (long long)(models[model].hidden / K));
}

/* Section 3: a checkpoint of 16 bits for each block. */
static double inputs_bytes(const struct sw_paper_plan *plan) {
    return 2.0 * plan->tokens * (double)plan->job.config.hidden * (double)plan->job.config.layers;
}

static sw_status fill_memory(int model, struct sw_paper_row *out) {
    const struct sw_paper_case which = case_of(model, CHECKPOINT_SEQUENCES, 1);
    const double layers = (double)which.layers, hidden = (double)which.hidden;
    struct sw_paper_plan plan;
    const sw_status status = sw_paper_open(&which, &plan);
    name_row(model, out);
    if (status == SW_OK) {
        out->number[0] = (struct sw_paper_number){.printed = models[model].states_tib,
                                                  .paper = 240.0 * layers * hidden * hidden / TIB,
                                                  .ours = sw_paper_states_bytes(plan.job.plan) / TIB};
        out->number[1] =
            (struct sw_paper_number){.printed = models[model].checkpoints_tib,
                                     .paper = inputs_bytes(&plan) / TIB,
                                     .ours = sw_paper_slot_bytes(plan.job.plan, "block input", false) / TIB};
    }
    sw_paper_close(&plan);
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
        SW_TRY(fill_memory(m, &out->row[m]));
    return SW_OK;
}

static sw_status fill_working(int model, struct sw_paper_row *out) {
    const struct sw_paper_case which = case_of(model, WORKING_SEQUENCES, TILES);
    const double hidden = (double)which.hidden, heads = (double)which.heads;
    struct sw_paper_plan plan;
    const sw_status status = sw_paper_open(&which, &plan);
    name_row(model, out);
    if (status == SW_OK) {
        out->number[0] =
            (struct sw_paper_number){.printed = models[model].states_gib,
                                     .paper = 16.0 * hidden * hidden / GIB,
                                     .ours = (sw_paper_slot_bytes(plan.job.plan, "weights of a unit", true) +
                                              sw_paper_slot_bytes(plan.job.plan, "accumulator", true)) /
                                             GIB};
        out->number[1] =
            (struct sw_paper_number){.printed = models[model].activations_gib,
                                     .paper = plan.tokens * (16.0 * hidden + 2.0 * heads * SW_PAPER_SEQ) / GIB,
                                     .ours = (sw_paper_slot_bytes(plan.job.plan, "saved", true) +
                                              sw_paper_slot_bytes(plan.job.plan, "derived", true) +
                                              sw_paper_slot_bytes(plan.job.plan, "work", true)) /
                                             GIB};
        out->number[2] = (struct sw_paper_number){
            .paper = inputs_bytes(&plan) / GIB, .ours = sw_paper_slot_bytes(plan.job.plan, "block input", false) / GIB};
    }
    sw_paper_close(&plan);
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
