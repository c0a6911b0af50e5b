/* Measures memory and arithmetic. */
#include "cli/doctor.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/size.h"
#include "kernels/device.h"
#include "offload/simulate/measure.h"

/* A product of a block of GPT-2 124M on a few hundred tokens, short enough that other programs leave some of its turns
 * alone, and the seconds for which it is repeated in turn in each precision. */
enum { ROWS = 512, COLUMNS = 768, DEPTH = 768 };
enum { CHUNK_GRAINS = 16, RING_CHUNKS = 8 };
#define COMPUTE_SECONDS 0.8
/* Precisions whose rates differ by less are called as fast as each other. */
#define SAME_RATE 0.1

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

/* The product in one precision. */
struct product {
    struct sw_gemm shape;
    int64_t scratch_bytes;
    void *a, *b, *c, *scratch;
    double flops_per_s; /* at best */
};

static sw_status take_operands(struct product *product, struct sw_arena *arena) {
    const int64_t a = (int64_t)ROWS * DEPTH, b = (int64_t)DEPTH * COLUMNS, c = (int64_t)ROWS * COLUMNS;
    const int64_t bytes = sw_dtype_bytes(product->shape.in);
    SW_TRY(sw_arena_take(arena, a * bytes, &product->a));
    SW_TRY(sw_arena_take(arena, b * bytes, &product->b));
    SW_TRY(sw_arena_take(arena, c * bytes, &product->c));
    if (product->scratch_bytes > 0)
        SW_TRY(sw_arena_take(arena, product->scratch_bytes, &product->scratch));
    fill(product->shape.in, product->a, a);
    fill(product->shape.in, product->b, b);
    return SW_OK;
}

static sw_status time_product(struct sw_stream *stream, struct product *product) {
    const int64_t before_ns = sw_now_ns();
    SW_TRY(sw_gemm(stream, &product->shape, product->a, product->b, NULL, product->c, product->scratch));
    SW_TRY(sw_stream_synchronize(stream));
    const double seconds = (double)sw_max_i64(1, sw_now_ns() - before_ns) * 1e-9;
    const double flops_per_s = 2.0 * ROWS * COLUMNS * DEPTH / seconds;
    product->flops_per_s = flops_per_s > product->flops_per_s ? flops_per_s : product->flops_per_s;
    return SW_OK;
}

/* Takes turns and keeps the best of each precision, as other load of the machine slows whichever has its turn. */
static sw_status time_in_turn(struct sw_stream *stream, struct product *products, int count) {
    const int64_t start_ns = sw_now_ns();
    do {
        for (int i = 0; i < count; i++)
            SW_TRY(time_product(stream, &products[i]));
    } while ((double)(sw_now_ns() - start_ns) * 1e-9 < COMPUTE_SECONDS);
    return SW_OK;
}

static sw_status measure_products(struct sw_device *device, struct product *products, int count) {
    struct sw_stream *stream = NULL;
    struct sw_arena *arena = NULL;
    int64_t bytes = 0;
    sw_status status = SW_OK;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *shape = &products[i].shape;
        SW_TRY(sw_device_prepare_gemm(device, shape, &products[i].scratch_bytes));
        bytes += (shape->m * shape->k + shape->k * shape->n + shape->m * shape->n) * sw_dtype_bytes(shape->in) +
                 products[i].scratch_bytes + 4 * (int64_t)SW_BUFFER_ALIGN_BYTES;
    }
    SW_TRY_GOTO(sw_stream_open(device, &stream), end);
    SW_TRY_GOTO(sw_arena_create("measurement", bytes, false, NULL, &arena), end);
    for (int i = 0; i < count; i++)
        SW_TRY_GOTO(take_operands(&products[i], arena), end);
    status = time_in_turn(stream, products, count);
end:
    sw_arena_destroy(arena);
    if (stream != NULL)
        sw_stream_close(stream);
    return status;
}

/* Where a GPU trains, the processor's products decide nothing. */
static bool trains_on_gpu(void) {
    struct sw_device *device;
    if (sw_device_open("cuda", 0, &device) != SW_OK) {
        sw_error_clear();
        return false;
    }
    sw_device_close(device);
    return true;
}

static void find_products(struct sw_doctor *doctor, sw_dtype type, double bf16, double fp32) {
    const bool same = bf16 < fp32 * (1 + SAME_RATE) && fp32 < bf16 * (1 + SAME_RATE), gpu = trains_on_gpu();
    const char *faster = gpu || same ? NULL : bf16 > fp32 ? "bf16" : "fp32";
    const char *advice = gpu           ? " on the processor"
                         : same        ? ": as fast as each other here, and bf16 halves weights and activations"
                         : bf16 > fp32 ? ": --precision bf16 is faster here, and halves weights and activations"
                                       : ": --precision fp32 is faster here, bf16 halves weights and activations";
    json_t *facts =
        json_pack("{s:s, s:f, s:f, s:f, s:s?}", "precision", sw_dtype_name(type), "flops_per_s",
                  type == SW_BF16 ? bf16 : fp32, "bf16_flops_per_s", bf16, "fp32_flops_per_s", fp32, "faster", faster);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "fp32 products %.1f GFLOPS, bf16 %.1f GFLOPS%s",
                   fp32 * 1e-9, bf16 * 1e-9, advice);
}

void sw_doctor_compute_rate(struct sw_doctor *doctor) {
    enum { BF16, FP32, PRECISIONS };
    const struct sw_gemm shape = {.m = ROWS, .n = COLUMNS, .k = DEPTH};
    struct product products[PRECISIONS] = {{.shape = shape}, {.shape = shape}};
    products[BF16].shape.in = products[BF16].shape.out = SW_BF16;
    products[FP32].shape.in = products[FP32].shape.out = SW_F32;
    struct sw_device *device;
    sw_dtype type = SW_F32;
    sw_status status = sw_device_open("cpu", 0, &device);
    if (status == SW_OK) {
        type = type_of(device);
        status = measure_products(device, products, PRECISIONS);
        sw_device_close(device);
    }
    if (status == SW_OK)
        find_products(doctor, type, products[BF16].flops_per_s, products[FP32].flops_per_s);
    else
        find_failure(doctor, status);
}
