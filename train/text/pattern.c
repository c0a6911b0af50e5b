#define PCRE2_CODE_UNIT_WIDTH 8
#include "train/text/pattern.h"

#include "train/text/pattern_translate.h"
#include "train/text/unicode.h"
#include "train/text/utf8.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct sw_pattern {
    pcre2_code *code;  /* right for texts whose characters are all stable (sw_category_is_stable) */
    pcre2_code *exact; /* right for all texts; NULL: the other is */
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
    if (literal)
        return compile(expression, true, expression, path, &pattern->code);
    if (memchr(expression.data, 0, expression.bytes) != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: the expression '%.200s' has U+0000, which this version does not have",
                       path, expression.data);
    SW_TRY(translate_and_compile(expression.data, false, path, &pattern->code));
    return translate_and_compile(expression.data, true, path, &pattern->exact);
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
    pcre2_code_free(pattern->exact);
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

/* Tells by the beginning of a sequence that all characters which begin so are stable: most of Latin, Cyrillic and
 * Arabic, punctuation, Han and Hangul. */
static bool begins_stable(unsigned char first, unsigned char second) {
    return (first >= 0xC2 && first <= 0xCC) || (first >= 0xCF && first <= 0xD3) || (first >= 0xD8 && first <= 0xDB) ||
           ((first == 0xE2 || first == 0xE3) && second == 0x80) || (first >= 0xE4 && first <= 0xE9) || first == 0xEB ||
           first == 0xEC;
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
        } else if (begins_stable(first, (unsigned char)text.data[at + 1])) {
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

sw_status sw_pattern_find(const struct sw_pattern *pattern, struct sw_pattern_scratch *scratch, struct sw_text text,
                          size_t from, size_t *out_begin, size_t *out_bytes) {
    *out_bytes = 0;
    const pcre2_code *code = scratch->exact && pattern->exact != NULL ? pattern->exact : pattern->code;
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
