/* Compares the steps of a run with their prediction. Reports when they have departed from it for so long that a program
 * that shared the machine for a moment cannot be the cause. */
#ifndef SW_RUN_DEPARTURE_H
#define SW_RUN_DEPARTURE_H

#include "job/forecast.h"

/* Steps of a block whose times are kept. Of a longer block, the last ones. */
enum { SW_DEPARTURE_SAMPLES = 255 };

/* The blocks of steps of one start. Starts zeroed. */
struct sw_departure {
    int64_t steps;  /* steps of the current block */
    double block_s; /* time of these steps, in seconds */
    double seconds[SW_DEPARTURE_SAMPLES];
    double lane_s[SW_LANES][SW_DEPARTURE_SAMPLES]; /* seconds for which each lane was busy */
    int slower, faster; /* how many blocks in a row, up to the last one, were slower or faster */
    bool found;         /* a departure was found; no other is looked for */
};

/* A departure: the seconds that steps took, and the seconds that were predicted. */
struct sw_departed {
    double measured_s, predicted_s;
    sw_lane lane; /* the lane with the largest difference */
    double lane_measured_s, lane_predicted_s;
};

/* Counts a typical step (sw_costs_note): its seconds, and those of each lane. Returns true once: if in two blocks in a
 * row the median step took over a quarter longer than any predicted step, or every predicted step over a quarter longer
 * than the median. A block has at least five steps and two seconds. Without a prediction it always returns false. */
bool sw_departure_note(struct sw_departure *departure, const struct sw_forecast *forecast, double seconds,
                       const double lane_s[SW_LANES], struct sw_departed *out);

struct sw_trainer;

/* Counts a step of a run. If the run has departed, says so and marks the profile as doubtful. */
void sw_departure_after(struct sw_trainer *trainer, double seconds, const double lane_s[SW_LANES]);

#endif
