/* The store on a ring that fails: each fault ends in the right bytes or in a named error. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 10 };

/* A fault for requests that touch one byte of a file. */
struct fault {
    sw_ring_op op;
    int file;
    int64_t offset_bytes;
    int64_t result; /* returned, where negative */
    int flips;      /* of this many readings a bit is turned */
    uint64_t draws; /* with them, transfers are cut short at random */
    bool short_ones;
};

static bool hits(const struct fault *fault, const struct sw_ring_request *request) {
    return request->op == fault->op && request->file == fault->file && request->offset_bytes <= fault->offset_bytes &&
           fault->offset_bytes < request->offset_bytes + request->bytes;
}

static int64_t carry_out(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    struct fault *fault = script->context;
    struct sw_ring_request part = *request;
    if (fault->short_ones && request->op != SW_RING_FLUSH && random_below(&fault->draws, 2) == 0)
        part.bytes = SW_BUFFER_ALIGN_BYTES * (1 + random_below(&fault->draws, request->bytes / SW_BUFFER_ALIGN_BYTES));
    if (hits(fault, request) && fault->result < 0)
        return fault->result;
    const int64_t result = fake_ring_do(files, &part);
    if (hits(fault, request) && fault->flips > 0) {
        fault->flips--;
        ((unsigned char *)request->buf)[fault->offset_bytes - request->offset_bytes] ^= 1;
    }
    return result;
}

struct fixture {
    struct store_directories directories;
    struct fake_ring_script script;
    struct fault fault;
    struct sw_store *store;
};

/* A store at step 1 whose lanes from now on go through the fault; grain 3 of unit 0 is its place. */
static void open_fixture(struct fixture *self, const char *parent) {
    *self = (struct fixture){.directories = make_store_directories(parent, 2), .fault.file = -1};
    self->store = create_store(&self->directories);
    commit_steps(self->store, 1, 1);
    self->script = (struct fake_ring_script){.carry_out = carry_out, .context = &self->fault, .seed = test_seed};
    self->store->open_ring = fake_ring_open;
    self->store->ring_context = &self->script;
}

static void aim(struct fixture *self, sw_ring_op op, int generation) {
    const struct sw_file_run run = sw_area_run(&self->store->areas[SW_STORE_OPTIMIZER][generation], 0, 3, 1);
    self->fault = (struct fault){.op = op, .file = run.file, .offset_bytes = run.offset_bytes + 1234};
}

static sw_status transfer_unit(struct fixture *self, bool write, int generation) {
    struct sw_store_lane *lane;
    char *buf = io_buffer(store_unit_grains[0] * SW_OPTIMIZER_GRAIN_BYTES);
    CHECK_OK(sw_store_lane_open(self->store, STORE_DEPTH, &lane));
    const sw_status status = sw_store_transfer(
        lane, &(struct sw_store_transfer){
                  .write = write, .generation = generation, .grains = store_unit_grains[0], .buf = buf, .step = 2});
    sw_store_lane_close(lane);
    free(buf);
    return status;
}

static void transfers_whole_grains_in_short_pieces(void **state) {
    for (test_seed = 1; test_seed <= SEEDS; test_seed++) {
        char name[16] = {(char)('a' + test_seed)};
        struct fixture self;
        open_fixture(&self, new_subdirectory(*state, name));
        self.fault.short_ones = true;
        write_generation(self.store, 1, 2);
        check_generation(self.store, 0, 1);
        check_generation(self.store, 1, 2);
        self.fault.short_ones = false;
        CHECK_OK(sw_store_commit(self.store, 2, 1, ""));
        sw_store_close(self.store);
    }
}

static void reads_a_bad_grain_again_once(void **state) {
    struct fixture self;
    open_fixture(&self, *state);
    aim(&self, SW_RING_READ, 0);
    self.fault.flips = 1;
    check_generation(self.store, 0, 1);
    CHECK(self.fault.flips == 0);
    self.fault.flips = 2;
    CHECK_FAILS(transfer_unit(&self, false, 0), SW_ERR_CORRUPT, "grain 3 of unit 0 (optimizer, generation 0, step 2)");
    CHECK(self.fault.flips == 0);
    sw_store_close(self.store);
}

/* A reading that fails, or gives a wrong bit, once is no bad grain. */
static void verifies_past_what_fails_once(void **state) {
    struct fixture self;
    int64_t grains, bad;
    open_fixture(&self, *state);
    aim(&self, SW_RING_READ, 0);
    self.fault.flips = 1;
    CHECK_OK(sw_store_verify(self.store, NULL, &grains, &bad));
    CHECK(bad == 0 && self.fault.flips == 0);
    self.fault.flips = 2;
    CHECK_OK(sw_store_verify(self.store, NULL, &grains, &bad));
    CHECK(bad == 0); /* the second reading is on the owner's ring */
    sw_queue_close(self.store->queue);
    CHECK_OK(sw_store_open_queue(self.store, SW_STORE_MAX_FILES, &self.store->queue));
    self.fault.flips = 2;
    CHECK_OK(sw_store_verify(self.store, NULL, &grains, &bad));
    CHECK(bad == 1 && self.fault.flips == 0);
    self.fault.result = -EIO;
    CHECK_OK(sw_store_verify(self.store, NULL, &grains, &bad));
    CHECK(bad == 1);
    sw_store_close(self.store);
}

static void says_which_generation_is_whole(void **state) {
    struct fixture self;
    open_fixture(&self, *state);
    write_generation(self.store, 1, 2);
    aim(&self, SW_RING_READ, 1);
    self.fault.flips = 2;
    CHECK_FAILS(transfer_unit(&self, false, 1), SW_ERR_CORRUPT, "the last commit (step 1) does not use it");
    sw_store_close(self.store);
    self.store = reopen_store(&self.directories);
    check_at_step(self.store, 1);
    sw_store_close(self.store);
}

static void names_file_offset_and_grain_of_an_error(void **state) {
    struct fixture self;
    open_fixture(&self, *state);
    const int generation = 1;
    aim(&self, SW_RING_WRITE, generation);
    self.fault.result = -EIO;
    CHECK_FAILS(transfer_unit(&self, true, generation), SW_ERR_IO, "store.spillway cannot be written at offset ");
    CHECK_FAILS(transfer_unit(&self, true, generation), SW_ERR_IO, "writing grain ");
    self.fault.result = -ENOSPC;
    CHECK_FAILS(transfer_unit(&self, true, generation), SW_ERR_SPACE, "No space left");
    aim(&self, SW_RING_READ, 0);
    self.fault.result = -EIO;
    CHECK_FAILS(transfer_unit(&self, false, 0), SW_ERR_IO, "of unit 0 (optimizer, generation 0, step 2)");
    self.fault.result = 0;
    check_at_step(self.store, 1);
    sw_store_close(self.store);
}

/* The commit's own I/O goes through the owner's queue, opened anew here on the failing ring. */
static void reports_a_commit_that_fails(void **state) {
    struct fixture self;
    open_fixture(&self, *state);
    sw_queue_close(self.store->queue);
    CHECK_OK(sw_store_open_queue(self.store, SW_STORE_MAX_FILES, &self.store->queue));
    write_generation(self.store, 1, 2);
    self.fault = (struct fault){.op = SW_RING_WRITE,
                                .file = 1,
                                .offset_bytes = sw_super_offset(self.store, 1, 1 - self.store->files[1].committed_slot),
                                .result = -EIO};
    CHECK_FAILS(sw_store_commit(self.store, 2, 1, ""), SW_ERR_IO, "nvme1/store.spillway cannot be written");
    CHECK(sw_store_last_commit(self.store)->step == 1);
    /* Which step the drives have is not known now, so that neither generation may be changed. */
    self.fault.result = 0;
    CHECK_FAILS(sw_store_commit(self.store, 2, 1, ""), SW_ERR_IO, "open the store again");
    CHECK_FAILS(transfer_unit(&self, true, 1), SW_ERR_IO, "open the store again");
    check_generation(self.store, 0, 1);
    sw_store_close(self.store);
    self.store = reopen_store(&self.directories);
    check_at_step(self.store, 1);
    commit_steps(self.store, 2, 2);
    sw_store_close(self.store);
    self.store = reopen_store(&self.directories);
    check_at_step(self.store, 2);
    sw_store_close(self.store);
}

static void put_nothing(struct sw_ring *ring, const struct sw_ring_request *request) {
    (void)ring;
    (void)request;
}

static sw_status submit_nothing(struct sw_ring *ring, bool wait) {
    (void)ring;
    return wait ? sw_fail(SW_ERR_IO, "the ring takes nothing") : SW_OK;
}

/* Opens a ring that does nothing and never gives an answer. */
static sw_status open_stuck(void *script, const struct sw_ring_spec *spec, struct sw_ring **out) {
    static struct sw_ring_ops ops;
    SW_TRY(fake_ring_open(script, spec, out));
    ops = *(*out)->ops;
    ops.put = put_nothing;
    ops.submit = submit_nothing;
    (*out)->ops = &ops;
    return SW_OK;
}

static sw_status open_none(void *script, const struct sw_ring_spec *spec, struct sw_ring **out) {
    (void)script;
    (void)spec;
    (void)out;
    return sw_fail(SW_ERR_NOMEM, "there is no ring");
}

static void says_that_a_ring_fails(void **state) {
    struct fixture self;
    struct sw_store *store;
    struct sw_store_lane *lane;
    int64_t grains, bad;
    open_fixture(&self, *state);
    self.store->open_ring = open_none;
    CHECK_FAILS(sw_store_lane_open(self.store, STORE_DEPTH, &lane), SW_ERR_NOMEM, "there is no ring");
    CHECK_FAILS(sw_store_verify(self.store, NULL, &grains, &bad), SW_ERR_NOMEM, "there is no ring");
    self.store->open_ring = open_stuck;
    CHECK_FAILS(transfer_unit(&self, false, 0), SW_ERR_IO, "the ring takes nothing");
    CHECK_FAILS(sw_store_verify(self.store, NULL, &grains, &bad), SW_ERR_IO, "the ring takes nothing");
    /* Verification reads a bad grain again on the queue of the store's owner. */
    sw_queue_close(self.store->queue);
    CHECK_OK(sw_store_open_queue(self.store, SW_STORE_MAX_FILES, &self.store->queue));
    self.store->open_ring = fake_ring_open;
    aim(&self, SW_RING_READ, 0);
    self.fault.flips = 1;
    CHECK_FAILS(sw_store_verify(self.store, NULL, &grains, &bad), SW_ERR_IO, "the ring takes nothing");
    sw_store_close(self.store);
    sw_error_clear(); /* that of the ring, which has not given its last answer */

    const struct sw_ring_source rings = {.open = open_stuck, .context = &self.script};
    const struct sw_ring_source none = {.open = open_none};
    CHECK_FAILS(sw_store_open_on(&none, self.directories.path, self.directories.count, true, SW_STORE_NEWEST, &store),
                SW_ERR_NOMEM, "there is no ring");
    CHECK_FAILS(sw_store_open_on(&rings, self.directories.path, self.directories.count, true, SW_STORE_NEWEST, &store),
                SW_ERR_IO, "the ring takes nothing");
    const struct store_directories others = make_store_directories(new_subdirectory(*state, "others"), 2);
    const struct sw_store_spec spec = {.directories = others.path,
                                       .directory_count = others.count,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS,
                                       .allow_buffered = true};
    CHECK_FAILS(sw_store_create_on(&rings, &spec, NULL, NULL, &store), SW_ERR_IO, "the ring takes nothing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(says_that_a_ring_fails, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(transfers_whole_grains_in_short_pieces, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(reads_a_bad_grain_again_once, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(verifies_past_what_fails_once, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(says_which_generation_is_whole, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_file_offset_and_grain_of_an_error, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(reports_a_commit_that_fails, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
