#include "core/size.h"
#include "kernels/ref/ref.h"

#include <math.h>

/* Returns the scale of a block before it is quantized, and whether the block is finite. */
static float largest_normal(const float *values, bool *out_finite) {
    float largest = 0.0f;
    *out_finite = true;
    for (int i = 0; i < SW_NF4_BLOCK_ELEMS; i++) {
        *out_finite = *out_finite && isfinite(values[i]);
        largest = fmaxf(largest, fabsf(values[i]));
    }
    return largest >= FLT_MIN ? largest : 0.0f;
}

/* Returns the code of the nearest level. */
static int code_of(float value, float scale) {
    const float scaled = value * (1.0f / scale);
    int code = 0;
    if (scale == 0.0f)
        return SW_NF4_ZERO;
    while (code < SW_NF4_LEVELS - 1 && scaled > (sw_nf4_level(code) + sw_nf4_level(code + 1)) * 0.5f)
        code++;
    return code;
}

/* Returns the code of a scale minus the offset. */
static int scale_code_of(float value, float spread) {
    const float scaled = value * (1.0f / spread);
    const int most = value < 0.0f ? SW_NF4_SCALE_ZERO : SW_NF4_SCALE_ONE - SW_NF4_SCALE_ZERO;
    int number = 0;
    if (spread == 0.0f)
        return SW_NF4_SCALE_ZERO;
    while (number < most && fabsf(scaled) > (sw_nf4_scale_level(SW_NF4_SCALE_ZERO + number) +
                                             sw_nf4_scale_level(SW_NF4_SCALE_ZERO + number + 1)) *
                                                0.5f)
        number++;
    return SW_NF4_SCALE_ZERO + (value < 0.0f ? -number : number);
}

static void quantize_scales(const float *scales, struct sw_nf4_record *record) {
    double sum = 0.0;
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++)
        sum += (double)scales[b];
    record->offset = (float)(sum / SW_NF4_GRAIN_BLOCKS);
    record->spread = 0.0f;
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++)
        record->spread = fmaxf(record->spread, fabsf(scales[b] - record->offset));
    if (record->spread < FLT_MIN)
        record->spread = 0.0f;
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++)
        record->scale_codes[b] = (uint8_t)scale_code_of(scales[b] - record->offset, record->spread);
}

static void make_nan(struct sw_nf4_record *record) {
    const uint32_t nan = SW_QUANT_NAN_BITS;
    memset(record->codes, SW_NF4_ZERO | SW_NF4_ZERO << 4, sizeof record->codes);
    memset(record->scale_codes, SW_NF4_SCALE_ZERO, sizeof record->scale_codes);
    memcpy(&record->spread, &nan, sizeof nan);
    memcpy(&record->offset, &nan, sizeof nan);
}

static void quantize_nf4(sw_dtype type, const void *from, int64_t first, struct sw_nf4_record *record) {
    float scales[SW_NF4_GRAIN_BLOCKS], values[SW_NF4_BLOCK_ELEMS];
    bool all_finite = true, finite;
    *record = (struct sw_nf4_record){0};
    for (int b = 0; b < SW_NF4_GRAIN_BLOCKS; b++) {
        for (int i = 0; i < SW_NF4_BLOCK_ELEMS; i++)
            values[i] = sw_dtype_load(type, from, first + b * SW_NF4_BLOCK_ELEMS + i);
        scales[b] = largest_normal(values, &finite);
        all_finite = all_finite && finite;
        for (int i = 0; i < SW_NF4_BLOCK_ELEMS; i++)
            record->codes[(b * SW_NF4_BLOCK_ELEMS + i) / 2] |= (uint8_t)(code_of(values[i], scales[b]) << i % 2 * 4);
    }
    if (all_finite)
        quantize_scales(scales, record);
    else
        make_nan(record);
}

static sw_status quantize(struct sw_stream *stream, const void *args) {
    const struct sw_quantize_base *op = args;
    if (op->format == SW_BASE_INT8)
        return stream->device->ops.op[SW_DEVICE_QUANTIZE](
            stream, &(const struct sw_quantize){op->type, SW_QUANT_INT8, op->grains, op->from, op->records});
    for (int64_t grain = 0; grain < op->grains; grain++)
        quantize_nf4(op->type, op->from, grain * SW_GRAIN_ELEMS, (struct sw_nf4_record *)op->records + grain);
    return SW_OK;
}

static float int8_value(const char *record, int64_t at) {
    const float *scales = (const float *)(const void *)(record + sw_quant_code_bytes(SW_QUANT_INT8));
    return (float)(signed char)record[at] * scales[at / SW_QUANT_BLOCK_ELEMS];
}

static float nf4_value(const struct sw_nf4_record *record, int64_t at) {
    const float scale_level = sw_nf4_scale_level(record->scale_codes[at / SW_NF4_BLOCK_ELEMS]);
    return sw_nf4_level(record->codes[at / 2] >> at % 2 * 4 & 15) *
           sw_nf4_scale(scale_level, record->spread, record->offset);
}

static float value_of(sw_base_format format, const char *bytes, int64_t at) {
    const void *record = bytes;
    const struct sw_fp8_record *fp8 = record;
    const struct sw_mxfp4_record *mxfp4 = record;
    switch (format) {
    case SW_BASE_NF4: return nf4_value(record, at);
    case SW_BASE_FP8: return sw_fp8_value(SW_FP8_E4M3, fp8->codes[at]) * fp8->scales[at / SW_FP8_BASE_BLOCK_ELEMS];
    case SW_BASE_MXFP4:
        return sw_mxfp4_level(mxfp4->codes[at / 2] >> at % 2 * 4 & 15) *
               sw_mxfp4_scale(mxfp4->scales[at / SW_MXFP4_BLOCK_ELEMS]);
    case SW_BASE_INT8:
    case SW_BASE_TYPED: break;
    }
    return int8_value(bytes, at);
}

static sw_status dequantize(struct sw_stream *stream, const void *args) {
    const struct sw_dequantize_base *op = args;
    const uint32_t nan_bits = SW_QUANT_NAN_BITS;
    float nan;
    (void)stream;
    memcpy(&nan, &nan_bits, sizeof nan);
    for (int64_t i = 0; i < op->elems; i++) {
        const int64_t grain = (op->first_elem + i) / SW_GRAIN_ELEMS, at = (op->first_elem + i) % SW_GRAIN_ELEMS;
        const char *record = (const char *)op->records + grain * sw_base_grain_bytes(op->format);
        const float value = value_of(op->format, record, at);
        sw_dtype_store(op->type, op->to, i, isnan(value) ? nan : value);
    }
    return SW_OK;
}

void sw_ref_add_base_format(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_QUANTIZE_BASE] = quantize;
    ops->op[SW_DEVICE_DEQUANTIZE_BASE] = dequantize;
}
