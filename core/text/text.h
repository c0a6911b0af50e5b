/* The characters of UTF-8 (RFC 3629). */
#ifndef SW_CORE_TEXT_TEXT_H
#define SW_CORE_TEXT_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* A sequence at the beginning of a text. */
struct sw_utf8_sequence {
    enum { SW_UTF8_WHOLE, SW_UTF8_BROKEN, SW_UTF8_CUT } kind; /* cut: the text ends within a character */
    uint32_t code;                                            /* of a whole character */
    size_t bytes; /* length of the character, or of the maximal subpart that one replacement character stands for
                     (Unicode 3.9) */
};

/* Reads the sequence at the beginning of a text of at least one byte. */
struct sw_utf8_sequence sw_utf8_first(const char *text, size_t bytes);

/* Text from files and other people, made safe to show. A terminal obeys control characters, which set its title, write
 * the clipboard or clear earlier output; and characters that turn the writing direction make text read as something
 * else. They are shown as in JSON strings and C: a code point as \u001b, a byte that is not UTF-8 as \x9b, the end of a
 * line as \n. */
enum { SW_VISIBLE_CHARS = 8 };
/* Writes the visible form of the text's first character, zero-terminated; tabs and line ends stay as they are. Returns
 * how many bytes the character has in the text. 0: the text ends within it, or is empty. */
size_t sw_visible_next(const char *text, size_t bytes, char shown[SW_VISIBLE_CHARS]);
/* Writes the visible form of a line of text, zero-terminated and cut after the last whole character that fits `room`.
 * Shows line ends too: otherwise a name could begin a line of its own. Returns the bytes written without the zero. */
size_t sw_visible_line(const char *text, char *out, size_t room);

/* Finds the known name that a mistyped one was probably meant to be. */
struct sw_nearest {
    const char *typed;
    int typed_chars;
    const char *name; /* the nearest name so far, borrowed from sw_nearest_consider's caller; NULL: none is near */
    int distance;
};

/* Begins a search for the name nearest to the first `chars` characters of `typed`, which must outlive the search. */
struct sw_nearest sw_nearest_begin(const char *typed, size_t chars);
/* Considers a known name, and keeps it if it is nearer than those before. */
void sw_nearest_consider(struct sw_nearest *nearest, const char *name);

#endif
