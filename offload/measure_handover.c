/* What it costs that an op waits for another lane's: two threads wake each other in turn, as lanes do. */
#include "core/clock.h"
#include "offload/measure.h"

#include <pthread.h>

enum { TURNS = 2000 };

struct game {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int turn; /* even: the first thread's */
};

static void play(struct game *game, int parity) {
    pthread_mutex_lock(&game->mutex);
    for (int i = 0; i < TURNS; i++) {
        while (game->turn % 2 != parity)
            pthread_cond_wait(&game->changed, &game->mutex);
        game->turn++;
        pthread_cond_broadcast(&game->changed);
    }
    pthread_mutex_unlock(&game->mutex);
}

static void *play_second(void *game) {
    play(game, 1);
    return NULL;
}

sw_status sw_measure_handover(double *out_s) {
    struct game game = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t second;
    const int64_t start_ns = sw_now_ns();
    if (pthread_create(&second, NULL, play_second, &game) != 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start a thread to measure a handover");
    play(&game, 0);
    pthread_join(second, NULL);
    *out_s = (double)(sw_now_ns() - start_ns) * 1e-9 / (2.0 * TURNS);
    return SW_OK;
}
