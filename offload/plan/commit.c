/* The end of a step: its norm, its commit, and what the ranks tell each other of it. */
#include "offload/plan/builder.h"

/* Version of square sums: those of all ranks are there. */
enum { VERSION_SHARED = -1 };

/* The square sums of a unit on the host: of this rank, or, once they are shared, of all. */
static struct sw_what sums_of(const struct sw_builder *b, int64_t unit, bool shared) {
    return (struct sw_what){.content = SW_CONTENT_SQUARE_SUMS,
                            .unit = -1,
                            .index = unit,
                            .version = shared ? VERSION_SHARED : sw_plan_shard_chunks(b->plan, unit)};
}

void sw_build_norm(struct sw_builder *b) {
    const bool shared = sw_plan_job_ranks(b->plan) > 1;
    sw_build_op(b, SW_OP_COMPUTE_NORM, -1, -1);
    for (int64_t u = b->plan->spec.frozen_units; u < b->plan->spec.units->count; u++)
        sw_build_read(b, (struct sw_operand){.slot = b->index->slot[SLOT_SQUARE_SUMS_HOST], .piece = u},
                      sums_of(b, u, shared));
    sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_NORM]},
                   (struct sw_what){SW_CONTENT_NORM, -1, 0, 0, 0, 0});
}

/* Reading every grain of what is committed orders the commit after its writes. With two generations, a
 * resume would take the other one until the commit is done, so reading that too keeps the writes of the next step
 * behind the commit. */
static void read_committed(struct sw_builder *b) {
    for (int64_t u = 0; u < b->plan->spec.units->count; u++) {
        const struct sw_span at = sw_plan_span(b->plan, SW_OPTIMIZER, u);
        struct sw_what what = {SW_CONTENT_OPTIMIZER, u, 0, 0, 0, SW_GENERATION_NONE};
        if (at.grains == 0)
            continue;
        if (!b->plan->commit_every_step) {
            const int32_t apart = b->index->of_unit[SLOT_SAVED_OPTIMIZER][u];
            sw_build_read_grains(b, apart >= 0 ? apart : b->index->of_unit[SLOT_OPTIMIZER][u], at, what);
            continue;
        }
        what.generation = SW_GENERATION_COMMITTED;
        sw_build_read_grains(b, b->index->of_unit[SLOT_OPTIMIZER][u], at, what);
        what.generation = SW_GENERATION_OTHER;
        what.age = 1;
        sw_build_read_grains(b, b->index->of_unit[SLOT_OPTIMIZER][u], at, what);
    }
}

/* The norm holds the position that the commit records. */
void sw_build_commit(struct sw_builder *b) {
    sw_build_op(b, SW_OP_COMMIT, -1, -1);
    sw_build_read_norm(b);
    read_committed(b);
    if (sw_plan_job_ranks(b->plan) > 1)
        sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_SUMMARIES]},
                       (struct sw_what){.content = SW_CONTENT_COMMIT, .unit = -1});
    b->commits = true;
}

/* A step counts as committed when all ranks have it: until they know that of each other, nothing overwrites the one
 * before. */
void sw_build_exchange_summary(struct sw_builder *b, bool sums) {
    struct sw_op *op = sw_build_op(b, SW_OP_EXCHANGE_SUMMARY, -1, -1);
    const struct sw_operand shared = {.slot = b->index->slot[SLOT_SUMMARIES]},
                            work = {.slot = b->index->slot[SLOT_WORK]};
    op->content = sums ? SW_CONTENT_SQUARE_SUMS : SW_CONTENT_NONE;
    op->bytes = (sw_plan_job_ranks(b->plan) - 1) * sw_plan_summary_bytes(b->plan, sums);
    if (b->commits) {
        sw_build_read(b, shared, (struct sw_what){.content = SW_CONTENT_COMMIT, .unit = -1});
        read_committed(b);
    }
    for (int64_t u = b->plan->spec.frozen_units; sums && u < b->plan->spec.units->count; u++) {
        const struct sw_operand at = {.slot = b->index->slot[SLOT_SQUARE_SUMS_HOST], .piece = u};
        if (sw_plan_shard_chunks(b->plan, u) > 0)
            sw_build_read(b, at, sums_of(b, u, false));
        sw_build_write(b, at, sums_of(b, u, true));
    }
    /* The op that used the work area last has left the losses. */
    if (b->works)
        sw_build_read(b, work, (struct sw_what){.content = SW_CONTENT_WORK, .unit = -1});
}
