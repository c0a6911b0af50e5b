#include "bench/kernels/products.h"

#include "core/rng.h"
#include "core/size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Calls in a row take about LEAST_SECONDS, and are at most MOST_CALLS. */
#define LEAST_SECONDS 5e-3
enum { MOST_CALLS = 1000 };
/* The best round counts, because other load of the machine says nothing about the device. The round before the first
 * touches the memory. */
enum { ROUNDS = 3 };

enum { A, B, BIAS, C, SCRATCH, OPERANDS = SW_BENCH_OPERANDS };
/* So many numbers are drawn, a prime number so that rows are not alike. */
enum { DRAWN_NUMBERS = 65521, SEED = 41 };

int64_t sw_bench_areas_bytes(const int64_t *bytes, int count) {
    int64_t all_bytes = 0;
    for (int i = 0; i < count; i++)
        all_bytes += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    return all_bytes;
}

sw_status sw_bench_areas_open(struct sw_device *device, const int64_t *bytes, int count, struct sw_memory **out,
                              void **areas) {
    SW_TRY(sw_memory_open(device, "operands", SW_MEMORY_DEVICE, sw_bench_areas_bytes(bytes, count), out));
    for (int i = 0; i < count; i++)
        areas[i] = (char *)sw_memory_base(*out) + sw_bench_areas_bytes(bytes, i);
    return SW_OK;
}

/* Finds the largest bytes of each operand. */
static sw_status size_operands(struct sw_device *device, const struct sw_model_product *products, int count,
                               int64_t bytes[OPERANDS]) {
    for (int o = 0; o < OPERANDS; o++)
        bytes[o] = 0;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *shape = &products[i].shape;
        const int64_t in = sw_dtype_bytes(shape->in), out = sw_dtype_bytes(shape->out);
        int64_t of[OPERANDS] = {[A] = sw_gemm_a_elems(shape) * in,
                                [B] = shape->k * shape->n * in,
                                [BIAS] = shape->bias ? shape->n * in : 0,
                                [C] = sw_gemm_c_elems(shape) * out};
        SW_TRY(sw_device_prepare_gemm(device, shape, &of[SCRATCH]));
        for (int o = 0; o < OPERANDS; o++)
            bytes[o] = sw_max_i64(bytes[o], of[o]);
    }
    return SW_OK;
}

sw_status sw_bench_products_bytes(struct sw_device *device, const struct sw_model_product *products, int count,
                                  int64_t *out_bytes) {
    int64_t bytes[OPERANDS];
    SW_TRY(size_operands(device, products, count, bytes));
    *out_bytes = sw_bench_areas_bytes(bytes, OPERANDS);
    return SW_OK;
}

/* Draws the first numbers and repeats them. */
sw_status sw_bench_fill_host(sw_dtype type, void *to, int64_t bytes) {
    const int64_t count = sw_min_i64(bytes / sw_dtype_bytes(type), DRAWN_NUMBERS);
    float *drawn = malloc((size_t)sw_max_i64(1, count) * sizeof *drawn);
    if (drawn == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the numbers of a bench's operands");
    sw_rng_normals(SEED, 0, 0, count, drawn);
    sw_dtype_round(type, drawn, count, to);
    free(drawn);
    for (int64_t done = count * sw_dtype_bytes(type); done > 0 && done < bytes; done *= 2)
        memcpy((char *)to + done, to, (size_t)sw_min_i64(done, bytes - done));
    return SW_OK;
}

sw_status sw_bench_fill(const struct sw_bench_products *products, sw_dtype type, void *to, int64_t bytes) {
    const int64_t staged_bytes = SW_MIB;
    struct sw_memory *staged;
    SW_TRY(sw_memory_open(products->device, "operands", SW_MEMORY_HOST, staged_bytes, &staged));
    sw_status status = sw_bench_fill_host(type, sw_memory_base(staged), staged_bytes);
    for (int64_t at = 0; status == SW_OK && at < bytes; at += staged_bytes)
        status = sw_copy_to_device(products->stream, (char *)to + at, sw_memory_base(staged),
                                   sw_min_i64(staged_bytes, bytes - at));
    if (status == SW_OK)
        status = sw_stream_synchronize(products->stream);
    sw_memory_close(staged);
    return status;
}

sw_status sw_bench_products_open(struct sw_device *device, const struct sw_model_product *products, int count,
                                 struct sw_bench_products *out) {
    static const int read[] = {A, B, BIAS};
    int64_t bytes[OPERANDS];
    *out = (struct sw_bench_products){.device = device};
    SW_TRY(sw_stream_open(device, &out->stream));
    SW_TRY(sw_event_open(device, &out->from));
    SW_TRY(sw_event_open(device, &out->to));
    SW_TRY(size_operands(device, products, count, bytes));
    SW_TRY(sw_bench_areas_open(device, bytes, OPERANDS, &out->memory, out->operand));
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        SW_TRY(sw_bench_fill(out, products[0].shape.in, out->operand[read[i]], bytes[read[i]]));
    return SW_OK;
}

void sw_bench_products_close(struct sw_bench_products *products) {
    sw_stream_close(products->stream);
    sw_event_close(products->from);
    sw_event_close(products->to);
    sw_memory_close(products->memory);
    *products = (struct sw_bench_products){0};
}

/* Measures the seconds of each of `count` calls in a row. */
static sw_status time_calls(struct sw_bench_products *products, sw_status (*run)(void *context), void *context,
                            int count, double *out_s) {
    int64_t elapsed_ns;
    SW_TRY(sw_event_record(products->from, products->stream));
    for (int i = 0; i < count; i++)
        SW_TRY(run(context));
    SW_TRY(sw_event_record(products->to, products->stream));
    SW_TRY(sw_event_wait(products->to));
    SW_TRY(sw_event_elapsed_ns(products->from, products->to, &elapsed_ns));
    *out_s = (double)sw_max_i64(1, elapsed_ns) * 1e-9 / count;
    return SW_OK;
}

sw_status sw_bench_time(struct sw_bench_products *products, sw_status (*run)(void *context), void *context,
                        double *out_s) {
    SW_TRY(time_calls(products, run, context, 1, out_s));
    if (!sw_device_info(products->device).asynchronous)
        return SW_OK;
    return time_calls(products, run, context, (int)fmin(MOST_CALLS, fmax(1.0, LEAST_SECONDS / *out_s)), out_s);
}

struct product {
    const struct sw_bench_products *products;
    const struct sw_gemm *shape;
};

static sw_status multiply(void *context) {
    const struct product *product = context;
    void *const *at = product->products->operand;
    return sw_gemm(product->products->stream, product->shape, at[A], at[B], product->shape->bias ? at[BIAS] : NULL,
                   at[C], at[SCRATCH]);
}

sw_status sw_bench_product_time(struct sw_bench_products *products, const struct sw_gemm *shape, double *out_s) {
    return sw_bench_time(products, multiply, &(struct product){.products = products, .shape = shape}, out_s);
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
