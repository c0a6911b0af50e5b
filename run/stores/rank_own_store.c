/* This rank's own store: where it shall be, made there, checked, and of the same commit as the others'. */
#include "core/number.h"
#include "run/stores/rank_store_private.h"

#include <string.h>

sw_status sw_rank_own_places(const struct sw_rank_stores *self, struct sw_places *out) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    return sw_places_of_rank(&self->run->settings.nvme, self->folder, &owner, out);
}

static sw_status make_in(const struct sw_rank_stores *self, const struct sw_places *places, const char *id,
                         struct sw_store **out) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    sw_status status = sw_places_make(places, &owner);
    if (status == SW_OK)
        status = self->make(self->context, places, id, out);
    if (status != SW_OK)
        sw_places_unmake(places, &owner);
    return status;
}

sw_status sw_rank_make(const struct sw_rank_stores *self, const char *id, struct sw_store **out) {
    struct sw_places places;
    SW_TRY(sw_rank_own_places(self, &places));
    const sw_status status = make_in(self, &places, id, out);
    sw_places_release(&places);
    return status;
}

bool sw_rank_has_new_places(const struct sw_run *run) {
    const struct sw_option_list *before = &run->nvme, *now = &run->settings.nvme;
    bool same = before->count == now->count;
    for (int i = 0; same && i < before->count; i++)
        same = strcmp(before->items[i], now->items[i]) == 0;
    return !same;
}

static void tick(void *ranks, int64_t done_bytes, int64_t total_bytes) {
    (void)done_bytes;
    (void)total_bytes;
    sw_ranks_tick(ranks);
}

sw_status sw_rank_check_whole(struct sw_ranks *ranks, struct sw_store *store) {
    int64_t grains, bad;
    const long long step = (long long)sw_store_last_commit(store)->step;
    const struct sw_store_verifier verifier = {.progress = tick, .context = ranks};
    sw_ranks_enter(ranks, "verifying step", step);
    const sw_status status = sw_store_verify(store, &verifier, &grains, &bad);
    sw_ranks_leave(ranks);
    SW_TRY(status);
    return bad == 0 ? SW_OK
                    : sw_fail(SW_ERR_CORRUPT,
                              "step %lld is not whole: %lld of its %s %s bad, or a later step has been written "
                              "over them; nothing was changed, and what other steps and stores the run has is kept: go "
                              "back to an export or another copy",
                              step, (long long)bad, SW_COUNT(grains, "grain"), bad == 1 ? "is" : "are");
}

sw_status sw_rank_agree_on_commit(struct sw_ranks *ranks, const struct sw_store_commit *commit) {
    const struct sw_comm_claim claim = {.what = "commit",
                                        .remedy = "give each rank the store that the run has of it",
                                        .value = commit->meta,
                                        .bytes = (int64_t)strlen(commit->meta)};
    return sw_ranks_agree(ranks, &claim, 1);
}
