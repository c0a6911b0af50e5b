/* Times the ops of units whose sizes span those of real models. */
#include "core/clock.h"
#include "core/long_work.h"
#include "core/machine.h"
#include "core/size.h"
#include "job/profile.h"
#include "job/settings_plan.h"
#include "model/unit_run.h"
#include "offload/simulate/measure.h"

#include "core/error_scope.h"

#include <math.h>

/* A model of one block. Heads have 64 elements in those of GPT-2's kind, 128 in those of Llama's kind where they are
 * wide enough. */
struct cell {
    int64_t hidden, ffn, vocab, batch, seq;
    bool llama; /* of Llama's kind; false: of GPT-2's */
};

/* Smallest first: large ones are left out where time or memory does not reach. Those of a few tokens read their weights
 * for little arithmetic. */
static const struct cell cells[] = {
    {64, 256, 256, 4, 64, false},        {64, 176, 256, 4, 64, true},         {256, 1024, 256, 8, 256, false},
    {256, 704, 1024, 2, 256, true},      {256, 1024, 4096, 1, 4, false},      {768, 3072, 50257, 1, 4, false},
    {2048, 5632, 32000, 1, 16, true},    {768, 3072, 8192, 1, 256, false},    {768, 2048, 4096, 2, 512, true},
    {768, 3072, 50257, 1, 1024, false},  {256, 704, 151936, 1, 512, true},    {1024, 4096, 1024, 4, 256, false},
    {2048, 5632, 8192, 1, 256, true},    {2048, 8192, 256, 1, 1024, false},   {2048, 8192, 32000, 1, 1024, true},
    {1024, 4096, 1024, 4, 1024, false},  {4096, 14336, 8192, 1, 512, true},   {1536, 8960, 65536, 2, 2048, true},
    {4096, 14336, 32000, 2, 2048, true}, {8192, 28672, 32000, 1, 4096, true}, {4096, 11008, 32000, 1, 8192, true},
};
enum { CELLS = sizeof cells / sizeof cells[0], LEAST_ROUNDS = 3, MOST_ROUNDS = 9, MANY_TOKENS = 64 };

/* In models whose blocks are this wide a block's weights have left the caches when its turn comes again. */
enum { WIDE_MODEL = 768 };
#define CACHES_BYTES (64 * SW_MIB)

/* Seconds for all cells, for the rounds of one pass, and those after which all cells that fit are timed again: the
 * machine's speed changes within seconds where others share it. */
#define ALL_S 26.0
#define FIRST_S 18.0
#define PASS_S 0.06

struct timing {
    struct sw_device *device;
    struct sw_op_times *times;
    struct sw_ranks *ranks;
    struct sw_stream *stream;
    struct sw_memory *other; /* copied to itself, displaces what caches have */
    struct sw_long_work progress;
    int64_t start_ns;
    double s_per_flop; /* seconds that the last cell of many tokens took, over its cell_flops; 0: there was none */
    double cpu_s, wall_s;
};

static sw_status config_of(const struct cell *cell, struct sw_model_config *out) {
    enum { NARROW = 128, WIDE = 2048, TINY_HEAD = 16, HEAD = 64, WIDE_HEAD = 128, MOST_SHARING = 4 };
    SW_TRY(sw_config_load(cell->llama ? "llama-tiny" : "gpt2-tiny", out));
    out->vocab = cell->vocab;
    out->hidden = cell->hidden;
    out->ffn = cell->ffn;
    out->layers = 1;
    out->max_positions = cell->seq;
    out->head_dim = cell->hidden < NARROW ? TINY_HEAD : cell->llama && cell->hidden >= WIDE ? WIDE_HEAD : HEAD;
    out->heads = cell->hidden / out->head_dim;
    out->kv_heads = cell->llama && out->heads % MOST_SHARING == 0 ? out->heads / MOST_SHARING : out->heads;
    return SW_OK;
}

/* Returns about how many operations a cell takes in one round, to compare cells. */
static double cell_flops(const struct cell *cell) {
    enum { PASSES = 10 };
    const double sides = 4.0 * (double)cell->hidden + 3.0 * (double)cell->ffn + (double)cell->vocab;
    return PASSES * (double)(cell->batch * cell->seq) * (double)cell->hidden * (sides + (double)cell->seq);
}

static double passed_s(const struct timing *timing) {
    return (double)(sw_now_ns() - timing->start_ns) * 1e-9;
}

static sw_status displace_caches(const struct timing *timing) {
    char *base = sw_memory_base(timing->other);
    SW_TRY(sw_copy_on_device(timing->stream, base, base + CACHES_BYTES, CACHES_BYTES));
    return sw_stream_synchronize(timing->stream);
}

static sw_status time_pass(struct timing *timing, struct sw_unit_run *run, sw_unit_pass pass, bool displace) {
    double wall_s = 0.0;
    for (int round = 0; round < MOST_ROUNDS && (round < LEAST_ROUNDS || wall_s < PASS_S); round++) {
        if (displace)
            SW_TRY(displace_caches(timing));
        const double start_cpu_s = sw_cpu_seconds();
        const int64_t start_ns = sw_now_ns();
        SW_TRY(sw_unit_run_pass(run, pass));
        wall_s += (double)(sw_now_ns() - start_ns) * 1e-9;
        timing->cpu_s += sw_cpu_seconds() - start_cpu_s;
        SW_TRY(sw_long_work_at(&timing->progress, 0));
        sw_ranks_tick(timing->ranks);
    }
    timing->wall_s += wall_s;
    return SW_OK;
}

/* The models of the cells are whole, so their blocks have none of the passes of tensor groups, which come last. */
static sw_status time_units(struct timing *timing, struct sw_unit_run *run, int64_t units, bool displace) {
    for (int64_t u = 0; u < units; u++) {
        const bool block = u > 0 && u + 1 < units;
        SW_TRY(sw_unit_run_choose(run, u));
        for (int pass = 0; pass < (block ? SW_UNIT_LAST_PRODUCT : SW_UNIT_RECOMPUTE); pass++)
            SW_TRY(time_pass(timing, run, (sw_unit_pass)pass, displace));
    }
    return SW_OK;
}

static sw_status time_cell(struct timing *timing, const struct cell *cell, const struct sw_settings *settings,
                           int64_t most_bytes) {
    struct sw_model_shape shape = sw_settings_shape(settings);
    const double start_s = passed_s(timing);
    struct sw_model_config config;
    struct sw_model *model = NULL;
    struct sw_unit_run *run = NULL;
    shape.batch = cell->batch;
    shape.seq = cell->seq;
    shape.tiles = shape.tensor_ranks = 1;
    shape.tensor_rank = 0;
    SW_TRY(config_of(cell, &config));
    sw_status status = sw_model_create(&config, &shape, timing->device, &model);
    if (status == SW_OK && sw_unit_run_bytes(model) <= most_bytes) {
        status = sw_unit_run_open(model, timing->device, &run);
        sw_device_time_ops(timing->device, timing->times);
        if (status == SW_OK)
            status = time_units(timing, run, sw_model_get_units(model)->count, cell->hidden >= WIDE_MODEL);
        sw_device_time_ops(timing->device, NULL);
        if (cell->batch * cell->seq >= MANY_TOKENS)
            timing->s_per_flop = (passed_s(timing) - start_s) / cell_flops(cell);
    }
    sw_unit_run_close(run);
    sw_model_destroy(model);
    return status;
}

/* Returns the memory that a cell may take. */
static int64_t most_cell_bytes(const struct sw_device *device) {
    SW_HANDLES_ERRORS();
    enum { PART = 3 };
    struct sw_machine machine;
    const int64_t device_bytes = sw_device_info(device).memory_bytes;
    if (device_bytes > 0)
        return device_bytes / PART;
    if (sw_machine_read(&machine) == SW_OK)
        return machine.available_bytes / PART;
    return 0;
}

/* Times the models that are done by then; the first in any case, because a profile without ops prices nothing. */
static sw_status time_cells(struct timing *timing, const struct sw_rates_target *target, double until_s,
                            struct sw_memory_samples *samples) {
    const int64_t most_bytes = most_cell_bytes(timing->device);
    for (int i = 0; i < CELLS; i++) {
        const double due_s = samples->count * ALL_S / (SW_MEMORY_SAMPLES - 1);
        if (samples->count < SW_MEMORY_SAMPLES && passed_s(timing) >= due_s)
            SW_TRY(sw_rates_sample_memory(target, samples));
        if (sw_op_times_count(timing->times) == 0 ||
            timing->s_per_flop * cell_flops(&cells[i]) <= until_s - passed_s(timing))
            SW_TRY(time_cell(timing, &cells[i], target->settings, most_bytes));
    }
    return SW_OK;
}

sw_status sw_profile_time_ops(const struct sw_rates_target *target, struct sw_op_times *times,
                              struct sw_memory_samples *samples, double *out_compute_cores) {
    struct timing timing = {
        .device = target->devices->compute,
        .times = times,
        .ranks = target->ranks,
        .progress = sw_long_work_begin("measuring this machine", target->settings->json ? SW_LONG_WORK_SILENT : 0),
        .start_ns = sw_now_ns()};
    sw_status status = sw_stream_open(timing.device, &timing.stream);
    if (status == SW_OK)
        status = sw_memory_open(timing.device, "measurement", SW_MEMORY_DEVICE, 2 * CACHES_BYTES, &timing.other);
    if (status == SW_OK)
        status = time_cells(&timing, target, FIRST_S, samples);
    if (status == SW_OK)
        status = time_cells(&timing, target, ALL_S, samples);
    sw_memory_close(timing.other);
    sw_stream_close(timing.stream);
    SW_TRY(status);
    sw_long_work_end(&timing.progress);
    *out_compute_cores = timing.wall_s > 0.0 ? timing.cpu_s / timing.wall_s : 0.0;
    return SW_OK;
}
