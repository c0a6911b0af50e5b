/* Reads JSON by Jansson, behind a pass over the text that enforces our limits.
 *
 * The first pass finds what Jansson would refuse or misread although it is JSON: numbers beyond its range, U+0000 in
 * names, NaN in data of Python. It also counts the memory that the values will need, because parsed JSON can take
 * eighty times its text, and a hostile file must not end the process. Jansson then reads a text it cannot stumble over.
 *
 * Jansson continues after some failed allocations and reads beyond the token. So an allocation that fails leaves the
 * parser by longjmp; what was parsed until then is lost, which a process without memory can bear. */
#include "core/json.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LITERAL_CHARS = 32,  /* longest number that is rewritten, as by %.17g */
    SAFE_INT_DIGITS = 18 /* more digits may not fit in 64 bits */
};

static_assert(SW_JSON_MOST_LEVELS == 512 && SW_JSON_MOST_BYTES == 256 << 20, "messages name them");

/* Upper bounds of Jansson's allocations: a value with its slot in a list or an object, without its name; an object or a
 * list before its first value; a text before its first character. */
enum { VALUE_BYTES = 64, OBJECT_BYTES = 256, LIST_BYTES = 144, TEXT_BYTES = 80 };

static const char *const NO_MEMORY = "no memory";

/* A pass over a text that finds what Jansson refuses although it is JSON. `out` (NULL: none) receives the text with
 * readable replacements. */
struct pass {
    const char *begin, *at, *end;
    const char *copied; /* the text before it is already in `out` */
    char *out;
    size_t out_bytes, replaced; /* replaced: replacements so far */
    int levels;
    size_t value_bytes; /* upper bound of the values' memory once they are read */
    bool nan_is_null, refuses_zeros;
    const char *fault; /* what is wrong at `at`; NULL: nothing */
};

static void replace(struct pass *p, const char *begin, const char *end, const char *by) {
    p->replaced++;
    if (p->out == NULL)
        return;
    memcpy(p->out + p->out_bytes, p->copied, (size_t)(begin - p->copied));
    p->out_bytes += (size_t)(begin - p->copied);
    memcpy(p->out + p->out_bytes, by, strlen(by));
    p->out_bytes += strlen(by);
    p->copied = end;
}

static bool begins_with(const struct pass *p, const char *word) {
    const size_t bytes = strlen(word);
    return (size_t)(p->end - p->at) >= bytes && memcmp(p->at, word, bytes) == 0;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Writes SW_JSON_ZERO_IN_NAME for each \u0000 of a name. */
static void replace_zeros(struct pass *p, const char *name, const char *name_end) {
    for (const char *at = name; at + 6 <= name_end; at += *at == '\\' ? 2 : 1)
        if (memcmp(at, "\\u0000", 6) == 0)
            replace(p, at, at + 6, SW_JSON_ZERO_IN_NAME);
}

static void pass_string(struct pass *p) {
    const char *begin = ++p->at;
    bool has_zero = false;
    while (p->at < p->end && *p->at != '"') {
        has_zero |= *p->at == '\\' && begins_with(p, "\\u0000");
        p->at += *p->at == '\\' && p->at + 1 < p->end ? 2 : 1;
    }
    const char *string_end = p->at;
    p->value_bytes += TEXT_BYTES + (size_t)(string_end - begin);
    if (p->at < p->end)
        p->at++;
    if (!has_zero)
        return;
    const char *next = p->at;
    while (next < p->end && is_space(*next))
        next++;
    if (next == p->end || *next != ':')
        return;
    if (p->refuses_zeros)
        p->fault = "a name has U+0000, which means nothing here";
    else
        replace_zeros(p, begin, string_end);
}

static const char *pass_digits(const char *at, const char *end) {
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* Returns the end of the number that begins here, or NULL if it is not a JSON number, which Jansson then reports. */
static const char *end_of_number(const char *at, const char *end, bool *out_real) {
    *out_real = false;
    at += *at == '-';
    const char *digits = at;
    at = pass_digits(at, end);
    if (at == digits || (*digits == '0' && at > digits + 1))
        return NULL;
    if (at < end && *at == '.') {
        const char *fraction = at + 1;
        at = pass_digits(fraction, end);
        *out_real = true;
        if (at == fraction)
            return NULL;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at += 1 + (at + 1 < end && (at[1] == '+' || at[1] == '-'));
        const char *exponent = at;
        at = pass_digits(at, end);
        *out_real = true;
        if (at == exponent)
            return NULL;
    }
    return at;
}

/* Writes the number nearest to a literal that double, or 64 bits, cannot hold. Returns false if they can hold it. */
static bool nearest_number(const char *literal, bool is_real, char out[LITERAL_CHARS]) {
    errno = 0;
    if (!is_real) {
        (void)strtoll(literal, NULL, 10);
        if (errno != ERANGE)
            return false;
    }
    double value = strtod(literal, NULL);
    if (is_real && !isinf(value))
        return false;
    if (isinf(value))
        value = value < 0.0 ? -DBL_MAX : DBL_MAX;
    (void)snprintf(out, LITERAL_CHARS, "%.17g", value);
    return true;
}

static void pass_number(struct pass *p) {
    bool is_real;
    char nearest[LITERAL_CHARS];
    const char *begin = p->at, *end = end_of_number(begin, p->end, &is_real);
    if (end == NULL) {
        p->at++;
        return;
    }
    p->at = end;
    /* Short literals without an exponent, which nearly all are, fit. */
    const bool is_plain = end - begin <= SAFE_INT_DIGITS && memchr(begin, 'e', (size_t)(end - begin)) == NULL &&
                          memchr(begin, 'E', (size_t)(end - begin)) == NULL;
    if (is_plain)
        return;
    char *literal = strndup(begin, (size_t)(end - begin));
    if (literal == NULL)
        p->fault = NO_MEMORY;
    else if (nearest_number(literal, is_real, nearest))
        replace(p, begin, end, nearest);
    free(literal);
}

static void pass_word(struct pass *p) {
    static const char largest[] = "1.7976931348623157e308", least[] = "-1.7976931348623157e308";
    const char *begin = p->at;
    if (begins_with(p, "NaN")) {
        if (p->nan_is_null)
            replace(p, begin, begin + 3, "null");
        else
            p->fault = "NaN is no number of JSON; write a number or null";
        p->at += 3;
    } else if (begins_with(p, "Infinity")) {
        replace(p, begin, begin + 8, largest);
        p->at += 8;
    } else if (begins_with(p, "-Infinity")) {
        replace(p, begin, begin + 9, least);
        p->at += 9;
    } else if (*begin == '-') {
        pass_number(p);
    } else {
        p->at++;
    }
}

static void pass_mark(struct pass *p, char c) {
    if (c == '[' || c == '{') {
        p->levels++;
        p->value_bytes += c == '{' ? OBJECT_BYTES : LIST_BYTES;
    } else if (c == ']' || c == '}') {
        p->levels--;
    } else if (c == ',') {
        p->value_bytes += VALUE_BYTES;
    }
    if (p->levels > SW_JSON_MOST_LEVELS)
        p->fault = "its lists and objects have more than 512 levels";
    p->at++;
}

static void pass_all(struct pass *p) {
    while (p->at < p->end && p->fault == NULL) {
        const char c = *p->at;
        if (c == '"') {
            pass_string(p);
        } else if (c >= '0' && c <= '9') {
            pass_number(p);
        } else if (c == '-' || c == 'N' || c == 'I') {
            pass_word(p);
        } else {
            pass_mark(p, c);
        }
        if (p->value_bytes > SW_JSON_MOST_BYTES && p->fault == NULL)
            p->fault = "its values would take more than 256 MiB of memory, the most for a text of JSON";
    }
}

static int line_of(const char *begin, const char *at) {
    int line = 1;
    for (; begin < at; begin++)
        line += *begin == '\n' && line < INT_MAX;
    return line;
}

/* Why a text was not read. */
struct refusal {
    sw_status status; /* SW_OK: it was read */
    int line;
    bool is_json; /* but exceeds a limit of ours */
    char what[JSON_ERROR_TEXT_LENGTH];
};

static struct refusal refusal_of(sw_status status, int line, const char *what) {
    struct refusal refusal = {.status = status, .line = line};
    (void)snprintf(refusal.what, sizeof refusal.what, "%s", what);
    return refusal;
}

static struct refusal limit_of(sw_status status, int line, const char *what) {
    struct refusal refusal = refusal_of(status, line, what);
    refusal.is_json = true;
    return refusal;
}

/* The name is at the end of Jansson's message. */
static struct refusal refuse_twins(sw_status status, const json_error_t *error) {
    char what[JSON_ERROR_TEXT_LENGTH];
    const char *near = strstr(error->text, " near ");
    (void)snprintf(what, sizeof what, "an object has two members of one name%.60s; take one of them out",
                   near != NULL ? near : "");
    return limit_of(status, error->line, what);
}

/* Where a thread continues if its parsing runs out of memory; NULL: it is not parsing. */
static _Thread_local jmp_buf *parsing;

/* Flag: a value could not be allocated, so the object that should hold it may lack it. */
static atomic_bool lacked_memory;

/* Allocates for Jansson. Without memory for a token Jansson continues, and then accesses memory beyond the token's end
 * or reports a syntax error. So a failed allocation ends the parsing. Whatever was parsed until then leaks, because
 * nothing knows all of it. */
static void *allocate(size_t bytes) {
    void *got = malloc(bytes);
    if (got == NULL && parsing != NULL)
        longjmp(*parsing, 1);
    if (got == NULL)
        atomic_store(&lacked_memory, true);
    return got;
}

__attribute__((constructor)) static void allocate_for_jansson(void) {
    if (&sw_json_is_shared == NULL)
        json_set_alloc_funcs(allocate, free);
}

/* Parses. Returns NULL and sets *out_memory to false if memory ran out. */
static json_t *parse(const char *text, size_t bytes, size_t flags, json_error_t *error, bool *out_memory) {
    jmp_buf out;
    json_t *volatile root = NULL;
    parsing = &out;
    *out_memory = setjmp(out) == 0;
    if (*out_memory)
        root = json_loadb(text, bytes, flags, error);
    parsing = NULL;
    return root;
}

static struct refusal load(const struct sw_json_source *source, const char *text, size_t bytes, json_t **out) {
    json_error_t error;
    bool had_memory;
    size_t flags = JSON_REJECT_DUPLICATES;
    if (source->kind != SW_JSON_PLAIN)
        flags |= JSON_ALLOW_NUL;
    if (source->kind == SW_JSON_DATA)
        flags |= JSON_DECODE_ANY;
    *out = parse(text, bytes, flags, &error, &had_memory);
    if (*out != NULL)
        return (struct refusal){0};
    if (!had_memory)
        return (struct refusal){.status = SW_ERR_NOMEM};
    if (json_error_code(&error) == json_error_null_character)
        return limit_of(source->bad, error.line, "a text has U+0000, which means nothing here");
    if (json_error_code(&error) == json_error_duplicate_key)
        return refuse_twins(source->bad, &error);
    if (strstr(error.text, "invalid Unicode") != NULL)
        return limit_of(source->bad, error.line,
                        "a text has half a surrogate pair (\\uD800 to \\uDFFF), which is no character; remove it");
    return refusal_of(source->bad, error.line, error.text);
}

/* Parses a text with the replacements that a first pass found. */
static struct refusal load_replaced(const struct sw_json_source *source, struct pass pass, json_t **out) {
    pass.out = malloc((size_t)(pass.end - pass.begin) + pass.replaced * LITERAL_CHARS);
    if (pass.out == NULL)
        return (struct refusal){.status = SW_ERR_NOMEM};
    pass.at = pass.copied = pass.begin;
    pass.levels = 0;
    pass.value_bytes = 0;
    pass_all(&pass);
    replace(&pass, pass.end, pass.end, "");
    const struct refusal refusal = load(source, pass.out, pass.out_bytes, out);
    free(pass.out);
    return refusal;
}

static struct refusal decode(const struct sw_json_source *source, json_t **out) {
    const char *begin = source->text, *end = begin + source->bytes;
    *out = NULL;
    if (source->bytes >= 2 && (memcmp(begin, "\xFF\xFE", 2) == 0 || memcmp(begin, "\xFE\xFF", 2) == 0))
        return refusal_of(source->bad, 1, "it is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8");
    if (source->bytes >= 3 && memcmp(begin, "\xEF\xBB\xBF", 3) == 0)
        begin += 3;
    struct pass pass = {.begin = begin,
                        .at = begin,
                        .end = end,
                        .nan_is_null = source->kind == SW_JSON_DATA,
                        .refuses_zeros = source->kind == SW_JSON_PLAIN};
    pass_all(&pass);
    if (pass.fault == NO_MEMORY)
        return (struct refusal){.status = SW_ERR_NOMEM};
    if (pass.fault != NULL)
        return limit_of(source->bad, line_of(begin, pass.at), pass.fault);
    return pass.replaced > 0 ? load_replaced(source, pass, out) : load(source, begin, (size_t)(end - begin), out);
}

sw_status sw_json_decode(struct sw_json_source source, json_t **out) {
    const struct refusal refusal = decode(&source, out);
    if (refusal.status == SW_OK)
        return SW_OK;
    if (refusal.status == SW_ERR_NOMEM)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", source.name);
    const char *why = refusal.is_json ? "" : " is not JSON";
    if (source.kind == SW_JSON_DATA)
        return sw_fail(refusal.status, "%s%s: %s", source.name, why, refusal.what);
    return sw_fail(refusal.status, "%s%s: line %d: %s", source.name, why, source.lines_before + refusal.line,
                   refusal.what);
}

sw_status sw_json_try(const char *text, size_t bytes, json_t **out) {
    const struct sw_json_source source = {.text = text, .bytes = bytes, .bad = SW_ERR_ARG, .kind = SW_JSON_TEXTS};
    return decode(&source, out).status == SW_ERR_NOMEM ? sw_fail(SW_ERR_NOMEM, "no memory to read JSON") : SW_OK;
}

bool sw_json_lacked_memory(void) {
    return atomic_load(&lacked_memory);
}

char *sw_json_text(const json_t *value, size_t flags) {
    char *text = value != NULL ? json_dumps(value, flags) : NULL;
    if (!sw_json_lacked_memory())
        return text;
    free(text);
    return NULL;
}
