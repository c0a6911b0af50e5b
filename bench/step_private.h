/* What `bench step` measures and what it reports. */
#ifndef SW_BENCH_STEP_PRIVATE_H
#define SW_BENCH_STEP_PRIVATE_H

#include "bench/contender.h"
#include "bench/least.h"
#include "train/planned.h"

typedef enum { SW_STEP_RESIDENT, SW_STEP_PLACED, SW_STEP_IO_ALONE, SW_STEP_KINDS } sw_step_bench_kind;

struct sw_step_bench {
    struct sw_planned planned;
    struct sw_settings resident_settings; /* strings are those of `planned`, or literals */
    struct sw_plan *resident_plan;        /* NULL: it does not fit into this machine */
    bool speculates;
    struct sw_contender placed, resident;
    struct sw_step_times times[SW_STEP_KINDS];
    double median_s[SW_STEP_KINDS]; /* 0: not measured */
    int64_t least[SW_LANES];
    double products_flops_per_s; /* of the model's matrix products, one after the other */
};

void sw_step_bench_print(const struct sw_step_bench *bench);
sw_status sw_step_bench_json(const struct sw_step_bench *bench);

#endif
