#include "kernels/cpu/quant.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

static_assert((int)SW_QUANT_BLOCK_ELEMS <= (int)SW_TILE_ELEMS, "a block fits a tile");

/* The codes of a block, a byte each. */
struct codes {
    _Alignas(64) int8_t code[SW_QUANT_BLOCK_ELEMS];
};

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

void SW_ISA_NAME(sw_cpu_add_quant)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_QUANTIZE] = quantize;
    ops->op[SW_DEVICE_DEQUANTIZE] = dequantize;
}
