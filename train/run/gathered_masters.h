/* Masters as the engines of all ranks have them together, for rank 0, which asks for grains; the others follow. All
 * open and close it at once, with settled engines. */
#ifndef SW_TRAIN_RUN_GATHERED_MASTERS_H
#define SW_TRAIN_RUN_GATHERED_MASTERS_H

#include "train/run/trainer.h"

enum { SW_GATHERED_GRAINS = 16 };

struct sw_gathered_masters;

sw_status sw_gathered_masters_open(struct sw_trainer *trainer, struct sw_gathered_masters **out);
void sw_gathered_masters_close(struct sw_gathered_masters *self);

/* Rank 0: grains [first, first + count) of a unit, SW_GATHERED_GRAINS at most, each SW_GRAIN_ELEMS in fp32. What *out
 * points to is there until the next call. */
sw_status sw_gathered_masters_read(struct sw_gathered_masters *self, int64_t unit, int64_t first, int64_t count,
                                   const float **out);
/* Rank 0: nothing more is asked for. */
void sw_gathered_masters_end(struct sw_gathered_masters *self);
/* The other ranks: until rank 0 has ended. */
sw_status sw_gathered_masters_follow(struct sw_gathered_masters *self);

#endif
