/* Gathers master weights from the engines of all ranks: rank 0 asks for grains, and the others answer. All ranks open
 * and close it together, with settled engines. */
#ifndef SW_TRAIN_RUN_GATHERED_MASTERS_H
#define SW_TRAIN_RUN_GATHERED_MASTERS_H

#include "train/run/trainer.h"

enum { SW_GATHERED_GRAINS = 16 };

struct sw_gathered_masters;

sw_status sw_gathered_masters_open(struct sw_trainer *trainer, struct sw_gathered_masters **out);
void sw_gathered_masters_close(struct sw_gathered_masters *self);

/* On rank 0: reads grains [first, first + count) of a unit, at most SW_GATHERED_GRAINS, each SW_GRAIN_ELEMS fp32
 * values. *out is valid until the next call. */
sw_status sw_gathered_masters_read(struct sw_gathered_masters *self, int64_t unit, int64_t first, int64_t count,
                                   const float **out);
/* On rank 0: lets the other ranks return from sw_gathered_masters_follow. */
void sw_gathered_masters_end(struct sw_gathered_masters *self);
/* On the other ranks: answers rank 0 until it ends. */
sw_status sw_gathered_masters_follow(struct sw_gathered_masters *self);

#endif
