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

enum { KEY_CHARS = 1024 };

/* The entries of the cache: what the device and the memory reach, and what the drives reach. */
static const char machine_kind[] = "machine", drives_kind[] = "drives";

/* Writes what the rates of the device and the memory depend on. */
static void machine_key(const struct sw_rates_target *target, char out[KEY_CHARS]) {
    const struct sw_device_info info = sw_devices_info(target->devices);
    struct sw_machine machine = {.cpu = "unknown"};
    char driver[SW_DRIVER_VERSION_CHARS] = "";
    if (sw_machine_read(&machine) != SW_OK)
        sw_error_clear();
    if (info.model != NULL)
        sw_driver_version("", driver);
    snprintf(out, KEY_CHARS, "spillway %s, %s with %d of %d cores, %s %s%s%s%s%s, %d threads, %s", SW_VERSION,
             machine.cpu, machine.cores, machine.all_cores, info.name, info.isa, info.model != NULL ? ", " : "",
             info.model != NULL ? info.model : "", driver[0] != '\0' ? ", driver " : "", driver, info.threads,
             sw_settings_precision_name(target->settings));
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

/* Reads an entry that was kept. False, and nothing is said: there is none, or it is damaged, and it is made anew. */
static bool read_machine(const char *key, struct sw_profile *out, bool *out_doubted) {
    json_t *entry = sw_cache_read(machine_kind, key);
    const bool read = entry != NULL && sw_profile_from_json(entry, out) == SW_OK;
    *out_doubted = json_is_true(json_object_get(entry, doubt));
    sw_error_clear();
    json_decref(entry);
    return read;
}

static bool read_drives(const char *key, struct sw_profile *out, bool *out_doubted) {
    json_t *entry = sw_cache_read(drives_kind, key);
    const bool read =
        entry != NULL && sw_rates_from_json(entry, SW_RATES_OF_DRIVES, "the profile", &out->rates) == SW_OK;
    *out_doubted = json_is_true(json_object_get(entry, doubt));
    sw_error_clear();
    json_decref(entry);
    return read;
}

void sw_profile_doubt(const char *path) {
    if (path[0] != '\0' && sw_cache_mark(path, doubt) != SW_OK)
        sw_error_clear();
}

static sw_status measure_machine(const struct sw_rates_target *target, const char *key, const char *why,
                                 struct sw_profile *out) {
    double compute_cores;
    if (!target->settings->json)
        sw_log_info("measuring this machine, once and for up to a minute%s", why != NULL ? why : "");
    sw_op_times_destroy(out->times);
    out->times = NULL;
    SW_TRY(sw_op_times_create(&out->times));
    out->rates.cores = (double)sw_machine_cores();
    SW_TRY(sw_rates_measure_memory(target, &out->rates));
    SW_TRY(sw_profile_time_ops(target, out->times, &compute_cores));
    SW_TRY(sw_rates_measure_memory(target, &out->rates));
    out->rates.compute_cores = compute_cores;
    sw_rates_assume_ranks(&out->rates);
    out->measured = true;
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
    SW_TRY(sw_rates_measure_drives(target, &out->rates));
    out->measured = true;
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

static sw_status find_machine(const struct sw_rates_target *target, const struct sw_profile_need *need,
                              struct sw_profile *out) {
    char key[KEY_CHARS];
    bool doubted = false;
    machine_key(target, key);
    path_of(machine_kind, key, out->path);
    out->known = !need->again && read_machine(key, out, &doubted);
    out->doubted = doubted;
    if ((out->known && !doubted) || need->only_kept)
        return SW_OK;
    SW_TRY(measure_machine(target, key, doubted ? ", as a run has departed from its profile" : need->why, out));
    out->known = true;
    return SW_OK;
}

static sw_status find_drives(const struct sw_rates_target *target, const struct sw_profile_need *need,
                             struct sw_profile *out) {
    char key[KEY_CHARS];
    bool doubted = false;
    drives_key(target, key);
    path_of(drives_kind, key, out->drives_path);
    const bool known = !need->again && read_drives(key, out, &doubted);
    out->doubted |= doubted;
    if ((known && !doubted) || need->only_kept)
        return SW_OK;
    return measure_drives(target, key, doubted ? ", as a run has departed from their profile" : "", out);
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
    if (status == SW_OK)
        status = find_parts(target, need, out);
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
