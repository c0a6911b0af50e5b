/* A rank of a test job: ranks.py starts these by mpirun, or as threads. */
#ifndef SW_TESTS_CORE_RANKS_H
#define SW_TESTS_CORE_RANKS_H

#include "core/ranks/comm.h"

#include <stdio.h>
#include <unistd.h>

/* Says what went wrong on this rank and ends it. */
#define RANKS_REQUIRE(truth, ...)                                                                                      \
    do {                                                                                                               \
        if (!(truth)) {                                                                                                \
            fprintf(stderr, "rank %d: %s:%d: not %s (%s): ", sw_comm_identity(comm)->rank, __FILE__, __LINE__, #truth, \
                    sw_error_message(SW_ERR_INTERNAL));                                                                \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Random collectives against what one rank computes for itself, bit by bit. */
void ranks_check_collectives(struct sw_comm *comm, uint64_t seed, int cases);
/* The same with the library's own sums, which need only be near, and are not the design's to the bit. */
void ranks_check_library_sums(struct sw_comm *comm, uint64_t seed, int cases);
/* From then on collectives go by an emulated NCCL. */
void ranks_use_emulated_gpu(struct sw_comm *comm);
/* A collective whose group of messages the emulated NCCL cuts short, and the end of the comm after it. */
void ranks_break_a_group(struct sw_comm *comm, bool library_sums);
/* Collectives over the scopes of nodes of so many ranks, cut into parts. */
void ranks_check_scopes(struct sw_comm *comm, int node_ranks, int part_ranks);
/* More bytes than 32 bits count. */
void ranks_check_large(struct sw_comm *comm);
/* Host reductions. */
void ranks_check_values(struct sw_comm *comm);
/* Collectives until the end comes: from outside, or from a rank that reports a failure after so many. */
void ranks_go_on(struct sw_comm *comm, int64_t timeout_ms, int failing_rank, int failing_after);
/* A rank that stops doing collectives while the others go on, and computes, sleeps or leaves. */
void ranks_hang(struct sw_comm *comm, int64_t timeout_ms, int hanging_rank, const char *how);
/* A rank that stops while those of its node of two ranks, or of its tensor group of two, do collectives of their own,
 * and the other ranks do theirs. */
void ranks_hang_in_group(struct sw_comm *comm, int64_t timeout_ms, int hanging_rank, const char *how, bool of_tensor);
/* Ranks that are threads, one of which fails in the way that `how` names, and frees its memory; the others say what has
 * ended them. */
void ranks_abandon(struct sw_comm *comm, int failing_rank, const char *how);
/* Prints the addresses on which rank 0's watch listens. So many connections of one rank are refused. */
void ranks_show_listeners(struct sw_comm *comm, int refused_rank, int refused);

#endif
