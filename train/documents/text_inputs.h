/* The text files that names stand for: files, folders of them, patterns, and standard input. */
#ifndef SW_TRAIN_DOCUMENTS_TEXT_INPUTS_H
#define SW_TRAIN_DOCUMENTS_TEXT_INPUTS_H

#include "core/status.h"

#include <stdbool.h>

/* The name of standard input. */
#define SW_TEXT_STDIN "-"

struct sw_text_inputs {
    char **path; /* owned */
    int count, room;
};

/* Tells whether a file's name is that of text that documents are read from (.txt, .md, .jsonl, also with .gz or .zst),
 * or of lines of JSON alone. */
bool sw_text_is_readable(const char *path);
bool sw_text_is_json(const char *path);

/* Lists the files behind names. A folder stands for all readable files below it, in the order of their names; a name
 * with * ? [ that is no file for what it matches. A folder or pattern without a readable file is refused. The caller
 * releases the list. */
sw_status sw_text_inputs_expand(const char *const *names, int count, struct sw_text_inputs *out);
void sw_text_inputs_release(struct sw_text_inputs *inputs);

#endif
