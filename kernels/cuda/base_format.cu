/* Elements of a frozen base from its records, with the bits of ref/base_format.c. A block first makes the scales of its
 * elements, each thread one or two, and the levels of 4-bit codes; a thread then takes vectors of eight elements. */
#include "kernels/cuda/grid.cuh"

#include "core/base_format.h"

enum {
    VECTORS = 4, /* vectors of a thread */
    VECTOR_STEP = SW_BLOCK_THREADS * SW_ELEMS,
    BLOCK_ELEMS = VECTORS * VECTOR_STEP,
};

/* The bytes of a grain's record and the elements of a scale, as core/base_format.h has them for the host. */
template <sw_base_format format> struct layout_of {
    static constexpr bool nf4 = format == SW_BASE_NF4, mxfp4 = format == SW_BASE_MXFP4, fp8 = format == SW_BASE_FP8;
    static constexpr int64_t record_bytes = nf4     ? (int64_t)SW_NF4_RECORD_BYTES
                                            : mxfp4 ? (int64_t)SW_MXFP4_RECORD_BYTES
                                            : fp8   ? (int64_t)SW_FP8_RECORD_BYTES
                                                    : SW_GRAIN_ELEMS + SW_QUANT_GRAIN_BLOCKS * (int64_t)sizeof(float);
    static constexpr int scale_elems = nf4     ? (int)SW_NF4_BLOCK_ELEMS
                                       : mxfp4 ? (int)SW_MXFP4_BLOCK_ELEMS
                                       : fp8   ? (int)SW_FP8_BASE_BLOCK_ELEMS
                                               : (int)SW_QUANT_BLOCK_ELEMS;
    static constexpr int scales = BLOCK_ELEMS / scale_elems + 1; /* a block need not begin with a scale's elements */
    static constexpr int scale_turns = (scales + SW_BLOCK_THREADS - 1) / SW_BLOCK_THREADS; /* scales of a thread */
    static constexpr int byte_codes = nf4 || mxfp4 ? 2 : 1;
    static constexpr int code_bits = 8 / byte_codes;
    static constexpr int words = SW_ELEMS * code_bits / 32; /* words of a vector's codes */
};
template <sw_base_format format>
static __device__ __forceinline__ const uint8_t *record_of(const uint8_t *records, int64_t elem) {
    return records + elem / SW_GRAIN_ELEMS * layout_of<format>::record_bytes;
}

static __device__ __forceinline__ float word_float(const uint8_t *from) {
    return *(const float *)(const void *)from;
}

/* Returns the scale of an element's block. */
template <sw_base_format format>
static __device__ __forceinline__ float scale_of(const uint8_t *records, int64_t elem) {
    const uint8_t *record = record_of<format>(records, elem);
    const int block = (int)(elem % SW_GRAIN_ELEMS) / layout_of<format>::scale_elems;
    if (layout_of<format>::mxfp4)
        return sw_mxfp4_scale(record[SW_GRAIN_ELEMS / 2 + block]);
    if (!layout_of<format>::nf4)
        return word_float(record + SW_GRAIN_ELEMS + block * (int)sizeof(float));
    const uint8_t *scales = record + SW_GRAIN_ELEMS / 2, *last = scales + SW_NF4_GRAIN_BLOCKS;
    return sw_nf4_scale(sw_nf4_scale_level(scales[block]), word_float(last), word_float(last + sizeof(float)));
}

/* Loads the codes of a vector, which is within one grain. */
template <sw_base_format format>
static __device__ __forceinline__ void load_whole(const uint8_t *records, int64_t elem,
                                                  uint32_t words[layout_of<format>::words]) {
    const uint8_t *codes = record_of<format>(records, elem) + elem % SW_GRAIN_ELEMS / layout_of<format>::byte_codes;
    SW_UNROLL
    for (int w = 0; w < layout_of<format>::words; w++)
        words[w] = ((const uint32_t *)(const void *)codes)[w];
}

/* Loads the codes of `count` elements from anywhere, one by one, and zeros after them. */
template <sw_base_format format>
static __device__ __forceinline__ void load_codes(const uint8_t *records, int64_t elem, int64_t count,
                                                  uint32_t words[layout_of<format>::words]) {
    typedef layout_of<format> layout;
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++) {
        const int at = (int)((elem + i) % SW_GRAIN_ELEMS), shift = at % layout::byte_codes * layout::code_bits;
        const uint32_t byte = i < count ? record_of<format>(records, elem + i)[at / layout::byte_codes] : 0;
        uint32_t *word = &words[i * layout::code_bits / 32];
        *word = (i * layout::code_bits % 32 == 0 ? 0 : *word >> layout::code_bits) |
                byte >> shift << (32 - layout::code_bits);
    }
}

/* Returns the value of code i of a vector. */
template <sw_base_format format>
static __device__ __forceinline__ float value_of(const uint32_t words[layout_of<format>::words], int i,
                                                 const float levels[SW_NF4_LEVELS], float scale) {
    typedef layout_of<format> layout;
    if (layout::fp8) {
        const float value = sw_fp8_value(SW_FP8_E4M3, (uint8_t)(words[i / 4] >> (i % 4 * 8))) * scale;
        return value != value ? sw_bits_float(SW_QUANT_NAN_BITS) : value;
    }
    const float level = layout::byte_codes == 2 ? levels[words[0] >> (i * 4) & 15u]
                                                : (float)((int32_t)(words[i / 4] << (24 - i % 4 * 8)) >> 24);
    return scale != scale ? sw_bits_float(SW_QUANT_NAN_BITS) : level * scale;
}

template <typename T, sw_base_format format>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    dequantize_kernel(const uint8_t *records, int64_t first_elem, int64_t elems, bool aligned, T *to) {
    typedef layout_of<format> layout;
    SW_SHARED(float, scales, [layout::scales]);
    SW_SHARED(float, levels, [SW_NF4_LEVELS]);
    const int thread = (int)threadIdx.x;
    const int64_t block_at = (int64_t)blockIdx.x * BLOCK_ELEMS, first = block_at + thread * SW_ELEMS;
    const int64_t first_scale = (first_elem + block_at) / layout::scale_elems;
    const bool whole = aligned && block_at + BLOCK_ELEMS <= elems;
    uint32_t words[VECTORS][layout::words];
    float values[SW_ELEMS];
    SW_UNROLL
    for (int v = 0; v < VECTORS && whole; v++)
        load_whole<format>(records, first_elem + first + v * VECTOR_STEP, words[v]);
    SW_UNROLL
    for (int turn = 0; turn < layout::scale_turns; turn++) {
        const int s = thread + turn * SW_BLOCK_THREADS;
        if (s < layout::scales && (first_scale + s) * layout::scale_elems < first_elem + elems)
            scales[s] = scale_of<format>(records, (first_scale + s) * layout::scale_elems);
    }
    if (thread < SW_NF4_LEVELS)
        levels[thread] = layout::mxfp4 ? sw_mxfp4_level(thread) : sw_nf4_level(thread);
    __syncthreads();
    SW_UNROLL
    for (int v = 0; v < VECTORS && whole; v++) {
        const int64_t at = first + v * VECTOR_STEP;
        const float scale = scales[(int)((first_elem + at) / layout::scale_elems - first_scale)];
        SW_UNROLL
        for (int i = 0; i < SW_ELEMS; i++)
            values[i] = value_of<format>(words[v], i, levels, scale);
        sw_store_whole(to + at, values);
    }
    for (int64_t at = first; at < elems && at < first + BLOCK_ELEMS && !whole; at += VECTOR_STEP) {
        load_codes<format>(records, first_elem + at, elems - at, words[0]);
        SW_UNROLL
        for (int i = 0; i < SW_ELEMS; i++) {
            const float scale = scales[(int)((first_elem + at + i) / layout::scale_elems - first_scale)];
            values[i] = value_of<format>(words[0], i, levels, scale);
        }
        sw_store_elems(to + at, elems - at, false, values);
    }
}

template <typename T, sw_base_format format>
static void dequantize_format(cudaStream_t stream, const sw_dequantize_base *op) {
    const bool aligned = op->first_elem % SW_ELEMS == 0 && sw_is_aligned(op->to);
    SW_LAUNCH((dequantize_kernel<T, format>), sw_blocks(op->elems, BLOCK_ELEMS), SW_BLOCK_THREADS, 0, stream,
              (const uint8_t *)op->records, op->first_elem, op->elems, aligned, (T *)op->to);
}

template <typename T> static void dequantize(cudaStream_t stream, const sw_dequantize_base *op) {
    switch (op->format) {
    case SW_BASE_NF4: return dequantize_format<T, SW_BASE_NF4>(stream, op);
    case SW_BASE_FP8: return dequantize_format<T, SW_BASE_FP8>(stream, op);
    case SW_BASE_MXFP4: return dequantize_format<T, SW_BASE_MXFP4>(stream, op);
    case SW_BASE_INT8:
    case SW_BASE_TYPED: break;
    }
    dequantize_format<T, SW_BASE_INT8>(stream, op);
}

void sw_cuda_dequantize_base(cudaStream_t stream, const void *args) {
    const sw_dequantize_base *op = (const sw_dequantize_base *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, dequantize, stream, op);
}
