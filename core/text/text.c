#include "core/text/text.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Table of what may follow a lead byte: the number of continuation bytes, and the range of the first of them (Unicode,
 * table 3-7). */
struct lead {
    uint8_t more, least, most;
};

static struct lead lead_of(unsigned char byte) {
    enum { FIRST = 0x80, LAST = 0xBF };
    if (byte >= 0xC2 && byte <= 0xDF)
        return (struct lead){1, FIRST, LAST};
    if (byte == 0xE0)
        return (struct lead){2, 0xA0, LAST};
    if (byte == 0xED)
        return (struct lead){2, FIRST, 0x9F};
    if (byte >= 0xE1 && byte <= 0xEF)
        return (struct lead){2, FIRST, LAST};
    if (byte == 0xF0)
        return (struct lead){3, 0x90, LAST};
    if (byte >= 0xF1 && byte <= 0xF3)
        return (struct lead){3, FIRST, LAST};
    if (byte == 0xF4)
        return (struct lead){3, FIRST, 0x8F};
    return (struct lead){0};
}

struct sw_utf8_sequence sw_utf8_first(const char *text, size_t bytes) {
    const unsigned char *byte = (const unsigned char *)text;
    if (byte[0] < 0x80)
        return (struct sw_utf8_sequence){.kind = SW_UTF8_WHOLE, .code = byte[0], .bytes = 1};
    const struct lead lead = lead_of(byte[0]);
    if (lead.more == 0)
        return (struct sw_utf8_sequence){.kind = SW_UTF8_BROKEN, .bytes = 1};
    uint32_t code = byte[0] & (0x3FU >> lead.more);
    for (size_t i = 1; i <= lead.more; i++) {
        if (i == bytes)
            return (struct sw_utf8_sequence){.kind = SW_UTF8_CUT, .bytes = i};
        const bool fits = i == 1 ? byte[i] >= lead.least && byte[i] <= lead.most : (byte[i] & 0xC0) == 0x80;
        if (!fits)
            return (struct sw_utf8_sequence){.kind = SW_UTF8_BROKEN, .bytes = i};
        code = code << 6 | (byte[i] & 0x3FU);
    }
    return (struct sw_utf8_sequence){.kind = SW_UTF8_WHOLE, .code = code, .bytes = lead.more + 1U};
}

/* Tells whether a terminal obeys the code point, or uses it to lay text out in another order or on another line. */
static bool is_control(uint32_t point) {
    const bool is_c0_or_c1 = point < 0x20 || (point >= 0x7F && point < 0xA0);
    const bool ends_line = point == 0x2028 || point == 0x2029;
    const bool turns = (point >= 0x202A && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069);
    const bool marks_turn = point == 0x061C || point == 0x200E || point == 0x200F;
    return is_c0_or_c1 || ends_line || turns || marks_turn;
}

/* Writes a byte that begins no character. */
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

enum { TYPED_MAX_CHARS = 63, MOST_EDITS = 3, CHARS_PER_EDIT = 3 };

static int min_int(int a, int b) {
    return a < b ? a : b;
}

/* Returns the Levenshtein distance: the fewest edits (a character added, removed or changed) between two texts. */
static int edit_distance(const char *a, int a_chars, const char *b, int b_chars) {
    int row[TYPED_MAX_CHARS + 1];
    assert(b_chars >= 0 && b_chars <= TYPED_MAX_CHARS);
    for (int j = 0; j <= b_chars; j++)
        row[j] = j;
    for (int i = 1; i <= a_chars; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= b_chars; j++) {
            const int changed = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = min_int(changed, 1 + min_int(row[j], row[j - 1]));
        }
    }
    return row[b_chars];
}

struct sw_nearest sw_nearest_begin(const char *typed, size_t chars) {
    /* A name that is more edits away is no likely typing error. */
    const int edits = chars > TYPED_MAX_CHARS ? -1 : min_int(MOST_EDITS, (int)chars / CHARS_PER_EDIT);
    return (struct sw_nearest){.typed = typed, .typed_chars = (int)chars, .distance = edits + 1};
}

void sw_nearest_consider(struct sw_nearest *nearest, const char *name) {
    if (nearest->distance == 0)
        return;
    const int distance = edit_distance(name, (int)strlen(name), nearest->typed, nearest->typed_chars);
    if (distance < nearest->distance) {
        nearest->distance = distance;
        nearest->name = name;
    }
}
