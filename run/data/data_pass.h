/* Measures one pass over --data, for a plan: nothing is written, and few bytes are read. */
#ifndef SW_RUN_DATA_DATA_PASS_H
#define SW_RUN_DATA_DATA_PASS_H

#include "job/job.h"

/* Counts token files, and estimates text that becomes tokens; without --data does nothing. Then resolves the steps. For
 * struct sw_job_spec; context is not used. */
sw_status sw_data_pass_measure(void *context, struct sw_job *job);

#endif
