/* Measures one pass over --data, for a plan: nothing is written, and few bytes are read. */
#ifndef SW_RUN_DATA_DATA_PASS_H
#define SW_RUN_DATA_DATA_PASS_H

#include "job/data_pass.h"

/* Counts token files, and estimates text that becomes tokens. --seq is resolved. */
sw_data_pass_measured sw_data_pass_measure;

#endif
