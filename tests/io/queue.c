/* The queue's promises about completions, on a ring that misbehaves, and on the real one. */
#include "tests/io/support.h"

#include "core/size.h"
#include "io/queue/queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 8, FILE_BYTES = 4 << 20, BLOCK = 64 << 10, SEEDS = 50 };

struct fixture {
    int fd;
    unsigned char *truth, *read;
};

static struct fixture open_fixture(const char *directory) {
    struct fixture self = {.truth = io_buffer(FILE_BYTES), .read = io_buffer(FILE_BYTES)};
    uint64_t draws = 0;
    for (int64_t i = 0; i < FILE_BYTES; i++)
        self.truth[i] = (unsigned char)(i * 131 >> 5);
    self.truth[random_below(&draws, FILE_BYTES)]++;
    const char *path = in_directory(directory, "data");
    write_file(path, self.truth, FILE_BYTES);
    self.fd = open(path, O_RDWR);
    CHECK(self.fd >= 0);
    return self;
}

static void close_fixture(struct fixture *self) {
    close(self->fd);
    free(self->truth);
    free(self->read);
}

static struct sw_queue *open_queue(const struct fixture *self, sw_ring_opener opener, void *context) {
    const struct sw_ring_spec spec = {.files = &self->fd, .file_count = 1, .depth = DEPTH};
    struct sw_queue *queue = NULL;
    CHECK_OK(sw_queue_open(opener, context, &spec, &queue));
    return queue;
}

/* Reads the whole file in blocks, with the queue as full as it can be, and checks that each tag comes back once. */
static void read_all(struct fixture *self, struct sw_queue *queue) {
    enum { BLOCKS = FILE_BYTES / BLOCK };
    int seen[BLOCKS] = {0};
    int next = 0, finished = 0;
    while (finished < BLOCKS) {
        for (; next < BLOCKS && sw_queue_room(queue) > 0; next++)
            sw_queue_put(queue, &(struct sw_ring_request){.op = SW_RING_READ,
                                                          .offset_bytes = (int64_t)next * BLOCK,
                                                          .bytes = BLOCK,
                                                          .buf = self->read + (int64_t)next * BLOCK,
                                                          .tag = (uint64_t)next});
        struct sw_queue_result results[3];
        int count;
        CHECK_OK(sw_queue_reap(queue, true, results, 3, &count));
        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            CHECK(results[i].error == 0 && results[i].tag < BLOCKS && seen[results[i].tag]++ == 0);
            CHECK(results[i].offset_bytes == (int64_t)(results[i].tag + 1) * BLOCK);
        }
        finished += count;
    }
    CHECK(sw_queue_in_flight(queue) == 0 && sw_queue_room(queue) == DEPTH);
    CHECK(memcmp(self->truth, self->read, FILE_BYTES) == 0);
}

static void reads_through_io_uring(void **state) {
    struct fixture self = open_fixture(*state);
    struct sw_queue *queue = open_queue(&self, sw_ring_open_uring, NULL);
    read_all(&self, queue);
    sw_queue_close(queue);
    close_fixture(&self);
}

static void keeps_the_queue_full(void **state) {
    struct fixture self = open_fixture(*state);
    struct fake_ring_script script = {.seed = 1};
    struct sw_queue *queue = open_queue(&self, fake_ring_open, &script);
    read_all(&self, queue);
    CHECK(script.most_in_flight == DEPTH);
    CHECK(script.requests == FILE_BYTES / BLOCK);
    sw_queue_close(queue);
    close_fixture(&self);
}

struct stumbling {
    uint64_t draws;
    int in_vain[FILE_BYTES / BLOCK]; /* attempts in a row that moved a block on by nothing */
};

/* Transfers some of the bytes, often not a whole number of sectors, or asks to be called again, as often as the queue
 * bears it. */
static int64_t stumble(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    struct stumbling *self = script->context;
    int *in_vain = &self->in_vain[request->offset_bytes / BLOCK];
    if (*in_vain == SW_QUEUE_RETRIES) {
        *in_vain = 0;
        return fake_ring_do(files, request);
    }
    ++*in_vain;
    if (random_below(&self->draws, 3) == 0)
        return random_below(&self->draws, 2) == 0 ? -EINTR : -EAGAIN;
    struct sw_ring_request part = *request;
    if (random_below(&self->draws, 2) == 0)
        part.bytes = random_below(&self->draws, request->bytes + 1);
    if (part.bytes >= SW_BUFFER_ALIGN_BYTES)
        *in_vain = 0;
    return fake_ring_do(files, &part);
}

static void continues_short_and_interrupted_transfers(void **state) {
    for (test_seed = 1; test_seed <= SEEDS; test_seed++) {
        struct fixture self = open_fixture(*state);
        struct stumbling stumbling = {0};
        struct fake_ring_script script = {.carry_out = stumble, .context = &stumbling, .seed = test_seed};
        struct sw_queue *queue = open_queue(&self, fake_ring_open, &script);
        read_all(&self, queue);
        CHECK(script.requests > FILE_BYTES / BLOCK);
        sw_queue_close(queue);
        close_fixture(&self);
    }
}

static int64_t always(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    (void)files;
    (void)request;
    return *(const int64_t *)script->context;
}

/* The error of a request of which every attempt gives this result, and how many attempts there were. */
static int error_of(const struct fixture *self, sw_ring_op op, int64_t result, int *out_attempts) {
    struct fake_ring_script script = {.carry_out = always, .context = &result};
    struct sw_queue *queue = open_queue(self, fake_ring_open, &script);
    struct sw_queue_result done = {0};
    const struct sw_ring_request request = {
        .op = op, .offset_bytes = 3 * BLOCK, .bytes = BLOCK, .buf = self->read, .tag = 7};
    CHECK_OK(sw_queue_run(queue, &request, &done));
    CHECK(done.tag == 7 && done.offset_bytes == (int64_t)(done.error == 0 ? 4 : 3) * BLOCK);
    sw_queue_close(queue);
    *out_attempts = script.requests;
    return done.error;
}

static void gives_up_after_the_stated_attempts(void **state) {
    struct fixture self = open_fixture(*state);
    int attempts;
    CHECK(error_of(&self, SW_RING_READ, -EIO, &attempts) == EIO && attempts == 1);
    CHECK(error_of(&self, SW_RING_WRITE, -ENOSPC, &attempts) == ENOSPC && attempts == 1);
    CHECK(error_of(&self, SW_RING_READ, -EAGAIN, &attempts) == EAGAIN && attempts == 1 + SW_QUEUE_RETRIES);
    CHECK(error_of(&self, SW_RING_FLUSH, -EINTR, &attempts) == EINTR && attempts == 1 + SW_QUEUE_RETRIES);
    CHECK(error_of(&self, SW_RING_READ, 0, &attempts) == ENODATA && attempts == 1 + SW_QUEUE_RETRIES);
    CHECK(error_of(&self, SW_RING_WRITE, 100, &attempts) == EIO && attempts == 1 + SW_QUEUE_RETRIES);
    CHECK(error_of(&self, SW_RING_READ, BLOCK + 1, &attempts) == ENODATA && attempts == 1);
    CHECK(error_of(&self, SW_RING_FLUSH, 0, &attempts) == 0 && attempts == 1);
    close_fixture(&self);
}

static void reports_a_file_that_ends_early(void **state) {
    struct fixture self = open_fixture(*state);
    struct sw_queue *queue = open_queue(&self, sw_ring_open_uring, NULL);
    struct sw_queue_result done = {0};
    const struct sw_ring_request request = {
        .op = SW_RING_READ, .offset_bytes = FILE_BYTES - BLOCK, .bytes = 2 * BLOCK, .buf = self.read};
    CHECK_OK(sw_queue_run(queue, &request, &done));
    CHECK(done.error == ENODATA && done.offset_bytes == FILE_BYTES);
    sw_queue_close(queue);
    close_fixture(&self);
}

static void writes_past_four_gib(void **state) {
    struct fixture self = open_fixture(*state);
    const int64_t far = (INT64_C(5) << 30) + 3 * BLOCK;
    struct sw_queue *queue = open_queue(&self, sw_ring_open_uring, NULL);
    struct sw_queue_result done = {0};
    struct sw_ring_request request = {.op = SW_RING_WRITE, .offset_bytes = far, .bytes = BLOCK, .buf = self.truth};
    CHECK_OK(sw_queue_run(queue, &request, &done));
    CHECK(done.error == 0 && done.offset_bytes == far + BLOCK);
    CHECK(pread(self.fd, self.read, BLOCK, far) == BLOCK && memcmp(self.truth, self.read, BLOCK) == 0);
    sw_queue_close(queue);
    close_fixture(&self);
}

static void uses_registered_memory(void **state) {
    struct fixture self = open_fixture(*state);
    const struct sw_ring_buffer buffer = {.base = self.read, .bytes = FILE_BYTES / 2};
    bool warned = false;
    const struct sw_ring_spec spec = {
        .files = &self.fd, .file_count = 1, .buffers = &buffer, .buffer_count = 1, .depth = DEPTH, .warned = &warned};
    struct sw_queue *queue = NULL;
    CHECK_OK(sw_queue_open(sw_ring_open_uring, NULL, &spec, &queue));
    /* Half of the memory is registered and half is not: both must work, and so must a request across the border. */
    read_all(&self, queue);
    memset(self.read, 0, FILE_BYTES);
    struct sw_queue_result done = {0};
    const struct sw_ring_request request = {.op = SW_RING_READ, .bytes = FILE_BYTES, .buf = self.read};
    CHECK_OK(sw_queue_run(queue, &request, &done));
    CHECK(done.error == 0 && memcmp(self.truth, self.read, FILE_BYTES) == 0);
    sw_queue_close(queue);
    close_fixture(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_through_io_uring, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(keeps_the_queue_full, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(continues_short_and_interrupted_transfers, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(gives_up_after_the_stated_attempts, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(reports_a_file_that_ends_early, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(writes_past_four_gib, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(uses_registered_memory, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
