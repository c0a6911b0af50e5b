/* The fused update beside plain memory traffic of the same shape: per parameter 2 + 12 bytes read, 12 + 2 written
 * (bf16).
 *
 * The bound: an update cannot be faster than a loop that only moves its bytes. Both run in turn, so that what else the
 * machine does hits both; the figure is the median of the ratios of neighbouring runs. */
#include "core/clock.h"
#include "core/machine.h"
#include "core/size.h"
#include "kernels/device.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAIRS = 15, GRAINS = 2048, BYTES_PER_PARAMETER = 28 };

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

/* Adds one to every stream of the records, reads the gradients and writes the weights: the update's traffic and nothing
 * else. */
static void move_bytes(int threads, float *records, const sw_bf16 *grads, sw_bf16 *weights) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t g = 0; g < GRAINS; g++) {
        float *record = records + g * SW_RECORD_STREAMS * SW_GRAIN_ELEMS;
        for (int64_t i = 0; i < (int64_t)SW_RECORD_STREAMS * SW_GRAIN_ELEMS; i++)
            record[i] += 1.0f;
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            weights[g * SW_GRAIN_ELEMS + i] = (sw_bf16)(grads[g * SW_GRAIN_ELEMS + i] + 1);
    }
}

static sw_status measure(struct sw_stream *stream, int threads, float *records, sw_bf16 *grads, sw_bf16 *weights) {
    const struct sw_decay_run run = {.end = (int64_t)GRAINS * SW_GRAIN_ELEMS, .decay = true};
    struct sw_adamw adamw = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0f};
    const double bytes = (double)GRAINS * SW_GRAIN_ELEMS * BYTES_PER_PARAMETER;
    double update_gbs[PAIRS], plain_gbs[PAIRS], ratio[PAIRS];
    for (int pair = -1; pair < PAIRS; pair++) {
        adamw.step = pair + 2;
        const int64_t start_ns = sw_now_ns();
        SW_TRY(sw_update_adamw(stream, SW_BF16, &adamw, 0, GRAINS, &run, 1, grads, records, weights));
        const int64_t middle_ns = sw_now_ns();
        move_bytes(threads, records, grads, weights);
        const int64_t end_ns = sw_now_ns();
        if (pair < 0)
            continue; /* the first touches the pages */
        update_gbs[pair] = bytes / (double)(middle_ns - start_ns);
        plain_gbs[pair] = bytes / (double)(end_ns - middle_ns);
        ratio[pair] = update_gbs[pair] / plain_gbs[pair];
    }
    printf("update, bf16, %d threads: %.1f GB/s; the same bytes moved plainly: %.1f GB/s; ratio %.2f (median of %d "
           "pairs)\n",
           threads, median(update_gbs, PAIRS), median(plain_gbs, PAIRS), median(ratio, PAIRS), PAIRS);
    return SW_OK;
}

int main(void) {
    const int threads = sw_machine_cores();
    const size_t elems = (size_t)GRAINS * SW_GRAIN_ELEMS;
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    float *records = aligned_alloc(SW_BUFFER_ALIGN_BYTES, elems * SW_RECORD_STREAMS * sizeof *records);
    sw_bf16 *grads = aligned_alloc(SW_BUFFER_ALIGN_BYTES, elems * sizeof *grads);
    sw_bf16 *weights = aligned_alloc(SW_BUFFER_ALIGN_BYTES, elems * sizeof *weights);
    sw_status status = SW_OK;
    if (records == NULL || grads == NULL || weights == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "the bench needs 0.6 GB of memory"), end);
    for (size_t i = 0; i < elems; i++)
        grads[i] = sw_f32_to_bf16((float)(i % 977) * 1e-4f);
    for (size_t i = 0; i < elems * SW_RECORD_STREAMS; i++)
        records[i] = (float)(i % 1009) * 1e-3f;
    SW_TRY_GOTO(sw_device_open("cpu", threads, &device), end);
    SW_TRY_GOTO(sw_stream_open(device, &stream), end);
    status = measure(stream, threads, records, grads, weights);
end:
    if (status != SW_OK)
        fprintf(stderr, "bench_update: %s\n", sw_error_message(status));
    if (stream != NULL)
        sw_stream_close(stream);
    if (device != NULL)
        sw_device_close(device);
    free(records);
    free(grads);
    free(weights);
    return status == SW_OK ? 0 : 1;
}
