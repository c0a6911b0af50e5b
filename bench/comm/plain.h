/* A gather by MPI's own sends and receives, as a program would write it that has nothing else: the limit of the
 * transport. */
#ifndef SW_BENCH_COMM_PLAIN_H
#define SW_BENCH_COMM_PLAIN_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_COMM_PLAIN_RANKS = 64 }; /* the most ranks */
/* Returns whether this build has MPI. */
bool sw_comm_plain_is_there(void);
/* Sends this rank's share to each other rank, and receives theirs into `all`, in the order of the ranks. All ranks call
 * it at once, with host memory. */
sw_status sw_comm_plain_exchange(int rank, int ranks, const char *own, char *all, int64_t share_bytes);

#endif
