#include "job/settings/places.h"

#include "core/files/files.h"
#include "core/size.h"
#include "io/store/block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Placeholders in a name for the numbers of the rank that owns the store. */
#define RANK_NUMBER "{rank}"
#define LOCAL_RANK_NUMBER "{local_rank}"

/* Tells whether the text after a colon was meant as a size. Links to drives have colons in their names
 * ("pci-0000:01:00.0-nvme-1"), so letters, and digits followed by '-', '_' or '/', belong to the name. */
static bool is_meant_as_size(const char *text) {
    return strchr("0123456789+-.", text[0]) != NULL && (text[0] == '\0' || strpbrk(text + 1, "-_/{") == NULL);
}

bool sw_place_ends_like_limit(const char *name) {
    const char *colon = strrchr(name, ':');
    return colon != NULL && colon != name && is_meant_as_size(colon + 1);
}

/* Returns the text after the last colon if it is a limit, or NULL if the whole text is a name. */
static const char *limit_of(const char *text) {
    return sw_place_ends_like_limit(text) && access(text, F_OK) != 0 ? strrchr(text, ':') + 1 : NULL;
}

static sw_status parse_limit(const char *text, const char *limit, int64_t *out_bytes) {
    if (limit[0] == '\0')
        return sw_fail(SW_ERR_ARG, "--nvme %s has no size behind its colon; leave the colon out, or write a size",
                       text);
    if (limit[0] == '-')
        return sw_fail(SW_ERR_ARG, "--nvme %s has a size below 0; write for example 20GB", text);
    SW_TRY(sw_fail_while(sw_parse_size(limit, out_bytes), "reading --nvme %s", text));
    return *out_bytes > 0
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "--nvme %s allows the store nothing: give a larger size, or none", text);
}

static sw_status check_count(const struct sw_option_list *nvme) {
    if (nvme->count > SW_STORE_MAX_FILES)
        return sw_fail(SW_ERR_ARG, "--nvme names %d folders; at most %d are possible", nvme->count, SW_STORE_MAX_FILES);
    return SW_OK;
}

sw_status sw_places_check(const struct sw_option_list *nvme) {
    int64_t bytes;
    SW_TRY(check_count(nvme));
    for (int i = 0; i < nvme->count; i++) {
        const char *limit = limit_of(nvme->items[i]);
        if (limit != NULL)
            SW_TRY(parse_limit(nvme->items[i], limit, &bytes));
    }
    return SW_OK;
}

int sw_place_path_chars(const char *text) {
    const char *limit = limit_of(text);
    return (int)(limit != NULL ? limit - 1 - text : (ptrdiff_t)strlen(text));
}

/* Replaces every "{name}" in the text by the number. Frees the text and returns a new one; NULL: no memory. */
static char *put_number(char *text, const char *name, int64_t number) {
    char *at = text != NULL ? strstr(text, name) : NULL;
    if (at == NULL)
        return text;
    char *joined = NULL, *rest = put_number(strdup(at + strlen(name)), name, number);
    if (rest == NULL || asprintf(&joined, "%.*s%lld%s", (int)(at - text), text, (long long)number, rest) < 0)
        joined = NULL;
    free(rest);
    free(text);
    return joined;
}

/* Appends a path and takes ownership of it. A NULL path fails for lack of memory. */
static sw_status append(struct sw_places *places, char *path) {
    if (path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the place of the store");
    places->path[places->count++] = path;
    return SW_OK;
}

static sw_status add(struct sw_places *places, const char *text, const struct sw_store_owner *owner) {
    const int index = places->count;
    const char *limit = limit_of(text);
    char *path = limit != NULL ? strndup(text, (size_t)(limit - 1 - text)) : strdup(text);
    path = put_number(put_number(path, RANK_NUMBER, owner->rank), LOCAL_RANK_NUMBER, owner->local_rank);
    SW_TRY(append(places, path));
    return limit != NULL ? parse_limit(text, limit, &places->most_bytes[index]) : SW_OK;
}

sw_status sw_places_exactly(const struct sw_option_list *paths, struct sw_places *out) {
    *out = (struct sw_places){0};
    if (paths->count > SW_STORE_MAX_FILES)
        return sw_fail(SW_ERR_ARG, "a store is said to have %d files; at most %d are possible", paths->count,
                       SW_STORE_MAX_FILES);
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < paths->count; i++)
        status = append(out, strdup(paths->items[i]));
    if (status != SW_OK)
        sw_places_release(out);
    return status;
}

sw_status sw_places_of(const struct sw_option_list *nvme, const char *folder, const struct sw_store_owner *owner,
                       struct sw_places *out) {
    static const struct sw_store_owner alone = {0};
    *out = (struct sw_places){0};
    SW_TRY(check_count(nvme));
    sw_status status = nvme->count == 0 ? append(out, strdup(folder)) : SW_OK;
    for (int i = 0; status == SW_OK && i < nvme->count; i++)
        status = add(out, nvme->items[i], owner != NULL ? owner : &alone);
    if (status != SW_OK)
        sw_places_release(out);
    return status;
}

/* Writes the part of a folder's name for a split: its numbers, or a checksum of them if they are many. */
enum { SPLIT_NAME_CHARS = 48 };
static const char *name_split(const char *split, char out[SPLIT_NAME_CHARS]) {
    out[0] = '\0';
    if (split == NULL || split[0] == '\0')
        return out;
    if (snprintf(out, SPLIT_NAME_CHARS, "-pipeline-%s", split) >= SPLIT_NAME_CHARS)
        snprintf(out, SPLIT_NAME_CHARS, "-pipeline-%016llx",
                 (unsigned long long)sw_checksum(split, (int64_t)strlen(split)));
    for (char *at = out; *at != '\0'; at++)
        *at = *at == ',' ? '-' : *at;
    return out;
}

void sw_places_folder_name(const struct sw_store_owner *owner, char name[SW_OWNER_FOLDER_CHARS]) {
    const bool narrow = owner->optimizer != SW_OPTIMIZER_FP32;
    char groups[SW_OWNER_FOLDER_CHARS / 2] = "";
    const long long experts = (long long)sw_max_i64(1, owner->expert_ranks);
    const long long tensor = (long long)owner->tensor_ranks / experts;
    name[0] = '\0';
    if (experts > 1 && tensor > 1)
        snprintf(groups, sizeof groups, "-experts-of-%lld-tensor-%lld", experts, tensor);
    else if (experts > 1)
        snprintf(groups, sizeof groups, "-%s-%lld", owner->joined ? "experts" : "experts-of", experts);
    else if (tensor > 1)
        snprintf(groups, sizeof groups, "-tensor-%lld", tensor);
    char split[SPLIT_NAME_CHARS];
    if (owner->ranks > 1 || narrow)
        snprintf(name, SW_OWNER_FOLDER_CHARS, "rank-%lld-of-%lld%s%s%s%s%s", (long long)owner->rank,
                 (long long)sw_max_i64(1, owner->ranks), groups, name_split(owner->split, split),
                 owner->whole ? "-whole" : "", narrow ? "-" : "",
                 narrow ? sw_optimizer_format_name(owner->optimizer) : "");
}

static bool has_folder(const struct sw_store_owner *owner) {
    char name[SW_OWNER_FOLDER_CHARS];
    sw_places_folder_name(owner, name);
    return name[0] != '\0';
}

static sw_status enter_folder(const char **path, const struct sw_store_owner *owner) {
    char *inside, name[SW_OWNER_FOLDER_CHARS];
    bool is_device;
    SW_TRY(sw_block_find(*path, &is_device));
    if (is_device)
        return SW_OK;
    sw_places_folder_name(owner, name);
    if (asprintf(&inside, "%s/%s", *path, name) < 0)
        return sw_fail(SW_ERR_NOMEM, "no memory for the place of the store");
    free((char *)*path);
    *path = inside;
    return SW_OK;
}

sw_status sw_places_make(const struct sw_places *places, const struct sw_store_owner *owner) {
    for (int i = 0; has_folder(owner) && i < places->count; i++) {
        bool is_device;
        SW_TRY(sw_block_find(places->path[i], &is_device));
        if (!is_device)
            SW_TRY(sw_folder_make_own(places->path[i], 0700));
    }
    return SW_OK;
}

sw_status sw_places_of_rank(const struct sw_option_list *nvme, const char *folder, const struct sw_store_owner *owner,
                            struct sw_places *out) {
    SW_TRY(sw_places_of(nvme, folder, owner, out));
    sw_status status = SW_OK;
    for (int i = 0; has_folder(owner) && status == SW_OK && i < out->count; i++)
        status = enter_folder(&out->path[i], owner);
    if (status != SW_OK)
        sw_places_release(out);
    return status;
}

bool sw_places_are_shared(const struct sw_option_list *nvme) {
    bool shared = true;
    for (int i = 0; i < nvme->count; i++)
        shared &= strstr(nvme->items[i], RANK_NUMBER) == NULL && strstr(nvme->items[i], LOCAL_RANK_NUMBER) == NULL;
    return shared;
}

void sw_places_release(struct sw_places *places) {
    for (int i = 0; i < places->count; i++)
        free((char *)places->path[i]);
    *places = (struct sw_places){0};
}
