#include "train/plan/profile.h"

#include "core/log.h"
#include "core/machine.h"
#include "offload/simulate/measure.h"
#include "train/devices/driver_version.h"
#include "train/files/cache.h"
#include "train/plan/described.h"
#include "train/plan/rates_json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

enum { KEY_CHARS = 1024, RANKS_CHARS = 96 };

/* The entries of the cache: what the device and the memory reach, and what the drives reach. */
static const char machine_kind[] = "machine", drives_kind[] = "drives";

/* Writes what the rates of the device and the memory depend on. */
static void machine_key(const struct sw_rates_target *target, char out[KEY_CHARS]) {
    const struct sw_device_info info = sw_devices_info(target->devices);
    struct sw_machine machine = {.cpu = "unknown"};
    const struct sw_comm *comm = sw_ranks_comm(target->ranks);
    char driver[SW_DRIVER_VERSION_CHARS] = "", ranks[RANKS_CHARS] = "";
    if (sw_machine_read(&machine) != SW_OK)
        sw_error_clear();
    if (info.model != NULL)
        sw_driver_version("", driver);
    if (comm != NULL)
        snprintf(ranks, sizeof ranks, ", as one of %d ranks, %d of them here, by %s", sw_ranks_count(target->ranks),
                 sw_ranks_local_count(target->ranks), sw_comm_transport_name(comm));
    snprintf(out, KEY_CHARS, "spillway %s, %s with %d of %d cores, %s %s%s%s%s%s, %d threads, %s%s", SW_VERSION,
             machine.cpu, machine.cores, machine.all_cores, info.name, info.isa, info.model != NULL ? ", " : "",
             info.model != NULL ? info.model : "", driver[0] != '\0' ? ", driver " : "", driver, info.threads,
             sw_settings_precision_name(target->settings), ranks);
}

/* Writes which drives the folders lie on: the number of each file system's device, and its size. */
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

static sw_status op_from_json(const json_t *row, struct sw_op_times *times) {
    const char *name = NULL;
    json_int_t kind, m, n, k;
    struct sw_op_size size;
    double seconds;
    if (json_unpack((json_t *)row, "{s:s, s:I, s:I, s:I, s:I, s:F, s:F}", "op", &name, "kind", &kind, "m", &m, "n", &n,
                    "k", &k, "work", &size.work, "seconds", &seconds) != 0)
        return sw_fail(SW_ERR_CORRUPT, "an op lacks a field");
    size = (struct sw_op_size){.op = sw_timed_op_named(name), .kind = kind, .m = m, .n = n, .k = k, .work = size.work};
    if (size.op < 0 || m < 0 || n < 0 || k < 0 || !isfinite(size.work) || size.work <= 0.0 || !isfinite(seconds) ||
        seconds <= 0.0)
        return sw_fail(SW_ERR_CORRUPT, "an op has no size or no time");
    return sw_op_times_add(times, &size, seconds);
}

static sw_status ops_from_json(const json_t *ops, struct sw_op_times *times) {
    size_t i;
    const json_t *row;
    json_array_foreach(ops, i, row) SW_TRY(op_from_json(row, times));
    return json_array_size(ops) > 0 ? SW_OK : sw_fail(SW_ERR_CORRUPT, "no op was timed");
}

sw_status sw_profile_from_json(const json_t *entry, struct sw_profile *profile) {
    SW_TRY(sw_rates_from_json(json_object_get(entry, "rates"), SW_RATES_OF_MACHINE, "the profile", &profile->rates));
    return ops_from_json(json_object_get(entry, "ops"), profile->times);
}

/* Warns where the user has no folder for caches, or it is full: the next command then measures again. */
static void keep(const char *kind, const char *key, json_t *entry) {
    if (sw_cache_write(kind, key, entry) == SW_OK)
        return;
    sw_log_warn("what was measured is not kept for the next time: %s", sw_error_message(SW_ERR_IO));
    sw_error_clear();
}

/* The member of an entry that a run has departed from. */
static const char doubt[] = "departed";

/* How a part of the profile is kept. */
struct kept {
    bool known;   /* false: it is not kept, or damaged, which is not told, as it is made anew */
    bool doubted; /* a run has departed from it */
};

static struct kept read_machine(const char *key, struct sw_profile *out) {
    json_t *entry = sw_cache_read(machine_kind, key);
    const struct kept kept = {.known = entry != NULL && sw_profile_from_json(entry, out) == SW_OK,
                              .doubted = json_is_true(json_object_get(entry, doubt))};
    sw_error_clear();
    json_decref(entry);
    return kept;
}

static struct kept read_drives(const char *key, struct sw_profile *out) {
    json_t *entry = sw_cache_read(drives_kind, key);
    const struct kept kept = {
        .known = entry != NULL && sw_rates_from_json(entry, SW_RATES_OF_DRIVES, "the profile", &out->rates) == SW_OK,
        .doubted = json_is_true(json_object_get(entry, doubt))};
    sw_error_clear();
    json_decref(entry);
    return kept;
}

void sw_profile_doubt(const char *path) {
    if (path[0] != '\0' && sw_cache_mark(path, doubt) != SW_OK)
        sw_error_clear();
}

/* Measures on this rank, beside the others. */
static sw_status measure_here(const struct sw_rates_target *target, struct sw_profile *out) {
    double compute_cores;
    sw_op_times_destroy(out->times);
    out->times = NULL;
    SW_TRY(sw_op_times_create(&out->times));
    SW_TRY(sw_rates_measure_memory(target, &out->rates));
    SW_TRY(sw_profile_time_ops(target, out->times, &compute_cores));
    SW_TRY(sw_rates_measure_memory(target, &out->rates));
    out->rates.compute_cores = compute_cores;
    sw_rates_assume_ranks(&out->rates);
    return SW_OK;
}

/* Measures on all ranks at once, so that each measures its share of what they have in common; rank 0's result is kept.
 */
static sw_status measure_machine(const struct sw_rates_target *target, const char *key, const char *why,
                                 struct sw_profile *out) {
    int64_t cores;
    if (!target->settings->json)
        sw_log_info("measuring this machine, once and for up to a minute%s", why != NULL ? why : "");
    SW_TRY(sw_ranks_cores(target->ranks, &cores));
    out->rates.cores = (double)cores;
    SW_TRY(sw_ranks_agree_on_error(target->ranks, measure_here(target, out)));
    SW_TRY(sw_rates_measure_ranks(target->ranks, target->devices, sw_settings_type(target->settings), &out->rates));
    out->measured = true;
    if (sw_ranks_rank(target->ranks) > 0)
        return SW_OK;
    json_t *entry = json_pack("{s:o, s:{}}", "ops", ops_to_json(out->times), "rates");
    sw_rates_to_json(&out->rates, SW_RATES_OF_MACHINE, json_object_get(entry, "rates"));
    keep(machine_kind, key, entry);
    json_decref(entry);
    return SW_OK;
}

static sw_status measure_drives(const struct sw_rates_target *target, const char *key, const char *why,
                                struct sw_profile *out) {
    if (!target->settings->json)
        sw_log_info("measuring the drives of the store%s", why);
    SW_TRY(sw_ranks_agree_on_error(target->ranks, sw_rates_measure_drives(target, &out->rates)));
    out->measured = true;
    if (sw_ranks_rank(target->ranks) > 0)
        return SW_OK;
    json_t *entry = json_object();
    sw_rates_to_json(&out->rates, SW_RATES_OF_DRIVES, entry);
    keep(drives_kind, key, entry);
    json_decref(entry);
    return SW_OK;
}

static void path_of(const char *kind, const char *key, char out[SW_CACHE_PATH_CHARS]) {
    if (sw_cache_path(kind, key, out) == SW_OK)
        return;
    out[0] = '\0';
    sw_error_clear();
}

/* Rank 0 reads, and tells all. */
static sw_status find_machine(const struct sw_rates_target *target, const struct sw_profile_need *need,
                              struct sw_profile *out) {
    char key[KEY_CHARS];
    struct kept kept = {0};
    machine_key(target, key);
    path_of(machine_kind, key, out->path);
    if (!need->again && sw_ranks_rank(target->ranks) == 0)
        kept = read_machine(key, out);
    SW_TRY(sw_ranks_spread(target->ranks, "profile", &kept, sizeof kept));
    out->doubted = kept.doubted;
    out->known = kept.known;
    if ((kept.known && !kept.doubted) || need->only_kept)
        return SW_OK;
    out->known = true;
    return measure_machine(target, key, kept.doubted ? ", as a run has departed from its profile" : need->why, out);
}

static sw_status find_drives(const struct sw_rates_target *target, const struct sw_profile_need *need,
                             struct sw_profile *out) {
    char key[KEY_CHARS];
    struct kept kept = {0};
    drives_key(target, key);
    path_of(drives_kind, key, out->drives_path);
    if (!need->again && sw_ranks_rank(target->ranks) == 0)
        kept = read_drives(key, out);
    SW_TRY(sw_ranks_spread(target->ranks, "profile", &kept, sizeof kept));
    out->doubted |= kept.doubted;
    if ((kept.known && !kept.doubted) || need->only_kept)
        return SW_OK;
    return measure_drives(target, key, kept.doubted ? ", as a run has departed from their profile" : "", out);
}

/* The profile's chunks are of an ordinary size, whatever the settings have. */
static sw_status find_parts(const struct sw_rates_target *given, const struct sw_profile_need *need,
                            struct sw_profile *out) {
    enum { CHUNK_GRAINS = 32, RING_CHUNKS = 8 };
    struct sw_settings settings = *given->settings;
    struct sw_rates_target target = *given;
    settings.chunk_grains = CHUNK_GRAINS;
    target.settings = &settings;
    target.ring_chunks = RING_CHUNKS;
    SW_TRY(find_machine(&target, need, out));
    SW_TRY(need->drives ? find_drives(&target, need, out) : SW_OK);
    out->doubted = out->doubted && need->only_kept;
    return SW_OK;
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
    return status;
}

void sw_profile_release(struct sw_profile *profile) {
    sw_op_times_destroy(profile->times);
    *profile = (struct sw_profile){0};
}

sw_status sw_profile_price(const struct sw_profile *profile, const struct sw_rates_target *target,
                           struct sw_machine_rates *out) {
    const struct sw_model_shape shape = {.type = sw_settings_type(target->settings),
                                         .batch = target->settings->micro_batch,
                                         .seq = target->settings->seq,
                                         .tiles = target->settings->tiles};
    /* The rates stand for ops that were not timed, because the units that have them took too much memory or time. */
    const double flops_per_s = sw_op_times_best_rate(profile->times, SW_TIMED_PRODUCT);
    struct sw_device_description description = {.name = "this machine",
                                                .memory_bytes_per_s = profile->rates.update_on_device.bytes_per_s,
                                                .product_flops_per_s = {flops_per_s, flops_per_s, flops_per_s},
                                                .tf32_flops_per_s = flops_per_s,
                                                .attention_forward_flops_per_s = flops_per_s,
                                                .attention_backward_flops_per_s = flops_per_s,
                                                .host_memory = sw_device_info(target->devices->compute).host_memory,
                                                .times = profile->times};
    struct sw_device *device;
    struct sw_model *model;
    SW_TRY(sw_device_open_described(&description, &device));
    sw_status status = sw_model_create(sw_model_get_config(target->model), &shape, device, &model);
    if (status == SW_OK)
        status = sw_rates_describe(&profile->rates, model, device, out);
    sw_model_destroy(model);
    sw_device_close(device);
    return status;
}
