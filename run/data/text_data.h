/* Text as training data: its tokens, made once and kept in the cache of this user. */
#ifndef SW_RUN_DATA_TEXT_DATA_H
#define SW_RUN_DATA_TEXT_DATA_H

#include "job/settings/settings.h"
#include "text/documents/text_file.h"
#include "text/documents/tokenize_files.h"

#include <limits.h>

/* How text becomes tokens. */
struct sw_text_data_spec {
    const char *model;       /* folder with a tokenizer.json */
    const char *chat_format; /* a format's name, or "auto" for that of the model's chat template */
    const char *field;       /* member of JSON objects that has the text; NULL: by schema (json_document.h) */
    bool skip_bad;           /* JSON documents that are wrong are left out */
    struct sw_text_coding coding;
    int bos;        /* SW_BOS_... */
    bool old_rules; /* as in sw_tokenize_spec */
    bool all_loss;  /* chats and completions have a loss as a whole, not only what the model is to write */
    int64_t seq;    /* tokens of a sequence, into which documents are packed */
    int threads;
    bool may_make; /* else a token file that is not there is an error */
};

/* Tells whether a name is of text that becomes tokens, with a model that has a tokenizer.json: .jsonl, packed files,
 * folders, patterns, and .txt and .md unless the vocabulary is of bytes. */
bool sw_text_data_is(const char *name, int64_t vocab);

/* Writes the path of the token file of some text, which lies in the cache under a name that follows from the text, the
 * tokenizer and the settings, and makes it where it is not there. */
sw_status sw_text_data_find(const struct sw_text_data_spec *spec, const char *const *names, int count,
                            char path[PATH_MAX]);

/* Refuses what a specification says of text (--loss, --chat-format, --field ...) for a file that is read as
 * tokens already. */
sw_status sw_text_data_refuse_flags(const struct sw_text_data_spec *spec, const char *file);
/* Refuses these flags where neither --data nor --val has text that becomes tokens. */
sw_status sw_text_data_check(const struct sw_settings *settings, int64_t vocab);

/* The files that names of text stood for, of which folders and patterns may stand for others later. */
struct sw_text_files {
    int64_t count, bytes; /* 0: not known, as an older version began the run */
    uint64_t digest;      /* of their names, without their folders, and sizes */
};

/* The text that --data and --val of a run named, as absolute paths; empty where they named tokens. A zeroed struct is
 * empty; its user releases the lists. */
struct sw_text_sources {
    struct sw_option_list data, val; /* val has one entry at most */
    struct sw_text_files data_files, val_files;
};

/* Replaces text in --data and --val by token files, and notes the text in `sources`. A token file that is gone is made
 * again of the sources; says where these stand for other files than they did. `may_make` is for one process of a job
 * alone; the others refuse files that they do not see. `model` is the folder of the tokenizer; without a tokenizer.json
 * there, or with NULL, nothing is replaced. --seq is resolved. */
sw_status sw_text_data_prepare(struct sw_settings *settings, const char *model, int64_t vocab, bool may_make,
                               struct sw_text_sources *sources);

/* Estimates the tokens of --data where it is text that becomes tokens; out->tokens is 0 where it is not. Writes
 * nothing. --seq is resolved. */
sw_status sw_text_data_estimate(const struct sw_settings *settings, int64_t vocab, struct sw_token_estimate *out);

#endif
