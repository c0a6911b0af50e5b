#include "core/quant.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

static_assert((int)SW_QUANT_BLOCK_ELEMS <= (int)SW_TILE_ELEMS, "a block fits a tile");

#define INFINITY_BITS 0x7f800000u
/* Adding this to a number below 2^22 rounds it to an integer, to even in ties, which the low bits then hold. */
#define ROUNDING 0x1.8p23f

typedef int32_t vec_int __attribute__((vector_size(SW_LANES * sizeof(int32_t))));
typedef int8_t vec_code __attribute__((vector_size(SW_LANES)));
typedef int8_t vec_code_unaligned __attribute__((vector_size(SW_LANES), aligned(1), may_alias));

/* The codes of a block, a byte each. */
struct codes {
    _Alignas(64) int8_t code[SW_QUANT_BLOCK_ELEMS];
};

SW_INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns the bits of the largest magnitude, which is that of a NaN where there is one: without their signs, floats are
 * ordered as their bits are. */
SW_INLINE uint32_t largest_bits(const float *values) {
    vec_int most = {0};
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i += SW_LANES) {
        const vec_int bits = (vec_int)sw_vec_load(values + i) & 0x7fffffff, more = bits > most;
        most = (bits & more) | (most & ~more);
    }
    int32_t largest = 0;
    for (int i = 0; i < SW_LANES; i++)
        largest = most[i] > largest ? most[i] : largest;
    return (uint32_t)largest;
}

/* Returns the scale and its reciprocal, which is 0 where all codes are. */
SW_INLINE float scale_of(const sw_quant quant, const float *values, float *out_inverse) {
    const bool narrow = quant == SW_QUANT_INT4;
    const float most_scale = narrow ? SW_QUANT_INT4_MOST_SCALE : SW_QUANT_INT8_MOST_SCALE;
    const uint32_t largest = largest_bits(values);
    const float scale = float_of(largest) / (narrow ? (float)SW_QUANT_INT4_MOST : (float)SW_QUANT_INT8_MOST);
    *out_inverse = 0.0f;
    if (largest >= INFINITY_BITS)
        return float_of(SW_QUANT_NAN_BITS);
    if (scale < SW_QUANT_LEAST_SCALE)
        return 0.0f;
    const float capped = scale < most_scale ? scale : most_scale;
    *out_inverse = 1.0f / capped;
    return capped;
}

SW_INLINE void make_codes(const float *values, float inverse, int8_t *code) {
    if (inverse == 0.0f) {
        memset(code, 0, SW_QUANT_BLOCK_ELEMS);
        return;
    }
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i += SW_LANES) {
        const sw_vec rounded = sw_vec_load(values + i) * inverse + ROUNDING;
        const vec_int whole = (vec_int)rounded - (vec_int)sw_vec_splat(ROUNDING);
        *(vec_code_unaligned *)(code + i) = __builtin_convertvector(whole, vec_code);
    }
}

/* Joins neighbours in one byte, the first in its lower half. */
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
        scales[block] = scale_of(op->quant, values, &inverse);
        if (op->quant == SW_QUANT_INT8) {
            make_codes(values, inverse, (int8_t *)record + block * SW_QUANT_BLOCK_ELEMS);
        } else {
            make_codes(values, inverse, codes.code);
            pack(&codes, (uint8_t *)record + block * SW_QUANT_BLOCK_ELEMS / 2);
        }
    }
}

/* Adds what a block of a record stands for to the sum, or sets the sum to it. */
SW_INLINE void add_block(const int8_t *code, float scale, const bool first, float *sum) {
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i += SW_LANES) {
        const vec_code codes = *(const vec_code_unaligned *)(code + i);
        const sw_vec value = __builtin_convertvector(__builtin_convertvector(codes, vec_int), sw_vec) * scale;
        sw_vec_store(sum + i, first ? value : sw_vec_load(sum + i) + value);
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
        add_block(code, scale, true, sum);
    else
        add_block(code, scale, false, sum);
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

static sw_status quantize(struct sw_stream *stream, const void *args) {
    const struct sw_quantize *op = args;
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (op->grains > 1)
    for (int64_t grain = 0; grain < op->grains; grain++)
        quantize_grain(op, grain);
    return SW_OK;
}

static sw_status dequantize(struct sw_stream *stream, const void *args) {
    const struct sw_dequantize *op = args;
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (op->grains > 1)
    for (int64_t grain = 0; grain < op->grains; grain++)
        dequantize_grain(op, grain);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_quant)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_QUANTIZE] = quantize;
    ops->op[SW_DEVICE_DEQUANTIZE] = dequantize;
}
