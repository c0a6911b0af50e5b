/* Messages for people, on standard error; on a terminal, lines are broken between words. Control characters in them are
 * shown (visible.h), and each message is one line. Standard output belongs to results. */
#ifndef SW_CORE_LOG_H
#define SW_CORE_LOG_H

#include <stdbool.h>
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
/* Where standard output is a terminal, shows control characters in what is printed (visible.h): text of files and of
 * models must not rule the terminal. `folds`: lines are broken between words, as those of messages. Called before
 * anything is printed. */
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

#endif
