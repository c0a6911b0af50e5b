#include "tests/equipment/ptx/machine.h"

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARPGROUP_WARPS = 4, MOST_GRID_YZ = 65535 };

uint64_t sw_ptx_draw(struct sw_ptx_machine *machine) {
    machine->random ^= machine->random >> 12;
    machine->random ^= machine->random << 25;
    machine->random ^= machine->random >> 27;
    return machine->random * UINT64_C(0x2545f4914f6cdd1d);
}

void sw_ptx_fail(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, int lane, const char *format, ...) {
    struct sw_ptx_machine *m = warp->machine;
    if (m->error[0] != '\0')
        return;
    int used = snprintf(m->error, SW_PTX_ERROR_CHARS, "block %u %u %u, ", m->block[0], m->block[1], m->block[2]);
    used += snprintf(m->error + used, (size_t)(SW_PTX_ERROR_CHARS - used), lane < 0 ? "warp %d" : "thread %d",
                     lane < 0 ? warp->number : warp->number * SW_PTX_LANES + lane);
    if (op != NULL)
        used += snprintf(m->error + used, (size_t)(SW_PTX_ERROR_CHARS - used), ", line %d of the PTX (%.*s)", op->line,
                         op->chars, op->name);
    used += snprintf(m->error + used, (size_t)(SW_PTX_ERROR_CHARS - used), ": ");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->error + used, (size_t)(SW_PTX_ERROR_CHARS - used), format, arguments);
    va_end(arguments);
}

static void set_state(struct sw_ptx_warp *warp, uint32_t lanes, int32_t next, sw_ptx_state state) {
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        warp->next[lane] = next;
        warp->state[lane] = state;
    }
}

static uint32_t guarded(struct sw_ptx_warp *warp, const struct sw_ptx_op *op, uint32_t lanes) {
    const uint32_t *predicate = sw_ptx_register(warp, op->guard);
    uint32_t on = 0;
    for (int lane = 0; lane < SW_PTX_LANES; lane++)
        on |= (predicate[lane] & 1u) << lane;
    return lanes & (op->unless ? ~on : on);
}

/* Registers that a product under way reads may not be written, and those that it writes may not be touched. */
static void check_held(struct sw_ptx_warp *warp, const struct sw_ptx_op *op) {
    if (op->execute == sw_ptx_products_start)
        return;
    for (int i = 0; i < op->count; i++) {
        const int held = warp->held[op->operands[i] / SW_PTX_REGISTER_BYTES];
        if (held == 2 || (held == 1 && i == 0))
            sw_ptx_fail(warp, op, -1, "a register of a product that was not waited for is %s",
                        held == 1 ? "written" : "used");
    }
}

/* Lanes return from a function to where they were called, or have ended. */
static void go_back(struct sw_ptx_warp *warp, uint32_t lanes) {
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        warp->state[lane] = warp->back[lane] < 0 ? SW_PTX_ENDED : SW_PTX_RUNNABLE;
        warp->next[lane] = warp->back[lane];
        warp->back[lane] = -1;
    }
}

/* Runs lanes that are at the same instruction until they part, wait, or reach the first of the others. */
static void run_together(struct sw_ptx_warp *warp, uint32_t lanes, int32_t at, int32_t others) {
    const struct sw_ptx_op *ops = warp->machine->kernel->ops;
    uint8_t *const reached = warp->machine->kernel->reached;
    while (at < others && !sw_ptx_failed(warp)) {
        const struct sw_ptx_op *op = &ops[at];
        const uint32_t on = op->guard == SW_PTX_NO_GUARD ? lanes : guarded(warp, op, lanes);
        if (warp->product_count > 0)
            check_held(warp, op);
        if (on == 0) {
            at++;
            continue;
        }
        reached[at] = 1;
        if (op->kind == SW_PTX_EACH) {
            op->execute(warp, op, on);
            at++;
        } else if (op->kind == SW_PTX_BRANCH && on == lanes) {
            at = (int32_t)op->number;
        } else if (op->kind == SW_PTX_BRANCH) {
            set_state(warp, on, (int32_t)op->number, SW_PTX_RUNNABLE);
            set_state(warp, lanes & ~on, at + 1, SW_PTX_RUNNABLE);
            return;
        } else if (op->kind == SW_PTX_CALL) {
            for (uint32_t left = lanes; left != 0; left &= left - 1)
                warp->back[__builtin_ctz(left)] = at + 1;
            at = (int32_t)op->number;
        } else if (op->kind == SW_PTX_RETURN) {
            set_state(warp, lanes & ~on, at + 1, SW_PTX_RUNNABLE);
            go_back(warp, on);
            return;
        } else if (op->kind == SW_PTX_WARP && on == SW_PTX_ALL_LANES) {
            op->execute(warp, op, on);
            at++;
        } else {
            set_state(warp, lanes & ~on, at + 1, SW_PTX_RUNNABLE);
            set_state(warp, on, at, op->kind == SW_PTX_WARP ? SW_PTX_AT_WARP : SW_PTX_AT_BARRIER);
            return;
        }
    }
    set_state(warp, lanes, at, SW_PTX_RUNNABLE);
}

/* None of its lanes can run: those at an operation of the warp go on together, if all are there. */
static bool go_on_together(struct sw_ptx_warp *warp) {
    int waiting = -1;
    bool same = true;
    for (int lane = 0; lane < SW_PTX_LANES; lane++)
        waiting = warp->state[lane] == SW_PTX_AT_WARP ? lane : waiting;
    if (waiting < 0)
        return false;
    const struct sw_ptx_op *op = &warp->machine->kernel->ops[warp->next[waiting]];
    for (int lane = 0; lane < SW_PTX_LANES; lane++)
        same = same && warp->state[lane] == SW_PTX_AT_WARP && warp->next[lane] == warp->next[waiting];
    if (!same) {
        sw_ptx_fail(warp, op, waiting, "the lanes of the warp part: not all of them reach this");
        return false;
    }
    op->execute(warp, op, SW_PTX_ALL_LANES);
    set_state(warp, SW_PTX_ALL_LANES, warp->next[waiting] + 1, SW_PTX_RUNNABLE);
    return true;
}

/* Runs a warp until its lanes have ended or wait for the block. */
static bool run_warp(struct sw_ptx_warp *warp) {
    bool ran = false;
    while (!sw_ptx_failed(warp)) {
        int32_t first = INT32_MAX, others = INT32_MAX;
        uint32_t lanes = 0;
        for (int lane = 0; lane < SW_PTX_LANES; lane++) {
            if (warp->state[lane] == SW_PTX_RUNNABLE && warp->next[lane] < first)
                first = warp->next[lane];
        }
        for (int lane = 0; lane < SW_PTX_LANES; lane++) {
            if (warp->state[lane] == SW_PTX_RUNNABLE && warp->next[lane] == first)
                lanes |= 1u << lane;
            else if (warp->state[lane] == SW_PTX_RUNNABLE && warp->next[lane] < others)
                others = warp->next[lane];
        }
        if (lanes != 0)
            run_together(warp, lanes, first, others);
        else if (!go_on_together(warp))
            break;
        ran = true;
    }
    return ran;
}

/* Returns whether every thread waits at the barrier, and lets them go on. */
static bool pass_barrier(struct sw_ptx_machine *m) {
    int waiting = 0, ended = 0;
    for (int w = 0; w < m->warp_count; w++) {
        const struct sw_ptx_warp *warp = m->warps[w];
        for (int lane = 0; lane < SW_PTX_LANES; lane++) {
            waiting += warp->state[lane] == SW_PTX_AT_BARRIER;
            ended += warp->state[lane] == SW_PTX_ENDED;
            if (warp->state[lane] != warp->state[0] || warp->next[lane] != warp->next[0])
                sw_ptx_fail(m->warps[w], &m->kernel->ops[warp->next[warp->state[0] == SW_PTX_ENDED ? lane : 0]], lane,
                            "the lanes of the warp part at a barrier: some are elsewhere, or have ended");
        }
    }
    if (waiting == 0 || m->error[0] != '\0')
        return false;
    if (ended > 0) {
        sw_ptx_fail(m->warps[0], NULL, -1, "of the threads of the block, %d wait at a barrier, and %d have ended",
                    waiting, ended);
        return false;
    }
    m->barriers++;
    for (int w = 0; w < m->warp_count; w++) {
        set_state(m->warps[w], SW_PTX_ALL_LANES, m->warps[w]->next[0] + 1, SW_PTX_RUNNABLE);
        for (int lane = 0; lane < SW_PTX_LANES; lane++)
            m->warps[w]->lanes[lane].fences_in_order = m->warps[w]->lanes[lane].fences;
    }
    return true;
}

static void set_specials(struct sw_ptx_warp *warp) {
    const struct sw_ptx_machine *m = warp->machine;
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        const uint32_t thread = (uint32_t)(warp->number * SW_PTX_LANES + lane), *block = m->launch->block;
        const uint32_t tid[3] = {thread % block[0], thread / block[0] % block[1], thread / (block[0] * block[1])};
        for (int i = 0; i < 3; i++) {
            ((uint32_t *)sw_ptx_register(warp, SW_PTX_SPECIAL_PLACE(SW_PTX_TID + i)))[lane] = tid[i];
            ((uint32_t *)sw_ptx_register(warp, SW_PTX_SPECIAL_PLACE(SW_PTX_NTID + i)))[lane] = block[i];
            ((uint32_t *)sw_ptx_register(warp, SW_PTX_SPECIAL_PLACE(SW_PTX_CTAID + i)))[lane] = m->block[i];
            ((uint32_t *)sw_ptx_register(warp, SW_PTX_SPECIAL_PLACE(SW_PTX_NCTAID + i)))[lane] = m->launch->grid[i];
        }
        ((uint32_t *)sw_ptx_register(warp, SW_PTX_SPECIAL_PLACE(SW_PTX_LANEID)))[lane] = (uint32_t)lane;
    }
}

static void begin_warp(struct sw_ptx_warp *warp) {
    set_specials(warp);
    set_state(warp, SW_PTX_ALL_LANES, 0, SW_PTX_RUNNABLE);
    warp->epoch = 0;
    warp->product_groups = 0;
    warp->registers_shown = false;
    warp->started = 0;
    for (int lane = 0; lane < SW_PTX_LANES; lane++) {
        warp->back[lane] = -1;
        warp->lanes[lane].groups = warp->lanes[lane].fences = warp->lanes[lane].fences_in_order = 0;
    }
}

/* Shared memory begins as NaN, and warps run in an order that is drawn. */
static void begin_block(struct sw_ptx_machine *m) {
    m->barriers++;
    memset(m->shared + m->shared_begin, 0xff, m->shared_end - m->shared_begin);
    for (int w = 0; w < m->warp_count; w++) {
        begin_warp(m->warps[w]);
        m->order[w] = w;
    }
    for (int w = m->warp_count - 1; w > 0; w--) {
        const int other = (int)(sw_ptx_draw(m) % (uint64_t)(w + 1)), kept = m->order[w];
        m->order[w] = m->order[other];
        m->order[other] = kept;
    }
}

static void check_end(struct sw_ptx_machine *m) {
    for (int w = 0; w < m->warp_count; w++) {
        struct sw_ptx_warp *warp = m->warps[w];
        for (int lane = 0; lane < SW_PTX_LANES; lane++) {
            if (warp->lanes[lane].count > 0)
                sw_ptx_fail(warp, NULL, lane, "it ended with %d copies that it did not wait for",
                            warp->lanes[lane].count);
        }
        if (warp->product_count > 0)
            sw_ptx_fail(warp, NULL, -1, "it ended with %d products that it did not wait for", warp->product_count);
        if (warp->started != m->warps[w / WARPGROUP_WARPS * WARPGROUP_WARPS]->started)
            sw_ptx_fail(warp, NULL, -1, "the warps of its warpgroup have started different products");
    }
}

static void run_block(struct sw_ptx_machine *m) {
    bool any = true;
    begin_block(m);
    while (any && m->error[0] == '\0') {
        any = false;
        for (int w = 0; w < m->warp_count; w++)
            any = run_warp(m->warps[m->order[w]]) || any;
        any = m->error[0] == '\0' && pass_barrier(m);
    }
    if (m->error[0] == '\0')
        check_end(m);
}

static void drop_machine(struct sw_ptx_machine *m) {
    for (int w = 0; w < m->warp_count; w++) {
        for (int lane = 0; lane < SW_PTX_LANES; lane++)
            free(m->warps[w]->lanes[lane].copies);
        free(m->warps[w]->file);
        free(m->warps[w]->held);
        free(m->warps[w]);
    }
    free(m->shared);
    free(m->marks);
    free(m->ranges);
}

/* Registers begin with bits that no kernel expects, and constants with theirs. */
static void make_warp(struct sw_ptx_machine *m, int number) {
    struct sw_ptx_warp *warp = sw_ptx_zeroed(sizeof *warp);
    const struct sw_ptx_kernel *kernel = m->kernel;
    warp->machine = m;
    warp->number = number;
    warp->file = sw_ptx_zeroed((size_t)kernel->file_bytes);
    warp->held = sw_ptx_zeroed((size_t)kernel->file_bytes / SW_PTX_REGISTER_BYTES + 1);
    memset(warp->file, 0xfd, (size_t)kernel->file_bytes);
    for (int32_t i = 0; i < kernel->constant_count; i++) {
        const struct sw_ptx_constant *constant = &kernel->constants[i];
        for (int lane = 0; lane < SW_PTX_LANES; lane++) {
            const uint64_t value = constant->value + (constant->dynamic ? m->dynamic_begin : 0);
            if (constant->wide)
                ((uint64_t *)sw_ptx_register(warp, constant->place))[lane] = value;
            else
                ((uint32_t *)sw_ptx_register(warp, constant->place))[lane] = (uint32_t)value;
        }
    }
    m->warps[number] = warp;
}

static const char *launch_problem(const struct sw_ptx_kernel *kernel, const struct sw_ptx_launch *launch) {
    const uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    if (threads == 0 || threads > SW_PTX_MOST_THREADS || threads % SW_PTX_LANES != 0)
        return "a block has no threads, too many, or a part of a warp";
    if (kernel->most_threads > 0 && threads > kernel->most_threads)
        return "a block has more threads than the kernel was compiled for";
    if (launch->grid[0] == 0 || launch->grid[0] > INT32_MAX || launch->grid[1] == 0 || launch->grid[1] > MOST_GRID_YZ ||
        launch->grid[2] == 0 || launch->grid[2] > MOST_GRID_YZ)
        return "a grid has no blocks, or too many";
    if (launch->dynamic_bytes > launch->dynamic_limit_bytes ||
        kernel->static_bytes + launch->dynamic_bytes > launch->shared_limit_bytes)
        return "a block wants more shared memory than the kernel was allowed";
    return NULL;
}

bool sw_ptx_launch_run(const struct sw_ptx_kernel *kernel, const struct sw_ptx_launch *launch,
                       char error[SW_PTX_ERROR_CHARS]) {
    struct sw_ptx_machine m = {.kernel = kernel, .launch = launch, .error = error, .random = launch->seed * 2 + 1};
    const char *problem = launch_problem(kernel, launch);
    error[0] = '\0';
    if (problem != NULL) {
        snprintf(error, SW_PTX_ERROR_CHARS, "%s", problem);
        return false;
    }
    m.shared = sw_ptx_zeroed(SW_PTX_SHARED_BYTES);
    m.marks = sw_ptx_zeroed(SW_PTX_SHARED_BYTES / SW_PTX_GRANULE_BYTES * sizeof *m.marks);
    m.ranges = sw_ptx_zeroed((size_t)(kernel->accesses + 1) * sizeof *m.ranges);
    m.shared_begin = SW_PTX_SHARED_BEGIN;
    m.dynamic_begin = (SW_PTX_SHARED_BEGIN + kernel->static_bytes + kernel->dynamic_align - 1) / kernel->dynamic_align *
                      kernel->dynamic_align;
    m.shared_end = m.dynamic_begin + (uint32_t)launch->dynamic_bytes;
    m.warp_count = (int)(launch->block[0] * launch->block[1] * launch->block[2] / SW_PTX_LANES);
    for (int w = 0; w < m.warp_count; w++)
        make_warp(&m, w);
    for (m.block[2] = 0; m.block[2] < launch->grid[2] && error[0] == '\0'; m.block[2]++)
        for (m.block[1] = 0; m.block[1] < launch->grid[1] && error[0] == '\0'; m.block[1]++)
            for (m.block[0] = 0; m.block[0] < launch->grid[0] && error[0] == '\0'; m.block[0]++)
                run_block(&m);
    drop_machine(&m);
    return error[0] == '\0';
}
