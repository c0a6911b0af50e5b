/* Measures the rates of a small store: it is made, written, read, both at once, committed, and deleted. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/size.h"
#include "core/team.h"
#include "io/store/store.h"
#include "offload/simulate/measure.h"

#include <math.h>

enum { ROUNDS = 3 };
/* Drives and their hosts take a fraction of a second at a better rate than they sustain. */
#define PASS_S 0.25

/* A pass reads or writes all grains of a generation, over and over until it has taken long enough. */
struct pass {
    struct sw_store *store;
    struct sw_store_lane *lane; /* open while the pass runs */
    char *ring;                 /* ring_chunks chunks */
    int depth;
    bool write;
    int generation;
    int64_t grains, chunk_grains, ring_chunks;
    double least_s; /* 0: once is enough */
    double seconds, bytes;
};

static sw_status submit(const struct pass *pass, int64_t chunk) {
    const int64_t first = chunk * pass->chunk_grains;
    return sw_store_submit(
        pass->lane, &(struct sw_store_transfer){
                        .write = pass->write,
                        .kind = SW_STORE_OPTIMIZER,
                        .generation = pass->generation,
                        .first_grain = first,
                        .grains = sw_min_i64(pass->chunk_grains, pass->grains - first),
                        .buf = pass->ring + chunk % pass->ring_chunks * pass->chunk_grains * SW_OPTIMIZER_GRAIN_BYTES,
                        .tag = (uint64_t)chunk,
                    });
}

/* Runs the transfers of a pass. A buffer of the ring is used again when its last transfer is done. */
static sw_status stream(const struct pass *pass) {
    const int64_t chunks = sw_div_up(pass->grains, pass->chunk_grains);
    bool busy[SW_STORE_LANE_TRANSFERS] = {false};
    int64_t submitted = 0, reaped = 0;
    while (reaped < chunks) {
        for (; submitted < chunks && !busy[submitted % pass->ring_chunks]; submitted++) {
            busy[submitted % pass->ring_chunks] = true;
            SW_TRY(submit(pass, submitted));
        }
        uint64_t tags[SW_STORE_LANE_TRANSFERS];
        int count;
        SW_TRY(sw_store_reap(pass->lane, true, tags, SW_STORE_LANE_TRANSFERS, &count));
        for (int i = 0; i < count; i++)
            busy[(int64_t)tags[i] % pass->ring_chunks] = false;
        reaped += count;
    }
    return SW_OK;
}

static sw_status run_pass(void *context) {
    struct pass *pass = context;
    const int64_t start_ns = sw_now_ns();
    pass->bytes = 0.0;
    do {
        SW_TRY(stream(pass));
        pass->bytes += (double)(pass->grains * SW_OPTIMIZER_GRAIN_BYTES);
        pass->seconds = (double)(sw_now_ns() - start_ns) * 1e-9;
    } while (pass->seconds < pass->least_s);
    return SW_OK;
}

static sw_status run_alone(struct pass *pass) {
    SW_TRY(sw_store_lane_open(pass->store, pass->depth, &pass->lane));
    const sw_status status = run_pass(pass);
    sw_store_lane_close(pass->lane);
    return status;
}

/* Runs two passes at once. A lane runs on any thread, but the thread that has the store opens it. */
static sw_status run_both(struct pass *pass, struct pass *other) {
    SW_TRY(sw_store_lane_open(pass->store, pass->depth, &pass->lane));
    sw_status status = sw_store_lane_open(other->store, other->depth, &other->lane);
    if (status == SW_OK) {
        status = sw_run_both(run_pass, pass, other);
        sw_store_lane_close(other->lane);
    }
    sw_store_lane_close(pass->lane);
    return status;
}

static double rate_of(const struct pass *pass) {
    return pass->bytes / pass->seconds;
}

static sw_status timed_pass(struct pass *pass, double *out_rate, double *out_cores) {
    const double start_cpu_s = sw_cpu_seconds();
    SW_TRY(run_alone(pass));
    *out_rate = rate_of(pass);
    *out_cores = (sw_cpu_seconds() - start_cpu_s) / pass->seconds;
    return SW_OK;
}

/* Measures a read of one grain on an idle lane. */
static sw_status measure_latency(struct pass pass, double *out_s) {
    double seconds[ROUNDS];
    pass.write = false;
    pass.least_s = 0.0;
    pass.grains = pass.chunk_grains = 1;
    for (int round = 0; round < ROUNDS; round++) {
        SW_TRY(run_alone(&pass));
        seconds[round] = pass.seconds;
    }
    *out_s = sw_median(seconds, ROUNDS);
    return SW_OK;
}

/* Returns by which factor each direction is slower while both run, so that reading and writing as many bytes takes as
 * long as it does: both until one direction is done, then the other alone. */
static double slowdown_of(double read, double write, double both_read, double both_write) {
    const double shorter_s = fmin(1.0 / read, 1.0 / write), longer_s = fmax(1.0 / read, 1.0 / write);
    const double together_s = fmin(1.0 / both_read, 1.0 / both_write);
    const double both_s = both_read < both_write ? together_s + (1.0 - together_s * both_read) / read
                                                 : together_s + (1.0 - together_s * both_write) / write;
    return fmax(1.0, (both_s - (longer_s - shorter_s)) / shorter_s);
}

static sw_status measure(struct pass base, char *other_ring, struct sw_store_rates *out) {
    double read[ROUNDS], write[ROUNDS], read_cores[ROUNDS], write_cores[ROUNDS], slowdown[ROUNDS], commit_s[ROUNDS];
    struct pass fill = base;
    fill.write = true;
    fill.least_s = 0.0;
    SW_TRY(run_alone(&fill));
    for (int round = 0; round < ROUNDS; round++) {
        struct pass reading = base, writing = base;
        reading.generation = round % SW_STORE_GENERATIONS;
        writing.generation = 1 - reading.generation;
        writing.write = true;
        SW_TRY(timed_pass(&reading, &read[round], &read_cores[round]));
        SW_TRY(timed_pass(&writing, &write[round], &write_cores[round]));
        writing.ring = other_ring;
        SW_TRY(run_both(&reading, &writing));
        slowdown[round] = slowdown_of(read[round], write[round], rate_of(&reading), rate_of(&writing));
        const int64_t start_ns = sw_now_ns();
        SW_TRY(sw_store_commit(base.store, round + 1, writing.generation, "{}"));
        commit_s[round] = (double)(sw_now_ns() - start_ns) * 1e-9;
    }
    out->read = (struct sw_rate){sw_median(read, ROUNDS), sw_median(read_cores, ROUNDS)};
    out->write = (struct sw_rate){sw_median(write, ROUNDS), sw_median(write_cores, ROUNDS)};
    out->read_write_slowdown = sw_median(slowdown, ROUNDS);
    out->commit_s = sw_median(commit_s, ROUNDS);
    return measure_latency(base, &out->latency_s);
}

static sw_status with_store(struct sw_store *store, int depth, const struct sw_measure_shape *shape, int64_t grains,
                            struct sw_store_rates *out) {
    const int64_t ring_bytes = shape->ring_chunks * shape->chunk_grains * SW_OPTIMIZER_GRAIN_BYTES;
    struct sw_arena *arena;
    void *base = NULL, *other = NULL;
    SW_TRY(sw_arena_create("measurement", 2 * ring_bytes, true, NULL, &arena));
    sw_status status = sw_arena_take(arena, ring_bytes, &base);
    if (status == SW_OK)
        status = sw_arena_take(arena, ring_bytes, &other);
    if (status == SW_OK)
        status = sw_store_add_buffer(store, sw_arena_base(arena), sw_arena_bytes(arena));
    const struct pass pass = {.store = store,
                              .ring = base,
                              .depth = depth,
                              .grains = grains,
                              .chunk_grains = shape->chunk_grains,
                              .least_s = PASS_S * sw_measure_share(),
                              .ring_chunks = sw_min_i64(shape->ring_chunks, SW_STORE_LANE_TRANSFERS)};
    if (status == SW_OK)
        status = measure(pass, other, out);
    sw_arena_destroy(arena);
    return status;
}

sw_status sw_measure_store(const char *const *directories, int directory_count, bool allow_buffered, int depth,
                           const struct sw_measure_shape *shape, struct sw_store_rates *out) {
    const int64_t bytes = (int64_t)(sw_measure_share() * (double)SW_MEASURE_STORE_BYTES);
    const int64_t grains = sw_max_i64(shape->chunk_grains, bytes / SW_OPTIMIZER_GRAIN_BYTES);
    const struct sw_store_spec spec = {.directories = directories,
                                       .directory_count = directory_count,
                                       .unit_grains = &grains,
                                       .unit_count = 1,
                                       .allow_buffered = allow_buffered,
                                       .unnamed = true};
    struct sw_store *store;
    SW_TRY(sw_store_create(&spec, NULL, NULL, &store));
    const sw_status status = with_store(store, depth, shape, grains, out);
    sw_store_close(store);
    return status;
}
