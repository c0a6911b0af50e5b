/* Our matrix products beside oneDNN called directly, on the shapes of a GPT-2 124M block at 2,048 rows: forward with
 * bias, gradient of the input, gradient of the weights added to fp32.
 *
 * The bounds: oneDNN with the same row-major operands, and oneDNN with operands that already lie in the layouts that it
 * chose, which a training step would have to make first. All run in turn; a figure is the median of the ratios of
 * neighbouring runs. */
#include "bench/median.h"
#include "bench/onednn.h"
#include "core/clock.h"
#include "core/machine.h"
#include "core/size.h"
#include "kernels/device.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 9 };
static const int64_t ROWS = 2048, HIDDEN = 768, LARGEST_DIM = 3072;
enum { OURS, SAME_LAYOUTS, OWN_LAYOUTS, CONTENDERS };

/* The operands of any of the products, and what is left of `scratch`. */
struct space {
    void *a, *b, *bias, *c, *scratch;
    int64_t scratch_bytes;
};

/* Everything that one shape needs. */
struct race {
    struct sw_stream *stream;
    const struct sw_gemm *shape;
    const struct space *space;
    struct onednn_product *direct[CONTENDERS];
};

static sw_status run(const struct race *race, int who) {
    const struct space *s = race->space;
    if (who == OURS)
        return sw_gemm(race->stream, race->shape, s->a, s->b, race->shape->bias ? s->bias : NULL, s->c, s->scratch);
    return onednn_product_run(race->direct[who]);
}

/* Seconds of one run of each, and the totals over shapes of the medians. */
static sw_status measure(const struct race *race, double total_s[CONTENDERS]) {
    double taken_s[CONTENDERS][ROUNDS], ratio[CONTENDERS][ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        for (int who = 0; who < CONTENDERS; who++) {
            const int64_t start_ns = sw_now_ns();
            SW_TRY(run(race, who));
            if (round >= 0) /* the first touches the pages */
                taken_s[who][round] = (double)(sw_now_ns() - start_ns) * 1e-9;
        }
        for (int who = 1; round >= 0 && who < CONTENDERS; who++)
            ratio[who][round] = taken_s[who][round] / taken_s[OURS][round];
    }
    const struct sw_gemm *g = race->shape;
    const double gflop = 2e-9 * (double)g->m * (double)g->n * (double)g->k;
    printf("  %4lld x %4lld x %4lld %c%c%s%s", (long long)g->m, (long long)g->n, (long long)g->k,
           g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->bias ? " bias" : "     ",
           g->accumulate ? " sum" : "    ");
    for (int who = 0; who < CONTENDERS; who++) {
        const double middle_s = sw_median(taken_s[who], ROUNDS);
        total_s[who] += middle_s;
        printf(" %8.0f", gflop / middle_s);
    }
    printf(" %8.2f %8.2f\n", sw_median(ratio[SAME_LAYOUTS], ROUNDS), sw_median(ratio[OWN_LAYOUTS], ROUNDS));
    return SW_OK;
}

static sw_status one_shape(struct sw_stream *stream, const struct sw_gemm *shape, const struct space *space,
                           double total_s[CONTENDERS]) {
    struct race race = {.stream = stream, .shape = shape, .space = space};
    sw_status status = SW_OK;
    SW_TRY_GOTO(onednn_product_open(shape, false, &race.direct[SAME_LAYOUTS]), out);
    SW_TRY_GOTO(onednn_product_open(shape, true, &race.direct[OWN_LAYOUTS]), out);
    status = measure(&race, total_s);
out:
    onednn_product_close(race.direct[SAME_LAYOUTS]);
    onednn_product_close(race.direct[OWN_LAYOUTS]);
    return status;
}

enum { LAYERS = 4, PRODUCTS = 3 };

/* What the training of a block multiplies. */
static void block_shapes(sw_dtype type, struct sw_gemm shapes[LAYERS][PRODUCTS]) {
    const int64_t layers[LAYERS][2] = {
        {HIDDEN, 3 * HIDDEN}, {HIDDEN, HIDDEN}, {HIDDEN, 4 * HIDDEN}, {4 * HIDDEN, HIDDEN}};
    for (int i = 0; i < LAYERS; i++) {
        const int64_t in = layers[i][0], out = layers[i][1];
        struct sw_gemm *of_layer = shapes[i];
        of_layer[0] = (struct sw_gemm){.m = ROWS, .n = out, .k = in, .bias = true, .in = type, .out = type};
        of_layer[1] = (struct sw_gemm){.m = ROWS, .n = in, .k = out, .transpose_b = true, .in = type, .out = type};
        of_layer[2] = (struct sw_gemm){
            .m = in, .n = out, .k = ROWS, .transpose_a = true, .accumulate = true, .in = type, .out = SW_F32};
    }
}

/* All shapes are prepared first, because the scratch must hold the largest. */
static sw_status one_type(struct sw_device *device, struct sw_stream *stream, sw_dtype type, struct space *space) {
    struct sw_gemm shapes[LAYERS][PRODUCTS];
    double total_s[CONTENDERS] = {0};
    block_shapes(type, shapes);
    for (int i = 0; i < LAYERS * PRODUCTS; i++) {
        int64_t bytes = 0;
        SW_TRY(sw_device_prepare_gemm(device, &shapes[i / PRODUCTS][i % PRODUCTS], &bytes));
        space->scratch_bytes = sw_max_i64(space->scratch_bytes, bytes);
    }
    free(space->scratch);
    space->scratch =
        aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)sw_max_i64(space->scratch_bytes, SW_BUFFER_ALIGN_BYTES));
    if (space->scratch == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the scratch of a matrix product");
    printf("%s, %d threads: Gflop/s of ours, of oneDNN with the same operands, with its own layouts; ours to each "
           "(median of %d)\n",
           sw_dtype_name(type), sw_device_info(device).threads, ROUNDS);
    for (int i = 0; i < LAYERS * PRODUCTS; i++)
        SW_TRY(one_shape(stream, &shapes[i / PRODUCTS][i % PRODUCTS], space, total_s));
    printf("  the whole block: %.2f of oneDNN with the same operands, %.2f of oneDNN with its own layouts\n",
           total_s[SAME_LAYOUTS] / total_s[OURS], total_s[OWN_LAYOUTS] / total_s[OURS]);
    return SW_OK;
}

/* A buffer for the largest operand of the larger type, with small numbers in every type. */
static void *operand(void) {
    const int64_t elems = LARGEST_DIM * LARGEST_DIM;
    float *data = aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)elems * sizeof *data);
    for (int64_t i = 0; data != NULL && i < 2 * elems; i++)
        ((sw_bf16 *)data)[i] = sw_f32_to_bf16((float)(i % 101) * 1e-4f);
    return data;
}

int main(void) {
    const int threads = sw_machine_cores();
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    struct space space = {.a = operand(), .b = operand(), .bias = operand(), .c = operand()};
    sw_status status = SW_OK;
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    if (space.a == NULL || space.b == NULL || space.bias == NULL || space.c == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "the bench needs 0.3 GB of memory"), end);
    SW_TRY_GOTO(sw_device_open("cpu", threads, &device), end);
    SW_TRY_GOTO(sw_stream_open(device, &stream), end);
    SW_TRY_GOTO(one_type(device, stream, SW_BF16, &space), end);
    SW_TRY_GOTO(one_type(device, stream, SW_F32, &space), end);
end:
    if (status != SW_OK)
        fprintf(stderr, "bench_gemm: %s\n", sw_error_message(status));
    if (stream != NULL)
        sw_stream_close(stream);
    sw_device_close(device);
    free(space.a);
    free(space.b);
    free(space.bias);
    free(space.c);
    free(space.scratch);
    return status == SW_OK ? 0 : 1;
}
