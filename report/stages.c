#include "report/stages.h"

#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/size.h"
#include "core/status.h"
#include "offload/engine/trace.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line has the stage, a column for each slice of the step, and two shares. */
enum { COLUMNS = 56, FRAME = 10, MOST_BYTES = 1 << 20, DIGITS = 10 }; /* FRAME: around the columns */
#define US_PER_S 1e6

/* A column shows no work that takes a smaller part of it. */
#define LEAST_DRAWN 0.2

struct picture {
    json_t *stage[SW_MOST_STAGES]; /* the "pipeline" of each stage's timeline, owned; NULL: there is none */
    int64_t stages, turns, step;
    double from_us; /* when the first stage began its first pass; times count from the end of the step, so it is < 0 */
};

/* One span: the work of a stage from `start_us` for `us`. A wait for something else, such as weights, is between spans.
 */
struct span {
    double start_us, us;
    sw_stage_work work;
    int64_t group, turn;
};

/* A stage's columns: its passes, and the turns that these are of; and for how long each column does what it shows. */
struct line {
    char pass[COLUMNS + 1], turn[COLUMNS + 1];
    double drawn_us[COLUMNS];
};

const char *sw_timeline_name(int stage, char out[SW_TIMELINE_NAME_CHARS]) {
    if (stage == 0)
        snprintf(out, SW_TIMELINE_NAME_CHARS, "timeline.json");
    else
        snprintf(out, SW_TIMELINE_NAME_CHARS, "timeline.stage-%d.json", stage);
    return out;
}

/* Reads a stage's timeline. Returns its "pipeline" if it is of this step and of so many stages; a new reference. */
static json_t *read_stage(const char *folder, int stage, struct picture *picture) {
    SW_HANDLES_ERRORS();
    char name[SW_TIMELINE_NAME_CHARS], path[PATH_MAX];
    json_t *timeline = NULL, *pipeline;
    if (sw_path_join(path, sizeof path, folder, sw_timeline_name(stage, name)) != SW_OK ||
        sw_json_read_own_file(path, MOST_BYTES, SW_ERR_CORRUPT, &timeline) != SW_OK)
        return NULL;
    const int64_t step = json_integer_value(json_object_get(timeline, "step"));
    pipeline = json_object_get(timeline, "pipeline");
    if (stage == 0)
        picture->step = step;
    const bool belongs = step == picture->step && json_is_array(json_object_get(pipeline, "spans")) &&
                         json_integer_value(json_object_get(pipeline, "stages")) == picture->stages;
    pipeline = belongs ? json_incref(pipeline) : NULL;
    json_decref(timeline);
    return pipeline;
}

/* Returns false if an entry is no span. */
static bool read_span(const json_t *entry, struct span *out) {
    const char *work = json_string_value(json_array_get(entry, 2));
    *out = (struct span){.start_us = json_number_value(json_array_get(entry, 0)),
                         .us = json_number_value(json_array_get(entry, 1)),
                         .work = SW_STAGE_WORKS,
                         .group = json_integer_value(json_array_get(entry, 3)),
                         .turn = json_integer_value(json_array_get(entry, 4))};
    for (int i = 0; work != NULL && i < SW_STAGE_WORKS; i++)
        if (strcmp(work, sw_stage_work_name((sw_stage_work)i)) == 0)
            out->work = (sw_stage_work)i;
    return out->work != SW_STAGE_WORKS && out->us >= 0.0 && out->start_us + out->us < US_PER_S;
}

static void release(struct picture *picture) {
    for (int64_t s = 0; s < picture->stages; s++)
        json_decref(picture->stage[s]);
}

/* Returns false if not all stages have kept the same step. */
static bool read_picture(const char *folder, struct picture *picture) {
    bool is_whole = true;
    for (int64_t s = 0; is_whole && s < picture->stages; s++) {
        size_t i;
        const json_t *entry;
        struct span span;
        picture->stage[s] = read_stage(folder, (int)s, picture);
        json_array_foreach(json_object_get(picture->stage[s], "spans"), i,
                           entry) if (read_span(entry, &span) && span.work <= SW_STAGE_WORK_BACKWARD) picture->from_us =
            fmin(picture->from_us, span.start_us);
        is_whole = picture->stage[s] != NULL;
    }
    return is_whole && picture->from_us < 0.0;
}

static char letter_of(const struct span *span) {
    switch (span->work) {
    case SW_STAGE_WORK_FORWARD: return (char)('0' + span->group % DIGITS);
    case SW_STAGE_WORK_BACKWARD: return (char)('a' + span->group % DIGITS);
    case SW_STAGE_WORK_OTHER: return '+';
    default: return '.';
    }
}

/* Puts a span into the columns of which no span before it has more. */
static void draw_span(const struct picture *picture, const struct span *span, struct line *line) {
    const double column_us = -picture->from_us / COLUMNS, end_us = span->start_us + span->us;
    for (int c = 0; c < COLUMNS; c++) {
        const double left_us = picture->from_us + c * column_us;
        const double us = fmin(end_us, left_us + column_us) - fmax(span->start_us, left_us);
        if (us <= line->drawn_us[c])
            continue;
        line->drawn_us[c] = us;
        line->pass[c] = letter_of(span);
        line->turn[c] = (char)(span->work <= SW_STAGE_WORK_BACKWARD ? '0' + span->turn % DIGITS : ' ');
    }
}

/* Draws a stage, and prints the shares of the step in which it computed nothing and in which it waited for others. */
static void put_stage(const struct picture *picture, int64_t stage, FILE *to) {
    struct line line = {.pass[0] = '\0'};
    double share[SW_STAGE_WORKS] = {0};
    const double column_us = -picture->from_us / COLUMNS;
    size_t i;
    const json_t *entry;
    struct span span;
    memset(line.pass, ' ', COLUMNS);
    memset(line.turn, ' ', COLUMNS);
    for (int c = 0; c < COLUMNS; c++)
        line.drawn_us[c] = LEAST_DRAWN * column_us;
    json_array_foreach(json_object_get(picture->stage[stage], "spans"), i, entry) {
        if (!read_span(entry, &span))
            continue;
        draw_span(picture, &span, &line);
        const double us = fmin(span.start_us + span.us, 0.0) - fmax(span.start_us, picture->from_us);
        share[span.work] += fmax(us, 0.0) / -picture->from_us;
    }
    const double idle = 1.0 - share[SW_STAGE_WORK_FORWARD] - share[SW_STAGE_WORK_BACKWARD] - share[SW_STAGE_WORK_OTHER];
    fprintf(to, "stage %2lld |%s|%4.0f%% %4.0f%%\n", (long long)stage, line.pass, 100.0 * fmax(idle, 0.0),
            100.0 * share[SW_STAGE_WORK_WAIT]);
    if (picture->turns > 1)
        fprintf(to, "    turn |%s|\n", line.turn);
}

static void put_picture(const struct picture *picture, FILE *to) {
    char time[SW_TIME_TEXT_CHARS];
    char title[COLUMNS + FRAME];
    snprintf(title, sizeof title, "step %lld, %s from the first pass to the norm", (long long)picture->step,
             sw_format_seconds(-picture->from_us / US_PER_S, time));
    fprintf(to, "%-*s idle waits\n", COLUMNS + FRAME, title);
    for (int64_t s = 0; s < picture->stages; s++)
        put_stage(picture, s, to);
    fputs("0 to 9: forward pass of the group with that last digit; a to j: backward pass of\n"
          "group 0 to 9; . waits for another stage; + other work; blank: waits otherwise\n",
          to);
    if (picture->turns > 1)
        fprintf(to, "turn: the run of layers that a pass is of, the stage's first to last: 0 to %lld%s\n",
                (long long)(picture->turns - 1), picture->turns > DIGITS ? ", by its last digit" : "");
}

/* Returns the turns of each stage. Logs from before there were turns lack them. */
static int64_t turns_of(const struct sw_curves *curves) {
    const double turns = curves->last.value[SW_LOG_PIPELINE_INTERLEAVE];
    return turns > 1.0 && turns <= SW_MOST_VIRTUAL_STAGES ? (int64_t)turns : 1;
}

/* Prints the shares of the steps after `after_step`; without one, those of the last step, the first of its start. */
static void put_shares(const struct sw_curves *curves, int64_t after_step, FILE *to) {
    const double *last = curves->last.value;
    int64_t steps;
    double idle = sw_curves_median(curves, SW_LOG_PIPELINE_IDLE, after_step, &steps);
    double most = sw_curves_median(curves, SW_LOG_PIPELINE_MOST_IDLE, after_step, NULL);
    const long long turns = turns_of(curves);
    char count[SW_COUNT_CHARS], in_turns[32] = "";
    if (turns > 1)
        snprintf(in_turns, sizeof in_turns, " in %lld turns", turns);
    if (steps == 0) {
        idle = last[SW_LOG_PIPELINE_IDLE];
        most = last[SW_LOG_PIPELINE_MOST_IDLE];
    }
    fprintf(to, "a pipeline of %.0f stages%s; a step has %.0f groups of micro-batches\n", last[SW_LOG_PIPELINE],
            in_turns, last[SW_LOG_PIPELINE_GROUPS]);
    fprintf(to,
            "idle for %.1f%% of a step, the mean of all ranks (most: %.1f%%), in %s;\n"
            "%s: %.1f%%, if all only computed\n",
            100.0 * idle, 100.0 * most, sw_format_count(sw_max_i64(steps, 1), "step", count),
            turns > 1 ? "(p-1)/(Vm+p-1) of p stages, V turns and m groups" : "(p-1)/(m+p-1) of p stages and m groups",
            100.0 * last[SW_LOG_PIPELINE_FORMULA]);
}

sw_status sw_stages_describe(const char *folder, const struct sw_curves *curves, int64_t after_step, char **out) {
    const double stages = curves->last.value[SW_LOG_PIPELINE];
    size_t bytes = 0;
    *out = NULL;
    if (curves->steps == 0 || !(stages > 1.0 && stages <= SW_MOST_STAGES))
        return SW_OK;
    struct picture picture = {.stages = (int64_t)stages, .turns = turns_of(curves)};
    FILE *to = open_memstream(out, &bytes);
    if (to == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to describe the pipeline");
    put_shares(curves, after_step, to);
    if (read_picture(folder, &picture))
        put_picture(&picture, to);
    else
        fputs("no picture: stages keep the tenth step of a start, or the first after it that\n"
              "is like those around it\n",
              to);
    release(&picture);
    return sw_text_stream_end(to, out) ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to describe the pipeline");
}
