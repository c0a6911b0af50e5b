/* Derives waits from accesses: a read waits for the last write of its pieces, a write for the last write and for all
 * reads since.
 *
 * * The ops are walked once, in order. A conflict with an op of the same step is seen at once. An access to a piece
 * that its step has not written yet also conflicts with the step before, which leaves its pieces as this one leaves
 * them: such accesses are kept and looked at again at the end. If generations swap roles from step to step, the step
 * before has left there the accesses that this step leaves in the other generation, and the step before that may count
 * too. */
#include "offload/plan/plan_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The most steps back that an op waits for. */
enum { MOST_BACK = 2 };

/* Count of ops of a lane, in a step, that must be done; 0: none. Arrays have one entry per lane, and room for a power
 * of two, so that the compiler handles all lanes at once. */
typedef int32_t done_count;
enum { LANES_ROOM = 8 };
static_assert((int)SW_LANES <= (int)LANES_ROOM, "each lane has an entry");

struct piece_state {
    done_count reader[LANES_ROOM];
    done_count writer; /* 0: not written in this step */
    sw_lane writer_lane;
};

/* The state of several pieces of a slot together: the pieces that the last access to the slot named. Each micro-batch
 * reads all of a unit's weights again and adds to all of its accumulator, so accesses to the same pieces follow each
 * other, and only the first has to visit each piece. The record moves to the pieces themselves when an access to the
 * slot names other pieces. */
struct run_state {
    int32_t slot_first;            /* number of the slot's first piece among all of the plan */
    int32_t first, count;          /* numbers of the pieces; count 0: nothing is known, else > 1 */
    int32_t unwritten;             /* pieces that this step has not written */
    done_count writer[LANES_ROOM]; /* last write of any of the pieces, by lane */
    done_count reader[LANES_ROOM]; /* last read of any of the pieces since its last write, by lane */
    bool written;                  /* all pieces were written since their states were gathered */
    bool read[SW_LANES];           /* all pieces were read by this lane since then */
};

/* An access to pieces, none of which its step had written. An access with a generation has a single piece. */
struct early_access {
    int32_t op, slot, first, count;
    bool write;
    sw_generation generation;
};

struct sw_hazards {
    struct sw_program *program;
    struct piece_state *piece;
    struct run_state *run; /* one for each slot */
    int32_t piece_capacity, run_capacity;
    struct sw_wait *wait; /* for ops of the same step */
    int32_t wait_count, wait_capacity;
    struct early_access *early;
    int32_t early_count, early_capacity;
};

static inline void need(done_count needed[LANES_ROOM], sw_lane lane, done_count count) {
    needed[lane] = count > needed[lane] ? count : needed[lane];
}

/* Raises the counts of all lanes to at least these. */
static void need_all(done_count needed[restrict LANES_ROOM], const done_count count[restrict LANES_ROOM]) {
    for (int lane = 0; lane < LANES_ROOM; lane++)
        needed[lane] = count[lane] > needed[lane] ? count[lane] : needed[lane];
}

/* Copies the record of a run to each of its pieces. Runs change rarely, so neither this nor collect is inlined. */
__attribute__((noinline)) static void spread(const struct sw_hazards *h, struct run_state *run) {
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

__attribute__((noinline)) static void collect(const struct sw_hazards *h, int32_t first, int32_t count,
                                              struct run_state *out) {
    *out = (struct run_state){.slot_first = out->slot_first, .first = first, .count = count};
    for (int32_t p = first; p < first + count; p++) {
        const struct piece_state *piece = &h->piece[p];
        out->unwritten += piece->writer == 0;
        need(out->writer, piece->writer_lane, piece->writer);
        need_all(out->reader, piece->reader);
    }
}

/* Returns the state of a piece; NULL: there are several pieces, and the slot's run has their state. */
static struct piece_state *find_pieces(const struct sw_hazards *h, int32_t slot, int32_t first_piece, int32_t count) {
    struct run_state *run = &h->run[slot];
    const int32_t first = run->slot_first + first_piece;
    if (run->count > 0 && (run->first != first || run->count != count))
        spread(h, run);
    if (count == 1)
        return &h->piece[first];
    if (run->count == 0)
        collect(h, first, count, run);
    return NULL;
}

/* An op's waits as they are gathered. Scalars and vectors have arrays of their own: a processor that loads a vector of
 * which a scalar was stored just before waits until the store has ended, and plans have a hundred million accesses. */
struct needs {
    done_count writer[LANES_ROOM]; /* writers of single pieces */
    done_count all[LANES_ROOM];    /* readers, and writers of runs */
};

/* Gathers the earlier ops with which an access to a piece conflicts. */
static inline void gather_piece(const struct piece_state *piece, bool write, struct needs *needed) {
    need(needed->writer, piece->writer_lane, piece->writer);
    if (write)
        need_all(needed->all, piece->reader);
}

/* Gathers the earlier ops with which an access conflicts: to one piece, or, if that is NULL, to the pieces of a run. */
static inline void gather(const struct piece_state *piece, const struct run_state *run, bool write,
                          struct needs *needed) {
    if (piece != NULL) {
        gather_piece(piece, write, needed);
        return;
    }
    need_all(needed->all, run->writer);
    if (write)
        need_all(needed->all, run->reader);
}

/* Returns the count of ops of a lane that must be done; 0: none. */
static inline done_count needed_of(const struct needs *needed, int lane) {
    return needed->writer[lane] > needed->all[lane] ? needed->writer[lane] : needed->all[lane];
}

/* Makes room for so many more entries of an array. */
static sw_status reserve(void **array, int32_t count, int32_t more, int32_t *capacity, size_t size) {
    if (count + more <= *capacity)
        return SW_OK;
    const int32_t wanted = *capacity * 2 + more + 256;
    void *grown = realloc(*array, (size_t)wanted * size);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the plan's waits");
    *array = grown;
    *capacity = wanted;
    return SW_OK;
}

/* Keeps an access for the end. If this step has written some of its pieces, or if it has a generation, each of the
 * others is kept by itself. */
static sw_status keep_early(struct sw_hazards *h, int32_t op, const struct sw_access *access, int32_t slot) {
    const struct run_state *run = &h->run[slot];
    const bool whole = access->count > 1 && access->generation == SW_GENERATION_NONE && run->unwritten == run->count;
    struct early_access early = {op, access->slot, access->first, 1, access->write, access->generation};
    SW_TRY(reserve((void **)&h->early, h->early_count, access->count, &h->early_capacity, sizeof *h->early));
    if (whole) {
        early.count = access->count;
        h->early[h->early_count++] = early;
        return SW_OK;
    }
    for (int32_t p = access->first; p < access->first + access->count; p++) {
        early.first = p;
        if (find_pieces(h, slot, p, 1)->writer == 0)
            h->early[h->early_count++] = early;
    }
    return SW_OK;
}

static inline sw_status look_up(struct sw_hazards *h, int32_t op, const struct sw_access *access, int32_t slot,
                                struct needs *needed) {
    const struct piece_state *piece = find_pieces(h, slot, access->first, access->count);
    const struct run_state *run = &h->run[slot];
    gather(piece, run, access->write, needed);
    return (piece != NULL ? piece->writer == 0 : run->unwritten > 0) ? keep_early(h, op, access, slot) : SW_OK;
}

static inline void record(struct sw_hazards *h, const struct sw_access *access, int32_t slot, sw_lane lane,
                          done_count count) {
    struct piece_state *piece = find_pieces(h, slot, access->first, access->count);
    struct run_state *run = &h->run[slot];
    if (piece != NULL && access->write) {
        *piece = (struct piece_state){.writer = count, .writer_lane = lane};
    } else if (piece != NULL) {
        piece->reader[lane] = count;
    } else if (access->write) {
        *run = (struct run_state){
            .slot_first = run->slot_first, .first = run->first, .count = run->count, .written = true};
        run->writer[lane] = count;
    } else {
        run->reader[lane] = count;
        run->read[lane] = true;
    }
}

/* Returns the set of lanes for which an op may need waits: not its own, if the order of that lane makes each of its ops
 * wait for the ones before. */
static unsigned awaitable(const struct sw_op *op) {
    const unsigned all = (1U << SW_LANES) - 1;
    return sw_lane_is_io(op->lane) ? all : all & ~(1U << op->lane);
}

/* Each access is recorded as soon as it is looked up, so a later one of the same op may find it. That changes nothing:
 * the op waits for nothing on its own lane, and a piece that it has written needs no look at the step before, as the
 * write has that. On an I/O lane, where it may wait, no op uses a piece twice. */
sw_status sw_hazards_add(struct sw_hazards *h, int32_t number, const struct sw_access *access, int32_t count) {
    struct sw_op *op = &h->program->op[number];
    struct needs needed = {0};
    for (const struct sw_access *a = access; a < access + count; a++) {
        const int32_t slot = sw_access_slot(a, 0);
        SW_TRY(look_up(h, number, a, slot, &needed));
        record(h, a, slot, op->lane, op->position + 1);
    }
    SW_TRY(reserve((void **)&h->wait, h->wait_count, SW_LANES, &h->wait_capacity, sizeof *h->wait));
    op->first_wait = h->wait_count;
    const unsigned may_wait = awaitable(op);
    for (int lane = 0; lane < SW_LANES; lane++) {
        const done_count last = needed_of(&needed, lane);
        if (last == 0 || (may_wait >> lane & 1) == 0)
            continue;
        assert(lane != (int)op->lane || last <= op->position);
        h->wait[h->wait_count++] = (struct sw_wait){.lane = (sw_lane)lane, .position = last - 1};
    }
    op->wait_count = (int8_t)(h->wait_count - op->first_wait);
    return SW_OK;
}

/* Gathers the ops of earlier steps with which an access conflicts, by the number of steps back. */
static void look_back(const struct sw_hazards *h, const struct early_access *early,
                      struct needs needed[MOST_BACK + 1]) {
    if (early->generation == SW_GENERATION_NONE) {
        const struct piece_state *piece = find_pieces(h, early->slot, early->first, early->count);
        gather(piece, &h->run[early->slot], early->write, &needed[1]);
        return;
    }
    const bool other = early->generation == SW_GENERATION_OTHER;
    const struct piece_state *before = find_pieces(h, early->slot + !other, early->first, 1);
    gather_piece(before, early->write, &needed[1]);
    if (before->writer == 0)
        gather_piece(find_pieces(h, early->slot + other, early->first, 1), early->write, &needed[MOST_BACK]);
}

/* Gives an op its waits: on each lane for the latest op that it conflicts with. They are written from *count on. */
static void merge_waits(const struct sw_hazards *h, struct sw_op *op, const struct needs earlier[MOST_BACK + 1],
                        struct sw_wait *to, int32_t *count) {
    const struct sw_wait *own = &h->wait[op->first_wait], *own_end = own + op->wait_count;
    op->first_wait = *count;
    const unsigned may_wait = awaitable(op);
    for (int lane = 0; lane < SW_LANES; lane++) {
        int back = 1;
        if (own < own_end && (int)own->lane == lane) {
            to[(*count)++] = *own++;
            continue;
        }
        while (back <= MOST_BACK && needed_of(&earlier[back], lane) == 0)
            back++;
        if (back <= MOST_BACK && (may_wait >> lane & 1) != 0)
            to[(*count)++] = (struct sw_wait){
                .lane = (sw_lane)lane, .position = needed_of(&earlier[back], lane) - 1, .steps_back = (int8_t)back};
    }
    op->wait_count = (int8_t)(*count - op->first_wait);
}

/* Gives the op of an early access its waits, and returns the first access of another op. */
static const struct early_access *wait_for_earlier(const struct sw_hazards *h, const struct early_access *early,
                                                   struct sw_wait *to, int32_t *count) {
    const struct early_access *const end = h->early + h->early_count;
    const int32_t number = early->op;
    struct needs earlier[MOST_BACK + 1] = {0};
    for (; early < end && early->op == number; early++)
        look_back(h, early, earlier);
    merge_waits(h, &h->program->op[number], earlier, to, count);
    return early;
}

/* Gives an op that waits for no earlier step the waits that it has. */
static void keep_waits(struct sw_hazards *h, struct sw_op *op) {
    struct sw_program *program = h->program;
    const struct sw_wait *own = &h->wait[op->first_wait];
    op->first_wait = program->wait_count;
    for (int w = 0; w < op->wait_count; w++)
        program->wait[program->wait_count++] = own[w];
}

sw_status sw_hazards_end(struct sw_hazards *h) {
    struct sw_program *program = h->program;
    const struct early_access *early = h->early, *early_end = early + h->early_count;
    const size_t most = (size_t)h->wait_count + (size_t)h->early_count * SW_LANES + 1;
    free(program->wait);
    program->wait_count = 0;
    program->wait = malloc(most * sizeof *program->wait);
    if (program->wait == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the plan's waits");
    for (int32_t i = 0; i < program->op_count; i++) {
        if (early == early_end || early->op != i) {
            keep_waits(h, &program->op[i]);
            continue;
        }
        early = wait_for_earlier(h, early, program->wait, &program->wait_count);
    }
    return SW_OK;
}

sw_status sw_hazards_lend(struct sw_hazards *h) {
    const struct early_access *early = h->early, *early_end = early + h->early_count;
    SW_TRY(reserve((void **)&h->wait, h->wait_count, h->early_count * SW_LANES, &h->wait_capacity, sizeof *h->wait));
    while (early < early_end)
        early = wait_for_earlier(h, early, h->wait, &h->wait_count);
    h->program->wait = h->wait;
    h->program->wait_count = h->wait_count;
    return SW_OK;
}

sw_status sw_hazards_begin(const struct sw_plan *plan, struct sw_program *program, struct sw_hazards **hazards) {
    struct sw_hazards *h = *hazards = *hazards != NULL ? *hazards : calloc(1, sizeof *h);
    if (h == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to derive the plan's waits");
    h->program = program;
    h->wait_count = h->early_count = 0;
    SW_TRY(reserve((void **)&h->piece, 0, plan->piece_count, &h->piece_capacity, sizeof *h->piece));
    SW_TRY(reserve((void **)&h->run, 0, plan->slot_count, &h->run_capacity, sizeof *h->run));
    memset(h->piece, 0, (size_t)plan->piece_count * sizeof *h->piece);
    memset(h->run, 0, (size_t)plan->slot_count * sizeof *h->run);
    for (int32_t slot = 0; slot < plan->slot_count; slot++)
        h->run[slot].slot_first = plan->slot[slot].first_piece;
    return SW_OK;
}

void sw_hazards_destroy(struct sw_hazards *h) {
    if (h == NULL)
        return;
    free(h->piece);
    free(h->run);
    free(h->wait);
    free(h->early);
    free(h);
}

sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program) {
    struct sw_hazards *h = NULL;
    sw_status status = sw_hazards_begin(plan, program, &h);
    for (int32_t i = 0; i < program->op_count && status == SW_OK; i++)
        status = sw_hazards_add(h, i, &program->access[program->op[i].first_access], program->op[i].access_count);
    if (status == SW_OK)
        status = sw_hazards_end(h);
    sw_hazards_destroy(h);
    return status;
}
