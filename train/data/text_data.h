/* Text as training data: its tokens, made once and kept in the cache of this user. */
#ifndef SW_TRAIN_DATA_TEXT_DATA_H
#define SW_TRAIN_DATA_TEXT_DATA_H

#include "train/settings/settings.h"

/* Replaces text in --data and --val (.jsonl, packed files, folders, patterns, and .txt and .md unless the vocabulary is
 * of bytes) by token files of the model's tokenizer, packed into sequences of --seq. They lie in the cache under a name
 * that follows from the text, the tokenizer and the settings, and are made where they are not there. `may_make` is for
 * one process of a job alone; the others refuse files that they do not see. Without a tokenizer.json, nothing is
 * replaced. --seq is resolved. */
sw_status sw_text_data_prepare(struct sw_settings *settings, int64_t vocab, bool may_make);

#endif
