/* Gathers the stores of all ranks for run.json. */
#include "core/size.h"
#include "run/folder/run_stores.h"
#include "run/stores/rank_store_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank's store as bytes for the other ranks: this head, then its places as strings that end in 0. */
struct told {
    char id[SW_STORE_ID_CHARS];
    int64_t local_rank, places;
    char text[];
};

static int64_t text_bytes(const struct sw_places *places) {
    int64_t bytes = 0;
    for (int i = 0; i < places->count; i++)
        bytes += (int64_t)strlen(places->path[i]) + 1;
    return bytes;
}

static void tell(const struct sw_rank_stores *self, const char *id, const struct sw_places *places, struct told *own) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    assert(own != NULL);
    snprintf(own->id, sizeof own->id, "%s", id);
    own->local_rank = owner.local_rank;
    own->places = places->count;
    char *at = own->text;
    for (int i = 0; i < places->count; i++) {
        const size_t bytes = strlen(places->path[i]) + 1;
        memcpy(at, places->path[i], bytes);
        at += bytes;
    }
}

/* Without --nvme the store moves with the folder of the run, so no places are kept. */
static bool lies_in_folder(const struct sw_rank_stores *self, const struct sw_places *places) {
    const size_t chars = strlen(self->folder);
    return self->run->settings.nvme.count == 0 && places->count == 1 &&
           strncmp(places->path[0], self->folder, chars) == 0;
}

static sw_status hear(const struct told *told, struct sw_run_store *out) {
    const char *at = told->text;
    assert(out != NULL);
    snprintf(out->id, sizeof out->id, "%s", told->id);
    out->local_rank = told->local_rank;
    for (int64_t i = 0; i < told->places; i++) {
        SW_TRY(sw_option_list_add(&out->places, at));
        at += strlen(at) + 1;
    }
    return SW_OK;
}

static sw_status share(const struct sw_rank_stores *self, const char *id, const struct sw_places *places,
                       struct sw_run_store *out) {
    const int64_t count = sw_ranks_count(self->ranks);
    int64_t negative = -sw_round_up((int64_t)sizeof(struct told) + text_bytes(places), (int64_t)sizeof(int64_t));
    SW_TRY(sw_ranks_least(self->ranks, &negative, 1));
    const int64_t bytes = -negative;
    struct told *own = calloc(1, (size_t)bytes);
    void *all = NULL;
    sw_status status = own != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the stores of all ranks");
    SW_TRY_GOTO(sw_ranks_agree_on_error(self->ranks, status), end);
    tell(self, id, places, own);
    SW_TRY_GOTO(sw_ranks_collect(self->ranks, "stores", own, bytes, &all), end);
    for (int64_t r = 0; status == SW_OK && r < count; r++)
        status = hear((const struct told *)((const char *)all + r * bytes), &out[r]);
end:
    free(own);
    free(all);
    return status;
}

sw_status sw_rank_record(const struct sw_rank_stores *self, const char *id, const struct sw_places *places) {
    static const struct sw_places in_folder = {0};
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    struct sw_run_store *stores = calloc((size_t)owner.ranks, sizeof *stores);
    sw_status status = stores != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for all stores");
    status = sw_ranks_agree_on_error(self->ranks, status);
    if (status == SW_OK)
        status = share(self, id, lies_in_folder(self, places) ? &in_folder : places, stores);
    status = sw_ranks_agree_on_error(self->ranks, status);
    if (status != SW_OK) {
        sw_run_stores_release(stores, owner.ranks);
        return status;
    }
    sw_run_stores_release(self->run->store, self->run->ranks);
    self->run->store = stores;
    self->run->ranks = owner.ranks;
    self->run->whole = owner.whole;
    self->run->optimizer = owner.optimizer;
    self->run->tensor_ranks = owner.tensor_ranks;
    self->run->tiles = self->run->settings.tiles;
    return SW_OK;
}

sw_status sw_rank_record_own(const struct sw_rank_stores *self, const char *id, bool must_be_free) {
    struct sw_places places;
    sw_status status = sw_ranks_agree_on_error(self->ranks, sw_rank_own_places(self, &places));
    if (status == SW_OK && must_be_free)
        status = sw_ranks_agree_on_error(self->ranks, sw_rank_refuse_taken(&places));
    if (status == SW_OK)
        status = sw_rank_record(self, id, &places);
    sw_places_release(&places);
    return status;
}
