/* Shows the progress of long work: one line that is renewed on a terminal, or a plain line every few seconds; and a
 * line at the end. Work that ends within a second prints nothing. */
#ifndef SW_RUN_PROGRESS_H
#define SW_RUN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct sw_progress {
    const char *what; /* begins each line */
    FILE *to;
    bool on_terminal;   /* `to` is a terminal, on which one line is renewed */
    int64_t start_ns;   /* when the work began */
    int64_t shown_ns;   /* when a line was last printed, or the work began */
    int64_t working_ns; /* time of the first call of sw_progress_at, from which rates count */
    bool line_open;     /* the line on the terminal has no end yet */
};

/* Begins to show work that starts at now_ns. Prints nothing yet. */
struct sw_progress sw_progress_begin(const char *what, FILE *to, bool on_terminal, int64_t now_ns);
/* Shows how far the work is, if it is time for another line. */
void sw_progress_at(struct sw_progress *progress, int64_t done_bytes, int64_t total_bytes, int64_t now_ns);
/* Prints the last line: all bytes are done. */
void sw_progress_end(struct sw_progress *progress, int64_t total_bytes, int64_t now_ns);
/* Ends the line on the terminal after work that failed or was stopped. */
void sw_progress_break(struct sw_progress *progress);

#endif
