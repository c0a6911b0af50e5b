/* Routing to experts, and the ops on rows that are sorted by expert. Grouped products are block products. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>
#include <string.h>

/* The softmax of one row before its division: exp(logit - largest) of every expert, and the sum over the experts that
 * count. The sum is NaN if the row has a NaN. */
struct softmax {
    _Alignas(64) float logit[SW_MOST_EXPERTS + SW_LANES], share[SW_MOST_EXPERTS + SW_LANES];
    float sum;
};

/* Widens a row's logits. */
static void load_logits(const struct sw_routing *shape, sw_dtype type, const void *logits, int64_t row,
                        struct softmax *softmax) {
    sw_widen(type, logits, row * shape->experts, shape->experts, softmax->logit);
}

static void solve(const struct sw_routing *shape, const int32_t *expert, struct softmax *softmax) {
    const sw_vec largest = sw_vec_splat(softmax->logit[expert[0]]);
    sw_vec sums = {0};
    float chosen = 0.0f;
    for (int64_t e = 0; e < shape->experts; e += SW_LANES) {
        const sw_vec logit = sw_load_up_to(SW_F32, softmax->logit, e, shape->experts - e, -INFINITY);
        const sw_vec share = sw_vec_exp(logit - largest);
        sw_vec_store(softmax->share + e, share);
        sums += share;
    }
    for (int64_t slot = 0; slot < shape->chosen; slot++)
        chosen += softmax->share[expert[slot]];
    const float all = sw_vec_sum(sums);
    softmax->sum = isnan(all) || sw_routing_spans_all(shape) ? all : chosen;
}

/* Returns whether a logit comes before one with a smaller index. */
static bool overtakes(float logit, float earlier) {
    return logit > earlier || (isnan(earlier) && !isnan(logit));
}

/* Inserts expert by expert into the list of the best. */
static void choose(const struct sw_routing *shape, const float *logit, int32_t *expert) {
    int64_t count = 0;
    for (int64_t e = 0; e < shape->experts; e++) {
        if (count == shape->chosen && !overtakes(logit[e], logit[expert[count - 1]]))
            continue;
        int64_t at = count < shape->chosen ? count++ : count - 1;
        for (; at > 0 && overtakes(logit[e], logit[expert[at - 1]]); at--)
            expert[at] = expert[at - 1];
        expert[at] = (int32_t)e;
    }
}

static void route_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_route_forward *op = args;
    const struct sw_routing *shape = op->shape;
    struct softmax softmax;
    for (int64_t row = first; row < end; row++) {
        int32_t *expert = op->expert + row * shape->chosen;
        load_logits(shape, op->type, op->logits, row, &softmax);
        choose(shape, softmax.logit, expert);
        solve(shape, expert, &softmax);
        for (int64_t slot = 0; slot < shape->chosen; slot++)
            op->weight[row * shape->chosen + slot] = softmax.share[expert[slot]] / softmax.sum;
    }
}

static bool is_enough(const struct sw_routing *shape) {
    return shape->rows * shape->experts >= SW_PARALLEL_MIN_ELEMS;
}

static sw_status route_forward(struct sw_stream *stream, const void *args) {
    const struct sw_route_forward *op = args;
    sw_cpu_share(stream, is_enough(op->shape), op->shape->rows, route_rows, op);
    return SW_OK;
}

/* The softmax of a row over all experts. */
struct probabilities {
    _Alignas(64) float value[SW_MOST_EXPERTS + SW_LANES];
    float log_sum; /* the logarithm of the denominator */
};

static void find_probabilities(const struct sw_routing *shape, const float *logit, struct probabilities *out) {
    sw_vec most = sw_vec_splat(-INFINITY), sums = {0};
    for (int64_t e = 0; e < shape->experts; e += SW_LANES)
        most = sw_vec_max(sw_load_up_to(SW_F32, logit, e, shape->experts - e, -INFINITY), most);
    const float largest = sw_vec_largest(most);
    for (int64_t e = 0; e < shape->experts; e += SW_LANES) {
        const sw_vec at = sw_load_up_to(SW_F32, logit, e, shape->experts - e, -INFINITY);
        const sw_vec share = sw_vec_exp(at - sw_vec_splat(largest));
        sw_vec_store(out->value + e, share);
        sums += share;
    }
    const float sum = sw_vec_sum(sums);
    for (int64_t e = 0; e < shape->experts; e += SW_LANES)
        sw_vec_store(out->value + e, sw_vec_load(out->value + e) / sw_vec_splat(sum));
    out->log_sum = largest + logf(sum);
}

/* Adds the gradients of the balance loss and the z-loss to those at a row's logits. */
static void add_losses(const struct sw_route_backward *op, const float *logit, float *gradient) {
    struct probabilities p;
    double average = 0.0;
    find_probabilities(op->shape, logit, &p);
    for (int64_t e = 0; op->count != NULL && e < op->shape->experts; e++)
        average += p.value[e] * op->count[e];
    const double of_sum = 2.0 * op->z * p.log_sum;
    for (int64_t e = 0; e < op->shape->experts; e++) {
        const double above = op->count != NULL ? op->count[e] - average : 0.0;
        gradient[e] += p.value[e] * (float)(op->balance * above + of_sum);
    }
}

static void route_back_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_route_backward *op = args;
    const struct sw_routing *shape = op->shape;
    struct softmax softmax;
    float gradient[SW_MOST_EXPERTS];
    for (int64_t row = first; row < end; row++) {
        const int32_t *expert = op->expert + row * shape->chosen;
        const float *d_weight = op->d_weight + row * shape->chosen;
        float weighted = 0.0f;
        load_logits(shape, op->type, op->logits, row, &softmax);
        solve(shape, expert, &softmax);
        for (int64_t slot = 0; slot < shape->chosen; slot++)
            weighted += softmax.share[expert[slot]] / softmax.sum * d_weight[slot];
        for (int64_t e = 0; e < shape->experts; e++)
            gradient[e] = sw_routing_spans_all(shape) ? softmax.share[e] / softmax.sum * -weighted : 0.0f;
        for (int64_t slot = 0; slot < shape->chosen; slot++)
            gradient[expert[slot]] = softmax.share[expert[slot]] / softmax.sum * (d_weight[slot] - weighted);
        if (op->count != NULL || op->z != 0.0)
            add_losses(op, softmax.logit, gradient);
        sw_narrow(op->type, op->d_logits, row * shape->experts, shape->experts, gradient);
    }
}

static sw_status route_backward(struct sw_stream *stream, const void *args) {
    const struct sw_route_backward *op = args;
    sw_cpu_share(stream, is_enough(op->shape), op->shape->rows, route_back_rows, op);
    return SW_OK;
}

/* Counts, and then gives each pair the next place of its expert. One thread does it: a pair takes a few instructions,
 * and its row thousands. */
static sw_status order_by_expert(struct sw_stream *stream, const void *args) {
    const struct sw_order_by_expert *op = args;
    const int64_t pairs = op->rows * op->chosen;
    int32_t next[SW_MOST_EXPERTS];
    (void)stream;
    memset(op->offset, 0, (size_t)(op->experts + 1) * sizeof op->offset[0]);
    for (int64_t pair = 0; pair < pairs; pair++)
        op->offset[op->expert[pair] + 1]++;
    for (int64_t e = 0; e < op->experts; e++) {
        next[e] = op->offset[e];
        op->offset[e + 1] += op->offset[e];
    }
    for (int64_t pair = 0; pair < pairs; pair++) {
        op->place[pair] = next[op->expert[pair]]++;
        op->source[op->place[pair]] = (int32_t)pair;
    }
    return SW_OK;
}

/* Sums blocks of rows. */
static void tally_blocks(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_tally_routing *op = args;
    const int64_t experts = op->shape->experts;
    struct softmax softmax;
    struct probabilities p;
    for (int64_t block = first; block < end; block++) {
        float *sum = op->scratch + block * (experts + 1);
        memset(sum, 0, (size_t)(experts + 1) * sizeof *sum);
        for (int64_t row = block * SW_TALLY_ROWS; row < sw_min_i64(op->shape->rows, (block + 1) * SW_TALLY_ROWS);
             row++) {
            load_logits(op->shape, op->type, op->logits, row, &softmax);
            find_probabilities(op->shape, softmax.logit, &p);
            for (int64_t e = 0; e < experts; e++)
                sum[e] += p.value[e];
            sum[experts] += p.log_sum * p.log_sum;
        }
    }
}

static sw_status tally_routing(struct sw_stream *stream, const void *args) {
    const struct sw_tally_routing *op = args;
    const int64_t experts = op->shape->experts, blocks = sw_div_up(op->shape->rows, SW_TALLY_ROWS);
    for (int64_t e = 0; e < experts; e++)
        op->routed[e] = (op->first_micro ? 0.0 : op->routed[e]) + (op->offset[e + 1] - op->offset[e]);
    if (op->count == NULL)
        return SW_OK;
    sw_cpu_share(stream, is_enough(op->shape), blocks, tally_blocks, op);
    for (int64_t e = 0; e <= experts; e++) {
        double sum = op->first_layer ? 0.0 : op->sum[e];
        for (int64_t block = 0; block < blocks; block++)
            sum += op->scratch[block * (experts + 1) + e];
        op->sum[e] = sum;
    }
    for (int64_t e = 0; e < experts; e++)
        op->count[e] = (op->first_layer ? 0.0 : op->count[e]) + (op->offset[e + 1] - op->offset[e]);
    if (op->last_layer)
        sw_tally_losses(op);
    return SW_OK;
}

static void permute(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_permute_rows *op = args;
    const int64_t row_bytes = op->cols * sw_dtype_bytes(op->type);
    const int64_t begin = sw_first_row(&op->run);
    for (int64_t row = begin + first; row < begin + end; row++)
        memcpy((char *)op->y + row * row_bytes, (const char *)op->x + op->source[row] / op->chosen * row_bytes,
               (size_t)row_bytes);
}

static sw_status permute_rows(struct sw_stream *stream, const void *args) {
    const struct sw_permute_rows *op = args;
    const int64_t rows = sw_end_row(&op->run, op->rows * op->chosen) - sw_first_row(&op->run);
    sw_cpu_share(stream, rows * op->cols >= SW_PARALLEL_MIN_ELEMS, rows, permute, op);
    return SW_OK;
}

/* Lists the places of a row's pairs that lie in the run, in the order of the sum, and returns their number. */
static int64_t order_places(const struct sw_unpermute_rows *op, int64_t row, int32_t *out) {
    const int64_t first = sw_first_row(&op->run), end = sw_end_row(&op->run, op->rows * op->chosen);
    int64_t count = 0;
    for (int64_t slot = 0; slot < op->chosen; slot++) {
        const int32_t place = op->place[row * op->chosen + slot];
        if (place < first || place >= end)
            continue;
        int64_t at = count++;
        for (; at > 0 && (op->falling ? out[at - 1] < place : out[at - 1] > place); at--)
            out[at] = out[at - 1];
        out[at] = place;
    }
    return count;
}

SW_INLINE void add_places(const sw_dtype type, const struct sw_unpermute_rows *op, int64_t row) {
    int32_t place[SW_MOST_CHOSEN];
    const int64_t count = order_places(op, row, place);
    for (int64_t col = 0; col < op->cols; col += SW_LANES) {
        const int64_t rest = op->cols - col, at = row * op->cols + col;
        const sw_vec addend = op->addend == NULL ? (sw_vec){0} : sw_load_up_to(type, op->addend, at, rest, 0.0f);
        sw_vec sum = op->before != NULL ? sw_load_up_to(SW_F32, op->before, at, rest, 0.0f)
                     : op->falling      ? (sw_vec){0}
                                        : addend;
        for (int64_t i = 0; i < count; i++)
            sum += sw_load_up_to(type, op->x, place[i] * op->cols + col, rest, 0.0f);
        if (op->falling && op->addend != NULL)
            sum += addend;
        if (op->after != NULL)
            sw_store_up_to(SW_F32, op->after, at, rest, sum);
        else
            sw_store_up_to(type, op->y, at, rest, sum);
    }
}

static void unpermute(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_unpermute_rows *op = args;
    for (int64_t row = first; row < end; row++)
        SW_FOR_TYPE(add_places, op->type, op, row);
}

static sw_status unpermute_rows(struct sw_stream *stream, const void *args) {
    const struct sw_unpermute_rows *op = args;
    sw_cpu_share(stream, op->rows * op->chosen * op->cols >= SW_PARALLEL_MIN_ELEMS, op->rows, unpermute, op);
    return SW_OK;
}

SW_INLINE void scale_row(const sw_dtype type, const struct sw_scale_rows *op, int64_t row) {
    const sw_vec weight = sw_vec_splat(op->weight[op->source[row]]);
    for (int64_t col = 0; col < op->cols; col += SW_LANES) {
        const int64_t rest = op->cols - col, at = row * op->cols + col;
        sw_store_up_to(type, op->y, at, rest, weight * sw_load_up_to(type, op->x, at, rest, 0.0f));
    }
}

static void scale(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_scale_rows *op = args;
    const int64_t begin = sw_first_row(&op->run);
    for (int64_t row = begin + first; row < begin + end; row++)
        SW_FOR_TYPE(scale_row, op->type, op, row);
}

static sw_status scale_rows(struct sw_stream *stream, const void *args) {
    const struct sw_scale_rows *op = args;
    const int64_t rows = sw_end_row(&op->run, op->rows) - sw_first_row(&op->run);
    sw_cpu_share(stream, rows * op->cols >= SW_PARALLEL_MIN_ELEMS, rows, scale, op);
    return SW_OK;
}

SW_INLINE void scale_back_row(const sw_dtype type, const struct sw_scale_rows_backward *op, int64_t row) {
    const sw_vec weight = sw_vec_splat(op->weight[op->source[row]]);
    sw_vec sums = {0};
    for (int64_t col = 0; col < op->cols; col += SW_LANES) {
        const int64_t rest = op->cols - col, at = row * op->cols + col;
        const sw_vec dy = sw_load_up_to(type, op->dy, at, rest, 0.0f);
        sums = sw_vec_fma(dy, sw_load_up_to(type, op->x, at, rest, 0.0f), sums);
        sw_store_up_to(type, op->dx, at, rest, weight * dy);
    }
    op->d_weight[op->source[row]] = sw_vec_sum(sums);
}

static void scale_back(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_scale_rows_backward *op = args;
    const int64_t begin = sw_first_row(&op->run);
    for (int64_t row = begin + first; row < begin + end; row++)
        SW_FOR_TYPE(scale_back_row, op->type, op, row);
}

static sw_status scale_rows_backward(struct sw_stream *stream, const void *args) {
    const struct sw_scale_rows_backward *op = args;
    const int64_t rows = sw_end_row(&op->run, op->rows) - sw_first_row(&op->run);
    sw_cpu_share(stream, rows * op->cols >= SW_PARALLEL_MIN_ELEMS, rows, scale_back, op);
    return SW_OK;
}

/* Returns the expert of a place, which lies in [offset[0], offset[experts]). */
static int64_t expert_at(const int32_t *offset, int64_t experts, int64_t place) {
    int64_t first = 0, end = experts;
    while (end - first > 1) {
        const int64_t middle = first + (end - first) / 2;
        if (offset[middle] <= place)
            first = middle;
        else
            end = middle;
    }
    return first;
}

SW_INLINE void bias_row(const sw_dtype type, const struct sw_expert_bias_forward *op, int64_t row) {
    const int64_t bias = expert_at(op->offset, op->experts, row) * op->bias_stride;
    const sw_vec weight = sw_vec_splat(op->weight[op->source[row]]);
    for (int64_t col = 0; col < op->cols; col += SW_LANES) {
        const int64_t rest = op->cols - col, at = row * op->cols + col;
        const sw_vec scaled = weight * sw_load_up_to(type, op->bias, bias + col, rest, 0.0f);
        sw_store_up_to(type, op->y, at, rest, sw_load_up_to(type, op->y, at, rest, 0.0f) + scaled);
    }
}

static void bias_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_expert_bias_forward *op = args;
    for (int64_t row = op->offset[0] + first; row < op->offset[0] + end; row++)
        SW_FOR_TYPE(bias_row, op->type, op, row);
}

static sw_status expert_bias_forward(struct sw_stream *stream, const void *args) {
    const struct sw_expert_bias_forward *op = args;
    const int64_t rows = op->offset[op->experts] - op->offset[0];
    sw_cpu_share(stream, rows * op->cols >= SW_PARALLEL_MIN_ELEMS, rows, bias_rows, op);
    return SW_OK;
}

/* Sums a tile of columns over the rows of an expert. */
SW_INLINE void bias_back_tile(const sw_dtype type, const struct sw_expert_bias_backward *op, int64_t e, int64_t col) {
    const int64_t count = sw_min_i64(SW_TILE_ELEMS, op->cols - col);
    float *acc = op->acc + e * op->bias_stride + col;
    struct sw_tile sum = {{0}};
    for (int64_t row = op->offset[e]; row < op->offset[e + 1]; row++) {
        const sw_vec weight = sw_vec_splat(op->weight == NULL ? 1.0f : op->weight[op->source[row]]);
        for (int64_t i = 0; i < count; i += SW_LANES) {
            const sw_vec dy = sw_load_up_to(type, op->dy, row * op->cols + col + i, count - i, 0.0f);
            sw_vec_store(sum.value + i, sw_vec_fma(weight, dy, sw_vec_load(sum.value + i)));
        }
    }
    for (int64_t i = 0; i < count; i++)
        acc[i] += sum.value[i];
}

static void bias_back_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_expert_bias_backward *op = args;
    const int64_t tiles = sw_div_up(op->cols, SW_TILE_ELEMS);
    for (int64_t i = first; i < end; i++)
        SW_FOR_TYPE(bias_back_tile, op->type, op, i / tiles, i % tiles * SW_TILE_ELEMS);
}

SW_INLINE void weight_back_row(const sw_dtype type, const struct sw_expert_bias_backward *op, int64_t row) {
    const int64_t bias = expert_at(op->offset, op->experts, row) * op->bias_stride;
    sw_vec sums = {0};
    for (int64_t col = 0; col < op->cols; col += SW_LANES) {
        const int64_t rest = op->cols - col;
        sums = sw_vec_fma(sw_load_up_to(type, op->dy, row * op->cols + col, rest, 0.0f),
                          sw_load_up_to(type, op->bias, bias + col, rest, 0.0f), sums);
    }
    op->d_weight[op->source[row]] += sw_vec_sum(sums);
}

static void weight_back_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_expert_bias_backward *op = args;
    for (int64_t row = op->offset[0] + first; row < op->offset[0] + end; row++)
        SW_FOR_TYPE(weight_back_row, op->type, op, row);
}

static sw_status expert_bias_backward(struct sw_stream *stream, const void *args) {
    const struct sw_expert_bias_backward *op = args;
    const int64_t rows = op->offset[op->experts] - op->offset[0], tiles = sw_div_up(op->cols, SW_TILE_ELEMS);
    const bool enough = rows * op->cols >= SW_PARALLEL_MIN_ELEMS;
    if (op->acc != NULL)
        sw_cpu_share(stream, enough, op->experts * tiles, bias_back_tiles, op);
    if (op->d_weight != NULL)
        sw_cpu_share(stream, enough, rows, weight_back_rows, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_experts)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ROUTE_FORWARD] = route_forward;
    ops->op[SW_DEVICE_ROUTE_BACKWARD] = route_backward;
    ops->op[SW_DEVICE_ORDER_BY_EXPERT] = order_by_expert;
    ops->op[SW_DEVICE_TALLY_ROUTING] = tally_routing;
    ops->op[SW_DEVICE_PERMUTE_ROWS] = permute_rows;
    ops->op[SW_DEVICE_UNPERMUTE_ROWS] = unpermute_rows;
    ops->op[SW_DEVICE_SCALE_ROWS] = scale_rows;
    ops->op[SW_DEVICE_SCALE_ROWS_BACKWARD] = scale_rows_backward;
    ops->op[SW_DEVICE_EXPERT_BIAS_FORWARD] = expert_bias_forward;
    ops->op[SW_DEVICE_EXPERT_BIAS_BACKWARD] = expert_bias_backward;
}
