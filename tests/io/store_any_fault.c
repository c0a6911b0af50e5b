/* One fault at any request of a store's life: the right bytes come of it or an error that names its place, after which
 * the store opens at the last step, whole, and goes on. */
#include "tests/io/faulty.h"

#include "io/queue/queue.h"

#include <errno.h>
#include <string.h>

enum { SEEDS = 1000, STEPS = 3, MANY = 1 << 20, SMALL_SECTOR = 512, LARGE_SECTOR = 4096, FILES = 2 };

/* The work of the store when the fault came. */
typedef enum { CREATING, WRITING, OPENING, READING, PHASES } phase;

struct life {
    struct faulty faulty;
    struct sw_fault fault;
    phase phase;
    int64_t committed, attempted;
};

struct tally {
    int64_t struck[SW_FAULT_KINDS], failed[SW_FAULT_KINDS], failed_in[PHASES];
};

/* Tells whether a fault must leave no trace. */
static bool must_be_mended(const struct sw_fault *fault) {
    switch (fault->kind) {
    case SW_FAULT_ERROR: return (fault->error == EINTR || fault->error == EAGAIN) && fault->count <= SW_QUEUE_RETRIES;
    case SW_FAULT_FLIP_READ: return fault->count == 1;
    case SW_FAULT_FLIP_DISK:
    case SW_FAULT_STALE:
    case SW_FAULT_MISDIRECT:
    case SW_FAULT_DROP: return false;
    default: return true;
    }
}

/* Tells whether a write silently leaves wrong bytes. */
static bool is_silent(const struct sw_fault *fault) {
    return fault->kind == SW_FAULT_FLIP_DISK || fault->kind == SW_FAULT_STALE || fault->kind == SW_FAULT_MISDIRECT;
}

static sw_status commit_steps_to(struct life *self, struct sw_store *store, int64_t last) {
    self->phase = WRITING;
    while (self->committed < last) {
        self->attempted = self->committed + 1;
        SW_TRY(faulty_step(&self->faulty, store, self->attempted));
        self->committed = self->attempted;
    }
    return SW_OK;
}

/* A step that was committed is never lost in silence, unless its record was written over the mark that tells of it. */
static bool is_told(const struct life *self, const struct sw_store *store) {
    const struct sw_store_bad_record *bad;
    return self->fault.kind == SW_FAULT_MISDIRECT || sw_store_last_commit(store)->step >= self->committed ||
           sw_store_bad_records(store, &bad) > 0;
}

/* All that a store does: made, committed to, opened, read, committed to. */
static sw_status live(struct life *self, struct sw_store **store) {
    self->phase = CREATING;
    SW_TRY(faulty_create(&self->faulty, store));
    SW_TRY(commit_steps_to(self, *store, STEPS));
    sw_store_close(*store);
    *store = NULL;
    self->phase = OPENING;
    SW_TRY(faulty_open(&self->faulty, store));
    self->phase = READING;
    const int64_t step = sw_store_last_commit(*store)->step;
    CHECK(step == self->committed || (step < self->committed && !must_be_mended(&self->fault)));
    CHECK(is_told(self, *store));
    self->committed = step;
    SW_TRY(faulty_read(&self->faulty, *store));
    return commit_steps_to(self, *store, STEPS + 1);
}

/* How many requests of an op a life without faults has. */
static int64_t count_requests(struct life *self, sw_ring_op op) {
    struct sw_store *store = NULL;
    CHECK_OK(live(self, &store));
    sw_store_close(store);
    self->committed = self->attempted = -1;
    const int64_t count = sw_fault_requests(self->faulty.disk, op);
    faulty_renew(&self->faulty, SMALL_SECTOR);
    return count;
}

static struct sw_fault draw_fault(const int64_t requests[SW_RING_FLUSH + 1]) {
    static const int errors[] = {EIO, ENOSPC, EINTR, EAGAIN};
    static const int64_t counts[] = {1, 2, SW_QUEUE_RETRIES, MANY};
    static const struct {
        bool fixed;
        sw_ring_op op;
    } ops[SW_FAULT_KINDS] = {
        [SW_FAULT_FLIP_READ] = {true, SW_RING_READ}, [SW_FAULT_FLIP_DISK] = {true, SW_RING_WRITE},
        [SW_FAULT_STALE] = {true, SW_RING_WRITE},    [SW_FAULT_MISDIRECT] = {true, SW_RING_WRITE},
        [SW_FAULT_DROP] = {true, SW_RING_FLUSH},     [SW_FAULT_NO_FLUSH] = {true, SW_RING_FLUSH},
    };
    uint64_t draws = 0;
    struct sw_fault fault = {.kind = (sw_fault_kind)random_below(&draws, SW_FAULT_KINDS)};
    const bool flips_bits = fault.kind == SW_FAULT_FLIP_READ || fault.kind == SW_FAULT_FLIP_DISK;
    const bool fixed = ops[fault.kind].fixed;
    fault.op = fixed ? ops[fault.kind].op : (sw_ring_op)random_below(&draws, SW_RING_FLUSH + 1);
    fault.first = random_below(&draws, requests[fault.op]);
    fault.count = counts[random_below(&draws, 4)];
    if (fixed)
        fault.count = 1 + (flips_bits ? random_below(&draws, 2) : 0);
    fault.error = errors[random_below(&draws, 4)];
    return fault;
}

static void check_has(const char *message, const char *word) {
    if (strstr(message, word) == NULL) {
        print_message("the message lacks '%s': %s\n", word, message);
        CHECK(!"a named error");
    }
}

/* File and offset always; unit, state and step where it is about grains. */
static void check_message(const struct life *self, const char *message) {
    check_has(message, "store.spillway");
    const bool flush = strstr(message, "flushed") != NULL, label = self->phase == OPENING || self->phase == CREATING;
    if (self->fault.kind == SW_FAULT_ERROR) {
        check_has(message, strerror(self->fault.error));
        if (!flush)
            check_has(message, "at offset ");
    }
    if (!label) {
        check_has(message, "optimizer, generation ");
        check_has(message, "step ");
    }
    if (!label && strstr(message, "committing") == NULL) {
        check_has(message, "grain ");
        check_has(message, "of unit ");
    }
}

/* The state after a failure, without further faults. */
static void check_afterwards(struct life *self) {
    struct sw_store *store = NULL;
    if (self->phase == CREATING) {
        for (int i = 0; i < FILES; i++)
            CHECK(file_bytes(store_file(&self->faulty.directories, i)) == -1);
        faulty_renew(&self->faulty, SMALL_SECTOR);
        CHECK_OK(faulty_create(&self->faulty, &store));
        self->committed = self->attempted = -1;
    } else {
        const sw_status status = faulty_open(&self->faulty, &store);
        const bool first_lost = self->committed < 0 && status == SW_ERR_ARG;
        if (status != SW_OK && (first_lost || is_silent(&self->fault))) {
            check_has(sw_error_message(status), first_lost ? "no finished commit" : "store.spillway");
            sw_error_clear();
            return;
        }
        CHECK_OK(status);
        const int64_t step = sw_store_last_commit(store)->step;
        /* A record that lands on the other one takes two steps with it. */
        const int64_t lost = self->fault.kind == SW_FAULT_MISDIRECT ? 2 : is_silent(&self->fault);
        const int64_t least = self->committed - lost;
        CHECK(step >= least && step <= self->attempted);
        CHECK(is_told(self, store));
        self->committed = step;
        const sw_status read = faulty_read(&self->faulty, store);
        if (read == SW_ERR_CORRUPT && is_silent(&self->fault)) {
            check_message(self, sw_error_message(read));
            sw_error_clear();
            sw_store_close(store);
            return;
        }
        CHECK_OK(read);
    }
    CHECK_OK(commit_steps_to(self, store, self->committed + 2));
    CHECK_OK(faulty_read(&self->faulty, store));
    sw_store_close(store);
}

static void run_seed(const struct store_directories *directories, const int64_t requests[], struct tally *tally) {
    struct life self = {.fault = draw_fault(requests), .committed = -1, .attempted = -1};
    struct sw_store *store = NULL;
    /* Direct I/O can stop at small sectors too, where a transfer makes no progress by pages: that is retried. */
    const bool small = self.fault.count < SW_QUEUE_RETRIES && test_seed % 2 == 0;
    faulty_begin(&self.faulty, directories, small ? SMALL_SECTOR : LARGE_SECTOR);
    sw_fault_set(self.faulty.disk, &self.fault);
    const sw_status status = live(&self, &store);
    tally->struck[self.fault.kind] += sw_fault_struck(self.faulty.disk) > 0;
    if (must_be_mended(&self.fault)) {
        CHECK_OK(status);
    } else if (status != SW_OK) {
        tally->failed[self.fault.kind]++;
        tally->failed_in[self.phase]++;
        check_message(&self, sw_error_message(status));
    }
    sw_error_clear();
    sw_store_close(store);
    sw_fault_set(self.faulty.disk, NULL);
    check_afterwards(&self);
    faulty_end(&self.faulty);
}

static void ends_in_right_bytes_or_a_named_error(void **state) {
    struct store_directories directories = make_store_directories(*state, FILES);
    struct tally tally = {0};
    struct life clean = {.committed = -1, .attempted = -1};
    int64_t requests[SW_RING_FLUSH + 1];
    faulty_begin(&clean.faulty, &directories, SMALL_SECTOR);
    directories = clean.faulty.directories;
    for (int op = SW_RING_READ; op <= SW_RING_FLUSH; op++)
        requests[op] = count_requests(&clean, (sw_ring_op)op);
    const int64_t seeds = (int64_t)faulty_seeds(SEEDS);
    for (test_seed = 1; test_seed <= (uint64_t)seeds; test_seed++)
        run_seed(&directories, requests, &tally);
    faulty_end(&clean.faulty);
    static const char *const names[] = {"errors",          "short transfers",   "delays",
                                        "bits on reading", "bits on the drive", "stale sectors",
                                        "misdirected",     "failed flushes",    "lost flushes"};
    for (int kind = 0; kind < SW_FAULT_KINDS; kind++) {
        print_message("%s: %lld struck, %lld of them ended in an error\n", names[kind], (long long)tally.struck[kind],
                      (long long)tally.failed[kind]);
        CHECK(tally.struck[kind] > seeds / 20);
    }
    for (int where = 0; where < PHASES; where++)
        CHECK(tally.failed_in[where] > 0);
}

/* A life that also goes back by a step. */
static sw_status live_and_go_back(struct life *self, struct sw_store **store) {
    SW_TRY(live(self, store));
    if (self->faulty.one_generation)
        return SW_OK;
    sw_store_close(*store);
    *store = NULL;
    self->committed--;
    SW_TRY(faulty_open_at(&self->faulty, self->committed, store));
    SW_TRY(sw_store_go_back(*store));
    return commit_steps_to(self, *store, self->committed + 1);
}

/* Lives with one request that fails. Returns whether there is such a request. */
static bool fail_request(const struct store_directories *directories, bool one_generation, sw_ring_op op,
                         int64_t number) {
    struct life self = {
        .fault = {.kind = SW_FAULT_ERROR, .op = op, .first = number, .count = 1, .error = EIO},
        .committed = -1,
        .attempted = -1,
    };
    struct sw_store *store = NULL;
    test_seed = (uint64_t)number;
    faulty_begin(&self.faulty, directories, LARGE_SECTOR);
    self.faulty.one_generation = one_generation;
    sw_fault_set(self.faulty.disk, &self.fault);
    const sw_status status = live_and_go_back(&self, &store);
    const bool struck = sw_fault_struck(self.faulty.disk) > 0;
    CHECK((status != SW_OK) == struck);
    if (struck)
        check_has(sw_error_message(status), op == SW_RING_FLUSH ? "cannot be flushed" : "cannot be written at offset");
    sw_error_clear();
    sw_store_close(store);
    faulty_end(&self.faulty);
    return struck;
}

/* Bytes may look right all the same: the file system's cache has them, or the space was reserved as zeros. */
static void no_write_or_flush_fails_unnoticed(void **state) {
    enum { LEAST = 40 };
    const struct store_directories directories = make_store_directories(*state, FILES);
    struct faulty holder;
    faulty_begin(&holder, &directories, LARGE_SECTOR);
    for (int one_generation = 0; one_generation <= 1; one_generation++) {
        int64_t failed = 0;
        for (int64_t number = 0; fail_request(&holder.directories, one_generation, SW_RING_WRITE, number); number++)
            failed++;
        for (int64_t number = 0; fail_request(&holder.directories, one_generation, SW_RING_FLUSH, number); number++)
            failed++;
        CHECK(failed > LEAST);
    }
    faulty_end(&holder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_write_or_flush_fails_unnoticed, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(ends_in_right_bytes_or_a_named_error, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
