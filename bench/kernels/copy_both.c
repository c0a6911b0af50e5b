#include "bench/kernels/copy_both.h"

#include "core/clock.h"
#include "core/size.h"
#include "core/team.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { WAYS = 2, PASSES = 2 };

struct way {
    struct sw_copy_both *both;
    bool upload;
    struct sw_stream *stream;
    struct sw_memory *there, *here; /* there: on the device; here: on the host */
    double bytes_per_s;
};

struct sw_copy_both {
    struct sw_device *device;
    int64_t bytes, chunk_bytes;
    atomic_int started, counted; /* ways that are at their start, and ways whose timed bytes are copied */
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

/* Copies the timed bytes, then keeps copying so that the other direction stays under load. */
static sw_status copy(struct way *way) {
    struct sw_copy_both *both = way->both;
    const int64_t pass_bytes = both->bytes / both->chunk_bytes * both->chunk_bytes, start_ns = sw_now_ns();
    for (int i = 0; i < PASSES; i++)
        SW_TRY(pass(way));
    way->bytes_per_s = (double)(PASSES * pass_bytes) * 1e9 / (double)sw_max_i64(1, sw_now_ns() - start_ns);
    atomic_fetch_add(&both->counted, 1);
    while (atomic_load(&both->counted) < WAYS)
        SW_TRY(pass(way));
    return SW_OK;
}

static sw_status run_way(void *context) {
    struct way *way = context;
    atomic_fetch_add(&way->both->started, 1);
    while (atomic_load(&way->both->started) < WAYS)
        sched_yield(); /* both begin at once */
    const sw_status status = copy(way);
    if (status != SW_OK)
        atomic_store(&way->both->counted, WAYS); /* the other way does not wait for this one */
    return status;
}

sw_status sw_copy_both_run(struct sw_copy_both *both, int64_t chunk_bytes, double *out_upload, double *out_download) {
    both->chunk_bytes = chunk_bytes;
    atomic_store(&both->started, 0);
    atomic_store(&both->counted, 0);
    SW_TRY(sw_run_both(run_way, &both->way[0], &both->way[1]));
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
    *out = both;
    if (both == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to copy both ways");
    both->device = device;
    both->bytes = bytes;
    for (int i = 0; i < WAYS; i++)
        SW_TRY(open_way(both, i));
    return SW_OK;
}

void sw_copy_both_close(struct sw_copy_both *both) {
    for (int i = 0; both != NULL && i < WAYS; i++) {
        sw_stream_close(both->way[i].stream);
        sw_memory_close(both->way[i].there);
        sw_memory_close(both->way[i].here);
    }
    free(both);
}
