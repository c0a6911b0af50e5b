/* A cache of facts about this machine, which can be found out again: small JSON files in
 * $XDG_CACHE_HOME/spillway, or ~/.cache/spillway. A file that is not there, damaged or of another version is only made
 * again. */
#ifndef SW_TRAIN_FILES_CACHE_H
#define SW_TRAIN_FILES_CACHE_H

#include "core/status.h"

#include <jansson.h>

/* The file of a kind ("gpu", "products") about what `key` names, or NULL. The caller releases it. */
json_t *sw_cache_read(const char *kind, const char *key);
/* Replaces the file whole. The key becomes a member of the object, by which reading tells files of equal digests apart.
 */
sw_status sw_cache_write(const char *kind, const char *key, json_t *object);

#endif
