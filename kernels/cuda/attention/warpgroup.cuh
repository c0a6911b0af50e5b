/* Products of matrices by a warpgroup, four warps that begin at a multiple of SW_WARPGROUP threads: C[64,N] +=
 * A[64,16]·B[16,N] with fp32 sums, N = 64 or 128, for the 16-bit types on GPUs of capability 9.0 (PTX ISA, wgmma). A is
 * in shared memory or in registers, B in shared memory, C in registers. A lane holds of A and C what sw_fragment_a and
 * sw_fragment_c of fragment.cuh say: warp w has the rows 16·w to 16·w + 15, c[4·n + i] is the value i of the columns
 * 8·n to 8·n + 7, and a word of A is a pair of sums, rounded.
 *
 * A product runs while its threads go on. Until sw_warpgroup_wait has ended it, nobody may write its operands or touch
 * its sums, and what it reads must have been shown to it:
 *   - copies into shared memory, by sw_fence_copies of the thread that waited for them and a barrier after it;
 *   - registers that other instructions wrote, by sw_warpgroup_fence.
 *
 * A matrix in shared memory is a tile of panels. A panel is SW_PANEL_COLS columns of all rows, 128 bytes a row, whose
 * pieces of 16 bytes are permuted within groups of eight rows (128-byte swizzle: the bits 7 to 9 of an address change
 * its bits 4 to 6). A tile begins at a multiple of SW_PATTERN_BYTES. */
#ifndef SW_KERNELS_CUDA_ATTENTION_WARPGROUP_CUH
#define SW_KERNELS_CUDA_ATTENTION_WARPGROUP_CUH

#include "kernels/cuda/elements.cuh"

enum {
    SW_WARPGROUP = 128,
    SW_WARPGROUP_ROWS = 64,
    SW_WARPGROUP_DEPTH = 16,
    SW_PANEL_COLS = 64,
    SW_PANEL_ROW_BYTES = 128,
    SW_PIECE_BYTES = 16,
    SW_PATTERN_ROWS = 8,
    SW_PATTERN_BYTES = SW_PATTERN_ROWS * SW_PANEL_ROW_BYTES
};

#ifdef __CUDACC__

static __device__ __forceinline__ uint32_t sw_shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

static __device__ __forceinline__ void sw_fence_copies(void) {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

static __device__ __forceinline__ void sw_warpgroup_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

static __device__ __forceinline__ void sw_warpgroup_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/* Waits for all commits but the newest ones. */
template <int newest> static __device__ __forceinline__ void sw_warpgroup_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(newest) : "memory");
}

/* The same, where a later wait would do as well, so that registers of those products are free sooner. */
template <int newest> static __device__ __forceinline__ void sw_warpgroup_release(void) {
    sw_warpgroup_wait<newest>();
}

/* Waits for all commits once `sum`, which is not negative, is there. The compiler moves a plain wait before arithmetic
 * that should overlap the products; it cannot move this one, because `sum` seems to decide a loop. */
static __device__ __forceinline__ void sw_warpgroup_wait_behind(float sum) {
    do
        sw_warpgroup_wait<0>();
    while (sum < 0.0f);
}

/* The compiler takes registers of a product for free as soon as it is issued. Naming them after the wait keeps their
 * uses after it. */
template <int COUNT> static __device__ __forceinline__ void sw_finished(float (&c)[COUNT]) {
    SW_UNROLL
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

template <int COUNT> static __device__ __forceinline__ void sw_finished(uint32_t (&words)[COUNT]) {
    SW_UNROLL
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(words[i])::"memory");
}

/* clang-format off */
#define SW_SUMS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SW_SUMS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SW_EACH_4(i) "+f"(c[i]), "+f"(c[(i) + 1]), "+f"(c[(i) + 2]), "+f"(c[(i) + 3])
#define SW_EACH_16(i) SW_EACH_4(i), SW_EACH_4((i) + 4), SW_EACH_4((i) + 8), SW_EACH_4((i) + 12)
#define SW_EACH_32(i) SW_EACH_16(i), SW_EACH_16((i) + 16)
#define SW_EACH_64(i) SW_EACH_32(i), SW_EACH_32((i) + 32)
#define SW_WGMMA(N, NAME) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " "

/* Both forms for the N of COUNT sums a thread. The operands are numbered: the sums, then A, B, `add` and whether B is
 * transposed. */
#define SW_WARPGROUP_PRODUCTS(NAME, N, COUNT, A, B, ADD, TRANSPOSE, A0, A1, A2, A3, B_R, ADD_R, TRANSPOSE_R)             \
    template <int COLUMNS>                                                                                             \
    static __device__ __forceinline__ void multiply(float (&c)[COUNT], uint64_t a, uint64_t b, bool add) {             \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\n"                                              \
                     SW_WGMMA(N, NAME) "{" SW_SUMS_##COUNT "}, " A ", " B ", add, 1, 1, 0, " TRANSPOSE ";\n}\n"        \
                     : SW_EACH_##COUNT(0)                                                                              \
                     : "l"(a), "l"(b), "r"((int)add), "n"(COLUMNS)                                                     \
                     : "memory");                                                                                      \
    }                                                                                                                  \
    template <int COLUMNS>                                                                                             \
    static __device__ __forceinline__ void multiply(float (&c)[COUNT], const uint32_t *a, uint64_t b, bool add) {      \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD_R ", 0;\n"                                            \
                     SW_WGMMA(N, NAME) "{" SW_SUMS_##COUNT "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B_R                 \
                     ", add, 1, 1, " TRANSPOSE_R ";\n}\n"                                                              \
                     : SW_EACH_##COUNT(0)                                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(COLUMNS)                 \
                     : "memory");                                                                                      \
    }
#define SW_WARPGROUP_PRODUCTS_64(NAME)                                                                                 \
    SW_WARPGROUP_PRODUCTS(NAME, 64, 32, "%32", "%33", "%34", "%35", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
#define SW_WARPGROUP_PRODUCTS_128(NAME)                                                                                \
    SW_WARPGROUP_PRODUCTS(NAME, 128, 64, "%64", "%65", "%66", "%67", "%64", "%65", "%66", "%67", "%68", "%69", "%70")
/* clang-format on */

/* multiply<COLUMNS>(c, a, b, add) starts a product that begins its sums anew where `add` is false. COLUMNS: whether
 * B's columns, and not its rows, are contiguous in shared memory. */
template <typename T> struct sw_warpgroup_product;
template <> struct sw_warpgroup_product<sw_cuda_bf16> {
    SW_WARPGROUP_PRODUCTS_64("bf16")
    SW_WARPGROUP_PRODUCTS_128("bf16")
};
template <> struct sw_warpgroup_product<sw_cuda_f16> {
    SW_WARPGROUP_PRODUCTS_64("f16")
    SW_WARPGROUP_PRODUCTS_128("f16")
};

#else
#include <emulated/warpgroup.cuh>
#endif

/* The first multiple of SW_PATTERN_BYTES in a block's dynamic shared memory; a launch asks for that much more. */
static __device__ __forceinline__ char *sw_first_pattern(char *shared) {
    return shared + (0u - sw_shared_address(shared)) % SW_PATTERN_BYTES;
}

/* Returns the offset of the 16-byte piece `piece` of a row in a tile of ROWS rows. */
template <int ROWS> static __device__ __forceinline__ int sw_piece_offset(int row, int piece) {
    enum { PIECES = SW_PANEL_ROW_BYTES / SW_PIECE_BYTES };
    return (piece / PIECES * ROWS + row) * SW_PANEL_ROW_BYTES +
           (piece % PIECES ^ row % SW_PATTERN_ROWS) * SW_PIECE_BYTES;
}

/* The descriptor of a matrix in a tile (PTX ISA, matrix descriptor of wgmma): its address, the bytes from one panel to
 * the next, those from eight rows to the next eight, and the permutation, all but the last in units of 16 bytes. */
static __device__ __forceinline__ uint64_t sw_matrix_at(uint32_t address, int panel_bytes) {
    enum { UNIT_BITS = 4, PANEL_BIT = 16, PATTERN_BIT = 32, SWIZZLE_BIT = 62, SWIZZLE_128 = 1 };
    const uint64_t panel = (uint64_t)(panel_bytes >> UNIT_BITS) << PANEL_BIT;
    const uint64_t pattern = (uint64_t)(SW_PATTERN_BYTES >> UNIT_BITS) << PATTERN_BIT;
    return (uint64_t)(address >> UNIT_BITS) | panel | pattern | (uint64_t)SWIZZLE_128 << SWIZZLE_BIT;
}

/* Starts c = A·Bᵀ of 64 rows of A and 2·COUNT rows of B, DEPTH columns each, in tiles of A_ROWS and B_ROWS rows. */
template <typename T, int DEPTH, int A_ROWS, int B_ROWS, int COUNT>
static __device__ __forceinline__ void sw_start_rows(float (&c)[COUNT], uint32_t a, uint32_t b) {
    SW_UNROLL
    for (int k = 0; k < DEPTH; k += SW_WARPGROUP_DEPTH) {
        const uint32_t panel = k / SW_PANEL_COLS * SW_PANEL_ROW_BYTES, column = k % SW_PANEL_COLS * sizeof(T);
        sw_warpgroup_product<T>::template multiply<0>(c, sw_matrix_at(a + panel * A_ROWS + column, SW_PIECE_BYTES),
                                                      sw_matrix_at(b + panel * B_ROWS + column, SW_PIECE_BYTES), k > 0);
    }
}

/* Starts c += p·B of p, 64 rows in registers, and B, as many rows as p has columns and 2·COUNT columns of a tile. With
 * ANEW, c = p·B. */
template <typename T, bool ANEW, int WORDS, int COUNT>
static __device__ __forceinline__ void sw_start_columns(float (&c)[COUNT], const uint32_t (&p)[WORDS], uint32_t b) {
    enum { ROWS = WORDS * 4 };
    SW_UNROLL
    for (int k = 0; k < ROWS; k += SW_WARPGROUP_DEPTH)
        sw_warpgroup_product<T>::template multiply<1>(
            c, &p[k / 4], sw_matrix_at(b + k * SW_PANEL_ROW_BYTES, ROWS * SW_PANEL_ROW_BYTES), !ANEW || k > 0);
}

/* Sums rounded to T are the left operand of a product. */
template <typename T, int WORDS>
static __device__ __forceinline__ void sw_round_sums(const float (&c)[2 * WORDS], uint32_t (&words)[WORDS]) {
    SW_UNROLL
    for (int i = 0; i < WORDS; i++)
        words[i] = sw_round_pair<T>(c[2 * i], c[2 * i + 1]);
}

#endif
