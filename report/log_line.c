/* A reader of its own: the log of a long run has a gigabyte, which a general reader, that allocates each value, takes
 * several times as long for. */
#include "report/log_line.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 8 };
/* A number beyond it is damaged and counts as missing: sums over a log would leave the range of double. */
static const double most_value = 1e100;

static const struct {
    const char *group, *name;
} columns[SW_LOG_COLUMNS] = {
    {"", "step"},
    {"", "loss"},
    {"", "loss_tokens"},
    {"", "grad_norm"},
    {"", "lr"},
    {"", "tokens"},
    {"", "seconds"},
    {"", "tokens_per_second"},
    {"", "mfu"},
    {"", "skipped"},
    {"", "saved"},
    {"", "ranks"},
    {"", "zero"},
    {"", "eta_seconds"},
    {"lanes", "compute"},
    {"lanes", "upload"},
    {"lanes", "download"},
    {"lanes", "read"},
    {"lanes", "write"},
    {"lanes", "update"},
    {"lanes", "comm"},
    {"bytes", "nvme_read"},
    {"bytes", "nvme_write"},
    {"bytes", "upload"},
    {"bytes", "download"},
    {"bytes", "comm"},
    {"peak", "device"},
    {"peak", "host"},
    {"peak", "nvme"},
    {"", "val_loss"},
    {"", "val_tokens"},
};

const char *sw_log_column_name(int column) {
    return columns[column].name;
}

/* A text in double quotes; its escapes are left as they are, since no name of ours has one. */
struct word {
    const char *text;
    size_t chars;
};

struct parser {
    const char *at;
    struct sw_log_line *line;
    int next; /* the column behind the last one: lines have their members in this order */
};

static bool is_word(struct word word, const char *text) {
    return strncmp(word.text, text, word.chars) == 0 && text[word.chars] == 0;
}

static int find_column(struct parser *p, struct word group, struct word name) {
    for (int tried = 0; tried < SW_LOG_COLUMNS; tried++) {
        const int column = (p->next + tried) % SW_LOG_COLUMNS;
        if (is_word(name, columns[column].name) && is_word(group, columns[column].group)) {
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

/* Reads a number, true, false or null. A number that is too large is read as null. */
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
    /* strtod would also take hexadecimal digits, spaces, inf and nan. */
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

/* No member of ours is in a group of this name. */
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
    out->is_sample = false;
    if (!take(&p, '{') || !parse_members(&p, none, 1))
        return false;
    skip_space(&p);
    return *p.at == 0 && out->value[SW_LOG_STEP] >= 1 && out->value[SW_LOG_STEP] <= 1e15 &&
           floor(out->value[SW_LOG_STEP]) == out->value[SW_LOG_STEP];
}
