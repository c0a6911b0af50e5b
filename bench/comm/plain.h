/* Bytes from every rank to every rank by MPI's own sends and receives, as a program would write them that has nothing
 * else: what a gather's transport can do. */
#ifndef SW_BENCH_COMM_PLAIN_H
#define SW_BENCH_COMM_PLAIN_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_COMM_PLAIN_RANKS = 64 }; /* at most */
/* Whether this build has MPI. */
bool sw_comm_plain_is_there(void);
/* Of all ranks at once: the own share to each other rank, and theirs into `all`, in the order of the ranks. Host
 * memory.
 */
sw_status sw_comm_plain_exchange(int rank, int ranks, const char *own, char *all, int64_t share_bytes);

#endif
