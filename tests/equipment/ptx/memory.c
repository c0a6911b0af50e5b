/* Loads, stores and asynchronous copies. */
#include "tests/equipment/ptx/machine.h"

#include <assert.h>
#include <stdlib.h>

static sw_ptx_find_memory *find_memory;

void sw_ptx_set_memory(sw_ptx_find_memory *find) {
    find_memory = find;
}

void *sw_ptx_global(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, uint64_t address, uint32_t bytes) {
    struct sw_ptx_range *range = &warp->machine->ranges[op->range];
    char *const at = (char *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr): kernels compute with addresses
    if (address % bytes != 0) {
        sw_ptx_fail(warp, op, lane, "%u bytes at %#llx are not aligned", bytes, (unsigned long long)address);
        return NULL;
    }
    if (address - range->base < range->bytes && bytes <= range->bytes - (address - range->base))
        return at;
    const char *base = NULL;
    size_t found = 0;
    if (address >= SW_PTX_SHARED_BYTES && find_memory(at, &base, &found))
        *range = (struct sw_ptx_range){(uint64_t)(uintptr_t)base, found};
    if (found > 0 && bytes <= found - (address - range->base))
        return at;
    sw_ptx_fail(warp, op, lane, "%u bytes at %#llx are outside of all memory of the GPU", bytes,
                (unsigned long long)address);
    return NULL;
}

static uint64_t extended(uint64_t value, int sign_bits) {
    return sign_bits == 0 ? value : (uint64_t)((int64_t)(value << (64 - sign_bits)) >> (64 - sign_bits));
}

/* Writes an element to the register of a lane. */
static inline void put(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int element, int lane, const void *from) {
    uint64_t value = 0;
    if (op->bytes == 4 && op->width == '4') {
        memcpy((uint32_t *)sw_ptx_register(warp, op->operands[element]) + lane, from, 4);
        return;
    }
    switch (op->bytes) {
    case 4: memcpy(&value, from, 4); break;
    case 2: memcpy(&value, from, 2); break;
    case 8: memcpy(&value, from, 8); break;
    default: memcpy(&value, from, 1);
    }
    value = extended(value, op->sign_bits);
    void *to = sw_ptx_register(warp, op->operands[element]);
    if (op->width == '8')
        ((uint64_t *)to)[lane] = value;
    else
        ((uint32_t *)to)[lane] = (uint32_t)(op->width == '2' ? value & 0xffff : value);
}

static void get(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int element, int lane, void *to) {
    const void *from = sw_ptx_register(warp, op->operands[element]);
    if (op->width == '8')
        memcpy(to, (const uint64_t *)from + lane, op->bytes);
    else
        memcpy(to, (const uint32_t *)from + lane, op->bytes);
}

static uint64_t address_of(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, bool wide) {
    const void *base = sw_ptx_register(warp, op->operands[op->vector]);
    return (wide ? ((const uint64_t *)base)[lane] : ((const uint32_t *)base)[lane]) + (uint64_t)op->number;
}

/* Tells whether all lanes, of which there are several, access the same address. */
static bool is_one_address(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes, bool wide) {
    const uint64_t first = address_of(warp, op, __builtin_ctz(lanes), wide);
    uint32_t left = lanes & (lanes - 1);
    if (left == 0)
        return false;
    while (left != 0 && address_of(warp, op, __builtin_ctz(left), wide) == first)
        left &= left - 1;
    return left == 0;
}

/* Writes the elements at `from` to the registers of all lanes. */
static void put_all(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes, const char *from) {
    for (int i = 0; i < op->vector; i++)
        for (uint32_t left = lanes; left != 0; left &= left - 1)
            put(warp, op, i, __builtin_ctz(left), from + (size_t)i * op->bytes);
}

void sw_ptx_load_param(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    const struct sw_ptx_machine *m = warp->machine;
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        const uint64_t at = address_of(warp, op, lane, true);
        if (at > m->kernel->param_bytes || (uint64_t)op->bytes * op->vector > m->kernel->param_bytes - at) {
            sw_ptx_fail(warp, op, lane, "byte %lld is beyond the kernel's parameters", (long long)at);
            return;
        }
        for (int i = 0; i < op->vector; i++)
            put(warp, op, i, lane, m->launch->params + at + (size_t)i * op->bytes);
    }
}

void sw_ptx_load_global(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        const char *from =
            sw_ptx_global(warp, op, lane, address_of(warp, op, lane, true), (uint32_t)op->bytes * op->vector);
        for (int i = 0; from != NULL && i < op->vector; i++)
            put(warp, op, i, lane, from + (size_t)i * op->bytes);
    }
}

void sw_ptx_store_global(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        char *to = sw_ptx_global(warp, op, lane, address_of(warp, op, lane, true), (uint32_t)op->bytes * op->vector);
        for (int i = 0; to != NULL && i < op->vector; i++)
            get(warp, op, i, lane, to + (size_t)i * op->bytes);
    }
}

/* The first and the last lane mark and find wrong all that the lanes between them would. */
static void load_shared_once(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    const int first = __builtin_ctz(lanes), last = SW_PTX_LANES - 1 - __builtin_clz(lanes);
    const uint32_t address = (uint32_t)address_of(warp, op, first, false), bytes = (uint32_t)op->bytes * op->vector;
    const char *from = sw_ptx_shared_read(warp, op, first, address, bytes);
    if (from != NULL && sw_ptx_shared_read(warp, op, last, address, bytes) != NULL)
        put_all(warp, op, lanes, from);
}

void sw_ptx_load_shared(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    if (is_one_address(warp, op, lanes, false)) {
        load_shared_once(warp, op, lanes);
        return;
    }
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        const char *from = sw_ptx_shared_read(warp, op, lane, (uint32_t)address_of(warp, op, lane, false),
                                              (uint32_t)op->bytes * op->vector);
        for (int i = 0; from != NULL && i < op->vector; i++)
            put(warp, op, i, lane, from + (size_t)i * op->bytes);
    }
}

void sw_ptx_store_shared(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        char *to = sw_ptx_shared_write(warp, op, lane, (uint32_t)address_of(warp, op, lane, false),
                                       (uint32_t)op->bytes * op->vector);
        for (int i = 0; to != NULL && i < op->vector; i++)
            get(warp, op, i, lane, to + (size_t)i * op->bytes);
    }
}

/* Pairs of registers of 4 bytes: to, from. */
void sw_ptx_move_slots(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    for (int i = 0; i < op->count; i += 2) {
        uint32_t *to = sw_ptx_register(warp, op->operands[i]);
        const uint32_t *from = sw_ptx_register(warp, op->operands[i + 1]);
        if (lanes == SW_PTX_ALL_LANES) {
            memmove(to, from, SW_PTX_REGISTER_BYTES);
            continue;
        }
        for (uint32_t left = lanes; left != 0; left &= left - 1)
            to[__builtin_ctz(left)] = from[__builtin_ctz(left)];
    }
}

/* Two registers of op->bytes are the lower and the upper half of one. */
void sw_ptx_split(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    uint32_t *low = sw_ptx_register(warp, op->operands[0]), *high = sw_ptx_register(warp, op->operands[1]);
    const void *from = sw_ptx_register(warp, op->operands[2]);
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        const uint64_t value = op->bytes == 4 ? ((const uint64_t *)from)[lane] : ((const uint32_t *)from)[lane];
        low[lane] = (uint32_t)(op->bytes == 4 ? value : value & 0xffff);
        high[lane] = (uint32_t)(value >> (8 * op->bytes));
    }
}

void sw_ptx_low_half(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    uint32_t *to = sw_ptx_register(warp, op->operands[0]);
    const uint64_t *from = sw_ptx_register(warp, op->operands[1]);
    for (; lanes != 0; lanes &= lanes - 1)
        to[__builtin_ctz(lanes)] = (uint32_t)from[__builtin_ctz(lanes)];
}

void sw_ptx_join(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    void *to = sw_ptx_register(warp, op->operands[0]);
    const uint32_t *low = sw_ptx_register(warp, op->operands[1]), *high = sw_ptx_register(warp, op->operands[2]);
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        if (op->bytes == 4)
            ((uint64_t *)to)[lane] = low[lane] | (uint64_t)high[lane] << 32;
        else
            ((uint32_t *)to)[lane] = (low[lane] & 0xffff) | high[lane] << 16;
    }
}

static void land(struct sw_ptx_warp *warp, struct sw_ptx_copy *copy, bool reads, bool writes) {
    if (reads && !copy->is_read) {
        const void *from = (const void *)(uintptr_t)copy->from; // NOLINT(performance-no-int-to-ptr)
        if (copy->from_bytes > 0)
            memcpy(copy->data, from, copy->from_bytes);
        copy->is_read = true;
    }
    if (writes && !copy->is_written) {
        memcpy(warp->machine->shared + copy->to, copy->data, copy->bytes);
        copy->is_written = true;
    }
}

/* A copy reads and writes at once, or reads at once and writes when it is waited for, or does both then. */
void sw_ptx_copy_later(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    const uint32_t *to = sw_ptx_register(warp, op->operands[0]), *bytes = sw_ptx_register(warp, op->operands[2]);
    const uint64_t *from = sw_ptx_register(warp, op->operands[1]);
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        struct sw_ptx_lane *own = &warp->lanes[lane];
        struct sw_ptx_copy copy = {.from = from[lane], .to = to[lane], .group = own->groups, .bytes = op->bytes};
        copy.from_bytes = (uint8_t)(bytes[lane] < op->bytes ? bytes[lane] : op->bytes);
        if ((copy.from_bytes > 0 && sw_ptx_global(warp, op, lane, copy.from, op->bytes) == NULL) ||
            !sw_ptx_shared_begin_copy(warp, op, lane, copy.to, op->bytes))
            return;
        if (own->count == own->room) {
            own->room = own->room == 0 ? 16 : 2 * own->room;
            own->copies = realloc(own->copies, (size_t)own->room * sizeof *own->copies);
            assert(own->copies != NULL);
        }
        const uint64_t when = sw_ptx_draw(warp->machine) >> 32;
        land(warp, &copy, when % 3 < 2, when % 3 < 1);
        own->copies[own->count++] = copy;
    }
}

void sw_ptx_land_copies(struct sw_ptx_warp *warp, int lane, uint32_t newest) {
    struct sw_ptx_lane *own = &warp->lanes[lane];
    int kept = 0;
    for (int i = 0; i < own->count; i++) {
        if (own->copies[i].group + newest < own->groups) {
            land(warp, &own->copies[i], true, true);
            sw_ptx_shared_end_copy(warp, lane, own->copies[i].to, own->copies[i].bytes);
        } else {
            own->copies[kept++] = own->copies[i];
        }
    }
    own->count = kept;
}

void sw_ptx_commit_copies(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)op;
    for (; lanes != 0; lanes &= lanes - 1)
        warp->lanes[__builtin_ctz(lanes)].groups++;
}

void sw_ptx_wait_copies(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    for (; lanes != 0; lanes &= lanes - 1)
        sw_ptx_land_copies(warp, __builtin_ctz(lanes), (uint32_t)op->number);
}

void sw_ptx_fence_copies(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    (void)op;
    for (; lanes != 0; lanes &= lanes - 1)
        warp->lanes[__builtin_ctz(lanes)].fences++;
}
