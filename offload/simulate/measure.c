#include "offload/simulate/measure.h"

#include "core/arena.h"
#include "core/clock.h"
#include "core/size.h"
#include "core/team.h"
#include "io/store/store.h"
#include "kernels/muon.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* A working set larger than caches; the first round, which does not count, only touches the memory. */
enum { ROUNDS = 3 };
#define WORKING_BYTES (256 * SW_MIB)

double sw_measure_share(void) {
    const char *text = getenv("SW_MEASURE_SHARE");
    const double share = text != NULL ? strtod(text, NULL) : 1.0;
    return share > 0.0 && share < 1.0 ? share : 1.0;
}

double sw_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double sw_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

/* One measurement: its memory, in three areas, and how much of it a round works on. */
struct bench {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *memory[3];
    sw_dtype type;
    sw_optimizer_format optimizer;
    sw_rounding rounding;
    int64_t chunk_grains, chunks;
    void *a, *b, *c;
};

/* Sides of the three areas: all on the device, or the first on the host, for copies. */
static const sw_memory_side on_device[3] = {SW_MEMORY_DEVICE, SW_MEMORY_DEVICE, SW_MEMORY_DEVICE};
static const sw_memory_side first_on_host[3] = {SW_MEMORY_HOST, SW_MEMORY_DEVICE, SW_MEMORY_DEVICE};

/* Works on one chunk. */
typedef sw_status (*chunk_function)(struct bench *bench, int64_t chunk);

static sw_status open_bench(struct bench *bench, struct sw_device *device, const struct sw_measure_shape *shape,
                            const sw_memory_side side[3], const int64_t grain_bytes[3]) {
    const int64_t all_bytes = grain_bytes[0] + grain_bytes[1] + grain_bytes[2];
    const int64_t working_bytes = (int64_t)(sw_measure_share() * (double)WORKING_BYTES);
    const int64_t chunks = sw_max_i64(2, working_bytes / (shape->chunk_grains * all_bytes));
    const int64_t grains = chunks * shape->chunk_grains;
    void **areas[] = {&bench->a, &bench->b, &bench->c};
    *bench = (struct bench){.device = device,
                            .type = shape->type,
                            .optimizer = shape->optimizer,
                            .rounding = shape->rounding,
                            .chunk_grains = shape->chunk_grains,
                            .chunks = chunks};
    SW_TRY(sw_stream_open(device, &bench->stream));
    for (int i = 0; i < 3; i++)
        if (grain_bytes[i] > 0) {
            SW_TRY(sw_memory_open(device, "measurement", side[i], grains * grain_bytes[i], &bench->memory[i]));
            *areas[i] = sw_memory_base(bench->memory[i]);
        }
    return SW_OK;
}

static void close_bench(struct bench *bench) {
    sw_stream_close(bench->stream);
    for (int i = 0; i < 3; i++)
        sw_memory_close(bench->memory[i]);
}

/* Runs a function over all chunks in some rounds and returns the best rate: rounds are short, and other work of the
 * machine in such a moment says nothing about a step. */
static sw_status rate_of(struct bench *bench, chunk_function run, int64_t chunk_bytes, struct sw_rate *out) {
    *out = (struct sw_rate){0};
    for (int round = -1; round < ROUNDS; round++) {
        const int64_t start_ns = sw_now_ns();
        const double start_cpu_s = sw_cpu_seconds();
        for (int64_t c = 0; c < bench->chunks; c++) {
            SW_TRY(run(bench, c));
            if (!sw_device_info(bench->device).asynchronous)
                SW_TRY(sw_stream_synchronize(bench->stream));
        }
        SW_TRY(sw_stream_synchronize(bench->stream));
        const double seconds = (double)(sw_now_ns() - start_ns) * 1e-9;
        const double bytes_per_s = (double)(bench->chunks * chunk_bytes) / seconds;
        if (round >= 0 && bytes_per_s > out->bytes_per_s)
            *out = (struct sw_rate){.bytes_per_s = bytes_per_s, .cores = (sw_cpu_seconds() - start_cpu_s) / seconds};
    }
    return SW_OK;
}

static int64_t typed_bytes(const struct bench *bench) {
    return bench->chunk_grains * SW_GRAIN_ELEMS * sw_dtype_bytes(bench->type);
}

static void *chunk_at(const struct bench *bench, void *area, int64_t chunk, int64_t elem_bytes) {
    return (char *)area + chunk * bench->chunk_grains * SW_GRAIN_ELEMS * elem_bytes;
}

static sw_status upload_chunk(struct bench *bench, int64_t chunk) {
    return sw_copy_to_device(bench->stream, chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)),
                             chunk_at(bench, bench->a, chunk, sw_dtype_bytes(bench->type)), typed_bytes(bench));
}

static sw_status download_chunk(struct bench *bench, int64_t chunk) {
    return sw_copy_to_host(bench->stream, chunk_at(bench, bench->a, chunk, sw_dtype_bytes(bench->type)),
                           chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)), typed_bytes(bench));
}

sw_status sw_measure_copies(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out_upload,
                            struct sw_rate *out_download) {
    const int64_t grain = SW_GRAIN_ELEMS * sw_dtype_bytes(shape->type);
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, first_on_host, (int64_t[]){grain, grain, 0});
    if (status == SW_OK)
        status = rate_of(&bench, upload_chunk, typed_bytes(&bench), out_upload);
    if (status == SW_OK)
        status = rate_of(&bench, download_chunk, typed_bytes(&bench), out_download);
    close_bench(&bench);
    return status;
}

static sw_status update_chunk(struct bench *bench, int64_t chunk) {
    const int64_t elems = bench->chunk_grains * SW_GRAIN_ELEMS,
                  state_bytes = sw_optimizer_grain_bytes(bench->optimizer);
    const struct sw_decay_run run = {.end = bench->chunks * elems, .decay = true};
    const struct sw_adamw adamw = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0f, .step = 1};
    return sw_update_adamw(bench->stream, .type = bench->type, .adamw = &adamw, .first_elem = chunk * elems,
                           .grains = bench->chunk_grains, .runs = &run, .run_count = 1,
                           .grads = chunk_at(bench, bench->a, chunk, sw_dtype_bytes(bench->type)),
                           .records = (char *)bench->c + chunk * bench->chunk_grains * state_bytes,
                           .weights = chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)),
                           .format = bench->optimizer, .rounding = bench->rounding, .wide_elem = bench->chunks * elems);
}

sw_status sw_measure_update(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out) {
    const int64_t grain = SW_GRAIN_ELEMS * sw_dtype_bytes(shape->type);
    const int64_t state_bytes = sw_optimizer_grain_bytes(shape->optimizer);
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, on_device, (int64_t[]){grain, grain, state_bytes});
    if (status == SW_OK)
        status = rate_of(&bench, update_chunk, bench.chunk_grains * 2 * (state_bytes + grain), out);
    close_bench(&bench);
    return status;
}

/* A square matrix of so many rows: larger ones take longer by their flops alone. */
enum { MUON_ROWS = 256 };

static struct sw_muon_tensor muon_matrix(void) {
    return (struct sw_muon_tensor){.outputs = MUON_ROWS, .inputs = MUON_ROWS, .parts = 1, .part_end = {MUON_ROWS}};
}

static sw_status muon_chunk(struct bench *bench, int64_t chunk) {
    const struct sw_muon_tensor matrix = muon_matrix();
    const struct sw_muon muon = {.lr = 1e-3, .momentum = 0.95, .grad_scale = 1.0f};
    (void)chunk;
    return sw_update_muon(bench->stream, &(struct sw_update_muon){.type = bench->type,
                                                                  .muon = &muon,
                                                                  .format = SW_OPTIMIZER_MUON,
                                                                  .grains = bench->chunk_grains,
                                                                  .tensor = &matrix,
                                                                  .tensors = 1,
                                                                  .grads = bench->a,
                                                                  .records = bench->b,
                                                                  .scratch = bench->c});
}

sw_status sw_measure_muon(struct sw_device *device, struct sw_rate *out) {
    const struct sw_muon_tensor matrix = muon_matrix();
    const struct sw_measure_shape shape = {.type = SW_F32, .chunk_grains = MUON_ROWS * MUON_ROWS / SW_GRAIN_ELEMS};
    const int64_t scratch = sw_div_up(sw_muon_scratch_bytes(&matrix, 1), shape.chunk_grains);
    struct bench bench;
    *out = (struct sw_rate){0};
    sw_status status = open_bench(
        &bench, device, &shape, on_device,
        (int64_t[]){SW_GRAIN_ELEMS * (int64_t)sizeof(float), sw_optimizer_muon_bytes(SW_OPTIMIZER_MUON), scratch});
    for (int64_t i = 0; status == SW_OK && i < shape.chunk_grains * SW_GRAIN_ELEMS; i++)
        ((float *)bench.a)[i] = (float)(i * 37 % 101) - 50.0f; /* the time of numbers near zero is not that of others */
    bench.chunks = 1;
    if (status == SW_OK)
        status = rate_of(&bench, muon_chunk, (int64_t)(SW_MUON_FLOP_BYTES * sw_muon_flops(&matrix, 1)), out);
    close_bench(&bench);
    return status;
}

static sw_status copy_chunk(struct bench *bench, int64_t chunk) {
    return sw_copy_on_device(bench->stream, chunk_at(bench, bench->b, chunk, SW_OPTIMIZER_GRAIN_BYTES / SW_GRAIN_ELEMS),
                             chunk_at(bench, bench->a, chunk, SW_OPTIMIZER_GRAIN_BYTES / SW_GRAIN_ELEMS),
                             bench->chunk_grains * SW_OPTIMIZER_GRAIN_BYTES);
}

sw_status sw_measure_device_copy(struct sw_device *device, const struct sw_measure_shape *shape, struct sw_rate *out) {
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, on_device,
                                  (int64_t[]){SW_OPTIMIZER_GRAIN_BYTES, SW_OPTIMIZER_GRAIN_BYTES, 0});
    if (status == SW_OK)
        status = rate_of(&bench, copy_chunk, bench.chunk_grains * 2 * SW_OPTIMIZER_GRAIN_BYTES, out);
    close_bench(&bench);
    return status;
}

static sw_status finish_chunk(struct bench *bench, int64_t chunk) {
    return sw_finish_gradient(bench->stream, .type = bench->type, .elems = bench->chunk_grains * SW_GRAIN_ELEMS,
                              .acc = chunk_at(bench, bench->a, chunk, sizeof(float)),
                              .grads = chunk_at(bench, bench->b, chunk, sw_dtype_bytes(bench->type)), .sums = bench->c);
}

static sw_status zero_chunk(struct bench *bench, int64_t chunk) {
    return sw_zero(bench->stream, chunk_at(bench, bench->a, chunk, sizeof(float)),
                   bench->chunk_grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float));
}

sw_status sw_measure_accumulators(struct sw_device *device, const struct sw_measure_shape *shape,
                                  struct sw_rate *out_finish, struct sw_rate *out_zero) {
    const int64_t typed = SW_GRAIN_ELEMS * sw_dtype_bytes(shape->type);
    const int64_t wide = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    struct bench bench;
    sw_status status = open_bench(&bench, device, shape, on_device, (int64_t[]){wide, typed, sizeof(double)});
    if (status == SW_OK)
        status = rate_of(&bench, finish_chunk, bench.chunk_grains * (wide + typed), out_finish);
    if (status == SW_OK)
        status = rate_of(&bench, zero_chunk, bench.chunk_grains * wide, out_zero);
    close_bench(&bench);
    return status;
}

/* Measures the cost of a handover between lanes: two threads wake each other in turn, as lanes do, and each runs an op
 * on threads that have gone to sleep meanwhile. Also measures the cost for an op that only wakes another thread. The
 * cost is the time beyond that of the same ops on one thread. If a device queues ops, measures how fast they follow
 * each other. */

enum { TURNS = 200, LEAST_TURNS = 20, PLAYERS = 2, MESSAGE_CHARS = 512 };

static int turns(void) {
    return (int)fmax(LEAST_TURNS, sw_measure_share() * TURNS);
}

struct game {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int turn;   /* counts turns; modulo PLAYERS, the number of the player whose turn it is */
    bool leads; /* player 0 runs all ops without waiting, and the other is woken after each */
    bool over;
};

struct player {
    struct game *game;
    int number;
    struct sw_device *device;
    struct sw_stream *stream;
    const struct sw_measure_shape *shape;
    void *grads, *weights;
    float *records;
    sw_status status;
    char message[MESSAGE_CHARS];
};

static sw_status run_op(const struct player *player) {
    const struct sw_decay_run run = {.end = player->shape->chunk_grains * SW_GRAIN_ELEMS, .decay = true};
    const struct sw_adamw adamw = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 1.0f, .step = 1};
    SW_TRY(sw_update_adamw(player->stream, .type = player->shape->type, .adamw = &adamw,
                           .grains = player->shape->chunk_grains, .runs = &run, .run_count = 1, .grads = player->grads,
                           .records = player->records, .weights = player->weights));
    return sw_stream_synchronize(player->stream);
}

static bool may_play(const struct player *player, int turn) {
    const struct game *game = player->game;
    if (game->leads)
        return player->number == 0 || game->turn > turn;
    return game->turn % PLAYERS == player->number;
}

static sw_status play(const struct player *player) {
    struct game *game = player->game;
    const bool runs = !game->leads || player->number == 0;
    const int count = turns();
    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(&game->mutex);
        while (!game->over && !may_play(player, i))
            pthread_cond_wait(&game->changed, &game->mutex);
        const bool over = game->over;
        pthread_mutex_unlock(&game->mutex);
        const sw_status status = runs && !over ? run_op(player) : SW_OK;
        pthread_mutex_lock(&game->mutex);
        game->turn += runs;
        game->over |= status != SW_OK;
        pthread_cond_broadcast(&game->changed);
        pthread_mutex_unlock(&game->mutex);
        SW_TRY(status);
    }
    return SW_OK;
}

static void *play_thread(void *argument) {
    struct player *player = argument;
    player->status = play(player);
    if (player->status != SW_OK)
        snprintf(player->message, sizeof player->message, "%s", sw_error_message(player->status));
    return NULL;
}

static sw_status equip(struct player *player, struct sw_arena *arena) {
    const int64_t elems = player->shape->chunk_grains * SW_GRAIN_ELEMS;
    const int64_t typed_bytes = elems * sw_dtype_bytes(player->shape->type);
    void *records;
    SW_TRY(sw_arena_take(arena, typed_bytes, &player->grads));
    SW_TRY(sw_arena_take(arena, typed_bytes, &player->weights));
    SW_TRY(sw_arena_take(arena, player->shape->chunk_grains * SW_OPTIMIZER_GRAIN_BYTES, &records));
    player->records = records;
    memset(player->grads, 0, (size_t)typed_bytes);
    memset(player->records, 0, (size_t)(player->shape->chunk_grains * SW_OPTIMIZER_GRAIN_BYTES));
    return sw_stream_open(player->device, &player->stream);
}

/* The second player has a thread of its own; the first is the caller. Returns the seconds of an op. */
static sw_status play_both(struct player player[PLAYERS], bool leads, double *out_op_s) {
    struct game game = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .leads = leads};
    pthread_t second;
    for (int p = 0; p < PLAYERS; p++)
        player[p].game = &game;
    const int64_t start_ns = sw_now_ns();
    if (pthread_create(&second, NULL, play_thread, &player[1]) != 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start a thread to measure a handover");
    const sw_status status = play(&player[0]);
    pthread_join(second, NULL);
    *out_op_s = (double)(sw_now_ns() - start_ns) * 1e-9 / ((leads ? 1 : PLAYERS) * turns());
    if (status == SW_OK && player[1].status != SW_OK)
        return sw_fail(player[1].status, "%s", player[1].message);
    return status;
}

/* Runs the ops of all turns on this thread. */
static sw_status play_alone(const struct player player[PLAYERS], double *out_op_s) {
    const int64_t start_ns = sw_now_ns();
    const int count = PLAYERS * turns();
    for (int i = 0; i < count; i++)
        SW_TRY(run_op(&player[i % PLAYERS]));
    *out_op_s = (double)(sw_now_ns() - start_ns) * 1e-9 / count;
    return SW_OK;
}

sw_status sw_measure_handover(struct sw_device *device, const struct sw_measure_shape *shape, double *out_waited_s,
                              double *out_s) {
    const int64_t chunk_elems = shape->chunk_grains * SW_GRAIN_ELEMS;
    const int64_t bytes =
        shape->chunk_grains * SW_OPTIMIZER_GRAIN_BYTES + 2 * chunk_elems * sw_dtype_bytes(shape->type);
    struct player player[PLAYERS] = {0};
    struct sw_arena *arena;
    double waited_s = 0.0, leading_s = 0.0, alone_s = 0.0;
    SW_TRY(sw_arena_create("measurement", PLAYERS * (bytes + 3 * (int64_t)SW_BUFFER_ALIGN_BYTES), false, NULL, &arena));
    sw_status status = SW_OK;
    for (int p = 0; p < PLAYERS && status == SW_OK; p++) {
        player[p] = (struct player){.number = p, .device = device, .shape = shape};
        status = equip(&player[p], arena);
    }
    if (status == SW_OK)
        status = play_both(player, false, &waited_s);
    if (status == SW_OK)
        status = play_both(player, true, &leading_s);
    if (status == SW_OK)
        status = play_alone(player, &alone_s);
    *out_waited_s = fmax(0.0, waited_s - alone_s);
    *out_s = fmax(0.0, leading_s - alone_s);
    for (int p = 0; p < PLAYERS; p++)
        if (player[p].stream != NULL)
            sw_stream_close(player[p].stream);
    sw_arena_destroy(arena);
    return status;
}

static sw_status queue_ops(struct sw_stream *stream, struct sw_event *event[2], struct sw_memory *memory) {
    for (int i = 0; i < TURNS; i++) {
        SW_TRY(sw_event_record(event[0], stream));
        SW_TRY(sw_zero(stream, sw_memory_base(memory), sw_memory_bytes(memory)));
        SW_TRY(sw_event_record(event[1], stream));
    }
    return sw_stream_synchronize(stream);
}

sw_status sw_measure_queued(struct sw_device *device, double *out_s) {
    struct sw_stream *stream = NULL;
    struct sw_event *event[2] = {NULL, NULL};
    struct sw_memory *memory = NULL;
    sw_status status = SW_OK;
    *out_s = INFINITY;
    SW_TRY_GOTO(sw_stream_open(device, &stream), end);
    for (int i = 0; i < 2; i++)
        SW_TRY_GOTO(sw_event_open(device, &event[i]), end);
    SW_TRY_GOTO(sw_memory_open(device, "measurement", SW_MEMORY_DEVICE, 1, &memory), end);
    for (int round = 0; round < 3; round++) {
        const int64_t start_ns = sw_now_ns();
        SW_TRY_GOTO(queue_ops(stream, event, memory), end);
        *out_s = fmin(*out_s, (double)(sw_now_ns() - start_ns) * 1e-9 / TURNS);
    }
end:
    sw_memory_close(memory);
    for (int i = 0; i < 2; i++)
        sw_event_close(event[i]);
    sw_stream_close(stream);
    return status;
}

/* Measures the rates of a small store: it is made, written, read, both at once, committed, and deleted. */

enum { DRIVE_ROUNDS = 3 };
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

static double drive_rate(const struct pass *pass) {
    return pass->bytes / pass->seconds;
}

static sw_status timed_pass(struct pass *pass, double *out_rate, double *out_cores) {
    const double start_cpu_s = sw_cpu_seconds();
    SW_TRY(run_alone(pass));
    *out_rate = drive_rate(pass);
    *out_cores = (sw_cpu_seconds() - start_cpu_s) / pass->seconds;
    return SW_OK;
}

/* Measures a read of one grain on an idle lane. */
static sw_status measure_latency(struct pass pass, double *out_s) {
    double seconds[DRIVE_ROUNDS];
    pass.write = false;
    pass.least_s = 0.0;
    pass.grains = pass.chunk_grains = 1;
    for (int round = 0; round < DRIVE_ROUNDS; round++) {
        SW_TRY(run_alone(&pass));
        seconds[round] = pass.seconds;
    }
    *out_s = sw_median(seconds, DRIVE_ROUNDS);
    return SW_OK;
}

/* Returns the factor by which each direction is slower while both run. It gives a read and a write of so many bytes the
 * measured time: both directions run until one is done, then the other runs by itself. */
static double slowdown_of(double read, double write, double both_read, double both_write) {
    const double shorter_s = fmin(1.0 / read, 1.0 / write), longer_s = fmax(1.0 / read, 1.0 / write);
    const double together_s = fmin(1.0 / both_read, 1.0 / both_write);
    const double both_s = both_read < both_write ? together_s + (1.0 - together_s * both_read) / read
                                                 : together_s + (1.0 - together_s * both_write) / write;
    return fmax(1.0, (both_s - (longer_s - shorter_s)) / shorter_s);
}

static sw_status measure(struct pass base, char *other_ring, struct sw_store_rates *out) {
    double read[DRIVE_ROUNDS], write[DRIVE_ROUNDS], read_cores[DRIVE_ROUNDS], write_cores[DRIVE_ROUNDS],
        slowdown[DRIVE_ROUNDS], commit_s[DRIVE_ROUNDS];
    struct pass fill = base;
    fill.write = true;
    fill.least_s = 0.0;
    SW_TRY(run_alone(&fill));
    for (int round = 0; round < DRIVE_ROUNDS; round++) {
        struct pass reading = base, writing = base;
        reading.generation = round % SW_STORE_GENERATIONS;
        writing.generation = 1 - reading.generation;
        writing.write = true;
        SW_TRY(timed_pass(&reading, &read[round], &read_cores[round]));
        SW_TRY(timed_pass(&writing, &write[round], &write_cores[round]));
        writing.ring = other_ring;
        SW_TRY(run_both(&reading, &writing));
        slowdown[round] = slowdown_of(read[round], write[round], drive_rate(&reading), drive_rate(&writing));
        const int64_t start_ns = sw_now_ns();
        SW_TRY(sw_store_commit(base.store, round + 1, writing.generation, "{}"));
        commit_s[round] = (double)(sw_now_ns() - start_ns) * 1e-9;
    }
    out->read = (struct sw_rate){sw_median(read, DRIVE_ROUNDS), sw_median(read_cores, DRIVE_ROUNDS)};
    out->write = (struct sw_rate){sw_median(write, DRIVE_ROUNDS), sw_median(write_cores, DRIVE_ROUNDS)};
    out->read_write_slowdown = sw_median(slowdown, DRIVE_ROUNDS);
    out->commit_s = sw_median(commit_s, DRIVE_ROUNDS);
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
