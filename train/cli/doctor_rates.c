/* Measures memory and arithmetic. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/size.h"
#include "kernels/device.h"
#include "offload/simulate/measure.h"
#include "train/cli/doctor.h"

/* Shape of a matrix product that fills all cores, and the seconds for which it is repeated. */
enum { SIDE = 1024, CHUNK_GRAINS = 16, RING_CHUNKS = 8 };
#define COMPUTE_SECONDS 0.4

static struct sw_measure_shape shape_of(sw_dtype type) {
    return (struct sw_measure_shape){.type = type, .chunk_grains = CHUNK_GRAINS, .ring_chunks = RING_CHUNKS};
}

static sw_dtype type_of(const struct sw_device *device) {
    return sw_device_info(device).bf16_fast ? SW_BF16 : SW_F32;
}

/* Reports why there is no measurement. */
static void find_failure(struct sw_doctor *doctor, sw_status status) {
    sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "%s", sw_error_message(status));
    sw_error_clear();
}

static sw_status measure_memory(struct sw_rate *out_copy, struct sw_rate *out_update) {
    struct sw_device *device;
    struct sw_rate download;
    SW_TRY(sw_device_open("cpu", 0, &device));
    const struct sw_measure_shape shape = shape_of(type_of(device));
    sw_status status = sw_measure_copies(device, &shape, out_copy, &download);
    if (status == SW_OK)
        status = sw_measure_update(device, &shape, out_update);
    sw_device_close(device);
    return status;
}

void sw_doctor_memory_rate(struct sw_doctor *doctor) {
    struct sw_rate copy, update;
    const sw_status status = measure_memory(&copy, &update);
    if (status != SW_OK) {
        find_failure(doctor, status);
        return;
    }
    json_t *facts =
        json_pack("{s:f, s:f}", "copy_bytes_per_s", copy.bytes_per_s, "update_bytes_per_s", update.bytes_per_s);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "update %.1f GB/s, upload %.1f GB/s",
                   update.bytes_per_s * 1e-9, copy.bytes_per_s * 1e-9);
}

/* Fills both factors with equal numbers: they take the time of random ones, which zeros may not. */
static void fill(sw_dtype type, void *to, int64_t elems) {
    static const uint16_t bf16_half = 0x3f00;
    for (int64_t i = 0; i < elems; i++) {
        if (type == SW_BF16)
            ((uint16_t *)to)[i] = bf16_half;
        else
            ((float *)to)[i] = 0.5f;
    }
}

static sw_status time_products(struct sw_stream *stream, const struct sw_gemm *shape, struct sw_arena *arena,
                               int64_t scratch_bytes, double *out_seconds) {
    const int64_t elems = (int64_t)SIDE * SIDE, bytes = elems * sw_dtype_bytes(shape->in);
    void *a, *b, *c, *scratch = NULL;
    SW_TRY(sw_arena_take(arena, bytes, &a));
    SW_TRY(sw_arena_take(arena, bytes, &b));
    SW_TRY(sw_arena_take(arena, bytes, &c));
    if (scratch_bytes > 0)
        SW_TRY(sw_arena_take(arena, scratch_bytes, &scratch));
    fill(shape->in, a, elems);
    fill(shape->in, b, elems);
    const int64_t start_ns = sw_now_ns();
    *out_seconds = 1e9;
    do {
        const int64_t before_ns = sw_now_ns();
        SW_TRY(sw_gemm(stream, shape, a, b, NULL, c, scratch));
        SW_TRY(sw_stream_synchronize(stream));
        const double seconds = (double)sw_max_i64(1, sw_now_ns() - before_ns) * 1e-9;
        *out_seconds = seconds < *out_seconds ? seconds : *out_seconds;
    } while ((double)(sw_now_ns() - start_ns) * 1e-9 < COMPUTE_SECONDS);
    return SW_OK;
}

static sw_status measure_products(struct sw_device *device, sw_dtype type, double *out_seconds) {
    const struct sw_gemm shape = {.m = SIDE, .n = SIDE, .k = SIDE, .in = type, .out = type};
    struct sw_stream *stream = NULL;
    struct sw_arena *arena = NULL;
    int64_t scratch_bytes;
    sw_status status = SW_OK;
    SW_TRY(sw_device_prepare_gemm(device, &shape, &scratch_bytes));
    SW_TRY_GOTO(sw_stream_open(device, &stream), end);
    SW_TRY_GOTO(sw_arena_create("measurement",
                                3 * (int64_t)SIDE * SIDE * sw_dtype_bytes(type) + scratch_bytes +
                                    4 * (int64_t)SW_BUFFER_ALIGN_BYTES,
                                false, NULL, &arena),
                end);
    status = time_products(stream, &shape, arena, scratch_bytes, out_seconds);
end:
    sw_arena_destroy(arena);
    if (stream != NULL)
        sw_stream_close(stream);
    return status;
}

void sw_doctor_compute_rate(struct sw_doctor *doctor) {
    struct sw_device *device;
    double seconds = 0.0;
    sw_dtype type = SW_F32;
    sw_status status = sw_device_open("cpu", 0, &device);
    if (status == SW_OK) {
        type = type_of(device);
        status = measure_products(device, type, &seconds);
        sw_device_close(device);
    }
    if (status != SW_OK) {
        find_failure(doctor, status);
        return;
    }
    const double flops_per_s = 2.0 * SIDE * SIDE * SIDE / seconds;
    json_t *facts = json_pack("{s:s, s:f}", "precision", sw_dtype_name(type), "flops_per_s", flops_per_s);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "%.1f GFLOPS in %s matrix products", flops_per_s * 1e-9,
                   sw_dtype_name(type));
}
