/* Gathers master weights from the engines of all ranks: rank 0 reads, and the others answer. All ranks open and close
 * it together, with settled engines. */
#ifndef SW_RUN_GATHERED_MASTERS_H
#define SW_RUN_GATHERED_MASTERS_H

#include "run/trainer.h"

struct sw_gathered_masters;

sw_status sw_gathered_masters_open(struct sw_trainer *trainer, struct sw_gathered_masters **out);
void sw_gathered_masters_close(struct sw_gathered_masters *self);

/* On rank 0: the units to read, those of whole layers where tensor groups have parts of them, and what reads their
 * masters. Both are valid until the masters are closed. */
const struct sw_units *sw_gathered_masters_units(const struct sw_gathered_masters *self);
struct sw_load sw_gathered_masters_load(struct sw_gathered_masters *self);
/* On rank 0: lets the other ranks return from sw_gathered_masters_follow. */
void sw_gathered_masters_end(struct sw_gathered_masters *self);
/* On the other ranks: answers rank 0 until it ends. */
sw_status sw_gathered_masters_follow(struct sw_gathered_masters *self);

#endif
