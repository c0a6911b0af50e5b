/* The log of a run as curves with a bounded number of points. */
#ifndef SW_REPORT_CURVES_H
#define SW_REPORT_CURVES_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The fields of a step's line, in its order, which the log writes from a record and a report reads: ONE(kind, name),
 * and OF(group, kind, name) for those of an object within it. A COUNT may be null. */
/* clang-format off */
#define SW_LOG_STEP_FIELDS(ONE, OF) \
    ONE(INT, step) ONE(REAL, loss) ONE(COUNT, loss_tokens) ONE(REAL, grad_norm) ONE(REAL, lr) ONE(INT, tokens) \
    ONE(REAL, seconds) ONE(REAL, tokens_per_second) ONE(REAL, mfu) ONE(FLAG, skipped) ONE(FLAG, saved) \
    ONE(INT, ranks) ONE(INT, zero) ONE(REAL, eta_seconds) \
    OF(lanes, REAL, compute) OF(lanes, REAL, upload) OF(lanes, REAL, download) OF(lanes, REAL, read) \
    OF(lanes, REAL, write) OF(lanes, REAL, update) OF(lanes, REAL, comm) \
    OF(bytes, INT, nvme_read) OF(bytes, INT, nvme_write) OF(bytes, INT, upload) OF(bytes, INT, download) \
    OF(bytes, INT, comm) \
    OF(peak, INT, device) OF(peak, INT, host) OF(peak, INT, nvme) \
    OF(pipeline, INT, stages) OF(pipeline, INT, interleave) OF(pipeline, INT, groups) OF(pipeline, REAL, idle) \
    OF(pipeline, REAL, most_idle) OF(pipeline, REAL, formula) \
    OF(experts, REAL, load) OF(experts, INT, idle) OF(experts, REAL, aux_loss) OF(experts, REAL, z_loss) \
    OF(rewards, INT, pairs) OF(rewards, REAL, chosen) OF(rewards, REAL, rejected) OF(rewards, REAL, margin) \
    OF(rewards, REAL, accuracy)
/* clang-format on */

/* The numbers of a line: the fields of a step, and those of an evaluation. docs/json.md has their names. */
enum {
    SW_LOG_STEP,
    SW_LOG_LOSS,
    SW_LOG_LOSS_TOKENS,
    SW_LOG_GRAD_NORM,
    SW_LOG_LR,
    SW_LOG_TOKENS,
    SW_LOG_SECONDS,
    SW_LOG_TOKENS_PER_SECOND,
    SW_LOG_MFU,
    SW_LOG_SKIPPED,
    SW_LOG_SAVED,
    SW_LOG_RANKS,
    SW_LOG_ZERO,
    SW_LOG_ETA_SECONDS,
    SW_LOG_LANES, /* the first of SW_LOG_LANE_COUNT */
    SW_LOG_LANE_COUNT = 7,
    SW_LOG_BYTES = SW_LOG_LANES + SW_LOG_LANE_COUNT,
    SW_LOG_BYTE_COUNT = 5,
    SW_LOG_PEAKS = SW_LOG_BYTES + SW_LOG_BYTE_COUNT,
    SW_LOG_PEAK_COUNT = 3,
    SW_LOG_PIPELINE = SW_LOG_PEAKS + SW_LOG_PEAK_COUNT, /* the stages; this and the next five only of a pipeline */
    SW_LOG_PIPELINE_INTERLEAVE,
    SW_LOG_PIPELINE_GROUPS,
    SW_LOG_PIPELINE_IDLE,
    SW_LOG_PIPELINE_MOST_IDLE,
    SW_LOG_PIPELINE_FORMULA,
    SW_LOG_EXPERTS, /* only of a mixture of experts */
    SW_LOG_EXPERT_COUNT = 4,
    SW_LOG_REWARDS = SW_LOG_EXPERTS + SW_LOG_EXPERT_COUNT, /* only with --dpo, and last in a line */
    SW_LOG_REWARD_COUNT = 5,
    SW_LOG_STEP_COLUMNS = SW_LOG_REWARDS + SW_LOG_REWARD_COUNT,
    SW_LOG_VAL_LOSS = SW_LOG_STEP_COLUMNS,
    SW_LOG_VAL_TOKENS,
    SW_LOG_COLUMNS,
};

enum { SW_LOG_TIME_CHARS = 32 };

struct sw_log_line {
    double value[SW_LOG_COLUMNS]; /* NaN: none, null or beyond 1e100; booleans are 0 and 1 */
    bool is_sample;               /* the line has a text that the run generated */
    bool is_load;                 /* the line has the tokens of a layer's experts */
    char time[SW_LOG_TIME_CHARS]; /* UTC in ISO 8601, zero-terminated; empty: unknown */
};

/* A column's name, such as "grad_norm" or, in the group "lanes", "compute". group: "" for the line itself. */
struct sw_log_column {
    const char *group, *name;
};
extern const struct sw_log_column sw_log_fields[SW_LOG_COLUMNS];

/* Parses the zero-terminated JSON object of a line. Members with other names are checked and skipped. Returns false if
 * the text is not an object of a log: invalid JSON, a number of another type, or no step. */
bool sw_log_line_parse(const char *text, struct sw_log_line *out);

/* Limits of the samples of a run, those of one step, and the bytes of a text, whose rest is cut off. */
enum { SW_SAMPLES = 240, SW_SAMPLES_OF_STEP = 12, SW_SAMPLE_CHARS = 2000 };

struct sw_sample {
    int64_t step;
    int64_t number;        /* number of the step among those with samples, from 0 */
    int64_t page_bytes;    /* its bytes in the page */
    json_t *prompt, *text; /* strings, owned */
};

/* Samples of a step are kept or dropped together. Those of the newest step are always kept. */
struct sw_samples {
    struct sw_sample sample[SW_SAMPLES + SW_SAMPLES_OF_STEP];
    int64_t count;
    int64_t newest;           /* number of the newest step */
    int64_t stride;           /* every stride-th step is kept, and the newest; 0: no sample yet */
    int64_t most_page_bytes;  /* limit of all samples in the page; set by the caller before the first is added */
    int64_t seen, unreadable; /* samples of the log; those of them that are not text */
};

/* The load of experts that a log has last: of each layer an array of the tokens of its experts, over `steps` steps. */
struct sw_expert_load {
    int64_t step, steps;
    json_t *layers; /* owned; NULL: the log has none */
};

/* The most points of a curve, an even number: a chart hardly has more columns of pixels. And the number of newest steps
 * whose single values are kept. */
enum { SW_CURVE_POINTS = 800, SW_CURVE_RECENT = 1000 };

/* The values of one column of the log over the steps of a point. */
struct sw_curve_value {
    double least, most, sum;
    int64_t count; /* steps with a number; 0: the other members are undefined */
};

/* One point: `width` consecutive steps. */
struct sw_curve_point {
    int64_t step;             /* the last of its steps that the log has; 0: it has none of them */
    double tokens, seconds;   /* from the first step of the log to the last of this point */
    int64_t clipped, skipped; /* steps */
    int64_t empty;            /* steps in which no token has a loss */
    struct sw_curve_value value[SW_LOG_COLUMNS];
};

struct sw_curve_evaluation {
    int64_t step;
    double loss;
};

struct sw_curves {
    struct sw_curve_point point[SW_CURVE_POINTS];
    int64_t most_points;
    int64_t points;     /* from the first to the last step of the log; some between may be empty */
    int64_t first_step; /* 0: the log has no step */
    int64_t width;      /* steps per point, a power of two */
    int64_t steps, saved;
    double bytes[SW_LOG_BYTE_COUNT], lane_seconds[SW_LOG_LANE_COUNT]; /* of all steps */
    struct sw_log_line last;                                          /* the last step */
    char first_time[SW_LOG_TIME_CHARS], last_time[SW_LOG_TIME_CHARS]; /* empty: unknown */
    double recent[SW_CURVE_RECENT][SW_LOG_COLUMNS]; /* the i-th step of the log is at i modulo the length */

    struct sw_curve_evaluation evaluation[SW_CURVE_POINTS];
    int64_t evaluations;      /* entries of `evaluation` */
    int64_t evaluations_seen; /* in the log; every evaluation_stride-th has an entry */
    int64_t evaluation_stride;
    struct sw_curve_evaluation best, last_evaluation; /* step 0: none */

    struct sw_samples samples;
    struct sw_expert_load load;
};

/* Bounds of what is read of a log. */
struct sw_curve_spec {
    double clip;               /* the run's --clip; 0: none */
    int64_t most_points;       /* an even number, at most SW_CURVE_POINTS */
    int64_t most_sample_bytes; /* limit of all samples in the page */
};

/* Reads the log of a run into *out, which the caller frees by sw_curves_free. Ignores a last line without an end, which
 * the run may be writing. Refuses a log with a damaged line. */
sw_status sw_curves_read(const char *folder, const struct sw_curve_spec *spec, struct sw_curves **out);
void sw_curves_free(struct sw_curves *curves);

/* Returns the median of a column over the recent steps after `after_step`; NaN: no step has a number. *out_steps (may
 * be NULL): how many have one. */
double sw_curves_median(const struct sw_curves *curves, int column, int64_t after_step, int64_t *out_steps);

#endif
