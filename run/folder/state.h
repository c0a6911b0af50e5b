/* The state of a run, read by the names of tensors from whatever layout it lies in: one store or those of several
 * ranks, tensor groups, tiles, any format of the optimizer state. */
#ifndef SW_RUN_FOLDER_STATE_H
#define SW_RUN_FOLDER_STATE_H

#include "core/status.h"
#include "io/store/store.h"
#include "run/folder/run.h"

#include <stdint.h>

struct sw_state_reader;

struct sw_state_spec {
    const char *folder;
    const struct sw_run *run; /* has the model, the stores and their layout */
    int64_t step;             /* the commit to read; SW_STORE_NEWEST: the newest that every store has */
};

/* Opens the stores for reading. All must be within reach. SW_ERR_CORRUPT: a store is of another model, or lacks the
 * step. */
sw_status sw_state_open(const struct sw_state_spec *spec, struct sw_state_reader **out);
void sw_state_close(struct sw_state_reader *self);

/* Returns the commit that is read. */
const struct sw_store_commit *sw_state_commit(const struct sw_state_reader *self);

/* The parts of the state of an element. */
enum { SW_STATE_MASTER, SW_STATE_M, SW_STATE_V, SW_STATE_PARTS };

/* Reads elements [first, first + count) of a whole tensor in fp32: each part that is not NULL in `out`, to out[part][0]
 * and on. Calls that walk through a tensor in order are fast. */
sw_status sw_state_read(struct sw_state_reader *self, const char *tensor, int64_t first, int64_t count,
                        float *const out[SW_STATE_PARTS]);

#endif
