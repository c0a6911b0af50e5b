/* An arena: a tier's memory, mapped once, every page touched, never grown.
 *
 * Touching every page at the start turns the kernel's promise into memory: what the system cannot give fails now, with
 * a number, instead of ending a step with a signal. A general allocator would fragment and could fail late; here the
 * plan has fixed every offset before. */
#include "core/arena.h"

#include "core/log.h"
#include "core/machine.h"
#include "core/size.h"
#include "core/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct sw_arena {
    char name[32];
    char *base;
    void *mapped; /* the mapping; base is the first huge page in it */
    int64_t mapped_bytes;
    int64_t bytes;
    int64_t used_bytes;
    bool sealed;
};

/* Huge pages make direct I/O a third faster. An arena begins at a multiple of their size. */
enum { HUGE_PAGE_BYTES = 2 << 20 };

/* Maps the arena's bytes at a multiple of a huge page. Child processes do not inherit them: sharing them with a child,
 * even for the moment before it becomes another program, would split their huge pages and move memory that drives have
 * pinned. */
static bool map_aligned(struct sw_arena *arena) {
    arena->mapped_bytes = arena->bytes + HUGE_PAGE_BYTES;
    arena->mapped = mmap(NULL, (size_t)arena->mapped_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena->mapped == MAP_FAILED)
        return false;
    arena->base = (char *)sw_round_up((int64_t)arena->mapped, HUGE_PAGE_BYTES);
    madvise(arena->base, (size_t)arena->bytes, MADV_DONTFORK);
    madvise(arena->base, (size_t)arena->bytes, MADV_HUGEPAGE); /* without huge pages, small ones do */
    return true;
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* the C library may be older than the kernel */
#endif

/* A thread takes one piece at a time: many huge pages, but few enough for a quick stop. */
#define PIECE_BYTES (64 * SW_MIB)
enum { MOST_THREADS = 32, LOOK_EVERY_NS = 5000000 };

struct work {
    char *base;
    int64_t bytes;
    _Atomic int64_t next;       /* offset at which the next piece begins */
    _Atomic int64_t done_bytes; /* bytes of the pieces taken so far */
    _Atomic int error;          /* errno of the first piece that the system refused; 0: none */
    atomic_bool ends;           /* no further piece is begun */
};

static int take_piece(void *base, int64_t bytes) {
    if (madvise(base, (size_t)bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return errno;
    /* Kernels before 5.14 do not know this advice. */
    memset(base, 0, (size_t)bytes);
    return 0;
}

/* Takes the next piece. Returns false if there is none, or the work is ending. */
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

/* Takes pieces on the caller's thread, or waits while helpers take them all, and shows progress. */
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
    while (wanted > 1 && threads < wanted && sw_thread_start(&thread[threads], help, work) == 0)
        threads++;
    const sw_status status = look_around(work, progress, threads > 0);
    work->ends = true;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    return status;
}

/* Touches every mapped page, on all cores: a single core zeroes only a few GB/s. Unlike MAP_POPULATE it reports what
 * the system cannot give. `name` names the tier in messages. After a failure the bytes stay mapped. */
static sw_status populate(const char *name, void *base, int64_t bytes) {
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

sw_status sw_arena_create_near(const char *name, int64_t bytes, int numa_node, struct sw_arena **out) {
    assert(bytes >= 0);
    char text[SW_SIZE_CHARS];
    struct sw_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the %s arena's handle", name);
    snprintf(arena->name, sizeof arena->name, "%s", name);
    arena->bytes = sw_round_up(sw_max_i64(bytes, 1), SW_BUFFER_ALIGN_BYTES);
    if (!map_aligned(arena)) {
        const int error = errno;
        free(arena);
        return sw_fail(SW_ERR_NOMEM, "cannot take %s of memory for the %s tier: %s", sw_format_size(bytes, text), name,
                       strerror(error));
    }
    if (numa_node >= 0)
        sw_machine_bind_to_node(arena->base, arena->bytes, numa_node);
    const sw_status status = populate(name, arena->base, arena->bytes);
    if (status != SW_OK) {
        sw_arena_destroy(arena);
        return status;
    }
    *out = arena;
    return SW_OK;
}

sw_status sw_arena_create(const char *name, int64_t bytes, bool lock, bool *out_locked, struct sw_arena **out) {
    SW_TRY(sw_arena_create_near(name, bytes, -1, out));
    const bool locked = lock && mlock((*out)->base, (size_t)(*out)->bytes) == 0;
    if (out_locked != NULL)
        *out_locked = locked;
    return SW_OK;
}

void sw_arena_destroy(struct sw_arena *arena) {
    if (arena == NULL)
        return;
    munmap(arena->mapped, (size_t)arena->mapped_bytes);
    free(arena);
}

sw_status sw_arena_take(struct sw_arena *arena, int64_t bytes, void **out) {
    assert(!arena->sealed);
    const int64_t rounded = sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
    if (rounded > arena->bytes - arena->used_bytes) {
        char want[SW_SIZE_CHARS], left[SW_SIZE_CHARS];
        return sw_fail(SW_ERR_BUDGET, "the %s tier has %s left, %s are needed", arena->name,
                       sw_format_size(arena->bytes - arena->used_bytes, left), sw_format_size(rounded, want));
    }
    *out = arena->base + arena->used_bytes;
    arena->used_bytes += rounded;
    return SW_OK;
}

void sw_arena_seal(struct sw_arena *arena) {
    arena->sealed = true;
}

void *sw_arena_base(const struct sw_arena *arena) {
    return arena->base;
}

int64_t sw_arena_bytes(const struct sw_arena *arena) {
    return arena->bytes;
}
