/* A few threads for jobs that are alike, each some microseconds long. Whoever has nothing to do sleeps: beside drives,
 * and on a machine that does other things too, waiting busily would take the time of those who work. */
#ifndef SW_OFFLOAD_ENGINE_TEAM_H
#define SW_OFFLOAD_ENGINE_TEAM_H

#include "core/status.h"

#include <stdint.h>

struct sw_team;

typedef void (*sw_team_job)(void *context, int64_t index);

/* threads: with the one that calls. */
sw_status sw_team_open(int threads, struct sw_team **out);
void sw_team_close(struct sw_team *team); /* all jobs are finished */

/* Starts jobs 0 to count-1, in this order. */
void sw_team_begin(struct sw_team *team, sw_team_job job, void *context, int64_t count);
/* Does what nobody has begun, and returns when all are done. */
void sw_team_finish(struct sw_team *team);

#endif
