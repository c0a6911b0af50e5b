/* Compares the steps of a run with their prediction. Reports when they have departed from it for so long that a program
 * that shared the machine for a moment cannot be the cause. */
#ifndef SW_RUN_DEPARTURE_H
#define SW_RUN_DEPARTURE_H

#include "job/store.h"

#include <stdbool.h>
#include <stdint.h>

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

/* Counts what steps cost besides their arithmetic: bytes written to the drives, and the time of saves if not every step
 * commits. */
struct sw_trainer;

/* Kinds of steps that are timed separately. The step after a save starts with empty lanes, as the save did. */
typedef enum { SW_COST_PLAIN, SW_COST_SAVING, SW_COST_AFTER_SAVING, SW_COST_KINDS } sw_cost_kind;

/* Work between two steps, which training waits for. */
typedef enum { SW_PAUSE_EVALUATION, SW_PAUSE_SAMPLES, SW_PAUSE_EXPORT, SW_PAUSE_KINDS } sw_pause_kind;

struct sw_costs {
    int64_t steps;         /* since this start */
    int64_t written_bytes; /* bytes that these steps wrote to the drives */
    struct {
        int64_t steps;
        double seconds;
    } kind[SW_COST_KINDS]; /* steps whose time counts */
    struct {
        int64_t times;
        double seconds;
    } pause[SW_PAUSE_KINDS];
    bool paused; /* the next step follows a pause, so its time does not count */
    bool saved;  /* the last step carried a save */
};

/* Counts one step: whether it carried a save, its seconds, and the bytes it wrote. Returns whether the step is typical:
 * no save and no pause in it or just before it. */
bool sw_costs_note(struct sw_costs *costs, bool saves, double seconds, int64_t written_bytes);

/* Counts one evaluation, one step's samples or one export, and its seconds. */
void sw_costs_note_pause(struct sw_costs *costs, sw_pause_kind kind, double seconds);

/* Log at the start what a kill would cost, and at the end what was written and how long saves, evaluations, samples and
 * exports took. */
void sw_costs_say_kill(const struct sw_trainer *trainer);
void sw_costs_say_end(const struct sw_trainer *trainer);

#endif
