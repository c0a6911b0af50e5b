/* Shared memory with a mark for every 2 bytes. What a thread does is in order before what another one does if a barrier
 * of the block is between, or within a warp one of the warp; of two uses of the same bytes, one of them a write, one
 * has to be. Marks hold the last write and the last reads as stamps of barriers, so that a use is judged at once and in
 * every order of warps alike. */
#include "tests/equipment/ptx/machine.h"

/* A stamp: the block's barriers, the warp's barriers, the thread, and flags. The numbers of the block's barriers go on
 * from block to block, so that marks of an earlier block are in order before all of this one. */
enum { FLAG_BITS = 2, THREAD_BITS = 10, EPOCH_BITS = 22, THREAD_AT = FLAG_BITS, EPOCH_AT = THREAD_AT + THREAD_BITS };
enum { BARRIER_AT = EPOCH_AT + EPOCH_BITS };
enum flag { UNDER_WAY = 1, SEVERAL_LANES = 1, SEVERAL_WARPS = 2 };

static uint64_t stamp_now(const struct sw_ptx_warp *warp, int lane) {
    const uint64_t thread = (uint64_t)(warp->number * SW_PTX_LANES + lane);
    return (uint64_t)warp->machine->barriers << BARRIER_AT |
           (uint64_t)(warp->epoch & ((1u << EPOCH_BITS) - 1)) << EPOCH_AT | thread << THREAD_AT;
}

static uint64_t barrier_of(uint64_t stamp) {
    return stamp >> BARRIER_AT;
}

static uint32_t epoch_of(uint64_t stamp) {
    return (uint32_t)(stamp >> EPOCH_AT) & ((1u << EPOCH_BITS) - 1);
}

static int thread_of(uint64_t stamp) {
    return (int)(stamp >> THREAD_AT) & ((1 << THREAD_BITS) - 1);
}

static bool is_in_order(uint64_t before, uint64_t now) {
    if (barrier_of(before) < barrier_of(now) || thread_of(before) == thread_of(now))
        return true;
    return thread_of(before) / SW_PTX_LANES == thread_of(now) / SW_PTX_LANES && epoch_of(before) < epoch_of(now);
}

static bool reads_are_in_order(uint64_t before, uint64_t now) {
    if (barrier_of(before) < barrier_of(now))
        return true;
    if ((before & SEVERAL_WARPS) != 0 || thread_of(before) / SW_PTX_LANES != thread_of(now) / SW_PTX_LANES)
        return false;
    return epoch_of(before) < epoch_of(now) || ((before & SEVERAL_LANES) == 0 && thread_of(before) == thread_of(now));
}

static inline uint64_t with_read(uint64_t before, uint64_t now) {
    if (barrier_of(before) < barrier_of(now) || thread_of(before) == thread_of(now))
        return now | (barrier_of(before) == barrier_of(now) ? before & 3 : 0);
    if (thread_of(before) / SW_PTX_LANES != thread_of(now) / SW_PTX_LANES)
        return now | SEVERAL_WARPS;
    return now | (before & SEVERAL_WARPS) | (epoch_of(before) < epoch_of(now) ? 0 : SEVERAL_LANES);
}

static inline struct sw_ptx_mark *marks_at(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane,
                                           uint32_t address, uint32_t bytes) {
    const struct sw_ptx_machine *m = warp->machine;
    if (bytes % SW_PTX_GRANULE_BYTES != 0)
        sw_ptx_fail(warp, op, lane, "an access to shared memory of %u bytes is not of the subset", bytes);
    else if (address % bytes != 0)
        sw_ptx_fail(warp, op, lane, "%u bytes of shared memory at %u are not aligned", bytes, address);
    else if (address < m->shared_begin || address > m->shared_end || bytes > m->shared_end - address)
        sw_ptx_fail(warp, op, lane, "%u bytes at %u are beyond the block's shared memory, %u to %u", bytes, address,
                    m->shared_begin, m->shared_end);
    else
        return &m->marks[address / SW_PTX_GRANULE_BYTES];
    return NULL;
}

static bool check_write_before(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address,
                               uint64_t before, uint64_t now) {
    if ((before & UNDER_WAY) != 0 && barrier_of(before) != 0)
        sw_ptx_fail(warp, op, lane, "byte %u of shared memory is used while a copy of thread %d to it is under way",
                    address, thread_of(before));
    else if (!is_in_order(before, now))
        sw_ptx_fail(warp, op, lane, "byte %u of shared memory was written by thread %d with no barrier between",
                    address, thread_of(before));
    else
        return true;
    return false;
}

void *sw_ptx_shared_read(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address,
                         uint32_t bytes) {
    struct sw_ptx_mark *mark = marks_at(warp, op, lane, address, bytes);
    const uint64_t now = stamp_now(warp, lane), since_barrier = (uint64_t)warp->machine->barriers << BARRIER_AT;
    for (uint32_t i = 0; mark != NULL && i < bytes / SW_PTX_GRANULE_BYTES; i++) {
        const bool is_old = mark[i].write < since_barrier && (mark[i].write & UNDER_WAY) == 0;
        if (!is_old && !check_write_before(warp, op, lane, address, mark[i].write, now))
            return NULL;
        mark[i].read = mark[i].read < since_barrier ? now : with_read(mark[i].read, now);
    }
    return mark == NULL ? NULL : warp->machine->shared + address;
}

static bool mark_write(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address, uint32_t bytes,
                       uint64_t flags) {
    struct sw_ptx_mark *mark = marks_at(warp, op, lane, address, bytes);
    const uint64_t now = stamp_now(warp, lane);
    const uint32_t time = ++warp->machine->time;
    for (uint32_t i = 0; mark != NULL && i < bytes / SW_PTX_GRANULE_BYTES; i++) {
        if (!check_write_before(warp, op, lane, address, mark[i].write, now))
            return false;
        if (!reads_are_in_order(mark[i].read, now)) {
            sw_ptx_fail(warp, op, lane, "byte %u of shared memory was read by thread %d%s with no barrier between",
                        address, thread_of(mark[i].read), (mark[i].read & 3) != 0 ? " and others" : "");
            return false;
        }
        mark[i] = (struct sw_ptx_mark){now | flags, mark[i].read, warp->lanes[lane].fences, time};
    }
    return mark != NULL;
}

void *sw_ptx_shared_write(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address,
                          uint32_t bytes) {
    return mark_write(warp, op, lane, address, bytes, 0) ? warp->machine->shared + address : NULL;
}

bool sw_ptx_shared_begin_copy(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint32_t address,
                              uint32_t bytes) {
    return mark_write(warp, op, lane, address, bytes, UNDER_WAY);
}

void sw_ptx_shared_end_copy(struct sw_ptx_warp *warp, int lane, uint32_t address, uint32_t bytes) {
    const uint64_t now = stamp_now(warp, lane);
    const uint32_t time = ++warp->machine->time;
    for (uint32_t i = 0; i < bytes / SW_PTX_GRANULE_BYTES; i++) {
        struct sw_ptx_mark *mark = &warp->machine->marks[address / SW_PTX_GRANULE_BYTES + i];
        *mark = (struct sw_ptx_mark){now, mark->read, warp->lanes[lane].fences, time};
    }
}

/* A warp reads for its product, as several of its lanes would. */
const void *sw_ptx_shared_product(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t address,
                                  uint32_t time) {
    enum { BYTES = 16 };
    struct sw_ptx_mark *mark = marks_at(warp, op, -1, address, BYTES);
    const uint64_t now = stamp_now(warp, 0);
    for (uint32_t i = 0; mark != NULL && i < BYTES / SW_PTX_GRANULE_BYTES; i++) {
        const uint64_t write = mark[i].write;
        const int writer = thread_of(write);
        const struct sw_ptx_lane *lane = &warp->machine->warps[writer / SW_PTX_LANES]->lanes[writer % SW_PTX_LANES];
        const bool own_warp = writer / SW_PTX_LANES == warp->number;
        if (write == 0) {
            sw_ptx_fail(warp, op, -1, "a product reads shared memory that nothing was written to");
            return NULL;
        }
        /* A write by its own warp needs no barrier: the product waits for all lanes. */
        if (!check_write_before(warp, op, -1, address, write, own_warp && (write & UNDER_WAY) == 0 ? write : now))
            return NULL;
        if ((own_warp ? lane->fences : lane->fences_in_order) <= mark[i].fences) {
            sw_ptx_fail(warp, op, -1, "a product reads byte %u, which no fence of thread %d has shown to products",
                        address, writer);
            return NULL;
        }
        if (mark[i].time > time) {
            sw_ptx_fail(warp, op, -1, "byte %u was written while a product that reads it was under way", address);
            return NULL;
        }
        mark[i].read = with_read(mark[i].read, now) | SEVERAL_LANES;
    }
    return mark == NULL ? NULL : warp->machine->shared + address;
}
