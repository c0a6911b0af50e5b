/* Waits, derived from accesses: a read waits for the last write of its pieces, a write for the last write and for all
 * reads since.
 *
 * The ops are walked in order as several steps, so that generations have swapped roles both ways; conflicts that the
 * last walk finds become its waits, those with earlier walks as waits for steps before. */
#include "offload/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

enum { WALKS = 3 };

/* Count of ops of a lane that must be done: positions over both steps, plus one; 0 for none. */
typedef int32_t done_count;

struct piece_state {
    done_count reader[SW_LANES];
    done_count writer;
    sw_lane writer_lane;
};

struct hazards {
    struct sw_program *program;
    const struct sw_plan *plan;
    struct piece_state *piece;
    int32_t wait_capacity;
};

static void need(done_count needed[SW_LANES], sw_lane lane, done_count count) {
    if (count > needed[lane])
        needed[lane] = count;
}

static void gather(const struct hazards *h, const struct sw_access *access, int step, done_count needed[SW_LANES]) {
    const int32_t base = h->plan->slot[sw_access_slot(access, step)].first_piece + access->first;
    for (int32_t p = base; p < base + access->count; p++) {
        const struct piece_state *piece = &h->piece[p];
        need(needed, piece->writer_lane, piece->writer);
        for (int lane = 0; access->write && lane < SW_LANES; lane++)
            need(needed, (sw_lane)lane, piece->reader[lane]);
    }
}

static void record(struct hazards *h, const struct sw_access *access, int step, sw_lane lane, done_count count) {
    const int32_t base = h->plan->slot[sw_access_slot(access, step)].first_piece + access->first;
    for (int32_t p = base; p < base + access->count; p++) {
        struct piece_state *piece = &h->piece[p];
        if (access->write) {
            memset(piece->reader, 0, sizeof piece->reader);
            piece->writer = count;
            piece->writer_lane = lane;
        } else {
            piece->reader[lane] = count;
        }
    }
}

static sw_status add_wait(struct hazards *h, struct sw_op *op, struct sw_wait wait) {
    struct sw_program *program = h->program;
    if (program->wait_count == h->wait_capacity) {
        h->wait_capacity = h->wait_capacity * 2 + 256;
        struct sw_wait *grown = realloc(program->wait, (size_t)h->wait_capacity * sizeof *grown);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the plan's waits");
        program->wait = grown;
    }
    program->wait[program->wait_count++] = wait;
    op->wait_count++;
    return SW_OK;
}

static sw_status store_waits(struct hazards *h, struct sw_op *op, const done_count needed[SW_LANES]) {
    op->first_wait = h->program->wait_count;
    op->wait_count = 0;
    for (int lane = 0; lane < SW_LANES; lane++) {
        const bool implied = (sw_lane)lane == op->lane && !sw_lane_is_io(op->lane);
        if (needed[lane] == 0 || implied)
            continue;
        const int32_t per_step = h->program->lane_count[lane];
        const int32_t position = needed[lane] - 1;
        SW_TRY(add_wait(h, op,
                        (struct sw_wait){.lane = (sw_lane)lane,
                                         .position = position % per_step,
                                         .steps_back = (int8_t)(WALKS - 1 - position / per_step)}));
    }
    return SW_OK;
}

static sw_status walk(struct hazards *h, int step) {
    struct sw_program *program = h->program;
    for (int32_t i = 0; i < program->op_count; i++) {
        struct sw_op *op = &program->op[i];
        const struct sw_access *access = &program->access[op->first_access];
        const done_count own = step * program->lane_count[op->lane] + op->position + 1;
        done_count needed[SW_LANES] = {0};
        for (int32_t a = 0; a < op->access_count; a++)
            gather(h, &access[a], step, needed);
        for (int32_t a = 0; a < op->access_count; a++)
            record(h, &access[a], step, op->lane, own);
        if (step == WALKS - 1)
            SW_TRY(store_waits(h, op, needed));
    }
    return SW_OK;
}

sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program) {
    struct hazards h = {.program = program, .plan = plan};
    h.piece = calloc((size_t)plan->piece_count + 1, sizeof *h.piece);
    if (h.piece == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to derive the plan's waits");
    program->wait_count = 0;
    sw_status status = SW_OK;
    for (int step = 0; step < WALKS && status == SW_OK; step++)
        status = walk(&h, step);
    free(h.piece);
    return status;
}
