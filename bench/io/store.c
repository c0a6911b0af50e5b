#include "bench/io/store.h"
#include "train/plan/settings_plan.h"

#include "bench/io/pass.h"
#include "core/clock.h"
#include "core/size.h"
#include "io/queue/queue.h"
#include "offload/simulate/measure.h"
#include "train/run/trainer.h"

#include <math.h>
#include <string.h>

enum { BLOCK_GRAINS = 4, CHUNK_BLOCKS = 4, CHUNK_GRAINS = BLOCK_GRAINS * CHUNK_BLOCKS, SPACE_PART = 2 };
#define CHUNK_BYTES (CHUNK_GRAINS * SW_RECORD_BYTES)
static_assert(CHUNK_BYTES <= SW_IO_STORE_LEAST_BYTES, "every share is enough for one");
static_assert((BLOCK_GRAINS + 1) * SW_RECORD_BYTES <= SW_QUEUE_BLOCK_BYTES && CHUNK_BLOCKS > 1,
              "a lane cuts a chunk into blocks of like size, these");

/* One direction through the store's grains, over and over. */
struct lane_pass {
    struct sw_store_lane *lane;
    char *ring; /* ring_chunks chunks */
    bool write;
    int64_t chunks, ring_chunks, most_chunks;
    double seconds;
};

static sw_status submit(const struct lane_pass *pass, int64_t index) {
    return sw_store_submit(pass->lane,
                           &(struct sw_store_transfer){.write = pass->write,
                                                       .kind = SW_STORE_OPTIMIZER,
                                                       .first_grain = index % pass->chunks * CHUNK_GRAINS,
                                                       .grains = CHUNK_GRAINS,
                                                       .buf = pass->ring + index % pass->ring_chunks * CHUNK_BYTES,
                                                       .tag = (uint64_t)index});
}

/* A buffer of the ring is used again when what it held before is done. */
static sw_status run_lane(const struct lane_pass *pass, struct sw_io_rate *out) {
    bool busy[SW_STORE_LANE_TRANSFERS] = {false};
    uint64_t tags[SW_STORE_LANE_TRANSFERS];
    int64_t submitted = 0, reaped = 0;
    const double start_cpu_s = sw_cpu_seconds();
    const int64_t start_ns = sw_now_ns();
    double seconds = 0.0;
    do {
        for (; seconds < pass->seconds && submitted < pass->most_chunks && !busy[submitted % pass->ring_chunks];
             submitted++) {
            busy[submitted % pass->ring_chunks] = true;
            SW_TRY(submit(pass, submitted));
        }
        int count;
        SW_TRY(sw_store_reap(pass->lane, true, tags, SW_STORE_LANE_TRANSFERS, &count));
        for (int i = 0; i < count; i++)
            busy[(int64_t)tags[i] % pass->ring_chunks] = false;
        reaped += count;
        seconds = (double)(sw_now_ns() - start_ns) * 1e-9;
    } while (reaped < submitted || (seconds < pass->seconds && submitted < pass->most_chunks));
    *out = (struct sw_io_rate){.bytes_per_s = (double)(reaped * CHUNK_BYTES) / seconds,
                               .cores = (sw_cpu_seconds() - start_cpu_s) / seconds};
    return SW_OK;
}

struct store_bench {
    struct sw_io_bench *bench;
    struct sw_store *store;
    int64_t chunks;
    int64_t span_bytes; /* of each file, as much as the store has: what lies close together may be cached */
    struct sw_arena *arena;
    struct sw_io_store_price *out;
};

static sw_status run_store(struct store_bench *self, sw_io_way way, struct sw_io_rate *out) {
    struct sw_io_target *target = &self->bench->target;
    const double seconds = self->bench->effort.seconds;
    struct lane_pass pass = {.ring = sw_arena_base(self->arena),
                             .write = way == SW_IO_WRITE,
                             .chunks = self->chunks,
                             .ring_chunks = sw_arena_bytes(self->arena) / CHUNK_BYTES,
                             .most_chunks = INT64_MAX,
                             .seconds = seconds};
    const int64_t share = pass.write ? sw_io_target_share(target, seconds) : 0;
    if (pass.write)
        pass.most_chunks = share / CHUNK_BYTES;
    SW_TRY(sw_store_lane_open(self->store, self->out->depth, &pass.lane));
    const int64_t before = sw_store_counters(self->store).write_bytes;
    const sw_status status = run_lane(&pass, out);
    sw_io_target_count(target, share, sw_store_counters(self->store).write_bytes - before);
    sw_store_lane_close(pass.lane);
    return status;
}

static sw_status run_plain(struct store_bench *self, sw_io_way way, struct sw_io_rate *out) {
    struct sw_io_target *target = &self->bench->target;
    const double seconds = self->bench->effort.seconds;
    const struct sw_io_pass pass = {.cell = {way, self->out->block_bytes, self->out->depth},
                                    .span_bytes = self->span_bytes,
                                    .seconds = seconds,
                                    .most_bytes = way == SW_IO_WRITE ? sw_io_target_share(target, seconds) : INT64_MAX,
                                    .shared = way == SW_IO_WRITE};
    struct sw_io_done done;
    SW_TRY(sw_io_run(target, &pass, &done));
    *out = done.rate;
    return SW_OK;
}

/* Random bits into every chunk, so that a drive that compresses does not gain by reading zeros. */
static sw_status fill(struct store_bench *self) {
    const struct sw_io_target *target = &self->bench->target;
    struct lane_pass pass = {.ring = sw_arena_base(self->arena),
                             .write = true,
                             .chunks = self->chunks,
                             .ring_chunks = sw_arena_bytes(self->arena) / CHUNK_BYTES,
                             .most_chunks = self->chunks,
                             .seconds = INFINITY};
    struct sw_io_rate rate;
    for (int64_t at = 0; at < sw_arena_bytes(self->arena); at += target->memory_bytes)
        memcpy(pass.ring + at, target->memory[1],
               (size_t)sw_min_i64(target->memory_bytes, sw_arena_bytes(self->arena) - at));
    SW_TRY(sw_store_lane_open(self->store, self->out->depth, &pass.lane));
    const sw_status status = run_lane(&pass, &rate);
    sw_store_lane_close(pass.lane);
    sw_io_target_count(&self->bench->target, 0, self->chunks * CHUNK_BYTES);
    return status;
}

static sw_status measure(struct store_bench *self) {
    SW_TRY(fill(self));
    for (int way = SW_IO_READ; way <= SW_IO_WRITE; way++) {
        struct sw_bench_rounds *rates = &self->out->rates[way], *costs = &self->out->costs[way];
        rates->rounds = costs->rounds = (int)self->bench->effort.rounds;
        for (int round = 0; round < rates->rounds; round++)
            for (int i = 0; i < SW_IO_STORE_CONTENDERS; i++) {
                const int who = round % 2 == 0 ? i : SW_IO_STORE_CONTENDERS - 1 - i;
                struct sw_io_rate rate;
                SW_TRY((who == SW_IO_PLAIN ? run_plain : run_store)(self, (sw_io_way)way, &rate));
                rates->rate[who][round] = rate.bytes_per_s;
                costs->rate[who][round] = sw_io_core_s_per_gb(rate.cores, rate.bytes_per_s);
            }
    }
    return SW_OK;
}

/* Twice what is in flight, so that the lane always has more to issue. */
static sw_status with_store(struct store_bench *self) {
    const int64_t chunks = sw_div_up(INT64_C(2) * self->out->depth, CHUNK_BLOCKS);
    SW_TRY(sw_arena_create("measurement", chunks * CHUNK_BYTES, false, NULL, &self->arena));
    sw_status status = sw_store_add_buffer(self->store, sw_arena_base(self->arena), sw_arena_bytes(self->arena));
    if (status == SW_OK)
        status = measure(self);
    return status;
}

bool sw_io_has_room_for_store(const struct sw_io_target *target) {
    return !target->has_device && target->file_bytes / SPACE_PART >= BLOCK_GRAINS * SW_RECORD_BYTES;
}

sw_status sw_io_measure_store(struct sw_io_bench *bench, struct sw_io_store_price *out) {
    struct sw_io_target *target = &bench->target;
    const int64_t half_bytes = target->file_bytes / SPACE_PART / SW_BUFFER_ALIGN_BYTES * SW_BUFFER_ALIGN_BYTES;
    const int64_t chunks =
        sw_max_i64(1, half_bytes * target->count / (SW_STORE_GENERATIONS * CHUNK_BYTES) - 1); /* less its labels */
    const int64_t grains = chunks * CHUNK_GRAINS;
    const struct sw_store_spec spec = {.directories = target->paths,
                                       .directory_count = target->count,
                                       .unit_grains = &grains,
                                       .unit_count = 1,
                                       .allow_buffered = bench->given->allow_buffered,
                                       .unnamed = true};
    *out = (struct sw_io_store_price){.block_bytes = BLOCK_GRAINS * SW_RECORD_BYTES, .depth = SW_STORE_IO_DEPTH};
    struct sw_store *store;
    SW_TRY(sw_io_target_shrink(target, half_bytes));
    SW_TRY(sw_store_create(&spec, NULL, NULL, &store));
    struct store_bench self = {
        .bench = bench,
        .store = store,
        .chunks = chunks,
        .span_bytes = sw_max_i64(out->block_bytes, sw_min_i64(half_bytes, chunks * CHUNK_BYTES / target->count)),
        .out = out};
    sw_io_target_count(target, 0, sw_store_file_bytes(self.store));
    const sw_status status = with_store(&self);
    sw_store_close(store);
    sw_arena_destroy(self.arena);
    return status;
}
