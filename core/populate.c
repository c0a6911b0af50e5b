#include "core/populate.h"

#include "core/long_work.h"
#include "core/machine.h"
#include "core/size.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* the C library may be older than the kernel */
#endif

/* A thread takes a piece at a time: many huge pages, and yet few enough that a stop is heard at once. */
#define PIECE_BYTES (64 * SW_MIB)
enum { MOST_THREADS = 32, LOOK_EVERY_NS = 5000000 };

struct work {
    char *base;
    int64_t bytes;
    _Atomic int64_t next;       /* byte at which the next piece begins */
    _Atomic int64_t done_bytes; /* bytes of the pieces that are taken */
    _Atomic int error;          /* errno of the first piece that the system refused; 0: none */
    atomic_bool ends;           /* no further piece is begun */
};

static int take_piece(void *base, int64_t bytes) {
    if (madvise(base, (size_t)bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return errno;
    /* Kernels before 5.14 do not know the advice. */
    memset(base, 0, (size_t)bytes);
    return 0;
}

/* Takes the next piece. Returns false where there is none, or the work ends. */
static bool take_next(struct work *work) {
    const int64_t at = atomic_fetch_add(&work->next, PIECE_BYTES);
    if (at >= work->bytes || work->ends)
        return false;
    const int64_t bytes = sw_min_i64(PIECE_BYTES, work->bytes - at);
    const int error = take_piece(work->base + at, bytes);
    if (error == 0) {
        work->done_bytes += bytes;
        return true;
    }
    int none = 0;
    atomic_compare_exchange_strong(&work->error, &none, error);
    work->ends = true;
    return false;
}

static void *help(void *argument) {
    while (take_next(argument))
        continue;
    return NULL;
}

/* Takes pieces on the caller's own thread, or waits where helpers take them all, and shows progress in between. */
static sw_status look_around(struct work *work, struct sw_long_work *progress, bool helped) {
    sw_status status = SW_OK;
    while (status == SW_OK && !work->ends && work->done_bytes < work->bytes) {
        if (helped)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_EVERY_NS}, NULL);
        else
            take_next(work);
        status = sw_long_work_at(progress, work->done_bytes);
    }
    return status;
}

static sw_status take_together(struct work *work, struct sw_long_work *progress) {
    pthread_t thread[MOST_THREADS];
    const int64_t pieces = sw_div_up(work->bytes, PIECE_BYTES);
    const int wanted = (int)sw_min_i64(sw_min_i64(pieces, sw_machine_cores()), MOST_THREADS);
    int threads = 0;
    while (wanted > 1 && threads < wanted && pthread_create(&thread[threads], NULL, help, work) == 0)
        threads++;
    const sw_status status = look_around(work, progress, threads > 0);
    work->ends = true;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    return status;
}

sw_status sw_populate(const char *name, void *base, int64_t bytes) {
    char what[64], all[SW_SIZE_CHARS], some[SW_SIZE_CHARS];
    struct work work = {.base = base, .bytes = bytes};
    snprintf(what, sizeof what, "taking memory for the %s tier", name);
    struct sw_long_work progress = sw_long_work_begin(what, bytes);
    SW_TRY(take_together(&work, &progress));
    if (work.error == 0)
        return SW_OK;
    return sw_fail(SW_ERR_NOMEM, "cannot take %s of memory for the %s tier, only %s of it: %s",
                   sw_format_size(bytes, all), name, sw_format_size(work.done_bytes, some), strerror(work.error));
}
