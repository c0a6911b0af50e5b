/* Where a long text may be cut into parts whose tokens, one after the other, are those of the whole: before a space
 * between two English words, and behind the end of a line between words or Chinese characters. The tokenizer has to
 * take parts (sw_tokenizer_takes_parts). */
#ifndef SW_TRAIN_TEXT_TEXT_CUT_H
#define SW_TRAIN_TEXT_TEXT_CUT_H

#include "train/text/buffer.h"

/* Returns the last place that is not before `from`, which is in the text; 0: there is none. The text is valid UTF-8. */
size_t sw_text_cut(struct sw_text text, size_t from);

#endif
