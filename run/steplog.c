#include "run/steplog.h"

#include "core/confine.h"
#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/json.h"
#include "core/log.h"
#include "io/queue/name.h"
#include "run/steplog_text.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { REAL_DIGITS = 6, FEWEST_EVALUATIONS = 16, CLIP_STEPS = 100 };
enum line_kind { LINE_STEP, LINE_EVALUATION, LINE_SAMPLE, LINE_EXPORT, LINE_KINDS };

/* The key that only lines of a kind have. */
static const char *const kind_keys[] = {
    [LINE_STEP] = "loss", [LINE_EVALUATION] = "val_loss", [LINE_SAMPLE] = "sample", [LINE_EXPORT] = "export"};

struct sw_steplog {
    char *path;
    int fd;
    int64_t total_steps;
    int64_t last[LINE_KINDS];          /* step of the last line of each kind; 0: none */
    struct sw_eval_record *evaluation; /* [evaluations]: those that the log had */
    int64_t evaluations, evaluations_room;
    bool clipped[CLIP_STEPS]; /* the last steps, by their number modulo its length */
    int64_t steps;            /* steps that the log has, up to CLIP_STEPS of them */
    bool on_terminal;
    bool lost;   /* its path leads to another file, and the user was warned */
    bool broken; /* a line failed and may be there in part, so nothing may be written behind it */
};

/* The parts of a line that an opened log remembers. */
struct line {
    int64_t step;
    enum line_kind kind;
    double val_loss; /* of an evaluation; NAN: not finite */
    bool clipped;
};

/* Numbers beyond double are read as the largest of them (core/json.h). */
static bool is_finite(const json_t *value) {
    return json_is_number(value) && fabs(json_number_value(value)) < DBL_MAX;
}

/* Reads a complete line. Another one has the step -1. */
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
        /* A killed process leaves a line without its end. Other damage is worth a warning. */
        if (line.step < 0 && text[length - 1] == '\n')
            sw_log_warn("%s is damaged from byte %lld on; the lines from there on are removed", log->path,
                        (long long)kept);
        if (line.step < 0 || line.step > last_step)
            break;
        status = note_line(log, &line);
        kept += length;
    }
    /* Without memory for a line there is neither an end nor an error of the file. */
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
    tzset(); /* The C library would otherwise do this, and allocate, when the first line's time is written. */
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
    /* Some file systems report a failed write only when the file is closed. */
    if (log->fd >= 0 && close(log->fd) != 0 && status == SW_OK)
        status = sw_fail(SW_ERR_IO, "%s cannot be written: %s", log->path, strerror(errno));
    free(log->path);
    free(log->evaluation);
    free(log);
    return status;
}

/* Writes lines with their ends in one call, so that readers and crashes see complete lines. */
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

sw_status sw_steplog_evaluation(struct sw_steplog *log, struct sw_eval_record record) {
    char text[SW_STEPLOG_LINE_CHARS];
    if (log == NULL)
        return SW_OK;
    sw_eval_to_text(&record, text);
    sw_log_info("%s", text);
    /* A finished run that is resumed is evaluated again, but only printed: the log has that line. */
    if (record.step == log->last[LINE_EVALUATION])
        return SW_OK;
    log->last[LINE_EVALUATION] = record.step;
    record.time_s = time(NULL);
    return write_line(log, text, sw_eval_to_json(&record, text));
}

/* Appends the line of a sample, and says it to people: as JSON, since a text may have line ends and control characters.
 */
static sw_status put_sample(int64_t step, const struct sw_sample_record *sample, struct sw_text_buffer *out) {
    char time_text[SW_TIME_CHARS];
    json_t *parts = json_pack("{s:s%, s:s%}", "prompt", sample->prompt.data, sample->prompt.bytes, "text",
                              sample->text.data != NULL ? sample->text.data : "", sample->text.bytes);
    json_t *root =
        json_pack("{s:I, s:s, s:O, s:f}", "step", (json_int_t)step, "time", sw_time_to_text(time(NULL), time_text),
                  "sample", parts, "sample_seconds", sample->seconds);
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

sw_status sw_steplog_export(struct sw_steplog *log, int64_t step, double seconds) {
    char text[SW_STEPLOG_LINE_CHARS];
    /* An export that was lost is written again, but the log has its line. */
    if (log == NULL || step == log->last[LINE_EXPORT])
        return SW_OK;
    log->last[LINE_EXPORT] = step;
    return write_line(log, text, sw_export_to_json(step, time(NULL), seconds, text));
}
