#include "run/steplog.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/status.h"
#include "io/queue/file.h"
#include "report/curves.h"
#include "run/folder/run.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double sw_step_mean_loss(const struct sw_step_result *result) {
    return result->loss_tokens > 0 ? result->loss_sum / (double)result->loss_tokens : (double)NAN;
}

struct sw_run_step sw_commit_text_step(const struct sw_step_result *result, double lr) {
    return (struct sw_run_step){.step = result->step,
                                .loss = sw_step_mean_loss(result),
                                .loss_tokens = result->loss_tokens,
                                .grad_norm = result->grad_norm,
                                .lr = lr,
                                .skipped = result->skipped};
}

/* Tells whether this commit's text has everything in the log that may not be on the drive yet. The text has only steps:
 * lines of evaluations (by which --early-stop goes), samples and exports must be on the drive before the commit. */
static bool restores_log(const struct sw_trainer *trainer, const struct sw_run_step recent[SW_RUN_RECENT_STEPS]) {
    const int64_t step = recent[SW_RUN_RECENT_STEPS - 1].step;
    const int64_t lacking = step - trainer->log_flushed + SW_ENGINE_STEPS_AHEAD;
    bool restores = !trainer->log_decides && trainer->log_flushed > 0 && lacking <= SW_RUN_RECENT_STEPS;
    for (int64_t i = 0; restores && i < lacking; i++)
        restores = recent[SW_RUN_RECENT_STEPS - 1 - i].step == step - i;
    return restores;
}

void sw_commit_text_flush_log(struct sw_trainer *trainer, const struct sw_run_step recent[SW_RUN_RECENT_STEPS]) {
    SW_HANDLES_ERRORS();
    char path[SW_RUN_PATH_CHARS];
    if (sw_ranks_rank(trainer->ranks) != 0 || trainer->log_fails || restores_log(trainer, recent))
        return;
    const sw_status status = sw_path_join(path, sizeof path, trainer->folder, "log.jsonl");
    trainer->log_fails = status != SW_OK || sw_steplog_flush(path) != SW_OK;
    trainer->log_flushed = recent[SW_RUN_RECENT_STEPS - 1].step;
    trainer->log_decides = false;
    if (trainer->log_fails)
        sw_log_warn("after a power loss the log may lack steps: %s", sw_error_message(SW_ERR_IO));
}

sw_status sw_commit_text_hand(struct sw_trainer *trainer, const struct sw_step_result *result,
                              const struct sw_run_step recent[SW_RUN_RECENT_STEPS]) {
    char text[SW_STORE_META_BYTES];
    struct sw_run_position position = {.step = result->step,
                                       .applied_steps = result->applied_steps,
                                       .skipped_steps = result->skipped_steps,
                                       .loss_scale = result->next_scale};
    snprintf(position.start, sizeof position.start, "%s", sw_run_last_start(&trainer->run));
    memcpy(position.recent, recent, sizeof position.recent);
    SW_TRY(sw_run_position_write(&position, trainer->run.data_digest, text, sizeof text));
    sw_engine_describe(trainer->engine, result->step, text);
    return SW_OK;
}

sw_status sw_commit_text_begin(struct sw_trainer *trainer) {
    const struct sw_run_step none[SW_RUN_RECENT_STEPS] = {{0}};
    const bool scaled = sw_settings_type(&trainer->run.settings) == SW_F16;
    const struct sw_step_result start = {.next_scale = {.scale = scaled ? SW_FP16_INITIAL_SCALE : 1.0}};
    return sw_commit_text_hand(trainer, &start, none);
}

enum { REAL_DIGITS = 6, FEWEST_EVALUATIONS = 16, CLIP_STEPS = 100 };
enum line_kind { LINE_STEP, LINE_EVALUATION, LINE_SAMPLE, LINE_EXPORT, LINE_EXPERTS, LINE_KINDS };

/* For each kind of line the key that only it has. */
static const char *const kind_keys[] = {[LINE_STEP] = "loss",
                                        [LINE_EVALUATION] = "val_loss",
                                        [LINE_SAMPLE] = "sample",
                                        [LINE_EXPORT] = "export",
                                        [LINE_EXPERTS] = "expert_tokens"};

struct sw_steplog {
    char *path;
    int fd;
    int64_t total_steps;
    int64_t last[LINE_KINDS];          /* step of the last line of each kind; 0: none */
    struct sw_eval_record *evaluation; /* the evaluations that the log had when it was opened */
    int64_t evaluations, evaluations_room;
    bool clipped[CLIP_STEPS]; /* whether each of the last steps was clipped, indexed by step modulo the length */
    int64_t steps;            /* number of steps counted in `clipped`, at most CLIP_STEPS */
    bool on_terminal;
    bool lost;   /* its path leads to another file; the user has been warned */
    bool broken; /* a line failed and may be there in part, so nothing may follow it */
};

/* The parts of a line that an opened log remembers. */
struct line {
    int64_t step;
    enum line_kind kind;
    double val_loss; /* of an evaluation; NAN: not finite */
    bool clipped;
};

/* Numbers beyond the range of double are read as its largest (core/json.h). */
static bool is_finite(const json_t *value) {
    return json_is_number(value) && fabs(json_number_value(value)) < DBL_MAX;
}

/* Reads a complete line. A line that is not complete gets step -1. */
static sw_status read_line(const char *text, size_t length, struct line *out) {
    json_t *root = NULL;
    if (length > 0 && text[length - 1] == '\n')
        SW_TRY(sw_json_try(text, length - 1, &root));
    const json_t *step = json_object_get(root, "step"), *loss = json_object_get(root, "val_loss");
    *out = (struct line){.step = json_is_integer(step) ? json_integer_value(step) : -1,
                         .val_loss = is_finite(loss) ? json_number_value(loss) : (double)NAN,
                         .clipped = json_is_true(json_object_get(root, "clipped"))};
    for (int kind = 0; kind < LINE_KINDS; kind++)
        if (json_object_get(root, kind_keys[kind]) != NULL)
            out->kind = (enum line_kind)kind;
    json_decref(root);
    return SW_OK;
}

static void note_clipped(struct sw_steplog *log, int64_t step, bool clipped) {
    log->clipped[step % CLIP_STEPS] = clipped;
    log->steps += log->steps < CLIP_STEPS;
}

static double clipped_share(const struct sw_steplog *log) {
    int64_t clipped = 0;
    for (int i = 0; i < CLIP_STEPS; i++)
        clipped += log->clipped[i];
    return (double)clipped / (double)log->steps;
}

static sw_status note_evaluation(struct sw_steplog *log, int64_t step, double loss) {
    if (log->evaluations == log->evaluations_room) {
        const int64_t room = log->evaluations_room * 2 + FEWEST_EVALUATIONS;
        struct sw_eval_record *more = realloc(log->evaluation, (size_t)room * sizeof *more);
        if (more == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the evaluations of %s", log->path);
        log->evaluation = more;
        log->evaluations_room = room;
    }
    log->evaluation[log->evaluations++] = (struct sw_eval_record){.step = step, .val_loss = loss};
    return SW_OK;
}

static sw_status note_line(struct sw_steplog *log, const struct line *line) {
    log->last[line->kind] = line->step;
    if (line->kind == LINE_STEP && line->step > 0)
        note_clipped(log, line->step, line->clipped);
    return line->kind == LINE_EVALUATION ? note_evaluation(log, line->step, line->val_loss) : SW_OK;
}

/* Returns the length of the leading lines that are complete and not after last_step. */
static sw_status measure_kept(FILE *file, struct sw_steplog *log, int64_t last_step, off_t *out_bytes) {
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length = 0;
    off_t kept = 0;
    sw_status status = SW_OK;
    while (status == SW_OK && (length = getline(&text, &capacity, file)) > 0) {
        struct line line;
        status = read_line(text, (size_t)length, &line);
        if (status != SW_OK)
            break;
        /* A killed process leaves a line without its end. Only other damage is worth a warning. */
        if (line.step < 0 && text[length - 1] == '\n')
            sw_log_warn("%s is damaged from byte %lld on; the lines from there on are removed", log->path,
                        (long long)kept);
        if (line.step < 0 || line.step > last_step)
            break;
        status = note_line(log, &line);
        kept += length;
    }
    /* Getline without memory reports neither the end nor an error of the file. */
    const bool failed = length < 0 && feof(file) == 0;
    free(text);
    if (failed)
        return sw_fail(SW_ERR_IO, "%s cannot be read: %s", log->path, strerror(errno));
    *out_bytes = kept;
    return status;
}

static sw_status remove_beyond(struct sw_steplog *log, int64_t last_step) {
    off_t kept = 0;
    if (last_step > 0) {
        const int fd = sw_path_open(log->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
        FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
        if (file == NULL && fd >= 0)
            close(fd);
        if (file == NULL)
            return sw_fail(SW_ERR_IO, "%s cannot be read: %s", log->path, strerror(errno));
        const sw_status status = measure_kept(file, log, last_step, &kept);
        fclose(file);
        if (status != SW_OK)
            return status;
    }
    if (ftruncate(log->fd, kept) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be cut after the last committed step: %s", log->path, strerror(errno));
    return SW_OK;
}

/* Opens the file. Refuses links, through which lines would be cut and added outside the run's folder. */
static sw_status open_own(struct sw_steplog *log) {
    struct stat info;
    log->fd = sw_path_open(log->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (log->fd < 0)
        return sw_fail(SW_ERR_IO, "%s cannot be opened for writing: %s", log->path, strerror(errno));
    if (fstat(log->fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 1)
        return sw_fail(SW_ERR_ARG, "%s is a link or has a second name; put a copy of the file in its place", log->path);
    if (fchmod(log->fd, 0600) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot get the mode 0600: %s", log->path, strerror(errno));
    return SW_OK;
}

sw_status sw_steplog_open(const char *path, int64_t last_step, int64_t total_steps, struct sw_steplog **out) {
    struct sw_steplog *log = calloc(1, sizeof *log);
    if (log == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", path);
    log->fd = -1;
    tzset(); /* otherwise the C library does this, and allocates, when it writes the first line's time */
    log->total_steps = total_steps;
    log->on_terminal = sw_log_takes_escapes(STDERR_FILENO);
    log->path = strdup(path);
    sw_status status = SW_OK;
    if (log->path == NULL) {
        status = sw_fail(SW_ERR_NOMEM, "no memory to open %s", path);
        goto failed;
    }
    SW_TRY_GOTO(open_own(log), failed);
    SW_TRY_GOTO(sw_file_flush_folder_of(path), failed);
    SW_TRY_GOTO(remove_beyond(log, last_step), failed);
    *out = log;
    return SW_OK;
failed:
    (void)sw_steplog_close(log);
    return status;
}

static sw_status flush(int fd, const char *path) {
    return fdatasync(fd) == 0 ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be flushed: %s", path, strerror(errno));
}

sw_status sw_steplog_flush(const char *path) {
    const int fd = sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return errno == ENOENT ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be opened: %s", path, strerror(errno));
    const sw_status status = flush(fd, path);
    close(fd);
    return status;
}

void sw_steplog_keep_name(struct sw_steplog *log) {
    SW_HANDLES_ERRORS();
    if (log == NULL || log->lost)
        return;
    const sw_status status = sw_name_put_back(log->fd, log->path);
    log->lost = status != SW_OK;
    if (log->lost)
        sw_log_warn("later lines of the log are lost: %s", sw_error_message(status));
}

sw_status sw_steplog_close(struct sw_steplog *log) {
    if (log == NULL)
        return SW_OK;
    sw_log_end_progress();
    sw_status status = SW_OK;
    if (log->fd >= 0)
        status = flush(log->fd, log->path);
    /* Some file systems report a failed write only on close. */
    if (log->fd >= 0 && close(log->fd) != 0 && status == SW_OK)
        status = sw_fail(SW_ERR_IO, "%s cannot be written: %s", log->path, strerror(errno));
    free(log->path);
    free(log->evaluation);
    free(log);
    return status;
}

/* Writes complete lines in one call, so that neither a reader nor a crash sees part of one. */
static sw_status write_lines(struct sw_steplog *log, const char *text, size_t bytes) {
    if (log->broken)
        return SW_OK;
    log->broken = true;
    SW_TRY(sw_file_write_all(log->fd, log->path, text, bytes));
    log->broken = false;
    return SW_OK;
}

static sw_status write_line(struct sw_steplog *log, char text[SW_STEPLOG_LINE_CHARS], int length) {
    text[length] = '\n';
    return write_lines(log, text, (size_t)length + 1);
}

sw_status sw_steplog_step(struct sw_steplog *log, struct sw_step_record record) {
    char text[SW_STEPLOG_LINE_CHARS];
    if (log == NULL)
        return SW_OK;
    sw_step_to_text(&record, log->total_steps, text);
    if (log->on_terminal)
        sw_log_progress(text);
    else
        sw_log_info("%s", text);
    record.time_s = time(NULL);
    return sw_steplog_restore(log, record);
}

sw_status sw_steplog_restore(struct sw_steplog *log, struct sw_step_record record) {
    char text[SW_STEPLOG_LINE_CHARS];
    if (log == NULL)
        return SW_OK;
    log->last[LINE_STEP] = record.step;
    note_clipped(log, record.step, record.clipped);
    record.clipped_share = clipped_share(log);
    return write_line(log, text, sw_step_to_json(&record, text));
}

int64_t sw_steplog_last_step(const struct sw_steplog *log) {
    return log != NULL ? log->last[LINE_STEP] : INT64_MAX;
}

int64_t sw_steplog_last_evaluation(const struct sw_steplog *log) {
    return log != NULL ? log->last[LINE_EVALUATION] : 0;
}

int64_t sw_steplog_last_sample(const struct sw_steplog *log) {
    return log != NULL ? log->last[LINE_SAMPLE] : 0;
}

const struct sw_eval_record *sw_steplog_evaluations(const struct sw_steplog *log, int64_t *out_count) {
    *out_count = log != NULL ? log->evaluations : 0;
    return log != NULL ? log->evaluation : NULL;
}

static int eval_to_json(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);

sw_status sw_steplog_evaluation(struct sw_steplog *log, struct sw_eval_record record) {
    char text[SW_STEPLOG_LINE_CHARS];
    if (log == NULL)
        return SW_OK;
    sw_eval_to_text(&record, text);
    sw_log_info("%s", text);
    /* A finished run that is resumed is evaluated again, but only printed: the log has the line. */
    if (record.step == log->last[LINE_EVALUATION])
        return SW_OK;
    log->last[LINE_EVALUATION] = record.step;
    record.time_s = time(NULL);
    return write_line(log, text, eval_to_json(&record, text));
}

static const char *time_to_text(int64_t time_s, char buffer[SW_TIME_CHARS]);

/* Appends the line of a sample, and prints it as JSON, since a text may have line ends and control characters. */
static sw_status put_sample(int64_t step, const struct sw_sample_record *sample, struct sw_text_buffer *out) {
    char time_text[SW_TIME_CHARS];
    json_t *parts = json_pack("{s:s%, s:s%}", "prompt", sample->prompt.data, sample->prompt.bytes, "text",
                              sample->text.data != NULL ? sample->text.data : "", sample->text.bytes);
    json_t *root = json_pack("{s:I, s:s, s:O, s:f}", "step", (json_int_t)step, "time",
                             time_to_text(time(NULL), time_text), "sample", parts, "sample_seconds", sample->seconds);
    char *line = sw_json_text(root, JSON_COMPACT | JSON_REAL_PRECISION(REAL_DIGITS));
    char *said = sw_json_text(parts, JSON_COMPACT);
    sw_status status = line == NULL || said == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for the line of a sample")
                                                    : sw_text_buffer_append(out, (struct sw_text){line, strlen(line)});
    if (status == SW_OK)
        status = sw_text_buffer_append(out, (struct sw_text){"\n", 1});
    if (status == SW_OK)
        sw_log_info("step %lld  sample in %.3g s: %s", (long long)step, sample->seconds, said);
    free(line);
    free(said);
    json_decref(root);
    json_decref(parts);
    return status;
}

sw_status sw_steplog_samples(struct sw_steplog *log, int64_t step, const struct sw_sample_record *samples, int count) {
    struct sw_text_buffer lines = {0};
    sw_status status = SW_OK;
    if (log == NULL)
        return SW_OK;
    for (int i = 0; status == SW_OK && i < count; i++)
        status = put_sample(step, &samples[i], &lines);
    if (status == SW_OK)
        status = write_lines(log, lines.data, lines.bytes);
    log->last[LINE_SAMPLE] = step;
    free(lines.data);
    return status;
}

/* Appends the line of a layer. */
static sw_status put_expert_tokens(int64_t step, int64_t steps, int64_t layer, int64_t experts, const double *tokens,
                                   struct sw_text_buffer *out) {
    char time_text[SW_TIME_CHARS], part[160];
    int chars = snprintf(part, sizeof part,
                         "{\"step\":%lld,\"time\":\"%s\",\"layer\":%lld,\"expert_steps\":%lld,\"expert_tokens\":[",
                         (long long)step, time_to_text(time(NULL), time_text), (long long)layer, (long long)steps);
    SW_TRY(sw_text_buffer_append(out, (struct sw_text){part, (size_t)chars}));
    for (int64_t e = 0; e < experts; e++) {
        chars = snprintf(part, sizeof part, "%s%.0f", e > 0 ? "," : "", tokens[e]);
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){part, (size_t)chars}));
    }
    return sw_text_buffer_append(out, (struct sw_text){"]}\n", 3});
}

sw_status sw_steplog_expert_tokens(struct sw_steplog *log, int64_t step, int64_t steps, int64_t layers, int64_t experts,
                                   const double *tokens) {
    struct sw_text_buffer lines = {0};
    sw_status status = SW_OK;
    if (log == NULL)
        return SW_OK;
    for (int64_t layer = 0; status == SW_OK && layer < layers; layer++)
        status = put_expert_tokens(step, steps, layer, experts, tokens + layer * experts, &lines);
    if (status == SW_OK)
        status = write_lines(log, lines.data, lines.bytes);
    log->last[LINE_EXPERTS] = step;
    free(lines.data);
    return status;
}

static int export_to_json(int64_t step, int64_t time_s, double seconds, char buffer[SW_STEPLOG_LINE_CHARS]);

sw_status sw_steplog_export(struct sw_steplog *log, int64_t step, double seconds) {
    char text[SW_STEPLOG_LINE_CHARS];
    /* A lost export is written again, but the log has its line. */
    if (log == NULL || step == log->last[LINE_EXPORT])
        return SW_OK;
    log->last[LINE_EXPORT] = step;
    return write_line(log, text, export_to_json(step, time(NULL), seconds, text));
}

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum field_kind {
    FIELD_INT,
    FIELD_COUNT, /* negative: null */
    FIELD_REAL,
    FIELD_FLAG
};
#define ONE(kind_, name) {FIELD_##kind_, offsetof(struct sw_step_record, name)},
#define OF(group, kind_, name) {FIELD_##kind_, offsetof(struct sw_step_record, group.name)},
/* Where a record has the fields of a step's line. */
static const struct {
    enum field_kind kind;
    size_t offset;
} fields[SW_LOG_STEP_COLUMNS] = {SW_LOG_STEP_FIELDS(ONE, OF)};

/* A number takes at most 24 characters and a name, with its punctuation, at most 24 more. OTHER_FIELDS: the time, what
 * was clipped, and its share. */
enum { FIELD_MAX_CHARS = 48, OTHER_FIELDS = 3, GROUPS = 6 };
static_assert((SW_LOG_STEP_COLUMNS + OTHER_FIELDS + GROUPS) * FIELD_MAX_CHARS < SW_STEPLOG_LINE_CHARS,
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

/* Writes the fewest digits that read back as the same double: tests compare logs bit by bit, and people read them. */
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

static const char *time_to_text(int64_t time_s, char buffer[SW_TIME_CHARS]) {
    const time_t seconds = (time_t)time_s;
    struct tm parts;
    const bool known = time_s != 0 && gmtime_r(&seconds, &parts) != NULL &&
                       strftime(buffer, SW_TIME_CHARS, "%Y-%m-%dT%H:%M:%SZ", &parts) != 0;
    return known ? buffer : NULL;
}

static void put_time(struct writer *writer, int64_t time_s) {
    char text[SW_TIME_CHARS];
    put_name(writer, "time");
    if (time_to_text(time_s, text) != NULL)
        put(writer, "\"%s\"", text);
    else
        put(writer, "null");
}

static void put_flag(struct writer *writer, const char *name, bool value) {
    put_name(writer, name);
    put(writer, value ? "true" : "false");
}

static const void *at_column(const struct sw_step_record *record, int column) {
    return (const char *)record + fields[column].offset;
}

static void put_column(struct writer *writer, const struct sw_step_record *record, int column) {
    const void *at = at_column(record, column);
    const char *name = sw_log_fields[column].name;
    switch (fields[column].kind) {
    case FIELD_REAL: put_real(writer, name, *(const double *)at); break;
    case FIELD_FLAG: put_flag(writer, name, *(const bool *)at); break;
    default:
        if (fields[column].kind == FIELD_COUNT && *(const int64_t *)at < 0)
            put_real(writer, name, NAN);
        else
            put_int(writer, name, *(const int64_t *)at);
    }
}

/* Tells whether the line has a column: those of a pipeline, of experts and of pairs are there only where the training
 * has them. */
static bool has_column(const struct sw_step_record *record, int column) {
    if (column >= SW_LOG_REWARDS)
        return record->rewards.pairs > 0;
    if (column >= SW_LOG_EXPERTS)
        return record->experts.load > 0.0;
    return column < SW_LOG_PIPELINE || record->pipeline.stages > 0;
}

int sw_step_to_json(const struct sw_step_record *record, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    const char *group = "";
    put(&writer, "{");
    for (int column = 0; column < SW_LOG_STEP_COLUMNS; column++) {
        if (!has_column(record, column))
            continue;
        if (strcmp(sw_log_fields[column].group, group) != 0) {
            if (group[0] != '\0')
                put(&writer, "}");
            group = sw_log_fields[column].group;
            put_name(&writer, group);
            put(&writer, "{");
        }
        put_column(&writer, record, column);
        if (column == SW_LOG_STEP)
            put_time(&writer, record->time_s);
        if (column == SW_LOG_GRAD_NORM) {
            put_flag(&writer, "clipped", record->clipped);
            put_real(&writer, "clipped_share", record->clipped_share);
        }
    }
    put(&writer, "}}");
    return writer.used;
}

static int eval_to_json(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    put(&writer, "{");
    put_int(&writer, "step", record->step);
    put_time(&writer, record->time_s);
    put_real(&writer, "val_loss", record->val_loss);
    put_int(&writer, "val_tokens", record->val_tokens);
    put_real(&writer, "val_seconds", record->seconds);
    if (record->rewards.pairs > 0) {
        put_int(&writer, "val_pairs", record->rewards.pairs);
        put_real(&writer, "val_chosen", record->rewards.chosen);
        put_real(&writer, "val_rejected", record->rewards.rejected);
        put_real(&writer, "val_margin", record->rewards.margin);
        put_real(&writer, "val_accuracy", record->rewards.accuracy);
    }
    put(&writer, "}");
    return writer.used;
}

static int export_to_json(int64_t step, int64_t time_s, double seconds, char buffer[SW_STEPLOG_LINE_CHARS]) {
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
 * the one before, and its lanes may have begun earlier, so a share may exceed 100% and is cut to that. */
static void put_lanes(struct writer *writer, const struct sw_step_record *record) {
    for (int column = SW_LOG_LANES; column < SW_LOG_LANES + SW_LOG_LANE_COUNT; column++) {
        const double share = *(const double *)at_column(record, column) / record->seconds;
        if (isfinite(share) && share >= 0.005)
            put(writer, "  %s %.0f%%", sw_log_fields[column].name, fmin(100.0 * share, 100.0));
    }
}

/* Writes the time left in a single unit: a line of a terminal has no room for two. */
static void put_left(struct writer *writer, double seconds) {
    static const struct {
        const char *name;
        double seconds;
        int digits; /* digits after the point */
    } units[] = {{"s", 1, 0}, {"min", 60, 0}, {"h", 3600, 1}, {"days", 86400, 1}};
    size_t unit = 0;
    /* Uses the largest unit of which there are at least two. */
    while (unit + 1 < COUNT(units) && seconds >= 2 * units[unit + 1].seconds)
        unit++;
    put(writer, "  left %.*f %s", units[unit].digits, seconds / units[unit].seconds, units[unit].name);
}

int sw_step_to_text(const struct sw_step_record *record, int64_t total_steps, char buffer[SW_STEPLOG_LINE_CHARS]) {
    struct writer writer = {.text = buffer};
    /* The fields that people look for come first, within 80 columns: a narrow terminal cuts off the rest. */
    put(&writer, "step %" PRId64 "/%" PRId64 "  loss ", record->step, total_steps);
    if (record->loss_tokens == 0)
        put(&writer, "-");
    else
        put(&writer, "%.4f", record->loss);
    if (record->rewards.pairs > 0)
        put(&writer, "  margin %.3g  right %.0f%%", record->rewards.margin, 100.0 * record->rewards.accuracy);
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
    if (record->rewards.pairs > 0)
        put(&writer, "step %" PRId64 "  validation loss %.4f  margin %.3g  right %.0f%% of %" PRId64 " pairs in %.3g s",
            record->step, record->val_loss, record->rewards.margin, 100.0 * record->rewards.accuracy,
            record->rewards.pairs, record->seconds);
    else if (record->val_tokens == 0)
        put(&writer, "step %" PRId64 "  validation loss - (no token has a loss) in %.3g s", record->step,
            record->seconds);
    else
        put(&writer, "step %" PRId64 "  validation loss %.4f (%.4f bits a token, %" PRId64 " tokens) in %.3g s",
            record->step, record->val_loss, record->val_loss / M_LN2, record->val_tokens, record->seconds);
    return writer.used;
}
