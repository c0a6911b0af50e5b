#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#define SW_GELU_CUBIC 0.044715f
#define SW_SQRT_2_OVER_PI 0.7978845608f
#define SW_SQRT_HALF 0.7071067812f
#define SW_NORMAL_DENSITY_AT_0 0.3989422804f /* 1/sqrt(2·pi) */

/* factor·(1 + cubic·x²) */
SW_INLINE sw_vec even_quadratic(sw_vec x, float factor, float cubic) {
    return sw_vec_fma(x * x, sw_vec_splat(factor * cubic), sw_vec_splat(factor));
}

/* (1 + tanh(u))/2 is the sigmoid of 2u, which stays precise where tanh approaches -1. This is its inverse, 1 +
 * exp(-2u). */
SW_INLINE sw_vec gelu_tanh_gate_inverse(sw_vec x) {
    return 1.0f + sw_vec_exp2(x * even_quadratic(x, -2.0f * SW_SQRT_2_OVER_PI * SW_LOG2_E, SW_GELU_CUBIC));
}

SW_INLINE sw_vec gelu_tanh(sw_vec x) {
    return x / gelu_tanh_gate_inverse(x);
}

SW_INLINE sw_vec gelu_tanh_slope(sw_vec x) {
    const sw_vec gate = 1.0f / gelu_tanh_gate_inverse(x);
    const sw_vec inner = x * even_quadratic(x, 2.0f * SW_SQRT_2_OVER_PI, 3.0f * SW_GELU_CUBIC);
    return sw_vec_fma(sw_vec_fma(-gate, gate, gate), inner, gate);
}

/* exp(-x²/2), and the normal distribution function computed from it. */
SW_INLINE sw_vec normal_decay(sw_vec x) {
    return sw_vec_exp(-0.5f * x * x);
}

SW_INLINE sw_vec normal_distribution(sw_vec x, sw_vec decay) {
    const sw_vec tail = 0.5f * decay * sw_vec_erfc_scaled(SW_SQRT_HALF * sw_vec_abs(x));
    return sw_vec_select((sw_vec_bits)(x < 0.0f), tail, 1.0f - tail);
}

SW_INLINE sw_vec gelu_erf(sw_vec x) {
    return x * normal_distribution(x, normal_decay(x));
}

SW_INLINE sw_vec gelu_erf_slope(sw_vec x) {
    const sw_vec decay = normal_decay(x);
    return sw_vec_fma(x * decay, sw_vec_splat(SW_NORMAL_DENSITY_AT_0), normal_distribution(x, decay));
}

SW_INLINE sw_vec relu(sw_vec x) {
    return sw_vec_select((sw_vec_bits)(x <= 0.0f), (sw_vec){0}, x);
}

SW_INLINE sw_vec relu_slope(sw_vec x) {
    return sw_vec_select((sw_vec_bits)(x > 0.0f), sw_vec_splat(1.0f), (sw_vec){0});
}

SW_INLINE sw_vec silu_gate(sw_vec x) {
    return 1.0f / (1.0f + sw_vec_exp2(x * -SW_LOG2_E));
}

SW_INLINE sw_vec silu(sw_vec x) {
    return x / (1.0f + sw_vec_exp2(x * -SW_LOG2_E));
}

SW_INLINE sw_vec silu_slope(sw_vec x) {
    const sw_vec gate = silu_gate(x);
    return sw_vec_fma(sw_vec_fma(-gate, gate, gate), x, gate);
}

/* y = function(x), and dx = dy·slope(x), for a tile of `count` elements starting at `at`. Rounding is a second loop:
 * the function's long dependency chain, with what waits for its end, would fill the processor's window. */
SW_INLINE void map(const sw_dtype type, sw_vec (*const function)(sw_vec), int64_t at, int64_t count, const void *x,
                   void *y) {
    struct sw_tile tile;
    float *out = sw_tile_target(type, y, at, &tile);
    for (int64_t i = 0; i < count; i += SW_LANES)
        sw_store_up_to(SW_F32, out, i, count - i, function(sw_load_up_to(type, x, at + i, count - i, 0.0f)));
    sw_tile_store(type, y, at, count, &tile);
}

SW_INLINE void map_back(const sw_dtype type, sw_vec (*const slope)(sw_vec), int64_t at, int64_t count, const void *x,
                        const void *dy, void *dx) {
    struct sw_tile tile;
    float *out = sw_tile_target(type, dx, at, &tile);
    for (int64_t i = 0; i < count; i += SW_LANES) {
        const sw_vec gradient = sw_load_up_to(type, dy, at + i, count - i, 0.0f);
        sw_store_up_to(SW_F32, out, i, count - i, gradient * slope(sw_load_up_to(type, x, at + i, count - i, 0.0f)));
    }
    sw_tile_store(type, dx, at, count, &tile);
}

static void forward_tile(sw_dtype type, sw_activation which, int64_t at, int64_t count, const void *x, void *y) {
    if (which == SW_GELU_TANH)
        SW_FOR_TYPE(map, type, gelu_tanh, at, count, x, y);
    else if (which == SW_GELU_ERF)
        SW_FOR_TYPE(map, type, gelu_erf, at, count, x, y);
    else if (which == SW_SILU)
        SW_FOR_TYPE(map, type, silu, at, count, x, y);
    else
        SW_FOR_TYPE(map, type, relu, at, count, x, y);
}

static void backward_tile(sw_dtype type, sw_activation which, int64_t at, int64_t count, const void *x, const void *dy,
                          void *dx) {
    if (which == SW_GELU_TANH)
        SW_FOR_TYPE(map_back, type, gelu_tanh_slope, at, count, x, dy, dx);
    else if (which == SW_GELU_ERF)
        SW_FOR_TYPE(map_back, type, gelu_erf_slope, at, count, x, dy, dx);
    else if (which == SW_SILU)
        SW_FOR_TYPE(map_back, type, silu_slope, at, count, x, dy, dx);
    else
        SW_FOR_TYPE(map_back, type, relu_slope, at, count, x, dy, dx);
}

static void forward_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_activation_forward *op = args;
    for (int64_t at = first * SW_TILE_ELEMS; at < sw_min_i64(end * SW_TILE_ELEMS, op->elems); at += SW_TILE_ELEMS)
        forward_tile(op->type, op->which, at, sw_min_i64(SW_TILE_ELEMS, op->elems - at), op->x, op->y);
}

static sw_status activation_forward(struct sw_stream *stream, const void *args) {
    const struct sw_activation_forward *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), forward_tiles, op);
    return SW_OK;
}

static void backward_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_activation_backward *op = args;
    for (int64_t at = first * SW_TILE_ELEMS; at < sw_min_i64(end * SW_TILE_ELEMS, op->elems); at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, op->elems - at);
        backward_tile(op->type, op->which, at, count, op->x, op->dy, op->dx);
        /* The tile of x is still in the first-level cache. */
        if (op->activated != NULL)
            forward_tile(op->type, op->which, at, count, op->x, op->activated);
    }
}

static sw_status activation_backward(struct sw_stream *stream, const void *args) {
    const struct sw_activation_backward *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), backward_tiles, op);
    return SW_OK;
}

/* Do the same with gates, for a tile of one row: gates at gate_at of x, their values `apart` elements further. */
SW_INLINE void gate(const sw_dtype type, sw_vec (*const function)(sw_vec), int64_t gate_at, int64_t apart, int64_t at,
                    int64_t count, const void *x, void *y) {
    struct sw_tile tile;
    float *out = sw_tile_target(type, y, at, &tile);
    for (int64_t i = 0; i < count; i += SW_LANES) {
        const sw_vec value = sw_load_up_to(type, x, gate_at + apart + i, count - i, 0.0f);
        sw_store_up_to(SW_F32, out, i, count - i,
                       function(sw_load_up_to(type, x, gate_at + i, count - i, 0.0f)) * value);
    }
    sw_tile_store(type, y, at, count, &tile);
}

SW_INLINE void gate_back(const sw_dtype type, sw_vec (*const function)(sw_vec), sw_vec (*const slope)(sw_vec),
                         int64_t gate_at, int64_t apart, int64_t at, int64_t count, const void *x, const void *dy,
                         void *dx) {
    struct sw_tile gate_tile, value_tile;
    float *gate_out = sw_tile_target(type, dx, gate_at, &gate_tile);
    float *value_out = sw_tile_target(type, dx, gate_at + apart, &value_tile);
    for (int64_t i = 0; i < count; i += SW_LANES) {
        const int64_t rest = count - i;
        const sw_vec gradient = sw_load_up_to(type, dy, at + i, rest, 0.0f);
        const sw_vec before = sw_load_up_to(type, x, gate_at + i, rest, 0.0f);
        const sw_vec value = sw_load_up_to(type, x, gate_at + apart + i, rest, 0.0f);
        sw_store_up_to(SW_F32, gate_out, i, rest, gradient * value * slope(before));
        sw_store_up_to(SW_F32, value_out, i, rest, gradient * function(before));
    }
    sw_tile_store(type, dx, gate_at, count, &gate_tile);
    sw_tile_store(type, dx, gate_at + apart, count, &value_tile);
}

static void gate_tile(sw_dtype type, sw_activation which, int64_t gate_at, int64_t apart, int64_t at, int64_t count,
                      const void *x, void *y) {
    if (which == SW_SILU)
        SW_FOR_TYPE(gate, type, silu, gate_at, apart, at, count, x, y);
    else if (which == SW_GELU_TANH)
        SW_FOR_TYPE(gate, type, gelu_tanh, gate_at, apart, at, count, x, y);
    else if (which == SW_GELU_ERF)
        SW_FOR_TYPE(gate, type, gelu_erf, gate_at, apart, at, count, x, y);
    else
        SW_FOR_TYPE(gate, type, relu, gate_at, apart, at, count, x, y);
}

static void gate_back_tile(sw_dtype type, sw_activation which, int64_t gate_at, int64_t apart, int64_t at,
                           int64_t count, const void *x, const void *dy, void *dx) {
    if (which == SW_SILU)
        SW_FOR_TYPE(gate_back, type, silu, silu_slope, gate_at, apart, at, count, x, dy, dx);
    else if (which == SW_GELU_TANH)
        SW_FOR_TYPE(gate_back, type, gelu_tanh, gelu_tanh_slope, gate_at, apart, at, count, x, dy, dx);
    else if (which == SW_GELU_ERF)
        SW_FOR_TYPE(gate_back, type, gelu_erf, gelu_erf_slope, gate_at, apart, at, count, x, dy, dx);
    else
        SW_FOR_TYPE(gate_back, type, relu, relu_slope, gate_at, apart, at, count, x, dy, dx);
}

static void gated_forward_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_gated_forward *op = args;
    const int64_t tiles = sw_div_up(op->cols, SW_TILE_ELEMS), begin = sw_first_row(&op->run);
    for (int64_t i = first; i < end; i++) {
        const int64_t row = begin + i / tiles, col = i % tiles * SW_TILE_ELEMS;
        gate_tile(op->type, op->which, 2 * row * op->cols + col, op->cols, row * op->cols + col,
                  sw_min_i64(SW_TILE_ELEMS, op->cols - col), op->x, op->y);
    }
}

static sw_status gated_forward(struct sw_stream *stream, const void *args) {
    const struct sw_gated_forward *op = args;
    const int64_t rows = sw_end_row(&op->run, op->rows) - sw_first_row(&op->run);
    const int64_t tiles = rows * sw_div_up(op->cols, SW_TILE_ELEMS);
    sw_cpu_share(stream, rows * op->cols >= SW_PARALLEL_MIN_ELEMS, tiles, gated_forward_tiles, op);
    return SW_OK;
}

static void gated_backward_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_gated_backward *op = args;
    const int64_t tiles = sw_div_up(op->cols, SW_TILE_ELEMS), begin = sw_first_row(&op->run);
    for (int64_t i = first; i < end; i++) {
        const int64_t row = begin + i / tiles, col = i % tiles * SW_TILE_ELEMS,
                      count = sw_min_i64(SW_TILE_ELEMS, op->cols - col);
        gate_back_tile(op->type, op->which, 2 * row * op->cols + col, op->cols, row * op->cols + col, count, op->x,
                       op->dy, op->dx);
        if (op->activated != NULL)
            gate_tile(op->type, op->which, 2 * row * op->cols + col, op->cols, row * op->cols + col, count, op->x,
                      op->activated);
    }
}

static sw_status gated_backward(struct sw_stream *stream, const void *args) {
    const struct sw_gated_backward *op = args;
    const int64_t rows = sw_end_row(&op->run, op->rows) - sw_first_row(&op->run);
    const int64_t tiles = rows * sw_div_up(op->cols, SW_TILE_ELEMS);
    sw_cpu_share(stream, rows * op->cols >= SW_PARALLEL_MIN_ELEMS, tiles, gated_backward_tiles, op);
    return SW_OK;
}

/* Gates and values that lie side by side, brought apart and within their bounds. NaN passes both clamps. */
struct clamped {
    sw_vec gate, value, before_gate, before_value;
};

SW_INLINE struct clamped clamp_pairs(const float *pairs) {
    struct clamped c;
    for (int i = 0; i < SW_LANES; i++) {
        c.before_gate[i] = pairs[2 * i];
        c.before_value[i] = pairs[2 * i + 1];
    }
    c.gate = sw_vec_min(sw_vec_splat(SW_CLAMPED_MOST), c.before_gate);
    c.value = sw_vec_within(-SW_CLAMPED_MOST, c.before_value, SW_CLAMPED_MOST);
    return c;
}

SW_INLINE sw_vec clamped_open(sw_vec gate) {
    return 1.0f / (1.0f + sw_vec_exp2(gate * (-SW_CLAMPED_SLOPE * SW_LOG2_E)));
}

/* Pairs of a tile that is widened at once. */
enum { CLAMPED_PAIRS = SW_TILE_ELEMS / 2 };

static void clamp_tile(const struct sw_clamped_forward *op, int64_t at, int64_t count) {
    struct sw_tile pairs, result;
    sw_widen(op->type, op->x, 2 * at, 2 * count, pairs.value);
    for (int64_t i = 0; i < count; i += SW_LANES) {
        const struct clamped c = clamp_pairs(pairs.value + 2 * i);
        sw_vec_store(result.value + i, c.gate * clamped_open(c.gate) * (c.value + 1.0f));
    }
    sw_narrow(op->type, op->y, at, count, result.value);
}

static void clamp_back_tile(const struct sw_clamped_backward *op, int64_t at, int64_t count) {
    struct sw_tile pairs, gradient;
    sw_widen(op->type, op->x, 2 * at, 2 * count, pairs.value);
    sw_widen(op->type, op->dy, at, count, gradient.value);
    for (int64_t i = 0; i < count; i += SW_LANES) {
        const struct clamped c = clamp_pairs(pairs.value + 2 * i);
        const sw_vec dy = sw_vec_load(gradient.value + i), open = clamped_open(c.gate);
        const sw_vec slope = sw_vec_fma(sw_vec_fma(-open, open, open), SW_CLAMPED_SLOPE * c.gate, open);
        const sw_vec d_gate = dy * (c.value + 1.0f) * slope, d_value = dy * c.gate * open;
        const sw_vec_bits gate_cut = (sw_vec_bits)(c.before_gate > SW_CLAMPED_MOST);
        const sw_vec_bits value_cut =
            (sw_vec_bits)((c.before_value > SW_CLAMPED_MOST) | (c.before_value < -SW_CLAMPED_MOST));
        sw_vec low, high;
        sw_vec_interleave(sw_vec_select(gate_cut, (sw_vec){0}, d_gate), sw_vec_select(value_cut, (sw_vec){0}, d_value),
                          &low, &high);
        sw_vec_store(pairs.value + 2 * i, low);
        sw_vec_store(pairs.value + 2 * i + SW_LANES, high);
    }
    sw_narrow(op->type, op->dx, 2 * at, 2 * count, pairs.value);
}

/* Rows follow each other without gaps, so that tiles need not end with them. */
static void clamped_forward_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_clamped_forward *op = args;
    const int64_t begin = sw_first_row(&op->run) * op->cols, stop = sw_end_row(&op->run, op->rows) * op->cols;
    for (int64_t at = begin + first * CLAMPED_PAIRS; at < sw_min_i64(begin + end * CLAMPED_PAIRS, stop);
         at += CLAMPED_PAIRS)
        clamp_tile(op, at, sw_min_i64(CLAMPED_PAIRS, stop - at));
}

static void clamped_backward_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_clamped_backward *op = args;
    const int64_t begin = sw_first_row(&op->run) * op->cols, stop = sw_end_row(&op->run, op->rows) * op->cols;
    for (int64_t at = begin + first * CLAMPED_PAIRS; at < sw_min_i64(begin + end * CLAMPED_PAIRS, stop);
         at += CLAMPED_PAIRS)
        clamp_back_tile(op, at, sw_min_i64(CLAMPED_PAIRS, stop - at));
}

static void share_pairs(struct sw_stream *stream, const struct sw_row_run *run, int64_t rows, int64_t cols,
                        sw_cpu_items tiles, const void *op) {
    const int64_t pairs = (sw_end_row(run, rows) - sw_first_row(run)) * cols;
    sw_cpu_share(stream, pairs >= SW_PARALLEL_MIN_ELEMS, sw_div_up(pairs, CLAMPED_PAIRS), tiles, op);
}

static sw_status clamped_forward(struct sw_stream *stream, const void *args) {
    const struct sw_clamped_forward *op = args;
    share_pairs(stream, &op->run, op->rows, op->cols, clamped_forward_tiles, op);
    return SW_OK;
}

static sw_status clamped_backward(struct sw_stream *stream, const void *args) {
    const struct sw_clamped_backward *op = args;
    share_pairs(stream, &op->run, op->rows, op->cols, clamped_backward_tiles, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_activation)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ACTIVATION_FORWARD] = activation_forward;
    ops->op[SW_DEVICE_ACTIVATION_BACKWARD] = activation_backward;
    ops->op[SW_DEVICE_GATED_FORWARD] = gated_forward;
    ops->op[SW_DEVICE_GATED_BACKWARD] = gated_backward;
    ops->op[SW_DEVICE_CLAMPED_FORWARD] = clamped_forward;
    ops->op[SW_DEVICE_CLAMPED_BACKWARD] = clamped_backward;
}
