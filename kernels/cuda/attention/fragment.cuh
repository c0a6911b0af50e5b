/* Products of small matrices by a warp: C[16,8] += A[16,16]·B[16,8] with fp32 sums, by tensor cores for the 16-bit
 * types and by plain multiply-adds for fp32. Each lane holds a part of every matrix, in the places that the instruction
 * mma.m16n8k16 gives it: with g = lane / 4 and t = lane % 4,
 *   A: the pairs of columns 2t and 2t+1 of rows g and g+8, then those of columns 2t+8 and 2t+9;
 *   B: the rows 2t and 2t+1 of column g, then rows 2t+8 and 2t+9;
 *   C: the columns 2t and 2t+1 of row g, then of row g+8.
 * So two C side by side, rounded, are an A. */
#ifndef SW_KERNELS_CUDA_ATTENTION_FRAGMENT_CUH
#define SW_KERNELS_CUDA_ATTENTION_FRAGMENT_CUH

#include "kernels/cuda/elements.cuh"

enum { SW_FRAGMENT_ROWS = 16, SW_FRAGMENT_COLS = 8, SW_FRAGMENT_DEPTH = 16 };

/* 16-bit elements are held in pairs, the lower column or row in the lower half. */
template <typename T> struct sw_fragment_a { uint32_t words[4]; };
template <typename T> struct sw_fragment_b { uint32_t words[2]; };
template <> struct sw_fragment_a<float> { float values[8]; };
template <> struct sw_fragment_b<float> { float values[4]; };
struct sw_fragment_c {
    float values[4];
};

static __device__ __forceinline__ int sw_lane(void) {
    return (int)(threadIdx.x % SW_WARP);
}

#ifdef __CUDACC__

/* Loads four matrices of 8 x 8 16-bit elements from shared memory: lane l names row l % 8 of matrix l / 8, and gets of
 * each the columns 2t and 2t+1 of row g; transposed, the rows 2t and 2t+1 of column g. */
template <bool TRANSPOSED> static __device__ __forceinline__ void sw_load_matrices(const void *row, uint32_t words[4]) {
    const unsigned from = (unsigned)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(from)
                     : "memory");
}

static __device__ __forceinline__ void sw_multiply(sw_fragment_c *c, const sw_fragment_a<sw_cuda_bf16> &a,
                                                   const sw_fragment_b<sw_cuda_bf16> &b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c->values[0]), "+f"(c->values[1]), "+f"(c->values[2]), "+f"(c->values[3])
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]), "r"(b.words[1]));
}

static __device__ __forceinline__ void sw_multiply(sw_fragment_c *c, const sw_fragment_a<sw_cuda_f16> &a,
                                                   const sw_fragment_b<sw_cuda_f16> &b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c->values[0]), "+f"(c->values[1]), "+f"(c->values[2]), "+f"(c->values[3])
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]), "r"(b.words[1]));
}

#else
#include <emulated/fragment.cuh>
#endif

/* Multiplies in fp32; each lane asks the others for the elements that it lacks. The function is not inlined: kernels
 * have so many products that compiling them would take minutes. */
static __device__ __noinline__ sw_fragment_c sw_multiply_by_shuffles(sw_fragment_c c, sw_fragment_a<float> a,
                                                                     sw_fragment_b<float> b) {
    const int g = sw_lane() / 4, t = sw_lane() % 4;
    SW_UNROLL
    for (int k = 0; k < SW_FRAGMENT_DEPTH; k++) {
        const int holder = k % 8 / 2, of_a = k / 8 * 4 + k % 2, of_b = k / 8 * 2 + k % 2;
        const float upper = __shfl_sync(SW_ALL_LANES, a.values[of_a], g * 4 + holder);
        const float lower = __shfl_sync(SW_ALL_LANES, a.values[of_a + 2], g * 4 + holder);
        const float left = __shfl_sync(SW_ALL_LANES, b.values[of_b], 2 * t * 4 + holder);
        const float right = __shfl_sync(SW_ALL_LANES, b.values[of_b], (2 * t + 1) * 4 + holder);
        c.values[0] = fmaf(upper, left, c.values[0]);
        c.values[1] = fmaf(upper, right, c.values[1]);
        c.values[2] = fmaf(lower, left, c.values[2]);
        c.values[3] = fmaf(lower, right, c.values[3]);
    }
    return c;
}

#ifdef __CUDACC__
static __device__ __forceinline__ void sw_multiply(sw_fragment_c *c, const sw_fragment_a<float> &a,
                                                   const sw_fragment_b<float> &b) {
    *c = sw_multiply_by_shuffles(*c, a, b);
}
#endif

/* Loads A from 16 rows of a tile in shared memory. */
template <typename T> static __device__ __forceinline__ void sw_load_a(sw_fragment_a<T> *a, const T *tile, int stride) {
    const int lane = sw_lane();
    sw_load_matrices<false>(tile + lane % 16 * stride + lane / 16 * 8, a->words);
}

static __device__ __forceinline__ void sw_load_a(sw_fragment_a<float> *a, const float *tile, int stride) {
    const float *at = tile + sw_lane() / 4 * stride + sw_lane() % 4 * 2;
    for (int i = 0; i < 8; i++)
        a->values[i] = at[i / 2 % 2 * 8 * stride + i / 4 * 8 + i % 2];
}

/* Loads two B side by side whose 16 columns are rows of the tile: B[k][n] = tile[n][k]. */
template <typename T>
static __device__ __forceinline__ void sw_load_b_of_rows(sw_fragment_b<T> b[2], const T *tile, int stride) {
    const int lane = sw_lane();
    uint32_t words[4];
    sw_load_matrices<false>(tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8, words);
    for (int i = 0; i < 4; i++)
        b[i / 2].words[i % 2] = words[i];
}

static __device__ __forceinline__ void sw_load_b_of_rows(sw_fragment_b<float> b[2], const float *tile, int stride) {
    const float *at = tile + sw_lane() / 4 * stride + sw_lane() % 4 * 2;
    for (int i = 0; i < 8; i++)
        b[i / 4].values[i % 4] = at[i / 4 * 8 * stride + i / 2 % 2 * 8 + i % 2];
}

/* Loads two neighbouring B in the tile's own layout: B[k][n] = tile[k][n]. */
template <typename T>
static __device__ __forceinline__ void sw_load_b_of_columns(sw_fragment_b<T> b[2], const T *tile, int stride) {
    const int lane = sw_lane();
    uint32_t words[4];
    sw_load_matrices<true>(tile + lane % 16 * stride + lane / 16 * 8, words);
    for (int i = 0; i < 4; i++)
        b[i / 2].words[i % 2] = words[i];
}

static __device__ __forceinline__ void sw_load_b_of_columns(sw_fragment_b<float> b[2], const float *tile, int stride) {
    const float *at = tile + sw_lane() % 4 * 2 * stride + sw_lane() / 4;
    for (int i = 0; i < 8; i++)
        b[i / 4].values[i % 4] = at[(i / 2 % 2 * 8 + i % 2) * stride + i / 4 * 8];
}

/* Makes A from two C side by side, rounded to T. */
template <typename T> static __device__ __forceinline__ void sw_pack_a(sw_fragment_a<T> *a, const sw_fragment_c c[2]) {
    for (int i = 0; i < 4; i++)
        a->words[i] = sw_round_pair<T>(c[i / 2].values[i % 2 * 2], c[i / 2].values[i % 2 * 2 + 1]);
}

static __device__ __forceinline__ void sw_pack_a(sw_fragment_a<float> *a, const sw_fragment_c c[2]) {
    for (int i = 0; i < 8; i++)
        a->values[i] = c[i / 4].values[i % 4];
}

/* Store a C as 16 bytes of memory, and load it again. */
static __device__ __forceinline__ sw_vector16 sw_fragment_vector(const sw_fragment_c &c) {
    sw_vector16 v;
    v.x = sw_float_bits(c.values[0]);
    v.y = sw_float_bits(c.values[1]);
    v.z = sw_float_bits(c.values[2]);
    v.w = sw_float_bits(c.values[3]);
    return v;
}

static __device__ __forceinline__ sw_fragment_c sw_vector_fragment(const sw_vector16 &from) {
    const sw_vector16 v = sw_load16(&from);
    const sw_fragment_c c = {{sw_bits_float(v.x), sw_bits_float(v.y), sw_bits_float(v.z), sw_bits_float(v.w)}};
    return c;
}

/* Multiplies rows of fragments by two columns of them, into c from column n on. */
template <typename T, int TILES, int COLS>
static __device__ __forceinline__ void sw_multiply_all(sw_fragment_c (*c)[COLS / SW_FRAGMENT_COLS], int n,
                                                       const sw_fragment_a<T> a[TILES], const sw_fragment_b<T> b[2]) {
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        sw_multiply(&c[m][n / SW_FRAGMENT_COLS], a[m], b[0]);
        sw_multiply(&c[m][n / SW_FRAGMENT_COLS + 1], a[m], b[1]);
    }
}

/* c[16·TILES, COLS] += A·Bᵀ for SW_FRAGMENT_DEPTH columns of both, where B's rows are in shared memory. */
template <typename T, int TILES, int COLS>
static __device__ __forceinline__ void sw_multiply_depth(sw_fragment_c (*c)[COLS / SW_FRAGMENT_COLS],
                                                         const sw_fragment_a<T> a[TILES], const T *b_tile, int stride) {
    SW_UNROLL
    for (int n = 0; n < COLS; n += 2 * SW_FRAGMENT_COLS) {
        sw_fragment_b<T> b[2];
        sw_load_b_of_rows(b, b_tile + n * stride, stride);
        sw_multiply_all<T, TILES, COLS>(c, n, a, b);
    }
}

/* c[16·TILES, COLS] += A·Bᵀ, where A is 16·TILES rows and B COLS rows of DEPTH elements in shared memory. A fragment of
 * B, once loaded, feeds TILES products. */
template <typename T, int TILES, int DEPTH, int COLS>
static __device__ __forceinline__ void sw_multiply_rows(sw_fragment_c (*c)[COLS / SW_FRAGMENT_COLS], const T *a_tile,
                                                        const T *b_tile, int stride) {
    SW_UNROLL_TWICE
    for (int k = 0; k < DEPTH; k += SW_FRAGMENT_DEPTH) {
        sw_fragment_a<T> a[TILES];
        SW_UNROLL
        for (int m = 0; m < TILES; m++)
            sw_load_a(&a[m], a_tile + m * SW_FRAGMENT_ROWS * stride + k, stride);
        sw_multiply_depth<T, TILES, COLS>(c, a, b_tile + k, stride);
    }
}

/* c[16, COLS] += A·Bᵀ, where the 16 rows of A are in registers. */
template <typename T, int DEPTH, int COLS>
static __device__ __forceinline__ void sw_multiply_held(sw_fragment_c (*c)[COLS / SW_FRAGMENT_COLS],
                                                        const sw_fragment_a<T> (&a)[DEPTH / SW_FRAGMENT_DEPTH],
                                                        const T *b_tile, int stride) {
    SW_UNROLL
    for (int i = 0; i < DEPTH / SW_FRAGMENT_DEPTH; i++)
        sw_multiply_depth<T, 1, COLS>(c, a + i, b_tile + i * SW_FRAGMENT_DEPTH, stride);
}

/* c[16·TILES, COLS] += p·B, where p[16·TILES, DEPTH] is in registers, and B is DEPTH rows of COLS elements in shared
 * memory. */
template <typename T, int TILES, int DEPTH, int COLS>
static __device__ __forceinline__ void sw_multiply_columns(sw_fragment_c (*c)[COLS / SW_FRAGMENT_COLS],
                                                           const sw_fragment_c (*p)[DEPTH / SW_FRAGMENT_COLS],
                                                           const T *b_tile, int stride) {
    SW_UNROLL
    for (int k = 0; k < DEPTH; k += SW_FRAGMENT_DEPTH) {
        sw_fragment_a<T> a[TILES];
        SW_UNROLL
        for (int m = 0; m < TILES; m++)
            sw_pack_a(&a[m], p[m] + k / SW_FRAGMENT_COLS);
        SW_UNROLL
        for (int n = 0; n < COLS; n += 2 * SW_FRAGMENT_COLS) {
            sw_fragment_b<T> b[2];
            sw_load_b_of_columns(b, b_tile + k * stride + n, stride);
            sw_multiply_all<T, TILES, COLS>(c, n, a, b);
        }
    }
}

#endif
