/* What a run writes to its drives, and what part of their rated life that is. */
#ifndef SW_TRAIN_STORES_WRITES_H
#define SW_TRAIN_STORES_WRITES_H

#include "offload/plan/plan.h"
#include "train/settings/options.h"

/* Labels and superblocks are left out: a few bytes a grain and commit. */
struct sw_writes {
    int64_t start_bytes; /* making the store, and committing what the run begins with */
    int64_t step_bytes;
    int64_t save_bytes; /* more, of a step that carries a save */
    int64_t save_every; /* steps; 0: none carries one */
};

/* Steps between two saves of steps that take so long (0: not known); 0: as many as the time allows, which is not known
 * either. */
int64_t sw_writes_save_steps(const struct sw_option_every *every, double step_s);

/* Of a plan that trains, with steps in which nothing that was speculated is redone. */
struct sw_writes sw_writes_of(const struct sw_plan *plan, int64_t save_every);

/* Of start_bytes, what loading the weights into a new store writes. */
int64_t sw_writes_of_loading(const struct sw_plan *plan);

/* Mean of a thousand steps. */
double sw_writes_per_thousand(const struct sw_writes *writes);
/* Of all that a run of so many steps writes, from its creation to its last save. */
double sw_writes_of_run(const struct sw_writes *writes, int64_t steps);

/* The part of what drives are rated for that some bytes are. endurance_tb: terabytes that may be written to all drives
 * of the store together; NAN where that is 0, for not known. */
double sw_writes_share(double bytes, double endurance_tb);

/* "1.23 TB", as drives are rated: decimal. */
enum { SW_WRITES_CHARS = 64 };
const char *sw_writes_text(double bytes, char text[SW_WRITES_CHARS]);
/* "1.23 TB", and "1.23 TB (0.21% of the rated 600 TB)" where that is known. */
enum { SW_WRITES_SHARE_CHARS = 160 };
const char *sw_writes_share_text(double bytes, double endurance_tb, char text[SW_WRITES_SHARE_CHARS]);

#endif
