#include "report/curves.h"

#include "core/confine.h"
#include "core/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Far beyond SW_STEPLOG_LINE_CHARS, for long samples and the lines of later versions. */
enum { LINE_CHARS = 1 << 20 };

static void add(struct sw_curve_value *to, double value) {
    if (!isfinite(value))
        return;
    to->least = to->count > 0 ? fmin(to->least, value) : value;
    to->most = to->count > 0 ? fmax(to->most, value) : value;
    to->sum += value;
    to->count++;
}

static void merge_value(struct sw_curve_value *to, const struct sw_curve_value *from) {
    if (from->count == 0)
        return;
    const struct sw_curve_value before = *to;
    *to = *from;
    if (before.count == 0)
        return;
    to->least = fmin(to->least, before.least);
    to->most = fmax(to->most, before.most);
    to->sum += before.sum;
    to->count += before.count;
}

/* Adds a point to the one before it. */
static void merge_point(struct sw_curve_point *to, const struct sw_curve_point *from) {
    if (from->step > 0) {
        to->step = from->step;
        to->tokens = from->tokens;
        to->seconds = from->seconds;
    }
    to->clipped += from->clipped;
    to->skipped += from->skipped;
    to->empty += from->empty;
    for (int i = 0; i < SW_LOG_COLUMNS; i++)
        merge_value(&to->value[i], &from->value[i]);
}

/* Makes each point twice as wide, so that half of the points are free. */
static void halve(struct sw_curves *curves) {
    const int64_t points = (curves->points + 1) / 2;
    for (int64_t i = 0; i < points; i++) {
        struct sw_curve_point point = curves->point[2 * i];
        if (2 * i + 1 < curves->points)
            merge_point(&point, &curves->point[2 * i + 1]);
        curves->point[i] = point;
    }
    memset(curves->point + points, 0, (size_t)(curves->points - points) * sizeof curves->point[0]);
    curves->points = points;
    curves->width *= 2;
}

static double known(double value) {
    return isfinite(value) ? value : 0;
}

static void add_step(struct sw_curves *curves, const struct sw_log_line *line, double clip) {
    const int64_t step = (int64_t)line->value[SW_LOG_STEP];
    const struct sw_curve_point *before = curves->points > 0 ? &curves->point[curves->points - 1] : NULL;
    const double tokens = before != NULL ? before->tokens : 0, seconds = before != NULL ? before->seconds : 0;
    if (curves->steps == 0)
        curves->first_step = step;
    while ((step - curves->first_step) / curves->width >= curves->most_points)
        halve(curves);
    const int64_t index = (step - curves->first_step) / curves->width;
    struct sw_curve_point *point = &curves->point[index];
    curves->points = index + 1;
    point->step = step;
    point->tokens = tokens + known(line->value[SW_LOG_TOKENS]);
    point->seconds = seconds + known(line->value[SW_LOG_SECONDS]);
    point->clipped += clip > 0 && line->value[SW_LOG_GRAD_NORM] > clip;
    point->skipped += line->value[SW_LOG_SKIPPED] == 1;
    point->empty += line->value[SW_LOG_LOSS_TOKENS] == 0;
    for (int i = SW_LOG_LOSS; i < SW_LOG_VAL_LOSS; i++)
        add(&point->value[i], line->value[i]);

    memcpy(curves->recent[curves->steps % SW_CURVE_RECENT], line->value, sizeof line->value);
    curves->steps++;
    curves->saved += line->value[SW_LOG_SAVED] == 1;
    for (int i = 0; i < SW_LOG_BYTE_COUNT; i++)
        curves->bytes[i] += known(line->value[SW_LOG_BYTES + i]);
    for (int i = 0; i < SW_LOG_LANE_COUNT; i++)
        curves->lane_seconds[i] += known(line->value[SW_LOG_LANES + i]);
    curves->last = *line;
    if (curves->first_time[0] == 0)
        memcpy(curves->first_time, line->time, sizeof line->time);
    if (line->time[0] != 0)
        memcpy(curves->last_time, line->time, sizeof line->time);
}

static void add_evaluation(struct sw_curves *curves, const struct sw_log_line *line) {
    const struct sw_curve_evaluation evaluation = {.step = (int64_t)line->value[SW_LOG_STEP],
                                                   .loss = line->value[SW_LOG_VAL_LOSS]};
    curves->last_evaluation = evaluation;
    if (isfinite(evaluation.loss) && (curves->best.step == 0 || evaluation.loss < curves->best.loss))
        curves->best = evaluation;
    if (curves->evaluations_seen++ % curves->evaluation_stride != 0)
        return;
    if (curves->evaluations == curves->most_points) {
        for (int64_t i = 0; i < curves->most_points / 2; i++)
            curves->evaluation[i] = curves->evaluation[2 * i];
        curves->evaluations = curves->most_points / 2;
        curves->evaluation_stride *= 2;
    }
    curves->evaluation[curves->evaluations++] = evaluation;
}

/* Adds a line. *out_problem: what is wrong with it; NULL: nothing. */
static sw_status add_line(struct sw_curves *curves, const char *text, double clip, const char **out_problem) {
    struct sw_log_line line;
    *out_problem = NULL;
    if (!sw_log_line_parse(text, &line)) {
        *out_problem = "is no line of a log";
        return SW_OK;
    }
    if (line.is_sample)
        return sw_samples_add(&curves->samples, text);
    const bool is_evaluation = !isnan(line.value[SW_LOG_VAL_LOSS]) || !isnan(line.value[SW_LOG_VAL_TOKENS]);
    if (is_evaluation)
        add_evaluation(curves, &line);
    else if (isnan(line.value[SW_LOG_TOKENS]))
        return SW_OK; /* a line of another kind, such as an export */
    else if (curves->steps > 0 && line.value[SW_LOG_STEP] <= curves->last.value[SW_LOG_STEP])
        *out_problem = "has a step that is not after the one before";
    else
        add_step(curves, &line, clip);
    return SW_OK;
}

static sw_status read_lines(FILE *file, const char *path, double clip, struct sw_curves *curves) {
    char *text = malloc(LINE_CHARS);
    sw_status status = text != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    for (int64_t number = 1; status == SW_OK && fgets(text, LINE_CHARS, file) != NULL; number++) {
        const size_t chars = strlen(text);
        const bool is_whole = chars > 0 && text[chars - 1] == '\n';
        if (!is_whole && feof(file))
            break;
        const char *problem = "is too long or has zero bytes";
        if (is_whole)
            status = add_line(curves, text, clip, &problem);
        if (status == SW_OK && problem != NULL)
            status = sw_fail(SW_ERR_CORRUPT, "%s: line %lld %s; remove the lines from there on to see the steps before",
                             path, (long long)number, problem);
    }
    if (status == SW_OK && ferror(file))
        status = sw_fail(SW_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    free(text);
    return status;
}

/* Opens a regular file: a FIFO would keep its reader waiting. */
static sw_status open_log(const char *path, FILE **out) {
    struct stat info;
    const int fd = sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return sw_fail(SW_ERR_ARG, "cannot open %s: %s; the folder of a run that has trained has this file", path,
                       strerror(errno));
    FILE *file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? fdopen(fd, "r") : NULL;
    if (file == NULL) {
        close(fd);
        return sw_fail(SW_ERR_ARG, "%s is not a regular file", path);
    }
    *out = file;
    return SW_OK;
}

sw_status sw_curves_read(const char *folder, const struct sw_curve_spec *spec, struct sw_curves **out) {
    char path[PATH_MAX];
    FILE *file = NULL;
    SW_TRY(sw_path_join(path, sizeof path, folder, "log.jsonl"));
    SW_TRY(open_log(path, &file));
    struct sw_curves *curves = calloc(1, sizeof *curves);
    sw_status status = curves != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    if (status == SW_OK) {
        curves->width = 1;
        curves->most_points = spec->most_points;
        curves->evaluation_stride = 1;
        curves->samples.most_page_bytes = spec->most_sample_bytes;
        status = read_lines(file, path, spec->clip, curves);
    }
    fclose(file);
    if (status == SW_OK)
        *out = curves;
    else
        sw_curves_free(curves);
    return status;
}

void sw_curves_free(struct sw_curves *curves) {
    if (curves == NULL)
        return;
    sw_samples_release(&curves->samples);
    free(curves);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sw_curves_median(const struct sw_curves *curves, int column, int64_t after_step, int64_t *out_steps) {
    double values[SW_CURVE_RECENT];
    size_t count = 0;
    const int64_t steps = curves->steps < SW_CURVE_RECENT ? curves->steps : SW_CURVE_RECENT;
    for (int64_t i = 0; i < steps; i++)
        if (curves->recent[i][SW_LOG_STEP] > (double)after_step && isfinite(curves->recent[i][column]))
            values[count++] = curves->recent[i][column];
    if (out_steps != NULL)
        *out_steps = (int64_t)count;
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof values[0], compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
