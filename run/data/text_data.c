/* Text as training data: tokenized once, kept in the user's cache, found again by digest.
 *
 * The name of a token file is a digest of the text, the tokenizer and every setting that changes tokens, so a changed
 * text or tokenizer can never find stale tokens. Tokenizing on the fly would keep a tokenizer in the training loop, and
 * the number of steps of an epoch would be known only after the first.
 *
 * Processes that want the same file meet at its exclusive lock: one makes it, the others wait. Files in use carry a
 * shared lock, so making room never removes the tokens of a running job. */
#include "run/data/text_data.h"

#include "core/files/cache.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/size.h"
#include "core/status.h"
#include "run/data/data.h"
#include "run/data/token_stream.h"
#include "text/documents/text_inputs.h"
#include "text/documents/token_writer.h"
#include "text/documents/tokenize_files.h"
#include "text/model_text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* All files that belong to a token file begin with its name, such as "tokens-0123456789abcdef.bin". */
#define NAME_BEGINS "tokens-"
#define NAME_ENDS ".bin"
enum { DIGEST_CHARS = 16, NAME_CHARS = sizeof NAME_BEGINS - 1 + DIGEST_CHARS + sizeof NAME_ENDS - 1 };
enum { DAY_S = 24 * 60 * 60, MOST_UNUSED_S = 30 * DAY_S, PARTS_OF_DISK = 10 };

struct entry {
    char name[NAME_CHARS + 1]; /* name of the token file */
    int64_t bytes;             /* size of the token file and all that belongs to it */
    time_t used;               /* time of the last use; for an unfinished file, of the last write */
};

struct entries {
    struct entry *entry;
    size_t count, room;
};

static struct entry *find_or_add(struct entries *all, const char *name) {
    for (size_t i = 0; i < all->count; i++)
        if (memcmp(all->entry[i].name, name, NAME_CHARS) == 0)
            return &all->entry[i];
    if (all->count == all->room) {
        const size_t room = all->room == 0 ? 16 : all->room * 2;
        struct entry *grown = reallocarray(all->entry, room, sizeof *grown);
        if (grown == NULL)
            return NULL;
        all->entry = grown;
        all->room = room;
    }
    struct entry *added = &all->entry[all->count++];
    *added = (struct entry){0};
    memcpy(added->name, name, NAME_CHARS);
    return added;
}

static bool is_of_tokens(const char *name) {
    return strlen(name) >= NAME_CHARS && strncmp(name, NAME_BEGINS, sizeof NAME_BEGINS - 1) == 0 &&
           memcmp(name + NAME_CHARS - (sizeof NAME_ENDS - 1), NAME_ENDS, sizeof NAME_ENDS - 1) == 0;
}

/* Calls `act` for each file of the folder that belongs to a token file. */
static void for_each(const char *folder, void (*act)(int folder_fd, const char *name, void *context), void *context) {
    DIR *list = opendir(folder);
    for (const struct dirent *file; list != NULL && (file = readdir(list)) != NULL;)
        if (is_of_tokens(file->d_name))
            act(dirfd(list), file->d_name, context);
    if (list != NULL)
        closedir(list);
}

static void count_file(int folder_fd, const char *name, void *context) {
    struct stat info;
    struct entry *entry = find_or_add(context, name);
    if (entry == NULL || fstatat(folder_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    const time_t used = strlen(name) == NAME_CHARS ? info.st_atime : info.st_mtime;
    entry->bytes += info.st_size;
    entry->used = used > entry->used ? used : entry->used;
}

/* Tells whether a process has the file open. Data files are opened with a shared lock (token_stream.h), files being
 * written with an exclusive one. */
static bool is_in_use(int folder_fd, const char *name) {
    const int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool in_use = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0)
        close(fd);
    return in_use;
}

/* A token file and the files that belong to it. */
struct group {
    const char *name;
    bool in_use;
};

static void look_at_use(int folder_fd, const char *name, void *context) {
    struct group *group = context;
    if (memcmp(group->name, name, NAME_CHARS) == 0)
        group->in_use |= is_in_use(folder_fd, name);
}

static void remove_file(int folder_fd, const char *name, void *context) {
    const struct group *group = context;
    if (memcmp(group->name, name, NAME_CHARS) == 0)
        (void)unlinkat(folder_fd, name, 0);
}

/* Removes a token file, then what belongs to it: without the tokens, the others count as unfinished. */
static bool remove_group(const char *folder, const char *name) {
    struct group group = {.name = name};
    char path[PATH_MAX];
    for_each(folder, look_at_use, &group);
    if (group.in_use || sw_path_join(path, sizeof path, folder, name) != SW_OK)
        return false;
    (void)unlink(path);
    for_each(folder, remove_file, &group);
    return true;
}

static int by_use(const void *left, const void *right) {
    const struct entry *a = left, *b = right;
    return (a->used > b->used) - (a->used < b->used);
}

static void remove_old(const char *folder, struct entries *all) {
    struct statvfs disk;
    const time_t now = time(NULL);
    int64_t bytes = 0, removed_bytes = 0;
    int removed = 0;
    char size[SW_SIZE_CHARS];
    if (statvfs(folder, &disk) != 0)
        return;
    const int64_t most = (int64_t)(disk.f_blocks * disk.f_frsize / PARTS_OF_DISK);
    for (size_t i = 0; i < all->count; i++)
        bytes += all->entry[i].bytes;
    qsort(all->entry, all->count, sizeof *all->entry, by_use);
    for (size_t i = 0; i < all->count; i++) {
        const struct entry *entry = &all->entry[i];
        const bool is_beyond = bytes > most && now - entry->used > DAY_S;
        if ((!is_beyond && now - entry->used <= MOST_UNUSED_S) || !remove_group(folder, entry->name))
            continue;
        bytes -= entry->bytes;
        removed_bytes += entry->bytes;
        removed++;
    }
    if (removed > 0)
        sw_log_info("removed %d token files (%s) from %s: unused for 30 days, or the oldest beyond a tenth of the disk",
                    removed, sw_format_size(removed_bytes, size), folder);
}

/* Makes room in the cache before a token file is made at `path`, and logs what was removed in one line. A file that
 * cannot be removed stays. */
static void token_cache_make_room(const char *path) {
    struct entries all = {0};
    char *folder = strdup(path);
    char *slash = folder != NULL ? strrchr(folder, '/') : NULL;
    if (slash != NULL) {
        *slash = '\0';
        for_each(folder, count_file, &all);
        /* Qsort must not get a null pointer. */
        if (all.count > 0)
            remove_old(folder, &all);
    }
    free(all.entry);
    free(folder);
}

/* Notes that a token file of the cache is being used. */
static void token_cache_note_use(const char *path) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    (void)utimensat(AT_FDCWD, path, times, 0);
}

enum { WAIT_NS = 100000000, SECOND_NS = 1000000000, BYTE_VOCAB = 256 };

bool sw_text_data_is(const char *name, int64_t vocab) {
    struct stat info;
    const bool is_there = stat(name, &info) == 0;
    if (is_there && S_ISDIR(info.st_mode))
        return true;
    if (!is_there && strpbrk(name, "*?[") != NULL)
        return true;
    return sw_text_is_readable(name) && (vocab != BYTE_VOCAB || !sw_token_stream_is_bytes(name));
}

static sw_status refuse_pipe(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISFIFO(info.st_mode))
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "%s is a pipe, and data are read more than once here; spillway tokenize makes a token file of it",
                   path);
}

/* Adds the times of a file. A change and its reverse between two digests leave the content equal, but not the times. */
static void hash_times(XXH3_state_t *hash, const char *path) {
    struct stat info = {0};
    (void)stat(path, &info);
    const int64_t numbers[] = {(int64_t)info.st_dev, (int64_t)info.st_ino, info.st_size,        info.st_mtim.tv_sec,
                               info.st_mtim.tv_nsec, info.st_ctim.tv_sec,  info.st_ctim.tv_nsec};
    XXH3_64bits_update(hash, numbers, sizeof numbers);
}

/* content: a hash of the files' bytes alone. */
static sw_status hash_inputs(XXH3_state_t *hash, XXH3_state_t *content, const struct sw_text_inputs *inputs) {
    for (int i = 0; i < inputs->count; i++) {
        SW_TRY(refuse_pipe(inputs->path[i]));
        /* The file's ending decides how it is cut into documents. */
        sw_digest_text(hash, sw_text_is_json(inputs->path[i]) ? "lines" : "text");
        SW_TRY(sw_digest_file_twice(hash, content, inputs->path[i]));
    }
    return SW_OK;
}

/* Returns the digest of the bytes of all files in *out. */
static sw_status content_of(const struct sw_text_inputs *inputs, uint64_t *out) {
    XXH3_state_t *content = XXH3_createState();
    if (content == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    XXH3_64bits_reset(content);
    sw_status status = SW_OK;
    for (int i = 0; i < inputs->count && status == SW_OK; i++)
        status = sw_digest_file(content, inputs->path[i]);
    *out = XXH3_64bits_digest(content);
    XXH3_freeState(content);
    return status;
}

/* Returns the digest of the text and of all that decides its tokens in *out, and that of the text in *out_content. */
static sw_status digest_of(const struct sw_text_data_spec *spec, const struct sw_text_inputs *inputs, uint64_t *out,
                           uint64_t *out_content) {
    XXH3_state_t *hash = XXH3_createState(), *content = XXH3_createState();
    if (hash == NULL || content == NULL) {
        XXH3_freeState(hash);
        XXH3_freeState(content);
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    }
    XXH3_64bits_reset(hash);
    XXH3_64bits_reset(content);
    sw_digest_text(hash, SW_TOKENIZE_VERSION);
    XXH3_64bits_update(hash, &spec->seq, sizeof spec->seq);
    sw_digest_text(hash, spec->all_loss ? "all" : "completions");
    sw_digest_text(hash, spec->chat_format);
    sw_digest_text(hash, spec->field);
    sw_digest_text(hash, spec->skip_bad ? "skip" : "refuse");
    sw_digest_text(hash, spec->coding.encoding);
    XXH3_64bits_update(hash, &spec->bos, sizeof spec->bos);
    sw_digest_text(hash, spec->old_rules ? "old" : "new");
    sw_digest_text(hash, spec->coding.lossy ? "lossy" : "strict");
    if (spec->pairs)
        sw_digest_text(hash, "pairs");
    sw_status status = sw_digest_model(hash, spec->model);
    if (status == SW_OK)
        status = hash_inputs(hash, content, inputs);
    *out = XXH3_64bits_digest(hash);
    *out_content = XXH3_64bits_digest(content);
    XXH3_freeState(hash);
    XXH3_freeState(content);
    return status;
}

/* Describes how to tokenize the text. out: the token file to make; NULL: none. */
static struct sw_tokenize_spec how_to_make(const struct sw_text_data_spec *spec, const char *const *names, int count,
                                           const char *out) {
    return (struct sw_tokenize_spec){
        .model = spec->model,
        .names = names,
        .name_count = count,
        .rules = {.field = spec->field,
                  .skip_bad = spec->skip_bad,
                  .pairs = spec->pairs,
                  .chat_format = spec->chat_format,
                  .all_loss = spec->all_loss,
                  .coding = spec->coding},
        .end = "auto",
        .bos = spec->bos,
        .old_rules = spec->old_rules,
        .out = out,
        .threads = spec->threads,
        .pack_seq = spec->seq,
    };
}

/* Text whose tokens go into the cache, named by its digest. */
struct digested {
    const struct sw_text_data_spec *spec;
    const char *const *names;
    int count;
    uint64_t digest, times; /* of the text, and of its files' times before the text was read */
    struct sw_text_files files;
};

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Counts and digests the files that match the names at present. */
static sw_status list_files(const struct sw_text_inputs *inputs, struct sw_text_files *out) {
    XXH3_state_t *hash = XXH3_createState();
    *out = (struct sw_text_files){0};
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    XXH3_64bits_reset(hash);
    for (int i = 0; i < inputs->count; i++) {
        struct stat info;
        if (stat(inputs->path[i], &info) != 0)
            continue;
        const int64_t bytes = info.st_size;
        out->count++;
        sw_digest_text(hash, last_name(inputs->path[i]));
        XXH3_64bits_update(hash, &bytes, sizeof bytes);
        out->bytes += bytes;
        out->modified_ns =
            sw_max_i64(out->modified_ns, (int64_t)info.st_mtim.tv_sec * SECOND_NS + info.st_mtim.tv_nsec);
    }
    out->digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return SW_OK;
}

static sw_status digest_again(const struct digested *text, struct digested *out) {
    struct sw_text_inputs inputs;
    XXH3_state_t *hash = XXH3_createState();
    *out = *text;
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    XXH3_64bits_reset(hash);
    sw_status status = sw_text_inputs_expand(text->names, text->count, &inputs);
    for (int i = 0; status == SW_OK && i < inputs.count; i++)
        hash_times(hash, inputs.path[i]);
    out->times = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (status == SW_OK)
        status = list_files(&inputs, &out->files);
    if (status == SW_OK)
        status = digest_of(text->spec, &inputs, &out->digest, &out->files.content);
    sw_text_inputs_release(&inputs);
    return status;
}

/* Makes sure that the text that was tokenized is the text of the digest. */
static sw_status confirm(void *context) {
    const struct digested *text = context;
    struct digested now;
    SW_TRY(digest_again(text, &now));
    if (now.digest == text->digest && now.times == text->times)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s changed while its tokens were made: begin again once nothing writes to it",
                   text->names[0]);
}

static sw_status make(const struct digested *text, const char *path) {
    struct sw_tokenize_spec how = how_to_make(text->spec, text->names, text->count, path);
    struct sw_tokenized tokenized;
    how.digests = true;
    how.confirm = confirm;
    how.confirm_context = (void *)(uintptr_t)text;
    SW_TRY(sw_tokenize_files(&how, &tokenized));
    sw_tokenized_say(&tokenized, path);
    return SW_OK;
}

/* Returns the inode of the file with this name; 0: there is none. */
static ino_t file_at(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? info.st_ino : 0;
}

/* Makes the token file, or waits for another process that is making it. */
static sw_status make_or_wait(const struct digested *text, const char *path) {
    const ino_t before = file_at(path);
    const struct timespec pause = {.tv_nsec = WAIT_NS};
    struct sw_long_work waiting = sw_long_work_begin("waiting for another process that makes the same tokens", 0);
    for (;;) {
        const sw_status status = make(text, path);
        if (status != SW_ERR_BUSY)
            return status;
        sw_error_clear();
        nanosleep(&pause, NULL);
        SW_TRY(sw_long_work_at(&waiting, 0));
        const ino_t now = file_at(path);
        if (now != 0 && now != before)
            return SW_OK;
    }
}

/* Tells whether a token file is in the cache and undamaged. Files of earlier versions have no digests; only a run that
 * names such a file may use it. */
static sw_status look_in_cache(const char *path, bool may_be_old, bool *out) {
    sw_token_verdict verdict;
    *out = false;
    if (access(path, F_OK) != 0)
        return SW_OK;
    SW_TRY(sw_token_file_check(path, &verdict));
    *out = verdict == SW_TOKENS_RIGHT || (verdict == SW_TOKENS_WITHOUT_DIGESTS && may_be_old);
    if (*out)
        token_cache_note_use(path);
    else if (verdict == SW_TOKENS_DAMAGED)
        sw_log_warn("%s or a file beside it is damaged: it is not as it was written", path);
    return SW_OK;
}

/* Finds the path of the tokens. If they exist already, logs which files they were made from, as making them would. */
static sw_status find_path(struct digested *text, char path[PATH_MAX]) {
    struct sw_text_inputs inputs;
    SW_TRY(digest_again(text, text));
    SW_TRY(sw_cache_file("tokens", text->digest, "bin", path, PATH_MAX));
    if (access(path, F_OK) != 0)
        return SW_OK;
    SW_TRY(sw_text_inputs_expand(text->names, text->count, &inputs));
    sw_text_inputs_say(&inputs);
    sw_text_inputs_release(&inputs);
    return SW_OK;
}

static sw_status find_tokens(struct digested *text, char path[PATH_MAX]) {
    bool is_there;
    SW_TRY(find_path(text, path));
    SW_TRY(look_in_cache(path, false, &is_there));
    if (is_there) {
        sw_log_info("the tokens of %s are in the cache: %s", text->names[0], path);
        return SW_OK;
    }
    if (!text->spec->may_make)
        return sw_fail(SW_ERR_ARG,
                       "%s, which rank 0 has made, is damaged or not visible here; give all ranks the same "
                       "XDG_CACHE_HOME, or token files (spillway tokenize)",
                       path);
    token_cache_make_room(path);
    SW_TRY(make_or_wait(text, path));
    if (sw_cache_is_temporary(path))
        sw_log_warn("the tokens of %s are in %s and may go, as no cache can be written in the home folder; set "
                    "XDG_CACHE_HOME to keep them",
                    text->names[0], path);
    return SW_OK;
}

sw_status sw_text_data_find(const struct sw_text_data_spec *spec, const char *const *names, int count,
                            char path[PATH_MAX]) {
    struct digested text = {.spec = spec, .names = names, .count = count};
    return find_tokens(&text, path);
}

static struct sw_text_data_spec spec_of(const struct sw_settings *settings, const char *model, bool may_make) {
    return (struct sw_text_data_spec){
        .model = model,
        .chat_format = settings->chat_format,
        .field = settings->field,
        .skip_bad = settings->skip_bad,
        .pairs = settings->dpo,
        .coding = {.encoding = settings->encoding, .lossy = settings->lossy || settings->old_text},
        .bos = settings->bos,
        .old_rules = settings->old_text,
        .all_loss = settings->loss == SW_LOSS_ALL,
        .seq = settings->seq,
        .threads = settings->threads > 0 ? (int)settings->threads : sw_machine_cores(),
        .may_make = may_make,
    };
}

sw_status sw_text_data_refuse_flags(const struct sw_text_data_spec *spec, const char *file) {
    const char *flag = NULL;
    if (spec->all_loss)
        flag = "--loss";
    else if (strcmp(spec->chat_format, "auto") != 0)
        flag = "--chat-format";
    else if (spec->field != NULL)
        flag = "--field";
    else if (spec->skip_bad)
        flag = "--skip-bad";
    else if (spec->bos != SW_BOS_AUTO)
        flag = "--bos";
    else if (spec->coding.encoding != NULL)
        flag = "--encoding";
    else if (spec->coding.lossy)
        flag = "--lossy";
    if (flag == NULL)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "%s says how text and chats become tokens, but %s is read as tokens already; give it to spillway "
                   "tokenize when it makes the file",
                   flag, file);
}

sw_status sw_text_data_check(const struct sw_settings *settings, int64_t vocab) {
    const bool has_tokenizer = sw_model_text_is_there(settings->model);
    const char *file;
    double percent;
    SW_TRY(sw_settings_validation(settings, &percent, &file));
    bool has_text = has_tokenizer && file != NULL && sw_text_data_is(file, vocab);
    for (int i = 0; i < settings->data.count; i++)
        has_text |= has_tokenizer && sw_text_data_is(settings->data.items[i], vocab);
    const struct sw_text_data_spec spec = spec_of(settings, settings->model, false);
    return has_text ? SW_OK : sw_text_data_refuse_flags(&spec, settings->data.items[0]);
}

static sw_status add_absolute(struct sw_option_list *list, const char *name) {
    char *path = sw_path_absolute(name);
    const sw_status status = sw_option_list_add(list, path != NULL ? path : name);
    free(path);
    return status;
}

/* Text that a run named: the flag, and what the run keeps about it. */
struct noted {
    const char *flag;
    struct sw_option_list *sources;
    struct sw_text_files *files;
};

/* Notes the text in the run, and finds or makes its tokens. */
static sw_status note_and_find(const struct sw_text_data_spec *spec, const struct sw_option_list *texts,
                               const struct noted *noted, char path[PATH_MAX]) {
    struct sw_option_list absolute = {0};
    struct digested text = {.spec = spec, .names = (const char *const *)texts->items, .count = texts->count};
    sw_status status = find_tokens(&text, path);
    for (int i = 0; status == SW_OK && i < texts->count; i++)
        status = add_absolute(&absolute, texts->items[i]);
    sw_option_list_release(noted->sources);
    *noted->sources = absolute;
    *noted->files = text.files;
    return status;
}

/* Tells whether files of the same names and sizes have other bytes than when the run began. Reads them only if one was
 * written to since, or is a copy. */
static bool is_edited(const struct sw_text_files *then, const struct sw_text_files *now,
                      const struct sw_text_inputs *inputs) {
    uint64_t content = 0;
    return then->content != 0 && now->modified_ns != then->modified_ns && content_of(inputs, &content) == SW_OK &&
           content != then->content;
}

/* Warns if names of text stand for other files than when the run began, or for edited ones. `goes_on`: the run
 * continues with the tokens of the old files. */
static void say_changes(const struct noted *noted, bool goes_on) {
    SW_HANDLES_ERRORS(); /* text that cannot be read is no error while its tokens exist, and fails later otherwise */
    const struct sw_option_list *sources = noted->sources;
    const struct sw_text_files *then = noted->files;
    const char *more = sources->count > 1 ? " ..." : "", *keeps = "; the run goes on with the tokens of what it meant";
    struct sw_text_inputs inputs;
    struct sw_text_files now = {0};
    char bytes_then[SW_SIZE_CHARS], bytes_now[SW_SIZE_CHARS];
    bool edited = false;
    if (then->count == 0)
        return;
    if (sw_text_inputs_expand((const char *const *)sources->items, sources->count, &inputs) == SW_OK) {
        (void)list_files(&inputs, &now);
        edited = now.count > 0 && now.digest == then->digest && is_edited(then, &now, &inputs);
        sw_text_inputs_release(&inputs);
    }
    const bool same_sums = now.count == then->count && now.bytes == then->bytes;
    if (edited)
        sw_log_info("%s %s%s was edited since the run began%s", noted->flag, sources->items[0], more,
                    goes_on ? keeps : "");
    if (now.count == 0 && goes_on)
        sw_log_info("%s %s%s is gone or cannot be read%s", noted->flag, sources->items[0], more, keeps);
    else if (now.count > 0 && (!same_sums || now.digest != then->digest))
        sw_log_info("%s %s%s meant %s of %s when the run began and means %s of %s now%s%s", noted->flag,
                    sources->items[0], more, SW_COUNT(then->count, "file"), sw_format_size(then->bytes, bytes_then),
                    SW_COUNT(now.count, "file"), sw_format_size(now.bytes, bytes_now),
                    same_sums ? ", with other names or sizes" : "", goes_on ? keeps : "");
}

/* Makes tokens from the sources again if the token files are gone. *out_path is empty if they exist. */
static sw_status find_again(const struct sw_text_data_spec *spec, const char *tokens, const struct noted *noted,
                            char out_path[PATH_MAX]) {
    const struct sw_option_list *sources = noted->sources;
    bool is_there;
    out_path[0] = '\0';
    if (sources->count == 0)
        return SW_OK;
    SW_TRY(look_in_cache(tokens, true, &is_there));
    if (spec->may_make)
        say_changes(noted, is_there);
    if (is_there)
        return SW_OK;
    sw_log_info("%s is %s and is made again of %s", tokens, access(tokens, F_OK) == 0 ? "damaged" : "gone",
                sources->items[0]);
    return sw_fail_while(sw_text_data_find(spec, (const char *const *)sources->items, sources->count, out_path),
                         "making the tokens of this run again; if its text was moved, --data (or --val) says where it "
                         "is now");
}

/* Counts the names of text, and refuses a mixture of text and token files. */
static sw_status count_texts(const struct sw_option_list *data, int64_t vocab, int *out) {
    *out = 0;
    for (int i = 0; i < data->count; i++)
        *out += sw_text_data_is(data->items[i], vocab);
    if (*out > 0 && *out < data->count)
        return sw_fail(SW_ERR_ARG, "--data has both token files and text; give one kind, or make tokens of the text "
                                   "with spillway tokenize");
    return SW_OK;
}

/* Estimates the tokens of --data if it is text; otherwise out->tokens is 0. Writes nothing. --seq must be resolved. */
static sw_status text_data_estimate(const struct sw_settings *settings, int64_t vocab, struct sw_token_estimate *out) {
    const struct sw_text_data_spec spec = spec_of(settings, settings->model, false);
    const struct sw_option_list *data = &settings->data;
    int texts = 0;
    *out = (struct sw_token_estimate){0};
    if (sw_model_text_is_there(settings->model))
        SW_TRY(count_texts(data, vocab, &texts));
    if (texts == 0)
        return SW_OK;
    for (int i = 0; i < data->count; i++)
        SW_TRY(refuse_pipe(data->items[i]));
    const struct sw_tokenize_spec how = how_to_make(&spec, (const char *const *)data->items, data->count, NULL);
    return sw_tokenize_estimate(&how, out);
}

static sw_status prepare_data(const struct sw_text_data_spec *spec, struct sw_option_list *data, int64_t vocab,
                              const struct noted *noted) {
    int texts;
    char path[PATH_MAX];
    SW_TRY(count_texts(data, vocab, &texts));
    SW_TRY(texts > 0 ? note_and_find(spec, data, noted, path) : find_again(spec, data->items[0], noted, path));
    if (path[0] == '\0')
        return SW_OK;
    sw_option_list_release(data);
    return sw_option_list_add(data, path);
}

static sw_status prepare_validation(const struct sw_text_data_spec *spec, struct sw_settings *settings, int64_t vocab,
                                    const struct noted *noted) {
    double percent;
    const char *file;
    SW_TRY(sw_settings_validation(settings, &percent, &file));
    if (file == NULL)
        return SW_OK;
    struct sw_option_list data = {0};
    sw_status status = sw_option_list_add(&data, file);
    if (status == SW_OK)
        status = prepare_data(spec, &data, vocab, noted);
    if (status == SW_OK) {
        free(settings->val);
        settings->val = strdup(data.items[0]);
        status = settings->val != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the name of the validation file");
    }
    sw_option_list_release(&data);
    return status;
}

/* Refuses a run whose tokens are gone together with the tokenizer that made them. */
static sw_status check_tokens(const struct sw_settings *settings, const struct sw_text_sources *sources) {
    bool is_there = true;
    SW_TRY(sources->data.count > 0 ? look_in_cache(settings->data.items[0], true, &is_there) : SW_OK);
    if (is_there)
        return SW_OK;
    return sw_fail(
        SW_ERR_ARG,
        "%s, the tokens of %s, is gone or damaged and cannot be made again, because the tokenizer of %s is gone, too: "
        "put the model's tokenizer files into the run's folder",
        settings->data.items[0], sources->data.items[0], settings->model);
}

sw_status sw_text_data_prepare(struct sw_settings *settings, const char *model, int64_t vocab, bool may_make,
                               struct sw_text_sources *sources) {
    const struct sw_text_data_spec spec = spec_of(settings, model, may_make);
    if (!sw_model_text_is_there(model))
        return check_tokens(settings, sources);
    const struct noted data = {"--data", &sources->data, &sources->data_files};
    const struct noted val = {"--val", &sources->val, &sources->val_files};
    SW_TRY(prepare_data(&spec, &settings->data, vocab, &data));
    return prepare_validation(&spec, settings, vocab, &val);
}

/* Takes off the last sequences of the text, which become the validation part, as divide() in data.c does for packed
 * tokens. */
static sw_status take_estimate(const struct sw_settings *settings, double percent,
                               const struct sw_token_estimate *estimate, struct sw_data_pass *out) {
    const int64_t part = (int64_t)((double)estimate->tokens * percent / 100.0);
    const int64_t grain = settings->dpo ? 2 : 1;
    const int64_t sequences = percent > 0.0 ? sw_max_i64(grain, part / settings->seq / grain * grain) : 0;
    const int64_t tokens = estimate->tokens - sequences * settings->seq;
    if (tokens < settings->seq + 1)
        return sw_fail(SW_ERR_ARG,
                       "the training data holds about %s, but a sequence of %lld needs %lld; give more data "
                       "or a shorter sequence",
                       SW_COUNT(tokens, "token"), (long long)settings->seq, (long long)settings->seq + 1);
    *out = (struct sw_data_pass){.tokens = tokens, .sample_bytes = estimate->read_bytes};
    return SW_OK;
}

static sw_status count_tokens(const struct sw_settings *settings, double percent, int64_t vocab,
                              struct sw_data_pass *out) {
    const struct sw_data_spec spec = {.files = (const char *const *)settings->data.items,
                                      .file_count = settings->data.count,
                                      .format = {.type = settings->tokens, .flag = "--tokens"},
                                      .vocab = vocab,
                                      .seq = settings->seq,
                                      .validation_percent = percent,
                                      .pairs = settings->dpo};
    *out = (struct sw_data_pass){0};
    return sw_data_count_train_tokens(&spec, &out->tokens);
}

static sw_status measure(const struct sw_settings *settings, int64_t vocab, struct sw_data_pass *out) {
    struct sw_token_estimate estimate;
    double percent;
    const char *validation_file;
    SW_TRY(sw_settings_validation(settings, &percent, &validation_file));
    SW_TRY(sw_text_data_check(settings, vocab));
    SW_TRY(text_data_estimate(settings, vocab, &estimate));
    SW_TRY(estimate.tokens > 0 ? take_estimate(settings, percent, &estimate, out)
                               : count_tokens(settings, percent, vocab, out));
    out->windows = (out->tokens - 1) / settings->seq;
    /* An estimate may end within a pair. */
    out->windows -= settings->dpo ? out->windows % 2 : 0;
    return SW_OK;
}

static sw_status measure_and_resolve(struct sw_job *job) {
    if (job->settings->data.count > 0)
        SW_TRY(measure(job->settings, job->config.vocab, &job->data));
    return sw_settings_resolve_steps(job->settings, job->data.windows);
}

sw_status sw_data_pass_measure(void *context, struct sw_job *job) {
    (void)context;
    return sw_ranks_agree_on_error(job->ranks, measure_and_resolve(job));
}
