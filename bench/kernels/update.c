/* The fused optimizer update, against a loop over the same layout that moves the same bytes and computes nothing.
 * Narrow optimizer state is also compared with fp32. With a GPU, the update of state in its memory is measured too,
 * against copies within that memory. */
#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <math.h>
#include <stdio.h>

/* ..._PARAMETERS are the updates' rates in parameters a second, FP32_... those of fp32 state. */
enum {
    UPDATE,
    PARAMETERS,
    FP32_PARAMETERS,
    PLAIN,
    DEVICE_UPDATE,
    DEVICE_PARAMETERS,
    DEVICE_FP32_PARAMETERS,
    DEVICE_COPY,
    CONTENDERS
};
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

/* sw_measure_update works on as much: 96 MiB of optimizer state, gradients and weights. */
enum { GRAINS = SW_BENCH_MOST_CHUNK_GRAINS };
#define AREA_BYTES (GRAINS * SW_OPTIMIZER_GRAIN_BYTES)

static const sw_dtype types[] = {SW_BF16, SW_F16, SW_F32};
enum { TYPES = sizeof types / sizeof types[0], ALL_TYPES = 0 };

struct update_bench {
    struct sw_devices devices;
    struct sw_bench_memory memory;
    sw_optimizer_format format;
    sw_dtype type; /* being measured */
};

/* One precision. A contender that is not measured (the GPU's if there is none; fp32 against itself) has NAN as its
 * first rate. */
struct type_row {
    const char *precision, *optimizer;
    double bytes_per_parameter;
    struct sw_bench_rounds rounds;
};

/* Returns the bytes that an update reads and writes a parameter: gradient, weight, and the optimizer state twice. */
static double parameter_bytes(sw_optimizer_format format, sw_dtype type) {
    return 2.0 * ((double)sw_optimizer_grain_bytes(format) / SW_GRAIN_ELEMS + (double)sw_dtype_bytes(type));
}

/* Adds one to all optimizer state of a grain, reads its gradients and writes its weights. */
static void move_grain(const struct update_bench *bench, int64_t grain) {
    const int64_t state_elems = sw_optimizer_grain_bytes(bench->format) / (int64_t)sizeof(float);
    float *state = bench->memory.area[0] + grain * state_elems;
    for (int64_t i = 0; i < state_elems; i++)
        state[i] += 1.0f;
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

/* Measures the update of fp32 state in parameters a second; NAN where the state is fp32 anyway. */
static sw_status measure_fp32(struct sw_device *device, const struct sw_measure_shape *shape, double *out) {
    struct sw_measure_shape fp32 = *shape;
    struct sw_rate update;
    *out = NAN;
    if (shape->optimizer == SW_OPTIMIZER_FP32)
        return SW_OK;
    fp32.optimizer = SW_OPTIMIZER_FP32;
    SW_TRY(sw_measure_update(device, &fp32, &update));
    *out = update.bytes_per_s / parameter_bytes(SW_OPTIMIZER_FP32, shape->type);
    return SW_OK;
}

/* State that lives on a GPU is updated there; copies within its memory are the bound. */
static sw_status measure_on_device(struct update_bench *bench, const struct sw_measure_shape *shape,
                                   struct type_row *row, int round) {
    struct sw_rate update, copy;
    SW_TRY(sw_measure_update(bench->devices.compute, shape, &update));
    SW_TRY(measure_fp32(bench->devices.compute, shape, &row->rounds.rate[DEVICE_FP32_PARAMETERS][round]));
    SW_TRY(sw_measure_device_copy(bench->devices.compute, shape, &copy));
    row->rounds.rate[DEVICE_UPDATE][round] = update.bytes_per_s;
    row->rounds.rate[DEVICE_PARAMETERS][round] = update.bytes_per_s / row->bytes_per_parameter;
    row->rounds.rate[DEVICE_COPY][round] = copy.bytes_per_s;
    return SW_OK;
}

static sw_status measure(struct update_bench *bench, const struct sw_bench_options *given, struct type_row *row) {
    const struct sw_measure_shape shape = {.type = bench->type,
                                           .chunk_grains = given->chunk_grains,
                                           .optimizer = bench->format,
                                           .rounding = sw_settings_rounding(&given->settings)};
    const bool has_gpu = bench->devices.compute != bench->devices.host;
    *row = (struct type_row){.precision = sw_dtype_name(bench->type),
                             .optimizer = sw_optimizer_format_name(bench->format),
                             .bytes_per_parameter = parameter_bytes(bench->format, bench->type),
                             .rounds.rounds = (int)given->rounds};
    struct sw_bench_rounds *rounds = &row->rounds;
    for (int who = DEVICE_UPDATE; who < CONTENDERS; who++)
        rounds->rate[who][0] = NAN;
    for (int i = 0; i < rounds->rounds; i++) {
        struct sw_rate update;
        SW_TRY(sw_measure_update(bench->devices.host, &shape, &update));
        rounds->rate[UPDATE][i] = update.bytes_per_s;
        rounds->rate[PARAMETERS][i] = update.bytes_per_s / row->bytes_per_parameter;
        SW_TRY(measure_fp32(bench->devices.host, &shape, &rounds->rate[FP32_PARAMETERS][i]));
        rounds->rate[PLAIN][i] =
            sw_bench_rate(move_bytes, bench, (int64_t)(row->bytes_per_parameter * GRAINS * SW_GRAIN_ELEMS));
        if (has_gpu)
            SW_TRY(measure_on_device(bench, &shape, row, i));
    }
    return SW_OK;
}

#define ROW struct type_row
static const struct sw_bench_field fields[] = {
    {.name = "precision", .heading = "", SW_AT(SW_FIELD_TEXT, precision), .key = true},
    {.name = "optimizer_state", SW_AT(SW_FIELD_TEXT, optimizer)},
    {.name = "bytes_per_parameter", SW_AT(SW_FIELD_REAL, bytes_per_parameter)},
    SW_RATE_FIELD("bytes_per_s", "update", UPDATE, 1),
    SW_RATE_FIELD("parameters_per_s", "Gparam/s", PARAMETERS, 2),
    SW_RATE_FIELD("fp32_parameters_per_s", "fp32", FP32_PARAMETERS, 2),
    SW_RATIO_FIELD("of_fp32", "to fp32", PARAMETERS, FP32_PARAMETERS),
    SW_RATE_FIELD("plain_bytes_per_s", "plain", PLAIN, 1),
    SW_RATIO_FIELD("of_plain", "to plain", UPDATE, PLAIN),
    SW_RATE_FIELD("on_device.bytes_per_s", "on the GPU", DEVICE_UPDATE, 1),
    SW_RATE_FIELD("on_device.parameters_per_s", "Gparam/s", DEVICE_PARAMETERS, 2),
    SW_RATE_FIELD("on_device.fp32_parameters_per_s", "fp32", DEVICE_FP32_PARAMETERS, 2),
    SW_RATIO_FIELD("on_device.of_fp32", "to fp32", DEVICE_PARAMETERS, DEVICE_FP32_PARAMETERS),
    SW_RATE_FIELD("on_device.copy_bytes_per_s", "copies there", DEVICE_COPY, 1),
    SW_RATIO_FIELD("on_device.of_copy", "to copies", DEVICE_UPDATE, DEVICE_COPY),
};

static sw_status measure_types(struct update_bench *bench, const struct sw_bench_options *given,
                               struct type_row rows[TYPES], int *out_count) {
    *out_count = 0;
    for (int i = 0; i < TYPES; i++) {
        if (given->settings.precision != ALL_TYPES && given->settings.precision != i + 1)
            continue;
        bench->type = types[i];
        SW_TRY(measure(bench, given, &rows[(*out_count)++]));
    }
    return SW_OK;
}

static sw_status report(const struct update_bench *bench, const struct sw_bench_options *given,
                        const struct type_row *rows, int count) {
    const struct sw_device_info info = sw_devices_info(&bench->devices);
    if (given->settings.json)
        return sw_command_print_json(json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:o}", "bench", "update", "device",
                                               info.name, "isa", info.isa, "threads", info.threads, "rounds",
                                               (int)given->rounds, "chunk_grains", (json_int_t)given->chunk_grains,
                                               "precisions", sw_table_json(SW_TABLE(fields, rows, count))));
    printf("update, %s, %s at once, medians of %s: GB/s, against plain\n"
           "traffic of the same bytes\n",
           SW_COUNT(bench->memory.threads, "thread"), SW_COUNT(given->chunk_grains, "grain"),
           SW_COUNT(given->rounds, "round"));
    if (bench->format != SW_OPTIMIZER_FP32)
        printf("optimizer state in %s, rounding %s, against the rate of fp32\n",
               sw_optimizer_format_name(bench->format), sw_rounding_name(sw_settings_rounding(&given->settings)));
    sw_table_print(SW_TABLE(fields, rows, count));
    return SW_OK;
}

sw_status sw_bench_update(const void *given_options) {
    const struct sw_bench_options *given = given_options;
    struct update_bench bench = {.format = sw_settings_optimizer(&given->settings)};
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
