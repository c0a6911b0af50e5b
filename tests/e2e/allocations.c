/* A library to be preloaded into the program: counts the calls that allocate memory, by who made them, while the
 * program writes the lines of some steps to its log. */
#include "tests/e2e/callers.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The C library's own, which this library stands in front of. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t nmemb, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
/* NOLINTEND(bugprone-reserved-identifier) */

enum { MOST_CALLERS = 1024 };

struct caller {
    const char *what;
    const struct object *object;
    uintptr_t offset; /* of the return address in the program; libraries are counted whole */
    int64_t calls;
};

/* Global, because what is replaced has no context to pass. */
static struct {
    pthread_mutex_t mutex;
    struct caller caller[MOST_CALLERS];
    int caller_count;
    int64_t first_step, last_step;
    int64_t program_calls_before; /* the first step's line */
    bool known, counting, over, lost;
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Looking at the stack must not count itself. */
static _Thread_local bool inside;

static void add_call(const char *what, const struct object *object, uintptr_t address) {
    const uintptr_t offset = object->name[0] == '\0' ? address - object->base : 0;
    int i = 0;
    while (i < state.caller_count &&
           (state.caller[i].what != what || state.caller[i].object != object || state.caller[i].offset != offset))
        i++;
    if (i == MOST_CALLERS) {
        state.lost = true;
        return;
    }
    if (i == state.caller_count)
        state.caller[state.caller_count++] = (struct caller){.what = what, .object = object, .offset = offset};
    state.caller[i].calls++;
}

static void note(const char *what) {
    if (inside || !__atomic_load_n(&state.known, __ATOMIC_ACQUIRE) || __atomic_load_n(&state.over, __ATOMIC_ACQUIRE))
        return;
    uintptr_t address[MOST_FRAMES];
    const struct object *object;
    inside = true;
    const bool found = callers_find(address, &object) > 0;
    pthread_mutex_lock(&state.mutex);
    if (found && state.counting)
        add_call(what, object, address[0]);
    else if (found)
        state.program_calls_before += object->name[0] == '\0';
    pthread_mutex_unlock(&state.mutex);
    inside = false;
}

void *malloc(size_t size) {
    note("malloc");
    return __libc_malloc(size);
}

void *calloc(size_t nmemb, size_t size) {
    note("calloc");
    return __libc_calloc(nmemb, size);
}

void *realloc(void *ptr, size_t size) {
    note("realloc");
    return __libc_realloc(ptr, size);
}

void *reallocarray(void *ptr, size_t nmemb, size_t size) {
    size_t bytes;
    note("reallocarray");
    if (__builtin_mul_overflow(nmemb, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(ptr, bytes);
}

void *memalign(size_t alignment, size_t size) {
    note("memalign");
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    note("aligned_alloc");
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **memptr, size_t alignment, size_t size) {
    note("posix_memalign");
    void *got = __libc_memalign(alignment, size);
    if (got == NULL)
        return ENOMEM;
    *memptr = got;
    return 0;
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset) {
    note("mmap");
    return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, offset);
}

/* The step of a line of the log, or -1. */
static int64_t step_of(const char *text, size_t bytes) {
    static const char head[] = "{\"step\":";
    return bytes > sizeof head && memcmp(text, head, sizeof head - 1) == 0 ? strtoll(text + sizeof head - 1, NULL, 10)
                                                                           : -1;
}

ssize_t write(int fd, const void *buf, size_t n) {
    const ssize_t put = syscall(SYS_write, fd, buf, n);
    const int64_t step = state.known ? step_of(buf, n) : -1;
    if (step == state.first_step) {
        pthread_mutex_lock(&state.mutex);
        state.counting = true;
        pthread_mutex_unlock(&state.mutex);
    } else if (step == state.last_step) {
        __atomic_store_n(&state.over, true, __ATOMIC_RELEASE);
    }
    return put;
}

static int64_t number(const char *name) {
    const char *text = getenv(name);
    return text == NULL ? -1 : strtoll(text, NULL, 10);
}

__attribute__((constructor)) static void begin(void) {
    inside = true;
    callers_begin();
    state.first_step = number("SW_ALLOCATIONS_FIRST");
    state.last_step = number("SW_ALLOCATIONS_LAST");
    inside = false;
    __atomic_store_n(&state.known, true, __ATOMIC_RELEASE);
}

/* A line for each caller: calls, what, library or program and offset. */
__attribute__((destructor)) static void end(void) {
    const char *path = getenv("SW_ALLOCATIONS");
    inside = true;
    FILE *file = path == NULL ? NULL : fopen(path, "we");
    if (file == NULL)
        return;
    fprintf(file, "before %" PRId64 " window %d lost %d\n", state.program_calls_before, state.counting && state.over,
            state.lost);
    for (int i = 0; i < state.caller_count; i++) {
        const struct caller *caller = &state.caller[i];
        const bool program = caller->object->name[0] == '\0';
        fprintf(file, "%" PRId64 " %s %s 0x%" PRIxPTR "\n", caller->calls, caller->what,
                program ? "program" : caller->object->name, caller->offset);
    }
    fclose(file);
}
