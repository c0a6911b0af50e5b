/* A line about work that takes long: on a terminal renewed in place, elsewhere a plain one every few seconds, and one
 * at the end. Work that is done within a second says nothing. */
#ifndef SW_TRAIN_RUN_PROGRESS_H
#define SW_TRAIN_RUN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct sw_progress {
    const char *what; /* begins each line */
    FILE *to;
    bool on_terminal;
    int64_t start_ns, shown_ns;
    int64_t working_ns; /* since when bytes are done: the first call of sw_progress_at */
    bool line_open;     /* the terminal's line is still to be ended */
};

struct sw_progress sw_progress_begin(const char *what, FILE *to, bool on_terminal, int64_t now_ns);
void sw_progress_at(struct sw_progress *progress, int64_t done_bytes, int64_t total_bytes, int64_t now_ns);
/* All of it is done. */
void sw_progress_end(struct sw_progress *progress, int64_t total_bytes, int64_t now_ns);
/* It ended early: only the terminal's line is left alone. */
void sw_progress_break(struct sw_progress *progress);

#endif
