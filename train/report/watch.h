/* The page of runs that go on, served to browsers of this machine alone. */
#ifndef SW_TRAIN_REPORT_WATCH_H
#define SW_TRAIN_REPORT_WATCH_H

#include "core/status.h"

#include <signal.h>
#include <stdint.h>

/* Answers GET / on 127.0.0.1 with the page of these runs as they are then, until *stop is set. port 0: any free port.
 * Prints the address on standard error, also of a quiet process. */
sw_status sw_report_watch(const char *const *folders, int count, int64_t port, const volatile sig_atomic_t *stop);

#endif
