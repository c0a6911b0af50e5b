/* Compares the steps of a run with their prediction, and finds out when they have departed from it for long enough that
 * no program that shares the machine for a moment can be the cause. */
#ifndef SW_RUN_DEPARTURE_H
#define SW_RUN_DEPARTURE_H

#include "job/forecast.h"

/* Steps of a block whose times are kept; of more, the last ones. */
enum { SW_DEPARTURE_SAMPLES = 255 };

/* The blocks of steps of one start. Zero at first. */
struct sw_departure {
    int64_t steps;  /* of the block that is under way */
    double block_s; /* the time of these steps */
    double seconds[SW_DEPARTURE_SAMPLES];
    double lane_s[SW_LANES][SW_DEPARTURE_SAMPLES]; /* seconds for which each lane was busy */
    int slower, faster;                            /* blocks in a row that were, up to the last one */
    bool found;                                    /* a departure was found, and no other is looked for */
};

/* A departure: the seconds that steps took, and those that were predicted. */
struct sw_departed {
    double measured_s, predicted_s;
    sw_lane lane; /* that with the largest difference */
    double lane_measured_s, lane_predicted_s;
};

/* Counts a step that was like those around it: its seconds, and those of each lane. Returns true once: when the median
 * step of each of two blocks in a row took over a quarter more than any predicted one, or any predicted one over a
 * quarter more than it. A block has at least five steps and two seconds. Without a prediction nothing departs. */
bool sw_departure_note(struct sw_departure *departure, const struct sw_forecast *forecast, double seconds,
                       const double lane_s[SW_LANES], struct sw_departed *out);

struct sw_trainer;

/* Counts a step of a run, says if it has departed, and marks the profile as doubtful. */
void sw_departure_after(struct sw_trainer *trainer, double seconds, const double lane_s[SW_LANES]);

#endif
