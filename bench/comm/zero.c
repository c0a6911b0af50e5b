/* `spillway bench zero`: a model trained at each stage of ZeRO, on several nodes also with ZeRO++, in tensor groups
 * with and without partitioned activations, and what a rank holds and sends meanwhile. Run by mpirun. */
#include "bench/comm/zero.h"
#include "bench/commands.h"
#include "bench/options.h"
#include "bench/step/contender.h"
#include "cli/cmd_ranks.h"
#include "core/size.h"
#include "job/planned_ranks.h"
#include "job/settings_plan.h"
#include "run/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One step of one micro-batch is enough: the bytes held and sent do not depend on how much is computed. */
enum { STEPS = 1, SEQ = 16 };
/* Tensor groups exchange the hidden state of every token. The sums of what every rank has of norms, 16 bytes a block
 * and element of the hidden state, are one part in TENSOR_SEQ of that. */
enum { TENSOR_SEQ = 128 };
/* On several nodes there are so many times the blocks: of what ranks send within a node with ZeRO++, the units that are
 * gathered once are a larger part. */
enum { NODES_LAYERS_TIMES = 2 };

/* Every unit fills all but a hundredth of a multiple of 8 grains, so that up to 8 ranks have equal shards with little
 * padding. There are many blocks: stage 3 gathers embedding, head and last block once a step, all others twice. */
static const struct sw_model_config made = {
    .family = "llama",
    .vocab = 504,
    .hidden = 256,
    .layers = 32,
    .heads = 4,
    .kv_heads = 4,
    .head_dim = 64,
    .ffn = 336,
    .max_positions = SEQ,
    .norm_epsilon = 1e-5,
    .init_std = 0.02,
    .activation = SW_SILU,
    .norm = SW_NORM_RMS,
    .positions = SW_POSITIONS_ROTARY,
    .gated = true,
    .out_first = true,
    .rope = {.theta = 10000.0, .truncate = true},
};

/* Changes the made model for tensor groups of 2 or 4 ranks. On each rank, the matrices of the halves of a block fill 75
 * and 99 grains, and the norm of a half takes one grain more. On up to 4 data ranks, norms and uneven shards add at
 * most 1.4%. */
enum { GROUP_RANK_HIDDEN = 256 };
static void widen_for_groups(struct sw_model_config *config, int64_t tensor_ranks) {
    config->vocab = 448;
    config->hidden = GROUP_RANK_HIDDEN * tensor_ranks;
    config->layers = 12;
    config->heads = 16;
    config->head_dim = 120;
    config->ffn = 2112;
    config->max_positions = TENSOR_SEQ;
}

struct zero_bench {
    const struct sw_bench_options *given;
    struct sw_ranks *ranks;
    struct sw_settings settings;
    struct sw_model_config config;
    struct sw_devices devices;
    struct sw_model *model;
    struct sw_zero_report report;
};

static bool has_groups(const struct zero_bench *b) {
    return sw_settings_tensor_ranks(&b->settings) > 1;
}

static bool is_made(const struct zero_bench *b) {
    return strcmp(b->given->settings.model, SW_BENCH_MADE_MODEL) == 0;
}

static sw_status choose_model(struct zero_bench *b) {
    b->config = made;
    if (!is_made(b))
        return sw_config_load(b->given->settings.model, &b->config);
    if (has_groups(b))
        widen_for_groups(&b->config, sw_settings_tensor_ranks(&b->settings));
    return SW_OK;
}

/* The paper's activations are those of a training that computes blocks again (section 6.1). */
static int recompute_of(const struct zero_bench *b) {
    const int given = b->given->settings.recompute;
    return given == SW_OPTION_RECOMPUTE_AUTO && has_groups(b) ? SW_OPTION_RECOMPUTE_ALL : given;
}

static sw_status choose_settings(struct zero_bench *b) {
    struct sw_settings *settings = &b->settings;
    SW_TRY(sw_options_defaults(&sw_bench_step_command, settings));
    free(settings->place);
    settings->place = strdup("weights=device,grads=device,optimizer=device,acts=device");
    if (settings->place == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings");
    settings->precision = b->given->settings.precision;
    settings->device = b->given->settings.device;
    settings->threads = b->given->settings.threads;
    settings->ranks_per_node = b->given->settings.ranks_per_node;
    settings->ring_chunks = SW_RING_CHUNKS; /* or rings take what memory has left */
    settings->tensor = b->given->settings.tensor;
    SW_TRY(choose_model(b));
    settings->recompute = recompute_of(b);
    settings->seq = has_groups(b) ? sw_min_i64(TENSOR_SEQ, b->config.max_positions) : SEQ;
    settings->micro_batch = 1;
    settings->batch_tokens = settings->seq * (sw_ranks_count(b->ranks) / sw_settings_tensor_ranks(settings));
    return SW_OK;
}

/* Returns the rows that this job can run: those of ZeRO++ need whole layers, and several even nodes of several ranks.
 */
static int rows_of(const struct zero_bench *b) {
    if (has_groups(b))
        return SW_ZERO_TENSOR_ROWS;
    const struct sw_comm_nodes *nodes = sw_comm_nodes(b->ranks->comm);
    return nodes->even && nodes->nodes > 1 && nodes->ranks > 1 ? SW_ZERO_ROWS : SW_ZERO_STAGES;
}

static sw_status open_model(struct zero_bench *b) {
    struct sw_settings *settings = &b->settings;
    b->report.rows = rows_of(b);
    if (b->report.rows == SW_ZERO_ROWS && !has_groups(b) && is_made(b))
        b->config.layers *= NODES_LAYERS_TIMES;
    SW_TRY(sw_settings_open_devices(settings, &b->devices));
    const struct sw_device_info info = sw_devices_info(&b->devices);
    SW_TRY(sw_settings_resolve(settings, &b->config, &info));
    const struct sw_model_shape shape = {.type = sw_settings_type(settings),
                                         .batch = settings->micro_batch,
                                         .seq = settings->seq,
                                         .tiles = 1,
                                         .tensor_ranks = (int)sw_settings_tensor_ranks(settings),
                                         .tensor_rank = (int)sw_settings_tensor_rank(settings)};
    return sw_model_create(&b->config, &shape, b->devices.compute, &b->model);
}

/* The communicator's counters: all that this rank has sent, and what of it went to other nodes and within its group. */
struct sent {
    int64_t bytes, between_bytes, tensor_bytes;
};

static struct sent sent_so_far(const struct zero_bench *b) {
    const struct sw_comm *comm = b->ranks->comm;
    return (struct sent){sw_comm_sent_bytes(comm), sw_comm_sent_between_bytes(comm), sw_comm_sent_tensor_bytes(comm)};
}

static struct sent sent_since(const struct zero_bench *b, struct sent before) {
    const struct sent now = sent_so_far(b);
    return (struct sent){now.bytes - before.bytes, now.between_bytes - before.between_bytes,
                         now.tensor_bytes - before.tensor_bytes};
}

/* Notes what the communicator has counted in so many steps. */
static void note_sent(struct sw_zero_stage *out, const struct sw_plan *plan, struct sent sent, int64_t steps) {
    const int node_ranks = plan->spec.node_ranks;
    const bool groups = sw_plan_tensor_ranks(plan) > 1;
    const bool nodes = node_ranks > 0 && node_ranks < plan->spec.ranks && !groups;
    out->bytes[SW_ZERO_SENT] = sent.bytes / steps;
    out->bytes[SW_ZERO_SENT_TENSOR] = groups ? sent.tensor_bytes / steps : -1;
    out->bytes[SW_ZERO_SENT_DATA] = groups ? (sent.bytes - sent.tensor_bytes) / steps : -1;
    out->bytes[SW_ZERO_BETWEEN] = nodes ? sent.between_bytes / steps : -1;
    out->bytes[SW_ZERO_INSIDE] = nodes ? (sent.bytes - sent.between_bytes) / steps : -1;
    out->planned_between_bytes = nodes ? sw_plan_sent_bytes(plan).between_bytes : -1;
}

/* Counts the bytes that are sent in whole steps: from a moment when nothing is on its way until the last step's update
 * has ended. */
static sw_status train(struct zero_bench *b, struct sw_plan *plan, struct sw_zero_stage *out) {
    const struct sw_contender_spec spec = {.settings = &b->settings,
                                           .model = b->model,
                                           .devices = &b->devices,
                                           .plan = plan,
                                           .speculation = SW_SPECULATE_NEVER,
                                           .ranks = b->ranks};
    double seconds[STEPS];
    struct sw_step_times times = {.seconds = seconds};
    struct sw_contender contender;
    sw_status status;
    SW_TRY(sw_contender_open(&spec, &contender));
    const struct sent before = sent_so_far(b);
    SW_TRY_GOTO(sw_contender_run(&contender, STEPS, &times), end);
    SW_TRY_GOTO(sw_engine_settle(contender.engine), end);
    note_sent(out, plan, sent_since(b, before), contender.step);
    out->planned_bytes = times.last.lane_bytes[SW_LANE_COMM];
end:
    sw_contender_close(&contender);
    return status;
}

/* Takes the figures of the rank that holds and sends the most, and compares them with the formulas. */
static sw_status take_most(struct zero_bench *b, struct sw_zero_stage *stage) {
    if (sw_ranks_comm(b->ranks) != NULL) {
        SW_TRY(sw_comm_max(b->ranks->comm, "figures", stage->bytes, SW_ZERO_FIGURES));
        SW_TRY(sw_comm_max(b->ranks->comm, "figures", &stage->planned_bytes, 1));
        SW_TRY(sw_comm_max(b->ranks->comm, "figures", &stage->planned_between_bytes, 1));
    }
    const struct sw_comm_nodes *nodes = sw_comm_nodes(b->ranks->comm);
    const double weights = b->report.stage[SW_ZERO_NONE].formula_bytes[SW_ZERO_HELD_WEIGHTS];
    stage->between_times = stage->bytes[SW_ZERO_BETWEEN] < 0
                               ? NAN
                               : (double)stage->bytes[SW_ZERO_BETWEEN] / (weights * (1.0 - 1.0 / nodes->nodes));
    sw_zero_compare(stage, &b->report.stage[stage->stage]);
    return SW_OK;
}

/* The settings of a row of the report. */
struct row {
    const char *name;
    int zero, gather, reduce, partition;
    const char *secondary; /* --zero-secondary */
};

static const struct row rows[SW_ZERO_ROWS] = {
    {.name = "0", .zero = SW_ZERO_NONE, .secondary = SW_NO_SECONDARY},
    {.name = "1", .zero = SW_ZERO_OPTIMIZER, .secondary = SW_NO_SECONDARY},
    {.name = "2", .zero = SW_ZERO_GRADS, .secondary = SW_NO_SECONDARY},
    {.name = "3", .zero = SW_ZERO_WEIGHTS, .secondary = SW_NO_SECONDARY},
    [SW_ZERO_HPZ] = {.name = "3 hpZ", .zero = SW_ZERO_WEIGHTS, .secondary = "node"},
    [SW_ZERO_QWZ] = {.name = "3 qwZ", .zero = SW_ZERO_WEIGHTS, .gather = SW_GATHER_INT8, .secondary = SW_NO_SECONDARY},
    [SW_ZERO_QGZ] = {.name = "3 qgZ", .zero = SW_ZERO_WEIGHTS, .reduce = SW_REDUCE_INT4, .secondary = SW_NO_SECONDARY},
    [SW_ZERO_PLUS] = {.name = "3 all",
                      .zero = SW_ZERO_WEIGHTS,
                      .gather = SW_GATHER_INT8,
                      .reduce = SW_REDUCE_INT4,
                      .secondary = "node"},
};

/* The rows of a job with tensor groups. */
#define GROUP_ROW(name_, zero_, partition_)                                                                            \
    { .name = (name_), .zero = (zero_), .partition = (partition_), .secondary = SW_NO_SECONDARY }
static const struct row group_rows[SW_ZERO_TENSOR_ROWS] = {
    GROUP_ROW("0", SW_ZERO_NONE, SW_PARTITION_NO),      GROUP_ROW("1", SW_ZERO_OPTIMIZER, SW_PARTITION_NO),
    GROUP_ROW("2", SW_ZERO_GRADS, SW_PARTITION_NO),     GROUP_ROW("3", SW_ZERO_WEIGHTS, SW_PARTITION_NO),
    GROUP_ROW("0 Pa", SW_ZERO_NONE, SW_PARTITION_YES),  GROUP_ROW("1 Pa", SW_ZERO_OPTIMIZER, SW_PARTITION_YES),
    GROUP_ROW("2 Pa", SW_ZERO_GRADS, SW_PARTITION_YES), GROUP_ROW("3 Pa", SW_ZERO_WEIGHTS, SW_PARTITION_YES),
};

static sw_status choose_row(struct zero_bench *b, const struct row *row) {
    free(b->settings.zero_secondary);
    b->settings.zero = row->zero;
    b->settings.gather = row->gather;
    b->settings.reduce = row->reduce;
    b->settings.partition = row->partition;
    b->settings.zero_secondary = strdup(row->secondary);
    return b->settings.zero_secondary != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the settings");
}

static sw_status measure_row(struct zero_bench *b, int number) {
    sw_ranks_relax_timeout(b->ranks, false);
    const struct row *row = has_groups(b) ? &group_rows[number] : &rows[number];
    struct sw_zero_stage *stage = &b->report.stage[number];
    stage->stage = row->zero;
    stage->name = row->name;
    stage->partitioned = has_groups(b) && row->partition == SW_PARTITION_YES;
    struct sw_plan *plan = NULL;
    SW_TRY(sw_ranks_agree_on_error(b->ranks, choose_row(b, row)));
    sw_status status = sw_ranks_agree_on_error(b->ranks, sw_settings_plan(&b->settings, b->model, &plan));
    if (status == SW_OK) {
        sw_zero_count_held(plan, stage);
        sw_zero_find_formulas(&b->report.job, plan, stage);
        status = train(b, plan, stage);
    }
    sw_plan_destroy(plan);
    SW_TRY(status);
    return take_most(b, stage);
}

static struct sw_zero_job job_of(const struct zero_bench *b) {
    const struct sw_settings *settings = &b->settings;
    return (struct sw_zero_job){.parameters = (double)sw_settings_parameters(settings, sw_model_get_units(b->model)),
                                .layers = (double)b->config.layers,
                                .hidden = (double)b->config.hidden,
                                .tokens = (double)(settings->micro_batch * settings->seq),
                                .type_bytes = (double)sw_dtype_bytes(sw_settings_type(settings)),
                                .tensor_ranks = (double)sw_settings_tensor_ranks(settings),
                                .data_ranks = (double)sw_settings_data_ranks(settings),
                                .recomputes = settings->recompute == SW_OPTION_RECOMPUTE_ALL};
}

static sw_status run(struct zero_bench *b) {
    SW_TRY(sw_ranks_agree_on_error(b->ranks, choose_settings(b)));
    SW_TRY(sw_planned_begin_ranks(b->ranks, &b->settings));
    SW_TRY(sw_ranks_agree_on_error(b->ranks, open_model(b)));
    SW_TRY(sw_planned_agree(b->ranks, &b->settings, &b->config, &b->devices));
    b->report.job = job_of(b);
    for (int number = 0; number < b->report.rows; number++)
        SW_TRY(measure_row(b, number));
    b->report.comm = b->ranks->comm;
    b->report.device = sw_devices_info(&b->devices).name;
    b->report.model = b->given->settings.model;
    b->report.type = sw_settings_type(&b->settings);
    if (sw_ranks_rank(b->ranks) > 0)
        return SW_OK;
    if (b->given->settings.json)
        return sw_zero_print_json(&b->report);
    sw_zero_print(&b->report);
    return SW_OK;
}

static void close_bench(struct zero_bench *b) {
    sw_model_destroy(b->model);
    if (!sw_ranks_hold(b->ranks, &b->devices))
        sw_devices_close(&b->devices);
    sw_options_release(&sw_bench_step_command, &b->settings);
}

int sw_bench_zero(int argc, char **argv) {
    const struct sw_command_line *line = &sw_bench_zero_line;
    struct sw_bench_options given = {0};
    struct sw_ranks ranks;
    struct zero_bench bench = {.given = &given, .ranks = &ranks};
    int code;
    if (sw_command_begin(&ranks, line->command, &code)) {
        if (sw_command_parse_ranks(&ranks, line, argc, argv, &given, &code)) {
            const sw_status status = run(&bench);
            code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&ranks, status);
        }
        close_bench(&bench);
        sw_command_end(&ranks, code);
    }
    sw_options_release(line, &given);
    return code;
}
