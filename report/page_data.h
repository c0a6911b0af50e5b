/* Writes the page's data: JSON in ASCII, whose members are followed by a comma each. */
#ifndef SW_REPORT_PAGE_DATA_H
#define SW_REPORT_PAGE_DATA_H

#include <jansson.h>
#include <stdio.h>

/* Digits are more than a curve shows, and few enough for a small page: of what the page states as numbers, and of what
 * it only draws. */
enum { SW_STATED_DIGITS = 6, SW_DRAWN_DIGITS = 4 };

/* Writes a number; null: it is not finite. */
void sw_put_digits(FILE *to, double value, int digits);
/* Writes a member that is a whole number of any size, with all digits. */
void sw_put_whole(FILE *to, const char *name, double value);
/* Write a value, or a member; NULL is null. */
void sw_put_value(FILE *to, const json_t *value);
void sw_put_json(FILE *to, const char *name, const json_t *value);
/* Writes a text as a member. Names of folders may have any bytes, so those that are no UTF-8 become question marks. */
void sw_put_text(FILE *to, const char *name, const char *text);

#endif
