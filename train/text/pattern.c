#define PCRE2_CODE_UNIT_WIDTH 8
#include "train/text/pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct sw_pattern {
    pcre2_code *code;
};

struct sw_pattern_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* White space as Oniguruma's \s has it, the Unicode property White_Space. PCRE2's \s has U+180E beside. */
#define SPACES                                                                                                         \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NO_SPACES                                                                                                      \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}" \
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"

/* Letters behind a backslash that mean the same in both. */
static const char same_escapes[] = "pPnrtdDbBAz";

struct translation {
    const char *expression, *path;
    struct sw_text_buffer out;
    bool in_class;
};

static sw_status put(struct translation *t, const char *text, size_t bytes) {
    return sw_text_buffer_append(&t->out, (struct sw_text){text, bytes});
}

static sw_status put_spaces(struct translation *t, bool negated) {
    const char *spaces = negated ? NO_SPACES : SPACES;
    SW_TRY(t->in_class ? SW_OK : put(t, "[", 1));
    SW_TRY(put(t, spaces, strlen(spaces)));
    return t->in_class ? SW_OK : put(t, "]", 1);
}

static sw_status refuse(const struct translation *t, const char *what) {
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: the expression '%.200s' uses %s, which this version does not have", t->path,
                   t->expression, what);
}

/* Translates the escape that `at` points to, and returns how many characters it has by *out_chars. */
static sw_status put_escape(struct translation *t, const char *at, size_t *out_chars) {
    const char letter = at[1];
    *out_chars = 2;
    if (letter == 's' || letter == 'S')
        return put_spaces(t, letter == 'S');
    const bool is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    const bool is_digit = letter >= '0' && letter <= '9';
    if (letter == 0 || is_digit || (is_letter && strchr(same_escapes, letter) == NULL)) {
        const char name[] = {'\\', letter, 0};
        return refuse(t, name);
    }
    const char *end = (letter == 'p' || letter == 'P') && at[2] == '{' ? strchr(at, '}') : NULL;
    if (end != NULL)
        *out_chars = (size_t)(end - at) + 1;
    return put(t, at, *out_chars);
}

/* Tells whether a repetition "{n,m}" ends here that another "+" follows: greedy twice there, possessive here. */
static bool repeats_twice(const char *at) {
    return at[0] == '}' && at[1] == '+';
}

static sw_status translate(struct translation *t) {
    const char *const begin = t->expression;
    for (const char *at = begin; *at != 0;) {
        size_t chars = 1;
        if (*at == '\\') {
            SW_TRY(put_escape(t, at, &chars));
        } else if (t->in_class && (*at == '[' || (at[0] == '&' && at[1] == '&'))) {
            return refuse(t, *at == '[' ? "a class in a class" : "&& in a class");
        } else if (!t->in_class && repeats_twice(at)) {
            return refuse(t, "{n,m}+");
        } else {
            if (*at == '[' && !t->in_class) {
                t->in_class = true;
                chars = at[1] == '^' ? 2 : 1;
                chars += at[chars] == ']'; /* a bracket that comes first is one of the class */
            } else if (*at == ']') {
                t->in_class = false;
            }
            SW_TRY(put(t, at, chars));
        }
        at += chars;
    }
    return SW_OK;
}

static sw_status compile(struct sw_pattern *pattern, struct sw_text expression, bool literal, const char *path) {
    int error;
    size_t where;
    const uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | (literal ? PCRE2_LITERAL : PCRE2_UCP);
    pattern->code = pcre2_compile((PCRE2_SPTR)expression.data, expression.bytes, options, &error, &where, NULL);
    if (pattern->code == NULL) {
        char message[256];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        return sw_fail(SW_ERR_ARG, "%s: the expression '%.*s' is wrong at %zu: %s", path,
                       (int)(expression.bytes < 200 ? expression.bytes : 200), expression.data, where, message);
    }
    (void)pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it, matching is slower and the same */
    return SW_OK;
}

sw_status sw_pattern_create(const char *expression, bool literal, const char *path, struct sw_pattern **out) {
    struct translation t = {.expression = expression, .path = path};
    struct sw_pattern *pattern = calloc(1, sizeof *pattern);
    if (pattern == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
    sw_status status = literal ? put(&t, expression, strlen(expression)) : translate(&t);
    if (status == SW_OK && t.out.bytes == 0)
        status = sw_fail(SW_ERR_ARG, "%s: an expression is empty", path);
    if (status == SW_OK)
        status = compile(pattern, sw_text_of_buffer(&t.out), literal, path);
    free(t.out.data);
    if (status != SW_OK) {
        sw_pattern_destroy(pattern);
        return status;
    }
    *out = pattern;
    return SW_OK;
}

void sw_pattern_destroy(struct sw_pattern *pattern) {
    if (pattern == NULL)
        return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

sw_status sw_pattern_scratch_create(struct sw_pattern_scratch **out) {
    enum { STACK_FIRST_BYTES = 64 << 10, STACK_MOST_BYTES = 64 << 20 };
    struct sw_pattern_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to match expressions");
    scratch->data = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->stack = pcre2_jit_stack_create(STACK_FIRST_BYTES, STACK_MOST_BYTES, NULL);
    if (scratch->data == NULL || scratch->context == NULL) {
        sw_pattern_scratch_destroy(scratch);
        return sw_fail(SW_ERR_NOMEM, "no memory to match expressions");
    }
    if (scratch->stack != NULL) /* NULL: this PCRE2 has no compiler for this processor */
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    *out = scratch;
    return SW_OK;
}

void sw_pattern_scratch_destroy(struct sw_pattern_scratch *scratch) {
    if (scratch == NULL)
        return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

sw_status sw_pattern_find(const struct sw_pattern *pattern, struct sw_pattern_scratch *scratch, struct sw_text text,
                          size_t from, size_t *out_begin, size_t *out_bytes) {
    *out_bytes = 0;
    const int found = pcre2_match(pattern->code, (PCRE2_SPTR)text.data, text.bytes, from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, scratch->data, scratch->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return SW_OK;
    if (found < 0) {
        char message[256];
        pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
        return sw_fail(SW_ERR_UNSUPPORTED, "matching a tokenizer's expression failed: %s", message);
    }
    const size_t *offset = pcre2_get_ovector_pointer(scratch->data);
    *out_begin = offset[0];
    *out_bytes = offset[1] - offset[0];
    return SW_OK;
}
