/* The file of --trace: written beside its path and renamed, so that it is whole or not there. */
#ifndef SW_TRAIN_RUN_TRACE_FILE_H
#define SW_TRAIN_RUN_TRACE_FILE_H

#include "core/status.h"
#include "offload/engine/trace.h"

/* Room of a trace: 16 MiB, the first steps of a model of billions of parameters, and a file that viewers can open. */
enum { SW_TRACE_OPS = 1 << 20 };

/* Before the work: nothing is at the path, and a file can be made there. */
sw_status sw_trace_file_check(const char *path);

sw_status sw_trace_file_write(const char *path, const struct sw_trace *trace);

#endif
