/* Runs two functions at once, for benchmarks of resources that the engine's lanes use at once. */
#ifndef SW_CORE_BOTH_H
#define SW_CORE_BOTH_H

#include "core/status.h"

/* Calls run(other) on a new thread and run(own) on this one, and waits for both. Returns the error of `own`, or else
 * that of `other`, with its message. */
sw_status sw_run_both(sw_status (*run)(void *context), void *own, void *other);

#endif
