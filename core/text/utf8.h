/* The characters of UTF-8 (RFC 3629). */
#ifndef SW_CORE_TEXT_UTF8_H
#define SW_CORE_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* A sequence at the beginning of a text. */
struct sw_utf8_sequence {
    enum { SW_UTF8_WHOLE, SW_UTF8_BROKEN, SW_UTF8_CUT } kind; /* cut: a character's beginning that the text ends in */
    uint32_t code;                                            /* of a whole one */
    size_t bytes; /* of the character; of the maximal subpart that a replacement character stands for (Unicode 3.9) */
};

/* Reads the sequence at the beginning of a text of at least one byte. */
struct sw_utf8_sequence sw_utf8_first(const char *text, size_t bytes);

#endif
