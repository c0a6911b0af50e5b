/* Restores, saves, replaces and reads state between steps, chunk by chunk through the staging rings. */
#include "core/log.h"
#include "core/size.h"
#include "offload/engine/engine_private.h"

#include <assert.h>
#include <string.h>

struct chunk {
    int64_t unit, first_grain, grains;
};

/* Returns chunk `number` of this rank's optimizer state of a unit. */
static struct chunk chunk_at(const struct sw_engine *engine, int64_t unit, int64_t number) {
    const struct sw_span at = sw_plan_state_chunk(engine->plan, SW_OPTIMIZER, unit, number);
    return (struct chunk){.unit = unit, .first_grain = at.first_grain, .grains = at.grains};
}

static bool idle(const struct sw_engine *engine) {
    return engine->begun == engine->waited;
}

static sw_status transfer(struct sw_engine *engine, bool write, int generation, const struct chunk *chunk,
                          void *records) {
    const struct sw_store_transfer transfer = {.write = write,
                                               .kind = SW_STORE_OPTIMIZER,
                                               .generation = generation,
                                               .unit = chunk->unit,
                                               .first_grain = chunk->first_grain,
                                               .grains = chunk->grains,
                                               .buf = records,
                                               .step = engine->step};
    return sw_store_transfer(engine->setup_lane, &transfer);
}

sw_status sw_engine_put(struct sw_engine *engine, int32_t slot, void *to, const void *from, int64_t bytes) {
    if (engine->plan->slot[slot].tier == SW_HOST) {
        memcpy(to, from, (size_t)bytes);
        return SW_OK;
    }
    SW_TRY(sw_copy_to_device(engine->setup_stream, to, from, bytes));
    return sw_stream_synchronize(engine->setup_stream);
}

sw_status sw_engine_get(struct sw_engine *engine, int32_t slot, void *to, const void *from, int64_t bytes) {
    if (engine->plan->slot[slot].tier == SW_HOST) {
        memcpy(to, from, (size_t)bytes);
        return SW_OK;
    }
    SW_TRY(sw_copy_to_host(engine->setup_stream, to, from, bytes));
    return sw_stream_synchronize(engine->setup_stream);
}

static void *optimizer_staging(struct sw_engine *engine) {
    return sw_engine_piece(engine, sw_plan_buffer(engine->plan, SW_BUFFER_OPTIMIZER), 0);
}

/* Copies a chunk of rounded weights from the staging ring to where the unit's weights live: in the engine, or with the
 * caller. */
static sw_status place_weights(struct sw_engine *engine, const struct chunk *chunk, void *staging) {
    const struct sw_plan *plan = engine->plan;
    const int64_t bytes = sw_plan_weights_bytes(plan, chunk->unit, chunk->grains);
    const int64_t each = sw_units_stored_grains(plan->spec.units, chunk->unit, plan->spec.type);
    const struct sw_unit_ops *ops = &engine->spec.ops;
    if (plan->spec.update_only)
        return ops->give(ops->context, chunk->unit, chunk->first_grain * SW_GRAIN_ELEMS, chunk->grains * SW_GRAIN_ELEMS,
                         staging);
    const int32_t slot = sw_plan_weights_home(plan, chunk->unit, chunk->first_grain);
    if (plan->slot[slot].tier == SW_NVME) {
        const struct sw_store_transfer write = {.write = true,
                                                .kind = SW_STORE_WEIGHTS,
                                                .unit = chunk->unit,
                                                .first_grain = chunk->first_grain * each,
                                                .grains = chunk->grains * each,
                                                .buf = staging,
                                                .step = engine->step};
        return sw_store_transfer(engine->setup_lane, &write);
    }
    return sw_engine_put(engine, slot, sw_engine_grain(engine, slot, chunk->first_grain), staging, bytes);
}

static void *weights_staging(struct sw_engine *engine) {
    return sw_engine_piece(engine, sw_plan_buffer(engine->plan, SW_BUFFER_WEIGHTS), 0);
}

static struct sw_span span_of(const struct chunk *chunk) {
    return (struct sw_span){chunk->first_grain, chunk->grains};
}

/* Rounds the masters of records of one size to weights: a skipped update changes nothing else. */
static sw_status round_masters(struct sw_engine *engine, const struct chunk *chunk, void *records, int64_t record_bytes,
                               void *weights) {
    const struct sw_units *units = engine->plan->spec.units;
    const struct sw_unit *unit = &units->unit[chunk->unit];
    const struct sw_adamw round_only = {.skip = true, .grad_scale = 1.0f, .step = 1};
    if (chunk->grains == 0)
        return SW_OK;
    return sw_update_adamw(engine->host_stream, .type = engine->plan->spec.type, .adamw = &round_only,
                           .first_elem = chunk->first_grain * SW_GRAIN_ELEMS, .grains = chunk->grains,
                           .runs = unit->run, .run_count = unit->run_count, .grads = weights, .records = records,
                           .weights = weights, .format = sw_optimizer_records(units->optimizer), .unit = chunk->unit,
                           .wide_elem = unit->wide_grain * SW_GRAIN_ELEMS, .record_bytes = record_bytes);
}

/* Rounds the masters of a chunk into the staging ring, and copies them to where the unit's weights live. */
static sw_status put_weights(struct sw_engine *engine, const struct chunk *chunk, void *records) {
    const struct sw_plan *plan = engine->plan;
    void *staging = weights_staging(engine);
    const int64_t muon = sw_plan_muon_grains(plan, chunk->unit, span_of(chunk));
    if (sw_units_packs(plan->spec.units, chunk->unit)) {
        SW_TRY(sw_engine_pack(engine, engine->host_stream, chunk->unit, span_of(chunk), records, staging));
    } else {
        const struct sw_records layout = sw_plan_records(plan, chunk->unit);
        const struct chunk muons = {chunk->unit, chunk->first_grain, muon};
        const struct chunk others = {chunk->unit, chunk->first_grain + muon, chunk->grains - muon};
        char *behind =
            (char *)records + sw_plan_record_distance(plan, chunk->unit, chunk->first_grain, others.first_grain);
        SW_TRY(round_masters(engine, &muons, records, layout.muon_bytes, staging));
        SW_TRY(round_masters(engine, &others, behind, layout.grain_bytes,
                             (char *)staging + sw_plan_weights_bytes(plan, chunk->unit, muon)));
    }
    SW_TRY(sw_stream_synchronize(engine->host_stream));
    return place_weights(engine, chunk, staging);
}

/* Copies a chunk of optimizer state to where the unit's lives; on NVMe that is the generation that is not committed. */
static sw_status put_records(struct sw_engine *engine, const struct chunk *chunk, void *records) {
    const int32_t slot = sw_plan_resident(engine->plan, SW_OPTIMIZER, chunk->unit);
    if (slot < 0)
        return transfer(engine, true, sw_engine_working(engine), chunk, records);
    return sw_engine_put(engine, slot, sw_engine_grain(engine, slot, chunk->first_grain), records,
                         sw_plan_records_bytes(engine->plan, chunk->unit, span_of(chunk)));
}

/* Tells the watch, in the update lane's name, what the owner does: other ranks may wait for one that has more to do. */
static void tell(struct sw_engine *engine, const char *what, int64_t unit) {
    sw_watch_enter(engine->spec.watch, 1 + SW_LANE_UPDATE, what, unit);
}

static void tell_end(struct sw_engine *engine) {
    sw_watch_leave(engine->spec.watch, 1 + SW_LANE_UPDATE);
}

static sw_status restore_chunk(struct sw_engine *engine, const struct chunk *chunk) {
    void *records = optimizer_staging(engine);
    tell(engine, "restoring", chunk->unit);
    SW_TRY(transfer(engine, false, engine->committed_generation, chunk, records));
    SW_TRY(put_weights(engine, chunk, records));
    if (engine->plan->spec.train && sw_plan_resident(engine->plan, SW_OPTIMIZER, chunk->unit) >= 0)
        SW_TRY(put_records(engine, chunk, records));
    return SW_OK;
}

/* Sends chunk `number` of every rank's restored shard to all ranks, where each keeps whole weights. The chunks go one
 * rank after the other, so that the rings of a step have room for them; this rank's own waits where its optimizer state
 * was. */
static sw_status join_weights(struct sw_engine *engine, int64_t unit, int64_t number) {
    const struct sw_plan *plan = engine->plan;
    const int64_t grain_bytes = sw_plan_weights_bytes(plan, unit, 1);
    const int ranks = sw_plan_unit_ranks(plan, unit), own_rank = sw_plan_unit_rank(plan, unit);
    const struct sw_span own = sw_plan_shard_chunk(plan, unit, own_rank, number);
    memcpy(optimizer_staging(engine), weights_staging(engine), (size_t)(own.grains * grain_bytes));
    for (int rank = 0; rank < ranks; rank++) {
        const struct sw_span at = sw_plan_shard_chunk(plan, unit, rank, number);
        const struct chunk chunk = {.unit = unit, .first_grain = at.first_grain, .grains = at.grains};
        const bool is_own = rank == own_rank;
        struct sw_comm_request *request;
        if (at.grains == 0)
            continue;
        const struct sw_comm_broadcast broadcast = {.what = "weights",
                                                    .index = unit,
                                                    .data =
                                                        is_own ? optimizer_staging(engine) : weights_staging(engine),
                                                    .bytes = at.grains * grain_bytes,
                                                    .root = rank,
                                                    .scope = sw_engine_sharers(engine, unit),
                                                    .on_host = true};
        SW_TRY(sw_comm_broadcast(engine->spec.comm, &broadcast, &request));
        SW_TRY(sw_comm_wait(request));
        if (!is_own)
            SW_TRY(place_weights(engine, &chunk, weights_staging(engine)));
    }
    return SW_OK;
}

/* Returns the bytes of this rank's optimizer state. */
static int64_t optimizer_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        bytes += sw_plan_state_bytes(plan, u);
    return bytes;
}

sw_status sw_engine_restore(struct sw_engine *engine) {
    assert(idle(engine) && engine->spec.store != NULL);
    const struct sw_plan *plan = engine->plan;
    struct sw_long_work progress = sw_long_work_begin("reading the state", optimizer_bytes(plan));
    int64_t read_bytes = 0;
    /* Optimizer state gives room for its weights. */
    assert(sw_optimizer_muon_bytes(plan->spec.units->optimizer) >= SW_GRAIN_ELEMS * (int64_t)sizeof(float));
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const bool joins = sw_plan_keeps_whole_weights(plan, u);
        const int64_t own = sw_plan_state_chunks(plan, SW_OPTIMIZER, u);
        const int64_t most = joins ? sw_plan_buckets(plan, u) : own;
        for (int64_t c = 0; c < most; c++) {
            const struct chunk chunk = chunk_at(engine, u, c);
            SW_TRY(sw_long_work_at(&progress, read_bytes));
            if (c < own)
                SW_TRY(restore_chunk(engine, &chunk));
            read_bytes += c < own ? sw_plan_records_bytes(plan, u, span_of(&chunk)) : 0;
            tell_end(engine);
            if (joins)
                SW_TRY(join_weights(engine, u, c));
        }
    }
    return SW_OK;
}

/* Returns in *out the newest optimizer state of a chunk: in the staging ring, or where it lives on the host. */
static sw_status get_records(struct sw_engine *engine, const struct chunk *chunk, void **out) {
    const int32_t slot = sw_plan_resident(engine->plan, SW_OPTIMIZER, chunk->unit);
    *out = optimizer_staging(engine);
    if (slot < 0) {
        const bool newer = engine->working_is_newer;
        return transfer(engine, false, newer ? sw_engine_working(engine) : engine->committed_generation, chunk, *out);
    }
    void *from = sw_engine_grain(engine, slot, chunk->first_grain);
    if (engine->plan->slot[slot].tier == SW_HOST) {
        *out = from;
        return SW_OK;
    }
    return sw_engine_get(engine, slot, *out, from, sw_plan_records_bytes(engine->plan, chunk->unit, span_of(chunk)));
}

static sw_status save_unit(struct sw_engine *engine, int64_t unit) {
    for (int64_t c = 0; c < sw_plan_state_chunks(engine->plan, SW_OPTIMIZER, unit); c++) {
        const struct chunk chunk = chunk_at(engine, unit, c);
        void *records;
        tell(engine, "saving", unit);
        SW_TRY(get_records(engine, &chunk, &records));
        SW_TRY(transfer(engine, true, sw_engine_working(engine), &chunk, records));
    }
    tell_end(engine);
    return SW_OK;
}

sw_status sw_engine_commit(struct sw_engine *engine) {
    const int generation = sw_engine_working(engine);
    assert(engine->step <= engine->described_step);
    SW_TRY(sw_store_commit(engine->spec.store, engine->step, generation, engine->text));
    engine->committed_generation = generation;
    engine->working_is_newer = false;
    engine->saved_step = engine->step;
    /* Until all ranks have committed, they would go back to the generation that this rank overwrites next. */
    return engine->spec.comm == NULL ? SW_OK : sw_comm_barrier(engine->spec.comm, "commit");
}

sw_status sw_engine_save(struct sw_engine *engine) {
    assert(idle(engine) && engine->spec.store != NULL);
    SW_TRY(sw_engine_settle(engine));
    if (engine->saved_step == engine->step)
        return SW_OK;
    for (int64_t u = 0; u < engine->plan->spec.units->count; u++)
        if (sw_plan_resident(engine->plan, SW_OPTIMIZER, u) >= 0)
            SW_TRY(save_unit(engine, u));
    return sw_engine_commit(engine);
}

static sw_status replace_chunk(struct sw_engine *engine, const struct chunk *chunk,
                               const struct sw_replacement *replacement) {
    void *staging = optimizer_staging(engine), *records;
    SW_TRY(get_records(engine, chunk, &records));
    if (records != staging)
        memcpy(staging, records, (size_t)sw_plan_records_bytes(engine->plan, chunk->unit, span_of(chunk)));
    SW_TRY(replacement->change(replacement->context, chunk->unit, chunk->first_grain, chunk->grains, staging));
    SW_TRY(put_weights(engine, chunk, staging));
    SW_TRY(put_records(engine, chunk, staging));
    return sw_plan_resident(engine->plan, SW_OPTIMIZER, chunk->unit) < 0
               ? SW_OK
               : transfer(engine, true, sw_engine_working(engine), chunk, staging);
}

/* Makes the step, which may be an earlier one, the last that was trained and described. */
static void turn_to(struct sw_engine *engine, const struct sw_replacement *replacement) {
    pthread_mutex_lock(&engine->mutex);
    engine->step = engine->trained_step = engine->described_step = replacement->step;
    engine->applied_steps = replacement->applied_steps;
    engine->skipped_steps = replacement->skipped_steps;
    memcpy(engine->text, replacement->text, strlen(replacement->text) + 1);
    pthread_mutex_unlock(&engine->mutex);
}

sw_status sw_engine_replace(struct sw_engine *engine, const struct sw_replacement *replacement) {
    assert(idle(engine) && engine->spec.store != NULL && engine->spec.comm == NULL && engine->spec.described);
    assert(!engine->plan->spec.one_generation && strlen(replacement->text) < sizeof engine->text);
    SW_TRY(sw_engine_settle(engine));
    for (int64_t u = 0; u < engine->plan->spec.units->count; u++)
        for (int64_t c = 0; c < sw_plan_state_chunks(engine->plan, SW_OPTIMIZER, u); c++) {
            const struct chunk chunk = chunk_at(engine, u, c);
            SW_TRY(replace_chunk(engine, &chunk, replacement));
        }
    turn_to(engine, replacement);
    return sw_engine_commit(engine);
}

sw_status sw_engine_read_optimizer(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains,
                                   void *out) {
    assert(idle(engine));
    SW_TRY(sw_engine_settle(engine));
    const struct sw_records layout = sw_plan_records(engine->plan, unit);
    for (int64_t g = first_grain, run; g < first_grain + grains; g += run) {
        const int64_t within = g - sw_plan_span(engine->plan, SW_OPTIMIZER, unit).first_grain;
        const struct chunk chunk = chunk_at(engine, unit, within / engine->plan->spec.chunk_grains);
        void *records;
        run = sw_min_i64(first_grain + grains, chunk.first_grain + chunk.grains) - g;
        SW_TRY(get_records(engine, &chunk, &records));
        for (int64_t i = 0; i < run; i++) {
            char *record = (char *)out + (g + i - first_grain) * layout.grain_bytes;
            const int64_t bytes = sw_record_bytes(&layout, within + i);
            memcpy(record,
                   (const char *)records + sw_plan_record_distance(engine->plan, unit, chunk.first_grain, g + i),
                   (size_t)bytes);
            memset(record + bytes, 0, (size_t)(layout.grain_bytes - bytes));
        }
    }
    return SW_OK;
}

sw_status sw_engine_read_grads(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains,
                               float *out) {
    assert(idle(engine));
    const struct sw_plan *plan = engine->plan;
    const int64_t grain_bytes = sw_plan_grain_bytes(plan, SW_CONTENT_GRADS, unit);
    const int32_t slot = sw_plan_resident(plan, SW_GRADS, unit);
    void *staging = optimizer_staging(engine);
    for (int64_t g = 0; g < grains; g++) {
        if (slot < 0) {
            const struct sw_store_transfer read = {.kind = SW_STORE_GRADS,
                                                   .unit = unit,
                                                   .first_grain = first_grain + g,
                                                   .grains = 1,
                                                   .buf = staging,
                                                   .step = engine->step};
            SW_TRY(sw_store_transfer(engine->setup_lane, &read));
        } else {
            SW_TRY(sw_engine_get(engine, slot, staging, sw_engine_grain(engine, slot, first_grain + g), grain_bytes));
        }
        float *to = out + g * SW_GRAIN_ELEMS;
        if (plan->spec.grads == SW_GRADS_TYPED)
            sw_dtype_widen(plan->spec.type, staging, SW_GRAIN_ELEMS, to);
        for (int64_t i = 0; plan->spec.grads == SW_GRADS_8BIT && i < SW_GRAIN_ELEMS; i++)
            to[i] = sw_grads_8bit_at(staging, i);
    }
    return SW_OK;
}
