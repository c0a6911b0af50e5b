#include "text/utf8.h"

#include "text/unicode.h"

#include <string.h>

size_t sw_utf8_valid_bytes(struct sw_text text) {
    size_t at = 0;
    while (at < text.bytes) {
        uint64_t eight;
        if (text.bytes - at >= sizeof eight) {
            memcpy(&eight, text.data + at, sizeof eight);
            if ((eight & 0x8080808080808080ULL) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
        if (next.kind != SW_UTF8_WHOLE)
            break;
        at += next.bytes;
    }
    return at;
}

bool sw_utf8_is_valid(struct sw_text text) {
    return sw_utf8_valid_bytes(text) == text.bytes;
}

sw_status sw_utf8_append_repaired(struct sw_text text, struct sw_text_buffer *out, size_t *out_held) {
    static const struct sw_text replacement = {"\xEF\xBF\xBD", 3};
    if (out_held != NULL)
        *out_held = 0;
    for (;;) {
        const size_t valid = sw_utf8_valid_bytes(text);
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){text.data, valid}));
        text = (struct sw_text){text.data + valid, text.bytes - valid};
        if (text.bytes == 0)
            return SW_OK;
        const struct sw_utf8_sequence broken = sw_utf8_read(text);
        if (broken.kind == SW_UTF8_CUT && out_held != NULL) {
            *out_held = broken.bytes;
            return SW_OK;
        }
        SW_TRY(sw_text_buffer_append(out, replacement));
        text = (struct sw_text){text.data + broken.bytes, text.bytes - broken.bytes};
    }
}

bool sw_utf8_is_space(uint32_t code) {
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

bool sw_utf8_is_numeric(uint32_t code) {
    if (code < 0x80)
        return code >= '0' && code <= '9';
    const enum sw_category category = sw_category_of(code);
    return category == SW_ND || category == SW_NL || category == SW_NO;
}

/* Circled and squared letters are alphabetic although their category is So (Unicode, Other_Alphabetic). */
static bool is_enclosed_letter(uint32_t code) {
    return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
           (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

bool sw_utf8_is_word(uint32_t code) {
    enum { ZERO_WIDTH_NON_JOINER = 0x200C, ZERO_WIDTH_JOINER = 0x200D };
    switch (sw_category_of(code)) {
    case SW_LU:
    case SW_LL:
    case SW_LT:
    case SW_LM:
    case SW_LO:
    case SW_NL:
    case SW_MN:
    case SW_MC:
    case SW_ME:
    case SW_ND:
    case SW_PC: return true;
    default: return is_enclosed_letter(code) || code == ZERO_WIDTH_NON_JOINER || code == ZERO_WIDTH_JOINER;
    }
}

size_t sw_utf8_leading_space_bytes(struct sw_text text) {
    size_t at = 0;
    while (at < text.bytes) {
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
        if (!sw_utf8_is_space(next.code))
            break;
        at += next.bytes;
    }
    return at;
}

/* Returns where the last character of a valid text that is not empty begins. */
static size_t last_begins(struct sw_text text) {
    size_t at = text.bytes - 1;
    while (at > 0 && ((unsigned char)text.data[at] & 0xC0) == 0x80)
        at--;
    return at;
}

uint32_t sw_utf8_last(struct sw_text text) {
    const size_t at = last_begins(text);
    return sw_utf8_read((struct sw_text){text.data + at, text.bytes - at}).code;
}

size_t sw_utf8_trailing_space_bytes(struct sw_text text) {
    struct sw_text left = text;
    while (left.bytes > 0 && sw_utf8_is_space(sw_utf8_last(left)))
        left.bytes = last_begins(left);
    return text.bytes - left.bytes;
}
