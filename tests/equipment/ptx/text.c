#include "tests/equipment/ptx/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sw_ptx_refuse(struct sw_ptx_text *text, const char *format, ...) {
    if (text->error[0] != '\0')
        return;
    const int used = snprintf(text->error, SW_PTX_ERROR_CHARS, "line %d of the PTX: ", text->line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text->error + used, (size_t)(SW_PTX_ERROR_CHARS - used), format, arguments);
    va_end(arguments);
}

static void pass_space(struct sw_ptx_text *text) {
    for (;;) {
        if (text->at[0] == '/' && text->at[1] == '/') {
            text->at += strcspn(text->at, "\n");
        } else if (isspace((unsigned char)*text->at)) {
            text->line += *text->at == '\n';
            text->at++;
        } else {
            return;
        }
    }
}

static bool is_of_name(char c) {
    return isalnum((unsigned char)c) || (c != '\0' && strchr("_$%.", c) != NULL);
}

static int chars_at(const char *at) {
    int chars = 0;
    if (*at == '-' || isdigit((unsigned char)*at)) {
        chars = 1;
        while (isalnum((unsigned char)at[chars]))
            chars++;
        return chars;
    }
    while (is_of_name(at[chars]) || (at[chars] == ':' && at[chars + 1] == ':'))
        chars += at[chars] == ':' ? 2 : 1;
    return chars > 0 ? chars : *at != '\0';
}

struct sw_ptx_word sw_ptx_next(struct sw_ptx_text *text) {
    if (text->error[0] != '\0')
        return (struct sw_ptx_word){"", 0};
    pass_space(text);
    const struct sw_ptx_word word = {text->at, chars_at(text->at)};
    text->at += word.chars;
    return word;
}

struct sw_ptx_word sw_ptx_peek(const struct sw_ptx_text *text) {
    struct sw_ptx_text copy = *text;
    return sw_ptx_next(&copy);
}

bool sw_ptx_is(struct sw_ptx_word word, const char *text) {
    return (size_t)word.chars == strlen(text) && memcmp(word.text, text, (size_t)word.chars) == 0;
}

bool sw_ptx_take(struct sw_ptx_text *text, const char *word) {
    if (!sw_ptx_is(sw_ptx_peek(text), word))
        return false;
    sw_ptx_next(text);
    return true;
}

void sw_ptx_expect(struct sw_ptx_text *text, const char *word) {
    const struct sw_ptx_word found = sw_ptx_next(text);
    if (!sw_ptx_is(found, word))
        sw_ptx_refuse(text, "'%s' is expected, and '%.*s' is there", word, found.chars, found.text);
}

int64_t sw_ptx_number(struct sw_ptx_text *text) {
    const struct sw_ptx_word word = sw_ptx_next(text);
    char *end = NULL;
    const bool negative = word.chars > 0 && word.text[0] == '-';
    const uint64_t size = word.chars > 0 ? strtoull(word.text + negative, &end, 0) : 0;
    if (end == NULL || (end != word.text + word.chars && !(end + 1 == word.text + word.chars && *end == 'U')))
        sw_ptx_refuse(text, "a number is expected, and '%.*s' is there", word.chars, word.text);
    return (int64_t)(negative ? 0 - size : size);
}

void sw_ptx_pass_braces(struct sw_ptx_text *text) {
    for (int depth = 1; depth > 0;) {
        const struct sw_ptx_word word = sw_ptx_next(text);
        if (word.chars == 0) {
            sw_ptx_refuse(text, "a brace is not closed");
            return;
        }
        depth += sw_ptx_is(word, "{") - sw_ptx_is(word, "}");
    }
}
