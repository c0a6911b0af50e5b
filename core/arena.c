#include "core/arena.h"

#include "core/machine.h"
#include "core/populate.h"
#include "core/size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct sw_arena {
    char name[32];
    char *base;
    void *mapped; /* base is the first huge page in it */
    int64_t mapped_bytes;
    int64_t bytes;
    int64_t used_bytes;
    bool sealed;
};

/* Huge pages make direct I/O faster by a third. An arena begins at a multiple of their size. */
enum { HUGE_PAGE_BYTES = 2 << 20 };

/* Maps the arena's bytes at a multiple of a huge page. A child process does not get them: sharing them with it, be it
 * for the instant before it becomes another program, breaks their huge pages up and moves what drives have pinned. */
static bool map_aligned(struct sw_arena *arena) {
    arena->mapped_bytes = arena->bytes + HUGE_PAGE_BYTES;
    arena->mapped = mmap(NULL, (size_t)arena->mapped_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena->mapped == MAP_FAILED)
        return false;
    arena->base = (char *)sw_round_up((int64_t)arena->mapped, HUGE_PAGE_BYTES);
    madvise(arena->base, (size_t)arena->bytes, MADV_DONTFORK);
    madvise(arena->base, (size_t)arena->bytes, MADV_HUGEPAGE); /* where the kernel has none, small ones do */
    return true;
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
    const sw_status status = sw_populate(name, arena->base, arena->bytes);
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
