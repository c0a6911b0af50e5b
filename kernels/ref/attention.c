#include "core/size.h"
#include "kernels/ref/ref.h"

#include <math.h>

/* One query row of one head: its sequence, head and token, and where its vectors begin. */
struct row {
    int64_t first_row;        /* the first row of the sequence in k and v */
    int64_t token, first_key; /* its position; it sees the keys [first_key, token] */
    int64_t q_at, o_at, lse_at;
    int64_t kv_column;
    double slope; /* of ALiBi; 0: scores have no biases */
};

static int64_t first_key_of(const struct sw_attention *shape, int64_t batch, int64_t token) {
    const int64_t in_window = shape->window > 0 && token >= shape->window ? token - shape->window + 1 : 0;
    return shape->document_start == NULL
               ? in_window
               : sw_max_i64(in_window, shape->document_start[batch * shape->seq + token - shape->past]);
}

static struct row row_of(const struct sw_attention *shape, int64_t batch, int64_t head, int64_t query) {
    const int64_t row = batch * shape->seq + query, token = shape->past + query;
    const int64_t kv_head = head / (shape->heads / shape->kv_heads);
    return (struct row){
        .first_row = batch * (shape->past + shape->seq),
        .token = token,
        .first_key = first_key_of(shape, batch, token),
        .q_at = row * shape->q_stride + head * sw_attention_head_stride(shape),
        .o_at = row * shape->o_stride + head * shape->head_dim,
        .lse_at = (batch * shape->heads + head) * shape->seq + query,
        .kv_column = kv_head * sw_attention_head_stride(shape),
        .slope = shape->alibi_heads > 0 ? sw_alibi_slope(shape->alibi_heads, shape->alibi_first + head) : 0.0,
    };
}

static int64_t k_at(const struct sw_attention *shape, const struct row *row, int64_t key) {
    return (row->first_row + key) * shape->k_stride + row->kv_column;
}

static int64_t v_at(const struct sw_attention *shape, const struct row *row, int64_t key) {
    return (row->first_row + key) * shape->v_stride + row->kv_column;
}

static double dot(sw_dtype type, int64_t count, const void *a, int64_t a_at, const void *b, int64_t b_at) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)sw_dtype_load(type, a, a_at + i) * sw_dtype_load(type, b, b_at + i);
    return sum;
}

static double score(sw_dtype type, const struct sw_attention *shape, const struct row *row, const void *q,
                    const void *k, int64_t key) {
    return shape->scale * dot(type, shape->head_dim, q, row->q_at, k, k_at(shape, row, key)) -
           row->slope * (double)(row->token - key);
}

static double log_sum_exp_of(sw_dtype type, const struct sw_attention *shape, const struct row *row, const void *q,
                             const void *k) {
    double largest = -INFINITY, sum = 0.0;
    for (int64_t key = row->first_key; key <= row->token; key++)
        largest = fmax(largest, score(type, shape, row, q, k, key));
    for (int64_t key = row->first_key; key <= row->token; key++)
        sum += exp(score(type, shape, row, q, k, key) - largest);
    return largest + log(sum);
}

static void forward_row(sw_dtype type, const struct sw_attention *shape, const struct row *row, const void *q,
                        const void *k, const void *v, void *o, float *log_sum_exp) {
    double sum[SW_ATTENTION_MAX_HEAD_DIM] = {0};
    const double lse = log_sum_exp_of(type, shape, row, q, k);
    for (int64_t key = row->first_key; key <= row->token; key++) {
        const double p = exp(score(type, shape, row, q, k, key) - lse);
        for (int64_t i = 0; i < shape->head_dim; i++)
            sum[i] += p * sw_dtype_load(type, v, v_at(shape, row, key) + i);
    }
    for (int64_t i = 0; i < shape->head_dim; i++)
        sw_dtype_store(type, o, row->o_at + i, (float)sum[i]);
    log_sum_exp[row->lse_at] = (float)lse;
}

static sw_status attention_forward(struct sw_stream *stream, const void *args) {
    const struct sw_attention_forward *op = args;
    (void)stream;
    for (int64_t batch = 0; batch < op->shape->batch; batch++) {
        for (int64_t head = 0; head < op->shape->heads; head++) {
            for (int64_t query = 0; query < op->shape->seq; query++) {
                const struct row row = row_of(op->shape, batch, head, query);
                forward_row(op->type, op->shape, &row, op->q, op->k, op->v, op->o, op->log_sum_exp);
            }
        }
    }
    return SW_OK;
}

/* The tensors of a backward call. dk and dv are sums over many rows, so they are doubles in the scratch. */
struct backward {
    const void *q, *k, *v, *o, *d_o;
    const float *log_sum_exp;
    void *dq;
    double *dk, *dv; /* [seq, head_dim] of one key head */
};

static void backward_row(sw_dtype type, const struct sw_attention *shape, const struct row *row,
                         const struct backward *t) {
    const int64_t dim = shape->head_dim;
    double dq[SW_ATTENTION_MAX_HEAD_DIM] = {0};
    const double delta = dot(type, dim, t->o, row->o_at, t->d_o, row->o_at);
    for (int64_t key = row->first_key; key <= row->token; key++) {
        const double p = exp(score(type, shape, row, t->q, t->k, key) - t->log_sum_exp[row->lse_at]);
        const double dp = dot(type, dim, t->d_o, row->o_at, t->v, v_at(shape, row, key));
        const double ds = p * (dp - delta) * shape->scale;
        for (int64_t i = 0; i < dim; i++) {
            dq[i] += ds * sw_dtype_load(type, t->k, k_at(shape, row, key) + i);
            t->dk[key * dim + i] += ds * sw_dtype_load(type, t->q, row->q_at + i);
            t->dv[key * dim + i] += p * sw_dtype_load(type, t->d_o, row->o_at + i);
        }
    }
    for (int64_t i = 0; i < dim; i++)
        sw_dtype_store(type, t->dq, row->q_at + i, (float)dq[i]);
}

static void backward_kv_head(sw_dtype type, const struct sw_attention *shape, int64_t batch, int64_t kv_head,
                             const struct backward *t, void *dk, void *dv) {
    const int64_t group = shape->heads / shape->kv_heads;
    for (int64_t i = 0; i < shape->seq * shape->head_dim; i++)
        t->dk[i] = t->dv[i] = 0.0;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t token = 0; token < shape->seq; token++) {
            const struct row row = row_of(shape, batch, head, token);
            backward_row(type, shape, &row, t);
        }
    }
    const struct row first = row_of(shape, batch, kv_head * group, 0);
    for (int64_t key = 0; key < shape->seq; key++) {
        for (int64_t i = 0; i < shape->head_dim; i++) {
            sw_dtype_store(type, dk, k_at(shape, &first, key) + i, (float)t->dk[key * shape->head_dim + i]);
            sw_dtype_store(type, dv, v_at(shape, &first, key) + i, (float)t->dv[key * shape->head_dim + i]);
        }
    }
}

static sw_status attention_backward(struct sw_stream *stream, const void *args) {
    const struct sw_attention_backward *op = args;
    (void)stream;
    double *sums = op->scratch;
    const struct backward tensors = {.q = op->q,
                                     .k = op->k,
                                     .v = op->v,
                                     .o = op->o,
                                     .d_o = op->d_o,
                                     .log_sum_exp = op->log_sum_exp,
                                     .dq = op->dq,
                                     .dk = sums,
                                     .dv = sums + op->shape->seq * op->shape->head_dim};
    for (int64_t batch = 0; batch < op->shape->batch; batch++) {
        for (int64_t kv_head = 0; kv_head < op->shape->kv_heads; kv_head++)
            backward_kv_head(op->type, op->shape, batch, kv_head, &tensors, op->dk, op->dv);
    }
    return SW_OK;
}

/* One head of one token: where its part of o begins, and its place in log_sum_exp. */
struct head_of_token {
    int64_t o_at, lse_at, head;
};

static struct head_of_token head_of(const struct sw_attention *shape, int64_t index) {
    const int64_t row = index / shape->heads, head = index % shape->heads;
    return (struct head_of_token){.o_at = row * shape->o_stride + head * shape->head_dim,
                                  .lse_at = (row / shape->seq * shape->heads + head) * shape->seq + row % shape->seq,
                                  .head = head};
}

static sw_status sink_forward(struct sw_stream *stream, const void *args) {
    const struct sw_sink_forward *op = args;
    const struct sw_attention *shape = op->shape;
    (void)stream;
    for (int64_t i = 0; i < shape->batch * shape->seq * shape->heads; i++) {
        const struct head_of_token at = head_of(shape, i);
        const double sink = sw_dtype_load(op->type, op->sink, at.head), before = op->log_sum_exp[at.lse_at];
        const double after = (before > sink ? before : sink) + log1p(exp(-fabs(before - sink)));
        const double factor = exp(before - after);
        for (int64_t j = at.o_at; j < at.o_at + shape->head_dim; j++)
            sw_dtype_store(op->type, op->o, j, (float)(factor * sw_dtype_load(op->type, op->o, j)));
        op->log_sum_exp[at.lse_at] = (float)after;
    }
    return SW_OK;
}

static sw_status sink_backward(struct sw_stream *stream, const void *args) {
    const struct sw_sink_backward *op = args;
    const struct sw_attention *shape = op->shape;
    (void)stream;
    for (int64_t head = 0; head < shape->heads; head++) {
        double sum = 0.0;
        for (int64_t i = head; i < shape->batch * shape->seq * shape->heads; i += shape->heads) {
            const struct head_of_token at = head_of(shape, i);
            sum += exp((double)sw_dtype_load(op->type, op->sink, head) - op->log_sum_exp[at.lse_at]) *
                   dot(op->type, shape->head_dim, op->o, at.o_at, op->d_o, at.o_at);
        }
        op->acc[head] = (float)(op->acc[head] - sum);
    }
    return SW_OK;
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    (void)device;
    (void)type;
    return 2 * shape->seq * shape->head_dim * (int64_t)sizeof(double);
}

void sw_ref_add_attention(struct sw_device_ops *ops) {
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->op[SW_DEVICE_ATTENTION_FORWARD] = attention_forward;
    ops->op[SW_DEVICE_ATTENTION_BACKWARD] = attention_backward;
    ops->op[SW_DEVICE_SINK_FORWARD] = sink_forward;
    ops->op[SW_DEVICE_SINK_BACKWARD] = sink_backward;
}
