/* This rank's store: opened at the step that all ranks have, or replaced if ranks or layout have changed.
 *
 * The stores of a run commit independently, so after a crash one rank may be a step ahead. All open at the newest step
 * that every store has; a later commit is dropped only after every rank has found its store whole at that step.
 * Dropping first would leave nothing if a store turned out damaged. */
#include "run/stores/rank_store.h"

#include "core/log.h"
#include "core/size.h"
#include "run/folder/run.h"
#include "run/stores/rank_store_private.h"

#include <string.h>

sw_status sw_rank_store_create(const struct sw_rank_stores *self, const char *id, struct sw_store **out) {
    SW_TRY(sw_ranks_agree_on_error(self->ranks, sw_rank_make(self, id, out)));
    return sw_rank_record_own(self, id, false);
}

void sw_rank_store_undo(const struct sw_rank_stores *self, struct sw_store *store) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    struct sw_places places;
    sw_store_discard(store);
    if (sw_rank_own_places(self, &places) == SW_OK)
        sw_places_unmake(&places, &owner);
    sw_places_release(&places);
}

/* Returns where run.json has the store, unless --nvme is new. Ranks may have had places of their own, and the next
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

/* Opens this rank's store at the step from which all ranks continue. Later commits are removed afterwards. */
static sw_status open_common(const struct sw_rank_stores *self, const struct sw_places *places, int64_t *out_newest,
                             struct sw_store **out) {
    struct sw_ranks *ranks = self->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, open_at(self, places, SW_STORE_NEWEST, out)));
    const int64_t own = sw_store_last_commit(*out)->step;
    int64_t newest = own;
    SW_TRY(sw_ranks_least(ranks, &newest, 1));
    *out_newest = newest;
    const int64_t step = self->previous ? newest - 1 : newest;
    const sw_status status = sw_ranks_agree_on_error(ranks, own > step ? open_at(self, places, step, out) : SW_OK);
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
    /* Every rank's store must be whole before any orphan, or a later commit of any rank, is dropped. */
    int64_t gives_up = sw_store_is_behind(*out) || self->run->orphan_count > 0;
    SW_TRY(sw_ranks_sum(ranks, &gives_up));
    SW_TRY(sw_ranks_agree_on_error(ranks, gives_up > 0 ? sw_rank_check_whole(ranks, *out) : SW_OK));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_go_back(*out)));
    if (self->previous && sw_ranks_rank(ranks) == 0)
        sw_log_info("dropped step %lld; the run continues from step %lld, which is whole", (long long)newest,
                    (long long)sw_store_last_commit(*out)->step);
    SW_TRY(sw_rank_record(self, sw_store_id(*out, id), places));
    return sw_rank_remove_orphans(self);
}

static sw_status open_existing(const struct sw_rank_stores *self, struct sw_store **out) {
    struct sw_places places = {0};
    sw_status status = sw_ranks_agree_on_error(self->ranks, find_places(self, &places));
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
    return sw_ranks_agree_on_error(
        self->ranks, sw_fail(SW_ERR_ARG,
                             "--previous goes back in the stores of the run's own %s: start as many, with the same "
                             "--zero, --tensor and --optimizer-state",
                             SW_COUNT(self->run->ranks, "rank")));
}

sw_status sw_rank_store_open(const struct sw_rank_stores *self, struct sw_store **out) {
    const struct sw_run *run = self->run;
    const struct sw_store_owner owner = sw_settings_owner(&run->settings);
    const bool same = run->ranks == owner.ranks && run->whole == owner.whole && run->optimizer == owner.optimizer &&
                      run->tensor_ranks == owner.tensor_ranks;
    *out = NULL;
    SW_TRY(check_previous(self, same));
    const sw_status status = same ? open_existing(self, out) : sw_rank_replace(self, out);
    if (status != SW_OK) {
        sw_store_close(*out);
        *out = NULL;
    }
    return status;
}
