/* Line charts as SVG, one below the other in one file. */
#ifndef SW_BENCH_IO_SVG_H
#define SW_BENCH_IO_SVG_H

#include "core/status.h"

#include <stdbool.h>

enum { SW_SVG_MAX_SERIES = 8, SW_SVG_LABEL_CHARS = 32, SW_SVG_CAPTION_CHARS = 512 };

struct sw_svg_series {
    char name[SW_SVG_LABEL_CHARS];
    const double *x, *y; /* y in bytes a second, drawn as GB/s; owned by the caller */
    int count;
    bool dashed;
    bool dots;  /* in place of a line */
    int colour; /* series of one number have one colour */
};

struct sw_svg_chart {
    const char *title, *x_label;
    bool log2_x; /* x has a tick at each power of two */
    struct sw_svg_series series[SW_SVG_MAX_SERIES];
    int series_count;
};

/* Refuses a file that is there already and a folder that cannot be written in. */
sw_status sw_svg_check(const char *path);
/* Writes a new file; the caption stands above the charts. */
sw_status sw_svg_write(const char *path, const char *caption, const struct sw_svg_chart *charts, int count);

#endif
