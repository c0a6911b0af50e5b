#include "offload/engine/pace.h"

/* Weight of a new step in the smoothed time. */
#define NEW_SHARE 0.3

void sw_pace_start(struct sw_pace *pace) {
    *pace = (struct sw_pace){.wrong = UINT32_MAX};
}

void sw_pace_note_clip(struct sw_pace *pace, bool wrong) {
    pace->wrong = pace->wrong << 1 | wrong;
}

void sw_pace_note_step(struct sw_pace *pace, bool speculated, double seconds) {
    struct sw_pace_way *way = &pace->way[speculated];
    const bool stale = way->samples > 0 && pace->steps - way->last_step > SW_PACE_RETRY_STEPS;
    if (stale)
        way->samples = 0;
    way->seconds = way->samples == 0 ? seconds : (1.0 - NEW_SHARE) * way->seconds + NEW_SHARE * seconds;
    way->samples += way->samples < SW_PACE_TRIAL_STEPS;
    way->last_step = ++pace->steps;
}

/* Tells whether a way has too few samples, or no recent one, and must be tried. */
static bool wants_trial(const struct sw_pace *pace, bool speculated) {
    const struct sw_pace_way *way = &pace->way[speculated];
    return way->samples < SW_PACE_TRIAL_STEPS || pace->steps - way->last_step > SW_PACE_RETRY_STEPS;
}

bool sw_pace_speculates(const struct sw_pace *pace) {
    const int wrong = __builtin_popcount(pace->wrong & ((1u << SW_PACE_STEPS_SEEN) - 1));
    if (wrong > SW_PACE_WRONG_AT_MOST)
        return false;
    if (wants_trial(pace, true))
        return true;
    if (wants_trial(pace, false))
        return false;
    return pace->way[true].seconds < pace->way[false].seconds;
}
