/* An arena: one region of memory, taken whole at start-up, carved by the plan, then sealed. */
#ifndef SW_CORE_ARENA_H
#define SW_CORE_ARENA_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_arena;

/* Maps bytes (rounded up to pages) and touches every page on all cores, so that memory the system cannot give is known
 * now. If `lock` is set and the limits allow it, locks the pages; *out_locked (may be NULL) says whether they are
 * locked. Large arenas report progress, and SW_ERR_STOPPED ends them (core/log.h). The caller destroys the arena.
 */
sw_status sw_arena_create(const char *name, int64_t bytes, bool lock, bool *out_locked, struct sw_arena **out);
/* Creates an arena as sw_arena_create does, not locked, in the memory of a NUMA node (numbered by the system), or of
 * another if that node is full. numa_node -1: any node. */
sw_status sw_arena_create_near(const char *name, int64_t bytes, int numa_node, struct sw_arena **out);
void sw_arena_destroy(struct sw_arena *arena);

/* Takes bytes, aligned to SW_BUFFER_ALIGN_BYTES. SW_ERR_BUDGET: they do not fit. Asserts that the arena is not sealed.
 */
sw_status sw_arena_take(struct sw_arena *arena, int64_t bytes, void **out);

/* Forbids sw_arena_take from now on. */
void sw_arena_seal(struct sw_arena *arena);

/* Return the arena's first byte, and its size whether taken or not. */
void *sw_arena_base(const struct sw_arena *arena);
int64_t sw_arena_bytes(const struct sw_arena *arena);

#endif
