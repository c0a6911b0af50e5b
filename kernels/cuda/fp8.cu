/* Numbers in 8 bits, with the bits of ref/fp8.c. A thread takes vectors of eight elements, whose codes are two words.
 */
#include "kernels/cuda/grid.cuh"

#include "core/fp8.h"
extern "C" {
#include "core/optimizer_format.h"
#include "core/size.h"
}

enum {
    MAGNITUDE_BITS = 0x7fffffff,
    WARPS = SW_BLOCK_THREADS / SW_WARP,
    CODE_BITS = 8,
    WORD_CODES = 4,    /* codes in a word */
    BLOCK_VECTORS = 4, /* vectors of a thread, where a tensor's largest magnitude is looked for by single blocks */
    TILE = 64,         /* rows and columns of a tile that a block transposes */
    TILE_WORDS = TILE / WORD_CODES,
    TILE_PITCH = TILE_WORDS + 1, /* puts neighbouring columns in different banks */
};
static_assert(SW_FP8_PARTS % SW_BLOCK_THREADS == 0, "the threads of a block read the parts");

/* Returns the largest of the block's values, to every thread. */
static __device__ __forceinline__ uint32_t block_largest(uint32_t value) {
    SW_SHARED(uint32_t, of_warps, [WARPS]);
    for (int half = SW_WARP / 2; half >= 1; half /= 2) {
        const uint32_t other = __shfl_xor_sync(SW_ALL_LANES, value, half);
        value = other > value ? other : value;
    }
    if (threadIdx.x % SW_WARP == 0)
        of_warps[threadIdx.x / SW_WARP] = value;
    __syncthreads();
    for (int warp = 0; warp < WARPS; warp++)
        value = of_warps[warp] > value ? of_warps[warp] : value;
    return value;
}

static __device__ __forceinline__ uint32_t vector_largest(const float values[SW_ELEMS], uint32_t largest) {
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++) {
        const uint32_t bits = sw_float_bits(values[i]) & MAGNITUDE_BITS;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* Writes the largest magnitude of each block's part of a tensor after the scale. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    largest_kernel(const T *from, int64_t elems, bool aligned, float *scale) {
    const int64_t step = (int64_t)gridDim.x * SW_BLOCK_THREADS * SW_ELEMS;
    uint32_t largest = 0;
    for (int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS; at < elems; at += step) {
        float values[SW_ELEMS];
        sw_load_elems(from + at, elems - at, aligned, values);
        largest = vector_largest(values, largest);
    }
    largest = block_largest(largest);
    if (threadIdx.x == 0)
        scale[1 + blockIdx.x] = sw_bits_float(largest);
}

/* Returns the reciprocal of the tensor's scale, by the largest magnitudes of its parts. The first block leaves the
 * scale. */
static __device__ __forceinline__ float inverse_scale(sw_fp8 as, float *scale, int parts, bool first_block) {
    uint32_t largest = 0;
    float inverse;
    for (int part = (int)threadIdx.x; part < parts; part += SW_BLOCK_THREADS) {
        const uint32_t bits = sw_float_bits(scale[1 + part]);
        largest = bits > largest ? bits : largest;
    }
    const float found = sw_fp8_scale(as, block_largest(largest), &inverse);
    if (first_block && threadIdx.x == 0)
        scale[0] = found;
    return inverse;
}

static __device__ __forceinline__ void store_codes(const uint8_t codes[SW_ELEMS], int64_t count, bool aligned,
                                                   uint8_t *to) {
    if (!aligned || count < SW_ELEMS) {
        for (int i = 0; i < SW_ELEMS && i < count; i++)
            to[i] = codes[i];
        return;
    }
    uint32_t words[2] = {0, 0};
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        words[i / WORD_CODES] |= (uint32_t)codes[i] << (i % WORD_CODES * CODE_BITS);
    ((uint32_t *)(void *)to)[0] = words[0];
    ((uint32_t *)(void *)to)[1] = words[1];
}

/* The place where a tensor is encoded. The maxima of its parts follow the scale. */
struct encoding {
    sw_fp8 as;
    float *scale;
    int parts;
    uint8_t *codes;
    bool aligned; /* `from` and codes begin at whole vectors */
};

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS) encode_kernel(encoding e, const T *from, int64_t elems) {
    const int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    const float inverse = inverse_scale(e.as, e.scale, e.parts, blockIdx.x == 0);
    float values[SW_ELEMS];
    uint8_t codes[SW_ELEMS];
    if (at >= elems)
        return;
    sw_load_elems(from + at, elems - at, e.aligned, values);
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        codes[i] = sw_fp8_code(e.as, values[i] * inverse);
    store_codes(codes, elems - at, e.aligned, e.codes + at);
}

/* Encodes a tile and transposes it through shared memory, where the codes of a column are contiguous. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    transpose_kernel(encoding e, const T *from, int64_t rows, int64_t cols) {
    SW_SHARED(uint32_t, tile, [TILE][TILE_PITCH]);
    const int64_t first_row = (int64_t)blockIdx.y * TILE, first_col = (int64_t)blockIdx.x * TILE;
    const float inverse = inverse_scale(e.as, e.scale, e.parts, blockIdx.x == 0 && blockIdx.y == 0);
    const int col = (int)threadIdx.x % TILE;
    for (int word = (int)threadIdx.x / TILE; word < TILE_WORDS; word += SW_BLOCK_THREADS / TILE) {
        uint32_t codes = 0;
        SW_UNROLL
        for (int i = 0; i < WORD_CODES; i++) {
            const int64_t row = first_row + word * WORD_CODES + i;
            const bool inside = row < rows && first_col + col < cols;
            const float value = inside ? sw_widen(from[row * cols + first_col + col]) : 0.0f;
            codes |= (uint32_t)sw_fp8_code(e.as, value * inverse) << (i * CODE_BITS);
        }
        tile[col][word] = codes;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < TILE * TILE_WORDS; i += SW_BLOCK_THREADS) {
        const int64_t to_row = first_col + i / TILE_WORDS, at = first_row + i % TILE_WORDS * WORD_CODES;
        const uint32_t word = tile[i / TILE_WORDS][i % TILE_WORDS];
        uint8_t *to = e.codes + to_row * rows + at;
        if (to_row >= cols)
            continue;
        if (rows % WORD_CODES == 0 && at < rows)
            *(uint32_t *)(void *)to = word;
        for (int c = 0; rows % WORD_CODES != 0 && c < WORD_CODES && at + c < rows; c++)
            to[c] = (uint8_t)(word >> (c * CODE_BITS));
    }
}

template <typename T> static void encode(cudaStream_t stream, const sw_encode_fp8 *op) {
    const int64_t elems = op->rows * op->cols, threads = sw_vectors(elems);
    const T *from = (const T *)op->from;
    const bool aligned = sw_is_aligned(from) && sw_is_aligned(op->codes);
    const int parts = (int)sw_min_i64(SW_FP8_PARTS, sw_blocks(threads, SW_BLOCK_THREADS * BLOCK_VECTORS));
    const encoding e = {op->as, op->scale, parts, op->codes, aligned};
    SW_LAUNCH(largest_kernel<T>, (unsigned)parts, SW_BLOCK_THREADS, 0, stream, from, elems, aligned, op->scale);
    if (op->transpose)
        SW_LAUNCH(transpose_kernel<T>, dim3(sw_blocks(op->cols, TILE), sw_blocks(op->rows, TILE)), SW_BLOCK_THREADS, 0,
                  stream, e, from, op->rows, op->cols);
    else
        SW_LAUNCH(encode_kernel<T>, sw_blocks(threads, SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, e, from, elems);
}

void sw_cuda_encode_fp8(cudaStream_t stream, const void *args) {
    const sw_encode_fp8 *op = (const sw_encode_fp8 *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, encode, stream, op);
}

/* Loads the codes from[0, count), at most SW_ELEMS, and zeros after them. */
static __device__ __forceinline__ void load_codes(const uint8_t *from, int64_t count, bool aligned,
                                                  uint8_t codes[SW_ELEMS]) {
    if (aligned && count >= SW_ELEMS) {
        const uint32_t *words = (const uint32_t *)(const void *)from;
        const uint32_t held[2] = {words[0], words[1]};
        SW_UNROLL
        for (int i = 0; i < SW_ELEMS; i++)
            codes[i] = (uint8_t)(held[i / WORD_CODES] >> (i % WORD_CODES * CODE_BITS));
        return;
    }
    for (int i = 0; i < SW_ELEMS; i++)
        codes[i] = i < count ? from[i] : (uint8_t)0;
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    decode_kernel(sw_fp8 as, const uint8_t *from, const float *scale, int64_t elems, bool aligned, T *to) {
    const int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    float values[SW_ELEMS];
    uint8_t codes[SW_ELEMS];
    if (at >= elems)
        return;
    load_codes(from + at, elems - at, aligned, codes);
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        values[i] = sw_fp8_value(as, codes[i]) * *scale;
    sw_store_elems(to + at, elems - at, aligned, values);
}

template <typename T> static void decode(cudaStream_t stream, const sw_decode_fp8 *op) {
    const bool aligned = sw_is_aligned(op->codes) && sw_is_aligned(op->to);
    SW_LAUNCH(decode_kernel<T>, sw_blocks(sw_vectors(op->elems), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, op->as,
              op->codes, op->scale, op->elems, aligned, (T *)op->to);
}

void sw_cuda_decode_fp8(cudaStream_t stream, const void *args) {
    const sw_decode_fp8 *op = (const sw_decode_fp8 *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, decode, stream, op);
}

/* A block makes a grain. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    pack_kernel(const char *records, int64_t record_bytes, int64_t first_wide, char *weights) {
    const float *master = (const float *)(const void *)(records + (int64_t)blockIdx.x * record_bytes);
    char *to = weights + (int64_t)blockIdx.x * SW_GRAIN_ELEMS;
    const int first = (int)threadIdx.x * SW_ELEMS, step = SW_BLOCK_THREADS * SW_ELEMS;
    float values[SW_ELEMS];
    uint8_t codes[SW_ELEMS];
    if (blockIdx.x >= first_wide) {
        for (int at = first; at < SW_WIDE_GRAIN_ELEMS; at += step) {
            sw_load_whole(master + at, values);
            sw_store_whole((T *)(void *)to + at, values);
        }
        return;
    }
    uint32_t largest = 0;
    for (int at = first; at < SW_GRAIN_ELEMS; at += step) {
        sw_load_whole(master + at, values);
        largest = vector_largest(values, largest);
    }
    const unsigned scale = sw_fp8_scale_byte(block_largest(largest));
    for (int at = first; at < SW_GRAIN_ELEMS; at += step) {
        sw_load_whole(master + at, values);
        SW_UNROLL
        for (int i = 0; i < SW_ELEMS; i++)
            codes[i] = sw_fp8_grain_code(scale, at + i, values[i]);
        store_codes(codes, SW_ELEMS, true, (uint8_t *)to + at);
    }
}

template <typename T> static void pack(cudaStream_t stream, const sw_pack_weights *op) {
    const int64_t first_wide = sw_max_i64(0, op->wide_elem - op->first_elem) / SW_GRAIN_ELEMS;
    SW_LAUNCH(pack_kernel<T>, (unsigned)op->grains, SW_BLOCK_THREADS, 0, stream, (const char *)op->records,
              sw_optimizer_grain_bytes(op->format), first_wide, (char *)op->weights);
}

void sw_cuda_pack_weights(cudaStream_t stream, const void *args) {
    const sw_pack_weights *op = (const sw_pack_weights *)args;
    if (op->grains == 0)
        return;
    if (op->type == SW_BF16)
        pack<sw_cuda_bf16>(stream, op);
    else
        pack<sw_cuda_f16>(stream, op);
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    unpack_kernel(const uint8_t *weights, int64_t first_elem, int64_t elems, bool aligned, T *to) {
    const int64_t at = ((int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS, elem = first_elem + at;
    float values[SW_ELEMS];
    uint8_t codes[SW_ELEMS];
    if (at >= elems)
        return;
    load_codes(weights + elem, elems - at, aligned, codes);
    for (int i = 0; i < SW_ELEMS; i++) {
        /* A vector that is not aligned may meet two grains. */
        const int64_t last = first_elem + elems - 1, here = aligned ? elem : elem + i;
        const int64_t grain = (here < last ? here : last) / SW_GRAIN_ELEMS;
        values[i] = sw_fp8_value(SW_FP8_E4M3, codes[i]) * sw_fp8_grain_scale(weights + grain * SW_GRAIN_ELEMS);
    }
    sw_store_elems(to + at, elems - at, aligned, values);
}

template <typename T> static void unpack(cudaStream_t stream, const sw_unpack_weights *op) {
    const uint8_t *weights = (const uint8_t *)op->weights;
    const bool aligned = sw_is_aligned(weights) && op->first_elem % SW_ELEMS == 0 && sw_is_aligned(op->to);
    SW_LAUNCH(unpack_kernel<T>, sw_blocks(sw_vectors(op->elems), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream,
              weights, op->first_elem, op->elems, aligned, (T *)op->to);
}

void sw_cuda_unpack_weights(cudaStream_t stream, const void *args) {
    const sw_unpack_weights *op = (const sw_unpack_weights *)args;
    if (op->elems > 0)
        SW_FOR_TYPE(op->type, unpack, stream, op);
}
