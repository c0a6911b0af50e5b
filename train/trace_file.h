/* The file of --trace: written beside its path and renamed, so that it is whole or not there. */
#ifndef SW_TRAIN_TRACE_FILE_H
#define SW_TRAIN_TRACE_FILE_H

#include "core/status.h"
#include "offload/engine.h"

/* Before training: nothing is at the path, and a file can be made there. */
sw_status sw_trace_file_check(const char *path);

/* What the idle engine has measured; out_steps: the training steps that it has. */
sw_status sw_trace_file_write(const char *path, const struct sw_engine *engine, int64_t *out_steps);

#endif
