#include "tests/equipment/cuda/machine.h"

#include "tests/equipment/cuda/fiber.h"
#include "tests/equipment/cuda/late_copies.h"
#include "tests/equipment/cuda/shared_memory.h"
#include "tests/equipment/cuda/warpgroup.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARP = SW_EMULATION_WARP_LANES, MOST_THREADS = 1024, MOST_GRID_YZ = 65535, ERROR_CHARS = 256 };
static const uint64_t FIRST_SEED = 20240607;

static const uint32_t ALL_LANES = UINT32_MAX;

/* Where a thread stopped last. */
enum state { AT_BARRIER, AT_EXCHANGE, ENDED };

struct thread {
    struct sw_fiber *fiber;
    enum state state;
    int turn; /* its place in the order of its warp's threads */
    struct sw_emulation_index index;
    int exchanges;
    struct sw_late_copies copies;
    struct sw_products products;
};

struct warp {
    _Alignas(16) char lanes[2][WARP][SW_EMULATION_LANE_BYTES];
    uint32_t runnable; /* bit i: the thread whose turn is i can run */
    int arrived;
    const char *what;
};

struct machine {
    struct sw_fiber *scheduler;
    struct thread threads[MOST_THREADS];
    struct warp warps[MOST_THREADS / WARP];
    int order[MOST_THREADS], warp_order[MOST_THREADS / WARP];
    int fibers, count, running, at_barrier;
    size_t dynamic_bytes;
    const char *barrier_file;
    int barrier_line;
    struct sw_shared_memory shared;
    struct sw_product_block products;
    struct sw_emulation_position position;
    const char *kernel;
    void (*body)(void *arguments);
    void *arguments;
    bool failed, error_is_new;
    char error[ERROR_CHARS];
    uint64_t random;
    const char *passed_file;
    int passed_line;
};

static _Thread_local struct machine *machine;
static _Atomic size_t most_shared = SW_SHARED_MOST_BYTES, most_given;

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t machine_key;

static void drop_fibers(struct machine *m) {
    for (int i = 0; i < m->fibers; i++) {
        sw_fiber_close(m->threads[i].fiber);
        sw_late_copies_free(&m->threads[i].copies);
        free(m->threads[i].products.under_way);
        m->threads[i] = (struct thread){0};
    }
    m->fibers = 0;
}

/* Streams have threads that end before the program does. */
static void close_machine(void *ended) {
    struct machine *m = ended;
    drop_fibers(m);
    sw_fiber_close(m->scheduler);
    free(m);
}

static void make_key(void) {
    const int error = pthread_key_create(&machine_key, close_machine);
    assert(error == 0);
    (void)error;
}

static struct machine *the_machine(void) {
    if (machine == NULL) {
        machine = calloc(1, sizeof *machine);
        assert(machine != NULL);
        machine->scheduler = sw_fiber_open_current();
        assert(machine->scheduler != NULL);
        machine->random = FIRST_SEED;
        pthread_once(&key_once, make_key);
        pthread_setspecific(machine_key, machine);
    }
    return machine;
}

/* Draws by xorshift64*, for orders only. */
static uint64_t draw(struct machine *m) {
    m->random ^= m->random >> 12;
    m->random ^= m->random << 25;
    m->random ^= m->random >> 27;
    return m->random * UINT64_C(0x2545f4914f6cdd1d);
}

static void record(struct machine *m, const char *format, va_list arguments) {
    m->failed = true;
    if (m->error_is_new)
        return;
    m->error_is_new = true;
    const int used = snprintf(m->error, sizeof m->error, "%s: ", m->kernel);
    vsnprintf(m->error + used, sizeof m->error - (size_t)used, format, arguments);
}

__attribute__((format(printf, 2, 3))) static void record_error(struct machine *m, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(m, format, arguments);
    va_end(arguments);
}

static struct thread *running_thread(void) {
    return &machine->threads[machine->running];
}

static void back_to_scheduler(void) {
    struct machine *m = machine;
    sw_fiber_switch(running_thread()->fiber, m->scheduler);
}

static void switch_to_turn(struct machine *m, struct sw_fiber *from, int warp, int turn) {
    m->running = m->order[warp * WARP + turn];
    m->position.thread = running_thread()->index;
    sw_fiber_switch(from, running_thread()->fiber);
}

static struct warp *running_warp(struct machine *m) {
    return &m->warps[m->running / WARP];
}

static void stop(struct machine *m, enum state state) {
    struct thread *self = running_thread();
    self->state = state;
    running_warp(m)->runnable &= ~(UINT32_C(1) << self->turn);
}

/* Lets the next thread of the warp that can run have its turn, without a detour over the scheduler; the scheduler goes
 * on where no thread of the warp can run. Returns when this thread runs again. */
static void yield(struct machine *m) {
    struct thread *self = running_thread();
    const uint32_t runnable = running_warp(m)->runnable, later = runnable & (ALL_LANES << self->turn << 1);
    if (runnable == 0) {
        back_to_scheduler();
        return;
    }
    const int turn = __builtin_ctz(later != 0 ? later : runnable);
    if (turn != self->turn)
        switch_to_turn(m, self->fiber, m->running / WARP, turn);
}

/* The fiber is not resumed: the launch drops all of them. */
void sw_emulation_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(machine, format, arguments);
    va_end(arguments);
    back_to_scheduler();
    abort();
}

const char *sw_emulation_take_error(void) {
    struct machine *m = the_machine();
    const bool is_new = m->error_is_new;
    m->error_is_new = false;
    return is_new ? m->error : NULL;
}

void sw_emulation_set_seed(uint64_t seed) {
    the_machine()->random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1u;
}

void sw_emulation_set_most_shared(size_t bytes) {
    atomic_store(&most_shared, bytes);
}

size_t sw_emulation_take_most_given(void) {
    return atomic_exchange(&most_given, 0);
}

void sw_emulation_pass_barrier(const char *file, int line) {
    the_machine()->passed_file = file;
    machine->passed_line = line;
}

const struct sw_emulation_position *sw_emulation_position(void) {
    return &machine->position;
}

void sw_emulation_check_aligned(const void *address, size_t bytes) {
    if ((uintptr_t)address % bytes != 0)
        sw_emulation_fail("an access of %zu bytes at once is not aligned to them", bytes);
}

/* Threads that have ended count as missing, as a barrier must be reached by all. */
static bool is_passed(const struct machine *m, const char *file, int line) {
    if (line != m->passed_line || m->passed_file == NULL)
        return false;
    const size_t length = strlen(file), end = strlen(m->passed_file);
    return length >= end && strcmp(file + length - end, m->passed_file) == 0;
}

bool sw_emulation_leaves_out(const char *file, int line) {
    return is_passed(machine, file, line);
}

int sw_emulation_thread(void) {
    return machine->running;
}

struct sw_products *sw_emulation_own_products(int thread) {
    return &machine->threads[thread].products;
}

struct sw_product_block *sw_emulation_product_block(void) {
    return &machine->products;
}

void sw_emulation_barrier(const char *file, int line) {
    struct machine *m = machine;
    if (is_passed(m, file, line))
        return;
    if (m->at_barrier > 0 &&
        (line != m->barrier_line || (file != m->barrier_file && strcmp(file, m->barrier_file) != 0)))
        sw_emulation_fail("threads of a block wait at different barriers, lines %d and %d", m->barrier_line, line);
    m->barrier_file = file;
    m->barrier_line = line;
    stop(m, AT_BARRIER);
    if (++m->at_barrier == m->count) {
        m->at_barrier = 0;
        for (int w = 0; w < m->count / WARP; w++)
            m->warps[w].runnable = ALL_LANES;
    }
    yield(m);
}

/* Two buffers take turns: a lane writes into one again only after all have passed the exchange between, and so have
 * read it. */
static bool arrive(const void *mine, size_t bytes, const char *what, const void **out_lanes) {
    struct machine *m = machine;
    struct thread *self = running_thread();
    struct warp *warp = &m->warps[m->running / WARP];
    const int turn = self->exchanges++ & 1;
    assert(bytes <= SW_EMULATION_LANE_BYTES);
    if (warp->arrived > 0 && what != warp->what && strcmp(what, warp->what) != 0)
        sw_emulation_fail("the lanes of a warp part: some are at %s, some at %s", warp->what, what);
    warp->what = what;
    char *to = warp->lanes[turn][m->running % WARP];
    if (bytes == sizeof(uint32_t))
        memcpy(to, mine, sizeof(uint32_t)); /* most exchanges: no call */
    else
        memcpy(to, mine, bytes);
    *out_lanes = warp->lanes[turn];
    stop(m, AT_EXCHANGE);
    const bool is_last = ++warp->arrived == WARP;
    if (is_last) {
        warp->arrived = 0;
        warp->runnable = ALL_LANES;
    } else {
        yield(m);
    }
    return is_last;
}

const void *sw_emulation_exchange(const void *mine, size_t bytes, const char *what) {
    const void *lanes;
    arrive(mine, bytes, what, &lanes);
    return lanes;
}

const void *sw_emulation_gather(const void *mine, size_t bytes, const char *what) {
    const void *lanes;
    return arrive(mine, bytes, what, &lanes) ? lanes : NULL;
}

void *sw_emulation_shared(const void *key, size_t bytes) {
    struct sw_shared_memory *shared = &machine->shared;
    void *memory = sw_shared_memory_find(shared, key);
    if (memory == NULL)
        memory = sw_shared_memory_add(shared, key, bytes, atomic_load(&most_shared));
    if (memory == NULL)
        sw_emulation_fail("a block wants more than %zu bytes of shared memory", atomic_load(&most_shared));
    return memory;
}

static const char dynamic_key;

void *sw_emulation_dynamic_shared(void) {
    return sw_emulation_shared(&dynamic_key, 0);
}

void sw_emulation_check_dynamic_shared(size_t bytes) {
    if (bytes != machine->dynamic_bytes)
        sw_emulation_fail("%zu bytes of dynamic shared memory, and the kernel states %zu", machine->dynamic_bytes,
                          bytes);
}

void sw_emulation_copy_later(void *to, const void *from, size_t bytes, int zero) {
    sw_emulation_check_aligned(to, bytes);
    if (!zero)
        sw_emulation_check_aligned(from, bytes);
    const bool now = draw(machine) >> 63 != 0;
    sw_products_copy(&machine->products, to, bytes, machine->running, UINT32_MAX);
    if (!sw_late_copies_start(&running_thread()->copies, to, zero ? NULL : from, bytes, now))
        sw_emulation_fail("a thread has too many copies under way");
}

void sw_emulation_commit_copies(void) {
    sw_late_copies_commit(&running_thread()->copies);
}

void sw_emulation_wait_copies(int newest) {
    struct thread *self = running_thread();
    for (int i = 0; i < self->copies.count; i++) {
        const struct sw_late_copy *copy = &self->copies.copies[i];
        if (copy->commit < self->copies.commits - newest)
            sw_products_copy(&machine->products, copy->to, copy->bytes, machine->running, self->products.fences);
    }
    sw_late_copies_wait(&self->copies, newest);
}

/* A fiber plays its thread of block after block. */
static void play(void *argument) {
    struct machine *m = argument;
    for (;;) {
        m->body(m->arguments);
        stop(m, ENDED);
        yield(m);
    }
}

static bool have_fibers(struct machine *m) {
    for (; m->fibers < m->count; m->fibers++) {
        m->threads[m->fibers].fiber = sw_fiber_open(play, m);
        if (m->threads[m->fibers].fiber == NULL) {
            record_error(m, "no memory for the stacks of %d threads", m->count);
            return false;
        }
    }
    return true;
}

static void shuffle(struct machine *m, int *items, int count) {
    for (int i = count - 1; i > 0; i--) {
        const int other = (int)(draw(m) % (uint64_t)(i + 1)), kept = items[i];
        items[i] = items[other];
        items[other] = kept;
    }
}

static void begin_block(struct machine *m, struct sw_emulation_index block) {
    const struct sw_emulation_index dim = m->position.block_dim;
    m->position.block = block;
    m->at_barrier = 0;
    for (int i = 0; i < m->count; i++) {
        struct thread *thread = &m->threads[i];
        const unsigned at = (unsigned)i;
        thread->index = (struct sw_emulation_index){at % dim.x, at / dim.x % dim.y, at / (dim.x * dim.y)};
        thread->exchanges = 0;
        sw_late_copies_reset(&thread->copies);
        sw_products_reset(&thread->products);
        m->order[i] = i;
    }
    for (int w = 0; w < m->count / WARP; w++) {
        shuffle(m, &m->order[(size_t)w * WARP], WARP);
        m->warp_order[w] = w;
    }
    shuffle(m, m->warp_order, m->count / WARP);
    for (int i = 0; i < m->count; i++)
        m->threads[m->order[i]].turn = i % WARP;
    for (int w = 0; w < m->count / WARP; w++) {
        m->warps[w].arrived = 0;
        m->warps[w].runnable = ALL_LANES;
    }
    sw_shared_memory_poison(&m->shared);
    sw_products_begin(&m->products, sw_shared_memory_find(&m->shared, &dynamic_key), m->dynamic_bytes);
}

/* Every warp runs as far as it can before the next does, so that warps are as far apart as barriers let them be. */
static bool run_warps(struct machine *m) {
    bool any = false;
    for (int i = 0; i < m->count / WARP && !m->failed; i++) {
        const int w = m->warp_order[i];
        if (m->warps[w].runnable == 0)
            continue;
        switch_to_turn(m, m->scheduler, w, __builtin_ctz(m->warps[w].runnable));
        any = true;
    }
    return any && !m->failed;
}

static int count_in(const struct machine *m, enum state state) {
    int count = 0;
    for (int i = 0; i < m->count; i++)
        count += m->threads[i].state == state;
    return count;
}

static void run_block(struct machine *m, struct sw_emulation_index block) {
    begin_block(m, block);
    while (run_warps(m))
        continue;
    if (!m->failed && count_in(m, ENDED) < m->count)
        record_error(m,
                     "of %d threads of block %u %u %u, %d wait at the barrier of line %d, %d for their warp, %d ended",
                     m->count, block.x, block.y, block.z, count_in(m, AT_BARRIER), m->barrier_line,
                     count_in(m, AT_EXCHANGE), count_in(m, ENDED));
    if (!sw_shared_memory_is_intact(&m->shared))
        record_error(m, "a block wrote beyond its shared memory");
    for (int i = 0; i < m->count && !m->failed; i++) {
        if (m->threads[i].copies.count > 0)
            record_error(m, "a thread ended with %d copies that it did not wait for", m->threads[i].copies.count);
        else if (m->threads[i].products.count > 0)
            record_error(m, "a thread ended with %d products that it did not wait for", m->threads[i].products.count);
    }
    const char *problem = m->failed ? NULL : sw_products_end(&m->products, m->count / WARP);
    if (problem != NULL)
        record_error(m, "%s", problem);
}

static bool check_launch(struct machine *m, struct sw_emulation_index grid, struct sw_emulation_index block,
                         size_t dynamic_bytes) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > MOST_THREADS || threads % WARP != 0)
        record_error(m, "a block of %u x %u x %u threads", block.x, block.y, block.z);
    else if (grid.x == 0 || grid.x > INT32_MAX || grid.y == 0 || grid.y > MOST_GRID_YZ || grid.z == 0 ||
             grid.z > MOST_GRID_YZ)
        record_error(m, "a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
    else if (dynamic_bytes > atomic_load(&most_shared))
        record_error(m, "%zu bytes of shared memory", dynamic_bytes);
    return !m->failed;
}

static void run_blocks(struct machine *m, struct sw_emulation_index grid) {
    for (unsigned z = 0; z < grid.z && !m->failed; z++) {
        for (unsigned y = 0; y < grid.y && !m->failed; y++) {
            for (unsigned x = 0; x < grid.x && !m->failed; x++)
                run_block(m, (struct sw_emulation_index){x, y, z});
        }
    }
}

void sw_emulation_launch(const char *kernel, struct sw_emulation_index grid, struct sw_emulation_index block,
                         size_t dynamic_bytes, void (*body)(void *arguments), void *arguments) {
    struct machine *m = the_machine();
    m->kernel = kernel;
    m->failed = false;
    if (!check_launch(m, grid, block, dynamic_bytes))
        return;
    m->dynamic_bytes = dynamic_bytes;
    size_t before = atomic_load(&most_given);
    while (dynamic_bytes > before && !atomic_compare_exchange_weak(&most_given, &before, dynamic_bytes))
        continue;
    m->body = body;
    m->arguments = arguments;
    m->count = (int)(block.x * block.y * block.z);
    m->position = (struct sw_emulation_position){.block_dim = block, .grid_dim = grid};
    if (sw_shared_memory_add(&m->shared, &dynamic_key, dynamic_bytes, dynamic_bytes) == NULL)
        record_error(m, "no memory for %zu bytes of shared memory", dynamic_bytes);
    if (!m->failed && have_fibers(m))
        run_blocks(m, grid);
    sw_shared_memory_free(&m->shared);
    if (m->failed)
        drop_fibers(m);
}
