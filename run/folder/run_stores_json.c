/* The stores of a run in run.json. */
#include "core/log.h"
#include "run/folder/run_stores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Appends a store with one number of it to the array. Returns the array, or NULL, with the array released, on failure.
 */
static json_t *append(json_t *array, const struct sw_run_store *store, const char *name, int64_t number) {
    json_t *entry = json_pack("{s:s, s:I, s:o}", "id", store->id, name, (json_int_t)number, "places",
                              sw_option_list_to_json(&store->places));
    if (json_array_append_new(array, entry) == 0)
        return array;
    json_decref(array);
    return NULL;
}

json_t *sw_run_stores_to_json(const struct sw_run_store *stores, int64_t count) {
    json_t *array = json_array();
    for (int64_t i = 0; stores != NULL && array != NULL && i < count; i++)
        array = append(array, &stores[i], "local_rank", stores[i].local_rank);
    return array;
}

json_t *sw_run_left_to_json(const struct sw_run *run) {
    json_t *array = json_array();
    for (int64_t i = 0; array != NULL && i < run->left_count; i++)
        array = append(array, &run->left[i], "last_step", run->left[i].last_step);
    return array;
}

sw_status sw_run_list_from_json(const json_t *object, const char *name, const char *path, struct sw_option_list *out) {
    const json_t *list = json_object_get(object, name);
    const size_t count = list == NULL || json_is_array(list) ? json_array_size(list) : 1;
    for (size_t i = 0; i < count; i++) {
        const char *item = json_string_value(json_array_get(list, i));
        if (item == NULL)
            return sw_fail(SW_ERR_CORRUPT, "%s: '%s' is not a list of strings; restore the file", path, name);
        SW_TRY(sw_option_list_add(out, item));
    }
    return SW_OK;
}

static sw_status store_from_json(const json_t *entry, const char *path, struct sw_run_store *out) {
    const char *id = json_string_value(json_object_get(entry, "id"));
    const json_t *local_rank = json_object_get(entry, "local_rank"), *places = json_object_get(entry, "places");
    if (id == NULL || !json_is_integer(local_rank) || !json_is_array(places) || strlen(id) >= SW_STORE_ID_CHARS)
        return sw_fail(SW_ERR_CORRUPT, "%s does not give the id, local_rank and places of each store; restore the file",
                       path);
    snprintf(out->id, sizeof out->id, "%s", id);
    out->local_rank = json_integer_value(local_rank);
    return sw_run_list_from_json(entry, "places", path, &out->places);
}

/* Reads the list of stores that are left behind. Old versions wrote only a path, where another run's store may be now.
 */
static sw_status left_from_json(const json_t *array, const char *path, struct sw_run *run) {
    const size_t count = array == NULL || json_is_array(array) ? json_array_size(array) : 1;
    run->left = calloc(count + 1, sizeof *run->left);
    if (run->left == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(array, i), *places = json_object_get(entry, "places");
        const json_t *last_step = json_object_get(entry, "last_step");
        const char *id = json_string_value(json_object_get(entry, "id"));
        if (json_is_string(entry)) {
            sw_log_warn(
                "%s lists %.200s as no longer needed, but not the id of its store, so it stays; remove it if it "
                "is this run's",
                path, json_string_value(entry));
            continue;
        }
        if (id == NULL || strlen(id) != SW_STORE_ID_CHARS - 1 || !json_is_integer(last_step) || !json_is_array(places))
            return sw_fail(SW_ERR_CORRUPT,
                           "%s does not give the id, last_step and places of each store that is left behind", path);
        struct sw_run_store *left = &run->left[run->left_count++];
        memcpy(left->id, id, SW_STORE_ID_CHARS);
        left->last_step = json_integer_value(last_step);
        SW_TRY(sw_run_list_from_json(entry, "places", path, &left->places));
    }
    return SW_OK;
}

/* Reads the only store of a run.json from a version that had one store a run. */
static sw_status take_only_store(const json_t *root, struct sw_run *run) {
    const char *id = json_string_value(json_object_get(root, "store_id"));
    snprintf(run->store->id, sizeof run->store->id, "%s", id != NULL ? id : "");
    struct sw_places places;
    if (run->settings.nvme.count == 0)
        return SW_OK;
    SW_TRY(sw_places_of(&run->settings.nvme, "", NULL, &places));
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < places.count; i++)
        status = sw_option_list_add(&run->store->places, places.path[i]);
    sw_places_release(&places);
    return status;
}

static sw_status make_stores(int64_t ranks, struct sw_run *run) {
    run->store = calloc((size_t)ranks, sizeof *run->store);
    if (run->store == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %lld ranks", (long long)ranks);
    run->ranks = ranks;
    return SW_OK;
}

void sw_run_optimizer_to_json(const struct sw_run *run, json_t *root) {
    if (run->optimizer != SW_OPTIMIZER_FP32)
        json_object_set_new(root, "optimizer", json_string(sw_optimizer_format_name(run->optimizer)));
}

static sw_status optimizer_from_json(const json_t *root, const char *path, struct sw_run *run) {
    const json_t *name = json_object_get(root, "optimizer");
    run->optimizer = SW_OPTIMIZER_FP32;
    for (int format = 0; name != NULL && format < SW_OPTIMIZER_LAYOUTS; format++)
        if (json_is_string(name) &&
            strcmp(json_string_value(name), sw_optimizer_format_name((sw_optimizer_format)format)) == 0)
            run->optimizer = (sw_optimizer_format)format;
    return name == NULL || run->optimizer != SW_OPTIMIZER_FP32
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "%s names a format of its stores that does not exist; restore the file", path);
}

sw_status sw_run_stores_from_json(const json_t *root, const char *path, struct sw_run *run) {
    const json_t *stores = json_object_get(root, "stores"), *count = json_object_get(root, "ranks");
    run->tensor_ranks = sw_settings_tensor_ranks(&run->settings);
    run->tiles = run->settings.tiles;
    if (stores == NULL && count == NULL) {
        SW_TRY(make_stores(1, run));
        return take_only_store(root, run);
    }
    const json_int_t ranks = json_integer_value(count);
    if (ranks < 1 || ranks > SW_SETTINGS_MOST_RANKS || json_array_size(stores) != (size_t)ranks)
        return sw_fail(SW_ERR_CORRUPT, "%s does not give the number of ranks of its stores; restore the file", path);
    if (ranks % run->tensor_ranks != 0)
        return sw_fail(SW_ERR_CORRUPT, "%s gives %lld stores for tensor groups of %lld ranks; restore the file", path,
                       (long long)ranks, (long long)run->tensor_ranks);
    SW_TRY(make_stores(ranks, run));
    run->whole = json_is_true(json_object_get(root, "whole"));
    SW_TRY(optimizer_from_json(root, path, run));
    for (int64_t rank = 0; rank < ranks; rank++)
        SW_TRY(store_from_json(json_array_get(stores, (size_t)rank), path, &run->store[rank]));
    SW_TRY(sw_run_list_from_json(root, "starts", path, &run->starts));
    return left_from_json(json_object_get(root, "left"), path, run);
}

void sw_run_stores_release(struct sw_run_store *store, int64_t ranks) {
    for (int64_t rank = 0; store != NULL && rank < ranks; rank++)
        sw_option_list_release(&store[rank].places);
    free(store);
}
