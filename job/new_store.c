#include "job/new_store.h"

#include "core/size.h"
#include "io/queue/file.h"
#include "io/store/block.h"
#include "offload/engine/scratch.h"

#include <stdlib.h>

struct making {
    struct sw_store_spec spec;
    struct sw_scratch scratch;
    int64_t *first, *grains, *whole; /* one entry a unit; first owns the memory of all three */
};

static void release(struct making *making) {
    sw_scratch_release(&making->scratch);
    free(making->first);
}

static sw_status describe(const struct sw_new_store *wanted, struct making *out) {
    const struct sw_units *units = wanted->plan->spec.units;
    *out = (struct making){.first = calloc(3 * (size_t)units->count, sizeof *out->first)};
    if (out->first == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the store's layout");
    out->grains = out->first + units->count;
    out->whole = out->grains + units->count;
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_span span = sw_plan_span(wanted->plan, SW_OPTIMIZER, u);
        out->first[u] = span.first_grain;
        out->grains[u] = span.grains;
        out->whole[u] = units->unit[u].grains;
    }
    const sw_status status = sw_scratch_of(wanted->plan, &out->scratch);
    if (status != SW_OK)
        release(out);
    out->spec = (struct sw_store_spec){.directories = wanted->places->path,
                                       .directory_count = wanted->places->count,
                                       .most_bytes = wanted->places->most_bytes,
                                       .unit_grains = out->grains,
                                       .unit_first = out->first,
                                       .unit_whole_grains = out->whole,
                                       .unit_count = units->count,
                                       .optimizer = units->optimizer,
                                       .scratch = out->scratch.kind,
                                       .scratch_count = out->scratch.count,
                                       .id = wanted->id,
                                       .one_generation = wanted->plan->spec.one_generation,
                                       .allow_buffered = wanted->allow_buffered,
                                       .allow_overwrite_device = wanted->allow_overwrite_device,
                                       .unnamed = wanted->unnamed};
    return status;
}

sw_status sw_new_store_check(const struct sw_new_store *wanted) {
    struct making making;
    int64_t bytes[SW_STORE_MAX_FILES];
    SW_TRY(describe(wanted, &making));
    const sw_status status = sw_store_need(&making.spec, bytes);
    release(&making);
    return status;
}

/* Looks at the directories of a store. Block devices are looked at when the store is made, which opens them. */
static sw_status look_at_drives(const struct sw_new_store *wanted, const struct sw_drive_look *look,
                                const int64_t *bytes) {
    const char *directories[SW_STORE_MAX_FILES];
    int64_t need[SW_STORE_MAX_FILES];
    int count = 0;
    SW_TRY(sw_file_check_distinct(wanted->places->path, wanted->places->count));
    for (int i = 0; i < wanted->places->count; i++) {
        bool is_device;
        SW_TRY(sw_block_find(wanted->places->path[i], &is_device));
        if (is_device)
            continue;
        if (look->named)
            SW_TRY(sw_file_check_place(wanted->places->path[i], wanted->allow_buffered));
        directories[count] = wanted->places->path[i];
        need[count++] = bytes[i] * sw_max_i64(1, look->ranks);
    }
    return sw_file_check_space(directories, need, count);
}

sw_status sw_new_store_check_drives(const struct sw_new_store *wanted, const struct sw_drive_look *look) {
    struct making making;
    int64_t bytes[SW_STORE_MAX_FILES];
    SW_TRY(describe(wanted, &making));
    const sw_status status = sw_store_need(&making.spec, bytes);
    release(&making);
    return status == SW_OK ? look_at_drives(wanted, look, bytes) : status;
}

sw_status sw_new_store_create(const struct sw_new_store *wanted, sw_store_progress progress, void *context,
                              struct sw_store **out) {
    struct making making;
    SW_TRY(describe(wanted, &making));
    const sw_status status = sw_store_create(&making.spec, progress, context, out);
    release(&making);
    return status;
}
