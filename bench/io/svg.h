/* Line charts as SVG: one below the other in one file. */
#ifndef SW_BENCH_IO_SVG_H
#define SW_BENCH_IO_SVG_H

#include "core/status.h"

#include <stdbool.h>

enum { SW_SVG_MAX_SERIES = 8, SW_SVG_MAX_TICKS = 16, SW_SVG_LABEL_CHARS = 32, SW_SVG_CAPTION_CHARS = 512 };

struct sw_svg_series {
    char name[SW_SVG_LABEL_CHARS];
    const double *x, *y; /* owned by the caller */
    int count;
    bool dashed;
    bool dots;  /* in place of a line */
    int colour; /* series of one number have one colour */
};

struct sw_svg_chart {
    const char *title, *x_label, *y_label;
    struct sw_svg_series series[SW_SVG_MAX_SERIES];
    int series_count;
    double tick_at[SW_SVG_MAX_TICKS];
    char tick[SW_SVG_MAX_TICKS][SW_SVG_LABEL_CHARS];
    int tick_count; /* of x; 0: chosen from the data */
};

/* Refuses a file that is there already and a folder that cannot be written in, before anything is measured. */
sw_status sw_svg_check(const char *path);
/* The caption stands above the charts. */
sw_status sw_svg_write(const char *path, const char *caption, const struct sw_svg_chart *charts, int count);

#endif
