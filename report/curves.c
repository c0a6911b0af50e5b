/* Reads a run's log into curves of bounded length.
 *
 * The log of a long run has a gigabyte, and a general JSON reader, which allocates every value, takes several times as
 * long. This reader knows that lines have their members in one order, and skips what it does not need.
 *
 * The number of points is fixed. When they are full, each point becomes twice as wide, so one pass over the log
 * suffices whatever its length, and minima and maxima survive, which sampling every n-th line would lose. */
#include "report/curves.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/json.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Parses one line of the log. */

enum { MOST_DEPTH = 8 };
/* A larger number is damaged and counts as missing: sums over a log would leave the range of double. */
static const double most_value = 1e100;

#define ONE(kind, name) {"", #name},
#define OF(group, kind, name) {#group, #name},
const struct sw_log_column sw_log_fields[SW_LOG_COLUMNS] = {SW_LOG_STEP_FIELDS(ONE, OF) ONE(REAL, val_loss)
                                                                ONE(INT, val_tokens)};

/* A text in double quotes. Its escapes stay as they are, since none of our names has one. */
struct word {
    const char *text;
    size_t chars;
};

struct parser {
    const char *at;
    struct sw_log_line *line;
    int next; /* the column after the last one found: lines have their members in this order */
};

static bool is_word(struct word word, const char *text) {
    return strncmp(word.text, text, word.chars) == 0 && text[word.chars] == 0;
}

static int find_column(struct parser *p, struct word group, struct word name) {
    for (int tried = 0; tried < SW_LOG_COLUMNS; tried++) {
        const int column = (p->next + tried) % SW_LOG_COLUMNS;
        if (is_word(name, sw_log_fields[column].name) && is_word(group, sw_log_fields[column].group)) {
            p->next = column + 1;
            return column;
        }
    }
    return -1;
}

static void skip_space(struct parser *p) {
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\r' || *p->at == '\n')
        p->at++;
}

static bool take(struct parser *p, char wanted) {
    skip_space(p);
    if (*p->at != wanted)
        return false;
    p->at++;
    return true;
}

static bool parse_word(struct parser *p, struct word *out) {
    if (!take(p, '"'))
        return false;
    out->text = p->at;
    while (*p->at != '"') {
        if ((unsigned char)*p->at < ' ' || (*p->at == '\\' && *++p->at == 0))
            return false;
        p->at++;
    }
    out->chars = (size_t)(p->at - out->text);
    p->at++;
    return true;
}

/* Reads a number, true, false or null. A number that is too large counts as null. */
static bool parse_scalar(struct parser *p, double *out) {
    static const struct {
        const char *text;
        double value;
    } names[] = {{"true", 1}, {"false", 0}, {"null", NAN}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t chars = strlen(names[i].text);
        if (strncmp(p->at, names[i].text, chars) == 0) {
            *out = names[i].value;
            p->at += chars;
            return true;
        }
    }
    /* Strtod would also accept hexadecimal digits, spaces, inf and nan. */
    const char *digits = p->at + (*p->at == '-');
    if (!isdigit((unsigned char)*digits) || (digits[0] == '0' && tolower((unsigned char)digits[1]) == 'x'))
        return false;
    char *end = NULL;
    *out = strtod(p->at, &end);
    if (fabs(*out) > most_value)
        *out = NAN;
    p->at = end;
    return true;
}

/* None of our members is in a group of this name. */
static const struct word other_group = {.text = "[]", .chars = 2};

static bool parse_value(struct parser *p, struct word group, struct word name, int depth);

static bool parse_members(struct parser *p, struct word group, int depth) {
    if (take(p, '}'))
        return true;
    do {
        struct word name;
        if (!parse_word(p, &name) || !take(p, ':') || !parse_value(p, group, name, depth))
            return false;
    } while (take(p, ','));
    return take(p, '}');
}

static bool parse_items(struct parser *p, int depth) {
    if (take(p, ']'))
        return true;
    do {
        if (!parse_value(p, other_group, other_group, depth))
            return false;
    } while (take(p, ','));
    return take(p, ']');
}

static bool parse_text(struct parser *p, bool is_time) {
    struct word text;
    if (!parse_word(p, &text))
        return false;
    if (is_time && text.chars < SW_LOG_TIME_CHARS) {
        memcpy(p->line->time, text.text, text.chars);
        p->line->time[text.chars] = 0;
    }
    return true;
}

/* Reads the value of the member `name` of `group`, whose text is empty for the line itself. */
static bool parse_value(struct parser *p, struct word group, struct word name, int depth) {
    skip_space(p);
    const int column = find_column(p, group, name);
    if (*p->at == '{' || *p->at == '[' || *p->at == '"') {
        if (column >= 0 || depth == MOST_DEPTH)
            return false;
        if (*p->at == '"')
            return parse_text(p, depth == 1 && is_word(name, "time"));
        const bool is_object = *p->at++ == '{';
        p->line->is_sample |= depth == 1 && is_word(name, "sample");
        p->line->is_load |= depth == 1 && is_word(name, "expert_tokens");
        if (!is_object)
            return parse_items(p, depth + 1);
        /* The group without a name is the line itself. */
        return parse_members(p, depth == 1 && name.chars > 0 ? name : other_group, depth + 1);
    }
    double value;
    if (!parse_scalar(p, &value))
        return false;
    if (column >= 0)
        p->line->value[column] = value;
    return true;
}

bool sw_log_line_parse(const char *text, struct sw_log_line *out) {
    struct parser p = {.at = text, .line = out};
    const struct word none = {.text = "", .chars = 0};
    for (int i = 0; i < SW_LOG_COLUMNS; i++)
        out->value[i] = NAN;
    out->time[0] = 0;
    out->is_sample = out->is_load = false;
    if (!take(&p, '{') || !parse_members(&p, none, 1))
        return false;
    skip_space(&p);
    return *p.at == 0 && out->value[SW_LOG_STEP] >= 1 && out->value[SW_LOG_STEP] <= 1e15 &&
           floor(out->value[SW_LOG_STEP]) == out->value[SW_LOG_STEP];
}

/* Returns the text's beginning as a new string, which the caller owns. */
static json_t *cut(const json_t *text) {
    const char *value = json_string_value(text);
    size_t bytes = json_string_length(text);
    if (bytes > SW_SAMPLE_CHARS) {
        for (bytes = SW_SAMPLE_CHARS; bytes > 0 && ((unsigned char)value[bytes] & 0xc0) == 0x80;)
            bytes--;
        char shown[SW_SAMPLE_CHARS + sizeof " [...]"];
        memcpy(shown, value, bytes);
        memcpy(shown + bytes, " [...]", sizeof " [...]");
        return json_stringn(shown, bytes + strlen(" [...]"));
    }
    return json_stringn(value, bytes);
}

/* Returns the bytes of a string in the page, where angle brackets and ampersands take six characters each. */
static int64_t page_bytes_of(const json_t *text) {
    char *written = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    int64_t bytes = 0;
    for (const char *at = written; at != NULL && *at != '\0'; at++)
        bytes += strchr("<>&", *at) != NULL ? 6 : 1;
    free(written);
    return bytes;
}

static void release(struct sw_sample *sample) {
    json_decref(sample->prompt);
    json_decref(sample->text);
}

/* Drops the steps between those that are kept. */
static void thin(struct sw_samples *samples) {
    int64_t kept = 0;
    for (int64_t i = 0; i < samples->count; i++) {
        struct sw_sample *sample = &samples->sample[i];
        if (sample->number % samples->stride == 0 || sample->number == samples->newest)
            samples->sample[kept++] = *sample;
        else
            release(sample);
    }
    samples->count = kept;
}

static bool is_too_much(const struct sw_samples *samples) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < samples->count; i++)
        bytes += samples->sample[i].page_bytes;
    return samples->count > SW_SAMPLES || bytes > samples->most_page_bytes;
}

/* Begins a step, if the newest sample is from another one. */
static void begin_step(struct sw_samples *samples, int64_t step) {
    if (samples->count > 0 && samples->sample[samples->count - 1].step == step)
        return;
    samples->newest = samples->stride > 0 ? samples->newest + 1 : 0;
    samples->stride = samples->stride > 0 ? samples->stride : 1;
    thin(samples);
}

static int64_t of_newest_step(const struct sw_samples *samples) {
    int64_t count = 0;
    while (count < samples->count && samples->sample[samples->count - 1 - count].number == samples->newest)
        count++;
    return count;
}

/* Adds a sample. Keeps the newest step whatever its size, which the limits of a step and of a text bound. */
static sw_status add_sample(struct sw_samples *samples, int64_t step, const json_t *prompt, const json_t *text) {
    begin_step(samples, step);
    if (of_newest_step(samples) == SW_SAMPLES_OF_STEP)
        return SW_OK;
    struct sw_sample made = {.step = step, .number = samples->newest, .prompt = cut(prompt), .text = cut(text)};
    if (made.prompt == NULL || made.text == NULL) {
        release(&made);
        return sw_fail(SW_ERR_NOMEM, "no memory for the samples of a log");
    }
    made.page_bytes = page_bytes_of(made.prompt) + page_bytes_of(made.text);
    samples->sample[samples->count++] = made;
    while (is_too_much(samples) && samples->stride <= samples->newest) {
        samples->stride *= 2;
        thin(samples);
    }
    return SW_OK;
}

/* Adds the sample of a log's line. A line whose sample is unreadable is only counted. */
static sw_status samples_add(struct sw_samples *samples, const char *line) {
    json_t *root;
    SW_TRY(sw_json_try(line, strlen(line), &root));
    const json_t *sample = json_object_get(root, "sample");
    const json_t *prompt = json_object_get(sample, "prompt"), *text = json_object_get(sample, "text");
    const bool readable = json_is_string(prompt) && json_is_string(text);
    samples->seen++;
    samples->unreadable += !readable;
    const sw_status status =
        readable ? add_sample(samples, json_integer_value(json_object_get(root, "step")), prompt, text) : SW_OK;
    json_decref(root);
    return status;
}

static void samples_release(struct sw_samples *samples) {
    for (int64_t i = 0; i < samples->count; i++)
        release(&samples->sample[i]);
    samples->count = 0;
}

/* Takes the tokens of a layer's experts. Layers come in order, and the first begins a new load. A line out of order, or
 * whose counts are no whole numbers, is left out. */
static sw_status take_load(struct sw_expert_load *load, const char *line) {
    json_t *root;
    SW_TRY(sw_json_try(line, strlen(line), &root));
    const json_int_t layer = json_integer_value(json_object_get(root, "layer"));
    json_t *tokens = json_object_get(root, "expert_tokens");
    bool is_readable = json_is_array(tokens) && json_is_integer(json_object_get(root, "layer"));
    for (size_t i = 0; is_readable && i < json_array_size(tokens); i++)
        is_readable = json_is_integer(json_array_get(tokens, i));
    if (is_readable && layer == 0) {
        json_decref(load->layers);
        *load = (struct sw_expert_load){.step = json_integer_value(json_object_get(root, "step")),
                                        .steps = json_integer_value(json_object_get(root, "expert_steps")),
                                        .layers = json_array()};
    }
    const bool is_next = is_readable && layer >= 0 && (size_t)layer == json_array_size(load->layers);
    const bool failed = is_next && json_array_append(load->layers, tokens) != 0;
    json_decref(root);
    return failed ? sw_fail(SW_ERR_NOMEM, "no memory for the load of experts") : SW_OK;
}

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

/* Makes each point twice as wide, which frees half of them. */
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
        return samples_add(&curves->samples, text);
    if (line.is_load)
        return take_load(&curves->load, text);
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

/* Opens a regular file. A FIFO would block. */
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
    samples_release(&curves->samples);
    json_decref(curves->load.layers);
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
