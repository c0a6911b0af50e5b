/* Messages for people, on standard error. On a terminal, lines are broken between words. Control characters are made
 * visible (core/text/text.h), and each message is one line. Standard output is for results. */
#ifndef SW_CORE_LOG_H
#define SW_CORE_LOG_H

#include "core/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Sets the rank that this thread works for, initially 0. Rank 0 speaks for all: other ranks' information is not
 * printed, and their warnings name their rank. sw_comm_open calls it, and so must each thread that a rank starts and
 * that may print. */
void sw_log_set_rank(int rank);
int sw_log_rank(void);

void sw_log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sw_log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints why the process ends, on every rank. */
void sw_log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints text of several lines, at most 18 kB, with only its control characters changed. */
void sw_log_text(const char *text);

/* Tells whether text for a file descriptor may have escape sequences: it is a terminal, TERM is neither unset nor
 * "dumb", and NO_COLOR is not set. Elsewhere progress is printed as whole lines. */
bool sw_log_takes_escapes(int fd);

/* Returns the number of columns for text and tables on a stream. On a terminal: COLUMNS if set, else the terminal's
 * width, but at least 40 and at most 120. Elsewhere 80, so that what programs read does not depend on a terminal. A
 * stream in memory is treated like standard error. */
int sw_log_columns(FILE *to);
/* If standard output is a terminal, makes control characters in what is printed visible (core/text/text.h): text from
 * files and models must not control the terminal. `folds`: breaks lines between words, as in messages. Call it before
 * anything is printed. */
void sw_log_begin_output(bool folds);
/* Ends the breaking of lines, and the current line: what follows, such as JSON, keeps its lines. */
void sw_log_end_folding(void);
/* Prints one of our own escape sequences, such as a colour's. Standard output must take escapes. */
void sw_log_escape(const char *sequence);
/* Ends all of this before the process ends, and prints what is left. */
void sw_log_end_output(void);

/* Shows a line that the next one replaces, cut after the last whole field (fields are two spaces apart) that fits the
 * terminal. Standard error must take escapes. Any other message ends the line first. */
void sw_log_progress(const char *text);
/* Ends the line of sw_log_progress, so that other output begins on a new line. */
void sw_log_end_progress(void);

/* Sends the messages of sw_log_info, _warn and _error to a function instead of standard error, each without line end,
 * and shows no progress. For programs that this code is a library of. Threads call the function at the same time, and
 * no lock is held meanwhile, so it may wait for a lock of the program. A call that has begun may end after the function
 * was replaced. NULL: to standard error, as at first. */
typedef void (*sw_log_receiver)(void *context, int is_warning, const char *line);
void sw_log_send_to(sw_log_receiver receiver, void *context);

/* Makes the process quiet: it shows warnings and errors, but no information or progress. */
void sw_log_set_quiet(void);
bool sw_log_is_quiet(void);

/* Progress of start-up work that may take minutes, such as mapping a machine's memory. It is reported every few
 * seconds, and the work ends when the user asks the program to stop. */

/* As total_bytes: the work shows nothing and can only be stopped. */
enum { SW_LONG_WORK_SILENT = -1 };

struct sw_long_work {
    char what[80]; /* completes "while …" and begins each line */
    /* 0: there are no bytes to count, and lines show the time instead. Or SW_LONG_WORK_SILENT. */
    int64_t total_bytes;
    const char *unit; /* unit of total_bytes and `done`, such as "tokens"; NULL: bytes */
    int64_t begun_ns, said_ns;
};

struct sw_long_work sw_long_work_begin(const char *what, int64_t total_bytes);
/* Shows how far the work has got: on a terminal as a line that the next one replaces, elsewhere as a line every 30 s,
 * and nothing in the first seconds. Returns SW_ERR_STOPPED once the user has asked to stop. */
sw_status sw_long_work_at(struct sw_long_work *work, int64_t done);
/* Ends the terminal's line, before something is printed on standard output. */
void sw_long_work_end(const struct sw_long_work *work);

/* Sets the flag, for all threads, by which a signal handler says that the user asks to stop. NULL, as at first: signals
 * end the process. */
void sw_long_work_stop_by(const volatile sig_atomic_t *stop);

#endif
