/* The fused optimizer update. The bounds: a loop over the same layout that moves the same bytes and computes nothing,
 * and a triad in place over flat arrays, which reads as many bytes as it writes, as the update does. Where a GPU
 * computes, also the update of what lives there. */
#include "bench/commands.h"
#include "bench/kernels/memory.h"
#include "bench/options.h"
#include "bench/table.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <stdio.h>

enum { UPDATE, PLAIN, TRIAD, ON_DEVICE, DEVICE_COPY, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each has its place among the rates");

/* sw_measure_update works on as much: 96 MiB of optimizer state, gradients and weights. */
enum { GRAINS = SW_BENCH_MOST_CHUNK_GRAINS };
#define AREA_BYTES (GRAINS * SW_OPTIMIZER_GRAIN_BYTES)

static const sw_dtype types[] = {SW_BF16, SW_F16, SW_F32};
enum { TYPES = sizeof types / sizeof types[0], ALL_TYPES = 0 };

struct update_bench {
    struct sw_devices devices;
    struct sw_bench_memory memory;
    struct sw_bench_rounds rounds;
    sw_dtype type;
};

/* Returns the bytes that an update reads and writes a parameter: gradient, weight, and the optimizer state twice. */
static int64_t parameter_bytes(sw_dtype type) {
    return 2 * (SW_OPTIMIZER_GRAIN_BYTES / SW_GRAIN_ELEMS + sw_dtype_bytes(type));
}

/* Adds one to every stream of a grain's record, reads its gradients and writes its weights. */
static void move_grain(const struct update_bench *bench, int64_t grain) {
    float *record = bench->memory.area[0] + grain * SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS;
    for (int64_t i = 0; i < (int64_t)SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS; i++)
        record[i] += 1.0f;
    if (bench->type == SW_F32) {
        const float *grads = bench->memory.area[1] + grain * SW_GRAIN_ELEMS;
        float *weights = bench->memory.area[2] + grain * SW_GRAIN_ELEMS;
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            weights[i] = grads[i] + 1.0f;
        return;
    }
    const uint16_t *grads = (const uint16_t *)bench->memory.area[1] + grain * SW_GRAIN_ELEMS;
    uint16_t *weights = (uint16_t *)bench->memory.area[2] + grain * SW_GRAIN_ELEMS;
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
        weights[i] = (uint16_t)(grads[i] + 1);
}

static void move_bytes(const void *context) {
    const struct update_bench *bench = context;
#pragma omp parallel for num_threads(bench->memory.threads) schedule(static)
    for (int64_t grain = 0; grain < GRAINS; grain++)
        move_grain(bench, grain);
}

/* State that lives on a GPU is updated there; copies within its memory are the bound. */
static sw_status measure_on_device(struct update_bench *bench, const struct sw_measure_shape *shape, int round) {
    struct sw_rate update, copy;
    SW_TRY(sw_measure_update(bench->devices.compute, shape, &update));
    SW_TRY(sw_measure_device_copy(bench->devices.compute, shape, &copy));
    bench->rounds.rate[ON_DEVICE][round] = update.bytes_per_s;
    bench->rounds.rate[DEVICE_COPY][round] = copy.bytes_per_s;
    return SW_OK;
}

static sw_status measure(struct update_bench *bench, int64_t chunk_grains) {
    const struct sw_measure_shape shape = {.type = bench->type, .chunk_grains = chunk_grains};
    const int64_t bytes = parameter_bytes(bench->type) * GRAINS * SW_GRAIN_ELEMS;
    for (int i = 0; i < bench->rounds.rounds; i++) {
        struct sw_rate update;
        SW_TRY(sw_measure_update(bench->devices.host, &shape, &update));
        bench->rounds.rate[UPDATE][i] = update.bytes_per_s;
        bench->rounds.rate[PLAIN][i] = sw_bench_rate(move_bytes, bench, bytes);
        bench->rounds.rate[TRIAD][i] = sw_bench_triad_in_place(&bench->memory);
        if (bench->devices.compute != bench->devices.host)
            SW_TRY(measure_on_device(bench, &shape, i));
    }
    return SW_OK;
}

/* One precision. */
struct type_row {
    const char *precision;
    int64_t bytes_per_parameter;
    struct sw_bench_rounds rounds;
    double parameters_per_s, parameters_per_s_on_device; /* NAN: there is no GPU */
};

#define ROW struct type_row
static const struct sw_bench_field fields[] = {
    {.name = "precision", .heading = "", SW_AT(SW_FIELD_TEXT, precision), .key = true},
    {.name = "bytes_per_parameter", SW_AT(SW_FIELD_COUNT, bytes_per_parameter)},
    {.name = "bytes_per_s", .heading = "update", SW_MEDIAN(rounds, UPDATE), SW_GIGA, .digits = 1},
    {.name = "parameters_per_s", .heading = "Gparam/s", SW_AT(SW_FIELD_REAL, parameters_per_s), SW_GIGA, .digits = 2},
    {.name = "plain_bytes_per_s", .heading = "plain", SW_MEDIAN(rounds, PLAIN), SW_GIGA, .digits = 1},
    {.name = "triad_bytes_per_s", .heading = "triad", SW_MEDIAN(rounds, TRIAD), SW_GIGA, .digits = 1},
    {.name = "of_plain", .heading = "to plain", SW_RATIO(rounds, UPDATE, PLAIN), .digits = 2},
    {.name = "of_triad", .heading = "to triad", SW_RATIO(rounds, UPDATE, TRIAD), .digits = 2},
};
static const struct sw_bench_field device_fields[] = {
    {.heading = "on the GPU", SW_AT(SW_FIELD_TEXT, precision)},
    {.name = "bytes_per_s", .heading = "update", SW_MEDIAN(rounds, ON_DEVICE), SW_GIGA, .digits = 1},
    {.name = "parameters_per_s",
     .heading = "Gparam/s",
     SW_AT(SW_FIELD_REAL, parameters_per_s_on_device),
     SW_GIGA,
     .digits = 2},
    {.name = "copy_bytes_per_s", .heading = "copies there", SW_MEDIAN(rounds, DEVICE_COPY), SW_GIGA, .digits = 1},
    {.name = "of_copy", .heading = "to copies", SW_RATIO(rounds, ON_DEVICE, DEVICE_COPY), .digits = 2},
};

static sw_status measure_types(struct update_bench *bench, const struct sw_bench_options *given,
                               struct type_row rows[TYPES], int *out_count) {
    *out_count = 0;
    for (int i = 0; i < TYPES; i++) {
        if (given->settings.precision != ALL_TYPES && given->settings.precision != i + 1)
            continue;
        bench->type = types[i];
        SW_TRY(measure(bench, given->chunk_grains));
        const double bytes = (double)parameter_bytes(types[i]);
        rows[(*out_count)++] =
            (struct type_row){.precision = sw_dtype_name(types[i]),
                              .bytes_per_parameter = parameter_bytes(types[i]),
                              .rounds = bench->rounds,
                              .parameters_per_s = sw_bench_median(&bench->rounds, UPDATE) / bytes,
                              .parameters_per_s_on_device = sw_bench_median(&bench->rounds, ON_DEVICE) / bytes};
    }
    return SW_OK;
}

static json_t *rows_json(const struct type_row *rows, int count, bool has_gpu) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *row = sw_table_row_json(SW_TABLE(fields, rows, count), i);
        if (has_gpu)
            row = sw_bench_join(
                row, json_pack("{s:o}", "on_device", sw_table_row_json(SW_TABLE(device_fields, rows, count), i)));
        json_array_append_new(list, row);
    }
    return list;
}

static sw_status report(const struct update_bench *bench, const struct sw_bench_options *given,
                        const struct type_row *rows, int count) {
    const struct sw_device_info info = sw_devices_info(&bench->devices);
    const bool has_gpu = bench->devices.compute != bench->devices.host;
    if (given->settings.json)
        return sw_bench_print_json(json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:o}", "bench", "update", "device",
                                             info.name, "isa", info.isa, "threads", info.threads, "rounds",
                                             (int)given->rounds, "chunk_grains", (json_int_t)given->chunk_grains,
                                             "precisions", rows_json(rows, count, has_gpu)));
    printf("update, %d threads, %lld grains at once, medians of %d rounds: GB/s beside plain\n"
           "traffic of the same bytes and a triad\n",
           bench->memory.threads, (long long)given->chunk_grains, (int)given->rounds);
    sw_table_print(SW_TABLE(fields, rows, count));
    if (has_gpu)
        sw_table_print(SW_TABLE(device_fields, rows, count));
    return SW_OK;
}

sw_status sw_bench_update(const void *given_options) {
    const struct sw_bench_options *given = given_options;
    struct update_bench bench = {.rounds.rounds = (int)given->rounds};
    struct type_row rows[TYPES];
    int count;
    sw_status status = SW_OK;
    SW_TRY_GOTO(sw_bench_open_devices(given->settings.device, given->settings.threads, &bench.devices), end);
    SW_TRY_GOTO(sw_bench_memory_open(sw_devices_info(&bench.devices).threads, AREA_BYTES, &bench.memory), end);
    SW_TRY_GOTO(measure_types(&bench, given, rows, &count), end);
    status = report(&bench, given, rows, count);
end:
    sw_bench_memory_close(&bench.memory);
    sw_devices_close(&bench.devices);
    return status;
}
