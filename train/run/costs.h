/* What steps cost beyond their arithmetic: the wear of the drives, and the time that saves take where not every step
 * commits. */
#ifndef SW_TRAIN_RUN_COSTS_H
#define SW_TRAIN_RUN_COSTS_H

#include <stdbool.h>
#include <stdint.h>

struct sw_trainer;

/* The step after a save starts from a standstill, as the save did. */
typedef enum { SW_COST_PLAIN, SW_COST_SAVING, SW_COST_AFTER_SAVING, SW_COST_KINDS } sw_cost_kind;

struct sw_costs {
    int64_t steps; /* of this start */
    int64_t written_bytes;
    struct {
        int64_t steps;
        double seconds;
    } kind[SW_COST_KINDS]; /* of those whose time counts */
    bool paused;           /* the next step follows no other: its time does not count */
    bool saved;            /* the last one carried a save */
};

void sw_costs_note(struct sw_costs *costs, bool saves, double seconds, int64_t written_bytes);

/* Seconds by which a save has made the training longer, on average; 0 where none was seen beside other steps. */
double sw_costs_of_save(const struct sw_costs *costs);

/* For people: what is to be expected, what a kill would cost, and what it was. */
void sw_costs_say_start(const struct sw_trainer *trainer);
void sw_costs_say_kill(const struct sw_trainer *trainer);
void sw_costs_say_end(const struct sw_trainer *trainer);

#endif
