/* The page of runs that go on, served to whoever has its address on this machine. */
#ifndef SW_REPORT_WATCH_H
#define SW_REPORT_WATCH_H

#include "core/status.h"

#include <signal.h>
#include <stdint.h>

/* Answers GET /SECRET/ on 127.0.0.1 with the page of these runs as they are then, until *stop is set. The secret is
 * drawn anew each time: all users of the machine can reach the port. port 0: any free port. Prints the address on
 * standard error, also of a quiet process. */
sw_status sw_report_watch(const char *const *folders, int count, int64_t port, const volatile sig_atomic_t *stop);

#endif
