/* Turns signals into a stop request, and answers the user. */
#ifndef SW_RUN_SIGNALS_H
#define SW_RUN_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* Catches SIGINT, SIGTERM, SIGHUP (unless it is ignored, as under nohup) and SIGUSR1, which mpirun forwards and batch
 * systems send before a job's end. The first signal sets the flag that is returned; if `speaks`, a line on standard
 * error answers it. A run that is still being created then ends at once, a training run after its step. A second SIGINT
 * or SIGTERM ends the process with SW_EXIT_FAILED. After this call, a write to a closed pipe, or beyond the system's
 * limit of a file's size, returns an error instead of ending the process. */
const volatile sig_atomic_t *sw_signals_catch(bool speaks);

/* Sets the answer to a signal: training will end after last_step, at end_ns of sw_now_ns (0: unknown). */
void sw_signals_expect(int64_t last_step, int64_t end_ns);

#endif
