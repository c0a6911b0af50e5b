/* The text files that names stand for: files, folders of them, patterns, and standard input. */
#ifndef SW_TEXT_DOCUMENTS_TEXT_INPUTS_H
#define SW_TEXT_DOCUMENTS_TEXT_INPUTS_H

#include "core/status.h"
#include "text/unicode.h"

#include <stdbool.h>

/* The name of standard input. */
#define SW_TEXT_STDIN "-"

enum { SW_TEXT_LEFT_NAMED = 5 };

struct sw_text_inputs {
    char **path; /* owned */
    int count, room;
    bool searched;                       /* a name was a folder or a pattern, so the user may not know its files */
    int left;                            /* entries of folders and patterns that were left out */
    char *left_name[SW_TEXT_LEFT_NAMED]; /* the first of them, each with the reason; owned */
};

/* Tells whether a file's name is one that documents are read from (.txt, .md, .jsonl, .json, also with .gz or .zst); or
 * one of JSON. */
bool sw_text_is_readable(const char *path);
/* Refuses a file of another kind (a table, a document, an archive, a failed download), and says how to make text of it.
 * Judges by its beginning or, if `begin` is empty, by its name. */
sw_status sw_text_refuse_foreign(const char *path, struct sw_text begin);
bool sw_text_is_json(const char *path);

/* Lists the files that names stand for. A folder stands for the readable files below it, sorted by name bytes; a name
 * with * ? [ that is no file stands for its matches. Folders and patterns leave out hidden entries, files that describe
 * data (README.md, dataset_infos.json), other endings, and further links to a file; broken links and unreadable entries
 * are errors. A file named explicitly is always taken. Refuses a folder or pattern without a readable file. The caller
 * releases the list. */
sw_status sw_text_inputs_expand(const char *const *names, int count, struct sw_text_inputs *out);
/* Logs in one line which files folders and patterns stand for, and what was left out. */
void sw_text_inputs_say(const struct sw_text_inputs *inputs);
void sw_text_inputs_release(struct sw_text_inputs *inputs);

#endif
