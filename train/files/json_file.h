/* Files of JSON. */
#ifndef SW_TRAIN_FILES_JSON_FILE_H
#define SW_TRAIN_FILES_JSON_FILE_H

#include "core/status.h"
#include "train/files/files.h"

#include <jansson.h>

/* Reads a file of at most limit bytes, without members of one name. What is no JSON is `bad`, with its line. The caller
 * drops the reference. */
sw_status sw_json_read_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out);
/* Does the same with a file in a folder of ours, and refuses a link. */
sw_status sw_json_read_own_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out);

/* Writes an object whole (sw_file_replace) and releases it. NULL fails for lack of memory. */
sw_status sw_json_write_file(const char *path, json_t *object, sw_file_readers readers);

/* Refuses an object of the file at `path` that has a member with none of these names, and says which one it may be
 * meant to be. `where` names the object in the message: "device". What is no object has no members. */
sw_status sw_json_refuse_unknown(const json_t *object, const char *path, const char *where, const char *const *names,
                                 size_t count);

#endif
