/* The request to stop that a signal makes, and the answer that the user sees. */
#ifndef SW_TRAIN_RUN_SIGNALS_H
#define SW_TRAIN_RUN_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* Catches SIGINT, SIGTERM, SIGHUP (unless it is ignored, as under nohup) and SIGUSR1, which mpirun forwards and batch
 * systems send ahead of a job's end. The first signal sets the flag that is returned, and is answered on standard error
 * if `speaks`: a run that is being made ends at once, one that trains ends after its step. A second SIGINT or SIGTERM
 * ends the process with SW_EXIT_FAILED. From then on a write to a closed pipe, or beyond the largest file that the
 * system allows, fails with an error and does not end the process. */
const volatile sig_atomic_t *sw_signals_catch(bool speaks);

/* Sets the text of the answer from now on: the training will end after last_step, at end_ns of sw_now_ns (0: not
 * known). */
void sw_signals_expect(int64_t last_step, int64_t end_ns);

#endif
