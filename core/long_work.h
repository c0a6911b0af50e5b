/* Work of a start that may take minutes, such as taking a machine's memory: it says every few seconds how far it is,
 * and ends when the user asks the program to stop. */
#ifndef SW_CORE_LONG_WORK_H
#define SW_CORE_LONG_WORK_H

#include "core/status.h"

#include <signal.h>
#include <stdint.h>

/* In place of a total: the work shows nothing, and can only be stopped. */
enum { SW_LONG_WORK_SILENT = -1 };

struct sw_long_work {
    char what[80]; /* completes "while …" and begins each line */
    /* 0: the work has no bytes to count, and its lines show the time instead. Or SW_LONG_WORK_SILENT. */
    int64_t total_bytes;
    int64_t begun_ns, said_ns;
};

struct sw_long_work sw_long_work_begin(const char *what, int64_t total_bytes);
/* Prints a line where the last one is 3 s old, or 30 s where standard error is no terminal. Returns SW_ERR_STOPPED once
 * the user has asked to stop. */
sw_status sw_long_work_at(struct sw_long_work *work, int64_t done_bytes);

/* The flag that a signal handler sets when the user asks to stop, for all threads; NULL: signals end the process
 * themselves, as they do at first. */
void sw_long_work_stop_by(const volatile sig_atomic_t *stop);

#endif
