/* Reads and writes files of JSON. */
#ifndef SW_CORE_FILES_JSON_FILE_H
#define SW_CORE_FILES_JSON_FILE_H

#include "core/files/files.h"
#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>

/* Parses a text; messages name it by `name`. Fails with `bad` like sw_json_read_file. The caller releases *out. */
sw_status sw_json_parse(const char *text, const char *name, sw_status bad, json_t **out);
/* Reads a file of at most limit_bytes, whose strings may contain U+0000 (core/json.h). Fails with `bad`, and names the
 * line, if the text is not JSON or an object has two members of the same name. The caller releases *out. */
sw_status sw_json_read_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out);
/* Does the same with a file's text, zero-terminated. */
sw_status sw_json_parse_file(const char *text, const char *path, sw_status bad, json_t **out);
/* Reads a file likewise, but refuses a link (sw_file_read_own_text) and U+0000. */
sw_status sw_json_read_own_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out);

/* Writes a complete object (sw_file_replace) and releases it. A NULL object fails for lack of memory. Refuses more than
 * SW_JSON_MOST_WRITTEN_BYTES, the limit of readers. */
#define SW_JSON_MOST_WRITTEN_BYTES ((size_t)16 << 20)
sw_status sw_json_write_file(const char *path, json_t *object, sw_file_readers readers);

/* Files whose first member is "checksum": the XXH3-64 of everything after its line, as 16 hexadecimal digits. If the
 * member is missing, an older version wrote the file, or its user removed the line to edit the rest. */

/* Returns the text of an object that has members, with its checksum; NULL: no memory. The caller frees it. */
char *sw_json_checked_text(const json_t *object);
/* Tells whether a text, from which `object` was read, has the checksum that it names, or names none. */
bool sw_json_is_as_written(const char *text, const json_t *object);
/* Write and read such a file, otherwise like sw_json_write_file and sw_json_read_own_file. */
sw_status sw_json_write_checked_file(const char *path, json_t *object, sw_file_readers readers);
sw_status sw_json_read_checked_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out);

/* Refuses an object with a member that is not among the names, and suggests the nearest name. Messages name the file
 * `path` and the object `where` ("device"). A value that is not an object has no members. */
sw_status sw_json_refuse_unknown(const json_t *object, const char *path, const char *where, const char *const *names,
                                 size_t count);

#endif
