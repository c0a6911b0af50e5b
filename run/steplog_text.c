#include "run/steplog_text.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

struct member {
    const char *name;
    size_t offset;
};
#define STEP_MEMBER(name_, member_)                                                                                    \
    { name_, offsetof(struct sw_step_record, member_) }

static const struct member lane_members[] = {
    STEP_MEMBER("compute", lanes.compute), STEP_MEMBER("upload", lanes.upload), STEP_MEMBER("download", lanes.download),
    STEP_MEMBER("read", lanes.read),       STEP_MEMBER("write", lanes.write),   STEP_MEMBER("update", lanes.update),
    STEP_MEMBER("comm", lanes.comm),
};
static const struct member byte_members[] = {
    STEP_MEMBER("nvme_read", bytes.nvme_read), STEP_MEMBER("nvme_write", bytes.nvme_write),
    STEP_MEMBER("upload", bytes.upload),       STEP_MEMBER("download", bytes.download),
    STEP_MEMBER("comm", bytes.comm),
};
static const struct member peak_members[] = {
    STEP_MEMBER("device", peak.device),
    STEP_MEMBER("host", peak.host),
    STEP_MEMBER("nvme", peak.nvme),
};

/* A number takes at most 24 characters and a name, with its punctuation, at most 24 more. */
enum { FIELD_MAX_CHARS = 48, SCALAR_FIELDS = 18, GROUPS = 3 };
static_assert((SCALAR_FIELDS + GROUPS + COUNT(lane_members) + COUNT(byte_members) + COUNT(peak_members)) *
                      FIELD_MAX_CHARS <
                  SW_STEPLOG_LINE_CHARS,
              "a line must fit in its buffer");

struct writer {
    char *text;
    int used;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *writer, const char *format, ...) {
    const int room = SW_STEPLOG_LINE_CHARS - writer->used;
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(writer->text + writer->used, (size_t)room, format, args);
    va_end(args);
    assert(length >= 0 && length < room);
    writer->used += length;
}

/* Begins a field. Commas go between the fields of an object, not before the first. */
static void put_name(struct writer *writer, const char *name) {
    const bool is_first = writer->used == 0 || writer->text[writer->used - 1] == '{';
    put(writer, "%s\"%s\":", is_first ? "" : ",", name);
}

static void put_int(struct writer *writer, const char *name, int64_t value) {
    put_name(writer, name);
    put(writer, "%" PRId64, value);
}

/* Writes the fewest digits that give the same double back: tests compare logs bit by bit, and people read them. */
static void put_real(struct writer *writer, const char *name, double value) {
    put_name(writer, name);
    if (!isfinite(value)) {
        put(writer, "null");
        return;
    }
    char text[32];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    put(writer, "%s", text);
}

const char *sw_time_to_text(int64_t time_s, char buffer[SW_TIME_CHARS]) {
    const time_t seconds = (time_t)time_s;
    struct tm parts;
    const bool known = time_s != 0 && gmtime_r(&seconds, &parts) != NULL &&
                       strftime(buffer, SW_TIME_CHARS, "%Y-%m-%dT%H:%M:%SZ", &parts) != 0;
    return known ? buffer : NULL;
}

static void put_time(struct writer *writer, int64_t time_s) {
    char text[SW_TIME_CHARS];
    put_name(writer, "time");
    if (sw_time_to_text(time_s, text) != NULL)
        put(writer, "\"%s\"", text);
    else
        put(writer, "null");
}

static double real_at(const struct sw_step_record *record, size_t offset) {
    return *(const double *)(const void *)((const char *)record + offset);
}

static int64_t int_at(const struct sw_step_record *record, size_t offset) {
    return *(const int64_t *)(const void *)((const char *)record + offset);
}

static void put_int_group(struct writer *writer, const char *name, const struct sw_step_record *record,
                          const struct member *members, size_t count) {
    put_name(writer, name);
    put(writer, "{");
    for (size_t i = 0; i < count; i++)
        put_int(writer, members[i].name, int_at(record, members[i].offset));
    put(writer, "}");
}

int sw_step_to_json(const struct sw_step_record *record, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    put(&writer, "{");
    put_int(&writer, "step", record->step);
    put_time(&writer, record->time_s);
    put_real(&writer, "loss", record->loss);
    if (record->loss_tokens >= 0)
        put_int(&writer, "loss_tokens", record->loss_tokens);
    else
        put_real(&writer, "loss_tokens", NAN);
    put_real(&writer, "grad_norm", record->grad_norm);
    put_name(&writer, "clipped");
    put(&writer, record->clipped ? "true" : "false");
    put_real(&writer, "clipped_share", record->clipped_share);
    put_real(&writer, "lr", record->lr);
    put_int(&writer, "tokens", record->tokens);
    put_real(&writer, "seconds", record->seconds);
    put_real(&writer, "tokens_per_second", record->tokens_per_second);
    put_real(&writer, "mfu", record->mfu);
    put_name(&writer, "skipped");
    put(&writer, record->skipped ? "true" : "false");
    put_name(&writer, "saved");
    put(&writer, record->saved ? "true" : "false");
    put_int(&writer, "ranks", record->ranks);
    put_int(&writer, "zero", record->zero);
    put_real(&writer, "eta_seconds", record->eta_seconds);
    put_name(&writer, "lanes");
    put(&writer, "{");
    for (size_t i = 0; i < COUNT(lane_members); i++)
        put_real(&writer, lane_members[i].name, real_at(record, lane_members[i].offset));
    put(&writer, "}");
    put_int_group(&writer, "bytes", record, byte_members, COUNT(byte_members));
    put_int_group(&writer, "peak", record, peak_members, COUNT(peak_members));
    put(&writer, "}");
    return writer.used;
}

int sw_eval_to_json(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    put(&writer, "{");
    put_int(&writer, "step", record->step);
    put_time(&writer, record->time_s);
    put_real(&writer, "val_loss", record->val_loss);
    put_int(&writer, "val_tokens", record->val_tokens);
    put_real(&writer, "val_seconds", record->seconds);
    put(&writer, "}");
    return writer.used;
}

int sw_export_to_json(int64_t step, int64_t time_s, double seconds, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    put(&writer, "{");
    put_int(&writer, "step", step);
    put_time(&writer, time_s);
    put_name(&writer, "export");
    put(&writer, "\"exports/step-%" PRId64 "\"", step);
    put_real(&writer, "export_seconds", seconds);
    put(&writer, "}");
    return writer.used;
}

/* Writes the share of the step for which each lane was busy; idle lanes are left out. A step is timed from the end of
 * the one before, and its lanes may have begun earlier, so a share may exceed 100% and is cut to it. */
static void put_lanes(struct writer *writer, const struct sw_step_record *record) {
    for (size_t i = 0; i < COUNT(lane_members); i++) {
        const double share = real_at(record, lane_members[i].offset) / record->seconds;
        if (isfinite(share) && share >= 0.005)
            put(writer, "  %s %.0f%%", lane_members[i].name, fmin(100.0 * share, 100.0));
    }
}

/* Writes the time left in one unit, as a line of a terminal has no room for two. */
static void put_left(struct writer *writer, double seconds) {
    static const struct {
        const char *name;
        double seconds;
        int digits; /* behind the point */
    } units[] = {{"s", 1, 0}, {"min", 60, 0}, {"h", 3600, 1}, {"days", 86400, 1}};
    size_t unit = 0;
    /* A unit serves until there are two of the next. */
    while (unit + 1 < COUNT(units) && seconds >= 2 * units[unit + 1].seconds)
        unit++;
    put(writer, "  left %.*f %s", units[unit].digits, seconds / units[unit].seconds, units[unit].name);
}

int sw_step_to_text(const struct sw_step_record *record, int64_t total_steps, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    /* The fields that people look for come first, within 80 columns: a narrow terminal cuts the rest. */
    put(&writer, "step %" PRId64 "/%" PRId64 "  loss ", record->step, total_steps);
    if (record->loss_tokens == 0)
        put(&writer, "-");
    else
        put(&writer, "%.4f", record->loss);
    if (record->skipped)
        put(&writer, "  skipped: gradients not finite");
    put(&writer, "  norm %.3g  lr %.2e", record->grad_norm, record->lr);
    if (isfinite(record->tokens_per_second))
        put(&writer, "  %.0f tokens/s", record->tokens_per_second);
    if (isfinite(record->eta_seconds))
        put_left(&writer, record->eta_seconds);
    if (record->carries_save)
        put(&writer, "  with a save");
    put_lanes(&writer, record);
    if (isfinite(record->mfu))
        put(&writer, "  mfu %.0f%%", fmin(100.0 * record->mfu, 999.0));
    return writer.used;
}

int sw_eval_to_text(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    if (record->val_tokens == 0)
        put(&writer, "step %" PRId64 "  validation loss - (no token has a loss) in %.3g s", record->step,
            record->seconds);
    else
        put(&writer, "step %" PRId64 "  validation loss %.4f (%.4f bits a token, %" PRId64 " tokens) in %.3g s",
            record->step, record->val_loss, record->val_loss / M_LN2, record->val_tokens, record->seconds);
    return writer.used;
}
