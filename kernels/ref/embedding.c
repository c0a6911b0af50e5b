#include "kernels/ref/ref.h"

/* Returns a row's position in its document. */
static int64_t position_of(int64_t row, int64_t seq, const int32_t *document_start) {
    return row % seq - (document_start == NULL ? 0 : document_start[row]);
}

static sw_status embedding_forward(struct sw_stream *stream, const void *args) {
    const struct sw_embedding_forward *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->batch * op->seq; row++) {
        const int64_t at = sw_table_row(op->table_part, op->tokens[row]);
        const int64_t position = sw_table_row(op->positions_part, position_of(row, op->seq, op->document_start));
        for (int64_t col = 0; col < op->cols; col++) {
            float value = at < 0 ? 0.0f : sw_dtype_load(op->type, op->table, at * op->cols + col);
            if (op->positions != NULL && position >= 0)
                value += sw_dtype_load(op->type, op->positions, position * op->cols + col);
            sw_dtype_store(op->type, op->out, row * op->cols + col, value);
        }
    }
    return SW_OK;
}

static sw_status embedding_backward(struct sw_stream *stream, const void *args) {
    const struct sw_embedding_backward *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->batch * op->seq; row++) {
        const int64_t at = sw_table_row(op->table_part, op->tokens[row]);
        const int64_t position = sw_table_row(op->positions_part, position_of(row, op->seq, op->document_start));
        for (int64_t col = 0; col < op->cols; col++) {
            const float gradient = sw_dtype_load(op->type, op->d_out, row * op->cols + col);
            if (at >= 0)
                op->table_acc[at * op->cols + col] += gradient;
            if (op->positions_acc != NULL && position >= 0)
                op->positions_acc[position * op->cols + col] += gradient;
        }
    }
    return SW_OK;
}

void sw_ref_add_embedding(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_EMBEDDING_FORWARD] = embedding_forward;
    ops->op[SW_DEVICE_EMBEDDING_BACKWARD] = embedding_backward;
}
