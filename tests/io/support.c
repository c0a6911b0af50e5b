#include "tests/io/support.h"

#include "core/rng.h"
#include "core/size.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_CHARS = 512, PATHS = 16, COPY_BYTES = 1 << 20 };

uint64_t test_seed;
static bool in_child;

/* cmocka's way out of a test works in the thread and process that it runs in; elsewhere a failure ends the process. */
static void fail_here(void) {
    fflush(NULL);
    if (in_child)
        _exit(1);
    if (gettid() != getpid())
        abort();
    fail();
}

pid_t fork_child(void) {
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    in_child = in_child || child == 0;
    return child;
}

int run_in_child(void (*function)(void *context), void *context) {
    const pid_t child = fork_child();
    if (child == 0) {
        function(context);
        _exit(0);
    }
    int result;
    CHECK(waitpid(child, &result, 0) == child);
    return WIFEXITED(result) ? WEXITSTATUS(result) : -WTERMSIG(result);
}

void check_true(bool condition, const char *text, const char *file, int line) {
    if (condition)
        return;
    print_message("%s:%d: not true: %s (seed %llu)\n", file, line, text, (unsigned long long)test_seed);
    fail_here();
}

void check_status(sw_status status, sw_status wanted, const char *words, const char *text, const char *file, int line) {
    const char *message = sw_error_message(status);
    if (status == wanted && (wanted == SW_OK || strstr(message, words) != NULL)) {
        sw_error_clear();
        return;
    }
    print_message("%s:%d: %s: %s (%s), wanted %s with \"%s\" (seed %llu)\n", file, line, text, sw_status_name(status),
                  message, sw_status_name(wanted), words, (unsigned long long)test_seed);
    sw_error_clear();
    fail_here();
}

int make_directory(void **state) {
    const char *parent = getenv("TMPDIR");
    char *path = NULL;
    if (asprintf(&path, "%s/spillway-io-XXXXXX", parent != NULL ? parent : ".") < 0)
        return -1;
    test_seed = 0;
    sw_error_clear();
    *state = mkdtemp(path);
    return *state != NULL ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

int remove_directory(void **state) {
    const int result = nftw(*state, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return result;
}

const char *in_directory(const char *directory, const char *name) {
    static char paths[PATHS][PATH_CHARS];
    static int next;
    char *path = paths[next++ % PATHS];
    snprintf(path, PATH_CHARS, "%s/%s", directory, name);
    return path;
}

const char *new_subdirectory(const char *directory, const char *name) {
    const char *path = in_directory(directory, name);
    CHECK(mkdir(path, 0700) == 0);
    return path;
}

int64_t random_below(uint64_t *counter, int64_t limit) {
    return (int64_t)(sw_rng_uniform(test_seed, 0, (*counter)++) * (double)limit);
}

void copy_file(const char *from, const char *to) {
    char *bytes = malloc(COPY_BYTES);
    const int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(bytes != NULL && in >= 0 && out >= 0);
    ssize_t got;
    while ((got = read(in, bytes, COPY_BYTES)) > 0)
        CHECK(write(out, bytes, (size_t)got) == got);
    CHECK(got == 0 && close(in) == 0 && close(out) == 0);
    free(bytes);
}

/* A new file each time: some file systems flush one that is cut short and written again, which takes milliseconds. */
void write_file(const char *path, const void *bytes, int64_t count) {
    unlink(path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && write(fd, bytes, (size_t)count) == count && close(fd) == 0);
}

int64_t file_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? info.st_size : -1;
}

void flip_bit(const char *path, int64_t offset_bytes) {
    unsigned char byte = 0;
    const int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, offset_bytes) == 1);
    byte ^= 0x10;
    CHECK(pwrite(fd, &byte, 1, offset_bytes) == 1 && close(fd) == 0);
}

void overwrite(const char *path, int64_t offset_bytes, int64_t count, unsigned char value) {
    char *bytes = malloc((size_t)count);
    memset(bytes, value, (size_t)count);
    const int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, bytes, (size_t)count, offset_bytes) == count && close(fd) == 0);
    free(bytes);
}

void *io_buffer(int64_t bytes) {
    void *buffer = NULL;
    CHECK(posix_memalign(&buffer, SW_BUFFER_ALIGN_BYTES, (size_t)bytes) == 0);
    memset(buffer, 0, (size_t)bytes);
    return buffer;
}

struct fake_ring {
    struct sw_ring base;
    struct fake_ring_script *script;
    int files[SW_STORE_MAX_FILES];
    struct sw_ring_completion *done;
    int done_count, put_count, depth;
    uint64_t draws;
};

int64_t fake_ring_do(const int *files, const struct sw_ring_request *request) {
    const int fd = files[request->file];
    ssize_t result = 0;
    if (request->op == SW_RING_READ)
        result = pread(fd, request->buf, (size_t)request->bytes, request->offset_bytes);
    else if (request->op == SW_RING_WRITE)
        result = pwrite(fd, request->buf, (size_t)request->bytes, request->offset_bytes);
    return result < 0 ? -errno : result;
}

static void fake_put(struct sw_ring *ring, const struct sw_ring_request *request) {
    struct fake_ring *self = (struct fake_ring *)ring;
    assert_true(self->done_count < self->depth);
    self->script->requests++;
    self->put_count++;
    const int64_t result = self->script->carry_out != NULL ? self->script->carry_out(self->script, self->files, request)
                                                           : fake_ring_do(self->files, request);
    self->done[self->done_count++] = (struct sw_ring_completion){.tag = request->tag, .result = result};
    if (self->done_count > self->script->most_in_flight)
        self->script->most_in_flight = self->done_count;
}

static sw_status fake_submit(struct sw_ring *ring, bool wait) {
    struct fake_ring *self = (struct fake_ring *)ring;
    self->script->batches += self->put_count > 0;
    self->put_count = 0;
    /* A real ring would wait for ever. */
    assert_true(!wait || self->done_count > 0);
    return SW_OK;
}

/* Hands out one completion at a time, any of those that are there. */
static int fake_take(struct sw_ring *ring, struct sw_ring_completion *out, int max) {
    struct fake_ring *self = (struct fake_ring *)ring;
    if (max < 1 || self->done_count == 0)
        return 0;
    const int pick = (int)(sw_rng_uniform(self->script->seed, 1, self->draws++) * self->done_count);
    out[0] = self->done[pick];
    self->done[pick] = self->done[--self->done_count];
    return 1;
}

static void fake_close(struct sw_ring *ring) {
    struct fake_ring *self = (struct fake_ring *)ring;
    free(self->done);
    free(self);
}

static const struct sw_ring_ops fake_ops = {
    .put = fake_put,
    .submit = fake_submit,
    .take = fake_take,
    .close = fake_close,
};

sw_status fake_ring_open(void *script, const struct sw_ring_spec *spec, struct sw_ring **out) {
    struct fake_ring *self = calloc(1, sizeof *self);
    self->base.ops = &fake_ops;
    self->script = script;
    self->depth = spec->depth;
    self->done = calloc((size_t)spec->depth, sizeof *self->done);
    memcpy(self->files, spec->files, (size_t)spec->file_count * sizeof *spec->files);
    *out = &self->base;
    return SW_OK;
}
