#include "core/size.h"
#include "kernels/ref/ref.h"

#include <math.h>

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    entry->scratch_bytes = 0;
    return SW_OK;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    (void)entry;
}

/* Returns one element of op(A)·op(B). */
static double product(const struct sw_gemm *shape, const void *a, const void *b, int64_t row, int64_t col) {
    const int64_t a_stride = sw_gemm_a_stride(shape);
    double sum = 0.0;
    for (int64_t i = 0; i < shape->k; i++) {
        const int64_t a_index = shape->transpose_a ? i * a_stride + row : row * a_stride + i;
        const int64_t b_index = shape->transpose_b ? col * shape->k + i : i * shape->n + col;
        sum += (double)sw_dtype_load(shape->in, a, a_index) * sw_dtype_load(shape->in, b, b_index);
    }
    return sum;
}

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    (void)stream;
    (void)scratch;
    const struct sw_gemm *shape = &entry->shape;
    for (int64_t row = 0; row < shape->m; row++) {
        for (int64_t col = 0; col < shape->n; col++) {
            const int64_t index = row * sw_gemm_c_stride(shape) + col;
            double sum = product(shape, a, b, row, col);
            if (shape->bias)
                sum += sw_dtype_load(shape->in, bias, col);
            if (shape->accumulate)
                sum += sw_dtype_load(shape->out, c, index);
            if (shape->addend)
                sum += sw_dtype_load(shape->out, addend, index);
            sw_dtype_store(shape->out, c, index, (float)sum);
        }
    }
    return SW_OK;
}

void sw_ref_add_gemm(struct sw_device_ops *ops) {
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm;
}

static uint32_t largest_bits(uint32_t largest, float value) {
    const uint32_t bits = sw_fp8_bits(value) & 0x7fffffffu;
    return bits > largest ? bits : largest;
}

static sw_status encode(struct sw_stream *stream, const void *args) {
    const struct sw_encode_fp8 *op = args;
    uint32_t largest = 0;
    float inverse;
    (void)stream;
    for (int64_t i = 0; i < op->rows * op->cols; i++)
        largest = largest_bits(largest, sw_dtype_load(op->type, op->from, i));
    *op->scale = sw_fp8_scale(op->as, largest, &inverse);
    for (int64_t row = 0; row < op->rows; row++) {
        for (int64_t col = 0; col < op->cols; col++) {
            const float value = sw_dtype_load(op->type, op->from, row * op->cols + col);
            const int64_t at = op->transpose ? col * op->rows + row : row * op->cols + col;
            op->codes[at] = sw_fp8_code(op->as, value * inverse);
        }
    }
    return SW_OK;
}

static sw_status decode(struct sw_stream *stream, const void *args) {
    const struct sw_decode_fp8 *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++)
        sw_dtype_store(op->type, op->to, i, sw_fp8_value(op->as, op->codes[i]) * *op->scale);
    return SW_OK;
}

static sw_status pack(struct sw_stream *stream, const void *args) {
    const struct sw_pack_weights *op = args;
    (void)stream;
    for (int64_t grain = 0; grain < op->grains; grain++) {
        const char *record = (const char *)op->records + grain * sw_optimizer_grain_bytes(op->format);
        const float *master = (const float *)(const void *)record;
        uint8_t *codes = (uint8_t *)op->weights + grain * SW_GRAIN_ELEMS;
        uint32_t largest = 0;
        if (op->first_elem + grain * SW_GRAIN_ELEMS >= op->wide_elem) {
            for (int64_t i = 0; i < SW_WIDE_GRAIN_ELEMS; i++)
                sw_dtype_store(op->type, codes, i, master[i]);
            continue;
        }
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            largest = largest_bits(largest, master[i]);
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            codes[i] = sw_fp8_grain_code(sw_fp8_scale_byte(largest), i, master[i]);
    }
    return SW_OK;
}

static sw_status unpack(struct sw_stream *stream, const void *args) {
    const struct sw_unpack_weights *op = args;
    const uint8_t *codes = op->weights;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++) {
        const int64_t elem = op->first_elem + i;
        const float scale = sw_fp8_grain_scale(codes + elem / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS);
        sw_dtype_store(op->type, op->to, i, sw_fp8_value(SW_FP8_E4M3, codes[elem]) * scale);
    }
    return SW_OK;
}

void sw_ref_add_fp8(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ENCODE_FP8] = encode;
    ops->op[SW_DEVICE_DECODE_FP8] = decode;
    ops->op[SW_DEVICE_PACK_WEIGHTS] = pack;
    ops->op[SW_DEVICE_UNPACK_WEIGHTS] = unpack;
}

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

/* Returns the scale of a block: NaN if the block is not finite, 0 if the scale would not be a normal number. */
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
    return scale > 0.0f ? (int)rintf(value * inverse) : 0; /* scales 0 and NaN have no codes */
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
