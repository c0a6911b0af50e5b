#include "text/documents/text_inputs.h"

#include "core/files/files.h"
#include "core/log.h"

#include <errno.h>
#include <fts.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAST_ROOM = 16, TAKEN_NAMED = 5, SAID_CHARS = 1536 };

static bool ends_in_any(const char *path, const char *const *endings, size_t count) {
    size_t chars = strlen(path);
    if (chars > 3 && strcasecmp(path + chars - 3, ".gz") == 0)
        chars -= 3;
    else if (chars > 4 && strcasecmp(path + chars - 4, ".zst") == 0)
        chars -= 4;
    for (size_t i = 0; i < count; i++) {
        const size_t ending = strlen(endings[i]);
        if (chars > ending && strncasecmp(path + chars - ending, endings[i], ending) == 0)
            return true;
    }
    return false;
}

bool sw_text_is_json(const char *path) {
    static const char *const endings[] = {".jsonl", ".json", ".ndjson", ".jsonlines"};
    return ends_in_any(path, endings, 4);
}

bool sw_text_is_readable(const char *path) {
    static const char *const endings[] = {".txt", ".md"};
    return sw_text_is_json(path) || ends_in_any(path, endings, 2);
}

/* A kind of file in which people have data and that is not read. */
struct foreign {
    const char *ending, *begin; /* of the name, and of the content; NULL: no sign */
    const char *what, *way;     /* its name, and how to make text of it */
};

static const char by_datasets[] = "write it as JSON lines, such as with load_dataset(...).to_json(...) of datasets";
static const char unpack[] = "unpack it, and give the folder";
static const struct foreign foreigners[] = {
    {".parquet", "PAR1", "Parquet", by_datasets},
    {".arrow", "ARROW1", "Arrow", by_datasets},
    {".feather", "FEA1", "Feather", by_datasets},
    {".csv", NULL, "a table (CSV)", by_datasets},
    {".tsv", NULL, "a table (TSV)", by_datasets},
    {".xlsx", NULL, "a spreadsheet", "save it as CSV, and write that as JSON lines"},
    {".pdf", "%PDF-", "PDF", "take its text out, such as with pdftotext"},
    {".docx", NULL, "a document of Word", "take its text out, such as with pandoc -t plain"},
    {".epub", NULL, "an EPUB", "take its text out, such as with pandoc -t plain"},
    {".html", NULL, "HTML", "take its text out, such as with pandoc -t plain"},
    {".zip", "PK\x03\x04", "packed by ZIP, as archives and documents of office programs are", unpack},
    {".tar", NULL, "an archive of tar", unpack},
    {".tgz", NULL, "an archive of tar", unpack},
    {".7z", "7z\xBC\xAF", "an archive of 7-Zip", unpack},
    {".bz2", "BZh", "packed by bzip2", "unpack it: bunzip2 -k"},
    {".xz",
     "\xFD"
     "7zXZ",
     "packed by xz", "unpack it: xz -dk"},
    {".sqlite", "SQLite format 3", "a data base of SQLite", "write its table as JSON lines: sqlite3 -json"},
    {".pkl", NULL, "a pickle, which is a program", "write what it holds as JSON lines"},
    {".npy", "\x93NUMPY", "an array of NumPy", "write tokens as .bin with array.tofile(...)"},
};

static bool is_foreign(const struct foreign *foreign, const char *path, struct sw_text begin) {
    if (begin.bytes == 0)
        return ends_in_any(path, &foreign->ending, 1);
    const size_t bytes = foreign->begin != NULL ? strlen(foreign->begin) : 0;
    return bytes > 0 && begin.bytes >= bytes && memcmp(begin.data, foreign->begin, bytes) == 0;
}

static const struct foreign *find_foreign(const char *path, struct sw_text begin) {
    for (size_t i = 0; i < sizeof foreigners / sizeof foreigners[0]; i++)
        if (is_foreign(&foreigners[i], path, begin))
            return &foreigners[i];
    return NULL;
}

sw_status sw_text_refuse_foreign(const char *path, struct sw_text begin) {
    const struct foreign *foreign = find_foreign(path, begin);
    const char *pointer = "version https://git-lfs";
    if (begin.bytes >= strlen(pointer) && memcmp(begin.data, pointer, strlen(pointer)) == 0)
        return sw_fail(SW_ERR_ARG, "%s is %s", path, sw_download_fault(begin.data, begin.bytes));
    return foreign == NULL
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "%s is %s, which is not read as text; %s", path, foreign->what, foreign->way);
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

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Tells whether a file describes the data or the folder next to it, as in data sets and repositories. */
static bool describes_data(const char *name) {
    static const char *const stems[] = {"readme",    "license",         "licence",  "copying",      "notice",
                                        "changelog", "contributing",    "citation", "dataset_card", "datasheet",
                                        "security",  "code_of_conduct", "authors",  "requirements", "cmakelists"};
    static const char *const names[] = {"dataset_info.json",
                                        "dataset_infos.json",
                                        "dataset_dict.json",
                                        "state.json",
                                        "metadata.json",
                                        "croissant.json",
                                        "manifest.json",
                                        "index.json",
                                        "config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "generation_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "model.safetensors.index.json",
                                        "package.json",
                                        "preprocessor_config.json"};
    for (size_t i = 0; i < sizeof stems / sizeof stems[0]; i++) {
        const size_t chars = strlen(stems[i]);
        const bool begins = strncasecmp(name, stems[i], chars) == 0;
        if (begins && strchr("._-", name[chars]) != NULL && !sw_text_is_json(name))
            return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Returns why an entry of a folder, or a match of a pattern, is not data; NULL: it is. */
static const char *why_left(const char *path) {
    if (describes_data(last_name(path)))
        return "describes data";
    if (sw_text_is_readable(path))
        return NULL;
    const struct foreign *foreign = find_foreign(path, (struct sw_text){0});
    return foreign != NULL ? foreign->what : "not text";
}

static sw_status leave(struct sw_text_inputs *inputs, const char *path, const char *why) {
    if (inputs->left++ >= SW_TEXT_LEFT_NAMED)
        return SW_OK;
    char **name = &inputs->left_name[inputs->left - 1];
    return asprintf(name, "%s (%s)", path, why) >= 0 ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to list text files");
}

/* Adds a file that was found by searching: a folder's entry or a pattern's match. */
static sw_status add_found(struct sw_text_inputs *inputs, const char *path) {
    const char *why = why_left(path);
    if (why != NULL)
        return leave(inputs, path, why);
    if (access(path, R_OK) != 0)
        return sw_fail(SW_ERR_ARG, "%s: %s; give its user the permission to read it, or move it away", path,
                       strerror(errno));
    return add(inputs, path);
}

static sw_status refuse_link(const char *path) {
    return sw_fail(SW_ERR_ARG, "%s is a link to nothing; restore what it points to, or remove it", path);
}

static sw_status add_entry(struct sw_text_inputs *inputs, FTS *walk, FTSENT *entry) {
    const bool below = entry->fts_level > FTS_ROOTLEVEL;
    if (entry->fts_info == FTS_DP)
        return SW_OK;
    if (below && entry->fts_name[0] == '.') {
        fts_set(walk, entry, FTS_SKIP);
        return leave(inputs, entry->fts_path, "hidden");
    }
    switch (entry->fts_info) {
    case FTS_D: return SW_OK;
    case FTS_DC: return leave(inputs, entry->fts_path, "leads back to a folder above it");
    case FTS_F: return add_found(inputs, entry->fts_path);
    case FTS_SLNONE: return refuse_link(entry->fts_path);
    case FTS_DEFAULT: return leave(inputs, entry->fts_path, "not a regular file");
    default: return sw_fail(SW_ERR_IO, "%s: %s", entry->fts_path, strerror(entry->fts_errno));
    }
}

static sw_status add_folder(struct sw_text_inputs *inputs, const char *folder) {
    char *roots[] = {strdup(folder), NULL};
    FTS *walk = roots[0] != NULL ? fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, by_name) : NULL;
    sw_status status = walk != NULL ? SW_OK : sw_fail(SW_ERR_IO, "%s: %s", folder, strerror(errno));
    inputs->searched = true;
    for (FTSENT *entry; status == SW_OK && (entry = fts_read(walk)) != NULL;)
        status = add_entry(inputs, walk, entry);
    if (walk != NULL)
        fts_close(walk);
    free(roots[0]);
    return status;
}

static int refuse_unreadable(const char *path, int error) {
    (void)path;
    return error == EACCES || error == EIO;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static sw_status add_match(struct sw_text_inputs *inputs, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0)
        return refuse_link(path);
    if (S_ISDIR(info.st_mode))
        return add_folder(inputs, path);
    return S_ISREG(info.st_mode) ? add_found(inputs, path) : leave(inputs, path, "not a regular file");
}

static sw_status add_pattern(struct sw_text_inputs *inputs, const char *pattern) {
    glob_t found = {0};
    const int result = glob(pattern, GLOB_NOSORT, refuse_unreadable, &found);
    sw_status status = SW_OK;
    inputs->searched = true;
    if (result != 0 && result != GLOB_NOMATCH)
        status = sw_fail(SW_ERR_IO, "%s cannot be listed: %s", pattern, strerror(errno));
    if (result == 0) /* glob would sort by locale */
        qsort(found.gl_pathv, found.gl_pathc, sizeof found.gl_pathv[0], by_bytes);
    for (size_t i = 0; status == SW_OK && result == 0 && i < found.gl_pathc; i++)
        status = add_match(inputs, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

struct identity {
    dev_t device;
    ino_t inode;
    int index;
};

static int by_identity(const void *a, const void *b) {
    const struct identity *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    if (x->inode != y->inode)
        return x->inode < y->inode ? -1 : 1;
    return x->index - y->index;
}

/* Removes, from `first` on, files that an earlier one also is, through a link. */
static sw_status leave_doubles(struct sw_text_inputs *inputs, int first) {
    const int count = inputs->count - first;
    struct identity *file = calloc((size_t)count + 1, sizeof *file);
    sw_status status = file != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to list text files");
    for (int i = 0; status == SW_OK && i < count; i++) {
        struct stat info = {0};
        if (stat(inputs->path[first + i], &info) != 0)
            status = sw_fail(SW_ERR_ARG, "%s: %s", inputs->path[first + i], strerror(errno));
        file[i] = (struct identity){info.st_dev, info.st_ino, first + i};
    }
    if (status == SW_OK)
        qsort(file, (size_t)count, sizeof *file, by_identity);
    for (int i = 1; status == SW_OK && i < count; i++) {
        char **path = &inputs->path[file[i].index];
        if (file[i].device != file[i - 1].device || file[i].inode != file[i - 1].inode)
            continue;
        status = leave(inputs, *path, "a second link to a file");
        free(*path);
        *path = NULL;
    }
    free(file);
    int kept = first;
    for (int i = first; i < inputs->count; i++)
        if (inputs->path[i] != NULL)
            inputs->path[kept++] = inputs->path[i];
    inputs->count = kept;
    return status;
}

static sw_status add_name(struct sw_text_inputs *inputs, const char *name) {
    struct stat info;
    const bool is_there = stat(name, &info) == 0;
    const int first = inputs->count;
    if (is_there && S_ISDIR(info.st_mode))
        SW_TRY(add_folder(inputs, name));
    else if (!is_there && strpbrk(name, "*?[") != NULL)
        SW_TRY(add_pattern(inputs, name));
    else
        return add(inputs, name);
    return leave_doubles(inputs, first);
}

/* Appends as much as fits. */
__attribute__((format(printf, 2, 3))) static void append(char text[SAID_CHARS], const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + used, SAID_CHARS - used, format, args);
    va_end(args);
}

static void append_left(const struct sw_text_inputs *inputs, char text[SAID_CHARS]) {
    if (inputs->left > 0)
        append(text, "; left out %d: ", inputs->left);
    for (int i = 0; i < inputs->left && i < SW_TEXT_LEFT_NAMED; i++)
        append(text, "%s%s", i > 0 ? ", " : "", inputs->left_name[i]);
    if (inputs->left > SW_TEXT_LEFT_NAMED)
        append(text, " and %d more", inputs->left - SW_TEXT_LEFT_NAMED);
}

void sw_text_inputs_say(const struct sw_text_inputs *inputs) {
    char text[SAID_CHARS] = "";
    if (!inputs->searched)
        return;
    for (int i = 0; i < inputs->count && i < TAKEN_NAMED; i++)
        append(text, "%s%s", i > 0 ? ", " : "", inputs->path[i]);
    if (inputs->count > TAKEN_NAMED)
        append(text, " and %d more", inputs->count - TAKEN_NAMED);
    append_left(inputs, text);
    sw_log_info("read %d file%s of text: %s", inputs->count, inputs->count == 1 ? "" : "s", text);
}

sw_status sw_text_inputs_expand(const char *const *names, int count, struct sw_text_inputs *out) {
    *out = (struct sw_text_inputs){0};
    for (int i = 0; i < count; i++) {
        char left[SAID_CHARS] = "";
        const int before = out->count;
        sw_status status = add_name(out, names[i]);
        append_left(out, left);
        if (status == SW_OK && out->count == before)
            status = sw_fail(SW_ERR_ARG, "%s has no file of text (.txt, .md, .jsonl or .json, also with .gz or .zst)%s",
                             names[i], left);
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
    for (int i = 0; i < SW_TEXT_LEFT_NAMED; i++)
        free(inputs->left_name[i]);
    free(inputs->path);
    *inputs = (struct sw_text_inputs){0};
}
