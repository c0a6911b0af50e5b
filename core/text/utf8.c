#include "core/text/utf8.h"

#include <stdbool.h>

/* The bytes that may follow a lead byte: how many continuation bytes, and the range of the first of them (Unicode,
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
