#include "offload/simulate/measure.h"

#include "core/clock.h"
#include "core/size.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* A working set larger than caches; the first round, which does not count, only touches the memory. */
enum { ROUNDS = 3 };
#define WORKING_BYTES (256 * SW_MIB)

double sw_measure_share(void) {
    const char *text = getenv("SW_MEASURE_SHARE");
    const double share = text != NULL ? strtod(text, NULL) : 1.0;
    return share > 0.0 && share < 1.0 ? share : 1.0;
}

double sw_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double sw_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

/* One measurement: its memory, in three areas, and how much of it a round works on. */
struct bench {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *memory[3];
    sw_dtype type;
    sw_optimizer_format optimizer;
    sw_rounding rounding;
    int64_t chunk_grains, chunks;
    void *a, *b, *c;
};

/* Sides of the three areas: all on the device, or the first on the host, for copies. */
static const sw_memory_side on_device[3] = {SW_MEMORY_DEVICE, SW_MEMORY_DEVICE, SW_MEMORY_DEVICE};
static const sw_memory_side first_on_host[3] = {SW_MEMORY_HOST, SW_MEMORY_DEVICE, SW_MEMORY_DEVICE};

/* Works on one chunk. */
typedef sw_status (*chunk_function)(struct bench *bench, int64_t chunk);

static sw_status open_bench(struct bench *bench, struct sw_device *device, const struct sw_measure_shape *shape,
                            const sw_memory_side side[3], const int64_t grain_bytes[3]) {
    const int64_t all_bytes = grain_bytes[0] + grain_bytes[1] + grain_bytes[2];
    const int64_t working_bytes = (int64_t)(sw_measure_share() * (double)WORKING_BYTES);
    const int64_t chunks = sw_max_i64(2, working_bytes / (shape->chunk_grains * all_bytes));
    const int64_t grains = chunks * shape->chunk_grains;
    void **areas[] = {&bench->a, &bench->b, &bench->c};
    *bench = (struct bench){.device = device,
                            .type = shape->type,
                            .optimizer = shape->optimizer,
                            .rounding = shape->rounding,
                            .chunk_grains = shape->chunk_grains,
                            .chunks = chunks};
    SW_TRY(sw_stream_open(device, &bench->stream));
    for (int i = 0; i < 3; i++)
        if (grain_bytes[i] > 0) {
            SW_TRY(sw_memory_open(device, "measurement", side[i], grains * grain_bytes[i], &bench->memory[i]));
            *areas[i] = sw_memory_base(bench->memory[i]);
        }
    return SW_OK;
}

static void close_bench(struct bench *bench) {
    sw_stream_close(bench->stream);
    for (int i = 0; i < 3; i++)
        sw_memory_close(bench->memory[i]);
}

/* Runs a function over all chunks in some rounds and returns the best rate: rounds are short, and what else a machine
 * does in such a moment says nothing about a step. */
static sw_status rate_of(struct bench *bench, chunk_function run, int64_t chunk_bytes, struct sw_rate *out) {
    *out = (struct sw_rate){0};
    for (int round = -1; round < ROUNDS; round++) {
        const int64_t start_ns = sw_now_ns();
        const double start_cpu_s = sw_cpu_seconds();
        for (int64_t c = 0; c < bench->chunks; c++) {
            SW_TRY(run(bench, c));
            if (!sw_device_info(bench->device).asynchronous)
                SW_TRY(sw_stream_synchronize(bench->stream));
        }
        SW_TRY(sw_stream_synchronize(bench->stream));
        const double seconds = (double)(sw_now_ns() - start_ns) * 1e-9;
        const double bytes_per_s = (double)(bench->chunks * chunk_bytes) / seconds;
        if (round >= 0 && bytes_per_s > out->bytes_per_s)
            *out = (struct sw_rate){.bytes_per_s = bytes_per_s, .cores = (sw_cpu_seconds() - start_cpu_s) / seconds};
    }
    return SW_OK;
}

static int64_t typed_bytes(const struct bench *bench) {
    return bench->chunk_grains * SW_GRAIN_ELEMS * sw_dtype_bytes(bench->type);
}

static void *chunk_at(const struct bench *bench, void *area, int64_t chunk, int64_t elem_bytes) {
    return (char *)area + chunk * bench->chunk_grains * SW_GRAIN_ELEMS * elem_bytes;
}

static sw_status upload_chunk(struct bench *bench, int64_t chunk) {
    return sw_copy_to_device(bench->stream, chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)),
                             chunk_at(bench, bench->a, chunk, sw_dtype_bytes(bench->type)), typed_bytes(bench));
}

static sw_status download_chunk(struct bench *bench, int64_t chunk) {
    return sw_copy_to_host(bench->stream, chunk_at(bench, bench->a, chunk, sw_dtype_bytes(bench->type)),
                           chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)), typed_bytes(bench));
}

sw_status sw_measure_copies(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out_upload,
                            struct sw_rate *out_download) {
    const int64_t grain = SW_GRAIN_ELEMS * sw_dtype_bytes(shape->type);
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, first_on_host, (int64_t[]){grain, grain, 0});
    if (status == SW_OK)
        status = rate_of(&bench, upload_chunk, typed_bytes(&bench), out_upload);
    if (status == SW_OK)
        status = rate_of(&bench, download_chunk, typed_bytes(&bench), out_download);
    close_bench(&bench);
    return status;
}

static sw_status update_chunk(struct bench *bench, int64_t chunk) {
    const int64_t elems = bench->chunk_grains * SW_GRAIN_ELEMS,
                  state_bytes = sw_optimizer_grain_bytes(bench->optimizer);
    const struct sw_decay_run run = {.end = bench->chunks * elems, .decay = true};
    const struct sw_adamw adamw = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0f, .step = 1};
    return sw_update_adamw(bench->stream, .type = bench->type, .adamw = &adamw, .first_elem = chunk * elems,
                           .grains = bench->chunk_grains, .runs = &run, .run_count = 1,
                           .grads = chunk_at(bench, bench->a, chunk, sw_dtype_bytes(bench->type)),
                           .records = (char *)bench->c + chunk * bench->chunk_grains * state_bytes,
                           .weights = chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)),
                           .format = bench->optimizer, .rounding = bench->rounding, .wide_elem = bench->chunks * elems);
}

sw_status sw_measure_update(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out) {
    const int64_t grain = SW_GRAIN_ELEMS * sw_dtype_bytes(shape->type);
    const int64_t state_bytes = sw_optimizer_grain_bytes(shape->optimizer);
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, on_device, (int64_t[]){grain, grain, state_bytes});
    if (status == SW_OK)
        status = rate_of(&bench, update_chunk, bench.chunk_grains * 2 * (state_bytes + grain), out);
    close_bench(&bench);
    return status;
}

static sw_status copy_chunk(struct bench *bench, int64_t chunk) {
    return sw_copy_on_device(bench->stream, chunk_at(bench, bench->b, chunk, SW_OPTIMIZER_GRAIN_BYTES / SW_GRAIN_ELEMS),
                             chunk_at(bench, bench->a, chunk, SW_OPTIMIZER_GRAIN_BYTES / SW_GRAIN_ELEMS),
                             bench->chunk_grains * SW_OPTIMIZER_GRAIN_BYTES);
}

sw_status sw_measure_device_copy(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out) {
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, on_device,
                                  (int64_t[]){SW_OPTIMIZER_GRAIN_BYTES, SW_OPTIMIZER_GRAIN_BYTES, 0});
    if (status == SW_OK)
        status = rate_of(&bench, copy_chunk, bench.chunk_grains * 2 * SW_OPTIMIZER_GRAIN_BYTES, out);
    close_bench(&bench);
    return status;
}

static sw_status finish_chunk(struct bench *bench, int64_t chunk) {
    return sw_finish_gradient(bench->stream, .type = bench->type, .elems = bench->chunk_grains * SW_GRAIN_ELEMS,
                              .acc = chunk_at(bench, bench->a, chunk, sizeof(float)),
                              .grads = chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)), .sums = bench->c);
}

static sw_status zero_chunk(struct bench *bench, int64_t chunk) {
    return sw_zero(bench->stream, chunk_at(bench, bench->a, chunk, sizeof(float)),
                   bench->chunk_grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float));
}

sw_status sw_measure_accumulators(struct sw_device *device, const struct sw_measure_shape *shape,
                                  struct sw_rate *out_finish, struct sw_rate *out_zero) {
    const int64_t typed = SW_GRAIN_ELEMS * sw_dtype_bytes(shape->type);
    const int64_t wide = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, on_device, (int64_t[]){wide, typed, sizeof(double)});
    if (status == SW_OK)
        status = rate_of(&bench, finish_chunk, bench.chunk_grains * (wide + typed), out_finish);
    if (status == SW_OK)
        status = rate_of(&bench, zero_chunk, bench.chunk_grains * wide, out_zero);
    close_bench(&bench);
    return status;
}
