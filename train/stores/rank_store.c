#include "train/stores/rank_store.h"

#include "core/log.h"
#include "train/folder/run_stores.h"
#include "train/stores/rank_store_private.h"

#include <stdlib.h>
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

sw_status sw_rank_store_create(const struct sw_rank_stores *self, const char *id, struct sw_store **out) {
    struct sw_places places;
    SW_TRY(sw_ranks_gate(self->ranks, sw_rank_make(self, id, out)));
    sw_status status = sw_ranks_gate(self->ranks, sw_rank_own_places(self, &places));
    if (status == SW_OK)
        status = sw_rank_record(self, id, &places);
    sw_places_release(&places);
    return status;
}

void sw_rank_store_undo(const struct sw_rank_stores *self, struct sw_store *store) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    struct sw_places places;
    sw_store_discard(store);
    if (sw_rank_own_places(self, &places) == SW_OK)
        sw_places_unmake(&places, &owner);
    sw_places_release(&places);
}

bool sw_rank_has_new_places(const struct sw_run *run) {
    const struct sw_option_list *before = &run->nvme, *now = &run->settings.nvme;
    bool same = before->count == now->count;
    for (int i = 0; same && i < before->count; i++)
        same = strcmp(before->items[i], now->items[i]) == 0;
    return !same;
}

/* Returns where run.json has the store, unless --nvme is new: ranks may have had places of their own, and the next
 * launcher may number the ranks of a machine differently. */
static sw_status find_places(const struct sw_rank_stores *self, struct sw_places *out) {
    struct sw_places wanted;
    SW_TRY(sw_rank_own_places(self, &wanted));
    if (sw_rank_has_new_places(self->run)) {
        *out = wanted;
        return SW_OK;
    }
    const sw_status status = sw_run_places(self->folder, self->run, sw_ranks_rank(self->ranks), NULL, out);
    for (int i = 0; status == SW_OK && i < out->count && i < wanted.count; i++)
        out->most_bytes[i] = wanted.most_bytes[i];
    sw_places_release(&wanted);
    return status;
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

sw_status sw_rank_check_whole(struct sw_ranks *ranks, struct sw_store *store) {
    int64_t grains, bad;
    const long long step = (long long)sw_store_last_commit(store)->step;
    const struct sw_store_verifier verifier = {.progress = tick, .context = ranks};
    sw_ranks_enter(ranks, "verifying step", step);
    const sw_status status = sw_store_verify(store, &verifier, &grains, &bad);
    sw_ranks_leave(ranks);
    SW_TRY(status);
    return bad == 0
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT,
                         "step %lld is not whole: %lld of its %lld grains are bad, or a later step has been written "
                         "over them; nothing was changed, and what other steps and stores the run has is kept: go "
                         "back to an export or another copy",
                         step, (long long)bad, (long long)grains);
}

sw_status sw_rank_agree_on_commit(struct sw_ranks *ranks, const struct sw_store_commit *commit) {
    const struct sw_comm_claim claim = {.what = "commit",
                                        .remedy = "give each rank the store that the run has of it",
                                        .value = commit->meta,
                                        .bytes = (int64_t)strlen(commit->meta)};
    return sw_ranks_agree(ranks, &claim, 1);
}

/* Opens this rank's store at the step from which all ranks continue. Later commits are removed afterwards. */
static sw_status open_common(const struct sw_rank_stores *self, const struct sw_places *places, int64_t *out_newest,
                             struct sw_store **out) {
    struct sw_ranks *ranks = self->ranks;
    SW_TRY(sw_ranks_gate(ranks, open_at(self, places, SW_STORE_NEWEST, out)));
    const int64_t own = sw_store_last_commit(*out)->step;
    int64_t newest = own;
    SW_TRY(sw_ranks_least(ranks, &newest, 1));
    *out_newest = newest;
    const int64_t step = self->previous ? newest - 1 : newest;
    const sw_status status = sw_ranks_gate(ranks, own > step ? open_at(self, places, step, out) : SW_OK);
    if (status != SW_OK && self->previous)
        return sw_fail_while(status, "going back to the commit before step %lld", (long long)newest);
    if (status != SW_OK)
        return sw_fail_while(status, "going back to step %lld, the newest that every rank has", (long long)newest);
    return sw_rank_agree_on_commit(ranks, sw_store_last_commit(*out));
}

static sw_status open_own(const struct sw_rank_stores *self, const struct sw_places *places, struct sw_store **out) {
    struct sw_ranks *ranks = self->ranks;
    char id[SW_STORE_ID_CHARS];
    int64_t newest;
    SW_TRY(open_common(self, places, &newest, out));
    /* This rank's store must be whole before any other one, or a later commit, is dropped. */
    const bool gives_up = sw_store_is_behind(*out) || self->run->left_count > 0;
    SW_TRY(sw_ranks_gate(ranks, gives_up ? sw_rank_check_whole(ranks, *out) : SW_OK));
    SW_TRY(sw_ranks_gate(ranks, sw_store_go_back(*out)));
    if (self->previous && sw_ranks_rank(ranks) == 0)
        sw_log_info("dropped step %lld; the run continues from step %lld, which is whole", (long long)newest,
                    (long long)sw_store_last_commit(*out)->step);
    SW_TRY(sw_rank_record(self, sw_store_id(*out, id), places));
    return sw_rank_remove_left(self);
}

static sw_status open_existing(const struct sw_rank_stores *self, struct sw_store **out) {
    struct sw_places places = {0};
    sw_status status = sw_ranks_gate(self->ranks, find_places(self, &places));
    if (status == SW_OK)
        status = open_own(self, &places, out);
    sw_places_release(&places);
    return status;
}

static sw_status check_previous(const struct sw_rank_stores *self, bool same) {
    const int64_t flag = self->previous;
    const struct sw_comm_claim claim = {
        .what = "--previous", .remedy = "give it to every rank or to none", .value = &flag, .bytes = sizeof flag};
    SW_TRY(sw_ranks_agree(self->ranks, &claim, 1));
    if (!self->previous || same)
        return SW_OK;
    return sw_ranks_gate(
        self->ranks,
        sw_fail(SW_ERR_ARG,
                "--previous goes back in the stores of the run's own %lld ranks: start as many, with the same "
                "--zero",
                (long long)self->run->ranks));
}

sw_status sw_rank_store_open(const struct sw_rank_stores *self, struct sw_store **out) {
    const struct sw_run *run = self->run;
    const struct sw_store_owner owner = sw_settings_owner(&run->settings);
    const bool same = run->ranks == owner.ranks && run->whole == owner.whole;
    *out = NULL;
    SW_TRY(check_previous(self, same));
    const sw_status status = same ? open_existing(self, out) : sw_rank_take_over(self, out);
    if (status != SW_OK) {
        sw_store_close(*out);
        *out = NULL;
    }
    return status;
}
