#include "core/text/visible.h"

#include "core/text/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Tells whether a terminal obeys the code point, or lays text out by it in another order or on another line. */
static bool is_control(uint32_t point) {
    const bool is_c0_or_c1 = point < 0x20 || (point >= 0x7F && point < 0xA0);
    const bool ends_line = point == 0x2028 || point == 0x2029;
    const bool turns = (point >= 0x202A && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069);
    const bool marks_turn = point == 0x061C || point == 0x200E || point == 0x200F;
    return is_c0_or_c1 || ends_line || turns || marks_turn;
}

/* Writes the byte that begins no character. */
static void show_byte(char byte, char shown[SW_VISIBLE_CHARS]) {
    snprintf(shown, SW_VISIBLE_CHARS, "\\x%02x", (unsigned char)byte);
}

size_t sw_visible_next(const char *text, size_t bytes, char shown[SW_VISIBLE_CHARS]) {
    shown[0] = '\0';
    if (bytes == 0)
        return 0;
    const struct sw_utf8_sequence next = sw_utf8_first(text, bytes);
    if (next.kind == SW_UTF8_CUT)
        return 0;
    if (next.kind == SW_UTF8_BROKEN) {
        show_byte(text[0], shown);
        return 1;
    }
    if (is_control(next.code) && next.code != '\n' && next.code != '\t') {
        snprintf(shown, SW_VISIBLE_CHARS, "\\u%04x", next.code & 0xFFFF);
    } else {
        memcpy(shown, text, next.bytes);
        shown[next.bytes] = '\0';
    }
    return next.bytes;
}

size_t sw_visible_line(const char *text, char *out, size_t room) {
    size_t used = 0;
    char shown[SW_VISIBLE_CHARS];
    for (size_t left = strlen(text), taken; left > 0; text += taken, left -= taken) {
        taken = sw_visible_next(text, left, shown);
        if (taken == 0) {
            show_byte(text[0], shown);
            taken = 1;
        }
        const char *as = shown[0] == '\n' ? "\\n" : shown;
        const size_t chars = strlen(as);
        if (used + chars >= room)
            break;
        memcpy(out + used, as, chars);
        used += chars;
    }
    out[used] = '\0';
    return used;
}
