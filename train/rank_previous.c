#include "train/rank_previous.h"

#include "core/log.h"
#include "train/rank_store_private.h"
#include "train/run_stores.h"

static sw_status find_places(const struct sw_rank_stores *self, struct sw_places *out) {
    return sw_rank_has_new_places(self->run)
               ? sw_rank_own_places(self, out)
               : sw_run_places(self->folder, self->run, sw_ranks_rank(self->ranks), NULL, out);
}

static sw_status open_at(const struct sw_rank_stores *self, const struct sw_places *places, int64_t most_step,
                         struct sw_store **out) {
    sw_store_close(*out);
    *out = NULL;
    return sw_run_open_places(places, self->run, sw_ranks_rank(self->ranks), most_step, out);
}

static void tick(void *ranks, int64_t done_bytes, int64_t total_bytes) {
    (void)done_bytes;
    (void)total_bytes;
    sw_ranks_tick(ranks);
}

static sw_status check_whole(struct sw_ranks *ranks, struct sw_store *store) {
    int64_t grains, bad;
    const long long step = (long long)sw_store_last_commit(store)->step;
    const struct sw_store_verifier verifier = {.progress = tick, .context = ranks};
    sw_ranks_enter(ranks, "verifying step", step);
    const sw_status status = sw_store_verify(store, &verifier, &grains, &bad);
    sw_ranks_leave(ranks);
    SW_TRY(status);
    return bad == 0 ? SW_OK
                    : sw_fail(SW_ERR_CORRUPT,
                              "step %lld is not whole: %lld of its %lld grains are bad, or the step after it has been "
                              "written over them; nothing was changed, go back to an export or another copy",
                              step, (long long)bad, (long long)grains);
}

static sw_status go_back(const struct sw_rank_stores *self, const struct sw_places *places, struct sw_store **store) {
    struct sw_ranks *ranks = self->ranks;
    SW_TRY(sw_ranks_gate(ranks, open_at(self, places, SW_STORE_NEWEST, store)));
    int64_t newest = sw_store_last_commit(*store)->step;
    SW_TRY(sw_ranks_least(ranks, &newest, 1));
    const sw_status status = sw_ranks_gate(ranks, open_at(self, places, newest - 1, store));
    if (status != SW_OK)
        return sw_fail_while(status, "going back to the commit before step %lld", (long long)newest);
    SW_TRY(sw_rank_agree_on_commit(ranks, sw_store_last_commit(*store)));
    SW_TRY(sw_ranks_gate(ranks, check_whole(ranks, *store)));
    SW_TRY(sw_ranks_gate(ranks, sw_store_go_back(*store)));
    if (sw_ranks_rank(ranks) == 0)
        sw_log_info("step %lld was given up: the run goes on from step %lld, which is whole", (long long)newest,
                    (long long)sw_store_last_commit(*store)->step);
    return SW_OK;
}

sw_status sw_rank_go_to_previous(const struct sw_rank_stores *self, bool wanted) {
    const int64_t flag = wanted;
    const struct sw_comm_claim claim = {
        .what = "--previous", .remedy = "give it to every rank or to none", .value = &flag, .bytes = sizeof flag};
    SW_TRY(sw_ranks_agree(self->ranks, &claim, 1));
    if (!wanted)
        return SW_OK;
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    if (self->run->ranks != owner.ranks || self->run->whole != owner.whole)
        return sw_fail(SW_ERR_ARG,
                       "--previous goes back in the stores of the run's own %lld ranks: start as many, with the same "
                       "--zero",
                       (long long)self->run->ranks);
    struct sw_places places = {0};
    struct sw_store *store = NULL;
    sw_status status = sw_ranks_gate(self->ranks, find_places(self, &places));
    if (status == SW_OK)
        status = go_back(self, &places, &store);
    sw_store_close(store);
    sw_places_release(&places);
    return status;
}
