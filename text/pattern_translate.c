#include "text/pattern_translate.h"

#include "text/pattern_class.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 64 };

/* The options that an expression changes. Oniguruma's "m" lets a dot match the end of a line too. */
struct options {
    bool caseless, dot_is_any;
};

struct translation {
    const char *expression, *path;
    const char *at;
    bool exact;
    struct sw_text_buffer *out;
    struct options options;
    struct {
        struct options outer; /* of what comes after the group */
        int closes;           /* brackets of PCRE2 that end with it */
    } group[MOST_GROUPS];
    int groups;
    char letter_before; /* of a caseless literal, in small; else 0 */
};

static sw_status refuse(const struct translation *t, const char *what) {
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: the expression '%.200s' uses %s, which this version does not have", t->path,
                   t->expression, what);
}

static sw_status put(struct translation *t, const char *text) {
    return sw_text_buffer_append(t->out, (struct sw_text){text, strlen(text)});
}

/* Refuses letters whose other cases Oniguruma finds by rules of its own: those outside of ASCII, and pairs that one
 * letter may stand for, as "ss" does for U+00DF. */
static sw_status check_case(struct translation *t, uint32_t code) {
    static const char *const folded[] = {"ss", "ff", "fi", "fl", "st"};
    const char before = t->letter_before, letter = (char)(code >= 'A' && code <= 'Z' ? code + 32 : code);
    t->letter_before = t->options.caseless && letter >= 'a' && letter <= 'z' ? letter : 0;
    if (!t->options.caseless)
        return SW_OK;
    if (code >= 0x80)
        return refuse(t, "a character outside of ASCII without regard to case");
    for (size_t i = 0; i < sizeof folded / sizeof folded[0]; i++)
        if (before == folded[i][0] && letter == folded[i][1])
            return refuse(t, "a pair of letters that one letter may stand for (ss, ff, fi, fl, st) without regard to "
                             "case");
    return SW_OK;
}

static sw_status put_code(struct translation *t, uint32_t code) {
    char text[24];
    SW_TRY(check_case(t, code));
    snprintf(text, sizeof text, "\\x{%x}", code);
    return put(t, text);
}

/* Copies a character that stands for itself. */
static sw_status put_character(struct translation *t) {
    const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){t->at, strlen(t->at)});
    const bool plain = next.code >= 0x80 || (next.code >= '0' && next.code <= '9') ||
                       (next.code >= 'A' && next.code <= 'Z') || (next.code >= 'a' && next.code <= 'z');
    if (next.kind != SW_UTF8_WHOLE)
        return refuse(t, "bytes that are no UTF-8");
    SW_TRY(plain ? check_case(t, next.code) : put_code(t, next.code));
    SW_TRY(plain ? sw_text_buffer_append(t->out, (struct sw_text){t->at, next.bytes}) : SW_OK);
    t->at += next.bytes;
    return SW_OK;
}

static sw_status put_class(struct translation *t, struct sw_class *class, bool negated) {
    if (t->options.caseless && !sw_class_is_ascii(class))
        return refuse(t, "a class with characters outside of ASCII without regard to case");
    return sw_class_write(class, negated, t->exact, t->out);
}

static sw_status take_class(struct translation *t) {
    struct sw_class class = {0};
    bool negated;
    size_t bytes;
    const char *fault;
    sw_status status = sw_class_read(t->at, &class, &negated, &bytes, &fault);
    if (status == SW_OK && fault != NULL)
        status = refuse(t, fault);
    if (status == SW_OK)
        status = put_class(t, &class, negated);
    sw_class_release(&class);
    t->at += bytes;
    return status;
}

/* Writes the edge of a word, or, where `inside` is set, a place that is none. */
static sw_status put_edge(struct translation *t, bool inside) {
    static const char *const parts[2][5] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
                                            {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"}};
    for (int i = 0; i < 5; i++) {
        struct sw_class word = {0};
        bool is_class;
        uint32_t code;
        size_t bytes;
        sw_status status = put(t, parts[inside][i]);
        if (status == SW_OK && i < 4)
            status = sw_class_read_escape("\\w", &word, &is_class, &code, &bytes);
        if (status == SW_OK && i < 4)
            status = sw_class_write(&word, false, t->exact, t->out);
        sw_class_release(&word);
        SW_TRY(status);
    }
    return SW_OK;
}

/* Takes an escape that is neither a character nor a class. */
static sw_status take_anchor(struct translation *t) {
    const char letter = t->at[1], name[] = {'\\', letter, 0};
    static const struct {
        char letter;
        const char *text;
    } same[] = {{'A', "\\A"},    {'z', "\\z"},   {'Z', "\\Z"}, {'R', "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])"},
                {'N', "[^\\n]"}, {'O', "(?s:.)"}};
    t->at += 2;
    if (letter == 'b' || letter == 'B')
        return put_edge(t, letter == 'B');
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (letter == same[i].letter)
            return put(t, same[i].text);
    return refuse(t, name);
}

static sw_status take_escape(struct translation *t) {
    struct sw_class class = {0};
    bool is_class;
    uint32_t code = 0;
    size_t bytes;
    const bool inverts = t->at[1] == 'S' || t->at[1] == 'W' || t->at[1] == 'D' || t->at[1] == 'H' || t->at[1] == 'P';
    char positive[64];
    /* A negated class is written as such, which is shorter than its complement. */
    snprintf(positive, sizeof positive, "%s", t->at);
    positive[1] = (char)(inverts ? positive[1] + 32 : positive[1]);
    sw_status status = sw_class_read_escape(positive, &class, &is_class, &code, &bytes);
    if (status == SW_OK && bytes == 0)
        status = is_class || strchr("xu", t->at[1]) != NULL ? refuse(t, "an escape or property that is not known")
                                                            : take_anchor(t);
    else if (status == SW_OK)
        status = is_class ? put_class(t, &class, inverts) : put_code(t, code);
    sw_class_release(&class);
    t->at += bytes;
    return status;
}

/* Reads options such as "i" or "mi-x" up to their end; those that are not known are refused. */
static sw_status read_options(struct translation *t, const char *at, struct options *out, size_t *out_chars) {
    bool on = true;
    *out = t->options;
    for (*out_chars = 0; at[*out_chars] != ':' && at[*out_chars] != ')'; ++*out_chars) {
        const char option = at[*out_chars];
        const char name[] = {'(', '?', option, ')', 0};
        if (option == '-' && on)
            on = false;
        else if (option == 'i')
            out->caseless = on;
        else if (option == 'm')
            out->dot_is_any = on;
        else if (option != 'x' || on)
            return refuse(t, option == 0 ? "a group that does not end" : name);
    }
    return SW_OK;
}

static sw_status open_group(struct translation *t, const char *text, struct options inner, size_t chars) {
    if (t->groups == MOST_GROUPS)
        return refuse(t, "more than 64 groups in groups");
    t->group[t->groups].outer = t->options;
    t->group[t->groups++].closes = 1;
    t->options = inner;
    t->at += chars;
    return put(t, text);
}

/* Takes "(?i:" or "(?i)". The latter holds up to the end of the group around it, alternatives included, so it becomes a
 * group of its own. */
static sw_status take_options(struct translation *t) {
    struct options options;
    size_t chars;
    SW_TRY(read_options(t, t->at + 2, &options, &chars));
    const char *const text = options.caseless ? "(?i:" : "(?-i:";
    if (t->at[2 + chars] == ':')
        return open_group(t, text, options, 3 + chars);
    t->options = options;
    t->at += 3 + chars;
    t->group[t->groups - 1].closes++;
    return put(t, text);
}

static sw_status take_group(struct translation *t) {
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (strncmp(t->at, same[i], strlen(same[i])) == 0)
            return open_group(t, same[i], t->options, strlen(same[i]));
    const char *end = strchr(t->at, '>'), *comment = strchr(t->at, ')');
    if (t->at[1] == '*')
        return refuse(t, "(*");
    if (t->at[1] != '?')
        return open_group(t, "(?:", t->options, 1);
    if (t->at[2] == '#' && comment != NULL && memchr(t->at, '\\', (size_t)(comment - t->at)) == NULL) {
        t->at = comment + 1;
        return SW_OK;
    }
    /* References to groups are refused, so names are for people. */
    if (t->at[2] == '<' && end != NULL)
        return open_group(t, "(?:", t->options, (size_t)(end - t->at) + 1);
    if (strchr("im-", t->at[2]) != NULL)
        return take_options(t);
    const char name[] = {'(', '?', t->at[2], 0};
    return refuse(t, name);
}

static sw_status close_group(struct translation *t) {
    if (t->groups <= 1)
        return refuse(t, "a bracket ')' without its '('");
    t->options = t->group[--t->groups].outer;
    for (int i = 0; i < t->group[t->groups].closes; i++)
        SW_TRY(put(t, ")"));
    t->at++;
    return SW_OK;
}

/* Takes a repetition "{n,m}", or the bracket as a character where it is none. Oniguruma repeats "{n,m}+" twice, and
 * takes
 * "{n}?" for an optional repetition. */
static sw_status take_repetition(struct translation *t) {
    enum { MOST_REPEATS = 65535 };
    char *end;
    const char *at = t->at + 1;
    const bool has_least = *at >= '0' && *at <= '9';
    const unsigned long least = has_least ? strtoul(at, &end, 10) : 0;
    at = has_least ? end : at;
    const bool comma = *at == ',';
    at += comma;
    const bool has_most = comma && *at >= '0' && *at <= '9';
    const unsigned long most = has_most ? strtoul(at, &end, 10) : least;
    at = has_most ? end : at;
    if (*at != '}' || (!has_least && !has_most))
        return put_character(t);
    if (least > MOST_REPEATS || most > MOST_REPEATS || (has_most && most < least))
        return refuse(t, "{n,m} with m below n or beyond 65535");
    if (at[1] == '+' || at[1] == '*' || at[1] == '{' || (at[1] == '?' && !comma))
        return refuse(t, at[1] == '?' ? "{n}?" : "{n,m} and another repetition");
    char text[48];
    if (comma && !has_most)
        snprintf(text, sizeof text, "{%lu,}", least);
    else
        snprintf(text, sizeof text, comma ? "{%lu,%lu}" : "{%lu}", least, most);
    t->at = at + 1;
    return put(t, text);
}

static sw_status take_text(struct translation *t, const char *text) {
    t->at++;
    return put(t, text);
}

static sw_status take_one(struct translation *t) {
    const char letter_before = t->letter_before;
    t->letter_before = 0;
    switch (*t->at) {
    case '\\': return take_escape(t);
    case '[': return take_class(t);
    case '(': return take_group(t);
    case ')': return close_group(t);
    case '{': return take_repetition(t);
    case '^': return take_text(t, "(?m:^)");
    case '$': return take_text(t, "(?m:$)");
    case '.': return take_text(t, t->options.dot_is_any ? "(?s:.)" : "[^\\n]");
    case '|': return take_text(t, "|");
    case '*': return take_text(t, "*");
    case '+': return take_text(t, "+");
    case '?': return take_text(t, "?");
    default: t->letter_before = letter_before; return put_character(t);
    }
}

sw_status sw_pattern_translate(const char *expression, bool exact, const char *path, struct sw_text_buffer *out) {
    struct translation t = {
        .expression = expression, .path = path, .at = expression, .exact = exact, .out = out, .groups = 1};
    while (*t.at != 0)
        SW_TRY(take_one(&t));
    if (t.groups != 1)
        return refuse(&t, "a group that does not end");
    for (int i = 0; i < t.group[0].closes; i++)
        SW_TRY(put(&t, ")"));
    return SW_OK;
}
