/* How long a model's units take: one of each shape runs alone. */
#include "core/clock.h"
#include "core/size.h"
#include "offload/measure.h"
#include "train/rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rounds that count: three unless they are long, and more of those that are short. */
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 25 };
#define ENOUGH_S 0.3
#define LONG_S 0.9

/* The memory of any unit, and its call. */
struct bench {
    struct sw_device *device;
    struct sw_unit_ops ops;
    const struct sw_units *units;
    struct sw_memory *memory, *host;
    int64_t taken_bytes;
    struct sw_stream *stream;
    struct sw_unit_call call;
    void *weights, *table;
    double loss;
    double cpu_s, wall_s; /* of all rounds */
    struct sw_model_init init;
};

typedef enum { FORWARD, BACKWARD, RECOMPUTE_BACKWARD, PASSES } pass;

static void take(struct bench *bench, int64_t bytes, void *out) {
    *(void **)out = (char *)sw_memory_base(bench->memory) + bench->taken_bytes;
    bench->taken_bytes += sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
}

static int64_t most_elems(const struct sw_units *units) {
    int64_t most = 0;
    for (int64_t u = 0; u < units->count; u++)
        most = sw_max_i64(most, units->unit[u].elems);
    return most;
}

static int64_t most_of(const int64_t *bytes, int64_t count) {
    int64_t most = 0;
    for (int64_t u = 0; u < count; u++)
        most = sw_max_i64(most, bytes[u]);
    return most;
}

static sw_status open_bench(struct bench *bench, struct sw_model *model) {
    const struct sw_model_bytes bytes = sw_model_bytes(model);
    const int64_t elems = most_elems(bench->units), table_elems = bench->units->unit[0].elems;
    const int64_t typed = sw_dtype_bytes(sw_model_type(model));
    const int64_t count = bench->units->count;
    const int64_t boundary = most_of(bytes.boundary, count), saved = most_of(bytes.saved, count);
    const int64_t sizes[] = {
        elems * typed, table_elems * typed, elems * 4, table_elems * 4, bytes.token, boundary, boundary, boundary,
        saved,         bytes.work};
    struct sw_unit_call *call = &bench->call;
    void *targets[] = {&bench->weights, &bench->table, &call->acc,  &call->table_acc, &call->tokens,
                       &call->in,       &call->out,    &call->grad, &call->saved,     &call->work};
    int64_t all_bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        all_bytes += sw_round_up(sizes[i], SW_BUFFER_ALIGN_BYTES);
    SW_TRY(sw_memory_open(bench->device, "measurement", SW_MEMORY_DEVICE, all_bytes, &bench->memory));
    SW_TRY(sw_memory_open(bench->device, "measurement", SW_MEMORY_HOST, SW_GRAIN_ELEMS * (int64_t)sizeof(float),
                          &bench->host));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        take(bench, sizes[i], targets[i]);
    SW_TRY(sw_stream_open(bench->device, &bench->stream));
    call->stream = bench->stream;
    call->weights = bench->weights;
    call->loss = &bench->loss;
    call->loss_scale = 1.0f;
    if (bench->ops.begin != NULL)
        SW_TRY(bench->ops.begin(bench->ops.context, bench->stream, call->work));
    return sw_stream_synchronize(bench->stream);
}

/* Random weights: products of zeros may be faster than real ones. On their way they are where gradients will be. */
static sw_status fill_weights(struct bench *bench, int64_t unit, sw_dtype type, void *to) {
    enum { AT_ONCE = SW_GRAIN_ELEMS };
    float *from = sw_memory_base(bench->host);
    for (int64_t first = 0; first < bench->units->unit[unit].elems; first += AT_ONCE) {
        SW_TRY(sw_model_fill_random(&bench->init, unit, first, AT_ONCE, from));
        SW_TRY(sw_copy_to_device(bench->stream, bench->call.acc, from, AT_ONCE * (int64_t)sizeof *from));
        SW_TRY(
            sw_cast_from_f32(bench->stream, type, AT_ONCE, bench->call.acc, (char *)to + first * sw_dtype_bytes(type)));
        SW_TRY(sw_stream_synchronize(bench->stream));
    }
    return SW_OK;
}

static sw_status run_once(struct bench *bench, int64_t unit, pass which) {
    struct sw_unit_call *call = &bench->call;
    const bool head = unit + 1 == bench->units->count;
    call->unit = unit;
    call->table = head && bench->units->tied ? bench->table : NULL;
    call->recompute = which == RECOMPUTE_BACKWARD;
    const struct sw_unit_ops *ops = &bench->ops;
    const sw_unit_function function =
        head ? (which == FORWARD ? ops->loss : ops->head) : (which == FORWARD ? ops->forward : ops->backward);
    SW_TRY(function(ops->context, call));
    return sw_stream_synchronize(bench->stream);
}

static sw_status time_pass(struct bench *bench, int64_t unit, pass which, double *out_s) {
    double seconds[MOST_ROUNDS], total_s = 0.0;
    int rounds = 0;
    for (bool first = true; rounds < MOST_ROUNDS && total_s < (rounds < LEAST_ROUNDS ? LONG_S : ENOUGH_S);
         first = false) {
        const double start_cpu_s = sw_cpu_seconds();
        const int64_t start_ns = sw_now_ns();
        SW_TRY(run_once(bench, unit, which));
        seconds[rounds] = (double)(sw_now_ns() - start_ns) * 1e-9;
        /* The first touches memory and fills caches, which matters only where it is short. */
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
        if (a->tensor[t].elems != b->tensor[t].elems || a->tensor[t].dims != b->tensor[t].dims)
            return false;
    return true;
}

/* An earlier unit that takes as long, or -1. The embedding and the head are like no other. */
static int64_t alike(const struct sw_units *units, int64_t unit) {
    for (int64_t u = 1; unit > 0 && unit + 1 < units->count && u < unit; u++)
        if (same_shape(&units->unit[u], &units->unit[unit]))
            return u;
    return -1;
}

static sw_status measure_unit(struct bench *bench, sw_dtype type, int64_t unit, struct sw_unit_seconds *out) {
    const bool block = unit > 0 && unit + 1 < bench->units->count;
    double again_s = 0.0;
    SW_TRY(fill_weights(bench, unit, type, bench->weights));
    SW_TRY(time_pass(bench, unit, FORWARD, &out->forward[unit]));
    SW_TRY(time_pass(bench, unit, BACKWARD, &out->backward[unit]));
    if (block)
        SW_TRY(time_pass(bench, unit, RECOMPUTE_BACKWARD, &again_s));
    out->recompute[unit] = block ? fmax(0.0, again_s - out->backward[unit]) : 0.0;
    return SW_OK;
}

static sw_status measure_all(struct bench *bench, sw_dtype type, struct sw_unit_seconds *out) {
    SW_TRY(fill_weights(bench, 0, type, bench->table));
    for (int64_t u = 0; u < bench->units->count; u++) {
        const int64_t like = alike(bench->units, u);
        if (like < 0) {
            SW_TRY(measure_unit(bench, type, u, out));
            continue;
        }
        out->forward[u] = out->forward[like];
        out->backward[u] = out->backward[like];
        out->recompute[u] = out->recompute[like];
    }
    return SW_OK;
}

sw_status sw_measure_units(struct sw_model *model, struct sw_device *device, struct sw_unit_seconds *out,
                           double *out_cores) {
    struct bench bench = {.device = device,
                          .ops = sw_model_ops(model),
                          .units = sw_model_get_units(model),
                          .init = {.config = sw_model_get_config(model), .units = sw_model_get_units(model)}};
    sw_status status = open_bench(&bench, model);
    if (status == SW_OK)
        status = measure_all(&bench, sw_model_type(model), out);
    *out_cores = bench.wall_s > 0.0 ? bench.cpu_s / bench.wall_s : 0.0;
    if (bench.stream != NULL)
        sw_stream_close(bench.stream);
    sw_memory_close(bench.memory);
    sw_memory_close(bench.host);
    return status;
}

sw_status sw_unit_seconds_alloc(int64_t units, struct sw_unit_seconds *out) {
    double **arrays[] = {&out->forward, &out->backward, &out->recompute};
    *out = (struct sw_unit_seconds){0};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i] = calloc((size_t)units, sizeof **arrays[i]);
        if (*arrays[i] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the units' times");
    }
    return SW_OK;
}

void sw_unit_seconds_free(struct sw_unit_seconds *seconds) {
    free(seconds->forward);
    free(seconds->backward);
    free(seconds->recompute);
    *seconds = (struct sw_unit_seconds){0};
}
