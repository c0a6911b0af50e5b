/* Ops that produce or consume numbers of fewer bits; ops.h includes this file. */
#ifndef SW_KERNELS_OPS_NARROW_H
#define SW_KERNELS_OPS_NARROW_H

#include "core/dtype.h"
#include "core/fp8.h"
#include "core/optimizer_format.h"
#include "core/quant.h"

#include <stdbool.h>
#include <stdint.h>

/* Quantizes grains (of type) into records, one after the other (core/quant.h). Both begin at a multiple of 16 bytes.
 * Every implementation has the bits of ref/quant.c. */
struct sw_quantize {
    sw_dtype type;
    sw_quant quant;
    int64_t grains;
    const void *from;
    void *to;
};
#define sw_quantize(stream, ...) sw_device_run(stream, SW_DEVICE_QUANTIZE, &(const struct sw_quantize){__VA_ARGS__})

/* to (of type) = round(the sum of the values of `ranks` sets of records), added in fp32 in the order of ranks; with one
 * rank, the values of its records. This rank's records are separate; those of the others, in their order, are
 * stride_bytes apart (NULL: there are no others). All begin at multiples of 16 bytes. Every implementation has the bits
 * of ref/quant.c, except for the payload of a NaN. */
struct sw_dequantize {
    sw_dtype type;
    sw_quant quant;
    int64_t grains;
    int rank, ranks;
    int64_t stride_bytes;
    const void *own, *others;
    void *to;
};
#define sw_dequantize(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_DEQUANTIZE, &(const struct sw_dequantize){__VA_ARGS__})

/* Encodes a matrix in 8 bits with one scale (core/fp8.h). codes: [rows, cols], or [cols, rows] with `transpose`. Every
 * implementation has the bits of ref/fp8.c. */
struct sw_encode_fp8 {
    sw_dtype type;
    sw_fp8 as;
    int64_t rows, cols;
    bool transpose;
    const void *from;
    uint8_t *codes;
    float *scale; /* [1 + SW_FP8_PARTS] the first receives the scale; the device may use the others */
};
#define sw_encode_fp8(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_ENCODE_FP8, &(const struct sw_encode_fp8){__VA_ARGS__})

/* to (of type) = the values of the codes, times *scale. */
struct sw_decode_fp8 {
    sw_dtype type;
    sw_fp8 as;
    int64_t elems;
    const uint8_t *codes;
    const float *scale;
    void *to;
};
#define sw_decode_fp8(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_DECODE_FP8, &(const struct sw_decode_fp8){__VA_ARGS__})

/* Makes the weights of a unit's grains from the masters in their records: SW_GRAIN_ELEMS bytes a grain, which hold its
 * elements in e4m3 with the grain's scale (core/fp8.h), or, from element wide_elem on, the first SW_WIDE_GRAIN_ELEMS
 * elements of a wide grain in `type`, of 16 bits. Every implementation has the bits of ref/fp8.c. */
struct sw_pack_weights {
    sw_dtype type;
    int64_t first_elem; /* a multiple of SW_GRAIN_ELEMS */
    int64_t grains;
    int64_t wide_elem; /* the first element of the unit's wide grains; without wide grains, the number of the unit's
                          elements */
    sw_optimizer_format format;
    const void *records;
    void *weights;
};
#define sw_pack_weights(stream, ...)                                                                                   \
    sw_device_run(stream, SW_DEVICE_PACK_WEIGHTS, &(const struct sw_pack_weights){__VA_ARGS__})

/* to (of type) = elements [first_elem, first_elem + elems) of a unit, before its wide grains, from weights in the
 * layout of sw_pack_weights. Loses nothing in bf16. */
struct sw_unpack_weights {
    sw_dtype type;
    int64_t first_elem, elems;
    const void *weights; /* of the unit's first grain */
    void *to;
};
#define sw_unpack_weights(stream, ...)                                                                                 \
    sw_device_run(stream, SW_DEVICE_UNPACK_WEIGHTS, &(const struct sw_unpack_weights){__VA_ARGS__})

#endif
