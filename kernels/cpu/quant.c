#include "kernels/cpu/quant.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

static_assert((int)SW_QUANT_BLOCK_ELEMS <= (int)SW_TILE_ELEMS, "a block fits a tile");

/* The codes of a block, a byte each. */
struct codes {
    _Alignas(64) int8_t code[SW_QUANT_BLOCK_ELEMS];
};

/* Packs neighbours into one byte, the first into its lower half. */
SW_INLINE void pack(const struct codes *from, uint8_t *to) {
    uint16_t pairs[SW_QUANT_BLOCK_ELEMS / 2];
    memcpy(pairs, from->code, sizeof pairs);
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS / 2; i++)
        to[i] = (uint8_t)((pairs[i] & 0x0fu) | (pairs[i] >> 4 & 0xf0u));
}

SW_INLINE void unpack(const uint8_t *from, struct codes *to) {
    uint16_t pairs[SW_QUANT_BLOCK_ELEMS / 2];
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS / 2; i++) {
        const int low = (int8_t)(uint8_t)(from[i] << 4) >> 4, high = (int8_t)from[i] >> 4;
        pairs[i] = (uint16_t)((low & 0xff) | (high & 0xff) << 8);
    }
    memcpy(to->code, pairs, sizeof pairs);
}

static void quantize_grain(const struct sw_quantize *op, int64_t grain) {
    char *record = (char *)op->to + grain * sw_quant_grain_bytes(op->quant);
    float *scales = (float *)(void *)(record + sw_quant_code_bytes(op->quant));
    struct sw_tile tile;
    struct codes codes;
    for (int64_t block = 0; block < SW_QUANT_GRAIN_BLOCKS; block++) {
        const int64_t at = grain * SW_GRAIN_ELEMS + block * SW_QUANT_BLOCK_ELEMS;
        const float *values = sw_tile_load(op->type, op->from, at, SW_QUANT_BLOCK_ELEMS, &tile);
        float inverse;
        scales[block] = sw_quant_scale(op->quant, values, &inverse);
        if (op->quant == SW_QUANT_INT8) {
            sw_quant_codes(values, inverse, (int8_t *)record + block * SW_QUANT_BLOCK_ELEMS);
        } else {
            sw_quant_codes(values, inverse, codes.code);
            pack(&codes, (uint8_t *)record + block * SW_QUANT_BLOCK_ELEMS / 2);
        }
    }
}

static void take_block(sw_quant quant, const char *record, int64_t block, bool first, float *sum) {
    float scale;
    struct codes codes;
    memcpy(&scale, record + sw_quant_code_bytes(quant) + block * (int64_t)sizeof scale, sizeof scale);
    const int8_t *code = (const int8_t *)record + block * SW_QUANT_BLOCK_ELEMS;
    if (quant == SW_QUANT_INT4) {
        unpack((const uint8_t *)record + block * SW_QUANT_BLOCK_ELEMS / 2, &codes);
        code = codes.code;
    }
    if (first)
        sw_quant_add(code, scale, true, sum);
    else
        sw_quant_add(code, scale, false, sum);
}

static const char *records_of(const struct sw_dequantize *op, int rank) {
    if (rank == op->rank)
        return op->own;
    return (const char *)op->others + (rank - (rank > op->rank)) * op->stride_bytes;
}

static void dequantize_grain(const struct sw_dequantize *op, int64_t grain) {
    struct sw_tile tile;
    const int64_t offset = grain * sw_quant_grain_bytes(op->quant);
    for (int64_t block = 0; block < SW_QUANT_GRAIN_BLOCKS; block++) {
        const int64_t at = grain * SW_GRAIN_ELEMS + block * SW_QUANT_BLOCK_ELEMS;
        float *sum = sw_tile_target(op->type, op->to, at, &tile);
        for (int rank = 0; rank < op->ranks; rank++)
            take_block(op->quant, records_of(op, rank) + offset, block, rank == 0, sum);
        sw_tile_store(op->type, op->to, at, SW_QUANT_BLOCK_ELEMS, &tile);
    }
}

static void quantize_grains(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    for (int64_t grain = first; grain < end; grain++)
        quantize_grain(args, grain);
}

static sw_status quantize(struct sw_stream *stream, const void *args) {
    const struct sw_quantize *op = args;
    sw_cpu_share(stream, true, op->grains, quantize_grains, op);
    return SW_OK;
}

static void dequantize_grains(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    for (int64_t grain = first; grain < end; grain++)
        dequantize_grain(args, grain);
}

static sw_status dequantize(struct sw_stream *stream, const void *args) {
    const struct sw_dequantize *op = args;
    sw_cpu_share(stream, true, op->grains, dequantize_grains, op);
    return SW_OK;
}

/* A tensor being encoded by threads, and the bits of its largest magnitude, which they find together. */
struct encoding {
    const struct sw_encode_fp8 *op;
    int64_t elems;
    uint32_t *largest;
    float inverse;
};

static int64_t tiles_of(int64_t elems) {
    return sw_div_up(elems, SW_TILE_ELEMS);
}

SW_INLINE uint32_t largest_of(const float *values, int64_t count, uint32_t largest) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = sw_fp8_bits(values[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static void find_largest(const void *context, int64_t first, int64_t end, int thread) {
    const struct encoding *e = context;
    struct sw_tile tile;
    uint32_t largest = 0, before = 0;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        const int64_t at = t * SW_TILE_ELEMS, count = sw_min_i64(SW_TILE_ELEMS, e->elems - at);
        largest = largest_of(sw_tile_load(e->op->type, e->op->from, at, count, &tile), count, largest);
    }
    while (before < largest &&
           !__atomic_compare_exchange_n(e->largest, &before, largest, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

SW_INLINE void encode_values(const sw_fp8 as, const float *values, int64_t count, float inverse, uint8_t *codes) {
    for (int64_t i = 0; i < count; i++)
        codes[i] = sw_fp8_code(as, values[i] * inverse);
}

static void encode_tiles(const void *context, int64_t first, int64_t end, int thread) {
    const struct encoding *e = context;
    struct sw_tile tile;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        const int64_t at = t * SW_TILE_ELEMS, count = sw_min_i64(SW_TILE_ELEMS, e->elems - at);
        const float *values = sw_tile_load(e->op->type, e->op->from, at, count, &tile);
        if (e->op->as == SW_FP8_E4M3)
            encode_values(SW_FP8_E4M3, values, count, e->inverse, e->op->codes + at);
        else
            encode_values(SW_FP8_E5M2, values, count, e->inverse, e->op->codes + at);
    }
}

/* Encodes whole rows of the transpose, which are columns of the matrix. */
static void encode_columns(const void *context, int64_t first, int64_t end, int thread) {
    const struct encoding *e = context;
    const struct sw_encode_fp8 *op = e->op;
    (void)thread;
    for (int64_t col = first; col < end; col++)
        for (int64_t row = 0; row < op->rows; row++)
            op->codes[col * op->rows + row] =
                sw_fp8_code(op->as, sw_dtype_load(op->type, op->from, row * op->cols + col) * e->inverse);
}

static sw_status encode_fp8(struct sw_stream *stream, const void *args) {
    const struct sw_encode_fp8 *op = args;
    uint32_t largest = 0;
    struct encoding e = {.op = op, .elems = op->rows * op->cols, .largest = &largest};
    const bool enough = e.elems >= SW_PARALLEL_MIN_ELEMS;
    sw_cpu_share(stream, enough, tiles_of(e.elems), find_largest, &e);
    *op->scale = sw_fp8_scale(op->as, largest, &e.inverse);
    if (op->transpose)
        sw_cpu_share(stream, enough, op->cols, encode_columns, &e);
    else
        sw_cpu_share(stream, enough, tiles_of(e.elems), encode_tiles, &e);
    return SW_OK;
}

/* As sw_fp8_value, but computes the normal and the subnormal number and chooses by masks: compilers make no vectors of
 * a branch that leaves out a floating-point operation. */
SW_INLINE float value_of(const sw_fp8 as, uint32_t code) {
    const bool wide = as == SW_FP8_E4M3;
    const uint32_t shift = wide ? 20 : 21, bias = wide ? 127u - 7u : 127u - 15u, most = wide ? 0x7eu : 0x7bu;
    const uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
    const uint32_t is_normal = 0u - (magnitude >> (23 - shift) != 0), is_finite = 0u - (magnitude <= most);
    const uint32_t normal = (magnitude << shift) + (bias << 23);
    const uint32_t subnormal = sw_fp8_bits((float)(int)magnitude * (wide ? 0x1p-9f : 0x1p-16f));
    const uint32_t infinite = !wide && magnitude == most + 1u ? 0x7f800000u : 0x7fc00000u;
    return sw_fp8_float(sign | (normal & is_normal & is_finite) | (subnormal & ~is_normal) | (infinite & ~is_finite));
}

SW_INLINE void decode_values(const sw_fp8 as, const uint8_t *codes, int64_t count, float scale, float *to) {
    for (int64_t i = 0; i < count; i++)
        to[i] = value_of(as, codes[i]) * scale;
}

static void decode_tiles(const void *context, int64_t first, int64_t end, int thread) {
    const struct sw_decode_fp8 *op = context;
    struct sw_tile tile;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        const int64_t at = t * SW_TILE_ELEMS, count = sw_min_i64(SW_TILE_ELEMS, op->elems - at);
        float *to = sw_tile_target(op->type, op->to, at, &tile);
        if (op->as == SW_FP8_E4M3)
            decode_values(SW_FP8_E4M3, op->codes + at, count, *op->scale, to);
        else
            decode_values(SW_FP8_E5M2, op->codes + at, count, *op->scale, to);
        sw_tile_store(op->type, op->to, at, count, &tile);
    }
}

static sw_status decode_fp8(struct sw_stream *stream, const void *args) {
    const struct sw_decode_fp8 *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, tiles_of(op->elems), decode_tiles, op);
    return SW_OK;
}

static void pack_grain(const struct sw_pack_weights *op, int64_t grain) {
    const char *record = (const char *)op->records + grain * sw_optimizer_grain_bytes(op->format);
    const float *master = (const float *)(const void *)record;
    uint8_t *codes = (uint8_t *)op->weights + grain * SW_GRAIN_ELEMS;
    if (op->first_elem + grain * SW_GRAIN_ELEMS >= op->wide_elem) {
        sw_narrow(op->type, codes, 0, SW_WIDE_GRAIN_ELEMS, master);
        return;
    }
    const unsigned scale = sw_fp8_scale_byte(largest_of(master, SW_GRAIN_ELEMS, 0));
    if (scale == (unsigned)SW_FP8_EXPONENT_NAN) {
        memset(codes, SW_FP8_NAN, SW_GRAIN_ELEMS);
        return;
    }
    encode_values(SW_FP8_E4M3, master, SW_GRAIN_ELEMS, sw_fp8_power(SW_FP8_EXPONENT_BYTE - (int)scale), codes);
    for (int64_t i = 0; i < SW_FP8_EXPONENT_CODES; i++)
        codes[i] = sw_fp8_grain_code(scale, i, master[i]);
}

static void pack_grains(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    for (int64_t grain = first; grain < end; grain++)
        pack_grain(args, grain);
}

static sw_status pack_weights(struct sw_stream *stream, const void *args) {
    const struct sw_pack_weights *op = args;
    sw_cpu_share(stream, true, op->grains, pack_grains, op);
    return SW_OK;
}

/* Tiles are counted from a tile boundary of the grain, so that none spans two grains. */
static void unpack_tiles(const void *context, int64_t first, int64_t end, int thread) {
    const struct sw_unpack_weights *op = context;
    const uint8_t *codes = op->weights;
    const int64_t behind = op->first_elem + op->elems;
    struct sw_tile tile;
    (void)thread;
    for (int64_t t = first; t < end; t++) {
        const int64_t start = (op->first_elem / SW_TILE_ELEMS + t) * SW_TILE_ELEMS;
        const int64_t elem = sw_max_i64(start, op->first_elem),
                      count = sw_min_i64(start + SW_TILE_ELEMS, behind) - elem;
        const int64_t at = elem - op->first_elem;
        float *to = sw_tile_target(op->type, op->to, at, &tile);
        const float scale = sw_fp8_grain_scale(codes + elem / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS);
        decode_values(SW_FP8_E4M3, codes + elem, count, scale, to);
        sw_tile_store(op->type, op->to, at, count, &tile);
    }
}

static sw_status unpack_weights(struct sw_stream *stream, const void *args) {
    const struct sw_unpack_weights *op = args;
    const int64_t tiles = tiles_of(op->first_elem % SW_TILE_ELEMS + op->elems);
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, tiles, unpack_tiles, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_quant)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_QUANTIZE] = quantize;
    ops->op[SW_DEVICE_DEQUANTIZE] = dequantize;
    ops->op[SW_DEVICE_ENCODE_FP8] = encode_fp8;
    ops->op[SW_DEVICE_DECODE_FP8] = decode_fp8;
    ops->op[SW_DEVICE_PACK_WEIGHTS] = pack_weights;
    ops->op[SW_DEVICE_UNPACK_WEIGHTS] = unpack_weights;
}
