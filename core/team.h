/* A few threads for similar jobs of some microseconds each. A thread without a job sleeps: busy waiting would take time
 * from drives and other programs. */
#ifndef SW_CORE_TEAM_H
#define SW_CORE_TEAM_H

#include "core/status.h"

#include <stdint.h>

struct sw_team;

/* Does job number `index`. Several threads call it at once. thread: number of the team's thread; 0 is the one that
 * calls sw_team_finish. */
typedef void (*sw_team_job)(void *context, int64_t index, int thread);

/* Opens a team of `threads` threads, including the caller's. The caller closes it. */
sw_status sw_team_open(int threads, struct sw_team **out);
/* Closes a team whose jobs are all finished. NULL is allowed. */
void sw_team_close(struct sw_team *team);

/* Starts jobs 0 to count-1, in this order. */
void sw_team_begin(struct sw_team *team, sw_team_job job, void *context, int64_t count);
/* Does jobs that nobody has begun, and returns when all are done. Does not wait for threads that have not begun a job,
 * so a thread that another program keeps from its core holds nobody up. */
void sw_team_finish(struct sw_team *team);

/* Calls run(other) on a new thread and run(own) on this one, and waits for both. Returns the error of `own`, or else
 * that of `other`, with its message. For benchmarks of resources that the engine's lanes use at once. */
sw_status sw_run_both(sw_status (*run)(void *context), void *own, void *other);

#endif
