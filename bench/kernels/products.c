#include "bench/kernels/products.h"

#include "core/size.h"

#include <math.h>

/* Calls in a row take about LEAST_SECONDS, and are at most MOST_CALLS. */
#define LEAST_SECONDS 5e-3
enum { MOST_CALLS = 1000 };
/* The best round counts, because other load of the machine says nothing of the device. The round before the first
 * touches the memory.
 */
enum { ROUNDS = 3 };
#define STAGED_BYTES (8 * SW_MIB)

enum { A, B, BIAS, C, SCRATCH, OPERANDS };

/* Finds the largest bytes of each operand, rounded up so that the next one is aligned, and their sum. */
static sw_status size_operands(struct sw_device *device, const struct sw_model_product *products, int count,
                               int64_t bytes[OPERANDS], int64_t *out_all_bytes) {
    *out_all_bytes = 0;
    for (int o = 0; o < OPERANDS; o++)
        bytes[o] = 0;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *shape = &products[i].shape;
        const int64_t in = sw_dtype_bytes(shape->in), out = sw_dtype_bytes(shape->out);
        int64_t of[OPERANDS] = {[A] = shape->m * shape->k * in,
                                [B] = shape->k * shape->n * in,
                                [BIAS] = shape->bias ? shape->n * in : 0,
                                [C] = shape->m * shape->n * out};
        SW_TRY(sw_device_prepare_gemm(device, shape, &of[SCRATCH]));
        for (int o = 0; o < OPERANDS; o++)
            bytes[o] = sw_max_i64(bytes[o], sw_round_up(of[o], SW_BUFFER_ALIGN_BYTES));
    }
    for (int o = 0; o < OPERANDS; o++)
        *out_all_bytes += bytes[o];
    return SW_OK;
}

sw_status sw_bench_products_bytes(struct sw_device *device, const struct sw_model_product *products, int count,
                                  int64_t *out_bytes) {
    int64_t bytes[OPERANDS];
    return size_operands(device, products, count, bytes, out_bytes);
}

/* Fills an operand with numbers of both signs: products of zeros may be faster than real ones. */
static sw_status fill(struct sw_stream *stream, struct sw_memory *staged, sw_dtype type, void *to, int64_t bytes) {
    enum { PERIOD = 101, MIDDLE = 50 };
    const int64_t staged_bytes = sw_memory_bytes(staged);
    for (int64_t i = 0; i < staged_bytes / sw_dtype_bytes(type); i++)
        sw_dtype_store(type, sw_memory_base(staged), i, (float)(i % PERIOD - MIDDLE) * 1e-4f);
    for (int64_t at = 0; at < bytes; at += staged_bytes)
        SW_TRY(
            sw_copy_to_device(stream, (char *)to + at, sw_memory_base(staged), sw_min_i64(staged_bytes, bytes - at)));
    return sw_stream_synchronize(stream);
}

static sw_status open_operands(struct sw_bench_products *p, struct sw_memory *staged,
                               const struct sw_model_product *products, int count) {
    void **at[OPERANDS] = {[A] = &p->a, [B] = &p->b, [BIAS] = &p->bias, [C] = &p->c, [SCRATCH] = &p->scratch};
    int64_t bytes[OPERANDS], all_bytes, taken_bytes = 0;
    SW_TRY(size_operands(p->device, products, count, bytes, &all_bytes));
    SW_TRY(sw_memory_open(p->device, "matrix products", SW_MEMORY_DEVICE, all_bytes, &p->memory));
    for (int o = 0; o < OPERANDS; o++) {
        *at[o] = (char *)sw_memory_base(p->memory) + taken_bytes;
        taken_bytes += bytes[o];
    }
    const sw_dtype type = products[0].shape.in;
    SW_TRY(fill(p->stream, staged, type, p->a, bytes[A]));
    SW_TRY(fill(p->stream, staged, type, p->b, bytes[B]));
    return fill(p->stream, staged, type, p->bias, bytes[BIAS]);
}

sw_status sw_bench_products_open(struct sw_device *device, const struct sw_model_product *products, int count,
                                 struct sw_bench_products *out) {
    struct sw_memory *staged;
    *out = (struct sw_bench_products){.device = device};
    SW_TRY(sw_stream_open(device, &out->stream));
    SW_TRY(sw_event_open(device, &out->from));
    SW_TRY(sw_event_open(device, &out->to));
    SW_TRY(sw_memory_open(device, "matrix products", SW_MEMORY_HOST, STAGED_BYTES, &staged));
    const sw_status status = open_operands(out, staged, products, count);
    sw_memory_close(staged);
    return status;
}

void sw_bench_products_close(struct sw_bench_products *products) {
    sw_stream_close(products->stream);
    sw_event_close(products->from);
    sw_event_close(products->to);
    sw_memory_close(products->memory);
    *products = (struct sw_bench_products){0};
}

static sw_status run(struct sw_bench_products *p, const struct sw_gemm *shape, int calls, double *out_s) {
    int64_t elapsed_ns;
    SW_TRY(sw_event_record(p->from, p->stream));
    for (int i = 0; i < calls; i++)
        SW_TRY(sw_gemm(p->stream, shape, p->a, p->b, shape->bias ? p->bias : NULL, p->c, p->scratch));
    SW_TRY(sw_event_record(p->to, p->stream));
    SW_TRY(sw_event_wait(p->to));
    SW_TRY(sw_event_elapsed_ns(p->from, p->to, &elapsed_ns));
    *out_s = (double)sw_max_i64(1, elapsed_ns) * 1e-9 / calls;
    return SW_OK;
}

sw_status sw_bench_product_time(struct sw_bench_products *products, const struct sw_gemm *shape, double *out_s) {
    SW_TRY(run(products, shape, 1, out_s));
    if (!sw_device_info(products->device).asynchronous)
        return SW_OK;
    return run(products, shape, (int)fmin(MOST_CALLS, fmax(1.0, LEAST_SECONDS / *out_s)), out_s);
}

sw_status sw_bench_products_rate(struct sw_bench_products *products, const struct sw_model_product *all, int count,
                                 double *out_flops_per_s) {
    double seconds = 0.0, flops = 0.0;
    for (int i = 0; i < count; i++) {
        double least_s = INFINITY;
        for (int round = -1; round < ROUNDS; round++) {
            double once_s;
            SW_TRY(sw_bench_product_time(products, &all[i].shape, &once_s));
            least_s = round < 0 ? least_s : fmin(least_s, once_s);
        }
        seconds += least_s * (double)all[i].times;
        flops += sw_gemm_flops(&all[i].shape) * (double)all[i].times;
    }
    *out_flops_per_s = flops / seconds;
    return SW_OK;
}
