#include "offload/engine/trace.h"

#include "core/size.h"
#include "io/store/store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* One program that ran. */
struct kept_program {
    const struct sw_program *program;
    bool flush; /* the program only applies the update that the last step left */
    int64_t step;
    struct sw_op_times *times; /* one entry per op; part of the trace's times */
};

struct sw_trace {
    const struct sw_plan *plan;
    const char *process;
    int64_t origin_ns; /* when the first program began: time zero of the file */
    int64_t steps;
    bool full;
    int64_t program_count, program_room, op_count, op_room;
    struct kept_program *program;
    struct sw_op_times *times;
};

static bool is_training(sw_program_kind kind) {
    return kind != SW_PROGRAM_LOSS && kind != SW_PROGRAM_LOGITS;
}

static bool is_flush(sw_program_kind kind) {
    return kind == SW_PROGRAM_FLUSH_UPDATE || kind == SW_PROGRAM_FLUSH_REDO;
}

/* Returns the largest number of programs that so many ops can make up. */
static int64_t most_programs(const struct sw_plan *plan, int64_t ops) {
    int64_t least_ops = ops;
    for (int kind = 0; kind < SW_PROGRAMS; kind++)
        if (is_training((sw_program_kind)kind) && plan->program[kind].op_count > 0)
            least_ops = sw_min_i64(least_ops, plan->program[kind].op_count);
    return ops / least_ops;
}

sw_status sw_trace_create(const struct sw_plan *plan, int64_t ops, const char *process, struct sw_trace **out) {
    assert(ops > 0);
    struct sw_trace *trace = calloc(1, sizeof *trace);
    if (trace == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a trace of %" PRId64 " ops", ops);
    *trace =
        (struct sw_trace){.plan = plan, .process = process, .op_room = ops, .program_room = most_programs(plan, ops)};
    trace->program = calloc((size_t)trace->program_room, sizeof *trace->program);
    trace->times = calloc((size_t)trace->op_room, sizeof *trace->times);
    if (trace->program == NULL || trace->times == NULL) {
        sw_trace_destroy(trace);
        return sw_fail(SW_ERR_NOMEM, "no memory for a trace of %" PRId64 " ops", ops);
    }
    /* Touches the memory now, so that the system need not find pages for it during a step. */
    for (int64_t i = 0; i < ops; i++)
        trace->times[i] = (struct sw_op_times){.start_ns = SW_TRACE_NOT_RUN, .end_ns = SW_TRACE_NOT_RUN};
    *out = trace;
    return SW_OK;
}

void sw_trace_destroy(struct sw_trace *trace) {
    if (trace == NULL)
        return;
    free(trace->program);
    free(trace->times);
    free(trace);
}

struct sw_op_times *sw_trace_begin(struct sw_trace *trace, sw_program_kind kind, int64_t step, int64_t now_ns) {
    if (trace == NULL || trace->full || !is_training(kind))
        return NULL;
    const struct sw_program *program = &trace->plan->program[kind];
    if (trace->op_count + program->op_count > trace->op_room) {
        trace->full = true;
        return NULL;
    }
    assert(trace->program_count < trace->program_room);
    if (trace->program_count == 0)
        trace->origin_ns = now_ns;
    struct sw_op_times *times = &trace->times[trace->op_count];
    trace->program[trace->program_count++] =
        (struct kept_program){.program = program, .flush = is_flush(kind), .step = step, .times = times};
    trace->op_count += program->op_count;
    trace->steps += !is_flush(kind);
    return times;
}

int64_t sw_trace_programs(const struct sw_trace *trace) {
    return trace->program_count;
}

const struct sw_program *sw_trace_program(const struct sw_trace *trace, int64_t number) {
    assert(number >= 0 && number < trace->program_count);
    return trace->program[number].program;
}

const struct sw_op_times *sw_trace_times(const struct sw_trace *trace, int64_t number) {
    assert(number >= 0 && number < trace->program_count);
    return trace->program[number].times;
}

int64_t sw_trace_step(const struct sw_trace *trace, int64_t number) {
    assert(number >= 0 && number < trace->program_count);
    return trace->program[number].step;
}

int64_t sw_trace_find_steady(const struct sw_trace *trace, int64_t step) {
    for (int64_t i = 0; i < trace->program_count; i++) {
        const sw_program_kind kind = (sw_program_kind)(trace->program[i].program - trace->plan->program);
        if (trace->program[i].step >= step && sw_program_repeats(kind))
            return i;
    }
    return -1;
}

int64_t sw_trace_steps(const struct sw_trace *trace) {
    return trace->steps;
}

/* Viewers do not show overlapping events of one thread, so an event goes to the lane's first row that is free by then;
 * a row is a thread of the file. A lane has at most as many rows as transfers in flight. */
enum { ROWS_MAX = SW_STORE_LANE_TRANSFERS };

struct rows {
    int64_t free_ns[ROWS_MAX];
    int count;
};

static int take_row(struct rows *rows, const struct sw_op_times *times) {
    int row = 0;
    while (row < rows->count && rows->free_ns[row] > times->start_ns)
        row++;
    assert(row < ROWS_MAX);
    if (row == rows->count)
        rows->count++;
    rows->free_ns[row] = times->end_ns;
    return row;
}

static int thread_number(sw_lane lane, int row) {
    return (int)lane * ROWS_MAX + row + 1;
}

/* "embedding", "block 3", "head". */
static void write_unit(const struct sw_plan *plan, int32_t unit, FILE *out) {
    if (unit == 0)
        fputs(" embedding", out);
    else if (unit + 1 == plan->spec.units->count)
        fputs(" head", out);
    else if (unit > 0)
        fprintf(out, " block %d", unit - 1);
}

/* Writes what an op does, without characters that JSON would have to escape: "read optimizer block 3 c12". */
static void write_name(const struct sw_plan *plan, const struct sw_op *op, FILE *out) {
    if (op->redo || op->speculates)
        fputs(op->redo ? "redo " : "speculative ", out);
    fputs(sw_op_name(op->kind), out);
    if (sw_ops[op->kind].transfers || op->kind == SW_OP_SEND || op->kind == SW_OP_RECEIVE)
        fprintf(out, " %s", sw_content_name(op->content));
    write_unit(plan, op->unit, out);
    if (op->chunk >= 0)
        fprintf(out, " c%d", op->chunk);
    if (op->micro >= 0)
        fprintf(out, " m%d", op->micro);
}

static void write_args(const struct kept_program *kept, const struct sw_op *op, const struct sw_op_times *times,
                       FILE *out) {
    const int64_t duration_ns = times->end_ns - times->start_ns;
    fprintf(out, "{\"step\":%" PRId64 ",\"program\":\"%s\"", kept->step, kept->flush ? "flush" : "step");
    if (op->unit >= 0)
        fprintf(out, ",\"unit\":%d", op->unit);
    if (op->micro >= 0)
        fprintf(out, ",\"micro\":%d", op->micro);
    if (op->chunk >= 0)
        fprintf(out, ",\"chunk\":%d", op->chunk);
    if (op->bytes > 0)
        fprintf(out, ",\"bytes\":%" PRId64, op->bytes);
    if (times->host_wait)
        fputs(",\"host_wait\":true", out);
    if (op->bytes > 0 && duration_ns > 0)
        fprintf(out, ",\"GB/s\":%.3f", (double)op->bytes / (double)duration_ns);
    if (op->flops > 0.0 && duration_ns > 0)
        fprintf(out, ",\"GFLOP/s\":%.3f", op->flops / (double)duration_ns);
    fputc('}', out);
}

/* Writes a time in the file's microseconds with all digits of the nanoseconds, so that no large number is rounded. */
static void write_microseconds(int64_t ns, FILE *out) {
    fprintf(out, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
}

static void write_event(const struct sw_trace *trace, const struct kept_program *kept, int32_t number, int row,
                        FILE *out) {
    const struct sw_op *op = &kept->program->op[number];
    const struct sw_op_times *times = &kept->times[number];
    const int64_t duration_ns = times->end_ns - times->start_ns;
    fputs(",\n{\"ph\":\"X\",\"name\":\"", out);
    write_name(trace->plan, op, out);
    fprintf(out, "\",\"cat\":\"%s\",\"pid\":1,\"tid\":%d,\"ts\":", sw_lane_name(op->lane),
            thread_number(op->lane, row));
    write_microseconds(times->start_ns - trace->origin_ns, out);
    fputs(",\"dur\":", out);
    write_microseconds(duration_ns, out);
    fputs(",\"args\":", out);
    write_args(kept, op, times, out);
    fputc('}', out);
}

/* Writes the threads' names and their order, that of the lanes. */
static void write_rows(sw_lane lane, const struct rows *rows, FILE *out) {
    for (int row = 0; row < rows->count; row++) {
        const int thread = thread_number(lane, row);
        fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s", thread,
                sw_lane_name(lane));
        if (row > 0)
            fprintf(out, " (%d)", row + 1);
        fprintf(out,
                "\"}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":1,\"tid\":%d,\"args\":"
                "{\"sort_index\":%d}}",
                thread, thread);
    }
}

/* Ops of a lane start in its order, program after program. */
static void write_lane(const struct sw_trace *trace, sw_lane lane, FILE *out) {
    struct rows rows = {.count = 0};
    for (int64_t p = 0; p < trace->program_count; p++) {
        const struct kept_program *kept = &trace->program[p];
        for (int32_t i = 0; i < kept->program->lane_count[lane]; i++) {
            const int32_t number = kept->program->lane_op[lane][i];
            if (kept->times[number].end_ns != SW_TRACE_NOT_RUN)
                write_event(trace, kept, number, take_row(&rows, &kept->times[number]), out);
        }
    }
    write_rows(lane, &rows, out);
}

void sw_trace_write(const struct sw_trace *trace, FILE *out) {
    fprintf(out,
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"%s\"}}",
            trace->process);
    for (int lane = 0; lane < SW_LANES; lane++)
        write_lane(trace, (sw_lane)lane, out);
    fputs("\n]}\n", out);
}

/* At first, spans shorter than this part of the step are too short to be seen. */
enum { FINEST_PART = 1 << 14 };

struct span {
    int64_t start_ns, end_ns;
    sw_work work;
    int32_t first_unit, last_unit; /* -1: ops of no unit */
    int64_t ops, bytes;
};

/* One walk over the ops of a lane. */
struct walk {
    const struct sw_program *program;
    const struct sw_op_times *times;
    sw_lane lane;
    int64_t origin_ns; /* the first start of the step: time zero of the timeline */
    int64_t gap_ns;    /* spans and pauses up to this length are too short to be seen */
    FILE *out;         /* NULL: spans are only counted */
};

static bool has_run(const struct sw_op_times *times) {
    return times->end_ns != SW_TRACE_NOT_RUN && times->start_ns != SW_TRACE_NOT_RUN;
}

static struct span span_of(const struct sw_op *op, const struct sw_op_times *times, int64_t free_ns) {
    const int64_t start_ns = sw_max_i64(times->start_ns, free_ns);
    return (struct span){.start_ns = start_ns,
                         .end_ns = sw_max_i64(start_ns, times->end_ns),
                         .work = sw_op_work(op),
                         .first_unit = op->unit,
                         .last_unit = op->unit,
                         .ops = 1,
                         .bytes = op->bytes};
}

/* Tells whether the next ops of a lane belong to its last span: they are alike, or the span is too short to be seen. */
static bool may_join(const struct walk *walk, const struct span *last, const struct span *next) {
    const bool alike = last->work == next->work && last->last_unit == next->first_unit;
    return next->start_ns - last->end_ns <= walk->gap_ns && (alike || last->end_ns - last->start_ns <= walk->gap_ns);
}

static void join(struct span *to, const struct span *next) {
    if (next->end_ns - next->start_ns > to->end_ns - to->start_ns)
        to->work = next->work;
    to->end_ns = next->end_ns;
    if (to->first_unit < 0 || (next->first_unit >= 0 && next->first_unit < to->first_unit))
        to->first_unit = next->first_unit;
    if (next->last_unit > to->last_unit)
        to->last_unit = next->last_unit;
    to->ops += next->ops;
    to->bytes += next->bytes;
}

static void put_span(const struct walk *walk, const struct span *span, int64_t number) {
    if (walk->out != NULL)
        fprintf(walk->out, "%s[%.1f,%.1f,\"%s\",%d,%d,%" PRId64 ",%" PRId64 "]", number > 0 ? "," : "",
                (double)(span->start_ns - walk->origin_ns) * 1e-3, (double)(span->end_ns - span->start_ns) * 1e-3,
                sw_work_name(span->work), span->first_unit, span->last_unit, span->ops, span->bytes);
}

/* Returns the number of spans. The ops of a lane start in its order; those of an I/O lane overlap, and each then counts
 * from the end of the one before. */
static int64_t walk_lane(const struct walk *walk) {
    struct span span = {0};
    int64_t spans = 0;
    for (int32_t i = 0; i < walk->program->lane_count[walk->lane]; i++) {
        const int32_t number = walk->program->lane_op[walk->lane][i];
        if (!has_run(&walk->times[number]))
            continue;
        const struct span next = span_of(&walk->program->op[number], &walk->times[number], span.end_ns);
        if (span.ops > 0 && may_join(walk, &span, &next)) {
            join(&span, &next);
            continue;
        }
        if (span.ops > 0)
            put_span(walk, &span, spans++);
        span = next;
    }
    if (span.ops > 0)
        put_span(walk, &span, spans++);
    return spans;
}

static void write_spans(struct walk walk, FILE *out) {
    while (walk_lane(&walk) > SW_TIMELINE_LANE_SPANS)
        walk.gap_ns *= 2;
    walk.out = out;
    walk_lane(&walk);
}

void sw_timeline_write(const struct sw_plan *plan, const struct sw_program *program, const struct sw_op_times *times,
                       FILE *out) {
    int64_t first_ns = INT64_MAX, last_ns = INT64_MIN, ops = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        if (!has_run(&times[i]))
            continue;
        first_ns = sw_min_i64(first_ns, times[i].start_ns);
        last_ns = sw_max_i64(last_ns, times[i].end_ns);
        ops++;
    }
    const int64_t all_ns = ops > 0 ? last_ns - first_ns : 0;
    fprintf(out, "{\"seconds\":%.9f,\"ops\":%" PRId64 ",\"units\":%" PRId64 ",\"lanes\":{", (double)all_ns * 1e-9, ops,
            plan->spec.units->count);
    for (int lane = 0; lane < SW_LANES; lane++) {
        fprintf(out, "%s\"%s\":[", lane > 0 ? "," : "", sw_lane_name((sw_lane)lane));
        write_spans((struct walk){.program = program,
                                  .times = times,
                                  .lane = (sw_lane)lane,
                                  .origin_ns = first_ns,
                                  .gap_ns = 1 + all_ns / FINEST_PART},
                    out);
        fputc(']', out);
    }
    fputs("}}", out);
}

/* The spans of a stage of a pipeline: the passes of its compute lane, and between them its waits for other stages. */

const char *sw_stage_work_name(sw_stage_work work) {
    static const char *const names[SW_STAGE_WORKS] = {"forward", "backward", "other", "wait"};
    return names[work];
}

struct stage_span {
    int64_t start_ns, end_ns;
    sw_stage_work work;
    int64_t group; /* -1: none */
    int turn;      /* -1: none */
};

/* One walk over the compute lane, and beside it over the comm lane. */
struct stage_walk {
    const struct sw_plan *plan;
    const struct sw_program *program;
    const struct sw_op_times *times;
    int64_t origin_ns;      /* the end of the summary */
    int64_t gap_ns;         /* spans and pauses up to this length are too short to be seen */
    int32_t next_comm;      /* the first op of the comm lane that may not be over yet */
    struct stage_span last; /* not written yet */
    int64_t spans;          /* written */
    FILE *out;              /* NULL: spans are only counted */
};

static void put_stage_span(struct stage_walk *walk) {
    const struct stage_span *span = &walk->last;
    if (span->end_ns - span->start_ns <= walk->gap_ns)
        return;
    if (walk->out != NULL)
        fprintf(walk->out, "%s[%.1f,%.1f,\"%s\",%" PRId64 ",%d]", walk->spans > 0 ? "," : "",
                (double)(span->start_ns - walk->origin_ns) * 1e-3, (double)(span->end_ns - span->start_ns) * 1e-3,
                sw_stage_work_name(span->work), span->group, span->turn);
    walk->spans++;
}

/* Adds a span to the last one if it does the same. */
static void add_stage_span(struct stage_walk *walk, struct stage_span span) {
    struct stage_span *last = &walk->last;
    const bool same = last->work == span.work && last->group == span.group && last->turn == span.turn;
    if (same && span.start_ns - last->end_ns <= walk->gap_ns) {
        last->end_ns = span.end_ns;
        return;
    }
    put_stage_span(walk);
    *last = span;
}

/* The head's op of a training is the end of a forward pass and the beginning of a backward pass, most of it the latter.
 */
static struct stage_span pass_of(const struct stage_walk *walk, int32_t number) {
    const struct sw_op *op = &walk->program->op[number];
    const sw_work work = sw_op_work(op);
    const sw_stage_work pass = work == SW_WORK_FORWARD ? SW_STAGE_WORK_FORWARD : SW_STAGE_WORK_BACKWARD;
    const bool passes = op->micro >= 0 && work <= SW_WORK_HEAD;
    return (struct stage_span){.start_ns = walk->times[number].start_ns,
                               .end_ns = walk->times[number].end_ns,
                               .work = passes ? pass : SW_STAGE_WORK_OTHER,
                               .group = passes ? op->micro / sw_plan_group(walk->plan) : -1,
                               .turn = passes ? sw_plan_turn_of(walk->plan, op->unit) : -1};
}

static bool waits_for_stages(const struct sw_op *op) {
    const sw_among among = sw_ops[op->kind].among;
    return among == SW_AMONG_LINK || among == SW_AMONG_JOB;
}

/* Adds what the comm lane waited for other stages while the compute lane had nothing to do. */
static void add_waits(struct stage_walk *walk, int64_t from_ns, int64_t to_ns) {
    const struct sw_program *program = walk->program;
    for (int32_t i = walk->next_comm; i < program->lane_count[SW_LANE_COMM]; i++) {
        const int32_t number = program->lane_op[SW_LANE_COMM][i];
        const struct sw_op_times *times = &walk->times[number];
        if (!has_run(times) || times->end_ns <= from_ns) {
            walk->next_comm = i + 1;
            continue;
        }
        const int64_t start_ns = sw_max_i64(from_ns, times->start_ns), end_ns = sw_min_i64(to_ns, times->end_ns);
        if (start_ns >= to_ns)
            break;
        if (waits_for_stages(&program->op[number]))
            add_stage_span(walk, (struct stage_span){start_ns, end_ns, SW_STAGE_WORK_WAIT, -1, -1});
    }
}

static int64_t walk_stage(struct stage_walk *walk) {
    const struct sw_program *program = walk->program;
    int64_t free_ns = INT64_MIN;
    walk->last = (struct stage_span){.group = -1, .turn = -1};
    walk->next_comm = 0;
    for (int32_t i = 0; i < program->lane_count[SW_LANE_COMPUTE]; i++) {
        const int32_t number = program->lane_op[SW_LANE_COMPUTE][i];
        if (!has_run(&walk->times[number]))
            continue;
        add_waits(walk, free_ns, walk->times[number].start_ns);
        add_stage_span(walk, pass_of(walk, number));
        free_ns = walk->times[number].end_ns;
    }
    add_waits(walk, free_ns, walk->origin_ns);
    put_stage_span(walk);
    return walk->spans;
}

/* Returns when the step's summary ended; without one, the last end of all ops. */
static int64_t end_of_summary(const struct sw_program *program, const struct sw_op_times *times) {
    int64_t last_ns = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        if (program->op[i].kind == SW_OP_EXCHANGE_SUMMARY && has_run(&times[i]))
            return times[i].end_ns;
        last_ns = sw_max_i64(last_ns, times[i].end_ns);
    }
    return last_ns;
}

void sw_stage_write(const struct sw_plan *plan, const struct sw_program *program, const struct sw_op_times *times,
                    FILE *out) {
    int64_t busy_ns = 0;
    struct stage_walk walk = {
        .plan = plan, .program = program, .times = times, .origin_ns = end_of_summary(program, times)};
    for (int32_t i = 0; i < program->lane_count[SW_LANE_COMPUTE]; i++) {
        const struct sw_op_times *op = &times[program->lane_op[SW_LANE_COMPUTE][i]];
        busy_ns += has_run(op) ? op->end_ns - op->start_ns : 0;
    }
    walk.gap_ns = busy_ns / FINEST_PART;
    while (walk_stage(&walk) > SW_STAGE_SPANS) {
        walk.gap_ns = 2 * walk.gap_ns + 1;
        walk.spans = 0;
    }
    fprintf(out,
            "{\"stage\":%d,\"stages\":%d,\"interleave\":%d,\"groups\":%" PRId64
            ",\"formula\":%.6f,\"busy_seconds\":%.9f,\"spans\":[",
            plan->spec.pipeline.stage, sw_plan_stages(plan), sw_plan_turns(plan), sw_plan_groups(plan),
            sw_plan_equal_bubble(plan), (double)busy_ns * 1e-9);
    walk.spans = 0;
    walk.out = out;
    walk_stage(&walk);
    fputs("]}", out);
}
