/* A library to be preloaded into the program: counts the calls of each kind that the program makes of the system, and
 * has one of them fail, or all from one on. Calls of libraries for themselves do not count, but for memory that is
 * taken by those which the program hands its own errors: a JSON value without memory is the program's matter.
 *
 * SW_FAULTS names a file for the report, which all processes of a command share. SW_FAULT=KIND:N:ERROR[:on] has call N
 * of a kind, counted from 1, fail with an errno; `on`: each later one, too. SW_FAULT_CHAINS names a file that gets the
 * callers of each call. */
#undef _FILE_OFFSET_BITS
#include "tests/e2e/callers.h"
#include "tests/e2e/open_mode.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum kind { MEMORY, MAP, OPEN, READ, WRITE, SIZE, FLUSH, NAME, REMOVE, RING, DRIVE, THREAD, KINDS };
static const char *const kind_names[KINDS] = {"memory", "map",  "open",   "read", "write", "size",
                                              "flush",  "name", "remove", "ring", "drive", "thread"};
enum { NO_FILE = 0x7fff, WORD_CHARS = 32, MOST_PLACES = 16384 };
#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

/* The file SW_FAULTS; faults.py reads it. */
struct report {
    _Atomic uint64_t calls[KINDS];
    _Atomic uint64_t failed;
    char what[WORD_CHARS];              /* the last call that failed */
    uint64_t address[MOST_FRAMES];      /* its callers, as offsets in the program; 0 elsewhere */
    uint32_t place[KINDS][MOST_PLACES]; /* of each call, a hash of its callers; those beyond are not told */
};

/* An entry of the file SW_FAULT_CHAINS. */
struct chain {
    uint64_t kind, number;
    uint64_t address[MOST_FRAMES]; /* as in struct report */
};

static int chains = -1; /* that file; -1: it is not asked for */
static struct report *report;
static struct report *counted; /* the report of main and what follows */
static enum kind failing = KINDS;
static uint64_t first, last;
static int failing_error;
/* Looking at the stack, or calling the real thing, must not count itself. */
static _Thread_local bool inside;

static bool counts(enum kind kind, const struct object *object) {
    static const char *const ours[] = {"/libjansson", "/libzstd", "/libz.", "/libyaml", "/libpcre2", "/libutf8proc"};
    bool found = object->name[0] == '\0';
    for (size_t i = 0; kind == MEMORY && i < sizeof ours / sizeof ours[0]; i++)
        found |= strstr(object->name, ours[i]) != NULL;
    return found;
}

static void tell(const char *what, const uintptr_t *address, int frames) {
    snprintf(report->what, sizeof report->what, "%s", what);
    for (int i = 0; i < MOST_FRAMES; i++)
        report->address[i] = i < frames ? callers_offset(address[i]) : 0;
}

static void write_chain(enum kind kind, uint64_t number, const uintptr_t *address, int frames) {
    struct chain chain = {.kind = kind, .number = number};
    for (int i = 0; i < frames; i++)
        chain.address[i] = callers_offset(address[i]);
    if (syscall(SYS_write, chains, &chain, sizeof chain) != sizeof chain)
        abort();
}

static uint32_t hash_of(const uintptr_t *address, int frames) {
    uint64_t hash = 0;
    for (int i = 0; i < frames; i++)
        hash = (hash ^ callers_offset(address[i])) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash >> 32);
}

/* Counts a call, and tells whether it is to fail, with its errno set. */
static bool fails(enum kind kind, const char *what) {
    uintptr_t address[MOST_FRAMES];
    const struct object *object;
    if (report == NULL || inside)
        return false;
    inside = true;
    const int error = errno, frames = callers_find(address, &object);
    bool fail = false;
    if (frames > 0 && counts(kind, object)) {
        const uint64_t number = atomic_fetch_add(&report->calls[kind], 1) + 1;
        fail = kind == failing && number >= first && number <= last;
        if (number <= MOST_PLACES)
            report->place[kind][number - 1] = hash_of(address, frames);
        if (chains >= 0)
            write_chain(kind, number, address, frames);
    }
    if (fail) {
        atomic_fetch_add(&report->failed, 1);
        tell(what, address, frames);
    }
    inside = false;
    errno = fail ? failing_error : error;
    return fail;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SW_FAULTS"), *fault = getenv("SW_FAULT"), *callers = getenv("SW_FAULT_CHAINS");
    char kind[WORD_CHARS] = "", on[WORD_CHARS] = "";
    inside = true;
    callers_begin();
    chains = callers == NULL ? -1 : open(callers, O_WRONLY | O_APPEND | O_CLOEXEC);
    const int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fault != NULL && sscanf(fault, "%31[a-z]:%lu:%d:%31s", kind, &first, &failing_error, on) >= 3)
        last = on[0] != '\0' ? UINT64_MAX : first;
    for (int i = 0; i < KINDS; i++)
        failing = strcmp(kind, kind_names[i]) == 0 ? (enum kind)i : failing;
    void *at = fd < 0 ? MAP_FAILED
                      : (void *)syscall(SYS_mmap, NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    inside = false;
    counted = at == MAP_FAILED ? NULL : at;
}

static int (*main_of_program)(int argc, char **argv, char **environment);

static int begin_counting(int argc, char **argv, char **environment) {
    report = counted;
    return main_of_program(argc, argv, environment);
}

/* Stands in front of the C library's start of a program: no call before main fails. The CUDA runtime, which registers
 * its kernels there, would crash. */
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end); /* NOLINT(bugprone-reserved-identifier) */
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end) { /* NOLINT(bugprone-reserved-identifier) */
    main_of_program = main;
    return REAL(__libc_start_main)(begin_counting, argc, argv, init, fini, rtld_fini, stack_end);
}

/* The C library's own, which this library stands in front of. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t nmemb, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
/* NOLINTEND(bugprone-reserved-identifier) */

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name,bugprone-macro-parentheses): the C library's headers
 * have other names, and a name that is declared takes no parentheses. */
void *malloc(size_t size) {
    return fails(MEMORY, "malloc") ? NULL : __libc_malloc(size);
}

void *calloc(size_t nmemb, size_t size) {
    return fails(MEMORY, "calloc") ? NULL : __libc_calloc(nmemb, size);
}

void *realloc(void *ptr, size_t size) {
    return fails(MEMORY, "realloc") ? NULL : __libc_realloc(ptr, size);
}

void *reallocarray(void *ptr, size_t nmemb, size_t size) {
    size_t bytes;
    if (fails(MEMORY, "reallocarray"))
        return NULL;
    if (__builtin_mul_overflow(nmemb, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(ptr, bytes);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return fails(MEMORY, "aligned_alloc") ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **memptr, size_t alignment, size_t size) {
    void *got = fails(MEMORY, "posix_memalign") ? NULL : __libc_memalign(alignment, size);
    if (got == NULL)
        return ENOMEM;
    *memptr = got;
    return 0;
}

void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t offset) {
    return fails(MAP, "mmap") ? MAP_FAILED : (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, offset);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return fails(OPEN, "open") ? -1 : REAL(openat64)(AT_FDCWD, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return fails(OPEN, "openat") ? -1 : REAL(openat64)(folder, path, flags, mode);
}

/* Calls of one shape: what they return where they fail, their result, name and arguments. */
#define CALL(kind, failed, type, name, parameters, ...)                                                                \
    type name parameters {                                                                                             \
        if (fails(kind, #name))                                                                                        \
            return failed;                                                                                             \
        return REAL(name)(__VA_ARGS__);                                                                                \
    }
#define CALL_OF_RING(kind, name, parameters, ...)                                                                      \
    int name parameters {                                                                                              \
        return fails(kind, #name) ? -errno : REAL(name)(__VA_ARGS__);                                                  \
    }

CALL(OPEN, NULL, FILE *, fopen64, (const char *path, const char *mode), path, mode)
CALL(OPEN, NULL, DIR *, opendir, (const char *path), path)
CALL(OPEN, -1, int, memfd_create, (const char *name, unsigned flags), name, flags)
CALL(OPEN, -1, int, mkostemp64, (char *path, int flags), path, flags)
CALL(READ, -1, ssize_t, read, (int fd, void *bytes, size_t count), fd, bytes, count)
CALL(READ, -1, ssize_t, pread64, (int fd, void *bytes, size_t count, off64_t offset), fd, bytes, count, offset)
CALL(WRITE, -1, ssize_t, write, (int fd, const void *bytes, size_t count), fd, bytes, count)
CALL(WRITE, -1, ssize_t, pwrite64, (int fd, const void *bytes, size_t count, off64_t offset), fd, bytes, count, offset)
CALL(SIZE, -1, int, ftruncate64, (int fd, off64_t size), fd, size)
CALL(SIZE, -1, int, fallocate64, (int fd, int mode, off64_t offset, off64_t size), fd, mode, offset, size)
CALL(FLUSH, -1, int, fsync, (int fd), fd)
CALL(FLUSH, -1, int, fdatasync, (int fd), fd)
CALL(FLUSH, -1, int, syncfs, (int fd), fd)
CALL(NAME, -1, int, rename, (const char *from, const char *to), from, to)
CALL(NAME, -1, int, renameat, (int folder, const char *from, int other, const char *to), folder, from, other, to)
CALL(NAME, -1, int, linkat, (int folder, const char *from, int other, const char *to, int flags), folder, from, other,
     to, flags)
CALL(NAME, -1, int, mkdirat, (int folder, const char *path, mode_t mode), folder, path, mode)
CALL(NAME, NULL, char *, mkdtemp, (char *path), path)
CALL(REMOVE, -1, int, unlink, (const char *path), path)
CALL(REMOVE, -1, int, unlinkat, (int folder, const char *name, int flags), folder, name, flags)
CALL(THREAD, EAGAIN, int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *argument), thread,
     attributes, routine, argument)
CALL_OF_RING(RING, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags), entries, ring, flags)
CALL_OF_RING(RING, io_uring_register_buffers, (struct io_uring * ring, const struct iovec *buffers, unsigned count),
             ring, buffers, count)
CALL_OF_RING(RING, io_uring_register_files, (struct io_uring * ring, const int *files, unsigned count), ring, files,
             count)

/* A stream that is flushed or closed writes by itself, within the C library. */
static bool stream_fails(FILE *stream, const char *what) {
    const int fd = stream == NULL ? -1 : fileno(stream);
    const int flags = fd < 0 ? O_RDONLY : fcntl(fd, F_GETFL);
    return (flags & O_ACCMODE) != O_RDONLY && fails(WRITE, what);
}

int fflush(FILE *stream) {
    return stream_fails(stream, "fflush") ? EOF : REAL(fflush)(stream);
}

int fclose(FILE *stream) {
    const bool fail = stream_fails(stream, "fclose");
    const int result = REAL(fclose)(stream);
    errno = fail ? failing_error : errno;
    return fail ? EOF : result;
}

/* A request that is to fail goes to a file that the ring does not have. */
static bool submission_fails(struct io_uring *ring, const char *what) {
    struct io_uring_sq *queue = &ring->sq;
    for (unsigned at = queue->sqe_head; at != queue->sqe_tail; at++)
        if (fails(DRIVE, "request"))
            queue->sqes[at & *queue->kring_mask].fd = NO_FILE;
    return fails(RING, what);
}

int io_uring_submit(struct io_uring *ring) {
    return submission_fails(ring, "io_uring_submit") ? -errno : REAL(io_uring_submit)(ring);
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr) {
    return submission_fails(ring, "io_uring_submit_and_wait") ? -errno : REAL(io_uring_submit_and_wait)(ring, wait_nr);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name,bugprone-macro-parentheses) */
