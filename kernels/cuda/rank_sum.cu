/* Contributions of all ranks, added in fp32 in the order of the ranks and rounded once: the bits of
 * core/ranks/comm.c. */
#include "kernels/cuda/grid.cuh"

#include "core/ranks/comm.h"

namespace {
template <typename From, typename To> struct rank_sum {
    enum { VECTORS = 1, RANKS_AT_ONCE = 4 };
    struct held {
        float total[SW_ELEMS];
    };
    int own_rank, ranks;
    const From *own;
    const char *others;
    int64_t stride_bytes;
    To *to;

    __device__ __forceinline__ const From *of(int rank) const {
        return rank == own_rank ? own : (const From *)(others + (rank - (rank > own_rank)) * stride_bytes);
    }
    /* Several ranks' vectors are under way before the first is added. */
    __device__ __forceinline__ void load(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        float next[RANKS_AT_ONCE][SW_ELEMS];
        sw_load_elems(of(0) + at, count, aligned, h.total);
        for (int first = 1; first < ranks; first += RANKS_AT_ONCE) {
            SW_UNROLL
            for (int r = 0; r < RANKS_AT_ONCE; r++) {
                if (first + r < ranks)
                    sw_load_elems(of(first + r) + at, count, aligned, next[r]);
            }
            SW_UNROLL
            for (int r = 0; r < RANKS_AT_ONCE; r++) {
                for (int i = 0; i < SW_ELEMS && first + r < ranks; i++)
                    h.total[i] += next[r][i];
            }
        }
    }
    __device__ __forceinline__ void store(int64_t, int64_t at, int64_t count, bool aligned, held &h) const {
        sw_store_elems(to + at, count, aligned, h.total);
    }
};
} // namespace

template <typename From, typename To> static void sum_to(cudaStream_t stream, const struct sw_comm_sum *sum) {
    const bool aligned = sw_is_aligned(sum->own) && sw_is_aligned(sum->others) && sw_is_aligned(sum->to) &&
                         sum->stride_bytes % (int64_t)sizeof(sw_vector16) == 0;
    const rank_sum<From, To> op = {sum->rank,         sum->ranks,   (const From *)sum->own, (const char *)sum->others,
                                   sum->stride_bytes, (To *)sum->to};
    sw_for_rows(stream, 1, sum->elems, op, aligned);
}

template <typename From> static void sum_from(cudaStream_t stream, const struct sw_comm_sum *sum) {
    sum->to_type == SW_F32    ? sum_to<From, float>(stream, sum)
    : sum->to_type == SW_BF16 ? sum_to<From, sw_cuda_bf16>(stream, sum)
                              : sum_to<From, sw_cuda_f16>(stream, sum);
}

void sw_cuda_rank_sum(cudaStream_t stream, const void *args) {
    const sw_comm_sum *sum = (const sw_comm_sum *)args;
    if (sum->elems > 0)
        SW_FOR_TYPE(sum->type, sum_from, stream, sum);
}
