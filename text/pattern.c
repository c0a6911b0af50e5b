#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include "text/pattern_translate.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <pcre2.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Compiling takes far more memory than an expression, and longer ones more than minutes. */
enum { MOST_BYTES = 8 << 10 };

/* The code of an expression that is right for all texts. Few texts need it, and it takes milliseconds to make, so the
 * first text that does makes it. */
struct exact {
    pthread_mutex_t mutex; /* held while it is made */
    _Atomic(pcre2_code *) code;
    char *expression, *path;
};

struct sw_pattern {
    pcre2_code *code;    /* right for texts whose characters are all stable (sw_category_is_stable) */
    struct exact *exact; /* NULL: the code is right for all texts */
};

struct sw_pattern_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool exact; /* the text may have characters that are new to PCRE2 */
};

/* Compiles an expression for PCRE2. `shown` is how the file has it. */
static sw_status compile(struct sw_text expression, bool literal, struct sw_text shown, const char *path,
                         pcre2_code **out) {
    int error;
    size_t where;
    const int chars = (int)(shown.bytes < 200 ? shown.bytes : 200);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    const uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | (literal ? PCRE2_LITERAL : PCRE2_UCP);
    *out = pcre2_compile((PCRE2_SPTR)expression.data, expression.bytes, options, &error, &where, context);
    pcre2_compile_context_free(context);
    if (*out == NULL) {
        char message[256];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        return sw_fail(SW_ERR_ARG, "%s: the expression '%.*s' is wrong at %zu: %s", path, chars, shown.data, where,
                       message);
    }
    uint32_t may_be_empty = 0;
    (void)pcre2_pattern_info(*out, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: the expression '%.*s' allows an empty match, which this version does not have", path, chars,
                       shown.data);
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without it, matching is slower and the same */
    return SW_OK;
}

static sw_status translate_and_compile(const char *expression, bool exact, const char *path, pcre2_code **out) {
    struct sw_text_buffer translated = {0};
    sw_status status = sw_pattern_translate(expression, exact, path, &translated);
    if (status == SW_OK)
        status =
            compile(sw_text_of_buffer(&translated), false, (struct sw_text){expression, strlen(expression)}, path, out);
    free(translated.data);
    return status;
}

static sw_status make(struct sw_pattern *pattern, struct sw_text expression, bool literal, const char *path) {
    if (expression.bytes == 0)
        return sw_fail(SW_ERR_ARG, "%s: an expression is empty", path);
    if (expression.bytes > MOST_BYTES)
        return sw_fail(SW_ERR_ARG, "%s: an expression has %zu bytes; the most are %d", path, expression.bytes,
                       MOST_BYTES);
    if (literal)
        return compile(expression, true, expression, path, &pattern->code);
    if (memchr(expression.data, 0, expression.bytes) != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: the expression '%.200s' has U+0000, which this version does not have",
                       path, expression.data);
    SW_TRY(translate_and_compile(expression.data, false, path, &pattern->code));
    pattern->exact = calloc(1, sizeof *pattern->exact);
    if (pattern->exact == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
    pthread_mutex_init(&pattern->exact->mutex, NULL);
    pattern->exact->expression = strdup(expression.data);
    pattern->exact->path = strdup(path);
    return pattern->exact->expression != NULL && pattern->exact->path != NULL
               ? SW_OK
               : sw_fail(SW_ERR_NOMEM, "no memory for an expression");
}

sw_status sw_pattern_create(struct sw_text expression, bool literal, const char *path, struct sw_pattern **out) {
    struct sw_pattern *pattern = calloc(1, sizeof *pattern);
    if (pattern == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
    const sw_status status = make(pattern, expression, literal, path);
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
    if (pattern->exact != NULL) {
        pcre2_code_free(pattern->exact->code);
        pthread_mutex_destroy(&pattern->exact->mutex);
        free(pattern->exact->expression);
        free(pattern->exact->path);
        free(pattern->exact);
    }
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

/* Tells by a sequence of several bytes that its character is stable: most of Latin, Cyrillic and Arabic, punctuation,
 * kana, Han, Hangul and full-width forms. */
static bool begins_stable(const unsigned char *byte) {
    switch (byte[0]) {
    case 0xE2: return byte[1] == 0x80;
    case 0xE3:
        return byte[1] == 0x80 || byte[1] == 0x83 || (byte[1] == 0x81 && byte[2] != 0x80) ||
               (byte[1] == 0x82 && byte[2] != 0x97 && byte[2] != 0x98);
    case 0xEF: return byte[1] == 0xBC && byte[2] != 0x80;
    default:
        return byte[0] <= 0xCC || (byte[0] >= 0xCF && byte[0] <= 0xD3) || (byte[0] >= 0xD8 && byte[0] <= 0xDB) ||
               (byte[0] >= 0xE4 && byte[0] <= 0xE9) || byte[0] == 0xEB || byte[0] == 0xEC;
    }
}

/* Tells whether a text has no character that is new to some PCRE2. */
static bool is_stable(struct sw_text text) {
    for (size_t at = 0; at < text.bytes;) {
        uint64_t eight;
        if (text.bytes - at >= sizeof eight) {
            memcpy(&eight, text.data + at, sizeof eight);
            if ((eight & 0x8080808080808080ULL) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const unsigned char first = (unsigned char)text.data[at];
        if (first < 0x80) {
            at++;
        } else if (begins_stable((const unsigned char *)text.data + at)) {
            at += first < 0xE0 ? 2 : 3;
        } else {
            const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
            if (!sw_category_is_stable(next.code))
                return false;
            at += next.bytes;
        }
    }
    return true;
}

void sw_pattern_begin(struct sw_pattern_scratch *scratch, struct sw_text text) {
    scratch->exact = !is_stable(text);
}

static sw_status make_exact(struct exact *exact, const pcre2_code **out) {
    sw_status status = SW_OK;
    pcre2_code *code = exact->code;
    if (code == NULL) {
        pthread_mutex_lock(&exact->mutex);
        code = exact->code;
        if (code == NULL)
            status = translate_and_compile(exact->expression, true, exact->path, &code);
        if (status == SW_OK)
            exact->code = code;
        pthread_mutex_unlock(&exact->mutex);
    }
    *out = code;
    return status;
}

sw_status sw_pattern_find(const struct sw_pattern *pattern, struct sw_pattern_scratch *scratch, struct sw_text text,
                          size_t from, size_t *out_begin, size_t *out_bytes) {
    *out_bytes = 0;
    const pcre2_code *code = pattern->code;
    if (scratch->exact && pattern->exact != NULL)
        SW_TRY(make_exact(pattern->exact, &code));
    const int found = pcre2_match(code, (PCRE2_SPTR)text.data, text.bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                  scratch->data, scratch->context);
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
