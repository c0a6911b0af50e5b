#include "kernels/ref/ref.h"

#include <math.h>

/* Returns whether expert i, with logit a, comes before expert j, with logit b. */
static bool before(float a, int64_t i, float b, int64_t j) {
    if (isnan(a) != isnan(b))
        return isnan(b);
    return isnan(a) || a == b ? i < j : a > b;
}

/* Finds the first expert of a row after the given one, whose index is -1 for the very first. */
static int64_t next_expert(sw_dtype type, const void *logits, int64_t at, int64_t experts, int64_t last) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; e++) {
        const float logit = sw_dtype_load(type, logits, at + e);
        if (last >= 0 && !before(sw_dtype_load(type, logits, at + last), last, logit, e))
            continue;
        if (best < 0 || before(logit, e, sw_dtype_load(type, logits, at + best), best))
            best = e;
    }
    return best;
}

/* Returns the sum of exp(logit - largest) over the experts that the softmax is over; NaN if the row has a NaN. */
static double denominator(const struct sw_routing *shape, sw_dtype type, const void *logits, int64_t at,
                          const int32_t *expert) {
    const double largest = sw_dtype_load(type, logits, at + expert[0]);
    double all = 0.0, chosen = 0.0;
    for (int64_t e = 0; e < shape->experts; e++)
        all += exp(sw_dtype_load(type, logits, at + e) - largest);
    for (int64_t slot = 0; slot < shape->chosen; slot++)
        chosen += exp(sw_dtype_load(type, logits, at + expert[slot]) - largest);
    return isnan(all) || sw_routing_spans_all(shape) ? all : chosen;
}

static sw_status route_forward(struct sw_stream *stream, const void *args) {
    const struct sw_route_forward *op = args;
    const struct sw_routing *s = op->shape;
    (void)stream;
    for (int64_t row = 0; row < s->rows; row++) {
        const int64_t at = row * s->experts;
        int32_t *expert = op->expert + row * s->chosen;
        for (int64_t slot = 0; slot < s->chosen; slot++)
            expert[slot] =
                (int32_t)next_expert(op->type, op->logits, at, s->experts, slot == 0 ? -1 : expert[slot - 1]);
        const double sum = denominator(s, op->type, op->logits, at, expert);
        const double largest = sw_dtype_load(op->type, op->logits, at + expert[0]);
        for (int64_t slot = 0; slot < s->chosen; slot++) {
            const double logit = sw_dtype_load(op->type, op->logits, at + expert[slot]);
            op->weight[row * s->chosen + slot] = (float)(exp(logit - largest) / sum);
        }
    }
    return SW_OK;
}

/* The softmax of a row over all experts. */
struct softmax {
    double largest, sum;
};

static struct softmax softmax_of(const struct sw_routing *shape, sw_dtype type, const void *logits, int64_t at) {
    struct softmax softmax = {.largest = -INFINITY};
    for (int64_t e = 0; e < shape->experts; e++)
        softmax.largest = fmax(softmax.largest, sw_dtype_load(type, logits, at + e));
    for (int64_t e = 0; e < shape->experts; e++)
        softmax.sum += exp(sw_dtype_load(type, logits, at + e) - softmax.largest);
    return softmax;
}

static double probability(const struct softmax *softmax, sw_dtype type, const void *logits, int64_t at) {
    return exp(sw_dtype_load(type, logits, at) - softmax->largest) / softmax->sum;
}

static double log_sum(const struct softmax *softmax) {
    return softmax->largest + log(softmax->sum);
}

/* Adds the gradients of the balance loss and the z-loss to those at a row's logits. */
static void add_losses(const struct sw_route_backward *op, int64_t at, double *gradient) {
    const struct softmax softmax = softmax_of(op->shape, op->type, op->logits, at);
    double average = 0.0;
    for (int64_t e = 0; op->count != NULL && e < op->shape->experts; e++)
        average += probability(&softmax, op->type, op->logits, at + e) * op->count[e];
    for (int64_t e = 0; e < op->shape->experts; e++) {
        const double p = probability(&softmax, op->type, op->logits, at + e);
        const double above = op->count != NULL ? op->count[e] - average : 0.0;
        gradient[e] += p * (op->balance * above + op->z * 2.0 * log_sum(&softmax));
    }
}

/* With p = softmax(logits) over all experts or over the chosen ones, and g = d_weight, or 0 for an expert that is not
 * chosen, d_logits = p·(g - the sum of p·g). */
static sw_status route_backward(struct sw_stream *stream, const void *args) {
    const struct sw_route_backward *op = args;
    const struct sw_routing *s = op->shape;
    double gradient[SW_MOST_EXPERTS];
    (void)stream;
    for (int64_t row = 0; row < s->rows; row++) {
        const int64_t at = row * s->experts;
        const int32_t *expert = op->expert + row * s->chosen;
        const float *d_weight = op->d_weight + row * s->chosen;
        const double sum = denominator(s, op->type, op->logits, at, expert);
        const double largest = sw_dtype_load(op->type, op->logits, at + expert[0]);
        double weighted = 0.0;
        for (int64_t slot = 0; slot < s->chosen; slot++)
            weighted += exp(sw_dtype_load(op->type, op->logits, at + expert[slot]) - largest) / sum * d_weight[slot];
        for (int64_t e = 0; e < s->experts; e++) {
            double of_weight = 0.0;
            bool counts = sw_routing_spans_all(s);
            for (int64_t slot = 0; slot < s->chosen; slot++)
                if (expert[slot] == e) {
                    of_weight = d_weight[slot];
                    counts = true;
                }
            const double share = exp(sw_dtype_load(op->type, op->logits, at + e) - largest) / sum;
            gradient[e] = counts ? share * (of_weight - weighted) : 0.0;
        }
        if (op->count != NULL || op->z != 0.0)
            add_losses(op, at, gradient);
        for (int64_t e = 0; e < s->experts; e++)
            sw_dtype_store(op->type, op->d_logits, at + e, (float)gradient[e]);
    }
    return SW_OK;
}

/* Adds the counts of a layer, and its sums over rows. */
static void tally_rows(const struct sw_tally_routing *op) {
    const int64_t experts = op->shape->experts;
    for (int64_t e = 0; op->first_layer && e <= experts; e++)
        op->sum[e] = 0.0;
    for (int64_t row = 0; row < op->shape->rows; row++) {
        const struct softmax softmax = softmax_of(op->shape, op->type, op->logits, row * experts);
        for (int64_t e = 0; e < experts; e++)
            op->sum[e] += probability(&softmax, op->type, op->logits, row * experts + e);
        op->sum[experts] += log_sum(&softmax) * log_sum(&softmax);
    }
    for (int64_t e = 0; e < experts; e++)
        op->count[e] = (op->first_layer ? 0.0 : op->count[e]) + (op->offset[e + 1] - op->offset[e]);
}

static sw_status tally_routing(struct sw_stream *stream, const void *args) {
    const struct sw_tally_routing *op = args;
    (void)stream;
    for (int64_t e = 0; e < op->shape->experts; e++)
        op->routed[e] = (op->first_micro ? 0.0 : op->routed[e]) + (op->offset[e + 1] - op->offset[e]);
    if (op->count == NULL)
        return SW_OK;
    tally_rows(op);
    if (op->last_layer)
        sw_tally_losses(op);
    return SW_OK;
}

static sw_status order_by_expert(struct sw_stream *stream, const void *args) {
    const struct sw_order_by_expert *op = args;
    int32_t used = 0;
    (void)stream;
    for (int64_t e = 0; e < op->experts; e++) {
        op->offset[e] = used;
        for (int64_t pair = 0; pair < op->rows * op->chosen; pair++)
            if (op->expert[pair] == e) {
                op->source[used] = (int32_t)pair;
                op->place[pair] = used++;
            }
    }
    op->offset[op->experts] = used;
    return SW_OK;
}

static sw_status permute_rows(struct sw_stream *stream, const void *args) {
    const struct sw_permute_rows *op = args;
    (void)stream;
    for (int64_t i = sw_first_row(&op->run); i < sw_end_row(&op->run, op->rows * op->chosen); i++) {
        const int64_t from = op->source[i] / op->chosen * op->cols;
        for (int64_t col = 0; col < op->cols; col++)
            sw_dtype_store(op->type, op->y, i * op->cols + col, sw_dtype_load(op->type, op->x, from + col));
    }
    return SW_OK;
}

/* Returns the place of a row's pair that comes after the place `last`, or -1. */
static int64_t next_place(const struct sw_unpermute_rows *op, int64_t row, int64_t last) {
    int64_t best = -1;
    for (int64_t slot = 0; slot < op->chosen; slot++) {
        const int64_t place = op->place[row * op->chosen + slot];
        if (place < sw_first_row(&op->run) || place >= sw_end_row(&op->run, op->rows * op->chosen))
            continue;
        if (op->falling ? place < last && place > best : place > last && (best < 0 || place < best))
            best = place;
    }
    return best;
}

static sw_status unpermute_rows(struct sw_stream *stream, const void *args) {
    const struct sw_unpermute_rows *op = args;
    const int64_t none = op->falling ? INT64_MAX : -1;
    (void)stream;
    for (int64_t at = 0; at < op->rows * op->cols; at++) {
        const int64_t row = at / op->cols, col = at % op->cols;
        const float addend = op->addend == NULL ? 0.0f : sw_dtype_load(op->type, op->addend, at);
        float sum = op->before != NULL ? op->before[at] : op->falling ? 0.0f : addend;
        for (int64_t place = next_place(op, row, none); place >= 0; place = next_place(op, row, place))
            sum += sw_dtype_load(op->type, op->x, place * op->cols + col);
        if (op->falling && op->addend != NULL)
            sum += addend;
        if (op->after != NULL)
            op->after[at] = sum;
        else
            sw_dtype_store(op->type, op->y, at, sum);
    }
    return SW_OK;
}

static sw_status scale_rows(struct sw_stream *stream, const void *args) {
    const struct sw_scale_rows *op = args;
    (void)stream;
    for (int64_t at = sw_first_row(&op->run) * op->cols; at < sw_end_row(&op->run, op->rows) * op->cols; at++)
        sw_dtype_store(op->type, op->y, at, op->weight[op->source[at / op->cols]] * sw_dtype_load(op->type, op->x, at));
    return SW_OK;
}

static sw_status scale_rows_backward(struct sw_stream *stream, const void *args) {
    const struct sw_scale_rows_backward *op = args;
    (void)stream;
    for (int64_t row = sw_first_row(&op->run); row < sw_end_row(&op->run, op->rows); row++) {
        const int32_t pair = op->source[row];
        double sum = 0.0;
        for (int64_t at = row * op->cols; at < (row + 1) * op->cols; at++) {
            const float dy = sw_dtype_load(op->type, op->dy, at);
            sum += (double)dy * sw_dtype_load(op->type, op->x, at);
            sw_dtype_store(op->type, op->dx, at, op->weight[pair] * dy);
        }
        op->d_weight[pair] = (float)sum;
    }
    return SW_OK;
}

static sw_status prepare_grouped_gemm(struct sw_device *device, const struct sw_grouped_gemm *shape,
                                      int64_t *out_scratch_bytes) {
    (void)device;
    (void)shape;
    *out_scratch_bytes = 0;
    return SW_OK;
}

/* Multiplies one row by the matrix of an expert. */
static void multiply_row(const struct sw_grouped_product *op, int64_t e, int64_t row) {
    const struct sw_grouped_gemm *s = op->shape;
    const int64_t a_row = row * sw_grouped_a_stride(s), c_row = row * sw_grouped_c_stride(s);
    for (int64_t col = 0; col < s->n; col++) {
        double sum = s->bias ? sw_dtype_load(s->in, op->bias, e * s->bias_stride + col) : 0.0;
        for (int64_t i = 0; i < s->k; i++) {
            const int64_t b_at = e * s->matrix_stride + (s->transpose_b ? col * s->k + i : i * s->n + col);
            sum += (double)sw_dtype_load(s->in, op->a, a_row + i) * sw_dtype_load(s->in, op->b, b_at);
        }
        if (s->accumulate)
            sum += sw_dtype_load(s->out, op->c, c_row + col);
        sw_dtype_store(s->out, op->c, c_row + col, (float)sum);
    }
}

/* Adds the products of an expert's rows to the gradient of its matrix. */
static void add_gradient(const struct sw_grouped_product *op, int64_t e) {
    const struct sw_grouped_gemm *s = op->shape;
    float *c = (float *)op->c + e * s->matrix_stride;
    for (int64_t at = 0; at < s->n * s->k; at++) {
        double sum = 0.0;
        for (int64_t row = op->offset[e]; row < op->offset[e + 1]; row++)
            sum += (double)sw_dtype_load(s->in, op->a, row * sw_grouped_a_stride(s) + at / s->k) *
                   sw_dtype_load(s->in, op->b, row * s->k + at % s->k);
        if (op->offset[e] < op->offset[e + 1])
            c[at] = (float)(c[at] + sum);
    }
}

static sw_status grouped_gemm(struct sw_stream *stream, const void *args) {
    const struct sw_grouped_product *op = args;
    (void)stream;
    for (int64_t e = 0; e < op->shape->experts; e++) {
        if (op->shape->weight_gradient)
            add_gradient(op, e);
        else
            for (int64_t row = op->offset[e]; row < op->offset[e + 1]; row++)
                multiply_row(op, e, row);
    }
    return SW_OK;
}

static sw_status expert_bias_forward(struct sw_stream *stream, const void *args) {
    const struct sw_expert_bias_forward *op = args;
    (void)stream;
    for (int64_t e = 0; e < op->experts; e++)
        for (int64_t at = op->offset[e] * op->cols; at < op->offset[e + 1] * op->cols; at++) {
            const float bias = sw_dtype_load(op->type, op->bias, e * op->bias_stride + at % op->cols);
            const float scaled = op->weight[op->source[at / op->cols]] * bias;
            sw_dtype_store(op->type, op->y, at, sw_dtype_load(op->type, op->y, at) + scaled);
        }
    return SW_OK;
}

/* Adds one column of an expert's rows to the gradient of its bias. */
static void add_bias_gradient(const struct sw_expert_bias_backward *op, int64_t e, int64_t col) {
    float *acc = &op->acc[e * op->bias_stride + col];
    double sum = 0.0;
    for (int64_t row = op->offset[e]; row < op->offset[e + 1]; row++)
        sum += (op->weight == NULL ? 1.0 : op->weight[op->source[row]]) *
               (double)sw_dtype_load(op->type, op->dy, row * op->cols + col);
    *acc = (float)(*acc + sum);
}

static void add_weight_gradient(const struct sw_expert_bias_backward *op, int64_t e, int64_t row) {
    float *d_weight = &op->d_weight[op->source[row]];
    double sum = 0.0;
    for (int64_t col = 0; col < op->cols; col++)
        sum += (double)sw_dtype_load(op->type, op->dy, row * op->cols + col) *
               sw_dtype_load(op->type, op->bias, e * op->bias_stride + col);
    *d_weight = (float)(*d_weight + sum);
}

static sw_status expert_bias_backward(struct sw_stream *stream, const void *args) {
    const struct sw_expert_bias_backward *op = args;
    (void)stream;
    for (int64_t e = 0; e < op->experts; e++) {
        for (int64_t col = 0; op->acc != NULL && col < op->cols; col++)
            add_bias_gradient(op, e, col);
        for (int64_t row = op->offset[e]; op->d_weight != NULL && row < op->offset[e + 1]; row++)
            add_weight_gradient(op, e, row);
    }
    return SW_OK;
}

void sw_ref_add_experts(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ROUTE_FORWARD] = route_forward;
    ops->op[SW_DEVICE_ROUTE_BACKWARD] = route_backward;
    ops->op[SW_DEVICE_ORDER_BY_EXPERT] = order_by_expert;
    ops->op[SW_DEVICE_TALLY_ROUTING] = tally_routing;
    ops->op[SW_DEVICE_PERMUTE_ROWS] = permute_rows;
    ops->op[SW_DEVICE_UNPERMUTE_ROWS] = unpermute_rows;
    ops->op[SW_DEVICE_SCALE_ROWS] = scale_rows;
    ops->op[SW_DEVICE_SCALE_ROWS_BACKWARD] = scale_rows_backward;
    ops->op[SW_DEVICE_GROUPED_GEMM] = grouped_gemm;
    ops->op[SW_DEVICE_EXPERT_BIAS_FORWARD] = expert_bias_forward;
    ops->op[SW_DEVICE_EXPERT_BIAS_BACKWARD] = expert_bias_backward;
    ops->prepare_grouped_gemm = prepare_grouped_gemm;
}
