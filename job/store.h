/* Makes the store that a plan needs, with its scratch area, in the places of --nvme. Computes what a run writes to its
 * drives, and the share of their rated life that this is. */
#ifndef SW_JOB_STORE_H
#define SW_JOB_STORE_H

#include "io/store/store.h"
#include "job/profile.h"
#include "job/settings/options.h"
#include "job/settings/places.h"
#include "offload/plan/plan.h"
#include "offload/simulate/simulate.h"

#include <jansson.h>

struct sw_new_store {
    const struct sw_plan *plan;
    const struct sw_places *places;
    const char *id;                                       /* as in struct sw_store_spec */
    bool allow_buffered, allow_overwrite_device, unnamed; /* as in struct sw_store_spec */
};

/* Refuses sizes in --nvme that are smaller than the store needs. Changes nothing. */
sw_status sw_new_store_check(const struct sw_new_store *wanted);
/* How to check the drives of a store. */
struct sw_drive_look {
    bool named; /* the store will be in these places, so it must be possible to create files there; false: only the free
                   space counts */
    int64_t ranks; /* ranks with stores of the same size in the same places; at least 1 */
};
/* Checks the sizes too, and refuses places that do not exist, in which no store can be made, or whose file systems lack
 * the space (SW_ERR_SPACE). Leaves nothing there. */
sw_status sw_new_store_check_drives(const struct sw_new_store *wanted, const struct sw_drive_look *look);
sw_status sw_new_store_create(const struct sw_new_store *wanted, sw_store_progress progress, void *context,
                              struct sw_store **out);

/* Bytes written. Labels and superblocks are left out: they are a few bytes per grain and commit. */
struct sw_writes {
    int64_t start_bytes; /* to make the store and commit step 0 */
    int64_t step_bytes;  /* in each step */
    int64_t save_bytes;  /* additionally, in a step that carries a save */
    int64_t save_every;  /* steps between saves; 0: there are none */
};

/* Returns the number of steps between two saves, for steps of step_s seconds (0: unknown). Returns 0 if it is unknown
 * because the time between saves decides. */
int64_t sw_writes_save_steps(const struct sw_option_every *every, double step_s);

/* Returns the writes of a training plan or outline, without steps that are redone after speculation. */
struct sw_writes sw_writes_of(const struct sw_plan *plan, int64_t save_every);

/* Returns the part of start_bytes that loading the weights into a new store writes. */
int64_t sw_writes_of_loading(const struct sw_plan *plan);

/* Returns the bytes that a thousand steps write on average. */
double sw_writes_per_thousand(const struct sw_writes *writes);
/* Returns the bytes that a run of `steps` steps writes, from making its store to the last save. */
double sw_writes_of_run(const struct sw_writes *writes, int64_t steps);

/* Returns `bytes` as a share of the drives' rated life. endurance_tb: terabytes that all drives of the store together
 * are rated for; 0 (unknown) gives NAN. */
double sw_writes_share(double bytes, double endurance_tb);

/* Writes bytes as "1.23 TB", in decimal units as drives are rated. */
enum { SW_WRITES_CHARS = 64 };
const char *sw_writes_text(double bytes, char text[SW_WRITES_CHARS]);
/* Writes "1.23 TB", or "1.23 TB (0.21% of the rated 600 TB)" if the endurance is known. */
enum { SW_WRITES_SHARE_CHARS = 160 };
const char *sw_writes_share_text(double bytes, double endurance_tb, char text[SW_WRITES_SHARE_CHARS]);

/* A plan's forecast of its steps when training begins. run.json keeps it, so that a report can compare it with the
 * measured steps. */
struct sw_forecast {
    struct sw_simulation step; /* a step without a save; step_s 0: there were no rates to predict it */
    double least_s, most_s;    /* fewest and most seconds of a step, over all ways in which it may run; 0: unknown */
    double save_s;             /* seconds that a save adds to training; 0: unknown, or there are no saves */
    double narrow_step_s;      /* step.step_s with --optimizer-state 8bit, if that is less than half; else 0 */
    struct sw_profile_source source;
    char *timeline; /* timeline of the step as JSON (offload/engine/trace.h), owned; NULL: none */
};

/* Predicts the steps of a complete plan. The caller releases the forecast, even after a failure. */
sw_status sw_forecast_make(const struct sw_plan *plan, const struct sw_rates *rates,
                           const struct sw_option_every *save_every, struct sw_forecast *out);
void sw_forecast_release(struct sw_forecast *forecast);

/* Returns the object "prediction" of run.json; the caller owns it. first_step: the first step of this start.
 * step_tokens: tokens of a step, over all ranks. */
json_t *sw_forecast_to_json(const struct sw_forecast *forecast, const struct sw_plan *plan, int64_t first_step,
                            int64_t step_tokens);

#endif
