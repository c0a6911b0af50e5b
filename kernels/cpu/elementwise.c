#include "core/rng.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/tile.h"

SW_INLINE void add_tile(const sw_dtype type, int64_t at, int64_t end, const void *a, const void *b, void *y) {
    for (int64_t i = at; i < end; i += SW_LANES) {
        const sw_vec sum = sw_load_up_to(type, a, i, end - i, 0.0f) + sw_load_up_to(type, b, i, end - i, 0.0f);
        sw_store_up_to(type, y, i, end - i, sum);
    }
}

static void add_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_add *op = args;
    for (int64_t at = first * SW_TILE_ELEMS; at < sw_min_i64(end * SW_TILE_ELEMS, op->elems); at += SW_TILE_ELEMS)
        SW_FOR_TYPE(add_tile, op->type, at, sw_min_i64(at + SW_TILE_ELEMS, op->elems), op->a, op->b, op->y);
}

static sw_status add(struct sw_stream *stream, const void *args) {
    const struct sw_add *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), add_tiles, op);
    return SW_OK;
}

/* Writes the words of SW_RNG_WORDS vectors of elements, whose numbers begin at a multiple of SW_RNG_WORDS, in the
 * elements' order. */
SW_INLINE void draw_in_order(const struct sw_dropout *op, int64_t number, sw_vec words[SW_RNG_WORDS]) {
    sw_vec_bits drawn[SW_RNG_WORDS];
    sw_vec even[2], odd[2];
    sw_philox_words(op->seed, op->stream, (uint64_t)(number / SW_RNG_WORDS), drawn);
    sw_vec_interleave((sw_vec)drawn[0], (sw_vec)drawn[2], &even[0], &even[1]);
    sw_vec_interleave((sw_vec)drawn[1], (sw_vec)drawn[3], &odd[0], &odd[1]);
    for (int half = 0; half < 2; half++)
        sw_vec_interleave(even[half], odd[half], &words[2 * half], &words[2 * half + 1]);
}

/* Drops elements whose numbers follow each other, from `number` on. */
SW_INLINE void drop_run(const sw_dtype type, int64_t at, int64_t end, int64_t number, const struct sw_dropout *op) {
    const sw_vec_bits threshold = (sw_vec_bits){0} + sw_dropout_threshold(op);
    const sw_vec scale = sw_vec_splat(sw_dropout_scale(op));
    for (; at < end; at += (int64_t)SW_RNG_WORDS * SW_LANES, number += (int64_t)SW_RNG_WORDS * SW_LANES) {
        sw_vec words[SW_RNG_WORDS];
        draw_in_order(op, number, words);
        for (int v = 0; v < SW_RNG_WORDS; v++) {
            const int64_t i = at + v * (int64_t)SW_LANES;
            const sw_vec_bits kept = (sw_vec_bits)((sw_vec_bits)words[v] >= threshold);
            if (i >= end)
                break;
            const sw_vec scaled = sw_load_up_to(type, op->x, i, end - i, 0.0f) * scale;
            sw_store_up_to(type, op->y, i, end - i, sw_vec_select(kept, scaled, sw_vec_splat(0.0f)));
        }
    }
}

/* Parts of rows whose numbers begin within a counter's words are rare, and are dropped one by one. */
SW_INLINE void drop_tile(const sw_dtype type, int64_t at, int64_t end, const struct sw_dropout *op) {
    const bool whole = op->cols == 0;
    const int64_t cols = whole ? end : op->cols;
    const bool single = !whole && (op->cols | op->first_col | op->width) % SW_RNG_WORDS != 0;
    for (int64_t run; at < end; at += run) {
        const int64_t number = sw_dropout_number(op, at);
        run = sw_min_i64(end - at, single ? 1 : cols - (whole ? 0 : at % cols));
        if (!single) {
            drop_run(type, at, at + run, number, op);
            continue;
        }
        const uint32_t word =
            sw_rng(op->seed, op->stream, (uint64_t)(number / SW_RNG_WORDS)).word[number % SW_RNG_WORDS];
        sw_dtype_store(type, op->y, at,
                       word >= sw_dropout_threshold(op) ? sw_dtype_load(type, op->x, at) * sw_dropout_scale(op) : 0.0f);
    }
}

static void drop_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_dropout *op = args;
    SW_FOR_TYPE(drop_tile, op->type, first * SW_TILE_ELEMS, sw_min_i64(end * SW_TILE_ELEMS, op->elems), op);
}
static_assert(SW_TILE_ELEMS % (SW_RNG_WORDS * SW_LANES) == 0, "a tile has whole vectors of counters");

static sw_status dropout(struct sw_stream *stream, const void *args) {
    const struct sw_dropout *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), drop_tiles, op);
    return SW_OK;
}

SW_INLINE void scale_tile(const sw_dtype type, int64_t at, int64_t end, sw_vec scale, const float *from, void *to) {
    for (int64_t i = at; i < end; i += SW_LANES)
        sw_store_up_to(type, to, i, end - i, scale * sw_load_up_to(SW_F32, from, i, end - i, 0.0f));
}

/* The elements of a cast: all, or those of a run of rows. */
struct range {
    int64_t first, count;
};

static struct range cast_elems(const struct sw_cast_from_f32 *op) {
    const int64_t cols = sw_max_i64(op->cols, 1), first = sw_first_row(&op->run) * cols;
    return (struct range){.first = first, .count = sw_end_row(&op->run, op->elems / cols) * cols - first};
}

static void scale_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_cast_from_f32 *op = args;
    const struct range all = cast_elems(op);
    SW_FOR_TYPE(scale_tile, op->type, all.first + first * SW_TILE_ELEMS,
                all.first + sw_min_i64(end * SW_TILE_ELEMS, all.count), sw_vec_splat(op->scale), op->from, op->to);
}

/* A product would quiet a NaN. */
static void narrow_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_cast_from_f32 *op = args;
    const struct range all = cast_elems(op);
    const int64_t at = first * SW_TILE_ELEMS, count = sw_min_i64(end * SW_TILE_ELEMS, all.count) - at;
    sw_narrow(op->type, op->to, all.first + at, count, op->from + all.first + at);
}

static sw_status cast_from_f32(struct sw_stream *stream, const void *args) {
    const struct sw_cast_from_f32 *op = args;
    const int64_t elems = cast_elems(op).count;
    sw_cpu_share(stream, elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(elems, SW_TILE_ELEMS),
                 sw_cast_scale(op) == 1.0f ? narrow_tiles : scale_tiles, op);
    return SW_OK;
}

static void widen_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_cast_to_f32 *op = args;
    const int64_t at = first * SW_TILE_ELEMS;
    sw_widen(op->type, op->from, at, sw_min_i64(end * SW_TILE_ELEMS, op->elems) - at, op->to + at);
}

static sw_status cast_to_f32(struct sw_stream *stream, const void *args) {
    const struct sw_cast_to_f32 *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), widen_tiles, op);
    return SW_OK;
}

SW_INLINE void rotate_row(const sw_dtype type, const struct sw_rotation *shape, const float *table, void *x,
                          int64_t row) {
    const int64_t half = shape->head_dim / 2;
    const float *cosines = table + row % shape->seq * shape->head_dim, *sines = cosines + half;
    for (int64_t head = 0; head < shape->heads; head++) {
        const int64_t at = row * shape->stride + head * shape->head_dim;
        for (int64_t i = 0; i < half; i += SW_LANES) {
            const int64_t rest = half - i;
            const sw_vec cosine = sw_load_up_to(SW_F32, cosines, i, rest, 0.0f);
            const sw_vec sine = sw_load_up_to(SW_F32, sines, i, rest, 0.0f), turn = shape->back ? -sine : sine;
            const sw_vec first = sw_load_up_to(type, x, at + i, rest, 0.0f);
            const sw_vec second = sw_load_up_to(type, x, at + half + i, rest, 0.0f);
            sw_store_up_to(type, x, at + i, rest, sw_vec_fma(first, cosine, -(second * turn)));
            sw_store_up_to(type, x, at + half + i, rest, sw_vec_fma(second, cosine, first * turn));
        }
    }
}

static void rotate_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_rotate *op = args;
    for (int64_t row = first; row < end; row++)
        SW_FOR_TYPE(rotate_row, op->type, op->shape, op->table, op->x, row);
}

static sw_status rotate(struct sw_stream *stream, const void *args) {
    const struct sw_rotate *op = args;
    const int64_t rows = op->shape->batch * op->shape->seq;
    sw_cpu_share(stream, rows * op->shape->heads * op->shape->head_dim >= SW_PARALLEL_MIN_ELEMS, rows, rotate_rows, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_elementwise)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ADD] = add;
    ops->op[SW_DEVICE_DROPOUT] = dropout;
    ops->op[SW_DEVICE_CAST_FROM_F32] = cast_from_f32;
    ops->op[SW_DEVICE_ROUND_GRADIENT] = cast_from_f32;
    ops->op[SW_DEVICE_CAST_TO_F32] = cast_to_f32;
    ops->op[SW_DEVICE_ROTATE] = rotate;
}
