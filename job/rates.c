#include "job/rates.h"

#include "core/error_scope.h"
#include "core/files/json_file.h"
#include "core/long_work.h"
#include "core/machine.h"
#include "core/size.h"
#include "job/rates_json.h"
#include "job/settings_plan.h"
#include "offload/simulate/measure.h"
#include "offload/simulate/measure_comm.h"
#include "offload/simulate/nodes.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RATES_FILE_LIMIT_BYTES ((size_t)16 << 20)
enum { RATES_VERSION = 6, SHAPE_CHARS = 512 };

static struct sw_measure_shape chunks_of(const struct sw_rates_target *target) {
    return (struct sw_measure_shape){.type = sw_settings_type(target->settings),
                                     .chunk_grains = target->settings->chunk_grains,
                                     .ring_chunks = target->ring_chunks};
}

sw_status sw_rates_measure_drives(const struct sw_rates_target *target, struct sw_rates *rates) {
    const struct sw_measure_shape shape = chunks_of(target);
    struct sw_store_rates drives;
    SW_TRY(sw_measure_store(target->directories, target->directory_count, target->settings->allow_buffered,
                            SW_STORE_IO_DEPTH, &shape, &drives));
    rates->read = drives.read;
    rates->write = drives.write;
    rates->read_write_slowdown = drives.read_write_slowdown;
    rates->io_latency_s = drives.latency_s;
    rates->commit_s = drives.commit_s;
    return SW_OK;
}

static sw_status measure_narrow_updates(struct sw_device *host, struct sw_measure_shape shape, struct sw_rates *out) {
    shape.rounding = SW_ROUND_STOCHASTIC;
    shape.optimizer = SW_OPTIMIZER_BF16;
    SW_TRY(sw_measure_update(host, &shape, &out->update_bf16));
    shape.optimizer = SW_OPTIMIZER_8BIT;
    return sw_measure_update(host, &shape, &out->update_8bit);
}

sw_status sw_rates_sample_memory(const struct sw_rates_target *target, struct sw_memory_samples *samples) {
    const struct sw_measure_shape shape = chunks_of(target);
    const struct sw_devices *devices = target->devices;
    assert(samples->count < SW_MEMORY_SAMPLES);
    struct sw_rates *sample = &samples->sample[samples->count++];
    *sample = (struct sw_rates){0};
    SW_TRY(sw_measure_copies(devices->compute, &shape, &sample->upload, &sample->download));
    SW_TRY(sw_measure_update(devices->host, &shape, &sample->update));
    SW_TRY(measure_narrow_updates(devices->host, shape, sample));
    sample->update_on_device = sample->update;
    if (devices->compute != devices->host)
        SW_TRY(sw_measure_update(devices->compute, &shape, &sample->update_on_device));
    SW_TRY(sw_measure_accumulators(devices->compute, &shape, &sample->finish, &sample->zero));
    SW_TRY(sw_measure_handover(devices->host, &shape, &sample->op_s, &sample->queued_op_s));
    if (sw_device_info(devices->compute).asynchronous)
        SW_TRY(sw_measure_queued(devices->compute, &sample->queued_op_s));
    sw_ranks_tick(target->ranks);
    return SW_OK;
}

/* Returns the median of one number over all samples. `first` is that of the first sample. */
static double median_of(const struct sw_memory_samples *samples, const double *first) {
    double value[SW_MEMORY_SAMPLES];
    for (int i = 0; i < samples->count; i++)
        value[i] = *(const double *)((const char *)first + (size_t)i * sizeof samples->sample[0]);
    return sw_median(value, samples->count);
}

static struct sw_rate median_rate(const struct sw_memory_samples *samples, const struct sw_rate *first) {
    return (struct sw_rate){.bytes_per_s = median_of(samples, &first->bytes_per_s),
                            .cores = median_of(samples, &first->cores)};
}

void sw_rates_settle_memory(const struct sw_memory_samples *samples, struct sw_rates *rates) {
    const struct sw_rates *first = &samples->sample[0];
    rates->upload = median_rate(samples, &first->upload);
    rates->download = median_rate(samples, &first->download);
    rates->update = median_rate(samples, &first->update);
    rates->update_bf16 = median_rate(samples, &first->update_bf16);
    rates->update_8bit = median_rate(samples, &first->update_8bit);
    rates->update_on_device = median_rate(samples, &first->update_on_device);
    rates->finish = median_rate(samples, &first->finish);
    rates->zero = median_rate(samples, &first->zero);
    rates->op_s = median_of(samples, &first->op_s);
    rates->queued_op_s = median_of(samples, &first->queued_op_s);
}

static void use_units(struct sw_machine_rates *rates) {
    rates->rates.forward_s = rates->units.forward;
    rates->rates.backward_s = rates->units.backward;
    rates->rates.recompute_s = rates->units.recompute;
    rates->rates.derive_s = rates->units.derive;
    rates->rates.last_product_s = rates->units.last_product;
    rates->rates.first_product_s = rates->units.first_product;
}

static sw_status allocate_units(int64_t units, struct sw_machine_rates *rates) {
    SW_TRY(sw_unit_seconds_alloc(units, &rates->units));
    use_units(rates);
    return SW_OK;
}

/* Assumes the rates of collectives between ranks that are not here: as fast as the slower direction of the device's
 * link, after a network's latency. */
#define ASSUMED_COMM_LATENCY_S 20e-6
void sw_rates_assume_ranks(struct sw_rates *rates) {
    const bool down = rates->download.bytes_per_s < rates->upload.bytes_per_s;
    rates->gather = rates->reduce = down ? rates->download : rates->upload;
    rates->comm_latency_s = ASSUMED_COMM_LATENCY_S;
}

static sw_status measure(const struct sw_rates_target *target, bool store, struct sw_machine_rates *out) {
    struct sw_rates *rates = &out->rates;
    struct sw_memory_samples samples = {.count = 0};
    struct sw_long_work progress =
        sw_long_work_begin("measuring this machine", target->settings->json ? SW_LONG_WORK_SILENT : 0);
    SW_TRY(allocate_units(sw_model_get_units(target->model)->count, out));
    rates->cores = (double)sw_machine_cores();
    SW_TRY(sw_rates_sample_memory(target, &samples));
    SW_TRY(sw_measure_units(target->model, target->devices->compute, target->ranks, &progress, &out->units,
                            &rates->compute_cores));
    SW_TRY(sw_rates_sample_memory(target, &samples));
    SW_TRY(sw_long_work_at(&progress, 0));
    if (store)
        SW_TRY(sw_rates_measure_drives(target, rates));
    sw_ranks_tick(target->ranks);
    SW_TRY(sw_long_work_at(&progress, 0));
    SW_TRY(sw_rates_sample_memory(target, &samples));
    sw_rates_settle_memory(&samples, rates);
    sw_rates_assume_ranks(rates);
    sw_long_work_end(&progress);
    return SW_OK;
}

sw_status sw_rates_measure(const struct sw_rates_target *target, bool store, struct sw_machine_rates *out) {
    *out = (struct sw_machine_rates){0};
    const sw_status status = measure(target, store, out);
    if (status != SW_OK)
        sw_rates_release(out);
    return status;
}

sw_status sw_rates_describe(const struct sw_rates *described, struct sw_model *model, struct sw_device *device,
                            struct sw_machine_rates *out) {
    *out = (struct sw_machine_rates){0};
    struct sw_long_work progress = sw_long_work_begin("counting what the units take", SW_LONG_WORK_SILENT);
    sw_status status = allocate_units(sw_model_get_units(model)->count, out);
    if (status == SW_OK)
        status = sw_measure_units(model, device, NULL, &progress, &out->units, &out->rates.compute_cores);
    out->rates = *described;
    use_units(out);
    if (status != SW_OK)
        sw_rates_release(out);
    return status;
}

bool sw_rates_know_drives(const struct sw_rates *rates) {
    return rates->read.bytes_per_s > 0.0 && rates->write.bytes_per_s > 0.0;
}

void sw_rates_release(struct sw_machine_rates *rates) {
    sw_unit_seconds_free(&rates->units);
    *rates = (struct sw_machine_rates){0};
}

sw_status sw_rates_spread(struct sw_ranks *ranks, int64_t units, struct sw_machine_rates *rates) {
    const int64_t bytes = SW_UNIT_SECONDS_ARRAYS * units * (int64_t)sizeof(double);
    const bool receives = sw_ranks_rank(ranks) != 0;
    SW_TRY(sw_ranks_agree_on_error(ranks, receives ? allocate_units(units, rates) : SW_OK));
    SW_TRY(sw_ranks_spread(ranks, "rates", &rates->rates, sizeof rates->rates));
    SW_TRY(
        sw_ranks_spread(ranks, "rate of products", &rates->products_flops_per_s, sizeof rates->products_flops_per_s));
    use_units(rates);
    return sw_ranks_spread(ranks, "rates of units", rates->units.forward, bytes);
}

sw_status sw_rates_measure_ranks(struct sw_ranks *ranks, const struct sw_devices *devices, sw_dtype type,
                                 struct sw_rates *rates) {
    const int64_t bytes = sw_plan_staging_bytes(sw_ranks_count(ranks));
    struct sw_memory *staging = NULL;
    if (sw_ranks_comm(ranks) == NULL)
        return SW_OK;
    sw_status status =
        sw_ranks_agree_on_error(ranks, sw_memory_open(devices->compute, "staging", SW_MEMORY_DEVICE, bytes, &staging));
    if (status == SW_OK)
        status = sw_comm_use_staging(sw_ranks_comm(ranks), sw_memory_base(staging), bytes);
    if (status == SW_OK)
        status = sw_measure_comm_rates(sw_ranks_comm(ranks), devices->compute, type, rates);
    sw_memory_close(staging);
    return status;
}

void sw_rates_fit_nodes(const struct sw_settings *settings, struct sw_rates *rates) {
    const int64_t ranks = sw_settings_ranks(settings), node_ranks = sw_settings_node_ranks(settings);
    const struct sw_node_ranks job = {.ranks = ranks,
                                      .nodes = node_ranks > 0 ? ranks / node_ranks : 1,
                                      .tensor_ranks = sw_settings_tensor_ranks(settings),
                                      .tensor_node_ranks = sw_settings_tensor_node_ranks(settings),
                                      .data_node_ranks = sw_settings_data_node_ranks(settings)};
    sw_rates_over_measured_nodes(&job, rates);
}

/* Writes what the times of units and the rates of chunks depend on. */
static void describe(const struct sw_rates_target *target, char text[SHAPE_CHARS]) {
    SW_HANDLES_ERRORS();
    const struct sw_model_config *c = sw_model_get_config(target->model);
    const struct sw_settings *s = target->settings;
    const struct sw_device_info info = sw_devices_info(target->devices);
    struct sw_machine machine = {.cpu = "unknown"};
    (void)sw_machine_read(&machine);
    snprintf(text, SHAPE_CHARS,
             "%s vocab %lld hidden %lld layers %lld heads %lld/%lld of %lld ffn %lld in %lld tiles, micro-batches of "
             "%lld x %lld, %s, "
             "%s %s with %d threads, %s%s%s, chunks of %lld grains",
             c->family, (long long)c->vocab, (long long)c->hidden, (long long)c->layers, (long long)c->heads,
             (long long)c->kv_heads, (long long)c->head_dim, (long long)c->ffn, (long long)s->tiles,
             (long long)s->micro_batch, (long long)s->seq, sw_settings_precision_name(s), info.name, info.isa,
             info.threads, info.model != NULL ? info.model : "", info.model != NULL ? " beside " : "", machine.cpu,
             (long long)(s->auto_chunk_grains > 0 ? s->auto_chunk_grains : s->chunk_grains));
}

/* Names in the file of the arrays of struct sw_unit_seconds. */
static const char *const unit_arrays[SW_UNIT_SECONDS_ARRAYS] = {"forward_s", "backward_s",     "recompute_s",
                                                                "derive_s",  "last_product_s", "first_product_s"};

static json_t *to_json(const struct sw_machine_rates *rates, const char *shape, int64_t units) {
    json_t *root = json_pack("{s:i, s:s}", "spillway_rates", RATES_VERSION, "shape", shape);
    sw_rates_to_json(&rates->rates, SW_RATES_ALL, root);
    if (rates->products_flops_per_s > 0.0)
        json_object_set_new(root, "products_flops_per_s", json_real(rates->products_flops_per_s));
    for (int i = 0; i < SW_UNIT_SECONDS_ARRAYS; i++) {
        json_t *array = json_array();
        for (int64_t u = 0; u < units; u++)
            json_array_append_new(array, json_real(rates->units.forward[i * units + u]));
        json_object_set_new(root, unit_arrays[i], array);
    }
    return root;
}

static sw_status write_file(const char *path, const struct sw_machine_rates *rates, const char *shape, int64_t units) {
    return sw_json_write_file(path, to_json(rates, shape, units), SW_FILE_SHARED);
}

static sw_status read_units(const json_t *root, const char *name, const char *path, int64_t units, double *out) {
    const json_t *values = json_object_get(root, name);
    if (!json_is_array(values) || (int64_t)json_array_size(values) != units)
        return sw_fail(SW_ERR_ARG, "%s: %s must be an array of %lld numbers, one for each unit", path, name,
                       (long long)units);
    for (int64_t u = 0; u < units; u++) {
        const json_t *value = json_array_get(values, (size_t)u);
        out[u] = json_number_value(value);
        if (!json_is_number(value) || out[u] < 0.0)
            return sw_fail(SW_ERR_ARG, "%s: %s of unit %lld must be a positive number, or 0", path, name, (long long)u);
    }
    return SW_OK;
}

static sw_status from_json(const json_t *root, const char *path, const char *shape, int64_t units,
                           struct sw_machine_rates *out) {
    const char *of = json_string_value(json_object_get(root, "shape"));
    if (json_integer_value(json_object_get(root, "spillway_rates")) != RATES_VERSION || of == NULL)
        return sw_fail(SW_ERR_ARG,
                       "%s is not a file of rates of this version; name a new file, and it is measured and written",
                       path);
    if (strcmp(of, shape) != 0)
        return sw_fail(SW_ERR_ARG, "%s was measured for '%s', but this is '%s'; name a new file", path, of, shape);
    SW_TRY(allocate_units(units, out));
    SW_TRY(sw_rates_from_json(root, SW_RATES_ALL, path, &out->rates));
    if (json_object_get(root, "products_flops_per_s") != NULL)
        SW_TRY(sw_json_positive(root, "products_flops_per_s", path, false, &out->products_flops_per_s));
    for (int i = 0; i < SW_UNIT_SECONDS_ARRAYS; i++)
        SW_TRY(read_units(root, unit_arrays[i], path, units, out->units.forward + i * units));
    return SW_OK;
}

static sw_status read_file(const char *path, const char *shape, int64_t units, struct sw_machine_rates *out) {
    json_t *root;
    SW_TRY(sw_json_read_file(path, RATES_FILE_LIMIT_BYTES, SW_ERR_ARG, &root));
    const sw_status status = from_json(root, path, shape, units, out);
    json_decref(root);
    return status;
}

sw_status sw_rates_keep(const char *path, const struct sw_rates_target *target, const struct sw_machine_rates *rates) {
    char shape[SHAPE_CHARS];
    describe(target, shape);
    return write_file(path, rates, shape, sw_model_get_units(target->model)->count);
}

sw_status sw_rates_load(const char *path, const struct sw_rates_target *target, struct sw_machine_rates *out) {
    const int64_t units = sw_model_get_units(target->model)->count;
    char shape[SHAPE_CHARS];
    describe(target, shape);
    *out = (struct sw_machine_rates){0};
    if (access(path, F_OK) == 0) {
        const sw_status status = read_file(path, shape, units, out);
        if (status != SW_OK)
            sw_rates_release(out);
        return status;
    }
    SW_TRY(sw_rates_measure(target, true, out));
    const sw_status status = write_file(path, out, shape, units);
    if (status != SW_OK)
        sw_rates_release(out);
    return status;
}
