/* Checks that all ranks see the same folder of a run. */
#include "core/checksum.h"
#include "core/confine.h"
#include "core/files/files.h"
#include "run/stores/rank_store.h"

#include <stdlib.h>
#include <string.h>

/* A rank's view of the folder. */
struct sight {
    int64_t has_folder, has_run;
    uint64_t digest; /* digest of run.json */
};

static sw_status look(const char *folder, struct sight *out) {
    char *text;
    out->has_folder = sw_path_exists(folder);
    out->has_run = sw_run_is_one(folder);
    if (!out->has_run)
        return SW_OK;
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    SW_TRY(sw_file_read_own_text(path, SW_RUN_JSON_LIMIT_BYTES, &text));
    out->digest = sw_checksum(text, (int64_t)strlen(text));
    free(text);
    return SW_OK;
}

static sw_status compare(const struct sight *own, const struct sight *first, const char *folder) {
    if (memcmp(own, first, sizeof *own) == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "the folder %s is not the one that rank 0 sees; put the run on a file system that all ranks "
                   "share",
                   folder);
}

sw_status sw_rank_agree_on_folder(struct sw_ranks *ranks, const char *folder) {
    struct sight own = {0};
    void *all;
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(ranks, look(folder, &own)));
    SW_TRY(sw_ranks_collect(ranks, "folder of the run", &own, sizeof own, &all));
    const sw_status status = sw_ranks_agree_on_error(ranks, compare(&own, all, folder));
    free(all);
    return status;
}
