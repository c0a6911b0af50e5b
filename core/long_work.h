/* Progress of start-up work that may take minutes, such as mapping a machine's memory: it is reported every few
 * seconds, and the work ends when the user asks the program to stop. */
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
    const char *unit; /* the unit of total_bytes and of `done` where it is not bytes: "tokens"; NULL: bytes */
    int64_t begun_ns, said_ns;
};

struct sw_long_work sw_long_work_begin(const char *what, int64_t total_bytes);
/* Shows how far the work is: on a terminal by a line that the next one replaces, elsewhere by a line every 30 s;
 * nothing in the first seconds. Returns SW_ERR_STOPPED once the user has asked to stop. */
sw_status sw_long_work_at(struct sw_long_work *work, int64_t done);
/* Ends the terminal's line, ahead of what is printed on standard output. */
void sw_long_work_end(const struct sw_long_work *work);

/* The flag that a signal handler sets when the user asks to stop, for all threads; NULL: signals end the process
 * themselves, as they do at first. */
void sw_long_work_stop_by(const volatile sig_atomic_t *stop);

#endif
