/* Block quantization, with the bits of ref/quant.c. A warp has a block of 256 elements, and each of its lanes a vector
 * of eight: as many bytes of codes in int8, half as many in int4. */
#include "kernels/cuda/grid.cuh"

#include "core/quant.h"

enum {
    INFINITY_BITS = 0x7f800000,
    MAGNITUDE_BITS = 0x7fffffff,
    WORD_CODES = 4 /* codes of int8 in a word */
};
static_assert((int)SW_QUANT_BLOCK_ELEMS == (int)SW_WARP * (int)SW_ELEMS, "a warp has a block");

/* The bytes of a grain's record, as core/quant.h has them for the host. */
template <sw_quant quant> struct record_of {
    static constexpr int64_t code_bytes = quant == SW_QUANT_INT4 ? SW_GRAIN_ELEMS / 2 : SW_GRAIN_ELEMS;
    static constexpr int64_t bytes = code_bytes + SW_QUANT_GRAIN_BLOCKS * (int64_t)sizeof(float);
};

/* Where a thread works: its block's grain and number in it, and its first element in the grain. */
struct lane_place {
    int64_t grain;
    int block, elem;
};

static __device__ __forceinline__ lane_place place_of(void) {
    const int64_t thread = (int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x;
    const int64_t elem = thread * SW_ELEMS;
    return {elem / SW_GRAIN_ELEMS, (int)(elem % SW_GRAIN_ELEMS / SW_QUANT_BLOCK_ELEMS), (int)(elem % SW_GRAIN_ELEMS)};
}

/* Returns the bits of the block's largest magnitude; a NaN counts as the largest. Without their signs, floats have the
 * order of their bits. */
static __device__ __forceinline__ uint32_t largest_bits(const float values[SW_ELEMS]) {
    uint32_t largest = 0;
    for (int i = 0; i < SW_ELEMS; i++) {
        const uint32_t bits = sw_float_bits(values[i]) & MAGNITUDE_BITS;
        largest = bits > largest ? bits : largest;
    }
    for (int half = SW_WARP / 2; half >= 1; half /= 2) {
        const uint32_t other = __shfl_xor_sync(SW_ALL_LANES, largest, half);
        largest = other > largest ? other : largest;
    }
    return largest;
}

template <sw_quant quant> static __device__ __forceinline__ float scale_of(uint32_t largest) {
    const float most = quant == SW_QUANT_INT4 ? (float)SW_QUANT_INT4_MOST : (float)SW_QUANT_INT8_MOST;
    const float most_scale = quant == SW_QUANT_INT4 ? SW_QUANT_INT4_MOST_SCALE : SW_QUANT_INT8_MOST_SCALE;
    const float scale = sw_bits_float(largest) / most;
    if (largest >= INFINITY_BITS)
        return sw_bits_float(SW_QUANT_NAN_BITS);
    if (scale < SW_QUANT_LEAST_SCALE)
        return 0.0f;
    return scale < most_scale ? scale : most_scale;
}

/* Returns the nearest integer, ties to even, in the low bits: the number that is added leaves no bits for a fraction.
 */
static __device__ __forceinline__ uint32_t rounded(float value) {
    return sw_float_bits(value + 0x1.8p23f);
}

template <typename T, sw_quant quant>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    quantize_kernel(const T *from, char *to, int64_t stride_bytes) {
    const lane_place at = place_of();
    char *record = to + at.grain * stride_bytes;
    float values[SW_ELEMS];
    sw_load_whole(from + at.grain * SW_GRAIN_ELEMS + at.elem, values);
    const float scale = scale_of<quant>(largest_bits(values));
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    uint32_t words[2] = {0, 0};
    for (int i = 0; i < SW_ELEMS && scale > 0.0f; i++) {
        const uint32_t code = rounded(values[i] * inverse);
        if (quant == SW_QUANT_INT4)
            words[0] |= (code & 0xfu) << (i * 4);
        else
            words[i / WORD_CODES] |= (code & 0xffu) << (i % WORD_CODES * 8);
    }
    uint32_t *codes = (uint32_t *)(void *)(record + (quant == SW_QUANT_INT4 ? at.elem / 2 : at.elem));
    codes[0] = words[0];
    if (quant == SW_QUANT_INT8)
        codes[1] = words[1];
    if (at.elem % SW_QUANT_BLOCK_ELEMS == 0)
        ((float *)(void *)(record + record_of<quant>::code_bytes))[at.block] = scale;
    const int64_t word = record_of<quant>::bytes + at.elem / SW_ELEMS * (int64_t)sizeof(uint32_t);
    if (word < stride_bytes)
        *(uint32_t *)(void *)(record + word) = 0;
}

/* Returns a code as a number: its bits are moved to the top of a word and back, which copies the sign. */
template <sw_quant quant> static __device__ __forceinline__ float code_of(const uint32_t words[2], int i) {
    const int32_t top = quant == SW_QUANT_INT4 ? (int32_t)(words[0] << (28 - i * 4)) >> 28
                                               : (int32_t)(words[i / WORD_CODES] << (24 - i % WORD_CODES * 8)) >> 24;
    return (float)top;
}

/* The ranks' records, as struct sw_dequantize has them. */
struct contributions {
    int rank, ranks;
    int64_t stride_bytes;
    const char *own, *others;
};

static __device__ __forceinline__ const char *records_of(const contributions &c, int rank) {
    return rank == c.rank ? c.own : c.others + (rank - (rank > c.rank)) * c.stride_bytes;
}

template <typename T, sw_quant quant>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS) dequantize_kernel(contributions c, T *to) {
    const lane_place at = place_of();
    float sum[SW_ELEMS] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int rank = 0; rank < c.ranks; rank++) {
        const char *record = records_of(c, rank) + at.grain * record_of<quant>::bytes;
        const uint32_t *codes =
            (const uint32_t *)(const void *)(record + (quant == SW_QUANT_INT4 ? at.elem / 2 : at.elem));
        const uint32_t words[2] = {codes[0], quant == SW_QUANT_INT8 ? codes[1] : 0};
        const float scale = ((const float *)(const void *)(record + record_of<quant>::code_bytes))[at.block];
        SW_UNROLL
        for (int i = 0; i < SW_ELEMS; i++)
            sum[i] += code_of<quant>(words, i) * scale;
    }
    sw_store_whole(to + at.grain * SW_GRAIN_ELEMS + at.elem, sum);
}

static unsigned blocks_of(int64_t grains) {
    return sw_blocks(grains * SW_GRAIN_ELEMS / SW_ELEMS, SW_BLOCK_THREADS);
}

template <typename T> static void quantize(cudaStream_t stream, const sw_quantize *op) {
    if (op->quant == SW_QUANT_INT4)
        SW_LAUNCH((quantize_kernel<T, SW_QUANT_INT4>), blocks_of(op->grains), SW_BLOCK_THREADS, 0, stream,
                  (const T *)op->from, (char *)op->to, sw_quant_grain_bytes(op->quant));
    else
        SW_LAUNCH((quantize_kernel<T, SW_QUANT_INT8>), blocks_of(op->grains), SW_BLOCK_THREADS, 0, stream,
                  (const T *)op->from, (char *)op->to, sw_quant_grain_bytes(op->quant));
}

static_assert(SW_GRADS_8BIT_GRAIN_BYTES - record_of<SW_QUANT_INT8>::bytes <= SW_GRAIN_ELEMS / SW_ELEMS * 4,
              "the threads of a grain zero the rest of its pages, a word each");

void sw_cuda_quantize_kept(cudaStream_t stream, int64_t grains, const float *from, void *to) {
    if (grains > 0)
        SW_LAUNCH((quantize_kernel<float, SW_QUANT_INT8>), blocks_of(grains), SW_BLOCK_THREADS, 0, stream, from,
                  (char *)to, SW_GRADS_8BIT_GRAIN_BYTES);
}

void sw_cuda_quantize(cudaStream_t stream, const void *args) {
    const sw_quantize *op = (const sw_quantize *)args;
    if (op->grains > 0)
        SW_FOR_TYPE(op->type, quantize, stream, op);
}

template <typename T> static void dequantize(cudaStream_t stream, const sw_dequantize *op) {
    const contributions c = {op->rank, op->ranks, op->stride_bytes, (const char *)op->own, (const char *)op->others};
    if (op->quant == SW_QUANT_INT4)
        SW_LAUNCH((dequantize_kernel<T, SW_QUANT_INT4>), blocks_of(op->grains), SW_BLOCK_THREADS, 0, stream, c,
                  (T *)op->to);
    else
        SW_LAUNCH((dequantize_kernel<T, SW_QUANT_INT8>), blocks_of(op->grains), SW_BLOCK_THREADS, 0, stream, c,
                  (T *)op->to);
}

void sw_cuda_dequantize(cudaStream_t stream, const void *args) {
    const sw_dequantize *op = (const sw_dequantize *)args;
    if (op->grains > 0)
        SW_FOR_TYPE(op->type, dequantize, stream, op);
}
