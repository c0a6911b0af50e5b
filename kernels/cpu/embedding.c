#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

/* Columns that one thread adds to. Threads divide columns, not rows, so the order of sums is that of rows. */
enum { COLUMN_TILE = 128 };

/* Returns a row's position in its document. */
static int64_t position_of(int64_t row, int64_t seq, const int32_t *document_start) {
    return row % seq - (document_start == NULL ? 0 : document_start[row]);
}

/* table_at, positions_at: where the rows begin; negative: another rank has them. */
SW_INLINE void forward_row(const sw_dtype type, int64_t cols, const void *table, int64_t table_at, float scale,
                           const void *positions, int64_t positions_at, void *out, int64_t out_at) {
    for (int64_t i = 0; i < cols; i += SW_LANES) {
        sw_vec sum = {0};
        if (table_at >= 0)
            sum = sw_load_up_to(type, table, table_at + i, cols - i, 0.0f) * scale;
        if (positions != NULL && positions_at >= 0)
            sum += sw_load_up_to(type, positions, positions_at + i, cols - i, 0.0f);
        sw_store_up_to(type, out, out_at + i, cols - i, sum);
    }
}

static void forward_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_embedding_forward *op = args;
    for (int64_t row = first; row < end; row++)
        SW_FOR_TYPE(forward_row, op->type, op->cols, op->table,
                    sw_table_row(op->table_part, op->tokens[row]) * op->cols, sw_embedding_scale(op->scale),
                    op->positions,
                    sw_table_row(op->positions_part, position_of(row, op->seq, op->document_start)) * op->cols, op->out,
                    row * op->cols);
}

static sw_status embedding_forward(struct sw_stream *stream, const void *args) {
    const struct sw_embedding_forward *op = args;
    sw_cpu_share(stream, op->batch * op->seq * op->cols >= SW_PARALLEL_MIN_ELEMS, op->batch * op->seq, forward_rows,
                 op);
    return SW_OK;
}

SW_INLINE void add_to(float *acc, int64_t count, sw_vec gradient) {
    sw_store_up_to(SW_F32, acc, 0, count, sw_load_up_to(SW_F32, acc, 0, count, 0.0f) + gradient);
}

/* Adds the columns [at, end) of one row. A NULL accumulator belongs to another rank. */
SW_INLINE void backward_row(const sw_dtype type, int64_t at, int64_t end, const void *d_out, int64_t row_at,
                            float scale, float *table_acc, float *positions_acc) {
    for (int64_t i = at; i < end; i += SW_LANES) {
        const sw_vec gradient = sw_load_up_to(type, d_out, row_at + i, end - i, 0.0f);
        if (table_acc != NULL)
            add_to(table_acc + i, end - i, gradient * scale);
        if (positions_acc != NULL)
            add_to(positions_acc + i, end - i, gradient);
    }
}

/* Goes over the rows for each tile of columns. */
static void backward_columns(const void *args, int64_t first, int64_t last, int thread) {
    (void)thread;
    const struct sw_embedding_backward *op = args;
    const int64_t rows = op->batch * op->seq;
    for (int64_t at = first * COLUMN_TILE; at < sw_min_i64(last * COLUMN_TILE, op->cols); at += COLUMN_TILE) {
        const int64_t end = sw_min_i64(op->cols, at + COLUMN_TILE);
        for (int64_t row = 0; row < rows; row++) {
            const int64_t to = sw_table_row(op->table_part, op->tokens[row]);
            const int64_t position = sw_table_row(op->positions_part, position_of(row, op->seq, op->document_start));
            SW_FOR_TYPE(backward_row, op->type, at, end, op->d_out, row * op->cols, sw_embedding_scale(op->scale),
                        to < 0 ? NULL : op->table_acc + to * op->cols,
                        op->positions_acc == NULL || position < 0 ? NULL : op->positions_acc + position * op->cols);
        }
    }
}

static sw_status embedding_backward(struct sw_stream *stream, const void *args) {
    const struct sw_embedding_backward *op = args;
    sw_cpu_share(stream, op->batch * op->seq * op->cols >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->cols, COLUMN_TILE),
                 backward_columns, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_embedding)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_EMBEDDING_FORWARD] = embedding_forward;
    ops->op[SW_DEVICE_EMBEDDING_BACKWARD] = embedding_backward;
}
