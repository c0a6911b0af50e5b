#include "train/places.h"

#include "core/size.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The size behind the last colon, or NULL where there is none. Only what begins with a digit can be one, so that names
 * with colons, as links to drives have them, stay names. */
static const char *limit_of(const char *text) {
    const char *colon = strrchr(text, ':');
    int64_t bytes;
    if (colon == NULL || colon == text || !isdigit((unsigned char)colon[1]))
        return NULL;
    if (sw_parse_size(colon + 1, &bytes) == SW_OK)
        return colon + 1;
    sw_error_clear();
    return NULL;
}

int sw_place_path_chars(const char *text) {
    const char *limit = limit_of(text);
    return (int)(limit != NULL ? limit - 1 - text : (ptrdiff_t)strlen(text));
}

static sw_status add(struct sw_places *places, const char *text, const char *limit) {
    const int index = places->count;
    places->path[index] = limit != NULL ? strndup(text, (size_t)(limit - 1 - text)) : strdup(text);
    if (places->path[index] == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the place of the store");
    places->count++;
    if (limit == NULL)
        return SW_OK;
    SW_TRY(sw_parse_size(limit, &places->most_bytes[index]));
    return places->most_bytes[index] > 0
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "--nvme %s allows the store nothing: give a larger size, or none", text);
}

sw_status sw_places_of(const struct sw_option_list *nvme, const char *folder, struct sw_places *out) {
    *out = (struct sw_places){0};
    if (nvme->count > SW_STORE_MAX_FILES)
        return sw_fail(SW_ERR_ARG, "--nvme names %d folders; at most %d are possible", nvme->count, SW_STORE_MAX_FILES);
    sw_status status = nvme->count == 0 ? add(out, folder, NULL) : SW_OK;
    for (int i = 0; status == SW_OK && i < nvme->count; i++)
        status = add(out, nvme->items[i], limit_of(nvme->items[i]));
    if (status != SW_OK)
        sw_places_release(out);
    return status;
}

void sw_places_release(struct sw_places *places) {
    for (int i = 0; i < places->count; i++)
        free((char *)places->path[i]);
    *places = (struct sw_places){0};
}
