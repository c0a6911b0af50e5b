#include "train/documents/text_inputs.h"

#include <errno.h>
#include <fts.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LEAST_ROOM = 16 };

static bool ends_in_any(const char *path, const char *const *endings, size_t count) {
    size_t chars = strlen(path);
    if (chars > 3 && strcmp(path + chars - 3, ".gz") == 0)
        chars -= 3;
    else if (chars > 4 && strcmp(path + chars - 4, ".zst") == 0)
        chars -= 4;
    for (size_t i = 0; i < count; i++) {
        const size_t ending = strlen(endings[i]);
        if (chars > ending && memcmp(path + chars - ending, endings[i], ending) == 0)
            return true;
    }
    return false;
}

bool sw_text_is_json(const char *path) {
    static const char *const endings[] = {".jsonl"};
    return ends_in_any(path, endings, 1);
}

bool sw_text_is_readable(const char *path) {
    static const char *const endings[] = {".txt", ".md", ".jsonl"};
    return ends_in_any(path, endings, 3);
}

static sw_status add(struct sw_text_inputs *inputs, const char *path) {
    if (inputs->count == inputs->room) {
        const int room = inputs->room == 0 ? LEAST_ROOM : inputs->room * 2;
        char **grown = reallocarray(inputs->path, (size_t)room, sizeof *grown);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to list text files");
        inputs->path = grown;
        inputs->room = room;
    }
    inputs->path[inputs->count] = strdup(path);
    if (inputs->path[inputs->count] == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to list text files");
    inputs->count++;
    return SW_OK;
}

static int by_name(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static sw_status add_entry(struct sw_text_inputs *inputs, const FTSENT *entry) {
    if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS)
        return sw_fail(SW_ERR_IO, "%s: %s", entry->fts_path, strerror(entry->fts_errno));
    return entry->fts_info == FTS_F && sw_text_is_readable(entry->fts_path) ? add(inputs, entry->fts_path) : SW_OK;
}

static sw_status add_folder(struct sw_text_inputs *inputs, const char *folder) {
    char *roots[] = {strdup(folder), NULL};
    FTS *walk = roots[0] != NULL ? fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, by_name) : NULL;
    sw_status status = walk != NULL ? SW_OK : sw_fail(SW_ERR_IO, "%s: %s", folder, strerror(errno));
    for (const FTSENT *entry; status == SW_OK && (entry = fts_read(walk)) != NULL;)
        status = add_entry(inputs, entry);
    if (walk != NULL)
        fts_close(walk);
    free(roots[0]);
    return status;
}

static sw_status add_name(struct sw_text_inputs *inputs, const char *name, bool is_match);

static sw_status add_pattern(struct sw_text_inputs *inputs, const char *pattern) {
    glob_t found = {0};
    const int result = glob(pattern, 0, NULL, &found);
    sw_status status =
        result == 0 || result == GLOB_NOMATCH ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be listed", pattern);
    for (size_t i = 0; status == SW_OK && result == 0 && i < found.gl_pathc; i++)
        status = add_name(inputs, found.gl_pathv[i], true);
    globfree(&found);
    return status;
}

/* Adds the files of a name; of what a pattern matches, only those that are readable. */
static sw_status add_name(struct sw_text_inputs *inputs, const char *name, bool is_match) {
    struct stat info;
    const bool is_there = stat(name, &info) == 0;
    if (is_there && S_ISDIR(info.st_mode))
        return add_folder(inputs, name);
    if (!is_match && !is_there && strpbrk(name, "*?[") != NULL)
        return add_pattern(inputs, name);
    return is_match && !sw_text_is_readable(name) ? SW_OK : add(inputs, name);
}

sw_status sw_text_inputs_expand(const char *const *names, int count, struct sw_text_inputs *out) {
    *out = (struct sw_text_inputs){0};
    for (int i = 0; i < count; i++) {
        const int before = out->count;
        sw_status status = add_name(out, names[i], false);
        if (status == SW_OK && out->count == before)
            status =
                sw_fail(SW_ERR_ARG, "%s has no file of text (.txt, .md or .jsonl, also with .gz or .zst)", names[i]);
        if (status != SW_OK) {
            sw_text_inputs_release(out);
            return status;
        }
    }
    return SW_OK;
}

void sw_text_inputs_release(struct sw_text_inputs *inputs) {
    for (int i = 0; i < inputs->count; i++)
        free(inputs->path[i]);
    free(inputs->path);
    *inputs = (struct sw_text_inputs){0};
}
