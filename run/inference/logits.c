#include "run/inference/logits.h"

#include "core/size.h"
#include "offload/plan/shard.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Parts of the logits that ranks exchange begin at multiples of so many bytes. */
enum { SHARE_ALIGN = 64 };

sw_status sw_logits_share(struct sw_ranks *ranks, int tensor_ranks, int64_t vocab, float *logits) {
    if (tensor_ranks == 1)
        return SW_OK;
    const int64_t most = sw_shard_most_grains(vocab, tensor_ranks);
    const int64_t part_bytes = sw_round_up(most * (int64_t)sizeof *logits, SHARE_ALIGN);
    const struct sw_span own = sw_shard(vocab, tensor_ranks, sw_ranks_rank(ranks) % tensor_ranks);
    char *mine = calloc(1, (size_t)part_bytes);
    void *all = NULL;
    sw_status status = mine != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the logits of all ranks");
    SW_TRY_GOTO(sw_ranks_agree_on_error(ranks, status), end);
    assert(mine != NULL);
    memcpy(mine, logits + own.first_grain, (size_t)own.grains * sizeof *logits);
    SW_TRY_GOTO(sw_ranks_collect(ranks, "logits", mine, part_bytes, &all), end);
    for (int rank = 0; rank < tensor_ranks; rank++) {
        const struct sw_span part = sw_shard(vocab, tensor_ranks, rank);
        memcpy(logits + part.first_grain, (const char *)all + rank * part_bytes, (size_t)part.grains * sizeof *logits);
    }
end:
    free(all);
    free(mine);
    return status;
}
