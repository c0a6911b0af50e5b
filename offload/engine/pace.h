/* Decides whether steps speculate. Both ways give the same bits, so the times of past steps choose the faster one.
 *
 * A redo repeats the update's transfers, so speculation stays off while more than a few of the last steps clipped or
 * were skipped. Otherwise each way runs for some trial steps, the faster one continues, and the slower one is tried
 * again every SW_PACE_RETRY_STEPS steps. */
#ifndef SW_OFFLOAD_ENGINE_PACE_H
#define SW_OFFLOAD_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { SW_PACE_TRIAL_STEPS = 4, SW_PACE_RETRY_STEPS = 256, SW_PACE_STEPS_SEEN = 8, SW_PACE_WRONG_AT_MOST = 1 };

struct sw_pace {
    uint32_t wrong; /* one bit per past step, the last in bit 0: a speculation was, or would have been, wrong */
    int64_t steps;  /* steps noted so far */
    struct sw_pace_way {
        double seconds;    /* smoothed time of a step */
        int64_t samples;   /* steps of this trial, at most SW_PACE_TRIAL_STEPS */
        int64_t last_step; /* value of `steps` after the last one of this way */
    } way[2];              /* plain, speculated */
};

/* Starts as if recent steps had clipped, so speculation stays off until some have not. */
void sw_pace_start(struct sw_pace *pace);
/* Notes, once a step's norm is known, whether speculation was or would have been wrong. */
void sw_pace_note_clip(struct sw_pace *pace, bool wrong);
/* Notes the time of a step that followed one of its own way. */
void sw_pace_note_step(struct sw_pace *pace, bool speculated, double seconds);
/* Tells whether the next step should speculate. */
bool sw_pace_speculates(const struct sw_pace *pace);

#endif
