/* The speed of a step beside the device's: its arithmetic over the device's peak and over the rate of its matrix
 * products, and the time that no plan can go below. */
#ifndef SW_BENCH_STEP_REPORT_H
#define SW_BENCH_STEP_REPORT_H

#include "bench/step/step.h"

/* Measures the rate of the model's products where the kept rates lack it, and keeps it. Call it before the contenders
 * take their memory, because it takes some for operands. */
sw_status sw_step_measure_products(struct sw_step_bench *bench);

struct sw_step_speed {
    double flops_per_s;          /* the model's arithmetic; recomputation is not counted */
    double peak_flops_per_s;     /* 0: not known */
    double of_peak, of_products; /* of_peak: NAN where the peak is not known */
    /* The slowest of: the model's operations at the peak (at the rate of products where that is not known), and the
     * least bytes of each lane at its measured rate. */
    double light_s, of_light;
    const char *light_lane;
};

#endif
