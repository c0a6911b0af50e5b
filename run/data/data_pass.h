/* Measures one pass over --data for a plan. Writes nothing and reads few bytes. */
#ifndef SW_RUN_DATA_DATA_PASS_H
#define SW_RUN_DATA_DATA_PASS_H

#include "job/job.h"

/* Counts token files, estimates the tokens of text, and then resolves the number of steps. Without --data it counts
 * nothing. A function for struct sw_job_spec; context is not used. */
sw_status sw_data_pass_measure(void *context, struct sw_job *job);

#endif
