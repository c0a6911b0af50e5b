/* Shows the progress of long work: on a terminal one line that is rewritten, elsewhere a plain line every few seconds,
 * and a line at the end. Work that ends within a second prints nothing. */
#ifndef SW_RUN_PROGRESS_H
#define SW_RUN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct sw_progress {
    const char *what; /* beginning of each line */
    FILE *to;
    bool on_terminal;   /* `to` is a terminal: one line is rewritten */
    int64_t start_ns;   /* when the work began */
    int64_t shown_ns;   /* when a line was last printed; at first, when the work began */
    int64_t working_ns; /* time of the first call of sw_progress_at, from which rates count */
    bool line_open;     /* the line on the terminal is not ended yet */
};

/* Begins to show work that starts at now_ns. Prints nothing yet. */
struct sw_progress sw_progress_begin(const char *what, FILE *to, bool on_terminal, int64_t now_ns);
/* Shows how far the work has got, if it is time for another line. */
void sw_progress_at(struct sw_progress *progress, int64_t done_bytes, int64_t total_bytes, int64_t now_ns);
/* Prints the last line, with all bytes done. */
void sw_progress_end(struct sw_progress *progress, int64_t total_bytes, int64_t now_ns);
/* Ends the line on the terminal after work that failed or was stopped. */
void sw_progress_break(struct sw_progress *progress);

#endif
