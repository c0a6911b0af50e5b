/* The model and the training whose bits are compared, and what is compared of them. */
#ifndef SW_TESTS_E2E_SAME_BITS_H
#define SW_TESTS_E2E_SAME_BITS_H

#include "tests/e2e/harness.h"
#include "tests/equipment/must.h"

enum { SAME_STEPS = 4, SAME_SEED = 20240607 };

/* Four blocks of five grains in chunks of two, so that units are larger than a slot and their last chunk is ragged;
 * tied; two heads, of each of which an emulated GPU computes whole tiles. */
extern const struct sw_model_config same_config;
/* Rotary positions, grouped heads with norms and a window, gated: all that the other has not; and its table is not
 * tied, so that a step may fetch only the rows that it names. */
extern const struct sw_model_config same_rotary_config;
/* Two blocks, in each of which a matrix of Muon ends with every second or third of eight grains; tied. */
extern const struct sw_model_config same_matrix_config;
/* Five experts, two for each token; tied. */
extern const struct sw_model_config same_expert_config;
/* The norm at which gradients are clipped: some steps exceed it and some do not. */
#define SAME_CLIP same_clip()
double same_clip(void);
/* With one thread each for compute and updates: several spend most of the time of so small a model waking each other.
 */
struct harness_spec same_spec(sw_dtype type);
/* The same with narrow optimizer state, whose units have wide grains. */
struct harness_spec same_narrow_spec(sw_dtype type, sw_optimizer_format format, sw_rounding rounding);

/* The results of a training. The caller frees it. Every byte of a grain that this rank does not have is
 * SAME_NOT_HELD, which makes no number. */
enum { SAME_NOT_HELD = 0xff };
/* Makes the model a mixture of experts whose routers have losses of their own. */
void same_use_experts(struct harness_spec *spec);

struct same_trace {
    double loss[SAME_STEPS], grad_norm[SAME_STEPS];
    double aux_loss[SAME_STEPS], z_loss[SAME_STEPS]; /* of routers; 0 without experts */
    bool skipped[SAME_STEPS];
    double evaluation;
    int64_t grains, grain_bytes; /* grain_bytes: of a grain's optimizer state */
    float *records, *grads;
};
void same_free(struct same_trace *trace);

/* Runs steps [first, last], one begun ahead of the one waited for where `ahead`. */
sw_status same_run(struct harness *harness, int64_t first, int64_t last, bool ahead, struct same_trace *trace);
/* Takes the final state into the trace. */
sw_status same_finish(struct harness *harness, struct same_trace *trace);
/* All steps from the start; the store in spec->directory, if it names one, is removed at the end. */
sw_status same_train(const struct harness_spec *spec, bool ahead, struct same_trace *trace);
/* The same, but after step `stop` everything is closed and resumed from the store in spec->directory. */
sw_status same_train_in_parts(const struct harness_spec *spec, int64_t stop, struct same_trace *trace);

/* NULL where the traces are equal bit for bit, else what differs. */
const char *same_difference(const struct same_trace *a, const struct same_trace *b);

/* The same for what a rank of several has: grains that one of them lacks are not compared. least_compared: of at least
 * so many grains both must have the gradients and the optimizer state. */
const char *same_shard_difference(const struct same_trace *expected, const struct same_trace *found,
                                  int64_t least_compared);

/* Draws a number below another, and a placement of the four states, from SAME_SEED and a counter that goes up. */
enum { SAME_PLACE_CHARS = 256 };
uint32_t same_draw(uint64_t *counter, uint32_t below);
void same_draw_place(uint64_t *counter, char text[SAME_PLACE_CHARS]);

static inline void must_equal(const struct same_trace *expected, const struct same_trace *found, const char *what) {
    const char *difference = same_difference(expected, found);
    if (difference != NULL)
        fail_msg("%s: %s differ (seed %d)", what, difference, SAME_SEED);
}

#endif
