/* Files by the library, apart from stores: ranges come back as they were written, whatever their place in file and
 * memory, and mistakes are refused. */
#include "tests/library/support.h"

enum { FILE_BYTES = (3 << 20) + 100, RANGES = 5, DEPTH = 2, ROUNDS = 4, FAR = 16 << 20 };

/* Whole blocks in place; more blocks than there are to copy through; memory and offsets that direct I/O cannot reach;
 * the end of the file. */
static const struct {
    int64_t offset, memory, bytes;
} ranges[RANGES] = {
    {0, 0, 2 << 20}, {4096, 5, (3 << 20) - 4096}, {4096, 64, 8192}, {2 << 20, 3, 77777}, {FILE_BYTES - 1, 1, 1}};

static void must(int status, const char *what) {
    if (status != SPILLWAY_OK)
        fail_msg("%s: %s (%s)", what, spillway_error(NULL), spillway_status_name(status));
}

static spillway_io *open_file(void *const *state, int write) {
    char path[SUPPORT_PATH_CHARS];
    struct spillway_io_options options = SPILLWAY_IO_OPTIONS_INIT;
    spillway_io *self;
    options.write = write;
    options.depth = DEPTH;
    options.allow_buffered = 1;
    must(spillway_io_open(support_path(state, "file", path), &options, &self), "open");
    return self;
}

static unsigned char byte_at(int64_t at) {
    return (unsigned char)(at * 2654435761U >> 13);
}

static void ranges_come_back(void **state) {
    unsigned char *whole = model_memory(FILE_BYTES), *part = model_memory(FILE_BYTES);
    spillway_io *self = open_file(state, 1);
    int64_t bytes, number;
    for (int64_t at = 0; at < FILE_BYTES; at++)
        whole[at] = byte_at(at);
    must(spillway_io_submit(self, SPILLWAY_IO_WRITE, 0, whole, FILE_BYTES, NULL), "write");
    must(spillway_io_flush(self), "flush");
    must(spillway_io_size(self, &bytes), "size");
    assert_int_equal(bytes, FILE_BYTES);
    for (int r = 0; r < RANGES; r++) {
        must(spillway_io_submit(self, SPILLWAY_IO_READ, ranges[r].offset, part + ranges[r].memory, ranges[r].bytes,
                                &number),
             "read");
        assert_int_equal(number, r + 1);
        must(spillway_io_wait(self, number), "wait");
        assert_memory_equal(part + ranges[r].memory, whole + ranges[r].offset, (size_t)ranges[r].bytes);
    }
    spillway_io_close(self);
    free(whole);
    free(part);
}

static void a_range_is_written_between_others(void **state) {
    unsigned char *memory = model_memory(FILE_BYTES), *read = model_memory(FILE_BYTES);
    spillway_io *self = open_file(state, 1);
    must(spillway_io_submit(self, SPILLWAY_IO_WRITE, 0, memory, FILE_BYTES, NULL), "write zeros");
    for (int r = 1; r < RANGES; r++) {
        for (int64_t i = 0; i < ranges[r].bytes; i++)
            memory[ranges[r].offset + i] = byte_at(ranges[r].offset + i);
        must(spillway_io_submit(self, SPILLWAY_IO_WRITE, ranges[r].offset, memory + ranges[r].offset, ranges[r].bytes,
                                NULL),
             "write");
        must(spillway_io_wait(self, -1), "wait");
    }
    spillway_io_close(self);
    self = open_file(state, 0);
    must(spillway_io_submit(self, SPILLWAY_IO_READ, 0, read, FILE_BYTES, NULL), "read");
    must(spillway_io_wait(self, -1), "wait");
    assert_memory_equal(memory, read, FILE_BYTES);
    assert_int_equal(spillway_io_submit(self, SPILLWAY_IO_WRITE, 0, memory, 1, NULL), SPILLWAY_ERROR_ARGUMENT);
    assert_int_equal(spillway_io_submit(self, SPILLWAY_IO_READ, -1, read, 1, NULL), SPILLWAY_ERROR_ARGUMENT);
    spillway_io_close(self);
    free(memory);
    free(read);
}

/* The file ends before the range until the second write is done, which nothing else makes the read wait for. The first
 * write keeps the second one back while the read is submitted. */
static void a_read_waits_for_the_write_that_moves_the_end(void **state) {
    unsigned char *memory = model_memory(FILE_BYTES), read[100];
    for (int round = 0; round < ROUNDS; round++) {
        spillway_io *self = open_file(state, 1);
        char path[SUPPORT_PATH_CHARS];
        memset(read, 1, sizeof read);
        must(spillway_io_submit(self, SPILLWAY_IO_WRITE, 0, memory, FILE_BYTES, NULL), "write");
        must(spillway_io_submit(self, SPILLWAY_IO_WRITE, FAR, memory, 4096, NULL), "write far behind the end");
        must(spillway_io_submit(self, SPILLWAY_IO_READ, FAR / 2 + 1, read, sizeof read, NULL), "read between them");
        must(spillway_io_wait(self, -1), "wait");
        for (size_t i = 0; i < sizeof read; i++)
            assert_int_equal(read[i], 0);
        spillway_io_close(self);
        assert_int_equal(unlink(support_path(state, "file", path)), 0);
    }
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranges_come_back, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(a_range_is_written_between_others, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(a_read_waits_for_the_write_that_moves_the_end, support_make_folder,
                                        support_remove_folder),
    };
    return cmocka_run_group_tests_name("library files", tests, NULL, NULL);
}
