/* Whether to speculate: both ways give the same bits, so the faster one is taken, by what steps have taken so far.
 *
 * A redo repeats the update's transfers, so nothing is speculated while more than few steps clip or are skipped. Else
 * each way is tried for some steps, the faster one goes on, and the other is tried again now and then. */
#ifndef SW_OFFLOAD_ENGINE_PACE_H
#define SW_OFFLOAD_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { SW_PACE_TRIAL_STEPS = 4, SW_PACE_RETRY_STEPS = 256, SW_PACE_STEPS_SEEN = 8, SW_PACE_WRONG_AT_MOST = 1 };

struct sw_pace {
    uint32_t wrong; /* of the last steps, a bit each: whether a speculation was or would have been wrong */
    int64_t steps;  /* noted */
    struct sw_pace_way {
        double seconds;  /* smoothed */
        int64_t samples; /* of this trial, at most SW_PACE_TRIAL_STEPS */
        int64_t last_step;
    } way[2]; /* plain, speculated */
};

/* Nothing speaks for speculating before some steps went unclipped. */
void sw_pace_start(struct sw_pace *pace);
/* A step's norm is known. */
void sw_pace_note_clip(struct sw_pace *pace, bool wrong);
/* A step has ended that followed one of its own way. */
void sw_pace_note_step(struct sw_pace *pace, bool speculated, double seconds);
/* For the next step. */
bool sw_pace_speculates(const struct sw_pace *pace);

#endif
