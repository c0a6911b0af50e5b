/* Text as training data: its tokens, made once and kept in the user's cache. */
#ifndef SW_RUN_DATA_TEXT_DATA_H
#define SW_RUN_DATA_TEXT_DATA_H

#include "job/job.h"
#include "job/settings/settings.h"
#include "text/documents/text_file.h"
#include "text/documents/tokenize_files.h"

#include <limits.h>

/* How text becomes tokens. */
struct sw_text_data_spec {
    const char *model;       /* folder with a tokenizer.json */
    const char *chat_format; /* name of a chat format, or "auto" for that of the model's chat template */
    const char *field;       /* member of JSON objects that holds the text; NULL: decided by schema (json_document.h) */
    bool skip_bad;           /* leave out JSON documents that are wrong */
    struct sw_text_coding coding;
    int bos;        /* SW_BOS_... */
    bool old_rules; /* as in sw_tokenize_spec */
    bool pairs;     /* the text is pairs of replies, whose sequences are not packed */
    bool all_loss;  /* chats and completions have a loss as a whole, not only on what the model is to write */
    int64_t seq;    /* tokens of a sequence, into which documents are packed */
    int threads;
    bool may_make; /* false: a missing token file is an error */
};

/* Tells whether a name is of text that becomes tokens, for a model that has a tokenizer.json: .jsonl, packed files,
 * folders, patterns, and, unless tokens are bytes, .txt and .md. */
bool sw_text_data_is(const char *name, int64_t vocab);

/* Writes the path of a text's token file, and makes the file if it does not exist. The file is in the cache, under a
 * name that follows from the text, the tokenizer and the settings. */
sw_status sw_text_data_find(const struct sw_text_data_spec *spec, const char *const *names, int count,
                            char path[PATH_MAX]);

/* Refuses flags about text (--loss, --chat-format, --field ...) for a file that is already tokens. */
sw_status sw_text_data_refuse_flags(const struct sw_text_data_spec *spec, const char *file);
/* Refuses these flags if neither --data nor --val has text that becomes tokens. */
sw_status sw_text_data_check(const struct sw_settings *settings, int64_t vocab);

/* The files that names of text stood for. Folders and patterns may stand for others later. */
struct sw_text_files {
    int64_t count, bytes; /* 0: unknown, because an older version began the run */
    uint64_t digest;      /* of their names, without folders, and sizes */
    uint64_t content;     /* digest of their bytes; 0: unknown, because an older version began the run */
    int64_t modified_ns;  /* when the last of them was written to, since 1970 */
};

/* The text that --data and --val of a run named, as absolute paths; empty where they named tokens. A zeroed struct is
 * empty; its owner releases the lists. */
struct sw_text_sources {
    struct sw_option_list data, val; /* val has one entry at most */
    struct sw_text_files data_files, val_files;
};

/* Replaces text in --data and --val by token files, and notes the text in `sources`. A token file that is gone is made
 * again from the sources; warns if they now stand for other files. Only one process of a job has `may_make`; the others
 * fail if they do not see the files. `model` is the folder of the tokenizer; if it is NULL or has no tokenizer.json,
 * nothing is replaced. --seq must be resolved. */
sw_status sw_text_data_prepare(struct sw_settings *settings, const char *model, int64_t vocab, bool may_make,
                               struct sw_text_sources *sources);

/* Measures one pass over --data for a plan. Writes nothing and reads few bytes. */

/* Counts token files, estimates the tokens of text, and then resolves the number of steps. Without --data it counts
 * nothing. A function for struct sw_job_spec; context is not used. */
sw_status sw_data_pass_measure(void *context, struct sw_job *job);

#endif
