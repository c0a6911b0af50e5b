/* The formats of a frozen base's weights: elements of the compute type; int8, or 4-bit NormalFloat with doubly
 * quantized scales (QLoRA, Dettmers et al., arXiv 2305.14314), which are made from any weights; and fp8 and MXFP4,
 * which a checkpoint has and the base keeps unchanged. Each grain of a unit's vector has a record of its own, so it is
 * made, moved and checked by itself. Numbers of several bytes are little-endian.
 *
 * int8: the record of SW_QUANT_INT8 (core/quant.h), which is LLM.int8()'s rounding by the largest magnitude (Dettmers
 * et al., arXiv 2208.07339, section 2.1) for blocks of 256 elements instead of rows. bitsandbytes quantizes the scales
 * of nf4 to 8 bits in blocks of this size too (quantize_4bit in its functional.py). A block may have elements of two
 * tensors.
 *
 * nf4: a block is 64 elements, all of one tensor. Its scale is its largest magnitude. An element times the scale's
 * rounded reciprocal gets the code of the nearest of 16 levels, the lower of two at the same distance. A block whose
 * largest magnitude is not a normal number has the scale 0 and the codes of level 0.
 *
 * The 256 scales of a grain are then quantized to 8 bits, as one block. Their mean, added in double in the order of the
 * blocks and rounded once, is the offset; the largest magnitude of a scale minus the offset is the spread. A scale
 * minus the offset, times the spread's rounded reciprocal, gets the code of the nearest level of the dynamic data type
 * (Dettmers, arXiv 1511.04561), the smaller magnitude of two at the same distance. If the spread is not a normal
 * number, it is 0 and all codes are those of level 0. The paper says "8-bit floats"; this type is what bitsandbytes
 * takes for them. bitsandbytes has one offset for a whole tensor, so a tensor of one grain gets the same codes and
 * scales there.
 *
 * An element becomes the level of its code times sw_nf4_scale of its block. If an element is an infinity or a NaN, the
 * grain's spread and offset are NaN, its codes those of level 0, and all its elements become the NaN SW_QUANT_NAN_BITS:
 * such weights stay an error.
 *
 * fp8: an e4m3 code for each element (core/fp8.h) and an fp32 scale for each 128. In checkpoints (DeepSeek-V3, arXiv
 * 2412.19437, section 3.3) 128 x 128 elements of a matrix have one scale, or a row or the whole matrix has. Each 128
 * neighbours of a row then share a scale, and where rows are multiples of 128 long, so do each 128 neighbours of a
 * unit's vector. An element becomes its code's number times the scale, rounded once.
 *
 * mxfp4 (OCP Microscaling Formats 1.0): a 4-bit e2m1 code for each element and a scale for each 32 neighbours of a row.
 * A scale is a byte that stands for 2^(byte - 127), or NaN if it is 255. The product of number and scale is exact
 * unless it is above the largest number, and then it is an infinity.
 *
 * In both, elements that are not a number become the NaN SW_QUANT_NAN_BITS. */
#ifndef SW_CORE_BASE_FORMAT_H
#define SW_CORE_BASE_FORMAT_H

#include "core/fp8.h"
#include "core/quant.h"

#include <float.h>
#include <stddef.h>

typedef enum { SW_BASE_TYPED = 0, SW_BASE_INT8, SW_BASE_NF4, SW_BASE_FP8, SW_BASE_MXFP4 } sw_base_format;

/* Kernels call these functions too, and CUDA's compiler must be told so. */
#ifdef __CUDACC__
#define SW_BASE_INLINE static __host__ __device__ __forceinline__
#else
#define SW_BASE_INLINE static inline
#endif

enum {
    SW_NF4_LEVELS = 16,
    SW_NF4_ZERO = 7, /* the code of level 0 */
    SW_NF4_BLOCK_ELEMS = 64,
    SW_NF4_GRAIN_BLOCKS = SW_GRAIN_ELEMS / SW_NF4_BLOCK_ELEMS,
    SW_NF4_SCALE_LEVELS = 256,
    SW_NF4_SCALE_ZERO = 127, /* the code of level 0; codes at the same distance from it have opposite levels */
    SW_NF4_SCALE_ONE = 255,  /* the code of level 1, which has no opposite */
    SW_FP8_BASE_BLOCK_ELEMS = 128,
    SW_FP8_BASE_BLOCKS = SW_GRAIN_ELEMS / SW_FP8_BASE_BLOCK_ELEMS,
    SW_MXFP4_LEVELS = 16,
    SW_MXFP4_BLOCK_ELEMS = 32,
    SW_MXFP4_BLOCKS = SW_GRAIN_ELEMS / SW_MXFP4_BLOCK_ELEMS,
    SW_MXFP4_SCALE_NAN = 255,
};

/* A grain's record in nf4. Of two codes in a byte, the first has the lower half. */
struct sw_nf4_record {
    uint8_t codes[SW_GRAIN_ELEMS / 2];
    uint8_t scale_codes[SW_NF4_GRAIN_BLOCKS];
    float spread, offset;
    uint8_t zeros[56]; /* up to whole lines of 64 bytes; 64 records fill whole pages, as drives transfer them */
};
#define SW_NF4_RECORD_BYTES 8512
#define SW_NF4_RECORDS_OF_PAGES 64 /* the fewest records that fill whole pages */
static_assert(SW_TENSOR_ALIGN_ELEMS % SW_NF4_BLOCK_ELEMS == 0, "tensors begin at whole blocks");
static_assert(sizeof(struct sw_nf4_record) == SW_NF4_RECORD_BYTES, "the record is part of the on-disk format");
static_assert(offsetof(struct sw_nf4_record, spread) == 8448, "scales follow the codes without a gap");
static_assert(SW_NF4_RECORDS_OF_PAGES * SW_NF4_RECORD_BYTES % SW_BUFFER_ALIGN_BYTES == 0,
              "a run of records allows direct I/O");

/* A grain's record in fp8. */
struct sw_fp8_record {
    uint8_t codes[SW_GRAIN_ELEMS];
    float scales[SW_FP8_BASE_BLOCKS];
};
#define SW_FP8_RECORD_BYTES 16896
static_assert(sizeof(struct sw_fp8_record) == SW_FP8_RECORD_BYTES, "the record is part of the on-disk format");

/* A grain's record in mxfp4. Of two codes in a byte, the first has the lower half. */
struct sw_mxfp4_record {
    uint8_t codes[SW_GRAIN_ELEMS / 2];
    uint8_t scales[SW_MXFP4_BLOCKS];
};
#define SW_MXFP4_RECORD_BYTES 8704
static_assert(sizeof(struct sw_mxfp4_record) == SW_MXFP4_RECORD_BYTES, "the record is part of the on-disk format");

/* Returns the name that flags and messages use. */
static inline const char *sw_base_format_name(sw_base_format format) {
    switch (format) {
    case SW_BASE_INT8: return "int8";
    case SW_BASE_NF4: return "nf4";
    case SW_BASE_FP8: return "fp8";
    case SW_BASE_MXFP4: return "mxfp4";
    case SW_BASE_TYPED: break;
    }
    return "compute";
}

/* Returns the bytes of a grain's record. */
static inline int64_t sw_base_grain_bytes(sw_base_format format) {
    switch (format) {
    case SW_BASE_NF4: return SW_NF4_RECORD_BYTES;
    case SW_BASE_FP8: return SW_FP8_RECORD_BYTES;
    case SW_BASE_MXFP4: return SW_MXFP4_RECORD_BYTES;
    case SW_BASE_INT8:
    case SW_BASE_TYPED: break;
    }
    return sw_quant_grain_bytes(SW_QUANT_INT8);
}

/* Returns how many neighbours of a row share a scale in a format that only checkpoints have; 0: bases of this format
 * are made from any weights. */
static inline int64_t sw_base_stored_elems(sw_base_format format) {
    if (format == SW_BASE_FP8)
        return SW_FP8_BASE_BLOCK_ELEMS;
    return format == SW_BASE_MXFP4 ? SW_MXFP4_BLOCK_ELEMS : 0;
}

/* Returns a level of nf4 (appendix E of the paper). Comparisons take the place of a table, which a GPU would have to
 * keep in memory. */
SW_BASE_INLINE float sw_nf4_level(int code) {
    float level = -1.0f;
    level = code == 1 ? -0.6961928009986877f : level;
    level = code == 2 ? -0.5250730514526367f : level;
    level = code == 3 ? -0.39491748809814453f : level;
    level = code == 4 ? -0.28444138169288635f : level;
    level = code == 5 ? -0.18477343022823334f : level;
    level = code == 6 ? -0.09105003625154495f : level;
    level = code == 7 ? 0.0f : level;
    level = code == 8 ? 0.07958029955625534f : level;
    level = code == 9 ? 0.16093020141124725f : level;
    level = code == 10 ? 0.24611230194568634f : level;
    level = code == 11 ? 0.33791524171829224f : level;
    level = code == 12 ? 0.44070982933044434f : level;
    level = code == 13 ? 0.5626170039176941f : level;
    level = code == 14 ? 0.7229568362236023f : level;
    level = code == 15 ? 1.0f : level;
    return level;
}

/* Returns a level of the dynamic data type. Its 127 positive levels below 1 have decades: 2^d levels in (10^(d-7),
 * 10^(d-6)), the midpoints of as many equal parts. As a fraction level k of decade d is (2^(d+1) + 9·(2k+1)) / (256 ·
 * 5^(7-d)), whose terms fp32 holds exactly, so that it is rounded once. */
SW_BASE_INLINE float sw_nf4_scale_level(int code) {
    const int from_zero = code - SW_NF4_SCALE_ZERO, number = from_zero < 0 ? -from_zero : from_zero;
    int levels = 1, divisor = 256 * 78125;
    if (number == 0 || code == SW_NF4_SCALE_ONE)
        return number == 0 ? 0.0f : 1.0f;
    while (2 * levels <= number) {
        levels *= 2;
        divisor /= 5;
    }
    const float level = (float)(2 * levels + 9 * (2 * (number - levels) + 1)) / (float)divisor;
    return from_zero < 0 ? -level : level;
}

/* Returns the scale of a block by the level of its code: level · spread + offset, each operation rounded, no smaller
 * than 0 and no larger than the largest number. */
SW_BASE_INLINE float sw_nf4_scale(float level, float spread, float offset) {
    const float scale = level * spread + offset;
    if (scale > FLT_MAX)
        return FLT_MAX;
    return scale < 0.0f ? 0.0f : scale;
}

/* Returns the number of an e2m1 code: 0, 0.5, 1, 1.5, 2, 3, 4 or 6, and its opposite for codes from 8 on. */
SW_BASE_INLINE float sw_mxfp4_level(int code) {
    const int magnitude = code & 7;
    const int halves = magnitude < 2 ? magnitude : (2 | (magnitude & 1)) << ((magnitude >> 1) - 1);
    const float level = 0.5f * (float)halves;
    return (code & 8) != 0 ? -level : level;
}

/* Returns the scale that a byte stands for. The smallest is not a normal number. */
SW_BASE_INLINE float sw_mxfp4_scale(unsigned byte) {
    const uint32_t power = byte == 0 ? UINT32_C(0x00400000) : (uint32_t)byte << 23;
    return sw_fp8_float(byte == (unsigned)SW_MXFP4_SCALE_NAN ? SW_QUANT_NAN_BITS : power);
}

#endif
