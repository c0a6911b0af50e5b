/* A cache of facts about this machine that can be measured again: small JSON files in $XDG_CACHE_HOME/spillway or
 * ~/.cache/spillway, or, where neither can be written, in a folder of the user's in $TMPDIR. A file that is missing,
 * damaged or of another version is made anew. */
#ifndef SW_CORE_FILES_CACHE_H
#define SW_CORE_FILES_CACHE_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SW_CACHE_PATH_CHARS = 4096 };
/* Writes the path of the entry of a kind for a key. Fails where the user has no folder for caches. */
sw_status sw_cache_path(const char *kind, const char *key, char out[SW_CACHE_PATH_CHARS]);
/* Returns the entry of a kind ("gpu", "products") for a key, or NULL if there is none. The caller releases it. */
json_t *sw_cache_read(const char *kind, const char *key);
/* Replaces the entry of a kind for a key. Adds the key to the object: it tells entries apart whose keys have the same
 * digest. */
sw_status sw_cache_write(const char *kind, const char *key, json_t *object);
/* Changes the entry of a kind for a key, while other processes that change an entry wait. `change` gets the entry as it
 * is on disk, or an empty object where there is none, and returns whether it must be written. */
typedef bool sw_cache_change(json_t *entry, void *context);
sw_status sw_cache_update(const char *kind, const char *key, sw_cache_change *change, void *context);
/* Sets a member of the entry in this file, which sw_cache_path gave, to true. Waits as sw_cache_update does. */
sw_status sw_cache_mark(const char *path, const char *member);

/* Writes the path of a file of another kind than JSON, named by the digest of what it was made of, and makes the folder
 * that it lies in. The file need not be there. */
sw_status sw_cache_file(const char *kind, uint64_t digest, const char *ending, char *out, size_t chars);
/* Tells whether the path of a cached file lies outside the user's own cache, where it may go at any time. */
bool sw_cache_is_temporary(const char *path);
/* Replaces a file whose path sw_cache_file gave. Processes may replace it at the same time; the last one stays. */
sw_status sw_cache_replace(const char *path, const char *content, size_t bytes);

#endif
