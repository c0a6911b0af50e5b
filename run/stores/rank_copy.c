/* Copies the grains that two stores both hold from one to the other. */
#include "core/size.h"
#include "run/stores/rank_store_private.h"

#include <stdlib.h>

enum { BOX_GRAINS = 16, BOXES = 2, IO_DEPTH = 32 };

/* Two buffers: one is read while the other is written. */
static sw_status copy_run(struct sw_store_lane *from, struct sw_store_lane *to, const struct sw_store_transfer *run,
                          char *const boxes[BOXES], struct sw_ranks *ranks) {
    for (int64_t done = 0, turn = 0; done < run->grains; done += BOX_GRAINS, turn++) {
        struct sw_store_transfer box = *run;
        box.first_grain += done;
        box.grains = sw_min_i64(BOX_GRAINS, run->grains - done);
        box.buf = boxes[turn % BOXES];
        SW_TRY(sw_store_transfer(from, &box));
        while (sw_store_outstanding(to) > 0) {
            uint64_t tag;
            int count;
            SW_TRY(sw_store_reap(to, true, &tag, 1, &count));
        }
        box.write = true;
        box.generation = 0;
        SW_TRY(sw_store_submit(to, &box));
        sw_ranks_tick(ranks);
    }
    while (sw_store_outstanding(to) > 0) {
        uint64_t tag;
        int count;
        SW_TRY(sw_store_reap(to, true, &tag, 1, &count));
    }
    return SW_OK;
}

static sw_status copy_units(struct sw_store *from, struct sw_store *to, struct sw_store_lane *const lanes[2],
                            char *const boxes[BOXES], struct sw_ranks *ranks, int64_t *grains) {
    const struct sw_store_commit *commit = sw_store_last_commit(from);
    for (int64_t unit = 0; unit < sw_store_unit_count(to); unit++) {
        if (sw_store_unit_whole_grains(from, unit) != sw_store_unit_whole_grains(to, unit))
            return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
        const int64_t first = sw_max_i64(sw_store_unit_first(from, unit), sw_store_unit_first(to, unit));
        const int64_t end = sw_min_i64(sw_store_unit_first(from, unit) + sw_store_unit_grains(from, unit),
                                       sw_store_unit_first(to, unit) + sw_store_unit_grains(to, unit));
        if (end <= first)
            continue;
        const struct sw_store_transfer run = {.generation = commit->generation,
                                              .unit = unit,
                                              .first_grain = first,
                                              .grains = end - first,
                                              .step = commit->step};
        SW_TRY(copy_run(lanes[0], lanes[1], &run, boxes, ranks));
        *grains += end - first;
    }
    return SW_OK;
}

sw_status sw_rank_copy(struct sw_store *from, struct sw_store *to, struct sw_ranks *ranks, int64_t *grains) {
    struct sw_store_lane *lanes[2] = {NULL, NULL};
    const int64_t box_bytes = BOX_GRAINS * sw_optimizer_grain_bytes(sw_store_optimizer(from));
    void *memory = NULL;
    sw_status status = SW_OK;
    if (sw_store_unit_count(from) != sw_store_unit_count(to))
        return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
    if (posix_memalign(&memory, SW_BUFFER_ALIGN_BYTES, (size_t)(BOXES * box_bytes)) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to copy a store");
    char *const boxes[BOXES] = {memory, (char *)memory + box_bytes};
    SW_TRY_GOTO(sw_store_lane_open(from, IO_DEPTH, &lanes[0]), end);
    SW_TRY_GOTO(sw_store_lane_open(to, IO_DEPTH, &lanes[1]), end);
    status = copy_units(from, to, lanes, boxes, ranks, grains);
end:
    sw_store_lane_close(lanes[0]);
    sw_store_lane_close(lanes[1]);
    free(memory);
    return status;
}
