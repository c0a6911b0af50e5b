/* Counts what steps cost besides their arithmetic: bytes written to the drives, and the time of saves if not every step
 * commits. */
#ifndef SW_RUN_COSTS_H
#define SW_RUN_COSTS_H

#include <stdbool.h>
#include <stdint.h>

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

/* Returns the seconds that a save adds to training on average; 0 until both a save and other steps were timed. */
double sw_costs_of_save(const struct sw_costs *costs);

/* Log at the start what a kill would cost, and at the end what was written and how long saves, evaluations, samples and
 * exports took. */
void sw_costs_say_kill(const struct sw_trainer *trainer);
void sw_costs_say_end(const struct sw_trainer *trainer);

#endif
