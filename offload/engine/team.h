/* A few threads for short jobs that are alike, each some microseconds long. A thread without a job sleeps: waiting
 * busily would take time from drives and from other programs. */
#ifndef SW_OFFLOAD_ENGINE_TEAM_H
#define SW_OFFLOAD_ENGINE_TEAM_H

#include "core/status.h"

#include <stdint.h>

struct sw_team;

/* Does job number `index`. Several threads call it at once. */
typedef void (*sw_team_job)(void *context, int64_t index);

/* Opens a team of so many threads, the calling one included. The caller closes it. */
sw_status sw_team_open(int threads, struct sw_team **out);
/* Closes a team whose jobs are all finished; NULL is allowed. */
void sw_team_close(struct sw_team *team);

/* Starts jobs 0 to count-1, in this order. */
void sw_team_begin(struct sw_team *team, sw_team_job job, void *context, int64_t count);
/* Does jobs that nobody has begun, and returns when all are done. */
void sw_team_finish(struct sw_team *team);

#endif
