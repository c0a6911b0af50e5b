#include "core/json.h"
#include "io/store/block.h"
#include "job/settings/places.h"
#include "job/settings/settings.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A name with {rank} in it names no file yet, so it only gets the current folder before it. A link to a drive stays a
 * link, because the drive may have another name after a reboot. */
static sw_status make_absolute(char **path) {
    if (**path == '/' && sw_block_is_one(*path))
        return SW_OK;
    char *absolute = realpath(*path, NULL);
    if (absolute == NULL && errno == ENOMEM)
        return sw_fail(SW_ERR_NOMEM, "no memory for the path %s", *path);
    if (absolute == NULL && **path != '/' && strchr(*path, '{') != NULL) {
        char *here = getcwd(NULL, 0);
        if (here == NULL || asprintf(&absolute, "%s/%s", here, *path) < 0)
            absolute = NULL;
        free(here);
        if (absolute == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the path %s", *path);
    }
    if (absolute == NULL)
        return SW_OK;
    free(*path);
    *path = absolute;
    return SW_OK;
}

/* Makes DIR in "DIR:SIZE" absolute. If the new name itself ends like a limit, a slash behind it keeps it a name. */
static sw_status make_place_absolute(char **place) {
    const int chars = sw_place_path_chars(*place);
    char *path = strndup(*place, (size_t)chars), *joined = NULL;
    const sw_status status = path != NULL ? make_absolute(&path) : SW_ERR_NOMEM;
    const bool ambiguous = status == SW_OK && !sw_block_is_one(path) && sw_place_ends_like_limit(path);
    if (status != SW_OK || asprintf(&joined, "%s%s%s", path, ambiguous ? "/" : "", *place + chars) < 0) {
        free(path);
        return sw_fail(SW_ERR_NOMEM, "no memory for the place of the store");
    }
    free(path);
    free(*place);
    *place = joined;
    return SW_OK;
}

/* Refuses names that are not UTF-8, because run.json is UTF-8 and could not hold them. */
static sw_status check_name(const char *flag, const char *name) {
    json_t *text = json_string(name);
    if (text == NULL && sw_json_lacked_memory())
        return sw_fail(SW_ERR_NOMEM, "no memory for the name %s", name);
    if (text == NULL)
        return sw_fail(SW_ERR_ARG,
                       "%s %s: the name, with the folders before it, is not UTF-8 and cannot be kept in run.json: "
                       "rename it, or use another",
                       flag, name);
    json_decref(text);
    return SW_OK;
}

/* Refuses more names than run.json and recipe.yaml may have. Each is counted with its line's other characters. */
static sw_status check_room(const struct sw_option_list *data) {
    enum { BESIDE_NAME_BYTES = 32 };
    size_t bytes = 0;
    for (int i = 0; i < data->count; i++)
        bytes += strlen(data->items[i]) + BESIDE_NAME_BYTES;
    return bytes <= SW_SETTINGS_MOST_NAME_BYTES
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "the names of the %d files of --data take %zu bytes, and a run keeps at most %zu: give the "
                         "folder that they are in if they are text for a tokenizer, else fewer and larger files",
                         data->count, bytes, SW_SETTINGS_MOST_NAME_BYTES);
}

sw_status sw_settings_check_names(const struct sw_settings *settings) {
    SW_TRY(check_room(&settings->data));
    SW_TRY(check_name("--model", settings->model));
    for (int i = 0; i < settings->data.count; i++)
        SW_TRY(check_name("--data", settings->data.items[i]));
    for (int i = 0; i < settings->nvme.count; i++)
        SW_TRY(check_name("--nvme", settings->nvme.items[i]));
    return settings->val != NULL ? check_name("--val", settings->val) : SW_OK;
}

sw_status sw_settings_make_paths_absolute(struct sw_settings *settings) {
    SW_TRY(make_absolute(&settings->model));
    for (int i = 0; i < settings->data.count; i++)
        SW_TRY(make_absolute(&settings->data.items[i]));
    for (int i = 0; i < settings->nvme.count; i++)
        SW_TRY(make_place_absolute(&settings->nvme.items[i]));
    double percent;
    const char *file;
    SW_TRY(sw_settings_validation(settings, &percent, &file));
    if (file != NULL)
        SW_TRY(make_absolute(&settings->val));
    return sw_settings_check_names(settings);
}
