#include "offload/engine/timeline.h"

#include "core/size.h"

#include <inttypes.h>

/* At first, what is shorter than this part of the step is too short to be seen. */
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

static void write_lane(struct walk walk, FILE *out) {
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
        write_lane((struct walk){.program = program,
                                 .times = times,
                                 .lane = (sw_lane)lane,
                                 .origin_ns = first_ns,
                                 .gap_ns = 1 + all_ns / FINEST_PART},
                   out);
        fputc(']', out);
    }
    fputs("}}", out);
}
