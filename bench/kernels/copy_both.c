#include "bench/kernels/copy_both.h"

#include "core/clock.h"
#include "core/size.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { WAYS = 2, MESSAGE_CHARS = 512, PASSES = 2 };

struct way {
    struct sw_copy_both *both;
    bool upload;
    struct sw_stream *stream;
    struct sw_memory *there, *here;
    double bytes_per_s;
    sw_status status;
    char message[MESSAGE_CHARS];
};

struct sw_copy_both {
    struct sw_device *device;
    int64_t bytes, chunk_bytes;
    pthread_barrier_t start;
    atomic_int counted; /* ways that have copied what counts */
    struct way way[WAYS];
};

static sw_status pass(const struct way *way) {
    const int64_t chunk_bytes = way->both->chunk_bytes;
    for (int64_t at = 0; at + chunk_bytes <= way->both->bytes; at += chunk_bytes) {
        char *there = (char *)sw_memory_base(way->there) + at, *here = (char *)sw_memory_base(way->here) + at;
        SW_TRY(way->upload ? sw_copy_to_device(way->stream, there, here, chunk_bytes)
                           : sw_copy_to_host(way->stream, here, there, chunk_bytes));
    }
    return sw_stream_synchronize(way->stream);
}

/* What counts, and then on until the other way has had as much. */
static sw_status copy(struct way *way) {
    struct sw_copy_both *both = way->both;
    const int64_t pass_bytes = both->bytes / both->chunk_bytes * both->chunk_bytes, start_ns = sw_now_ns();
    for (int i = 0; i < PASSES; i++)
        SW_TRY(pass(way));
    const double seconds = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    way->bytes_per_s = (double)(PASSES * pass_bytes) / seconds;
    atomic_fetch_add(&both->counted, 1);
    while (atomic_load(&both->counted) < WAYS)
        SW_TRY(pass(way));
    return SW_OK;
}

static void *run_way(void *argument) {
    struct way *way = argument;
    pthread_barrier_wait(&way->both->start);
    way->status = copy(way);
    if (way->status == SW_OK)
        return NULL;
    snprintf(way->message, sizeof way->message, "%s", sw_error_message(way->status));
    atomic_store(&way->both->counted, WAYS); /* the other does not wait for this one */
    return NULL;
}

sw_status sw_copy_both_run(struct sw_copy_both *both, int64_t chunk_bytes, double *out_upload, double *out_download) {
    pthread_t other;
    both->chunk_bytes = chunk_bytes;
    atomic_store(&both->counted, 0);
    if (pthread_create(&other, NULL, run_way, &both->way[1]) != 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start a thread to copy both ways");
    run_way(&both->way[0]);
    pthread_join(other, NULL);
    for (int i = 0; i < WAYS; i++)
        if (both->way[i].status != SW_OK)
            return sw_fail(both->way[i].status, "%s", both->way[i].message);
    *out_upload = both->way[0].bytes_per_s;
    *out_download = both->way[1].bytes_per_s;
    return SW_OK;
}

static sw_status open_way(struct sw_copy_both *both, int number) {
    struct way *way = &both->way[number];
    *way = (struct way){.both = both, .upload = number == 0};
    SW_TRY(sw_stream_open(both->device, &way->stream));
    SW_TRY(sw_memory_open(both->device, "copies", SW_MEMORY_DEVICE, both->bytes, &way->there));
    return sw_memory_open(both->device, "copies", SW_MEMORY_HOST, both->bytes, &way->here);
}

sw_status sw_copy_both_open(struct sw_device *device, int64_t bytes, struct sw_copy_both **out) {
    struct sw_copy_both *both = calloc(1, sizeof *both);
    *out = NULL;
    if (both == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to copy both ways");
    both->device = device;
    both->bytes = bytes;
    pthread_barrier_init(&both->start, NULL, WAYS);
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < WAYS; i++)
        status = open_way(both, i);
    if (status == SW_OK)
        *out = both;
    else
        sw_copy_both_close(both);
    return status;
}

void sw_copy_both_close(struct sw_copy_both *both) {
    if (both == NULL)
        return;
    for (int i = 0; i < WAYS; i++) {
        sw_stream_close(both->way[i].stream);
        sw_memory_close(both->way[i].there);
        sw_memory_close(both->way[i].here);
    }
    pthread_barrier_destroy(&both->start);
    free(both);
}
