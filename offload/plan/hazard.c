/* Derives waits from accesses: a read waits for the last write of its pieces, a write for the last write and for all
 * reads since.
 *
 * The ops are walked in order as several steps; conflicts that the last walk finds become its waits, those with earlier
 * walks as waits for steps before. Two steps show all of them, as a step touches the pieces that the one before
 * touched; where generations swap roles from step to step, it takes three. */
#include "offload/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

enum { WALKS = 2, WALKS_WITH_GENERATIONS = 3 };

/* Count of ops of a lane, over all walks, that must be done; 0: none. */
typedef int32_t done_count;

struct piece_state {
    done_count reader[SW_LANES];
    done_count writer;
    sw_lane writer_lane;
};

/* The state of several pieces of a slot together: the pieces that the last access to the slot named. Each
 * micro-batch reads all of a unit's weights again and adds to all of its accumulator, so accesses to the same pieces
 * follow each other, and only the first has to visit each piece. The pieces themselves get what was recorded here when
 * an access to the slot names other pieces. */
struct run_state {
    int32_t first, count;        /* numbers of the pieces among all of the plan; count 0: nothing is known, else > 1 */
    done_count writer[SW_LANES]; /* last write of any of the pieces, by lane */
    done_count reader[SW_LANES]; /* last read of any of the pieces since its last write, by lane */
    bool written;                /* all pieces were written since their states were gathered */
    bool read[SW_LANES];         /* all pieces were read by this lane since then */
};

struct hazards {
    struct sw_program *program;
    const struct sw_plan *plan;
    struct piece_state *piece;
    struct run_state *run; /* one for each slot */
    int walks;
    int32_t wait_capacity;
};

static void need(done_count needed[SW_LANES], sw_lane lane, done_count count) {
    if (count > needed[lane])
        needed[lane] = count;
}

/* Gives each piece of a run what was recorded for all of them. */
static void spread(const struct hazards *h, struct run_state *run) {
    for (int32_t p = run->first; p < run->first + run->count; p++) {
        struct piece_state *piece = &h->piece[p];
        for (int lane = 0; lane < SW_LANES; lane++) {
            if (run->written || run->read[lane])
                piece->reader[lane] = run->reader[lane];
            if (run->written && run->writer[lane] > 0) {
                piece->writer = run->writer[lane];
                piece->writer_lane = (sw_lane)lane;
            }
        }
    }
    run->count = 0;
}

static void collect(const struct hazards *h, int32_t first, int32_t count, struct run_state *out) {
    *out = (struct run_state){.first = first, .count = count};
    for (int32_t p = first; p < first + count; p++) {
        const struct piece_state *piece = &h->piece[p];
        need(out->writer, piece->writer_lane, piece->writer);
        for (int lane = 0; lane < SW_LANES; lane++)
            need(out->reader, (sw_lane)lane, piece->reader[lane]);
    }
}

/* Returns the state of an access's piece; NULL: the access names several, and *out_run is theirs. */
static struct piece_state *find_pieces(const struct hazards *h, const struct sw_access *access, int step,
                                       struct run_state **out_run) {
    const int32_t slot = sw_access_slot(access, step), first = h->plan->slot[slot].first_piece + access->first;
    struct run_state *run = *out_run = &h->run[slot];
    if (run->count > 0 && (run->first != first || run->count != access->count))
        spread(h, run);
    if (access->count == 1)
        return &h->piece[first];
    if (run->count == 0)
        collect(h, first, access->count, run);
    return NULL;
}

static void gather(const struct hazards *h, const struct sw_access *access, int step, done_count needed[SW_LANES]) {
    struct run_state *run;
    const struct piece_state *piece = find_pieces(h, access, step, &run);
    const done_count *reader = piece != NULL ? piece->reader : run->reader;
    if (piece != NULL)
        need(needed, piece->writer_lane, piece->writer);
    for (int lane = 0; piece == NULL && lane < SW_LANES; lane++)
        need(needed, (sw_lane)lane, run->writer[lane]);
    for (int lane = 0; access->write && lane < SW_LANES; lane++)
        need(needed, (sw_lane)lane, reader[lane]);
}

static void record(struct hazards *h, const struct sw_access *access, int step, sw_lane lane, done_count count) {
    struct run_state *run;
    struct piece_state *piece = find_pieces(h, access, step, &run);
    if (piece != NULL && access->write) {
        *piece = (struct piece_state){.writer = count, .writer_lane = lane};
    } else if (piece != NULL) {
        piece->reader[lane] = count;
    } else if (access->write) {
        *run = (struct run_state){.first = run->first, .count = run->count, .written = true};
        run->writer[lane] = count;
    } else {
        run->reader[lane] = count;
        run->read[lane] = true;
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
                                         .steps_back = (int8_t)(h->walks - 1 - position / per_step)}));
    }
    return SW_OK;
}

/* Walks through a step. The state of pieces is the same whether or not waits are gathered, so only the last does. */
static sw_status walk(struct hazards *h, int step) {
    struct sw_program *program = h->program;
    const bool last = step == h->walks - 1;
    for (int32_t i = 0; i < program->op_count; i++) {
        struct sw_op *op = &program->op[i];
        const struct sw_access *access = &program->access[op->first_access];
        const done_count own = step * program->lane_count[op->lane] + op->position + 1;
        done_count needed[SW_LANES] = {0};
        for (int32_t a = 0; last && a < op->access_count; a++)
            gather(h, &access[a], step, needed);
        for (int32_t a = 0; a < op->access_count; a++)
            record(h, &access[a], step, op->lane, own);
        if (last)
            SW_TRY(store_waits(h, op, needed));
    }
    return SW_OK;
}

static int walks_of(const struct sw_program *program) {
    for (int32_t a = 0; a < program->access_count; a++)
        if (program->access[a].generation != SW_GENERATION_NONE)
            return WALKS_WITH_GENERATIONS;
    return WALKS;
}

sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program) {
    struct hazards h = {.program = program, .plan = plan, .walks = walks_of(program)};
    h.piece = calloc((size_t)plan->piece_count + 1, sizeof *h.piece);
    h.run = calloc((size_t)plan->slot_count + 1, sizeof *h.run);
    program->wait_count = 0;
    sw_status status =
        h.piece != NULL && h.run != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to derive the plan's waits");
    for (int step = 0; step < h.walks && status == SW_OK; step++)
        status = walk(&h, step);
    free(h.piece);
    free(h.run);
    return status;
}
