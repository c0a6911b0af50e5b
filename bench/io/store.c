#include "bench/io/store.h"

#include "bench/io/pass.h"
#include "core/size.h"
#include "io/queue/queue.h"
#include "train/plan/settings_plan.h"

#include <math.h>

/* A lane cuts a chunk into blocks, which are the requests of both contenders. */
enum { BLOCK_GRAINS = 4, CHUNK_BLOCKS = SW_IO_STORE_GRAINS / BLOCK_GRAINS, SPACE_PART = 2 };
#define CHUNK_BYTES (SW_IO_STORE_GRAINS * SW_OPTIMIZER_GRAIN_BYTES)
static_assert(CHUNK_BYTES <= SW_IO_STORE_LEAST_BYTES, "every pass writes a chunk");
static_assert((BLOCK_GRAINS + 1) * SW_OPTIMIZER_GRAIN_BYTES <= SW_QUEUE_BLOCK_BYTES && CHUNK_BLOCKS > 1,
              "a lane cuts a chunk into blocks of this size");
/* Twice the blocks in flight, so that the lane always has more to issue. */
enum { CHUNKS_IN_FLIGHT = 2 * SW_STORE_IO_DEPTH / CHUNK_BLOCKS };

struct store_bench {
    struct sw_io_bench *bench;
    struct sw_store *store;
    int64_t chunks;     /* of the store */
    int64_t span_bytes; /* of each file, as much as the store has: bytes that lie close together may be cached */
};

static sw_status run_store(const struct store_bench *self, sw_io_way way, double seconds, int64_t most_bytes,
                           struct sw_io_rate *out) {
    struct sw_io_target *target = &self->bench->target;
    /* A chunk is in flight once at a time. */
    const int in_flight = (int)sw_min_i64(CHUNKS_IN_FLIGHT, self->chunks);
    struct sw_io_pass pass = {.turn = {{way, CHUNK_BYTES, in_flight}, seconds, most_bytes},
                              .store_blocks = self->chunks};
    struct sw_io_done done;
    SW_TRY(sw_store_lane_open(self->store, SW_STORE_IO_DEPTH, &pass.store));
    const sw_status status = sw_io_run(target, &pass, &done);
    sw_store_lane_close(pass.store);
    *out = done.rate;
    return status;
}

static sw_status run(const struct store_bench *self, int who, sw_io_way way, struct sw_io_rate *out) {
    const double seconds = self->bench->effort.seconds;
    const int64_t most_bytes = way == SW_IO_READ ? INT64_MAX : sw_io_share(self->bench, seconds);
    if (who == SW_IO_STORE)
        return run_store(self, way, seconds, most_bytes, out);
    const struct sw_io_pass pass = {
        .turn = {{way, BLOCK_GRAINS * SW_OPTIMIZER_GRAIN_BYTES, SW_STORE_IO_DEPTH}, seconds, most_bytes},
        .span_bytes = self->span_bytes};
    struct sw_io_done done;
    SW_TRY(sw_io_run(&self->bench->target, &pass, &done));
    *out = done.rate;
    return SW_OK;
}

static sw_status measure_way(const struct store_bench *self, sw_io_way way, struct sw_io_store_way *out) {
    out->way = sw_io_way_name(way);
    out->rates.rounds = out->core_s_per_gb.rounds = (int)self->bench->effort.rounds;
    for (int round = 0; round < out->rates.rounds; round++)
        for (int i = 0; i < SW_IO_STORE_CONTENDERS; i++) {
            const int who = (round + i) % SW_IO_STORE_CONTENDERS;
            struct sw_io_rate rate;
            SW_TRY(run(self, who, way, &rate));
            out->rates.rate[who][round] = rate.bytes_per_s;
            out->core_s_per_gb.rate[who][round] = sw_io_core_s_per_gb(rate.cores, rate.bytes_per_s);
        }
    out->sums_core_s_per_gb =
        sw_bench_median(&out->core_s_per_gb, SW_IO_STORE) - sw_bench_median(&out->core_s_per_gb, SW_IO_PLAIN);
    return SW_OK;
}

/* Random bits go into every chunk first, so that a drive that compresses does not gain by reading zeros. */
static sw_status measure(const struct store_bench *self, struct sw_io_store_price *out) {
    struct sw_io_target *target = &self->bench->target;
    struct sw_io_rate rate;
    for (int i = 0; i < 2; i++)
        SW_TRY(sw_store_add_buffer(self->store, target->memory[i], target->memory_bytes));
    SW_TRY(run_store(self, SW_IO_WRITE, INFINITY, self->chunks * CHUNK_BYTES, &rate));
    for (int way = SW_IO_READ; way <= SW_IO_WRITE; way++)
        SW_TRY(measure_way(self, (sw_io_way)way, &out->way[way]));
    return SW_OK;
}

bool sw_io_has_room_for_store(const struct sw_io_target *target) {
    return !target->has_device && target->file_bytes / SPACE_PART >= BLOCK_GRAINS * SW_OPTIMIZER_GRAIN_BYTES;
}

sw_status sw_io_measure_store(struct sw_io_bench *bench, struct sw_io_store_price *out) {
    struct sw_io_target *target = &bench->target;
    const int64_t half_bytes = target->file_bytes / SPACE_PART / SW_BUFFER_ALIGN_BYTES * SW_BUFFER_ALIGN_BYTES;
    const int64_t chunks =
        sw_max_i64(1, half_bytes * target->count / (SW_STORE_GENERATIONS * CHUNK_BYTES) - 1); /* less its labels */
    const int64_t grains = chunks * SW_IO_STORE_GRAINS;
    const struct sw_store_spec spec = {.directories = target->paths,
                                       .directory_count = target->count,
                                       .unit_grains = &grains,
                                       .unit_count = 1,
                                       .allow_buffered = bench->given->allow_buffered,
                                       .unnamed = true};
    *out =
        (struct sw_io_store_price){.block_bytes = BLOCK_GRAINS * SW_OPTIMIZER_GRAIN_BYTES, .depth = SW_STORE_IO_DEPTH};
    struct store_bench self = {
        .bench = bench,
        .chunks = chunks,
        .span_bytes = sw_max_i64(out->block_bytes, sw_min_i64(half_bytes, chunks * CHUNK_BYTES / target->count))};
    SW_TRY(sw_io_target_shrink(target, half_bytes));
    SW_TRY(sw_io_target_take_memory(target, CHUNKS_IN_FLIGHT * CHUNK_BYTES));
    SW_TRY(sw_store_create(&spec, NULL, NULL, &self.store));
    target->written_bytes += sw_store_file_bytes(self.store);
    const sw_status status = measure(&self, out);
    sw_store_close(self.store);
    return status;
}
