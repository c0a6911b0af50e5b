/* The process that is killed: it makes or opens a store, compares what it finds with the uninterrupted training, and
 * trains on. Everything that it has to tell is in memory shared with its parent. */
#ifndef SW_TESTS_E2E_CRASH_CHILD_H
#define SW_TESTS_E2E_CRASH_CHILD_H

#include "core/optimizer_format.h"
#include "tests/e2e/marking_ring.h"

#include <stdbool.h>
#include <stdint.h>

enum { CRASH_STEPS = 40, CRASH_TEXT_CHARS = 512 };

/* The results of one training step. */
struct crash_step {
    double loss_sum, grad_norm;
    uint64_t digest; /* of all records */
};

struct crash_shared {
    /* Set before the first process starts; as in struct crash_case. */
    sw_optimizer_format optimizer;
    const char *freeze;
    struct crash_step reference[CRASH_STEPS + 1];
    struct marks marks;
    _Atomic int64_t opened; /* the step at which the store was opened or made; -1: not yet */
    _Atomic int64_t done;   /* last step that was waited for */
    _Atomic int64_t saved;  /* last step that the store was known to hold */
    bool lives;             /* the store has been opened or made once, so that it must open again */
    char text[CRASH_TEXT_CHARS];
};

struct crash_case {
    const char *place, *directory;
    int64_t save_every; /* 0: every step commits */
    sw_optimizer_format optimizer;
    const char *freeze; /* tensors that are not trained (model/freeze.h); NULL: none */
};

/* Both end with 0, or with another status and a text. */
int crash_train_uninterrupted(struct crash_shared *shared);
int crash_train(const struct crash_case *crash, struct crash_shared *shared);

#endif
