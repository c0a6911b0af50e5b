#include "tests/equipment/cuda/fiber.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__has_feature)
#define HAS_FEATURE(feature) __has_feature(feature)
#else
#define HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HAS_FEATURE(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#define TELLS_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) || HAS_FEATURE(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#define TELLS_TSAN 1
#endif

/* Sanitizers make frames several times larger. Stacks of fibers begin at different lines of a page: the first cache
 * keeps few lines that lie whole pages apart, and the threads of a warp use the same depth of their stacks. */
enum { STACK_BYTES = 256 * 1024, GUARD_BYTES = 4096, COLORS = 32, COLOR_BYTES = 128 };

struct sw_fiber {
    void *mapping; /* the guard page and the stack; NULL for a thread's own stack */
    const void *stack_bottom;
    size_t stack_bytes;
    void (*entry)(void *argument);
    void *argument;
    struct sw_fiber *switched_from;
    void *stack_pointer;
    ucontext_t context;
    void *asan_fake_stack;
    void *tsan_fiber;
};

static _Thread_local struct sw_fiber *entering;

/* Every fiber calls this first after a switch to it. */
static void arrive(struct sw_fiber *self) {
    (void)self;
#ifdef TELLS_ASAN
    struct sw_fiber *from = self->switched_from;
    __sanitizer_finish_switch_fiber(self->asan_fake_stack, &from->stack_bottom, &from->stack_bytes);
#endif
}

static void fiber_main(void) {
    struct sw_fiber *self = entering;
    arrive(self);
    self->entry(self->argument);
    assert(false && "the entry of a fiber does not return");
}

#ifdef __x86_64__
/* Pushes what a function must preserve, exchanges the stacks, pops and returns on the other one. The system's
 * swapcontext would make a system call each time. */
void sw_fiber_exchange(void **save_stack_pointer, void *stack_pointer);
__asm__(".text\n"
        ".globl sw_fiber_exchange\n"
        ".type sw_fiber_exchange, @function\n"
        "sw_fiber_exchange:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sw_fiber_exchange, . - sw_fiber_exchange\n");

static void prepare_stack(struct sw_fiber *fiber, char *stack) {
    enum { SAVED_REGISTERS = 6, WORDS_ABOVE = 2 }; /* the stack is 8 modulo 16 where a function begins */
    static atomic_uint opened;
    const size_t color = atomic_fetch_add(&opened, 1) % COLORS * (size_t)COLOR_BYTES;
    void **top = (void **)(void *)(stack + STACK_BYTES - color) - WORDS_ABOVE;
    *top = (void *)fiber_main;
    fiber->stack_pointer = top - SAVED_REGISTERS;
}

static void exchange(struct sw_fiber *from, struct sw_fiber *to) {
    sw_fiber_exchange(&from->stack_pointer, to->stack_pointer);
}
#else
static void prepare_stack(struct sw_fiber *fiber, char *stack) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber->context, fiber_main, 0);
}

static void exchange(struct sw_fiber *from, struct sw_fiber *to) {
    swapcontext(&from->context, &to->context);
}
#endif

struct sw_fiber *sw_fiber_open_current(void) {
    struct sw_fiber *fiber = calloc(1, sizeof *fiber);
#ifdef TELLS_TSAN
    if (fiber != NULL)
        fiber->tsan_fiber = __tsan_get_current_fiber();
#endif
    return fiber;
}

struct sw_fiber *sw_fiber_open(void (*entry)(void *argument), void *argument) {
    struct sw_fiber *fiber = calloc(1, sizeof *fiber);
    if (fiber == NULL)
        return NULL;
    char *mapping = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED || mprotect(mapping, GUARD_BYTES, PROT_NONE) != 0) {
        free(fiber);
        return NULL;
    }
    fiber->mapping = mapping;
    fiber->stack_bottom = mapping + GUARD_BYTES;
    fiber->stack_bytes = STACK_BYTES;
    fiber->entry = entry;
    fiber->argument = argument;
    prepare_stack(fiber, mapping + GUARD_BYTES);
#ifdef TELLS_TSAN
    fiber->tsan_fiber = __tsan_create_fiber(0);
#endif
    return fiber;
}

void sw_fiber_close(struct sw_fiber *fiber) {
    if (fiber == NULL)
        return;
    if (fiber->mapping != NULL) {
#ifdef TELLS_TSAN
        __tsan_destroy_fiber(fiber->tsan_fiber);
#endif
        munmap(fiber->mapping, GUARD_BYTES + STACK_BYTES);
    }
    free(fiber);
}

void sw_fiber_switch(struct sw_fiber *from, struct sw_fiber *to) {
    to->switched_from = from;
    entering = to;
#ifdef TELLS_ASAN
    __sanitizer_start_switch_fiber(&from->asan_fake_stack, to->stack_bottom, to->stack_bytes);
#endif
#ifdef TELLS_TSAN
    __tsan_switch_to_fiber(to->tsan_fiber, 0);
#endif
    exchange(from, to);
    arrive(from);
}
