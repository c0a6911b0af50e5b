/* Adds the contributions of all ranks in fp32, in the order of the ranks, and rounds the sum once. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

/* A block's sums stay in the nearest cache. */
enum { BLOCK_ELEMS = 1024 };

static const char *contribution(const struct sw_comm_sum *sum, int rank) {
    if (rank == sum->rank)
        return sum->own;
    return (const char *)sum->others + (rank - (rank > sum->rank)) * sum->stride_bytes;
}

void sw_comm_sum_host(const struct sw_comm_sum *sum) {
    const int64_t bytes = sw_dtype_bytes(sum->type), to_bytes = sw_dtype_bytes(sum->to_type);
    float total[BLOCK_ELEMS], next[BLOCK_ELEMS];
    for (int64_t first = 0; first < sum->elems; first += BLOCK_ELEMS) {
        const int64_t count = sw_min_i64(sum->elems - first, BLOCK_ELEMS);
        sw_dtype_widen(sum->type, contribution(sum, 0) + first * bytes, count, total);
        for (int rank = 1; rank < sum->ranks; rank++) {
            sw_dtype_widen(sum->type, contribution(sum, rank) + first * bytes, count, next);
            for (int64_t i = 0; i < count; i++)
                total[i] += next[i];
        }
        sw_dtype_round(sum->to_type, total, count, (char *)sum->to + first * to_bytes);
    }
}
