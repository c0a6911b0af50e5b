/* Writes the file of --trace, beside its path and then renamed, so that it is complete or absent. */
#ifndef SW_RUN_TRACE_FILE_H
#define SW_RUN_TRACE_FILE_H

#include "core/status.h"
#include "offload/engine/trace.h"

/* Ops that a trace holds: 16 MiB, the first steps of a model of billions of parameters, and a file that viewers open.
 */
enum { SW_TRACE_OPS = 1 << 20 };

/* Checks before the work that nothing is at the path and that a file can be made there. */
sw_status sw_trace_file_check(const char *path);

sw_status sw_trace_file_write(const char *path, const struct sw_trace *trace);

#endif
