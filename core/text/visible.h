/* Text of files and other people, made fit to show: a terminal obeys control characters, which set its title, write the
 * clipboard or clear what was said before, and characters that turn the direction of writing let text read as another.
 * They are shown as in JSON strings and C, a code point as \u001b, a byte that is no UTF-8 as \x9b, the end of a line
 * as \n. */
#ifndef SW_CORE_TEXT_VISIBLE_H
#define SW_CORE_TEXT_VISIBLE_H

#include <stddef.h>

enum { SW_VISIBLE_CHARS = 8 };
/* Writes how the first character of the text is shown, zero-terminated; tabs and the ends of lines stay as they are.
 * Returns how many bytes of the text the character has. 0: the text ends within it, or is empty. */
size_t sw_visible_next(const char *text, size_t bytes, char shown[SW_VISIBLE_CHARS]);
/* Writes how a line of text is shown, zero-terminated and cut after the last whole character that `room` holds. The
 * ends of lines are shown, too: else a name could begin a line of its own. Returns the bytes written without the zero.
 */
size_t sw_visible_line(const char *text, char *out, size_t room);

#endif
