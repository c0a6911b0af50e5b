/* The text files that names stand for: files, folders of them, patterns, and standard input. */
#ifndef SW_TEXT_DOCUMENTS_TEXT_INPUTS_H
#define SW_TEXT_DOCUMENTS_TEXT_INPUTS_H

#include "core/status.h"
#include "text/utf8.h"

#include <stdbool.h>

/* The name of standard input. */
#define SW_TEXT_STDIN "-"

enum { SW_TEXT_LEFT_NAMED = 5 };

struct sw_text_inputs {
    char **path; /* owned */
    int count, room;
    bool searched;                       /* a name was a folder or a pattern, so that the user may not know its files */
    int left;                            /* entries of folders and patterns that were left out */
    char *left_name[SW_TEXT_LEFT_NAMED]; /* the first of them, each with the reason; owned */
};

/* Tells whether a file's name is that of text that documents are read from (.txt, .md, .jsonl, .json, also with .gz or
 * .zst), or of lines of JSON alone. */
bool sw_text_is_readable(const char *path);
/* Refuses, with the way to text, a file of another kind that its beginning or, where `begin` has no bytes, its name
 * gives away: a table, a document, an archive, or what a failed download left. */
sw_status sw_text_refuse_foreign(const char *path, struct sw_text begin);
bool sw_text_is_json(const char *path);

/* Lists the files behind names. A folder stands for the readable files below it, in the order of their names' bytes; a
 * name with * ? [ that is no file for what it matches. Hidden entries, files that describe data (README.md,
 * dataset_infos.json), other endings, and further links to a file are left out of folders and patterns; a link to
 * nothing and what cannot be read are errors. A file that is named itself is always taken. A folder or pattern without
 * a readable file is refused. The caller releases the list. */
sw_status sw_text_inputs_expand(const char *const *names, int count, struct sw_text_inputs *out);
/* Says in one line which files folders and patterns stand for, and what was left out of them. */
void sw_text_inputs_say(const struct sw_text_inputs *inputs);
void sw_text_inputs_release(struct sw_text_inputs *inputs);

#endif
