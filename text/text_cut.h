/* Where a long text may be cut into parts whose tokens, one after the other, are those of the whole: before a space
 * between two English words, and behind the end of a line between words or Chinese characters. */
#ifndef SW_TEXT_TEXT_CUT_H
#define SW_TEXT_TEXT_CUT_H

#include "text/buffer.h"

/* The ways in which a tokenizer takes a text in parts (sw_tokenizer_parts). */
enum sw_text_parts {
    SW_TEXT_WHOLE,    /* it may not be cut */
    SW_TEXT_IN_PARTS, /* at any of these places */
    /* At spaces, each of which is left out: the tokenizer puts what stands for a space before each text. */
    SW_TEXT_IN_WORDS
};

/* A place. */
struct sw_text_cut {
    size_t end;   /* of the first part; 0: there is no place */
    size_t begin; /* of the second part */
};

/* Returns the last place that is not before `from`, which is in the text. The text is valid UTF-8. */
struct sw_text_cut sw_text_cut(struct sw_text text, enum sw_text_parts parts, size_t from);

#endif
