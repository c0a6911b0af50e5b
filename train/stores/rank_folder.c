/* Checks that all ranks see the same folder of a run. */
#include "core/confine.h"
#include "io/queue/checksum.h"
#include "train/files/files.h"
#include "train/stores/rank_store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_JSON_MOST_BYTES = 1 << 20 };

/* What a rank sees of the folder. */
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
    SW_TRY(sw_file_read_own_text(path, RUN_JSON_MOST_BYTES, &text));
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
    const int count = sw_ranks_count(ranks), rank = sw_ranks_rank(ranks);
    if (count == 1)
        return SW_OK;
    struct sight *all = calloc((size_t)count, sizeof *all);
    sw_status status = all != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to compare what %d ranks see", count);
    SW_TRY_GOTO(sw_ranks_gate(ranks, status), end);
    assert(all != NULL);
    SW_TRY_GOTO(sw_ranks_gate(ranks, look(folder, &all[rank])), end);
    SW_TRY_GOTO(sw_comm_share_records(sw_ranks_comm(ranks), "folder of the run", all, sizeof *all), end);
    status = sw_ranks_gate(ranks, compare(&all[rank], &all[0], folder));
end:
    free(all);
    return status;
}
