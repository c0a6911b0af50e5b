#include "core/size.h"
#include "kernels/ref/ref.h"

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
