/* The rates that price a plan: measured, read from a file, or derived from a description.
 *
 * Each unit of the user's own model is timed alone, one of each shape, with the engine idle. Timing whole steps instead
 * would mix the rates that the simulator must tell apart, and would need the model to fit. Recomputing derived
 * intermediates costs less than the noise of two timings, so it is counted by its bytes.
 *
 * A number of the file may be edited to ask about another machine, so all numbers are read through one table with their
 * range, and an unknown field is an error. */
#include "job/rates.h"

#include "core/clock.h"
#include "core/files/json_file.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/size.h"
#include "core/status.h"
#include "job/settings_plan.h"
#include "kernels/described.h"
#include "model/unit_run.h"
#include "offload/simulate/measure.h"
#include "offload/simulate/measure_comm.h"
#include "offload/simulate/nodes.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number of struct sw_rates in the file: its name and its set. */
struct number {
    const char *name;
    size_t offset;
    sw_rate_set set;
};
#define MACHINE(member)                                                                                                \
    { #member, offsetof(struct sw_rates, member), SW_RATES_OF_MACHINE }
#define DRIVES(member)                                                                                                 \
    { #member, offsetof(struct sw_rates, member), SW_RATES_OF_DRIVES }
static const struct number numbers[] = {MACHINE(cores),       MACHINE(compute_cores), DRIVES(read_write_slowdown),
                                        DRIVES(io_latency_s), DRIVES(commit_s),       MACHINE(op_s),
                                        MACHINE(queued_op_s), MACHINE(comm_latency_s)};
static const struct number moves[] = {MACHINE(upload), MACHINE(download), MACHINE(update), MACHINE(update_on_device),
                                      MACHINE(finish), MACHINE(zero),     DRIVES(read),    DRIVES(write),
                                      MACHINE(gather), MACHINE(reduce)};
/* A file may lack these numbers, which are then 0. */
static const struct number further_moves[] = {MACHINE(update_bf16), MACHINE(update_8bit), MACHINE(muon)};
#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static void add_number(const struct sw_rates *rates, const struct number *number, json_t *object) {
    json_object_set_new(object, number->name, json_real(*(const double *)((const char *)rates + number->offset)));
}

static const struct sw_rate *rate_at(const struct sw_rates *rates, const struct number *move) {
    return (const void *)((const char *)rates + move->offset);
}

static json_t *rate_to_json(const struct sw_rate *rate) {
    return json_pack("{s:f, s:f}", "bytes_per_s", rate->bytes_per_s, "cores", rate->cores);
}

static void add_move(const struct sw_rates *rates, const struct number *move, json_t *object) {
    json_object_set_new(object, move->name, rate_to_json(rate_at(rates, move)));
}

void sw_rates_to_json(const struct sw_rates *rates, sw_rate_set set, json_t *object) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        if ((numbers[i].set & set) != 0)
            add_number(rates, &numbers[i], object);
    for (size_t i = 0; i < COUNT(moves); i++)
        if ((moves[i].set & set) != 0)
            add_move(rates, &moves[i], object);
    for (size_t i = 0; i < COUNT(further_moves); i++)
        if ((further_moves[i].set & set) != 0 && rate_at(rates, &further_moves[i])->bytes_per_s > 0.0)
            add_move(rates, &further_moves[i], object);
}

static bool is_amount(const json_t *value, bool may_be_zero) {
    const double number = json_number_value(value);
    return json_is_number(value) && isfinite(number) && (number > 0.0 || (may_be_zero && number == 0.0));
}

/* Checks that an assumed number has a range and a reason. */
static bool is_assumption(const json_t *value, bool may_be_zero) {
    const json_t *low = json_object_get(value, "low"), *high = json_object_get(value, "high");
    const json_t *expected = json_object_get(value, "expected");
    return is_amount(low, may_be_zero) && is_amount(expected, may_be_zero) && is_amount(high, may_be_zero) &&
           json_number_value(low) <= json_number_value(expected) &&
           json_number_value(expected) <= json_number_value(high) &&
           json_string_length(json_object_get(value, "why")) > 0;
}

sw_status sw_json_positive(const json_t *object, const char *name, const char *path, bool may_be_zero, double *out) {
    const json_t *value = json_object_get(object, name);
    const bool assumed = json_is_object(value);
    *out = json_number_value(assumed ? json_object_get(value, "expected") : value);
    if (assumed ? is_assumption(value, may_be_zero) : is_amount(value, may_be_zero))
        return SW_OK;
    if (assumed)
        return sw_fail(SW_ERR_ARG, "%s: %s must have positive numbers low <= expected <= high, and why", path, name);
    return sw_fail(SW_ERR_ARG, "%s: %s must be a positive number%s", path, name, may_be_zero ? ", or 0" : "");
}

static sw_status read_number(const json_t *object, const struct number *number, const char *path,
                             struct sw_rates *out) {
    return sw_json_positive(object, number->name, path, strcmp(number->name, "cores") != 0,
                            (double *)((char *)out + number->offset));
}

static sw_status read_rate(const json_t *object, const char *name, const char *path, struct sw_rate *out) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_object(value))
        return sw_fail(SW_ERR_ARG, "%s: %s must be an object of bytes_per_s and cores", path, name);
    SW_TRY(sw_json_positive(value, "bytes_per_s", path, false, &out->bytes_per_s));
    return sw_json_positive(value, "cores", path, true, &out->cores);
}

static sw_status read_move(const json_t *object, const struct number *move, const char *path, struct sw_rates *out) {
    return read_rate(object, move->name, path, (void *)((char *)out + move->offset));
}

sw_status sw_rates_from_json(const json_t *object, sw_rate_set set, const char *path, struct sw_rates *out) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        if ((numbers[i].set & set) != 0)
            SW_TRY(read_number(object, &numbers[i], path, out));
    for (size_t i = 0; i < COUNT(moves); i++)
        if ((moves[i].set & set) != 0)
            SW_TRY(read_move(object, &moves[i], path, out));
    for (size_t i = 0; i < COUNT(further_moves); i++)
        if ((further_moves[i].set & set) != 0 && json_object_get(object, further_moves[i].name) != NULL)
            SW_TRY(read_move(object, &further_moves[i], path, out));
    return SW_OK;
}

/* Plausible bounds of a profile's rates, and of its other numbers: cores, factors and seconds. */
#define LEAST_BYTES_PER_S 1e3
#define MOST_BYTES_PER_S 1e16
#define MOST_NUMBER 1e6

static bool is_plausible(const struct sw_rate *rate) {
    return rate->bytes_per_s > LEAST_BYTES_PER_S && rate->bytes_per_s < MOST_BYTES_PER_S && rate->cores < MOST_NUMBER;
}

bool sw_rates_are_plausible(const struct sw_rates *rates, sw_rate_set set) {
    for (size_t i = 0; i < COUNT(numbers); i++)
        if ((numbers[i].set & set) != 0 && !(*(const double *)((const char *)rates + numbers[i].offset) < MOST_NUMBER))
            return false;
    for (size_t i = 0; i < COUNT(moves); i++)
        if ((moves[i].set & set) != 0 && !is_plausible(rate_at(rates, &moves[i])))
            return false;
    for (size_t i = 0; i < COUNT(further_moves); i++) {
        const struct sw_rate *rate = rate_at(rates, &further_moves[i]);
        if ((further_moves[i].set & set) != 0 && rate->bytes_per_s != 0.0 && !is_plausible(rate))
            return false;
    }
    return true;
}

json_t *sw_scope_rates_to_json(const struct sw_scope_rates *rates) {
    return json_pack("{s:o, s:o, s:f}", "gather", rate_to_json(&rates->gather), "reduce", rate_to_json(&rates->reduce),
                     "latency_s", rates->latency_s);
}

sw_status sw_scope_rates_from_json(const json_t *object, const char *path, struct sw_scope_rates *out) {
    SW_TRY(read_rate(object, "gather", path, &out->gather));
    SW_TRY(read_rate(object, "reduce", path, &out->reduce));
    SW_TRY(sw_json_positive(object, "latency_s", path, true, &out->latency_s));
    return is_plausible(&out->gather) && is_plausible(&out->reduce) && out->latency_s < MOST_NUMBER
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "%s: a rate is one that no machine has", path);
}

sw_status sw_rates_refuse_unknown(const json_t *object, const char *path) {
    static const char *const move_names[] = {"bytes_per_s", "cores"};
    enum { MOVES = COUNT(moves), ALL_MOVES = MOVES + COUNT(further_moves) };
    const char *names[COUNT(numbers) + ALL_MOVES];
    for (size_t i = 0; i < COUNT(numbers); i++)
        names[i] = numbers[i].name;
    for (size_t i = 0; i < ALL_MOVES; i++)
        names[COUNT(numbers) + i] = i < MOVES ? moves[i].name : further_moves[i - MOVES].name;
    SW_TRY(sw_json_refuse_unknown(object, path, "rates", names, COUNT(names)));
    for (size_t i = COUNT(numbers); i < COUNT(names); i++)
        SW_TRY(
            sw_json_refuse_unknown(json_object_get(object, names[i]), path, names[i], move_names, COUNT(move_names)));
    return SW_OK;
}

/* Measures how long each unit of a model takes: one unit of each shape runs alone, or a described device counts it. */

/* Timed rounds: at least three, and more while they are short. */
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 25 };
#define ENOUGH_S 0.3
#define LONG_S 0.9

/* The units' runner, and the processor time and wall time of all rounds. */
struct bench {
    struct sw_unit_run *run;
    const struct sw_device *device;
    const struct sw_units *units;
    struct sw_ranks *ranks;
    struct sw_long_work *progress;
    double cpu_s, wall_s;
};

static sw_status count_pass(struct bench *bench, sw_unit_pass pass, double *out_s) {
    const double before_s = sw_device_counted_s(bench->device);
    SW_TRY(sw_unit_run_pass(bench->run, pass));
    *out_s = sw_device_counted_s(bench->device) - before_s;
    return SW_OK;
}

static sw_status time_pass(struct bench *bench, sw_unit_pass pass, double *out_s) {
    double seconds[MOST_ROUNDS], total_s = 0.0;
    int rounds = 0;
    for (bool first = true; rounds < MOST_ROUNDS && total_s < (rounds < LEAST_ROUNDS ? LONG_S : ENOUGH_S);
         first = false) {
        const double start_cpu_s = sw_cpu_seconds();
        const int64_t start_ns = sw_now_ns();
        SW_TRY(sw_unit_run_pass(bench->run, pass));
        sw_ranks_tick(bench->ranks);
        SW_TRY(sw_long_work_at(bench->progress, 0));
        seconds[rounds] = (double)(sw_now_ns() - start_ns) * 1e-9;
        /* The first round touches memory and fills caches, which matters only if a round is short. */
        if (first && seconds[rounds] < LONG_S / LEAST_ROUNDS)
            continue;
        bench->cpu_s += sw_cpu_seconds() - start_cpu_s;
        total_s += seconds[rounds++];
    }
    bench->wall_s += total_s;
    *out_s = sw_median(seconds, rounds);
    return SW_OK;
}

static bool same_shape(const struct sw_unit *a, const struct sw_unit *b) {
    if (a->tensor_count != b->tensor_count || a->elems != b->elems)
        return false;
    for (int64_t t = 0; t < a->tensor_count; t++)
        if (a->tensor[t].elems != b->tensor[t].elems || a->tensor[t].dims != b->tensor[t].dims ||
            a->tensor[t].frozen != b->tensor[t].frozen)
            return false;
    return true;
}

/* Returns an earlier unit of the same shape, or -1. The embedding and the head are always measured. */
static int64_t alike(const struct sw_units *units, int64_t unit) {
    for (int64_t u = 1; unit > 0 && unit + 1 < units->count && u < unit; u++)
        if (same_shape(&units->unit[u], &units->unit[unit]))
            return u;
    return -1;
}

/* Adds the time to recompute derived intermediates in the backward pass. It is counted, because it is too short to be
 * measured as the difference of two passes. */
static sw_status count_deriving(struct bench *bench, struct sw_unit_seconds *out) {
    double deriving_s;
    SW_TRY(count_pass(bench, SW_UNIT_BACKWARD_DERIVING, &deriving_s));
    out->recompute_s += deriving_s - out->backward_s;
    out->derive_s += deriving_s - out->backward_s;
    return SW_OK;
}

static sw_status measure_unit(struct bench *bench, int64_t unit, struct sw_unit_seconds *out) {
    const bool described = sw_device_info(bench->device).described;
    sw_status (*const price)(struct bench *, sw_unit_pass, double *) = described ? count_pass : time_pass;
    const bool block = unit > 0 && unit + 1 < bench->units->count;
    SW_TRY(sw_unit_run_choose(bench->run, unit));
    SW_TRY(price(bench, SW_UNIT_FORWARD, &out->forward_s));
    SW_TRY(price(bench, SW_UNIT_BACKWARD, &out->backward_s));
    if (!block)
        return SW_OK;
    SW_TRY(price(bench, SW_UNIT_RECOMPUTE, &out->recompute_s));
    SW_TRY(price(bench, SW_UNIT_DERIVE, &out->derive_s));
    if (described)
        SW_TRY(count_deriving(bench, out));
    if (!sw_unit_run_has_products(bench->run))
        return SW_OK;
    SW_TRY(price(bench, SW_UNIT_LAST_PRODUCT, &out->last_product_s));
    SW_TRY(price(bench, SW_UNIT_FIRST_PRODUCT, &out->first_product_s));
    out->backward_s += out->last_product_s + out->first_product_s;
    return SW_OK;
}

static sw_status measure_all(struct bench *bench, struct sw_unit_seconds *out) {
    for (int64_t u = 0; u < bench->units->count; u++) {
        const int64_t like = alike(bench->units, u);
        if (like < 0) {
            SW_TRY(measure_unit(bench, u, &out[u]));
            continue;
        }
        out[u] = out[like];
    }
    return SW_OK;
}

static sw_status measure_units(struct sw_model *model, struct sw_device *device, struct sw_ranks *ranks,
                               struct sw_long_work *progress, struct sw_unit_seconds *out, double *out_cores) {
    struct bench bench = {.device = device, .units = sw_model_get_units(model), .ranks = ranks, .progress = progress};
    sw_status status = sw_unit_run_open(model, device, &bench.run);
    if (status == SW_OK)
        status = measure_all(&bench, out);
    *out_cores = bench.wall_s > 0.0 ? bench.cpu_s / bench.wall_s : 0.0;
    sw_unit_run_close(bench.run);
    return status;
}

#define RATES_FILE_LIMIT_BYTES ((size_t)16 << 20)
enum { RATES_VERSION = 6, SHAPE_CHARS = 512, EXPERTS_CHARS = 80 };

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
    SW_TRY(sw_measure_muon(devices->host, &sample->muon));
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

/* Returns the median of one number over all samples. `first` points to the number in the first sample. */
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
    rates->muon = median_rate(samples, &first->muon);
    rates->update_on_device = median_rate(samples, &first->update_on_device);
    rates->finish = median_rate(samples, &first->finish);
    rates->zero = median_rate(samples, &first->zero);
    rates->op_s = median_of(samples, &first->op_s);
    rates->queued_op_s = median_of(samples, &first->queued_op_s);
}

static sw_status allocate_units(int64_t units, struct sw_machine_rates *rates) {
    rates->units = calloc((size_t)units, sizeof *rates->units);
    rates->rates.units = rates->units;
    return rates->units != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the units' times");
}

/* Assumes the rates of collectives with ranks that are not running: as fast as the slower direction of the device's
 * link, with a network's latency. */
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
    SW_TRY(measure_units(target->model, target->devices->compute, target->ranks, &progress, out->units,
                         &rates->compute_cores));
    rates->frozen_left_out = sw_units_frozen(sw_model_get_units(target->model)) > 0;
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
        status = measure_units(model, device, NULL, &progress, out->units, &out->rates.compute_cores);
    out->rates = *described;
    out->rates.units = out->units;
    out->rates.frozen_left_out = sw_units_frozen(sw_model_get_units(model)) > 0;
    if (status != SW_OK)
        sw_rates_release(out);
    return status;
}

bool sw_rates_know_drives(const struct sw_rates *rates) {
    return rates->read.bytes_per_s > 0.0 && rates->write.bytes_per_s > 0.0;
}

void sw_rates_release(struct sw_machine_rates *rates) {
    free(rates->units);
    rates->units = NULL;
    *rates = (struct sw_machine_rates){0};
}

sw_status sw_rates_spread(struct sw_ranks *ranks, int64_t units, struct sw_machine_rates *rates) {
    const int64_t bytes = units * (int64_t)sizeof(struct sw_unit_seconds);
    const bool receives = sw_ranks_rank(ranks) != 0;
    SW_TRY(sw_ranks_agree_on_error(ranks, receives ? allocate_units(units, rates) : SW_OK));
    SW_TRY(sw_ranks_spread(ranks, "rates", &rates->rates, sizeof rates->rates));
    SW_TRY(
        sw_ranks_spread(ranks, "rate of products", &rates->products_flops_per_s, sizeof rates->products_flops_per_s));
    rates->rates.units = rates->units;
    return sw_ranks_spread(ranks, "rates of units", rates->units, bytes);
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

struct sw_node_ranks sw_rates_node_ranks(const struct sw_settings *settings) {
    const int64_t ranks = sw_settings_ranks(settings), node_ranks = sw_settings_node_ranks(settings);
    return (struct sw_node_ranks){.ranks = ranks,
                                  .nodes = node_ranks > 0 ? ranks / node_ranks : 1,
                                  .tensor_ranks = sw_settings_tensor_ranks(settings),
                                  .tensor_node_ranks = sw_settings_tensor_node_ranks(settings),
                                  .expert_ranks = sw_settings_expert_ranks(settings),
                                  .expert_node_ranks = sw_settings_part_node_ranks(settings),
                                  .data_node_ranks = sw_settings_data_node_ranks(settings)};
}

void sw_rates_fit_nodes(const struct sw_settings *settings, struct sw_rates *rates) {
    const struct sw_node_ranks job = sw_rates_node_ranks(settings);
    sw_rates_over_measured_nodes(&job, rates);
}

/* Writes everything that the times of units and the rates of chunks depend on. */
static void describe(const struct sw_rates_target *target, char text[SHAPE_CHARS]) {
    SW_HANDLES_ERRORS();
    const struct sw_model_config *c = sw_model_get_config(target->model);
    const struct sw_settings *s = target->settings;
    const struct sw_device_info info = sw_devices_info(target->devices);
    struct sw_machine machine = {.cpu = "unknown"};
    char experts[EXPERTS_CHARS] = "", among[SW_COUNT_CHARS] = "";
    (void)sw_machine_read(&machine);
    if (c->experts > 0)
        snprintf(experts, sizeof experts, " experts %lld/%lld of %lld in units of %lld", (long long)c->chosen_experts,
                 (long long)c->experts, (long long)c->expert_ffn, (long long)c->expert_group);
    if (sw_settings_shares_experts(s))
        snprintf(among, sizeof among, " apart among %lld", (long long)s->experts);
    snprintf(
        text, SHAPE_CHARS,
        "%s vocab %lld hidden %lld layers %lld heads %lld/%lld of %lld ffn %lld%s%s in %lld tiles, micro-batches of "
        "%lld x %lld, %s, "
        "%s %s with %d threads, %s%s%s, chunks of %lld grains",
        c->family, (long long)c->vocab, (long long)c->hidden, (long long)c->layers, (long long)c->heads,
        (long long)c->kv_heads, (long long)c->head_dim, (long long)c->ffn, experts, among, (long long)s->tiles,
        (long long)s->micro_batch, (long long)s->seq, sw_settings_precision_name(s), info.name, info.isa, info.threads,
        info.model != NULL ? info.model : "", info.model != NULL ? " beside " : "", machine.cpu,
        (long long)(s->auto_chunk_grains > 0 ? s->auto_chunk_grains : s->chunk_grains));
}

/* One time of struct sw_unit_seconds. The file has an array of each. */
struct unit_time {
    const char *name;
    size_t offset;
};
#define UNIT_TIME(member)                                                                                              \
    { #member, offsetof(struct sw_unit_seconds, member) }
static const struct unit_time unit_times[] = {UNIT_TIME(forward_s),      UNIT_TIME(backward_s),
                                              UNIT_TIME(recompute_s),    UNIT_TIME(derive_s),
                                              UNIT_TIME(last_product_s), UNIT_TIME(first_product_s)};

static double *time_of(struct sw_unit_seconds *unit, const struct unit_time *time) {
    return (double *)(void *)((char *)unit + time->offset);
}

static json_t *to_json(const struct sw_machine_rates *rates, const char *shape, int64_t units) {
    json_t *root = json_pack("{s:i, s:s}", "spillway_rates", RATES_VERSION, "shape", shape);
    sw_rates_to_json(&rates->rates, SW_RATES_ALL, root);
    json_object_set_new(root, "frozen_left_out", json_boolean(rates->rates.frozen_left_out));
    if (rates->products_flops_per_s > 0.0)
        json_object_set_new(root, "products_flops_per_s", json_real(rates->products_flops_per_s));
    for (size_t i = 0; i < COUNT(unit_times); i++) {
        json_t *array = json_array();
        for (int64_t u = 0; u < units; u++)
            json_array_append_new(array, json_real(*time_of(&rates->units[u], &unit_times[i])));
        json_object_set_new(root, unit_times[i].name, array);
    }
    return root;
}

static sw_status write_file(const char *path, const struct sw_machine_rates *rates, const char *shape, int64_t units) {
    return sw_json_write_file(path, to_json(rates, shape, units), SW_FILE_SHARED);
}

static sw_status read_units(const json_t *root, const struct unit_time *time, const char *path, int64_t units,
                            struct sw_unit_seconds *out) {
    const char *name = time->name;
    const json_t *values = json_object_get(root, name);
    if (!json_is_array(values) || (int64_t)json_array_size(values) != units)
        return sw_fail(SW_ERR_ARG, "%s: %s must be an array of %lld numbers, one for each unit", path, name,
                       (long long)units);
    for (int64_t u = 0; u < units; u++) {
        const json_t *value = json_array_get(values, (size_t)u);
        *time_of(&out[u], time) = json_number_value(value);
        if (!json_is_number(value) || json_number_value(value) < 0.0)
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
    out->rates.frozen_left_out = json_is_true(json_object_get(root, "frozen_left_out"));
    if (json_object_get(root, "products_flops_per_s") != NULL)
        SW_TRY(sw_json_positive(root, "products_flops_per_s", path, false, &out->products_flops_per_s));
    for (size_t i = 0; i < COUNT(unit_times); i++)
        SW_TRY(read_units(root, &unit_times[i], path, units, out->units));
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
