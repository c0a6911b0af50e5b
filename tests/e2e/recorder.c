/* A library to be preloaded into the program and its ranks. Appends to the file SW_RECORD_TO each call that changes a
 * file or a name below the folder SW_RECORD_BELOW, with the bytes that are written, so that power_loss.py can build
 * what a failing power may leave of them. A call is recorded when it has returned; a write of io_uring, and any flush,
 * when it begins, with another record when it has ended well. Requests of io_uring have completed when their submission
 * returns: a request's end is then recorded before anything that follows from it. */
/* The C library then has each call under both of its names, as the program may use either. */
#undef _FILE_OFFSET_BITS
#include "tests/e2e/open_mode.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST_RINGS = 64, MOST_FILES = 64, MOST_REQUESTS = 512, PATHS_CHARS = 2 * PATH_MAX };
#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

/* Little-endian, like power_loss.py's; the payload follows. */
struct record {
    uint32_t kind, payload_bytes;
    uint64_t call;   /* of a beginning and its end; 0: the call is over */
    uint64_t file;   /* inode */
    uint64_t offset; /* or the size that a file gets */
};

static int log_file(void) {
    static atomic_int opened = -1;
    const char *path = getenv("SW_RECORD_TO");
    if (atomic_load(&opened) < 0 && path != NULL)
        atomic_store(&opened, REAL(open)(path, O_WRONLY | O_APPEND | O_CLOEXEC));
    return atomic_load(&opened);
}

/* One call, so that the records of all processes follow each other whole. */
static void put(struct record record, const void *payload, size_t bytes) {
    record.payload_bytes = (uint32_t)bytes;
    struct iovec parts[] = {{&record, sizeof record}, {(void *)(uintptr_t)payload, bytes}};
    if (writev(log_file(), parts, 2) != (ssize_t)(sizeof record + bytes))
        abort();
}

static uint64_t new_call(void) {
    static atomic_uint count;
    return (uint64_t)getpid() << 32 | (atomic_fetch_add(&count, 1) + 1);
}

static bool is_below(const char *path) {
    const char *root = getenv("SW_RECORD_BELOW");
    const size_t chars = root != NULL ? strlen(root) : 0;
    return chars > 0 && log_file() >= 0 && strncmp(path, root, chars) == 0 && path[chars] == '/';
}

/* The path of a name, whether the folder is known by its descriptor or by its name. */
static bool find_path(int folder, const char *name, char out[PATH_MAX]) {
    char link[64];
    ssize_t chars = 0;
    if (name[0] != '/') {
        if (folder == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        chars = readlink(link, out, PATH_MAX - 2);
        if (chars < 0)
            return false;
        out[chars++] = '/';
    }
    snprintf(out + chars, (size_t)(PATH_MAX - chars), "%s", name);
    return is_below(out);
}

/* The inode of an open file or folder below the root; 0: it is elsewhere. */
static uint64_t inode_of(int fd) {
    char link[64], path[PATH_MAX];
    struct stat info;
    const int error = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t chars = readlink(link, path, sizeof path - 1);
    const bool known = chars > 0 && (path[chars] = '\0', is_below(path)) && fstat(fd, &info) == 0;
    errno = error;
    return known ? info.st_ino : 0;
}

static void put_name(char kind, uint64_t file, const char *path) {
    put((struct record){.kind = (uint32_t)kind, .file = file}, path, strlen(path));
}

static int open_and_record(int (*real)(int, const char *, int, ...), int folder, const char *path, int flags,
                           mode_t mode) {
    char whole[PATH_MAX];
    struct stat info;
    const bool ours = (flags & (O_CREAT | O_TRUNC)) != 0 && find_path(folder, path, whole);
    const bool is_new = ours && lstat(whole, &info) != 0;
    const int fd = real(folder, path, flags, mode);
    const uint64_t file = ours && fd >= 0 ? inode_of(fd) : 0;
    if (file != 0 && is_new)
        put_name('c', file, whole);
    else if (file != 0 && (flags & O_TRUNC) != 0)
        put((struct record){.kind = 't', .file = file}, NULL, 0);
    return fd;
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name,bugprone-macro-parentheses): the C library's headers
 * have other names, and a name that is declared takes no parentheses. */
int open(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return open_and_record(REAL(openat), AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return open_and_record(REAL(openat64), AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return open_and_record(REAL(openat), folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return open_and_record(REAL(openat64), folder, path, flags, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    char whole[PATH_MAX];
    struct stat info;
    const int result = REAL(mkdirat)(folder, path, mode);
    if (result == 0 && find_path(folder, path, whole) && lstat(whole, &info) == 0)
        put_name('m', info.st_ino, whole);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

static int record_removal(char kind, int result, int folder, const char *name) {
    char whole[PATH_MAX];
    if (result == 0 && find_path(folder, name, whole))
        put_name(kind, 0, whole);
    return result;
}

int rmdir(const char *path) {
    return record_removal('d', REAL(rmdir)(path), AT_FDCWD, path);
}

int unlink(const char *path) {
    return record_removal('u', REAL(unlink)(path), AT_FDCWD, path);
}

int unlinkat(int folder, const char *name, int flags) {
    return record_removal((flags & AT_REMOVEDIR) != 0 ? 'd' : 'u', REAL(unlinkat)(folder, name, flags), folder, name);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    char paths[PATHS_CHARS];
    const int result = REAL(renameat)(from_folder, from, to_folder, to);
    if (result != 0 || !find_path(from_folder, from, paths))
        return result;
    const size_t chars = strlen(paths) + 1;
    if (find_path(to_folder, to, paths + chars))
        put((struct record){.kind = 'r'}, paths, chars + strlen(paths + chars));
    return result;
}

int rename(const char *from, const char *to) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    const ssize_t done = REAL(write)(fd, bytes, count);
    const uint64_t file = done > 0 ? inode_of(fd) : 0;
    if (file != 0)
        put((struct record){.kind = 'w', .file = file, .offset = (uint64_t)(lseek(fd, 0, SEEK_CUR) - done)}, bytes,
            (size_t)done);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    const ssize_t done = REAL(pwrite64)(fd, bytes, count, offset);
    const uint64_t file = done > 0 ? inode_of(fd) : 0;
    if (file != 0)
        put((struct record){.kind = 'w', .file = file, .offset = (uint64_t)offset}, bytes, (size_t)done);
    return done;
}

static int record_size(char kind, int result, int fd, uint64_t size) {
    const uint64_t file = result == 0 ? inode_of(fd) : 0;
    if (file != 0)
        put((struct record){.kind = (uint32_t)kind, .file = file, .offset = size}, NULL, 0);
    return result;
}

int ftruncate(int fd, off_t size) {
    return record_size('t', REAL(ftruncate)(fd, size), fd, (uint64_t)size);
}

int ftruncate64(int fd, off64_t size) {
    return record_size('t', REAL(ftruncate64)(fd, size), fd, (uint64_t)size);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    return record_size('a', REAL(fallocate64)(fd, mode, offset, size), fd, (uint64_t)(offset + size));
}

static int flush_and_record(int (*real)(int), int fd) {
    const uint64_t file = inode_of(fd), call = new_call();
    if (file != 0)
        put((struct record){.kind = 'f', .file = file, .call = call}, NULL, 0);
    const int result = real(fd);
    if (file != 0 && result == 0)
        put((struct record){.kind = 'e', .call = call}, NULL, 0);
    return result;
}

int fsync(int fd) {
    return flush_and_record(REAL(fsync), fd);
}

int fdatasync(int fildes) {
    return flush_and_record(REAL(fdatasync), fildes);
}

struct request {
    uint64_t call, data; /* of the record, and of the completion */
    int expected;        /* the result of success */
};

/* A ring with its registered files. */
static struct ring {
    const struct io_uring *is;
    uint64_t file[MOST_FILES];
    unsigned submitted; /* in all, as the kernel counts completions */
} rings[MOST_RINGS];
static pthread_mutex_t rings_lock = PTHREAD_MUTEX_INITIALIZER;

static struct ring *find_ring(const struct io_uring *is, bool make) {
    struct ring *found = NULL;
    pthread_mutex_lock(&rings_lock);
    for (int i = 0; i < MOST_RINGS && found == NULL; i++)
        found = rings[i].is == is ? &rings[i] : NULL;
    for (int i = 0; make && i < MOST_RINGS && found == NULL; i++)
        found = rings[i].is == NULL ? &rings[i] : NULL;
    if (make && found == NULL)
        abort();
    if (make)
        *found = (struct ring){.is = is};
    pthread_mutex_unlock(&rings_lock);
    return found;
}

int io_uring_register_files(struct io_uring *is, const int *files, unsigned count) {
    struct ring *ring = find_ring(is, true);
    for (unsigned i = 0; i < count && i < MOST_FILES; i++)
        ring->file[i] = inode_of(files[i]);
    return REAL(io_uring_register_files)(is, files, count);
}

void io_uring_queue_exit(struct io_uring *is) {
    struct ring *ring = find_ring(is, false);
    if (ring != NULL) {
        pthread_mutex_lock(&rings_lock);
        ring->is = NULL;
        pthread_mutex_unlock(&rings_lock);
    }
    REAL(io_uring_queue_exit)(is);
}

static int record_request(const struct ring *ring, const struct io_uring_sqe *request, struct request *out) {
    const bool writes = request->opcode == IORING_OP_WRITE || request->opcode == IORING_OP_WRITE_FIXED;
    const uint64_t file = ring->file[request->fd];
    if (file == 0 || (!writes && request->opcode != IORING_OP_FSYNC))
        return 0;
    *out = (struct request){.call = new_call(), .data = request->user_data, .expected = writes ? (int)request->len : 0};
    const struct record record = {.kind = writes ? 'w' : 'f', .file = file, .call = out->call, .offset = request->off};
    put(record, (const void *)(uintptr_t)request->addr, writes ? request->len : 0);
    return 1;
}

static void record_end(const struct io_uring_cqe *completion, const struct request *requests, int count) {
    for (int i = 0; i < count; i++)
        if (requests[i].data == completion->user_data && requests[i].expected == completion->res)
            put((struct record){.kind = 'e', .call = requests[i].call}, NULL, 0);
}

static int submit_and_record(struct io_uring *is, unsigned wait_nr) {
    struct ring *ring = find_ring(is, false);
    struct request requests[MOST_REQUESTS];
    int count = 0;
    if (ring == NULL)
        return REAL(io_uring_submit_and_wait)(is, wait_nr);
    const struct io_uring_sq *queue = &is->sq;
    const unsigned begin = queue->sqe_head, put_now = queue->sqe_tail - begin, seen = *is->cq.ktail;
    for (unsigned i = 0; i < put_now && count < MOST_REQUESTS; i++)
        count += record_request(ring, &queue->sqes[(begin + i) & *queue->kring_mask], &requests[count]);
    ring->submitted += put_now;
    int result;
    do
        result = REAL(io_uring_submit_and_wait)(is, ring->submitted - *is->cq.khead);
    while (result == -EINTR || result == -EAGAIN ||
           (result >= 0 && __atomic_load_n(is->cq.ktail, __ATOMIC_ACQUIRE) != ring->submitted));
    for (unsigned at = seen; result >= 0 && at != ring->submitted; at++)
        record_end(&is->cq.cqes[at & *is->cq.kring_mask], requests, count);
    return result >= 0 ? (int)put_now : result;
}

int io_uring_submit(struct io_uring *is) {
    return submit_and_record(is, 0);
}

int io_uring_submit_and_wait(struct io_uring *is, unsigned wait_nr) {
    return submit_and_record(is, wait_nr);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name,bugprone-macro-parentheses) */
