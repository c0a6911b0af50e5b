/* A ring that does what the real one does and notes, in memory that outlives the process, how far a step has come on
 * its way to the drive. */
#ifndef SW_TESTS_E2E_MARKING_RING_H
#define SW_TESTS_E2E_MARKING_RING_H

#include "io/store/store.h"

#include <stdatomic.h>

typedef enum {
    MARK_COMMITTED, /* nothing was handed over since the last commit */
    MARK_WRITING,   /* grains of the next one were */
    MARK_RECORDING, /* and its superblocks, which are not yet flushed */
} mark_state;

struct marks {
    _Atomic int state;
    _Atomic int64_t commits;
    int64_t supers_from, grains_from, grains_to; /* offsets in the store's only file */
};

/* Puts marking rings in the place of the store's, which has one file. The context is a struct marks. */
sw_status mark_store(void *context, struct sw_store *store);

#endif
