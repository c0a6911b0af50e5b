/* The log of a run as curves of a bounded number of points. */
#ifndef SW_REPORT_CURVES_H
#define SW_REPORT_CURVES_H

#include "core/status.h"
#include "report/log_line.h"
#include "report/samples.h"

#include <stdbool.h>
#include <stdint.h>

/* The most points of a curve: a chart has hardly more columns of pixels. An even number. And the newest steps whose
 * single values are kept. */
enum { SW_CURVE_POINTS = 800, SW_CURVE_RECENT = 1000 };

/* The values of one column of the log over the steps of a point. */
struct sw_curve_value {
    double least, most, sum;
    int64_t count; /* steps with a number; 0: the other members mean nothing */
};

/* One point: `width` steps that follow each other. */
struct sw_curve_point {
    int64_t step;             /* the last of its steps that the log has; 0: the log has none of them */
    double tokens, seconds;   /* from the first step of the log to the last of this point */
    int64_t clipped, skipped; /* steps */
    int64_t empty;            /* steps without any token that has a loss */
    struct sw_curve_value value[SW_LOG_COLUMNS];
};

struct sw_curve_evaluation {
    int64_t step;
    double loss;
};

struct sw_curves {
    struct sw_curve_point point[SW_CURVE_POINTS];
    int64_t most_points;
    int64_t points;     /* those from the first step to the last one of the log; some between may be empty */
    int64_t first_step; /* 0: the log has no step */
    int64_t width;      /* steps of a point, a power of two */
    int64_t steps, saved;
    double bytes[SW_LOG_BYTE_COUNT], lane_seconds[SW_LOG_LANE_COUNT]; /* of all steps */
    struct sw_log_line last;                                          /* the last step */
    char first_time[SW_LOG_TIME_CHARS], last_time[SW_LOG_TIME_CHARS]; /* empty: not known */
    double recent[SW_CURVE_RECENT][SW_LOG_COLUMNS]; /* step number i of the log at i modulo its length */

    struct sw_curve_evaluation evaluation[SW_CURVE_POINTS];
    int64_t evaluations;      /* entries of `evaluation` */
    int64_t evaluations_seen; /* those of the log, of which every evaluation_stride-th has an entry */
    int64_t evaluation_stride;
    struct sw_curve_evaluation best, last_evaluation; /* step 0: none */

    struct sw_samples samples;
};

/* Bounds of what is read of a log. */
struct sw_curve_spec {
    double clip;               /* the run's --clip; 0: it does not clip */
    int64_t most_points;       /* an even number, at most SW_CURVE_POINTS */
    int64_t most_sample_bytes; /* of all samples in the page */
};

/* Reads the log of a run into *out, which the caller frees by sw_curves_free. A last line without its end is left out,
 * since the run may be writing it. Refuses a log with a damaged line. */
sw_status sw_curves_read(const char *folder, const struct sw_curve_spec *spec, struct sw_curves **out);
void sw_curves_free(struct sw_curves *curves);

/* Returns the median of a column over the recent steps after `after_step`; NaN: none has a number. *out_steps (may be
 * NULL): how many have. */
double sw_curves_median(const struct sw_curves *curves, int column, int64_t after_step, int64_t *out_steps);

#endif
