/* The profile of a machine: measured once and kept, or described.
 *
 * Ops are timed in small models of many shapes (the cells), not in the user's model. One profile then prices any model,
 * and a model that does not fit this machine can be priced too. Timing ops one by one would miss what caches keep from
 * one op to the next.
 *
 * A shared machine changes speed within seconds, so all cells are timed twice and memory is sampled over the whole
 * measurement. The best that was seen is not taken: a plan must hold on the usual day.
 *
 * Device and drives are kept apart, because drives depend on the folders and not on the build of the program. */
#include "job/profile.h"

#include "core/clock.h"
#include "core/files/cache.h"
#include "core/files/json_file.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "core/status.h"
#include "core/text/text.h"
#include "job/machine/devices.h"
#include "job/machine/shipped_machines.h"
#include "job/rates.h"
#include "job/settings/options.h"
#include "job/settings_plan.h"
#include "model/unit_run.h"
#include "offload/simulate/measure.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Times the ops of units whose sizes span those of real models. */

/* A model of one block. Heads have 64 elements in models like GPT-2, 128 in models like Llama if they are wide enough.
 */
struct cell {
    int64_t hidden, ffn, vocab, batch, seq;
    bool llama; /* like Llama; false: like GPT-2 */
};

/* Smallest first: large ones are left out if time or memory runs short. Those of a few tokens read their weights for
 * little arithmetic. */
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

/* In models whose blocks are this wide, a block's weights have left the caches by the time they are needed again. */
enum { WIDE_MODEL = 768 };
#define CACHES_BYTES (64 * SW_MIB)

/* Seconds for all cells; seconds for the rounds of one pass; seconds after which all cells that fit are timed again. A
 * shared machine's speed changes within seconds. */
#define ALL_S 26.0
#define FIRST_S 18.0
#define PASS_S 0.06

static double share_of(double seconds) {
    return sw_measure_share() * seconds;
}

struct timing {
    struct sw_device *device;
    struct sw_op_times *times;
    struct sw_ranks *ranks;
    struct sw_stream *stream;
    struct sw_memory *other; /* copied to itself, to displace what caches hold */
    struct sw_long_work progress;
    int64_t start_ns;
    double s_per_flop; /* seconds of the last cell of many tokens, divided by its cell_flops; 0: there was none */
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

/* Returns roughly how many operations a cell takes in one round, to compare cells. */
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
    for (int round = 0; round < MOST_ROUNDS && (round < LEAST_ROUNDS || wall_s < share_of(PASS_S)); round++) {
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

/* The models of the cells are whole, so their blocks do not have the passes of tensor groups, which come last. */
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
    shape.tiles = shape.tensor_ranks = shape.expert_ranks = 1;
    shape.tensor_rank = shape.expert_rank = 0;
    shape.tuning = (struct sw_tuning){0};
    shape.dpo_beta = 0.0; /* cells have any batch, and pairs take even ones */
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

/* Times the models that finish before until_s. The first is always timed: a profile without ops prices nothing. */
static sw_status time_cells(struct timing *timing, const struct sw_rates_target *target, double until_s,
                            struct sw_memory_samples *samples) {
    const int64_t most_bytes = most_cell_bytes(timing->device);
    for (int i = 0; i < CELLS; i++) {
        const double due_s = samples->count * share_of(ALL_S) / (SW_MEMORY_SAMPLES - 1);
        if (samples->count < SW_MEMORY_SAMPLES && passed_s(timing) >= due_s)
            SW_TRY(sw_rates_sample_memory(target, samples));
        if (sw_op_times_count(timing->times) == 0 ||
            timing->s_per_flop * cell_flops(&cells[i]) <= until_s - passed_s(timing))
            SW_TRY(time_cell(timing, &cells[i], target->settings, most_bytes));
    }
    return SW_OK;
}

/* Times the ops of small models of all kinds on the compute device, largest last, in about half a minute, and samples
 * the memory between them. Fills in the cores that the ops keep busy. */
static sw_status profile_time_ops(const struct sw_rates_target *target, struct sw_op_times *times,
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
        status = time_cells(&timing, target, share_of(FIRST_S), samples);
    if (status == SW_OK)
        status = time_cells(&timing, target, share_of(ALL_S), samples);
    sw_memory_close(timing.other);
    sw_stream_close(timing.stream);
    SW_TRY(status);
    sw_long_work_end(&timing.progress);
    *out_compute_cores = timing.wall_s > 0.0 ? timing.cpu_s / timing.wall_s : 0.0;
    return SW_OK;
}

enum { KEY_CHARS = 1024, RANKS_CHARS = 96, BESIDE_CHARS = 128, PROGRAM_CHARS = 2 * SW_COMM_DIGEST_BYTES + 1 };

/* Upper bounds of an op's numbers in an entry. */
#define MOST_OP_S 1e4
#define MOST_WORK_PER_S 1e18

/* The load of other programs, in cores, above which a message mentions it. */
#define MUCH_LOAD 0.5

/* The kinds of cache entries: rates of the device and the memory, and rates of the drives. */
static const char machine_kind[] = "machine", drives_kind[] = "drives";
/* The member of the machine's entry that has the rates of collectives within a node, if ranks are on several. */
static const char within_node[] = "in_node";

/* Writes the key of the rates of device and memory: everything they depend on. */
static void machine_key(const struct sw_rates_target *target, char out[KEY_CHARS]) {
    SW_HANDLES_ERRORS();
    const struct sw_device_info info = sw_devices_info(target->devices);
    struct sw_machine machine = {.cpu = "unknown"};
    const struct sw_comm *comm = sw_ranks_comm(target->ranks);
    char driver[SW_DRIVER_VERSION_CHARS] = "", ranks[RANKS_CHARS] = "";
    (void)sw_machine_read(&machine);
    if (info.model != NULL)
        sw_driver_version("", driver);
    if (comm != NULL)
        snprintf(ranks, sizeof ranks, ", as one of %d ranks, %d of them here, on %d nodes, by %s",
                 sw_ranks_count(target->ranks), sw_ranks_local_count(target->ranks), sw_comm_nodes(comm)->nodes,
                 sw_comm_transport_name(comm));
    snprintf(out, KEY_CHARS, "spillway %s, %s with %d of %d cores, %s %s%s%s%s%s, %d threads, %s%s", SW_VERSION,
             machine.cpu, machine.cores, machine.all_cores, info.name, info.isa, info.model != NULL ? ", " : "",
             info.model != NULL ? info.model : "", driver[0] != '\0' ? ", driver " : "", driver, info.threads,
             sw_settings_precision_name(target->settings), ranks);
}

/* Writes the key of the drives' rates: the number of each file system's device, and its size. */
static void drives_key(const struct sw_rates_target *target, char out[KEY_CHARS]) {
    int length = snprintf(out, KEY_CHARS, "spillway %s", SW_VERSION);
    for (int i = 0; i < target->directory_count && length < KEY_CHARS; i++) {
        struct stat about = {0};
        struct statvfs space = {0};
        if (stat(target->directories[i], &about) == 0)
            (void)statvfs(target->directories[i], &space);
        const dev_t device = S_ISBLK(about.st_mode) ? about.st_rdev : about.st_dev;
        length += snprintf(out + length, KEY_CHARS - (size_t)length, ", %u:%u of %llu blocks", major(device),
                           minor(device), (unsigned long long)space.f_blocks);
    }
}

static json_t *ops_to_json(struct sw_op_times *times) {
    json_t *ops = json_array();
    for (int64_t i = 0; i < sw_op_times_count(times); i++) {
        const struct sw_op_time *time = sw_op_times_at(times, i);
        const struct sw_op_size *size = &time->size;
        json_array_append_new(ops,
                              json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "op", sw_timed_op_name(size->op), "kind",
                                        (json_int_t)size->kind, "m", (json_int_t)size->m, "n", (json_int_t)size->n, "k",
                                        (json_int_t)size->k, "work", size->work, "seconds", time->seconds));
    }
    return ops;
}

static bool is_amount(double value) {
    return isfinite(value) && value > 0.0;
}

static sw_status op_from_json(const json_t *row, struct sw_op_times *times) {
    const char *name = NULL;
    json_int_t kind, m, n, k;
    struct sw_op_size size;
    double seconds;
    if (json_unpack((json_t *)row, "{s:s, s:I, s:I, s:I, s:I, s:F, s:F}", "op", &name, "kind", &kind, "m", &m, "n", &n,
                    "k", &k, "work", &size.work, "seconds", &seconds) != 0)
        return sw_fail(SW_ERR_CORRUPT, "an op lacks a field");
    size = (struct sw_op_size){.op = sw_timed_op_named(name), .kind = kind, .m = m, .n = n, .k = k, .work = size.work};
    if (size.op < 0 || m < 0 || n < 0 || k < 0 || !is_amount(size.work) || !is_amount(seconds) ||
        !(seconds < MOST_OP_S && size.work / seconds < MOST_WORK_PER_S))
        return sw_fail(SW_ERR_CORRUPT, "an op has no size, or a time that no machine takes");
    return sw_op_times_add(times, &size, seconds);
}

static sw_status ops_from_json(const json_t *ops, struct sw_op_times *times) {
    size_t i;
    const json_t *row;
    json_array_foreach(ops, i, row) SW_TRY(op_from_json(row, times));
    return json_array_size(ops) > 0 ? SW_OK : sw_fail(SW_ERR_CORRUPT, "no op was timed");
}

static sw_status rates_from_json(const json_t *object, sw_rate_set set, struct sw_rates *out) {
    SW_TRY(sw_rates_from_json(object, set, "the profile", out));
    return sw_rates_are_plausible(out, set) ? SW_OK : sw_fail(SW_ERR_CORRUPT, "a rate is one that no machine has");
}

sw_status sw_profile_from_json(const json_t *entry, struct sw_profile *profile) {
    const json_t *in_node = json_object_get(entry, within_node);
    SW_TRY(rates_from_json(json_object_get(entry, "rates"), SW_RATES_OF_MACHINE, &profile->rates));
    if (in_node != NULL)
        SW_TRY(sw_scope_rates_from_json(in_node, "the profile", &profile->rates.in_node));
    return ops_from_json(json_object_get(entry, "ops"), profile->times);
}

/* Members of an entry: the build that measured, and whether a run has departed from it. */
static const char program[] = "program", doubt[] = "departed";

/* How a part of the profile is kept. */
enum kept { KEPT_NOT, KEPT_DAMAGED, KEPT_BY_OTHER, KEPT_IN_DOUBT, KEPT_WELL };

/* The reason at the end of the message that a part is measured again. */
static const char *const why_again[] = {
    [KEPT_NOT] = "",
    [KEPT_DAMAGED] = ", as what was kept of it cannot be right",
    [KEPT_BY_OTHER] = ", as another build of spillway has measured it",
    [KEPT_IN_DOUBT] = ", as a run has departed from its profile",
};

/* Writes an identifier of this build; "" if the program cannot read itself. */
static void program_text(char out[PROGRAM_CHARS]) {
    SW_HANDLES_ERRORS();
    unsigned char digest[SW_COMM_DIGEST_BYTES];
    out[0] = '\0';
    if (sw_comm_program_digest(digest) == SW_OK)
        for (int i = 0; i < SW_COMM_DIGEST_BYTES; i++)
            snprintf(out + (ptrdiff_t)2 * i, 3, "%02x", digest[i]);
}

/* One of the two parts of the profile: device and memory, or drives. */
struct part {
    const char *kind, *path;
    char key[KEY_CHARS];
};

static sw_status from_json(const struct part *part, const json_t *entry, struct sw_profile *out) {
    struct sw_rates rates = out->rates;
    if (part->kind == machine_kind)
        return sw_profile_from_json(entry, out);
    SW_TRY(rates_from_json(entry, SW_RATES_OF_DRIVES, &rates));
    out->rates = rates;
    return SW_OK;
}

/* Kernels differ between builds; drives do not. */
static enum kept judge(const struct part *part, const json_t *entry) {
    const char *by = json_string_value(json_object_get(entry, program));
    char own[PROGRAM_CHARS];
    if (part->kind == machine_kind) /* only then, because the digest reads the whole program */
        program_text(own);
    if (part->kind == machine_kind && (by == NULL || strcmp(by, own) != 0))
        return KEPT_BY_OTHER;
    return json_is_true(json_object_get(entry, doubt)) ? KEPT_IN_DOUBT : KEPT_WELL;
}

static enum kept read_part(const struct part *part, struct sw_profile *out) {
    SW_HANDLES_ERRORS();
    json_t *entry = sw_cache_read(part->kind, part->key);
    enum kept kept = access(part->path, F_OK) == 0 ? KEPT_DAMAGED : KEPT_NOT;
    if (entry != NULL)
        kept = judge(part, entry);
    if (kept >= KEPT_IN_DOUBT && from_json(part, entry, out) != SW_OK)
        kept = KEPT_DAMAGED;
    json_decref(entry);
    return kept;
}

/* Keeps an entry. Warns if the user has no cache folder, or it is full: the next command then measures again. */
static void keep(const char *kind, const char *key, json_t *entry) {
    SW_HANDLES_ERRORS();
    char own[PROGRAM_CHARS];
    program_text(own);
    json_object_set_new(entry, program, json_string(own));
    if (sw_cache_write(kind, key, entry) == SW_OK)
        return;
    sw_log_warn("what was measured is not kept for the next time: %s", sw_error_message(SW_ERR_IO));
}

void sw_profile_doubt(const char *path) {
    SW_HANDLES_ERRORS();
    if (path[0] != '\0')
        (void)sw_cache_mark(path, doubt);
}

/* Measures the machine on this rank, while the other ranks do the same. */
static sw_status measure_here(const struct sw_rates_target *target, struct sw_profile *out) {
    struct sw_memory_samples samples = {.count = 0};
    sw_op_times_destroy(out->times);
    out->times = NULL;
    SW_TRY(sw_op_times_create(&out->times));
    SW_TRY(profile_time_ops(target, out->times, &samples, &out->rates.compute_cores));
    sw_rates_settle_memory(&samples, &out->rates);
    sw_rates_assume_ranks(&out->rates);
    return SW_OK;
}

/* Measures on all ranks at once, so that each measures its share of what they have in common. */
static sw_status measure_machine(const struct sw_rates_target *target, struct sw_profile *out) {
    int64_t cores;
    SW_TRY(sw_ranks_cores(target->ranks, &cores));
    out->rates = (struct sw_rates){.cores = (double)cores};
    SW_TRY(sw_ranks_agree_on_error(target->ranks, measure_here(target, out)));
    return sw_rates_measure_ranks(target->ranks, target->devices, sw_settings_type(target->settings), &out->rates);
}

/* Measures a part on all ranks. Rank 0's result is kept. */
static sw_status measure_part(const struct sw_rates_target *target, const struct part *part, struct sw_profile *out) {
    const bool machine = part->kind == machine_kind;
    if (machine)
        SW_TRY(measure_machine(target, out));
    else
        SW_TRY(sw_ranks_agree_on_error(target->ranks, sw_rates_measure_drives(target, &out->rates)));
    out->measured = true;
    if (sw_ranks_rank(target->ranks) > 0)
        return SW_OK;
    json_t *entry = machine ? json_pack("{s:o, s:{}}", "ops", ops_to_json(out->times), "rates") : json_object();
    sw_rates_to_json(&out->rates, machine ? SW_RATES_OF_MACHINE : SW_RATES_OF_DRIVES,
                     machine ? json_object_get(entry, "rates") : entry);
    if (machine && out->rates.in_node.gather.bytes_per_s > 0.0)
        json_object_set_new(entry, within_node, sw_scope_rates_to_json(&out->rates.in_node));
    keep(part->kind, part->key, entry);
    json_decref(entry);
    return SW_OK;
}

/* Writes a remark for the message if cores were busy in the last minute, else "". The load does not tell a program that
 * goes on from one that has just ended. */
static void beside_others(char out[BESIDE_CHARS]) {
    double load;
    out[0] = '\0';
    if (getloadavg(&load, 1) == 1 && load >= MUCH_LOAD)
        snprintf(out, BESIDE_CHARS,
                 "; %.1f of %s were busy in the last minute, and steps will be faster when they are not",
                 fmin(load, sw_machine_cores()), SW_COUNT(sw_machine_cores(), "core"));
}

static void say_measuring(const struct sw_rates_target *target, const struct sw_profile_need *need,
                          const struct part *part, enum kept kept) {
    const char *why = kept == KEPT_NOT && need->why != NULL ? need->why : why_again[kept];
    char beside[BESIDE_CHARS];
    if (target->settings->json)
        return;
    beside_others(beside);
    if (part->kind == machine_kind)
        sw_log_info("measuring this machine, once and for up to a minute%s%s", why, beside);
    else
        sw_log_info("measuring the drives of the store%s", why_again[kept]);
}

/* Finds a part whose key and path are set. Rank 0 reads and tells all. *out_known: whether the part is known. */
static sw_status find_part(const struct sw_rates_target *target, const struct sw_profile_need *need,
                           const struct part *part, struct sw_profile *out, bool *out_known) {
    enum kept kept = KEPT_NOT;
    if (!need->again && sw_ranks_rank(target->ranks) == 0)
        kept = read_part(part, out);
    SW_TRY(sw_ranks_spread(target->ranks, "profile", &kept, sizeof kept));
    *out_known = kept >= KEPT_IN_DOUBT;
    out->source.doubted |= kept == KEPT_IN_DOUBT && need->only_kept;
    if (kept == KEPT_WELL || need->only_kept)
        return SW_OK;
    say_measuring(target, need, part, kept);
    *out_known = true;
    return measure_part(target, part, out);
}

static void path_of(const struct part *part, char out[SW_CACHE_PATH_CHARS]) {
    SW_HANDLES_ERRORS();
    if (sw_cache_path(part->kind, part->key, out) == SW_OK)
        return;
    out[0] = '\0';
}

/* The profile is measured with chunks of an ordinary size, whatever the settings have. */
static sw_status find_parts(const struct sw_rates_target *given, const struct sw_profile_need *need,
                            struct sw_profile *out) {
    enum { CHUNK_GRAINS = 32, RING_CHUNKS = 8 };
    struct part machine = {.kind = machine_kind, .path = out->source.machine_path};
    struct part drives = {.kind = drives_kind, .path = out->source.drives_path};
    struct sw_settings settings = *given->settings;
    struct sw_rates_target target = *given;
    bool drives_known;
    settings.chunk_grains = CHUNK_GRAINS;
    target.settings = &settings;
    target.ring_chunks = RING_CHUNKS;
    machine_key(&target, machine.key);
    path_of(&machine, out->source.machine_path);
    SW_TRY(find_part(&target, need, &machine, out, &out->known));
    drives_key(&target, drives.key);
    path_of(&drives, out->source.drives_path);
    return need->drives ? find_part(&target, need, &drives, out, &drives_known) : SW_OK;
}

/* Describes the device that was measured. Ops that were not timed, because units with them took too much memory or
 * time, get its best rate. */
static void describe_measured(const struct sw_rates_target *target, struct sw_profile *profile) {
    const double flops_per_s = sw_op_times_best_rate(profile->times, SW_TIMED_PRODUCT);
    profile->device =
        (struct sw_device_description){.name = "this machine",
                                       .memory_bytes_per_s = profile->rates.update_on_device.bytes_per_s,
                                       .product_flops_per_s = {flops_per_s, flops_per_s, flops_per_s},
                                       .tf32_flops_per_s = flops_per_s,
                                       .fp8_flops_per_s = flops_per_s,
                                       .attention_forward_flops_per_s = flops_per_s,
                                       .attention_backward_flops_per_s = flops_per_s,
                                       .host_memory = sw_device_info(target->devices->compute).host_memory,
                                       .times = profile->times};
}

sw_status sw_profile_find(const struct sw_rates_target *target, const struct sw_profile_need *need,
                          struct sw_profile *out) {
    *out = (struct sw_profile){0};
    sw_status status = sw_op_times_create(&out->times);
    status = sw_ranks_agree_on_error(target->ranks, status);
    sw_ranks_enter(target->ranks, "measuring", 0);
    if (status == SW_OK)
        status = find_parts(target, need, out);
    sw_ranks_leave(target->ranks);
    if (status != SW_OK)
        sw_profile_release(out);
    else if (out->known)
        describe_measured(target, out);
    return status;
}

void sw_profile_release(struct sw_profile *profile) {
    sw_op_times_destroy(profile->times);
    *profile = (struct sw_profile){0};
}

/* A described machine. */

#define FILE_LIMIT_BYTES ((size_t)1 << 20)
enum { NAMES_CHARS = 256 };
enum { DESCRIPTION_VERSION = 2, MOST_TILE_ROWS = 1 << 16, MOST_DEVICES = 1024 };

static sw_status read_bytes(const json_t *object, const char *name, const char *path, int64_t *out) {
    static const double most = 0x1p62;
    double value;
    SW_TRY(sw_json_positive(object, name, path, false, &value));
    if (value < 1.0 || value > most)
        return sw_fail(SW_ERR_ARG, "%s: %s must be bytes that a machine may have", path, name);
    *out = (int64_t)value;
    return SW_OK;
}

static sw_status read_device(const json_t *object, const char *path, struct sw_device_description *out) {
    const char *name = json_string_value(json_object_get(object, "name"));
    if (name == NULL || name[0] == '\0' || strlen(name) >= sizeof out->name)
        return sw_fail(SW_ERR_ARG, "%s: the device's name must be a text of 1 to %zu characters", path,
                       sizeof out->name - 1);
    strcpy(out->name, name);
    double tile_rows = 0.0;
    const struct {
        const char *name;
        double *value;
        bool may_be_zero;
    } numbers[] = {{"memory_bytes_per_s", &out->memory_bytes_per_s, false},
                   {"fp32_flops_per_s", &out->product_flops_per_s[SW_F32], false},
                   {"tf32_flops_per_s", &out->tf32_flops_per_s, false},
                   {"bf16_flops_per_s", &out->product_flops_per_s[SW_BF16], false},
                   {"fp16_flops_per_s", &out->product_flops_per_s[SW_F16], false},
                   {"attention_forward_flops_per_s", &out->attention_forward_flops_per_s, false},
                   {"attention_backward_flops_per_s", &out->attention_backward_flops_per_s, false},
                   {"attention_tile_rows", &tile_rows, true},
                   {"op_s", &out->op_s, true}};
    const char *names[3 + sizeof numbers / sizeof numbers[0]] = {"name", "memory_bytes", "fp8_flops_per_s"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        names[3 + i] = numbers[i].name;
    SW_TRY(sw_json_refuse_unknown(object, path, "device", names, sizeof names / sizeof names[0]));
    SW_TRY(read_bytes(object, "memory_bytes", path, &out->memory_bytes));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        SW_TRY(sw_json_positive(object, numbers[i].name, path, numbers[i].may_be_zero, numbers[i].value));
    if (json_object_get(object, "fp8_flops_per_s") != NULL)
        SW_TRY(sw_json_positive(object, "fp8_flops_per_s", path, false, &out->fp8_flops_per_s));
    if (tile_rows > MOST_TILE_ROWS || tile_rows != floor(tile_rows))
        return sw_fail(SW_ERR_ARG, "%s: attention_tile_rows must be a whole number of at most %d", path,
                       (int)MOST_TILE_ROWS);
    out->attention_tile_rows = (int64_t)tile_rows;
    return SW_OK;
}

/* Reads the description of several nodes, which may be missing. */
static sw_status read_node(const json_t *object, const char *path, struct sw_node *out) {
    static const char *const names[] = {"devices", "hop_s", "network_bytes_per_s", "network_hop_s"};
    double devices;
    if (object == NULL)
        return SW_OK;
    SW_TRY(sw_json_refuse_unknown(object, path, "node", names, sizeof names / sizeof names[0]));
    SW_TRY(sw_json_positive(object, "devices", path, false, &devices));
    if (devices > MOST_DEVICES || devices != floor(devices))
        return sw_fail(SW_ERR_ARG, "%s: devices must be a whole number of at most %d", path, (int)MOST_DEVICES);
    out->devices = (int64_t)devices;
    SW_TRY(sw_json_positive(object, "hop_s", path, true, &out->hop_s));
    SW_TRY(sw_json_positive(object, "network_bytes_per_s", path, false, &out->network_bytes_per_s));
    return sw_json_positive(object, "network_hop_s", path, true, &out->network_hop_s);
}

static sw_status description_from_json(const json_t *root, const char *path, struct sw_profile *out) {
    if (json_integer_value(json_object_get(root, "spillway_machine")) != DESCRIPTION_VERSION)
        return sw_fail(SW_ERR_ARG, "%s does not describe a machine: it must have \"spillway_machine\": %d", path,
                       (int)DESCRIPTION_VERSION);
    static const char *const names[] = {"spillway_machine", "about", "device", "host_bytes", "node", "rates"};
    SW_TRY(sw_json_refuse_unknown(root, path, "the machine", names, sizeof names / sizeof names[0]));
    SW_TRY(sw_rates_refuse_unknown(json_object_get(root, "rates"), path));
    SW_TRY(read_device(json_object_get(root, "device"), path, &out->device));
    SW_TRY(read_bytes(root, "host_bytes", path, &out->host_bytes));
    SW_TRY(read_node(json_object_get(root, "node"), path, &out->node));
    return sw_rates_from_json(json_object_get(root, "rates"), SW_RATES_ALL, path, &out->rates);
}

/* Replaces each assumed number below an object by its slow or its fast bound. Of seconds, high is slow. */
static void take_bounds(json_t *object, bool fast) {
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, name, value) {
        const size_t length = strlen(name);
        const bool rate = length >= 6 && strcmp(name + length - 6, "_per_s") == 0;
        const bool seconds = !rate && length >= 2 && strcmp(name + length - 2, "_s") == 0;
        json_t *bound = json_object_get(value, fast == seconds ? "low" : "high");
        if (bound != NULL)
            json_object_set(object, name, bound);
        else
            take_bounds(value, fast);
    }
}

sw_status sw_profile_fit_nodes(const struct sw_profile *profile, const char *path, int64_t ranks, int64_t *nodes) {
    const int64_t devices = profile->node.devices;
    if (*nodes == SW_OPTION_AUTO) {
        *nodes = devices > 0 ? sw_div_up(ranks, devices) : 1;
        while (ranks % *nodes != 0)
            ++*nodes;
    }
    if (devices == 0 && *nodes > 1)
        return sw_fail(SW_ERR_ARG, "%s does not describe the network of several nodes; give it a \"node\"", path);
    if (devices > 0 && ranks / *nodes > devices)
        return sw_fail(SW_ERR_ARG, "a node of %s has %s, and --ranks %lld on --nodes %lld needs %lld of each", path,
                       SW_COUNT(devices, "GPU"), (long long)ranks, (long long)*nodes, (long long)(ranks / *nodes));
    return SW_OK;
}

static sw_status fail_unknown(const char *machine) {
    char names[NAMES_CHARS] = "";
    size_t used = 0;
    struct sw_nearest nearest = sw_nearest_begin(machine, strlen(machine));
    for (const struct sw_shipped_machine *m = sw_shipped_machines; m->name != NULL && used < sizeof names; m++) {
        sw_nearest_consider(&nearest, m->name);
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", m->name);
    }
    const bool near = nearest.name != NULL;
    return sw_fail(SW_ERR_ARG, "--machine '%s' is neither a file nor a known machine (%s)%s%s%s", machine, names,
                   near ? "; did you mean " : "", near ? nearest.name : "", near ? "?" : "");
}

/* Reads a description. A shipped name wins over a file of that name, which "./NAME" means. */
static sw_status read_description(const char *machine, json_t **out) {
    for (const struct sw_shipped_machine *m = sw_shipped_machines; m->name != NULL; m++)
        if (strcmp(machine, m->name) == 0)
            return sw_json_parse(m->text, machine, SW_ERR_ARG, out);
    if (access(machine, F_OK) != 0)
        return fail_unknown(machine);
    return sw_json_read_file(machine, FILE_LIMIT_BYTES, SW_ERR_ARG, out);
}

sw_status sw_profile_describe(const char *machine, sw_machine_bound bound, struct sw_profile *out) {
    *out = (struct sw_profile){.known = true};
    json_t *root = NULL;
    SW_TRY(read_description(machine, &root));
    sw_status status = description_from_json(root, machine, out);
    if (status == SW_OK && bound != SW_MACHINE_EXPECTED) {
        take_bounds(root, bound == SW_MACHINE_FAST);
        status = description_from_json(root, machine, out);
    }
    json_decref(root);
    return status;
}

sw_status sw_profile_open_devices(const struct sw_profile *profile, struct sw_devices *out) {
    SW_TRY(sw_devices_open(SW_DEVICE_CPU, 0, 0, out));
    const sw_status status = sw_device_open_described(&profile->device, &out->compute);
    if (status != SW_OK) {
        out->compute = out->host;
        sw_devices_close(out);
    }
    return status;
}

static void add_nodes(const struct sw_profile *profile, const struct sw_settings *settings, struct sw_rates *rates) {
    const struct sw_node_ranks job = sw_rates_node_ranks(settings);
    if (profile->node.devices > 0)
        sw_rates_over_nodes(&profile->node, &job, rates);
    else
        sw_rates_over_measured_nodes(&job, rates);
}

sw_status sw_profile_price(const struct sw_profile *profile, const struct sw_settings *settings,
                           const struct sw_model_config *config, struct sw_machine_rates *out) {
    const struct sw_model_shape shape = sw_settings_shape(settings);
    struct sw_rates rates = profile->rates;
    struct sw_device *device;
    struct sw_model *model = NULL;
    add_nodes(profile, settings, &rates);
    SW_TRY(sw_device_open_described(&profile->device, &device));
    sw_status status = profile->times == NULL ? sw_settings_prepare_device(settings, device) : SW_OK;
    if (status == SW_OK)
        status = sw_model_create(config, &shape, device, &model);
    if (status == SW_OK)
        status = sw_rates_describe(&rates, model, device, out);
    sw_model_destroy(model);
    sw_device_close(device);
    return status;
}
