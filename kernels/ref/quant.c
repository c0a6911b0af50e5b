#include "kernels/ref/ref.h"

#include <math.h>

static float largest_magnitude(const float *values, bool *out_finite) {
    float largest = 0.0f;
    *out_finite = true;
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i++) {
        *out_finite = *out_finite && isfinite(values[i]);
        largest = fmaxf(largest, fabsf(values[i]));
    }
    return largest;
}

static float nan_scale(void) {
    const uint32_t bits = SW_QUANT_NAN_BITS;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* Returns the scale of a block: NaN where the block is not finite, 0 where the scale would not be a normal number. */
static float scale_of(sw_quant quant, const float *values) {
    const bool narrow = quant == SW_QUANT_INT4;
    bool finite;
    const float largest = largest_magnitude(values, &finite);
    const float scale = largest / (narrow ? (float)SW_QUANT_INT4_MOST : (float)SW_QUANT_INT8_MOST);
    if (!finite)
        return nan_scale();
    if (scale < SW_QUANT_LEAST_SCALE)
        return 0.0f;
    return fminf(scale, narrow ? SW_QUANT_INT4_MOST_SCALE : SW_QUANT_INT8_MOST_SCALE);
}

static int code_of(float value, float scale) {
    const float inverse = 1.0f / scale;
    return scale > 0.0f ? (int)rintf(value * inverse) : 0; /* neither 0 nor NaN has codes */
}

static void set_code(sw_quant quant, unsigned char *codes, int64_t at, int code) {
    if (quant == SW_QUANT_INT8)
        codes[at] = (unsigned char)code;
    else
        codes[at / 2] = (unsigned char)(at % 2 == 0 ? code & 15 : codes[at / 2] | (code & 15) << 4);
}

static int get_code(sw_quant quant, const unsigned char *codes, int64_t at) {
    if (quant == SW_QUANT_INT8)
        return (signed char)codes[at];
    const int half = codes[at / 2] >> (at % 2 * 4) & 15;
    return half - (half >= 8 ? 16 : 0);
}

static float *scales_of(sw_quant quant, unsigned char *record) {
    return (float *)(void *)(record + sw_quant_code_bytes(quant));
}

static sw_status quantize(struct sw_stream *stream, const void *args) {
    const struct sw_quantize *op = args;
    (void)stream;
    for (int64_t block = 0; block < op->grains * SW_QUANT_GRAIN_BLOCKS; block++) {
        const int64_t grain = block / SW_QUANT_GRAIN_BLOCKS, number = block % SW_QUANT_GRAIN_BLOCKS;
        unsigned char *record = (unsigned char *)op->to + grain * sw_quant_grain_bytes(op->quant);
        float values[SW_QUANT_BLOCK_ELEMS];
        for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i++)
            values[i] = sw_dtype_load(op->type, op->from, block * SW_QUANT_BLOCK_ELEMS + i);
        const float scale = scale_of(op->quant, values);
        scales_of(op->quant, record)[number] = scale;
        for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i++)
            set_code(op->quant, record, number * SW_QUANT_BLOCK_ELEMS + i, code_of(values[i], scale));
    }
    return SW_OK;
}

static float value_of(sw_quant quant, const unsigned char *records, int64_t elem) {
    const unsigned char *record = records + elem / SW_GRAIN_ELEMS * sw_quant_grain_bytes(quant);
    const int64_t at = elem % SW_GRAIN_ELEMS;
    const float *scales = (const float *)(const void *)(record + sw_quant_code_bytes(quant));
    return (float)get_code(quant, record, at) * scales[at / SW_QUANT_BLOCK_ELEMS];
}

static const unsigned char *records_of(const struct sw_dequantize *op, int rank) {
    if (rank == op->rank)
        return op->own;
    return (const unsigned char *)op->others + (rank - (rank > op->rank)) * op->stride_bytes;
}

static sw_status dequantize(struct sw_stream *stream, const void *args) {
    const struct sw_dequantize *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->grains * SW_GRAIN_ELEMS; i++) {
        float sum = value_of(op->quant, records_of(op, 0), i);
        for (int rank = 1; rank < op->ranks; rank++)
            sum += value_of(op->quant, records_of(op, rank), i);
        sw_dtype_store(op->type, op->to, i, sum);
    }
    return SW_OK;
}

void sw_ref_add_quant(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_QUANTIZE] = quantize;
    ops->op[SW_DEVICE_DEQUANTIZE] = dequantize;
}
