/* Emits the ops of each program, in an order in which they could run one after the other. */
#include "core/size.h"
#include "offload/plan/builder.h"

#include <stdlib.h>

static int64_t head_of(const struct sw_builder *b) {
    return b->plan->spec.units->count - 1;
}

/* Returns the last unit that computes together with one: experts that a group shares out do with their block. */
static int64_t last_beside(const struct sw_builder *b, int64_t unit) {
    return unit + sw_plan_sends_rows(b->plan, unit);
}

/* Writes down the update of a unit, or what is left of it. */
static void emit_update(struct sw_builder *b, struct sw_group *group, int64_t unit, sw_waiting waiting) {
    const bool begun = group->ahead.begun && group->ahead.unit == unit;
    struct sw_unit_update update = begun ? group->ahead : sw_build_update_begin(b, unit, waiting, true);
    sw_build_update_to(b, &update, update.chunks);
    sw_build_update_end(b, &update);
    if (begun)
        group->ahead = (struct sw_unit_update){0};
}

/* Begins the update of the next unit that streams before the units between are updated, where it takes no slot nor
 * piece of a ring that they wait for. */
static void begin_ahead(struct sw_builder *b, struct sw_group *group, int64_t unit, sw_waiting waiting) {
    const int64_t end = sw_plan_end_unit(b->plan, group->turn);
    int64_t next = unit + 1;
    while (next + 1 < end && !sw_plan_streams_optimizer(b->plan, next))
        next++;
    if (!group->ahead.begun && next < end && sw_plan_streams_optimizer(b->plan, next) &&
        (next == unit + 1 || sw_build_update_is_apart(b, next)))
        group->ahead = sw_build_update_begin(b, next, waiting, true);
}

/* Writes down the updates that a stage need not interleave with its first forward pass, before it waits for the stage
 * before: of a tied table, and of its first units whose weights live on the device. Returns the unit after these. */
static int64_t emit_first_updates(struct sw_builder *b, struct sw_group *group, sw_waiting waiting) {
    const int64_t end = sw_plan_end_unit(b->plan, 0);
    int64_t unit = sw_plan_first_unit(b->plan, 0);
    if (unit == 0)
        return 0;
    if (sw_plan_trains(b->plan, 0))
        emit_update(b, group, 0, waiting);
    for (; unit < end && sw_plan_has_whole_on_device(b->plan, unit); unit++)
        if (sw_plan_trains(b->plan, unit))
            emit_update(b, group, unit, waiting);
    return unit;
}

/* Writes down the first group's forward pass, each unit from `updated` on after its update. Ranks update one unit
 * ahead, so that it is gathered while the one before computes. */
static void emit_updated_forward(struct sw_builder *b, struct sw_group *group, sw_waiting waiting, int64_t updated) {
    const int64_t first = sw_plan_first_unit(b->plan, group->turn), end = sw_plan_end_unit(b->plan, group->turn);
    const bool leads = sw_plan_all_gathers_weights(b->plan, first);
    for (int64_t u = first; u < end; u = last_beside(b, u) + 1) {
        int64_t last = last_beside(b, u);
        if (leads && last + 1 < end)
            last = last_beside(b, last + 1);
        for (; updated <= last; updated++) {
            if (sw_plan_trains(b->plan, updated))
                emit_update(b, group, updated, waiting);
            if (updated < head_of(b))
                sw_build_fetch(b, updated); /* before the next unit takes a slot */
        }
        if (u == head_of(b))
            break;
        if (!leads)
            begin_ahead(b, group, updated - 1, waiting);
        sw_build_forward(b, group, u);
    }
    if (group->turn + 1 == sw_plan_turns(b->plan) && (b->plan->commit_every_step || b->saves))
        sw_build_commit(b);
}

/* Writes down the forward pass of a group, whose units are updated. */
static void emit_forward(struct sw_builder *b, struct sw_group *group) {
    const int64_t end = sw_min_i64(sw_plan_end_unit(b->plan, group->turn), head_of(b));
    for (int64_t u = sw_plan_first_unit(b->plan, group->turn); u < end; u = last_beside(b, u) + 1)
        sw_build_forward(b, group, u);
}

/* Returns a group of a program by its number, in a turn. Its inputs have a place of their own in the turn. */
static struct sw_group group_at(const struct sw_builder *b, const struct sw_group *like, int turn, int64_t number) {
    const int64_t size = sw_plan_group(b->plan);
    struct sw_group group = *like;
    group.number = number;
    group.turn = turn;
    group.first = number * size;
    group.count = sw_min_i64(size, b->plan->spec.micro_batches - group.first);
    group.at += (turn * sw_plan_groups(b->plan) + number) * size;
    return group;
}

static void keep_table(struct sw_accumulator *table, struct sw_accumulator of_pass) {
    if (of_pass.slot >= 0)
        *table = of_pass;
}

/* Writes down what a stage of a pipeline does, in its schedule's order: for training, or the forward passes of an
 * evaluation, each of which the head's follows. */
static void emit_stage(struct sw_builder *b, const struct sw_group *like, sw_waiting waiting) {
    const struct sw_stage_schedule *schedule = b->plan->schedule;
    struct sw_group begin = *like;
    struct sw_accumulator table = {.slot = -1};
    const int64_t updated = waiting != SW_WAITING_NOTHING ? emit_first_updates(b, &begin, waiting) : 0;
    for (int64_t i = 0; i < schedule->count; i++) {
        const struct sw_stage_event *event = &schedule->event[i];
        struct sw_group group = group_at(b, like, event->turn, event->group);
        const bool ends = sw_plan_end_unit(b->plan, event->turn) > head_of(b);
        group.grads = event->grads * sw_plan_group(b->plan);
        switch (event->kind) {
        case SW_STAGE_GETS_OUTPUTS: sw_build_receive_inputs(b, &group); break;
        case SW_STAGE_FORWARD:
            if (event->group == 0 && waiting != SW_WAITING_NOTHING)
                emit_updated_forward(b, &group, waiting,
                                     event->turn == 0 ? updated : sw_plan_first_unit(b->plan, event->turn));
            else
                emit_forward(b, &group);
            if (!ends)
                sw_build_send_outputs(b, &group);
            else if (!group.train)
                sw_build_inference_head(b, &group, SW_OP_COMPUTE_LOSS);
            break;
        case SW_STAGE_GETS_GRADS:
            if (group.train)
                sw_build_receive_grads(b, &group);
            break;
        default:
            if (group.train)
                keep_table(&table, sw_build_backward(b, &group));
        }
    }
    /* Last of all, as in the first stage, which has the other part of the sum. */
    const struct sw_group last = group_at(b, like, sw_plan_turns(b->plan) - 1, sw_plan_groups(b->plan) - 1);
    if (table.slot >= 0)
        sw_build_end_acc(b, 0, &last, table);
}

static void emit_train(struct sw_builder *b, struct sw_group *group, sw_waiting waiting) {
    const int64_t micros = b->plan->spec.micro_batches;
    if (b->plan->spec.update_only) {
        sw_build_sums_of_caller(b);
        if (sw_plan_job_ranks(b->plan) > 1)
            sw_build_exchange_summary(b, true);
        sw_build_norm(b);
        return;
    }
    b->state_age = waiting == SW_WAITING_NOTHING ? 1 : 0;
    sw_build_tokens(b, micros);
    if (sw_plan_stages(b->plan) > 1)
        emit_stage(b, group, waiting);
    for (int64_t number = 0; sw_plan_stages(b->plan) == 1 && number < sw_plan_groups(b->plan); number++) {
        struct sw_group now = group_at(b, group, 0, number);
        if (number == 0 && waiting != SW_WAITING_NOTHING)
            emit_updated_forward(b, &now, waiting, 0);
        else
            emit_forward(b, &now);
        (void)sw_build_backward(b, &now);
    }
    sw_build_sums_of_shard(b);
    if (sw_plan_job_ranks(b->plan) > 1)
        sw_build_exchange_summary(b, true);
    sw_build_norm(b);
}

static void emit_flush(struct sw_builder *b, sw_waiting waiting) {
    for (int64_t u = b->plan->first_trained; u < b->plan->spec.units->count; u++) {
        if (!sw_plan_trains(b->plan, u))
            continue;
        struct sw_unit_update update = sw_build_update_begin(b, u, waiting, false);
        sw_build_update_to(b, &update, update.chunks);
        sw_build_update_end(b, &update);
    }
    if (b->plan->commit_every_step)
        sw_build_commit(b);
    if (b->plan->commit_every_step && sw_plan_job_ranks(b->plan) > 1)
        sw_build_exchange_summary(b, false);
}

static void emit_inference(struct sw_builder *b, struct sw_group *group, sw_op_kind kind, int64_t micros) {
    b->state_age = 1;
    sw_build_tokens(b, micros);
    if (sw_plan_stages(b->plan) > 1)
        emit_stage(b, group, SW_WAITING_NOTHING);
    for (int64_t number = 0; sw_plan_stages(b->plan) == 1 && number < sw_div_up(micros, sw_plan_group(b->plan));
         number++) {
        struct sw_group now = group_at(b, group, 0, number);
        now.count = sw_min_i64(now.count, micros - now.first);
        emit_forward(b, &now);
        sw_build_inference_head(b, &now, kind);
    }
    if (sw_plan_job_ranks(b->plan) > 1)
        sw_build_exchange_summary(b, false);
}

static sw_status index_lanes(struct sw_program *program) {
    for (int lane = 0; lane < SW_LANES; lane++) {
        program->lane_op[lane] = malloc((size_t)(program->lane_count[lane] + 1) * sizeof *program->lane_op[lane]);
        if (program->lane_op[lane] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the plan's lanes");
    }
    for (int32_t i = 0; i < program->op_count; i++)
        program->lane_op[program->op[i].lane][program->op[i].position] = i;
    return SW_OK;
}

static const struct {
    sw_waiting waiting;
    bool speculate;
} training[] = {
    [SW_PROGRAM_START] = {SW_WAITING_NOTHING, false},
    [SW_PROGRAM_UPDATE] = {SW_WAITING_UPDATE, false},
    [SW_PROGRAM_UPDATE_SAVE] = {SW_WAITING_UPDATE, false},
    [SW_PROGRAM_REDO] = {SW_WAITING_REDO, false},
    [SW_PROGRAM_START_SPECULATE] = {SW_WAITING_NOTHING, true},
    [SW_PROGRAM_UPDATE_SPECULATE] = {SW_WAITING_UPDATE, true},
    [SW_PROGRAM_REDO_SPECULATE] = {SW_WAITING_REDO, true},
};

static sw_status emit(struct sw_builder *b, sw_program_kind kind) {
    const struct sw_plan *plan = b->plan;
    for (int k = 0; k < UNIT_SLOTS_MAX; k++)
        b->unit_ring[0].holds[k] = b->unit_ring[1].holds[k] = -1;
    b->typed_slot_holds = -1;
    struct sw_group group = {0};
    group.at = calloc((size_t)(sw_plan_turns(plan) * sw_plan_groups(plan) * sw_plan_group(plan)), sizeof *group.at);
    struct sw_operand *const at = group.at;
    if (at == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the plan's ops");
    switch (kind) {
    case SW_PROGRAM_FLUSH_UPDATE: emit_flush(b, SW_WAITING_UPDATE); break;
    case SW_PROGRAM_FLUSH_REDO: emit_flush(b, SW_WAITING_REDO); break;
    case SW_PROGRAM_LOSS: emit_inference(b, &group, SW_OP_COMPUTE_LOSS, plan->spec.micro_batches); break;
    case SW_PROGRAM_LOGITS:
        group.caches = true;
        emit_inference(b, &group, SW_OP_COMPUTE_LOGITS, 1);
        break;
    default:
        group.train = true;
        group.speculate = training[kind].speculate;
        emit_train(b, &group, training[kind].waiting);
    }
    free(at);
    return b->status;
}

/* Returns the bytes that a plan's programs leave for one more. */
static int64_t bytes_left(const struct sw_plan *plan, const struct sw_program *but) {
    int64_t bytes = SW_PLAN_MOST_BYTES;
    for (int p = 0; p < SW_PROGRAMS; p++)
        bytes -= &plan->program[p] == but ? 0 : sw_program_bytes(&plan->program[p]);
    return bytes;
}

static struct sw_builder begin_program(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *program) {
    *program = (struct sw_program){0};
    return (struct sw_builder){.plan = plan,
                               .most_bytes = bytes_left(plan, program),
                               .index = plan->index,
                               .program = program,
                               .sums_unit = -1,
                               .shared_unit = -1,
                               .routing_unit = -1,
                               .saves = kind == SW_PROGRAM_UPDATE_SAVE};
}

sw_status sw_plan_emit(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out) {
    struct sw_builder b = begin_program(plan, kind, out);
    SW_TRY(emit(&b, kind));
    return index_lanes(out);
}

sw_status sw_plan_emit_waits(const struct sw_plan *plan, sw_program_kind kind, struct sw_emit_room *room,
                             int64_t *out_accesses) {
    const struct sw_program before = room->program;
    struct sw_builder b = begin_program(plan, kind, &room->program);
    room->program.op = before.op;
    room->program.access = before.access;
    b.op_capacity = room->op_capacity;
    b.access_capacity = room->access_capacity;
    sw_status status = sw_hazards_begin(plan, &room->program, &room->hazards);
    b.hazards = room->hazards;
    if (status == SW_OK) {
        (void)emit(&b, kind);
        sw_build_pass_accesses(&b);
        status = b.status;
    }
    if (status == SW_OK)
        status = sw_hazards_lend(b.hazards);
    room->op_capacity = b.op_capacity;
    room->access_capacity = b.access_capacity;
    *out_accesses = b.passed_accesses;
    return status;
}

void sw_emit_room_destroy(struct sw_emit_room *room) {
    room->program.wait = NULL;
    sw_program_destroy(&room->program);
    sw_hazards_destroy(room->hazards);
    *room = (struct sw_emit_room){0};
}

sw_status sw_plan_emit_through(const struct sw_plan *plan, sw_program_kind kind, sw_take_ops take, void *context) {
    struct sw_program program;
    struct sw_builder b = begin_program(plan, kind, &program);
    b.take = take;
    b.take_context = context;
    const sw_status status = emit(&b, kind);
    if (status == SW_OK)
        sw_build_hand_on(&b);
    sw_program_destroy(&program);
    return status;
}

void sw_program_destroy(struct sw_program *program) {
    free(program->op);
    free(program->access);
    free(program->wait);
    for (int lane = 0; lane < SW_LANES; lane++)
        free(program->lane_op[lane]);
    *program = (struct sw_program){0};
}
