#include "text/text_cut.h"

#include <stdbool.h>

static bool is_lower(char c) {
    return c >= 'a' && c <= 'z';
}

static bool is_letter(char c) {
    return is_lower(c) || (c >= 'A' && c <= 'Z');
}

/* Tells whether a byte begins a character from U+4000 to U+9FFF: none is a space or combines with another. */
static bool begins_chinese(char c) {
    const unsigned char byte = (unsigned char)c;
    return byte >= 0xE4 && byte <= 0xE9;
}

/* Tells whether the text may be cut before the space at `at`: "word| word". */
static bool is_between_words(struct sw_text text, size_t at) {
    const char *c = text.data + at;
    return c[0] == ' ' && is_lower(c[-1]) && is_letter(c[1]);
}

/* Tells whether the text may be cut before the byte at `at`: "word\n|word". */
static bool is_behind_line(struct sw_text text, size_t at) {
    const char *c = text.data + at;
    if (c[-1] != '\n' || (!is_letter(c[0]) && !begins_chinese(c[0])))
        return false;
    return (c[-2] > ' ' && c[-2] <= '~') || (at >= 4 && begins_chinese(c[-4]));
}

struct sw_text_cut sw_text_cut(struct sw_text text, enum sw_text_parts parts, size_t from) {
    enum { BEFORE = 2, BEHIND = 2 }; /* characters that are looked at beside a place */
    if (parts == SW_TEXT_WHOLE || text.bytes < BEFORE + BEHIND)
        return (struct sw_text_cut){0};
    for (size_t at = text.bytes - BEHIND; at >= BEFORE && at + BEHIND >= from; at--) {
        if (is_between_words(text, at))
            return (struct sw_text_cut){at, parts == SW_TEXT_IN_WORDS ? at + 1 : at};
        if (parts == SW_TEXT_IN_PARTS && is_behind_line(text, at))
            return (struct sw_text_cut){at, at};
    }
    return (struct sw_text_cut){0};
}
