#include "run/folder/run_starts.h"

#include "core/json.h"

#include <jansson.h>
#include <string.h>

static int find(const struct sw_run *run, const char *id) {
    for (int i = 0; i < run->starts.count; i++)
        if (strcmp(run->starts.items[i], id) == 0)
            return i;
    return -1;
}

sw_status sw_run_add_start(struct sw_run *run, const char *found, const char *id) {
    struct sw_option_list kept = {0};
    sw_status status = SW_OK;
    const int end = find(run, found) + 1, begin = end < SW_RUN_KEPT_STARTS ? 0 : end - SW_RUN_KEPT_STARTS + 1;
    for (int i = begin; status == SW_OK && i < end; i++)
        status = sw_option_list_add(&kept, run->starts.items[i]);
    if (status == SW_OK)
        status = sw_option_list_add(&kept, id);
    sw_option_list_release(&run->starts);
    run->starts = kept;
    return status;
}

int sw_run_start_age(const struct sw_run *run, const char *id) {
    const int found = find(run, id);
    return found < 0 ? -1 : run->starts.count - 1 - found;
}

const char *sw_run_last_start(const struct sw_run *run) {
    return run->starts.count > 0 ? run->starts.items[run->starts.count - 1] : "";
}

sw_status sw_run_check_start(const struct sw_run *run, const struct sw_store *store, const char *place) {
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    json_t *root;
    SW_TRY(sw_json_try(commit->meta, strlen(commit->meta), &root));
    const char *start = json_string_value(json_object_get(root, "start"));
    const bool known = start == NULL || start[0] == '\0' || find(run, start) >= 0;
    json_decref(root);
    return known
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "the store in %s was trained up to step %lld by way of another copy of this run's folder, or "
                         "by a later one: go on with that one, or bring its run.json here",
                         place, (long long)commit->step);
}
