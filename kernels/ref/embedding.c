#include "kernels/ref/ref.h"

/* A row's position in its document. */
static int64_t position_of(int64_t row, int64_t seq, const int32_t *document_start) {
    return row % seq - (document_start == NULL ? 0 : document_start[row]);
}

static sw_status embedding_forward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                   const int32_t *tokens, const int32_t *document_start, const void *table,
                                   const void *positions, void *out) {
    (void)stream;
    for (int64_t row = 0; row < batch * seq; row++) {
        const int64_t position = position_of(row, seq, document_start);
        for (int64_t col = 0; col < cols; col++) {
            float value = sw_dtype_load(type, table, tokens[row] * cols + col);
            if (positions != NULL)
                value += sw_dtype_load(type, positions, position * cols + col);
            sw_dtype_store(type, out, row * cols + col, value);
        }
    }
    return SW_OK;
}

static sw_status embedding_backward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                    const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                    float *table_acc, float *positions_acc) {
    (void)stream;
    for (int64_t row = 0; row < batch * seq; row++) {
        const int64_t position = position_of(row, seq, document_start);
        for (int64_t col = 0; col < cols; col++) {
            const float gradient = sw_dtype_load(type, d_out, row * cols + col);
            table_acc[tokens[row] * cols + col] += gradient;
            if (positions_acc != NULL)
                positions_acc[position * cols + col] += gradient;
        }
    }
    return SW_OK;
}

void sw_ref_add_embedding(struct sw_device_ops *ops) {
    ops->embedding_forward = embedding_forward;
    ops->embedding_backward = embedding_backward;
}
