/* A library to be preloaded into the program in end-to-end tests: watches that bytes are flushed before anything names
 * them. A file is flushed before it is renamed or linked, and so is all that a folder holds before the folder is
 * renamed; the folder of the new name is flushed before the program ends well; and all data of a store is flushed
 * before a superblock or a mark that tells of it is written. Each violation is a line that is appended to the file
 * SW_WATCHED. */
#undef _FILE_OFFSET_BITS
#include "io/store/format.h"
#include "tests/e2e/open_mode.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <liburing.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_NODES = 1 << 12, MOST_RINGS = 256, MOST_FILES = 64, MOST_ON_WAY = 512, LINK_CHARS = 64, LEAST_FD = 200 };
#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

/* A file, a folder or a block device, known by its inode. */
struct node {
    dev_t device; /* with the inode 0: the node is free */
    ino_t inode;
    bool dirty;            /* a file: written outside of rings; a folder: its names changed */
    char *renamed;         /* a folder: a new name in it that was not flushed; NULL: none */
    int64_t low, flushing; /* the lowest offsets that rings wrote and no flush covers, and that a flush is to cover */
    int64_t sealed_bytes;  /* of a store's file; 0: not known to be one */
    uint8_t store_id[SW_FORMAT_ID_BYTES];
};

/* A write or a flush that a ring was given and that has not ended. */
struct request {
    uint64_t tag;      /* the ring's own name of it */
    int64_t offset;    /* of a write */
    struct node *file; /* NULL: the entry is free */
    bool flushes;
};

struct ring {
    const struct io_uring *is;
    struct node *file[MOST_FILES];
    int fd[MOST_FILES];
    struct request on_way[MOST_ON_WAY];
    unsigned seen; /* ends of requests that were looked at */
};

static struct node nodes[MOST_NODES];
static struct ring rings[MOST_RINGS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sigset_t held_back; /* the signals that wait while the lock is held */
static int report = -1;

/* A signal's handler may write, and would wait for ever for a lock that its own thread holds. */
static void enter(sigset_t *before) {
    pthread_sigmask(SIG_BLOCK, &held_back, before);
    pthread_mutex_lock(&lock);
}

static void leave(const sigset_t *before) {
    pthread_mutex_unlock(&lock);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static void violate(const char *what, const char *path, const char *why) {
    char line[2 * PATH_MAX];
    const int chars = snprintf(line, sizeof line, "%s %.2000s %s\n", what, path, why);
    (void)!REAL(write)(report, line, (size_t)chars);
}

static struct node *node_of(const struct stat *info) {
    const uint64_t hash = ((uint64_t)info->st_ino * 31 + info->st_dev) % MOST_NODES;
    for (uint64_t i = 0; i < MOST_NODES; i++) {
        struct node *node = &nodes[(hash + i) % MOST_NODES];
        if (node->inode == 0) {
            node->device = info->st_dev;
            node->inode = info->st_ino;
            node->low = node->flushing = INT64_MAX;
        }
        if (node->inode == info->st_ino && node->device == info->st_dev)
            return node;
    }
    static struct node others; /* beyond the table's end nothing is watched */
    others = (struct node){.low = INT64_MAX, .flushing = INT64_MAX};
    return &others;
}

/* Returns the node of an open file, folder or block device; NULL: it is none, or nothing is watched. */
static struct node *node_at(int fd) {
    struct stat info;
    const int error = errno;
    const bool known = report >= 0 && fstat(fd, &info) == 0 &&
                       (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode) || S_ISBLK(info.st_mode));
    errno = error;
    return known ? node_of(&info) : NULL;
}

/* Returns the node of the folder that holds a name. */
static struct node *parent_of(int folder, const char *name) {
    char path[PATH_MAX];
    struct stat info;
    snprintf(path, sizeof path, "%s", name);
    return fstatat(folder, dirname(path), &info, 0) == 0 ? node_of(&info) : NULL;
}

/* is_new: an earlier file may have had the inode. */
static void note_change(int fd, bool is_new) {
    sigset_t before;
    enter(&before);
    struct node *node = node_at(fd);
    if (node != NULL && is_new)
        *node = (struct node){.device = node->device, .inode = node->inode, .low = INT64_MAX, .flushing = INT64_MAX};
    if (node != NULL)
        node->dirty = true;
    leave(&before);
}

static void note_names(int folder, const char *name, const char *renamed) {
    sigset_t before;
    enter(&before);
    struct node *node = parent_of(folder, name);
    if (node != NULL)
        node->dirty = true;
    if (node != NULL && renamed != NULL)
        node->renamed = strdup(renamed);
    leave(&before);
}

/* A folder's files must all be flushed, and their names. */
static void check_contents(int fd, const char *path) {
    DIR *list = fdopendir(fd);
    struct stat info;
    for (struct dirent *entry = NULL; list != NULL && (entry = readdir(list)) != NULL;)
        if (fstatat(dirfd(list), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
            info.st_size > 0 && (node_of(&info)->dirty || node_of(&info)->low != INT64_MAX))
            violate(entry->d_name, "", "was not flushed before its folder was renamed");
    if (list != NULL && node_at(dirfd(list))->dirty)
        violate(path, "", "was renamed before its names were flushed");
    if (list != NULL)
        closedir(list);
}

static void check_flushed(int folder, const char *name) {
    sigset_t before;
    struct stat info;
    if (report < 0 || fstatat(folder, name, &info, 0) != 0)
        return;
    enter(&before);
    const struct node *node = node_of(&info);
    if (S_ISDIR(info.st_mode))
        check_contents(REAL(openat)(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC), name);
    else if (S_ISREG(info.st_mode) && (node->dirty || node->low != INT64_MAX))
        violate(name, "", "was renamed before it was flushed");
    leave(&before);
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's headers have other names. */
static int open_and_note(int (*real)(int, const char *, int, ...), int folder, const char *path, int flags,
                         mode_t mode) {
    struct stat info;
    const bool makes = report >= 0 && (flags & O_CREAT) != 0;
    const bool is_new = makes && fstatat(folder, path, &info, AT_SYMLINK_NOFOLLOW) != 0;
    const int fd = real(folder, path, flags, mode);
    if (fd >= 0 && (is_new || (report >= 0 && (flags & O_TRUNC) != 0)))
        note_change(fd, is_new);
    if (fd >= 0 && is_new)
        note_names(folder, path, NULL);
    return fd;
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return open_and_note(REAL(openat64), AT_FDCWD, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return open_and_note(REAL(openat64), folder, path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    note_change(fd, false);
    return REAL(write)(fd, bytes, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    note_change(fd, false);
    return REAL(pwrite64)(fd, bytes, count, offset);
}

int ftruncate64(int fd, off64_t size) {
    note_change(fd, false);
    return REAL(ftruncate64)(fd, size);
}

static int flush(int (*real)(int), int fd) {
    sigset_t before;
    enter(&before);
    struct node *node = node_at(fd);
    const bool dirty = node != NULL && node->dirty;
    const int64_t low = node != NULL ? node->low : INT64_MAX;
    if (node != NULL) {
        node->dirty = false;
        node->low = INT64_MAX;
    }
    leave(&before);
    const int result = real(fd);
    enter(&before);
    if (node != NULL && result != 0) {
        node->dirty |= dirty;
        node->low = sw_min_i64(node->low, low);
    } else if (node != NULL) {
        node->renamed = NULL;
    }
    leave(&before);
    return result;
}

int fsync(int fd) {
    return flush(REAL(fsync), fd);
}

int fdatasync(int fildes) {
    return flush(REAL(fdatasync), fildes);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    check_flushed(from_folder, from);
    const int result = REAL(renameat)(from_folder, from, to_folder, to);
    if (result == 0)
        note_names(to_folder, to, to);
    return result;
}

int rename(const char *from, const char *to) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* An open file that lost its name gets it again as it is: what it holds is flushed when a commit says so. */
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    if (strncmp(from, "/proc/self/fd/", strlen("/proc/self/fd/")) != 0)
        check_flushed(from_folder, from);
    const int result = REAL(linkat)(from_folder, from, to_folder, to, flags);
    if (result == 0)
        note_names(to_folder, to, to);
    return result;
}

/* Learns from a file's label whether and which store's it is. */
static void read_label(struct node *node, int fd, const void *written) {
    struct sw_label_header label;
    char link[LINK_CHARS];
    if (written != NULL) {
        memcpy(&label, written, sizeof label);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const int file = REAL(openat)(AT_FDCWD, link, O_RDONLY | O_CLOEXEC);
        const bool whole = file >= 0 && pread(file, &label, sizeof label, 0) == sizeof label;
        if (file >= 0)
            close(file);
        if (!whole)
            return;
    }
    if (memcmp(label.magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) != 0)
        return;
    node->sealed_bytes = sw_from_le64(label.sealed_bytes);
    memcpy(node->store_id, label.store_id, sizeof node->store_id);
}

static void end_request(struct ring *ring, uint64_t tag) {
    for (int i = 0; i < MOST_ON_WAY; i++) {
        struct request *request = &ring->on_way[i];
        if (request->file == NULL || request->tag != tag)
            continue;
        if (request->flushes)
            request->file->flushing = INT64_MAX;
        request->file = NULL;
    }
}

/* Looks at which requests of a ring have ended. Between two calls for it no more end than its queue has room for. */
static void see_ends(struct ring *ring) {
    const struct io_uring_cq *queue = &ring->is->cq;
    const unsigned tail = __atomic_load_n(queue->ktail, __ATOMIC_ACQUIRE);
    for (; ring->seen != tail; ring->seen++)
        end_request(ring, queue->cqes[ring->seen & *queue->kring_mask].user_data);
}

static void begin_request(struct ring *ring, const struct io_uring_sqe *request, struct node *file) {
    for (int i = 0; i < MOST_ON_WAY; i++)
        if (ring->on_way[i].file == NULL) {
            ring->on_way[i] = (struct request){.tag = request->user_data,
                                               .offset = (int64_t)request->off,
                                               .file = file,
                                               .flushes = request->opcode == IORING_OP_FSYNC};
            return;
        }
}

/* A flush covers what was written before it but for what is still on its way. */
static void begin_flush(struct node *node) {
    node->flushing = sw_min_i64(node->flushing, node->low);
    node->low = INT64_MAX;
    node->dirty = false;
    for (int i = 0; i < MOST_RINGS; i++) {
        if (rings[i].is == NULL)
            continue;
        see_ends(&rings[i]);
        for (int j = 0; j < MOST_ON_WAY; j++)
            if (rings[i].on_way[j].file == node && !rings[i].on_way[j].flushes)
                node->low = sw_min_i64(node->low, rings[i].on_way[j].offset);
    }
}

/* Data lies below a store's scratch. */
static void check_store(const struct node *named, const char *what) {
    for (int i = 0; i < MOST_NODES; i++) {
        const struct node *node = &nodes[i];
        if (node->inode != 0 && node->sealed_bytes > 0 &&
            memcmp(node->store_id, named->store_id, sizeof node->store_id) == 0 &&
            sw_min_i64(node->low, node->flushing) < node->sealed_bytes)
            violate("a store's", what, "was written before its data was flushed");
    }
}

static void note_request(struct ring *ring, const struct io_uring_sqe *request) {
    const bool writes = request->opcode == IORING_OP_WRITE || request->opcode == IORING_OP_WRITE_FIXED;
    struct node *node = request->fd < MOST_FILES ? ring->file[request->fd] : NULL;
    if (node == NULL || (!writes && request->opcode != IORING_OP_FSYNC))
        return;
    if (!writes) {
        begin_flush(node);
        begin_request(ring, request, node);
        return;
    }
    const char *bytes = (const char *)(uintptr_t)request->addr;
    const bool is_super = memcmp(bytes, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    const bool is_mark = memcmp(bytes, SW_MARK_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    if (request->off == 0 && memcmp(bytes, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0)
        read_label(node, -1, bytes);
    else if (node->sealed_bytes == 0)
        read_label(node, ring->fd[request->fd], NULL);
    if (is_super || is_mark)
        check_store(node, is_super ? "superblock" : "mark");
}

/* Notes writes after all of a batch are checked, because superblocks of several files are written together. */
static void note_write(struct ring *ring, const struct io_uring_sqe *request) {
    const bool writes = request->opcode == IORING_OP_WRITE || request->opcode == IORING_OP_WRITE_FIXED;
    if (!writes || request->fd >= MOST_FILES || ring->file[request->fd] == NULL)
        return;
    struct node *node = ring->file[request->fd];
    node->low = sw_min_i64(node->low, (int64_t)request->off);
    begin_request(ring, request, node);
}

static struct ring *find_ring(const struct io_uring *is) {
    for (int i = 0; i < MOST_RINGS; i++)
        if (rings[i].is == is)
            return &rings[i];
    return NULL;
}

int io_uring_register_files(struct io_uring *is, const int *files, unsigned count) {
    sigset_t before;
    enter(&before);
    struct ring *ring = report >= 0 ? find_ring(NULL) : NULL;
    if (ring != NULL)
        *ring = (struct ring){.is = is, .seen = *is->cq.ktail};
    for (unsigned i = 0; ring != NULL && i < MOST_FILES; i++) {
        ring->fd[i] = i < count ? files[i] : -1;
        ring->file[i] = i < count ? node_at(files[i]) : NULL;
    }
    leave(&before);
    return REAL(io_uring_register_files)(is, files, count);
}

void io_uring_queue_exit(struct io_uring *is) {
    sigset_t before;
    enter(&before);
    struct ring *ring = find_ring(is);
    if (ring != NULL) {
        see_ends(ring);
        ring->is = NULL;
    }
    leave(&before);
    REAL(io_uring_queue_exit)(is);
}

static void note_batch(const struct io_uring *is) {
    sigset_t before;
    enter(&before);
    struct ring *ring = find_ring(is);
    const struct io_uring_sq *queue = &is->sq;
    if (ring != NULL) {
        see_ends(ring);
        for (unsigned at = queue->sqe_head; at != queue->sqe_tail; at++)
            note_request(ring, &queue->sqes[at & *queue->kring_mask]);
        for (unsigned at = queue->sqe_head; at != queue->sqe_tail; at++)
            note_write(ring, &queue->sqes[at & *queue->kring_mask]);
    }
    leave(&before);
}

int io_uring_submit(struct io_uring *is) {
    note_batch(is);
    return REAL(io_uring_submit)(is);
}

int io_uring_submit_and_wait(struct io_uring *is, unsigned wait_nr) {
    note_batch(is);
    return REAL(io_uring_submit_and_wait)(is, wait_nr);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

/* A name that is gone again needs no flush. */
static void end(int status, void *context) {
    (void)context;
    for (int i = 0; status == 0 && report >= 0 && i < MOST_NODES; i++)
        if (nodes[i].inode != 0 && nodes[i].renamed != NULL && access(nodes[i].renamed, F_OK) == 0)
            violate(nodes[i].renamed, "", "has a new name, which was not flushed before the end");
}

/* Only the program is watched, and not what starts it. */
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SW_WATCHED"), *watched = getenv("SW_PROGRAM");
    struct stat own, program;
    if (path == NULL || watched == NULL || stat("/proc/self/exe", &own) != 0 || stat(watched, &program) != 0 ||
        own.st_ino != program.st_ino || own.st_dev != program.st_dev)
        return;
    sigfillset(&held_back);
    /* Standard streams may be closed, and must stay so. */
    const int fd = REAL(openat)(AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    report = fcntl(fd, F_DUPFD_CLOEXEC, LEAST_FD);
    close(fd);
    on_exit(end, NULL);
}
