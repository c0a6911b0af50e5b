/* The text of a commit: the counts that a resumed step needs, and the caller's note. */
#include "core/files/json_file.h"
#include "core/json.h"
#include "library/library_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sw_status sw_library_write_text(const spillway *self, int64_t step, const char *note, char text[SW_STORE_META_BYTES]) {
    json_t *object =
        json_pack("{s:I, s:I, s:I, s:s}", "step", (json_int_t)step, "applied_steps", (json_int_t)self->applied_steps,
                  "skipped_steps", (json_int_t)self->skipped_steps, "note", note);
    char *made = object != NULL ? sw_json_text(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (made == NULL)
        return sw_fail(SW_ERR_ARG, "the note of step %lld is not UTF-8, or there is no memory for it", (long long)step);
    const size_t chars = strlen(made);
    if (chars < SW_STORE_META_BYTES)
        memcpy(text, made, chars + 1);
    free(made);
    return chars < SW_STORE_META_BYTES
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "the note of step %lld takes %zu bytes as JSON; a commit has room for %d",
                         (long long)step, chars, SW_STORE_META_BYTES - 1);
}

sw_status sw_library_read_text(spillway *self, const char *text) {
    json_t *object;
    SW_TRY(sw_json_parse(text, "the commit's text", SW_ERR_CORRUPT, &object));
    const json_t *applied = json_object_get(object, "applied_steps"),
                 *skipped = json_object_get(object, "skipped_steps");
    const char *note = json_string_value(json_object_get(object, "note"));
    const bool whole = json_is_integer(applied) && json_is_integer(skipped) && note != NULL;
    if (whole) {
        self->applied_steps = json_integer_value(applied);
        self->skipped_steps = json_integer_value(skipped);
        snprintf(self->note, sizeof self->note, "%s", note);
    }
    json_decref(object);
    return whole ? SW_OK : sw_fail(SW_ERR_CORRUPT, "the last commit in %s lacks its counts of steps", self->folder);
}
