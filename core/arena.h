/* An arena: one region of memory taken whole at start-up, carved by the plan, then sealed. */
#ifndef SW_CORE_ARENA_H
#define SW_CORE_ARENA_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_arena;

/* Maps bytes (rounded up to pages), touches every page with all cores, so that what the system cannot give is known
 * now, and locks the pages where `lock` is set and the limits allow it; *out_locked (may be NULL) says whether it did.
 * Large arenas report how far they are, and SW_ERR_STOPPED ends them (core/log.h). The caller destroys the arena.
 */
sw_status sw_arena_create(const char *name, int64_t bytes, bool lock, bool *out_locked, struct sw_arena **out);
/* Creates an arena as sw_arena_create does, not locked, from the memory of a NUMA node (as the system numbers it) or,
 * where that node is full, from another. numa_node -1: any node. */
sw_status sw_arena_create_near(const char *name, int64_t bytes, int numa_node, struct sw_arena **out);
void sw_arena_destroy(struct sw_arena *arena);

/* Takes bytes aligned to SW_BUFFER_ALIGN_BYTES. Fails with SW_ERR_BUDGET when they do not fit; asserts that the
 * arena is not sealed. */
sw_status sw_arena_take(struct sw_arena *arena, int64_t bytes, void **out);

/* Forbids sw_arena_take from now on. */
void sw_arena_seal(struct sw_arena *arena);

/* Return where the arena's bytes begin, and how many it has, taken or not. */
void *sw_arena_base(const struct sw_arena *arena);
int64_t sw_arena_bytes(const struct sw_arena *arena);

#endif
