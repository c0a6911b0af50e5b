/* Messages for people, on standard error; on a terminal, lines are broken between words. Control characters in them are
 * shown (core/text/text.h), and each message is one line. Standard output belongs to results. */
#ifndef SW_CORE_LOG_H
#define SW_CORE_LOG_H

#include "core/status.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Tells the log which rank this thread works for; a thread begins as one of rank 0. Rank 0 speaks for all: the other
 * ranks' information is not printed, and their warnings name their rank. sw_comm_open calls this function, and so does
 * each thread that a rank starts and that may print. */
void sw_log_set_rank(int rank);
int sw_log_rank(void);

void sw_log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sw_log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints why the process ends, on every rank. */
void sw_log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints text of several lines, at most 18 kB, as it is but for its control characters. */
void sw_log_text(const char *text);

/* Tells whether text for a file descriptor may have escape sequences: it is a terminal, TERM is neither unset nor
 * "dumb", and NO_COLOR is not set. Elsewhere progress comes as whole lines. */
bool sw_log_takes_escapes(int fd);

/* Returns the columns that text and tables for a stream may fill. On a terminal: COLUMNS where the user sets it, else
 * the terminal's width, at least 40 and at most 120. Elsewhere 80, so that what programs read does not depend on a
 * terminal. A stream of memory is taken for one whose text goes to standard error. */
int sw_log_columns(FILE *to);
/* Where standard output is a terminal, shows control characters in what is printed (core/text/text.h): text of files
 * and of models must not rule the terminal. `folds`: lines are broken between words, as those of messages. Called
 * before anything is printed. */
void sw_log_begin_output(bool folds);
/* Ends the breaking of lines, with a line that has begun: what follows keeps its lines, such as JSON. */
void sw_log_end_folding(void);
/* Prints an escape sequence of ours, such as a colour's. Standard output must take escapes. */
void sw_log_escape(const char *sequence);
/* Ends all of that before the process ends, and prints what is left. */
void sw_log_end_output(void);

/* Shows a line that the next one replaces, cut at the last whole field (two spaces apart) that fits the terminal.
 * Standard error must take escapes. Any other message ends the line first. */
void sw_log_progress(const char *text);
/* Ends the line that sw_log_progress shows, so that what other code prints begins a line of its own. */
void sw_log_end_progress(void);

/* Makes the process quiet: it shows warnings and errors, but neither information nor progress. */
void sw_log_set_quiet(void);
bool sw_log_is_quiet(void);

/* Progress of start-up work that may take minutes, such as mapping a machine's memory: it is reported every few
 * seconds, and the work ends when the user asks the program to stop. */

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
