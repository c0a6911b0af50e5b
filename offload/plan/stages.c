/* The order in which a stage of a pipeline runs its passes, and gets what other stages give it.
 *
 * Each stage has a fixed order of passes: 1F1B with a flush (Narayanan et al., arXiv 2006.09503), interleaved if its
 * units are several runs (arXiv 2104.04473). All stages are timed by that order, as if a forward pass took one unit of
 * time and a backward pass two. A pass and what it gives to another stage are one event, and events are ordered by when
 * they end. Every stage writes down its passes, and what it gets, in this one order of all stages: so no stages wait
 * for each other in a circle, whatever passes take in truth. */
#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <assert.h>
#include <stdlib.h>

enum { FORWARD, BACKWARD, DIRECTIONS, FORWARD_TIME = 1, BACKWARD_TIME = 2 };

/* The passes of all stages. */
struct passes {
    int stages, turns;
    int64_t groups, total; /* total: a stage's passes in one direction */
    int64_t *end;          /* when each pass ends, by direction, virtual stage and group; 0: it is not timed yet */
};

/* One pass, by its direction, the turn of its stage, and its group; and its number in that direction. */
struct pass {
    int direction, turn;
    int64_t group, number;
};

static int64_t *end_of(const struct passes *p, int direction, int64_t virtual_stage, int64_t group) {
    return &p->end[(direction * (int64_t)p->stages * p->turns + virtual_stage) * p->groups + group];
}

/* Groups go through the turns in rounds of as many groups as stages, or a few more where these do not divide the
 * groups; larger rounds come first. Returns the groups of the first round. */
static int64_t first_round(const struct passes *p) {
    return sw_div_up(p->groups, sw_max_i64(1, p->groups / p->stages));
}

/* Returns the pass of a number in one direction. A round's groups all take one turn before the next; backward, the last
 * turn comes first. */
static struct pass pass_of(const struct passes *p, int direction, int64_t number) {
    const int64_t rounds = sw_max_i64(1, p->groups / p->stages), small = p->groups / rounds;
    const int64_t large_groups = p->groups % rounds * (small + 1); /* of all rounds with one group more */
    const bool large = number < large_groups * p->turns;
    const int64_t size = small + large, before = large ? 0 : large_groups;
    const int64_t at = number - before * p->turns, round = at / (size * p->turns), within = at % (size * p->turns);
    const int turn = (int)(within / size);
    return (struct pass){.direction = direction,
                         .turn = direction == FORWARD ? turn : p->turns - 1 - turn,
                         .group = before + round * size + within % size,
                         .number = number};
}

/* Returns how many forward passes a stage runs before its first pair of a forward and a backward pass. */
static int64_t passes_ahead(const struct passes *p, int stage) {
    const int64_t behind = p->stages - 1 - stage;
    return p->turns == 1 ? sw_min_i64(p->groups - 1, behind)
                         : sw_min_i64(p->total, 2 * behind + (p->turns - 1) * first_round(p));
}

/* Returns the pass of a stage at a position in its order. */
static struct pass pass_at(const struct passes *p, int stage, int64_t position) {
    const int64_t ahead = passes_ahead(p, stage), pairs = p->total - ahead, paired = position - ahead;
    if (paired < 0)
        return pass_of(p, FORWARD, position);
    if (paired >= 2 * pairs)
        return pass_of(p, BACKWARD, paired - pairs);
    return paired % 2 == 0 ? pass_of(p, FORWARD, ahead + paired / 2) : pass_of(p, BACKWARD, paired / 2);
}

static int64_t virtual_of(const struct passes *p, int stage, const struct pass *pass) {
    return (int64_t)pass->turn * p->stages + stage;
}

/* Returns the virtual stage that a pass gets its input or gradient from, or gives its own to; -1: there is none. */
static int64_t neighbour_of(const struct passes *p, int stage, const struct pass *pass, bool gives) {
    const int64_t at = virtual_of(p, stage, pass) + ((pass->direction == FORWARD) == gives ? 1 : -1);
    return at < (int64_t)p->stages * p->turns ? at : -1;
}

/* Times a stage's passes from a position on, as far as what they need has been timed. Returns the position after. */
static int64_t time_stage(struct passes *p, int stage, int64_t position) {
    for (; position < 2 * p->total; position++) {
        const struct pass pass = pass_at(p, stage, position);
        const int64_t from = neighbour_of(p, stage, &pass, false);
        const int64_t got = from < 0 ? 0 : *end_of(p, pass.direction, from, pass.group);
        int64_t free_at = 0;
        if (from >= 0 && got == 0)
            break;
        if (position > 0) {
            const struct pass last = pass_at(p, stage, position - 1);
            free_at = *end_of(p, last.direction, virtual_of(p, stage, &last), last.group);
        }
        *end_of(p, pass.direction, virtual_of(p, stage, &pass), pass.group) =
            sw_max_i64(got, free_at) + (pass.direction == FORWARD ? FORWARD_TIME : BACKWARD_TIME);
    }
    return position;
}

static void time_all(struct passes *p) {
    int64_t position[SW_MOST_STAGES] = {0};
    for (int64_t left = 2 * p->total * p->stages; left > 0;) {
        const int64_t before = left;
        for (int stage = 0; stage < p->stages; stage++) {
            const int64_t at = time_stage(p, stage, position[stage]);
            left -= at - position[stage];
            position[stage] = at;
        }
        assert(left < before); /* tests/offload/stages.c tries all small numbers of stages, turns and groups */
    }
}

/* A stage's next event in the order of all, of three kinds: its own passes, the outputs that the stage before gives it,
 * and the gradients that the next one does. */
struct meeting {
    int stage;        /* whose passes these are */
    int direction;    /* DIRECTIONS: of both */
    int64_t position; /* of the next pass in that stage's order */
    struct pass pass;
    int64_t end; /* of that pass; INT64_MAX: there is none left */
};

/* Moves on to the next pass from `position` that this meeting is about. */
static void find_next(const struct passes *p, struct meeting *m) {
    m->end = INT64_MAX;
    for (; m->position < 2 * p->total; m->position++) {
        m->pass = pass_at(p, m->stage, m->position);
        if (m->direction != DIRECTIONS &&
            (m->pass.direction != m->direction || neighbour_of(p, m->stage, &m->pass, true) < 0))
            continue;
        m->end = *end_of(p, m->pass.direction, virtual_of(p, m->stage, &m->pass), m->pass.group);
        return;
    }
}

static bool is_before(const struct meeting *a, const struct meeting *b) {
    return a->end < b->end || (a->end == b->end && a->stage < b->stage);
}

static struct sw_stage_event event_of(const struct passes *p, int stage, const struct meeting *m) {
    struct sw_stage_event event = {.turn = m->pass.turn, .group = (int32_t)m->pass.group};
    if (m->direction == DIRECTIONS) {
        event.kind = m->pass.direction == FORWARD ? SW_STAGE_FORWARD : SW_STAGE_BACKWARD;
        return event;
    }
    const int64_t to = neighbour_of(p, m->stage, &m->pass, true);
    assert(to % p->stages == stage);
    event.kind = m->direction == FORWARD ? SW_STAGE_GETS_OUTPUTS : SW_STAGE_GETS_GRADS;
    event.turn = (int32_t)(to / p->stages);
    return event;
}

/* Writes down the events of one stage. */
static void order_events(const struct passes *p, int stage, struct sw_stage_schedule *out) {
    struct meeting meeting[] = {
        {.stage = stage, .direction = DIRECTIONS},
        {.stage = (stage + p->stages - 1) % p->stages, .direction = FORWARD},
        {.stage = (stage + 1) % p->stages, .direction = BACKWARD},
    };
    enum { MEETINGS = sizeof meeting / sizeof meeting[0] };
    for (int i = 0; i < MEETINGS; i++)
        find_next(p, &meeting[i]);
    for (;;) {
        struct meeting *next = &meeting[0];
        for (int i = 1; i < MEETINGS; i++)
            next = is_before(&meeting[i], next) ? &meeting[i] : next;
        if (next->end == INT64_MAX)
            return;
        out->event[out->count++] = event_of(p, stage, next);
        next->position++;
        find_next(p, next);
    }
}

/* Where the events of each group are in a stage's order, and which backward pass is the group's, by turn and group. */
struct found {
    int32_t *at[SW_STAGE_EVENTS]; /* one block of memory */
    int32_t *number;
};

static sw_status find_events(const struct passes *p, const struct sw_stage_schedule *schedule, struct found *out) {
    int32_t *block = calloc((SW_STAGE_EVENTS + 1) * (size_t)p->total, sizeof *block);
    if (block == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    for (int kind = 0; kind < SW_STAGE_EVENTS; kind++)
        out->at[kind] = block + kind * p->total;
    out->number = block + SW_STAGE_EVENTS * p->total;
    for (int64_t i = 0; i < schedule->count; i++) {
        const struct sw_stage_event *event = &schedule->event[i];
        out->at[event->kind][event->turn * p->groups + event->group] = (int32_t)i;
    }
    for (int64_t number = 0; number < p->total; number++) {
        const struct pass pass = pass_of(p, BACKWARD, number);
        out->number[pass.turn * p->groups + pass.group] = (int32_t)number;
    }
    return SW_OK;
}

/* Returns the most groups whose times from one event to another overlap; the events of a turn have the groups' order.
 */
static int64_t most_between(const int32_t *from, const int32_t *to, int64_t groups) {
    int64_t most = 0;
    for (int64_t last = 0, group = 0; group < groups; group++) {
        while (last < groups && from[last] <= to[group])
            last++;
        most = sw_max_i64(most, last - group);
    }
    return most;
}

/* Returns the number of the first backward pass that ends after an event. */
static int64_t first_ending_after(const struct passes *p, const struct found *found, int32_t event) {
    int64_t low = 0, high = p->total - 1;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const struct pass pass = pass_of(p, BACKWARD, middle);
        if (found->at[SW_STAGE_BACKWARD][pass.turn * p->groups + pass.group] < event)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Returns how many pieces gradients at outputs need, if backward passes take pieces in turn: a pass has its piece from
 * when its gradient comes, or from its own beginning with the head. */
static int64_t pieces_of_grads(const struct passes *p, int stage, const struct found *found) {
    const int64_t last = (int64_t)p->stages * p->turns - 1;
    int64_t most = 1;
    for (int64_t number = 0; number < p->total; number++) {
        const struct pass pass = pass_of(p, BACKWARD, number);
        const bool by_head = virtual_of(p, stage, &pass) == last;
        const int32_t begins =
            found->at[by_head ? SW_STAGE_BACKWARD : SW_STAGE_GETS_GRADS][pass.turn * p->groups + pass.group];
        most = sw_max_i64(most, number - first_ending_after(p, found, begins) + 1);
    }
    return most;
}

/* Counts the pieces of slots that a stage's groups take at once, and gives each backward pass its piece of gradients.
 */
static sw_status count_pieces(const struct passes *p, int stage, struct sw_stage_schedule *out) {
    struct found found;
    SW_TRY(find_events(p, out, &found));
    for (int turn = 0; turn < p->turns; turn++) {
        const int64_t from = turn * p->groups;
        const int32_t *forward = found.at[SW_STAGE_FORWARD] + from, *backward = found.at[SW_STAGE_BACKWARD] + from;
        const int32_t *got = turn + stage > 0 ? found.at[SW_STAGE_GETS_OUTPUTS] + from : forward;
        out->turn[turn].inputs = most_between(got, backward, p->groups);
        out->turn[turn].in_flight = most_between(forward, backward, p->groups);
        out->turn[turn].received = most_between(got, forward, p->groups);
    }
    out->grads = pieces_of_grads(p, stage, &found);
    for (int64_t i = 0; i < out->count; i++) {
        struct sw_stage_event *event = &out->event[i];
        event->grads = (int32_t)(found.number[event->turn * p->groups + event->group] % out->grads);
    }
    free(found.at[0]);
    return SW_OK;
}

sw_status sw_stage_schedule_create(const struct sw_plan_pipeline *pipeline, int64_t groups,
                                   struct sw_stage_schedule **out) {
    const int turns = pipeline->turns > 1 ? pipeline->turns : 1;
    struct passes p = {.stages = pipeline->stages, .turns = turns, .groups = groups, .total = turns * groups};
    struct sw_stage_schedule *made = calloc(1, sizeof *made);
    assert(turns == 1 || groups >= pipeline->stages);
    sw_status status = SW_OK;
    p.end = calloc(DIRECTIONS * (size_t)p.stages * (size_t)p.total, sizeof *p.end);
    if (made != NULL) {
        made->turn = calloc((size_t)turns, sizeof *made->turn);
        made->event = calloc(SW_STAGE_EVENTS * (size_t)p.total, sizeof *made->event);
    }
    if (p.end == NULL || made == NULL || made->turn == NULL || made->event == NULL) {
        status = sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    } else {
        time_all(&p);
        order_events(&p, pipeline->stage, made);
        status = count_pieces(&p, pipeline->stage, made);
    }
    free(p.end);
    *out = made;
    return status;
}

void sw_stage_schedule_destroy(struct sw_stage_schedule *schedule) {
    if (schedule == NULL)
        return;
    free(schedule->turn);
    free(schedule->event);
    free(schedule);
}
