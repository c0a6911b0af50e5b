/* Serves the page of running runs to whoever has its address on this machine. */
#ifndef SW_REPORT_WATCH_H
#define SW_REPORT_WATCH_H

#include "core/status.h"

#include <signal.h>
#include <stdint.h>

/* Answers GET /SECRET/ on 127.0.0.1 with the current page of these runs, until *stop is set. The secret is new each
 * time, because all users of the machine can reach the port. port 0: any free port. Prints the address on standard
 * error, even if the process is quiet. */
sw_status sw_report_watch(const char *const *folders, int count, int64_t port, const volatile sig_atomic_t *stop);

#endif
