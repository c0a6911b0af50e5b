/* Shared parts of the attention kernels for GPUs of capability 9.0. A block of two warpgroups owns SW_HOPPER_ROWS rows
 * of one head, 64 for each warpgroup, and streams tiles of the other side through shared memory; scores live in
 * registers only. Heads are at most 128 columns, 16 bytes aligned, of 16-bit types. */
#ifndef SW_KERNELS_CUDA_ATTENTION_HOPPER_CUH
#define SW_KERNELS_CUDA_ATTENTION_HOPPER_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/warpgroup.cuh"

enum {
    SW_HOPPER_THREADS = 2 * SW_WARPGROUP,
    SW_HOPPER_ROWS = 2 * SW_WARPGROUP_ROWS,
    SW_HOPPER_SHARED_BYTES = 227 << 10, /* the most shared memory that a block may have on such a GPU */
    /* Heads are gone through in groups whose streamed rows stay in half of the cache that an H100 has. */
    SW_HOPPER_CACHED_BYTES = 24 << 20
};

/* The rows of a block: the first one, and the number of the head, counted over all sequences. */
struct sw_hopper_block {
    int first, item;
};

/* A grid has a block for each tile of rows and item. `together` items are gone through before the next ones begin, the
 * longest tiles of all of them first. */
struct sw_hopper_grid {
    unsigned tiles, items, together;
};

static inline sw_hopper_grid sw_hopper_grid_of(const sw_attention *shape, int64_t items) {
    const int64_t rows = shape->past + shape->seq, streamed_bytes = 2 * rows * shape->head_dim * 2;
    const int64_t group = shape->heads / shape->kv_heads;
    const int64_t together = group * (1 + SW_HOPPER_CACHED_BYTES / (streamed_bytes + 1));
    return {sw_blocks(shape->seq, SW_HOPPER_ROWS), (unsigned)items, (unsigned)(together < items ? together : items)};
}

template <bool LAST_IS_LONGEST>
static __device__ __forceinline__ sw_hopper_block sw_hopper_block_of(const sw_hopper_grid &grid) {
    const unsigned before = blockIdx.x / (grid.tiles * grid.together) * grid.together;
    const unsigned rest = blockIdx.x - before * grid.tiles;
    const unsigned count = grid.items - before < grid.together ? grid.items - before : grid.together;
    const unsigned rank = rest / count, tile = LAST_IS_LONGEST ? grid.tiles - 1 - rank : rank;
    return {(int)(tile * SW_HOPPER_ROWS), (int)(before + rest % count)};
}

/* Returns the warpgroup of the running thread, in a register that the compiler knows to be the same in all lanes. */
static __device__ __forceinline__ int sw_hopper_group(void) {
    return __shfl_sync(SW_ALL_LANES, (int)threadIdx.x / SW_WARPGROUP, 0);
}

/* Returns the address `bytes` further on. Otherwise the compiler would compute all addresses of an unrolled loop before
 * the loop around it and keep them in registers, and there are no registers to spare. */
template <typename T> static __device__ __forceinline__ const T *sw_advanced(const T *from, int64_t bytes) {
#ifdef __CUDACC__
    asm volatile("add.s64 %0, %0, %1;" : "+l"(from) : "l"(bytes));
    return from;
#else
    return (const T *)((const char *)from + bytes);
#endif
}

/* Starts to bring rows [first, first + ROWS) into a tile of panels, zeros where there are none. */
template <typename T, int DIM, int ROWS>
static __device__ __forceinline__ void sw_bring_panels(char *tile, const sw_head_rows<T> &rows, int64_t first) {
    enum { PIECE = SW_PIECE_BYTES / (int)sizeof(T), PIECES = DIM / PIECE, STEP = SW_HOPPER_THREADS / PIECES };
    static_assert(ROWS % STEP == 0 && STEP % SW_PATTERN_ROWS == 0, "a thread's pieces lie at equal distances");
    const int begin = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES;
    const int64_t left = rows.seq - first;
    const int there = piece * PIECE >= rows.head_dim ? 0 : left < ROWS ? (int)left : ROWS;
    const T *from = rows.from + (first + begin) * rows.stride + piece * PIECE;
    char *to = tile + sw_piece_offset<ROWS>(begin, piece);
    const int64_t step = STEP * rows.stride * (int64_t)sizeof(T);
    SW_UNROLL
    for (int row = 0; row < ROWS; row += STEP) {
        sw_copy16_later(to + row * SW_PANEL_ROW_BYTES, from, row + begin >= there);
        from = sw_advanced(from, step);
    }
}

/* Waits for this thread's copies; a barrier after it lets all threads of the block and their products read them. */
static __device__ __forceinline__ void sw_end_copies(void) {
    sw_wait_copies<0>();
    sw_fence_copies();
}

/* The keys that a warp's 16 queries see, counted from the first key of the tile at hand: rows g and g+8 for the lane,
 * and the keys that all 16 see. Queries beyond the last count as the last; nobody reads their results. */
struct sw_warp_seen {
    sw_seen rows[2], all;
};

static __device__ __forceinline__ sw_warp_seen sw_warp_seen_of(const sw_attention &shape, int64_t batch, int64_t first,
                                                               int64_t from) {
    sw_warp_seen seen;
    for (int r = 0; r < 2; r++) {
        const int64_t t = first + sw_lane() / 4 + r * 8, last = shape.seq - 1;
        seen.rows[r] = sw_keys_seen(shape, batch, t < last ? t : last, from);
    }
    seen.all.first = __shfl_sync(SW_ALL_LANES, seen.rows[1].first, SW_WARP - 1);
    seen.all.last = __shfl_sync(SW_ALL_LANES, seen.rows[0].last, 0);
    return seen;
}

static __device__ __forceinline__ bool sw_all_see(const sw_warp_seen &seen, int first_key, int keys) {
    return first_key >= seen.all.first && first_key + keys - 1 <= seen.all.last;
}

/* Returns the first column of the lane's sums. */
static __device__ __forceinline__ int sw_sum_column(int i) {
    return i / 4 * SW_FRAGMENT_COLS + sw_lane() % 4 * 2 + i % 2;
}

/* Writes the warp's 16 rows of sums, each times its factor. Heads have an even number of columns. */
template <typename OUT, int COUNT>
static __device__ __forceinline__ void sw_write_sums(const float (&c)[COUNT], const float factors[2],
                                                     const sw_rows_to<OUT> &rows) {
    SW_UNROLL
    for (int i = 0; i < COUNT; i += 2) {
        const int row = sw_lane() / 4 + i % 4 / 2 * 8, column = sw_sum_column(i), r = i % 4 / 2;
        if (row < rows.rows && column < rows.columns)
            sw_store_pair(rows.to + row * rows.stride + column, c[i] * factors[r], c[i + 1] * factors[r]);
    }
}

/* Calls function<DIM>(arguments...) with the least DIM that holds the head. */
#define SW_HOPPER_FOR_DIM(T, head_dim, function, ...)                                                                  \
    ((head_dim) <= 64 ? function<T, 64>(__VA_ARGS__) : function<T, 128>(__VA_ARGS__))
#define SW_HOPPER_FOR_TYPE(type, function, ...)                                                                        \
    ((type) == SW_BF16 ? function<sw_cuda_bf16>(__VA_ARGS__) : function<sw_cuda_f16>(__VA_ARGS__))

#endif
