/* Measures what a handover between lanes costs: two threads wake each other in turn, as lanes do, and each runs an op
 * on threads that have gone to sleep meanwhile; and what it costs an op that only wakes another thread. The same ops by
 * one thread take so much less. Where a device queues ops, measures how fast they follow each other. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { TURNS = 200, PLAYERS = 2, MESSAGE_CHARS = 512 };

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
    for (int i = 0; i < TURNS; i++) {
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
    *out_op_s = (double)(sw_now_ns() - start_ns) * 1e-9 / (leads ? TURNS : PLAYERS * TURNS);
    if (status == SW_OK && player[1].status != SW_OK)
        return sw_fail(player[1].status, "%s", player[1].message);
    return status;
}

/* Runs the ops of all turns on this thread alone. */
static sw_status play_alone(const struct player player[PLAYERS], double *out_op_s) {
    const int64_t start_ns = sw_now_ns();
    for (int i = 0; i < PLAYERS * TURNS; i++)
        SW_TRY(run_op(&player[i % PLAYERS]));
    *out_op_s = (double)(sw_now_ns() - start_ns) * 1e-9 / (PLAYERS * TURNS);
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
