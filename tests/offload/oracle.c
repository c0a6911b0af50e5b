#include "tests/offload/oracle.h"

#include "offload/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

/* Generations swap roles from step to step: four steps see each swap from both sides. */
enum { STEPS = 4, WORD_BITS = 64 };

/* A node is an op of one of the steps. before[n] is the set of nodes that are done when n starts, finished[n] those
 * that are done when n is done. */
struct oracle {
    const struct sw_plan *plan;
    const struct sw_program *program;
    int32_t steps, nodes, words;
    uint64_t *before, *finished;
    int32_t *order; /* nodes in an order that may happen */
    int32_t ordered;
    unsigned char *color; /* 0: not visited, 1: being visited, 2: visited */
    bool circle;
};

struct content {
    sw_content content;
    int32_t unit, index, stage, version;
};

/* The last action on a piece. */
struct touch {
    int32_t node;
    bool write;
};

static int32_t op_count(const struct oracle *o) {
    return o->program->op_count;
}

static const struct sw_op *op_of(const struct oracle *o, int32_t node) {
    return &o->program->op[node % op_count(o)];
}

/* The node at a place of a lane, counted over all steps. */
static int32_t lane_node(const struct oracle *o, sw_lane lane, int32_t number) {
    const int32_t per_step = o->program->lane_count[lane];
    return number / per_step * op_count(o) + o->program->lane_op[lane][number % per_step];
}

static void join(const struct oracle *o, uint64_t *into, const uint64_t *from) {
    for (int32_t w = 0; w < o->words; w++)
        into[w] |= from[w];
}

static bool has(const struct oracle *o, const uint64_t *sets, int32_t node, int32_t member) {
    return sets[(int64_t)node * o->words + member / WORD_BITS] >> (member % WORD_BITS) & 1;
}

static void visit(struct oracle *o, int32_t node, int32_t lane_number);

static void visit_lane(struct oracle *o, sw_lane lane, int32_t number) {
    visit(o, lane_node(o, lane, number), number);
}

/* Everything that must be done, or on an I/O lane started, before this node starts. */
static void visit_before(struct oracle *o, int32_t node, int32_t lane_number) {
    const struct sw_op *op = op_of(o, node);
    uint64_t *before = &o->before[(int64_t)node * o->words];
    if (lane_number > 0) {
        visit_lane(o, op->lane, lane_number - 1);
        const int32_t previous = lane_node(o, op->lane, lane_number - 1);
        join(o, before, &(sw_lane_is_io(op->lane) ? o->before : o->finished)[(int64_t)previous * o->words]);
    }
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &o->program->wait[op->first_wait + w];
        const int32_t step = node / op_count(o) - wait->steps_back;
        if (step < 0)
            continue;
        const int32_t number = step * o->program->lane_count[wait->lane] + wait->position;
        visit_lane(o, wait->lane, number);
        join(o, before, &o->finished[(int64_t)lane_node(o, wait->lane, number) * o->words]);
    }
}

static void visit(struct oracle *o, int32_t node, int32_t lane_number) {
    if (o->color[node] == 1)
        o->circle = true;
    if (o->color[node] != 0 || o->circle)
        return;
    o->color[node] = 1;
    visit_before(o, node, lane_number);
    uint64_t *finished = &o->finished[(int64_t)node * o->words];
    join(o, finished, &o->before[(int64_t)node * o->words]);
    finished[node / WORD_BITS] |= UINT64_C(1) << (node % WORD_BITS);
    if (lane_number > 0)
        join(o, finished, &o->finished[(int64_t)lane_node(o, op_of(o, node)->lane, lane_number - 1) * o->words]);
    o->color[node] = 2;
    o->order[o->ordered++] = node;
}

static const char *find_order(struct oracle *o) {
    for (int lane = 0; lane < SW_LANES; lane++)
        for (int32_t number = 0; number < o->steps * o->program->lane_count[lane]; number++)
            visit_lane(o, (sw_lane)lane, number);
    return o->circle ? "a circle of waits" : NULL;
}

static bool is_inside(const struct oracle *o, const struct sw_access *access, int32_t step) {
    const int32_t slot = sw_access_slot(access, step);
    return slot >= 0 && slot < o->plan->slot_count && access->first >= 0 &&
           access->first + access->count <= o->plan->slot[slot].pieces;
}

static const char *check_bounds(const struct oracle *o) {
    for (int32_t a = 0; a < o->program->access_count; a++)
        for (int32_t step = 0; step < o->steps; step++)
            if (!is_inside(o, &o->program->access[a], step))
                return "an access outside its slot";
    return NULL;
}

/* Every two nodes that touch a piece, one of them writing, must be ordered. */
static const char *check_piece(const struct oracle *o, const struct touch *touches, int32_t count) {
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = a + 1; b < count; b++)
            if ((touches[a].write || touches[b].write) && touches[a].node != touches[b].node &&
                !has(o, o->before, touches[a].node, touches[b].node) &&
                !has(o, o->before, touches[b].node, touches[a].node))
                return "a conflict without order";
    return NULL;
}

/* Touches of all pieces, those of one after those of another: ends[p] is where those of piece p end. */
struct touches {
    struct touch *touch;
    int32_t *ends;
};

/* Calls for each touch in node order: counts it, or stores it. */
static void walk_touches(const struct oracle *o, struct touches *all, bool store) {
    for (int32_t node = 0; node < o->nodes; node++) {
        const struct sw_op *op = op_of(o, node);
        for (int32_t a = op->first_access; a < op->first_access + op->access_count; a++) {
            const struct sw_access *access = &o->program->access[a];
            const struct sw_slot *slot = &o->plan->slot[sw_access_slot(access, node / op_count(o))];
            for (int32_t k = 0; k < access->count; k++) {
                const int32_t piece = slot->first_piece + access->first + k;
                if (store)
                    all->touch[all->ends[piece]++] = (struct touch){.node = node, .write = access->write};
                else
                    all->ends[piece + 1]++;
            }
        }
    }
}

static const char *check_conflicts(const struct oracle *o) {
    const int32_t pieces = o->plan->piece_count;
    struct touches all = {.ends = calloc((size_t)pieces + 2, sizeof *all.ends)};
    const char *wrong = "no memory";
    if (all.ends == NULL)
        return wrong;
    walk_touches(o, &all, false);
    for (int32_t p = 0; p < pieces; p++)
        all.ends[p + 1] += all.ends[p];
    all.touch = calloc((size_t)all.ends[pieces] + 1, sizeof *all.touch);
    if (all.touch != NULL) {
        wrong = NULL;
        walk_touches(o, &all, true);
        for (int32_t p = 0, first = 0; p < pieces && wrong == NULL; first = all.ends[p++])
            wrong = check_piece(o, &all.touch[first], all.ends[p] - first);
    }
    free(all.touch);
    free(all.ends);
    return wrong;
}

/* Some op makes it in the step in which it is read first. */
static bool is_made(const struct oracle *o, sw_content content) {
    for (int32_t a = 0; a < o->program->access_count; a++)
        if (o->program->access[a].write && o->program->access[a].content == content && o->program->access[a].age == 0)
            return true;
    return false;
}

/* One of the executions that the waits allow. */
struct execution {
    struct content *memory; /* of each piece */
    bool made[SW_CONTENTS];
    const struct sw_plan *plan;
    bool redoes;
};

/* Tells whether the weights of a unit's chunk are those from before the first step. Chunks have frozen grains or
 * trained ones, the frozen ones before the others. */
static bool is_frozen(const struct execution *e, int32_t unit, int64_t chunk) {
    const struct sw_plan_spec *spec = &e->plan->spec;
    return chunk * spec->chunk_grains < spec->units->unit[unit].trained_grain - spec->units->unit[unit].base_grains ||
           spec->units->unit[unit].trained_grain == spec->units->unit[unit].grains;
}

/* The result of a speculative update that is not redone is the one that the next step's update would have made. */
static struct content content_of(const struct execution *e, const struct sw_access *access, int32_t k, int32_t step) {
    const bool frozen = access->content == SW_CONTENT_BASE ||
                        (access->content == SW_CONTENT_WEIGHTS && is_frozen(e, access->unit, access->first_index + k));
    const bool initial = frozen || (access->age > 0 && !e->made[access->content]);
    struct content content = {access->content, access->unit, access->first_index + k, access->version,
                              initial ? -1 : step - access->age};
    const bool state = access->content == SW_CONTENT_WEIGHTS || access->content == SW_CONTENT_OPTIMIZER;
    if (!e->redoes && state && content.stage > 0) {
        content.stage = 0;
        content.version++;
    }
    return content;
}

static const char *execute_access(const struct oracle *o, struct execution *e, const struct sw_access *access,
                                  int32_t step) {
    const struct sw_slot *slot = &o->plan->slot[sw_access_slot(access, step)];
    for (int32_t k = 0; k < access->count; k++) {
        struct content *at = &e->memory[slot->first_piece + access->first + k];
        const struct content expected = content_of(e, access, k, step);
        if (access->write)
            *at = expected;
        else if (at->content != expected.content || at->unit != expected.unit || at->index != expected.index ||
                 at->stage != expected.stage || at->version != expected.version)
            return e->redoes ? "a read of other content" : "a read of other content where nothing is redone";
    }
    return NULL;
}

/* The contents before the first step. Without redoing, the step before that has left its speculative results: new
 * weights, and new records in the generation that the first step commits. */
static void fill_residents(const struct oracle *o, struct execution *e) {
    for (int32_t s = 0; s < o->plan->slot_count; s++) {
        const struct sw_slot *slot = &o->plan->slot[s];
        const bool records =
            slot->content == SW_CONTENT_OPTIMIZER && s == o->plan->index->of_unit[SLOT_OPTIMIZER][slot->unit];
        for (int32_t k = 0; slot->resident && k < slot->pieces; k++) {
            const int32_t index = slot->first_index + k;
            const bool weights = slot->content == SW_CONTENT_WEIGHTS && !is_frozen(e, slot->unit, index);
            const bool newer = !e->redoes && (weights || records);
            e->memory[slot->first_piece + k] = (struct content){slot->content, slot->unit, index, 0, newer ? 0 : -1};
        }
    }
}

static const char *execute(const struct oracle *o, bool redoes) {
    struct execution e = {
        .memory = calloc((size_t)o->plan->piece_count + 1, sizeof *e.memory), .plan = o->plan, .redoes = redoes};
    const char *wrong = e.memory == NULL ? "no memory" : NULL;
    for (int c = 0; c < SW_CONTENTS; c++)
        e.made[c] = is_made(o, (sw_content)c);
    if (wrong == NULL)
        fill_residents(o, &e);
    for (int32_t n = 0; n < o->ordered && wrong == NULL; n++) {
        const struct sw_op *op = op_of(o, o->order[n]);
        if (op->redo && !redoes)
            continue;
        for (int32_t a = op->first_access; a < op->first_access + op->access_count && wrong == NULL; a++)
            wrong = execute_access(o, &e, &o->program->access[a], o->order[n] / op_count(o));
    }
    free(e.memory);
    return wrong;
}

static bool has_redo(const struct sw_program *program) {
    for (int32_t i = 0; i < program->op_count; i++)
        if (program->op[i].redo)
            return true;
    return false;
}

const char *oracle_judge(const struct sw_plan *plan, sw_program_kind kind) {
    const struct sw_program *program = &plan->program[kind];
    struct oracle o = {.plan = plan, .program = program, .steps = sw_program_repeats(kind) ? STEPS : 1};
    o.nodes = o.steps * program->op_count;
    o.words = o.nodes / WORD_BITS + 1;
    const size_t set_words = (size_t)o.nodes * (size_t)o.words;
    o.before = calloc(set_words, sizeof *o.before);
    o.finished = calloc(set_words, sizeof *o.finished);
    o.order = calloc((size_t)o.nodes, sizeof *o.order);
    o.color = calloc((size_t)o.nodes, 1);
    const char *wrong = "no memory";
    if (o.before != NULL && o.finished != NULL && o.order != NULL && o.color != NULL) {
        wrong = check_bounds(&o);
        wrong = wrong != NULL ? wrong : find_order(&o);
        wrong = wrong != NULL ? wrong : check_conflicts(&o);
        wrong = wrong != NULL ? wrong : execute(&o, true);
        if (wrong == NULL && has_redo(program))
            wrong = execute(&o, false);
    }
    free(o.before);
    free(o.finished);
    free(o.order);
    free(o.color);
    return wrong;
}

const char *oracle_judge_memory(const struct sw_plan *plan) {
    for (int32_t a = 0; a < plan->slot_count; a++) {
        const struct sw_slot *slot = &plan->slot[a];
        if (slot->offset + slot->lead_bytes < 0 || slot->offset + slot->bytes > plan->tier_bytes[slot->tier])
            return "a slot outside its tier";
        for (int32_t b = a + 1; b < plan->slot_count; b++) {
            const struct sw_slot *other = &plan->slot[b];
            if (slot->tier == other->tier && slot->offset + slot->lead_bytes < other->offset + other->bytes &&
                other->offset + other->lead_bytes < slot->offset + slot->bytes)
                return "two slots that overlap";
        }
    }
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        if (plan->tier_bytes[t] > plan->spec.budget_bytes[t])
            return "a tier beyond its budget";
    return NULL;
}
