/* The Muon update of a GPU: passes over memory by kernels of our own, products by cuBLASLt. */
#include "kernels/cuda/muon.h"
#include "kernels/cuda/kernel_ops.h"

/* Queues kernels of the update. */
static sw_status launch(struct sw_stream *stream, sw_cuda_launcher *kernels, const void *args) {
    kernels(sw_cuda_stream_handle(stream), args);
    return sw_cuda_launched(stream, "update_muon");
}

static sw_status iterate(struct sw_stream *stream, const struct sw_cuda_muon *at, void *scratch) {
    const struct sw_muon_matrix *m = at->matrix;
    for (int i = 0; i < SW_MUON_ITERATIONS; i++) {
        SW_TRY(sw_gemm(stream, &m->square, at->x, at->x, NULL, at->sums, scratch));
        SW_TRY(launch(stream, sw_cuda_muon_square, at));
        SW_TRY(sw_gemm(stream, &m->fourth, at->square, at->square, NULL, at->sums, scratch));
        SW_TRY(launch(stream, sw_cuda_muon_polynomial, at));
        SW_TRY(sw_gemm(stream, &m->step, at->square, at->x, NULL, at->sums, scratch));
        if (i + 1 < SW_MUON_ITERATIONS)
            SW_TRY(launch(stream, sw_cuda_muon_next, at));
    }
    return SW_OK;
}

static sw_status update_matrix(struct sw_stream *stream, const struct sw_update_muon *op,
                               const struct sw_muon_tensor *tensor, int part) {
    const struct sw_muon_matrix matrix = sw_muon_matrix_of(op->muon, tensor, part);
    char *scratch = op->scratch;
    const struct sw_cuda_muon at = {.op = op,
                                    .matrix = &matrix,
                                    .sums = (float *)(void *)(scratch + matrix.sums_at),
                                    .x = scratch + matrix.x_at,
                                    .square = scratch + matrix.square_at,
                                    .norms = (double *)(void *)(scratch + matrix.norms_at)};
    SW_TRY(launch(stream, sw_cuda_muon_take, &at));
    SW_TRY(iterate(stream, &at, scratch + matrix.product_at));
    return launch(stream, sw_cuda_muon_give, &at);
}

sw_status sw_cuda_update_muon(struct sw_stream *stream, const struct sw_update_muon *op) {
    if (!op->muon->skip)
        SW_TRY(launch(stream, sw_cuda_muon_momentum, op));
    for (int64_t t = 0; t < op->tensors && !op->muon->skip; t++)
        for (int part = 0; part < op->tensor[t].parts; part++)
            SW_TRY(update_matrix(stream, op, &op->tensor[t], part));
    return op->weights != NULL ? launch(stream, sw_cuda_muon_weights, op) : SW_OK;
}
