/* Contributions of all ranks, added in fp32 in the order of the ranks and rounded once: the bits of core/comm_sum.c. */
#include "kernels/cuda/grid.cuh"

#include "core/comm.h"

/* A contribution that is not the own one. */
template <typename From>
static __device__ __forceinline__ const From *other_of(const void *others, int64_t stride_bytes, int rank, int own) {
    return (const From *)((const char *)others + (rank - (rank > own)) * stride_bytes);
}

template <typename From, typename To>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    rank_sum_kernel(int64_t elems, int own_rank, int ranks, const From *own, const void *others, int64_t stride_bytes,
                    To *to, bool aligned) {
    const int64_t at = sw_thread_of_grid() * SW_ELEMS;
    if (at >= elems)
        return;
    float total[SW_ELEMS], next[SW_ELEMS];
    for (int rank = 0; rank < ranks; rank++) {
        const From *from = rank == own_rank ? own : other_of<From>(others, stride_bytes, rank, own_rank);
        sw_load_elems(from + at, elems - at, aligned, next);
        for (int i = 0; i < SW_ELEMS; i++)
            total[i] = rank == 0 ? next[i] : total[i] + next[i];
    }
    sw_store_elems(to + at, elems - at, aligned, total);
}

template <typename From, typename To> static void sum_to(cudaStream_t stream, const struct sw_comm_sum *sum) {
    const bool aligned = sw_is_aligned(sum->own) && sw_is_aligned(sum->others) && sw_is_aligned(sum->to) &&
                         sum->stride_bytes % (int64_t)sizeof(sw_vector16) == 0;
    SW_LAUNCH((rank_sum_kernel<From, To>), sw_blocks(sw_vectors(sum->elems), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0,
              stream, sum->elems, sum->rank, sum->ranks, (const From *)sum->own, sum->others, sum->stride_bytes,
              (To *)sum->to, aligned);
}

template <typename From> static void sum_from(cudaStream_t stream, const struct sw_comm_sum *sum) {
    sum->to_type == SW_F32    ? sum_to<From, float>(stream, sum)
    : sum->to_type == SW_BF16 ? sum_to<From, sw_cuda_bf16>(stream, sum)
                              : sum_to<From, sw_cuda_f16>(stream, sum);
}

void sw_cuda_rank_sum(cudaStream_t stream, const struct sw_comm_sum *sum) {
    if (sum->elems > 0)
        SW_FOR_TYPE(sum->type, sum_from, stream, sum);
}
