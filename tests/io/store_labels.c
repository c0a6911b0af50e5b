/* Labels that check but lie: each number is refused by name. And labels that are damaged: only these are written. */
#include "tests/io/store_support.h"

#include "core/files/files.h"
#include "io/store/store_private.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CHANGES = 2, EXTENTS = 6 };

#define HEADER(field) (int64_t) offsetof(struct sw_label_header, field), (int)sizeof((struct sw_label_header *)0)->field
#define UNIT(unit) (int64_t)(sizeof(struct sw_label_header) + (unit) * sizeof(sw_le64)), (int)sizeof(sw_le64)
/* The extents of units 0, 1 and 3 in generation 0 come first; unit 2 is empty. */
#define EXTENT(index, field)                                                                                           \
    (int64_t)(sizeof(struct sw_label_header) + STORE_UNITS * sizeof(sw_le64) +                                         \
              (index) * sizeof(struct sw_label_extent) + offsetof(struct sw_label_extent, field)),                     \
        (int)sizeof((struct sw_label_extent *)0)->field

/* A number of a label, and what it is changed to. */
struct change {
    int64_t at;
    int bytes; /* 0: there is no change */
    int64_t value;
};

struct lie {
    const char *refusal;
    struct change change[MOST_CHANGES];
};

/* Writes a label over both of a file. */
static void put_label(const char *file, unsigned char *label, int64_t label_bytes) {
    ((struct sw_label_header *)label)->sum =
        sw_le64_of_sum(sw_checksum(label + SW_FORMAT_SUM_FROM, label_bytes - SW_FORMAT_SUM_FROM));
    const int fd = open(file, O_WRONLY | O_CLOEXEC);
    CHECK(pwrite(fd, label, (size_t)label_bytes, 0) == label_bytes);
    CHECK(pwrite(fd, label, (size_t)label_bytes, sw_format_copy_offset(label_bytes)) == label_bytes);
    CHECK(close(fd) == 0);
}

static unsigned char *take_label(const char *file, int64_t label_bytes) {
    unsigned char *label = io_buffer(label_bytes);
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    CHECK(pread(fd, label, (size_t)label_bytes, 0) == label_bytes && close(fd) == 0);
    return label;
}

/* Changes the last file's label by each lie in turn. The store must be refused for it, and not without. */
static void check_lies(const struct store_directories *directories, const struct lie *lies, size_t count,
                       sw_status refusal) {
    struct sw_store *store = create_store(directories);
    commit_steps(store, 1, 1);
    const int64_t label_bytes = store->label_bytes;
    sw_store_close(store);
    const char *file = store_file(directories, directories->count - 1);
    unsigned char *truth = take_label(file, label_bytes), *label = io_buffer(label_bytes);
    CHECK(sw_from_le64(((struct sw_label_header *)truth)->extent_count) == EXTENTS);
    for (test_seed = 0; test_seed < count; test_seed++) {
        const struct lie *lie = &lies[test_seed];
        memcpy(label, truth, (size_t)label_bytes);
        for (int i = 0; i < MOST_CHANGES; i++) {
            const sw_le64 value = sw_le64_of(lie->change[i].value);
            memcpy(label + lie->change[i].at, &value, (size_t)lie->change[i].bytes);
        }
        put_label(file, label, label_bytes);
        CHECK_FAILS(sw_store_open(directories->path, directories->count, true, SW_STORE_NEWEST, &store), refusal,
                    lie->refusal);
    }
    put_label(file, truth, label_bytes);
    store = reopen_store(directories);
    check_at_step(store, 1);
    sw_store_close(store);
    free(truth);
    free(label);
}

static void names_what_a_label_lies_about(void **state) {
    static const struct lie lies[] = {
        {"its sizes contradict each other", {{HEADER(label_bytes), 0}}},
        {"its sizes contradict each other", {{HEADER(label_bytes), SW_FORMAT_PAGE_BYTES + 1}}},
        {"its sizes contradict each other", {{HEADER(unit_count), 0}}},
        {"its sizes contradict each other", {{HEADER(extent_count), -1}}},
        {"it has been truncated", {{HEADER(sealed_bytes), INT64_MAX}}},
        {"its superblocks do not fit", {{HEADER(super_bytes), 0}}},
        {"its superblocks do not fit", {{HEADER(super_bytes), SW_RING_MAX_REQUEST_BYTES + SW_FORMAT_PAGE_BYTES}}},
        {"its counts of files or generations are impossible", {{HEADER(file_count), 0}}},
        {"its counts of files or generations are impossible", {{HEADER(generations), SW_STORE_GENERATIONS + 1}}},
        {"unit 2 has -1 grains", {{UNIT(2), -1}}},
        {"unit 3 has 1099511627777 grains", {{UNIT(3), (INT64_C(1) << 40) + 1}}},
        {"extent 1 is of an unknown kind", {{EXTENT(1, kind), SW_STORE_GRADS}}},
        {"extent 1 is of an unknown kind", {{EXTENT(1, grain_bytes), SW_FORMAT_PAGE_BYTES}}},
        {"extent 2 exceeds its unit", {{EXTENT(2, grains), 7}}},
        {"extent 2 repeats a unit", {{EXTENT(2, unit), 0}}},
        {"extent 1 lies outside the file or over another", {{EXTENT(1, offset_bytes), 0}}},
        {"extent 5 lies outside the file or over another", {{EXTENT(5, offset_bytes), INT64_MAX & -4096}}},
        {"its generations or superblocks have unequal sizes", {{HEADER(extent_count), EXTENTS - 1}}},
        {"its generations hold different grains of unit 3", {{UNIT(3), 7}, {EXTENT(5, first_grain), 1}}},
    };
    const struct store_directories directories = make_store_directories(*state, 1);
    check_lies(&directories, lies, sizeof lies / sizeof lies[0], SW_ERR_CORRUPT);
}

static void names_a_format_that_is_not_known(void **state) {
    static const struct lie lie = {"a format that this program does not know",
                                   {{HEADER(version), SW_FORMAT_NARROW_VERSION}}};
    const struct store_directories directories = make_store_directories(*state, 1);
    check_lies(&directories, &lie, 1, SW_ERR_UNSUPPORTED);
}

static void names_labels_that_contradict_each_other(void **state) {
    static const struct lie lies[] = {
        {"describe different models under the same identity", {{UNIT(3), 7}}},
        {"extent 0 differs from that in the store's other files", {{EXTENT(0, grains), 12}}},
    };
    const struct store_directories directories = make_store_directories(*state, 2);
    check_lies(&directories, lies, sizeof lies / sizeof lies[0], SW_ERR_CORRUPT);
}

/* Counts what is written to the beginning of each file, and its flushes after that. */
struct labels {
    int written[2], flushed[2];
};

static int64_t count_labels(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    struct labels *labels = script->context;
    if (request->op == SW_RING_WRITE && request->offset_bytes == 0)
        labels->written[request->file]++;
    if (request->op == SW_RING_FLUSH && labels->written[request->file] > 0)
        labels->flushed[request->file]++;
    return fake_ring_do(files, request);
}

/* A label is written in place, so a whole one is left as it is. */
static void only_a_damaged_label_is_written_again(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct labels labels = {0};
    struct fake_ring_script script = {.carry_out = count_labels, .context = &labels, .seed = 1};
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    flip_bit(store_file(&directories, 1), SW_FORMAT_PAGE_BYTES / 2);
    for (int time = 0; time < 2; time++) {
        store = reopen_store_on(&directories, &script);
        CHECK(labels.written[0] == 0 && labels.written[1] == 1 && labels.flushed[1] > 0);
        check_at_step(store, 1);
        sw_store_close(store);
    }
}

/* The requests of a creation that have written to each file and are not flushed, and the complete labels. */
struct creation {
    int unflushed[2], complete;
};

static int64_t watch_creation(struct fake_ring_script *script, const int *files,
                              const struct sw_ring_request *request) {
    struct creation *self = script->context;
    const bool complete =
        request->op == SW_RING_WRITE && memcmp(request->buf, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    CHECK(!complete || (self->unflushed[0] == 0 && self->unflushed[1] == 0));
    self->complete += complete;
    if (request->op == SW_RING_FLUSH)
        self->unflushed[request->file] = 0;
    else if (!complete)
        self->unflushed[request->file]++;
    return fake_ring_do(files, request);
}

/* A file with a complete label has all else. */
static void labels_are_completed_last(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    const struct sw_store_spec spec = {.directories = directories.path,
                                       .directory_count = directories.count,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS,
                                       .allow_buffered = true};
    struct creation creation = {0};
    struct fake_ring_script script = {.carry_out = watch_creation, .context = &creation, .seed = 1};
    const struct sw_ring_source rings = {.open = fake_ring_open, .context = &script};
    struct sw_store *store;
    CHECK_OK(sw_store_create_on(&rings, &spec, NULL, NULL, &store));
    CHECK(creation.complete == 4);
    sw_store_discard(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_what_a_label_lies_about, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_a_format_that_is_not_known, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_labels_that_contradict_each_other, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(labels_are_completed_last, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(only_a_damaged_label_is_written_again, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
