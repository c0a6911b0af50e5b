/* Words of PTX. */
#ifndef SW_TESTS_EQUIPMENT_PTX_TEXT_H
#define SW_TESTS_EQUIPMENT_PTX_TEXT_H

#include "tests/equipment/ptx/ptx.h"

/* A place in a module's text. The first error stays, and then every word is empty. */
struct sw_ptx_text {
    const char *at;
    int32_t line;
    char *error; /* of SW_PTX_ERROR_CHARS; "" while there is none */
};

/* A word: a name with its dots ("ld.global.f32", "%r12", ".reg", "shared::cta" too), a number, or a single character.
 */
struct sw_ptx_word {
    const char *text;
    int chars; /* 0 at the end */
};

struct sw_ptx_word sw_ptx_next(struct sw_ptx_text *text);
struct sw_ptx_word sw_ptx_peek(const struct sw_ptx_text *text);
bool sw_ptx_is(struct sw_ptx_word word, const char *text);
/* Passes a word if it is next, and says whether it was. */
bool sw_ptx_take(struct sw_ptx_text *text, const char *word);
/* It is an error if the word is not next. */
void sw_ptx_expect(struct sw_ptx_text *text, const char *word);
/* Returns a number: decimal or hexadecimal, with a sign or without; it is an error if none is next. */
int64_t sw_ptx_number(struct sw_ptx_text *text);
/* Passes everything up to the brace that closes the one before. */
void sw_ptx_pass_braces(struct sw_ptx_text *text);
__attribute__((format(printf, 2, 3))) void sw_ptx_refuse(struct sw_ptx_text *text, const char *format, ...);

#endif
