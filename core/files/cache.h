/* A cache of facts about this machine that can be measured again: small JSON files in $XDG_CACHE_HOME/spillway or
 * ~/.cache/spillway or, if neither is writable, in the user's own folder in $TMPDIR. A file that is missing, damaged or
 * of another version is made again. */
#ifndef SW_CORE_FILES_CACHE_H
#define SW_CORE_FILES_CACHE_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SW_CACHE_PATH_CHARS = 4096 };
/* Writes the path of the entry of a kind for a key. Fails if the user has no cache folder. */
sw_status sw_cache_path(const char *kind, const char *key, char out[SW_CACHE_PATH_CHARS]);
/* Returns the entry of a kind ("gpu", "products") for a key, or NULL if there is none. The caller releases it. */
json_t *sw_cache_read(const char *kind, const char *key);
/* Replaces the entry of a kind for a key. Adds the key to the object, to tell apart keys with the same digest. */
sw_status sw_cache_write(const char *kind, const char *key, json_t *object);
/* Changes the entry of a kind for a key, while other processes that change an entry wait. `change` gets the entry on
 * disk, or an empty object, and returns whether it must be written. */
typedef bool sw_cache_change(json_t *entry, void *context);
sw_status sw_cache_update(const char *kind, const char *key, sw_cache_change *change, void *context);
/* Sets a member of the entry in this file, a path from sw_cache_path, to true. Waits as sw_cache_update does. */
sw_status sw_cache_mark(const char *path, const char *member);

/* Writes the path of a file that is not JSON, named by the digest of its sources, and makes its folder. The file need
 * not exist. */
sw_status sw_cache_file(const char *kind, uint64_t digest, const char *ending, char *out, size_t chars);
/* Reads a whole file at a path from sw_cache_file. The caller frees the result; NULL: there is no readable file. */
char *sw_cache_read_file(const char *path, size_t *out_bytes);
/* Tells whether a cached file is outside the user's own cache, so that it may disappear at any time. */
bool sw_cache_is_temporary(const char *path);
/* Replaces a file at a path from sw_cache_file. Processes may do so at the same time; the last one wins. */
sw_status sw_cache_replace(const char *path, const char *content, size_t bytes);

#endif
