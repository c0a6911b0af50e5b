/* The characters of UTF-8 (RFC 3629). */
#ifndef SW_CORE_TEXT_TEXT_H
#define SW_CORE_TEXT_TEXT_H

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

/* Text of files and other people, made fit to show: a terminal obeys control characters, which set its title, write the
 * clipboard or clear what was said before, and characters that turn the direction of writing let text read as another.
 * They are shown as in JSON strings and C, a code point as \u001b, a byte that is no UTF-8 as \x9b, the end of a line
 * as \n. */
enum { SW_VISIBLE_CHARS = 8 };
/* Writes how the first character of the text is shown, zero-terminated; tabs and the ends of lines stay as they are.
 * Returns how many bytes of the text the character has. 0: the text ends within it, or is empty. */
size_t sw_visible_next(const char *text, size_t bytes, char shown[SW_VISIBLE_CHARS]);
/* Writes how a line of text is shown, zero-terminated and cut after the last whole character that `room` holds. The
 * ends of lines are shown, too: else a name could begin a line of its own. Returns the bytes written without the zero.
 */
size_t sw_visible_line(const char *text, char *out, size_t room);

/* Finds the known name that a mistyped one was probably meant to be. */
struct sw_nearest {
    const char *typed;
    int typed_chars;
    const char *name; /* the nearest name so far; NULL: none is near. Borrowed from sw_nearest_consider's caller */
    int distance;
};

/* Begins a search for the name nearest to the first `chars` characters of `typed`, which must outlive the search. */
struct sw_nearest sw_nearest_begin(const char *typed, size_t chars);
/* Considers a known name, and keeps it if it is nearer than those before. */
void sw_nearest_consider(struct sw_nearest *nearest, const char *name);

#endif
