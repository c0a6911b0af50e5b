/* The measurements of `bench step`, for its report. */
#ifndef SW_BENCH_STEP_STEP_H
#define SW_BENCH_STEP_STEP_H

#include "bench/step/contender.h"
#include "bench/step/least.h"
#include "bench/step/overlap.h"
#include "job/planned.h"

typedef enum { SW_STEP_RESIDENT, SW_STEP_PLACED, SW_STEP_IO_ALONE, SW_STEP_KINDS } sw_step_bench_kind;

/* Steps whose exchange of ranks is reported: as it ran, as predicted, and as predicted where each rank has a core more
 * than its arithmetic takes. */
typedef enum { SW_STEP_COMM_PLACED, SW_STEP_COMM_PREDICTED, SW_STEP_COMM_ONE_CORE_MORE, SW_STEP_COMMS } sw_step_comm;
struct sw_step_exchange {
    double step_s;
    struct sw_overlap overlap;
};

struct sw_step_bench {
    struct sw_planned planned;
    struct sw_ranks ranks;
    int64_t traced_from, traced_to;                  /* the last round's programs in the trace */
    struct sw_step_exchange exchange[SW_STEP_COMMS]; /* zero for a rank alone */
    struct sw_settings resident_settings;            /* strings are borrowed from `planned`, or literals */
    struct sw_plan *resident_plan;                   /* NULL: the resident step does not fit beside the placed one */
    bool speculates;                                 /* the placed step updates in the backward pass */
    struct sw_contender placed, resident;
    struct sw_step_times times[SW_STEP_KINDS];
    double median_s[SW_STEP_KINDS]; /* 0: not measured */
    int64_t least[SW_LANES];        /* least bytes a step, by lane; 0 where ranks run together */
};

/* Fills `exchange` once everything is measured and predicted. */
sw_status sw_step_find_exchange(struct sw_step_bench *bench);

void sw_step_bench_print(const struct sw_step_bench *bench);
sw_status sw_step_bench_json(const struct sw_step_bench *bench);

#endif
