/* The files beside those of the data, F.mask and F.doc: what is said of them, and what a run remembers. A data file
 * that is moved without them is another task: losses count where none belonged, and documents see each other. */
#include "run/data/data_internal.h"

#include <stdio.h>
#include <string.h>

/* The files of training, and then the one of validation. */
static int count_files(const struct sw_data *data) {
    return (data->stream != NULL ? sw_token_stream_files(data->stream) : 0) +
           (data->validation_stream != NULL ? sw_token_stream_files(data->validation_stream) : 0);
}

static struct sw_token_beside beside_of(const struct sw_data *data, int i) {
    const int trained = data->stream != NULL ? sw_token_stream_files(data->stream) : 0;
    return i < trained ? sw_token_stream_beside(data->stream, i)
                       : sw_token_stream_beside(data->validation_stream, i - trained);
}

bool sw_data_has_masks(const struct sw_data *data) {
    for (int i = 0; i < count_files(data); i++)
        if (beside_of(data, i).mask)
            return true;
    return false;
}

static const char *name_of(const struct sw_token_beside *beside) {
    if (beside->mask)
        return beside->documents ? "mask,doc" : "mask";
    return beside->documents ? "doc" : "";
}

sw_status sw_data_beside(const struct sw_data *data, struct sw_option_list *out) {
    for (int i = 0; i < count_files(data); i++) {
        const struct sw_token_beside beside = beside_of(data, i);
        SW_TRY(sw_option_list_add(out, name_of(&beside)));
    }
    return SW_OK;
}

static sw_status check_one(const char *file, const char *suffix, bool before, bool now) {
    if (before && !now)
        return sw_fail(SW_ERR_ARG, "%s.%s, which the run began with, is not there: put it beside %s again", file,
                       suffix, file);
    if (!before && now)
        return sw_fail(SW_ERR_ARG, "the run began without %s.%s, which is there now: move it away, or start a new run",
                       file, suffix);
    return SW_OK;
}

sw_status sw_data_check_beside(const struct sw_data *data, const struct sw_option_list *before) {
    for (int i = 0; i < before->count && i < count_files(data); i++) {
        const struct sw_token_beside beside = beside_of(data, i);
        const char *names = before->items[i];
        SW_TRY(check_one(beside.file, "mask", strstr(names, "mask") != NULL, beside.mask));
        SW_TRY(check_one(beside.file, "doc", strstr(names, "doc") != NULL, beside.documents));
    }
    return SW_OK;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Appends what fits. */
#define APPEND(text, ...)                                                                                              \
    do {                                                                                                               \
        const size_t used_ = strlen(text);                                                                             \
        snprintf((text) + used_, SW_DATA_TEXT_CHARS - used_, __VA_ARGS__);                                             \
    } while (0)

static void add_beside(const struct sw_data *data, char text[SW_DATA_TEXT_CHARS]) {
    int found = 0;
    for (int i = 0; i < count_files(data); i++) {
        const struct sw_token_beside beside = beside_of(data, i);
        const char *name = last_name(beside.file);
        if (beside.mask)
            APPEND(text, "%s %s.mask", found++ == 0 ? "; beside them" : ",", name);
        if (beside.documents)
            APPEND(text, "%s %s.doc", found++ == 0 ? "; beside them" : ",", name);
    }
    if (found == 0)
        APPEND(text, "; no .mask and no .doc beside them");
}

const char *sw_data_text(const struct sw_data *data, char text[SW_DATA_TEXT_CHARS]) {
    const sw_data_part part = data->stream != NULL ? SW_DATA_TRAINING : SW_DATA_VALIDATION;
    sw_token_counts_text(&data->counts[part], text, SW_DATA_TEXT_CHARS);
    add_beside(data, text);
    return text;
}

int64_t sw_data_train_windows(const struct sw_data *data) {
    return (data->train_tokens - 1) / data->seq;
}
