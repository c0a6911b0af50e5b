/* tokenize believes files of a call that was cut off (journals, the packer's state, partial files) only as far as they
 * are as they were written; and digests tell of token files that are whole. */
#include "tests/equipment/support.h"
#include "text/documents/token_writer.h"
#include "text/documents/tokenize_files.h"

#include <fcntl.h>
#include <stdbool.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
enum { FILES = 3, SEQ = 8, VOCAB = 50 };

static void impossible_journals_are_not_believed(void **state) {
    char path[SUPPORT_PATH_CHARS];
    support_path(state, "out.bin", path);
    const struct sw_tokenize_journal good = {.rules = UINT64_MAX,
                                             .inputs = 1,
                                             .read = {.file = FILES - 1,
                                                      .within = {.offset = 100, .lines = 7, .form = SW_TEXT_JSON_LIST},
                                                      .skipped = 1,
                                                      .has_chats = 1},
                                             .put = 5,
                                             .text_bytes = 90};
    struct sw_tokenize_journal bad;
    int64_t *const fields[] = {
        &bad.read.file,  &bad.read.within.offset, &bad.read.within.lines, &bad.read.within.form, &bad.read.skipped,
        &bad.read.empty, &bad.read.replaced,      &bad.read.beside,       &bad.read.has_chats,   &bad.put,
        &bad.text_bytes};
    const int64_t values[] = {INT64_MIN, -1, INT64_MAX};
    const struct sw_tokenize_limits limits = {.files = FILES, .packed_bytes = 4};
    for (size_t f = 0; f <= COUNT(fields); f++)
        for (size_t v = 0; v < COUNT(values); v++) {
            struct sw_tokenize_journal read;
            struct sw_text_buffer packed = {0};
            bad = good;
            if (f < COUNT(fields))
                *fields[f] = values[v];
            assert_int_equal(sw_tokenize_journal_write(path, &bad, (struct sw_text){"abcd", 4}), SW_OK);
            const bool believed = sw_tokenize_journal_read(path, limits, &read, &packed);
            assert_int_equal(believed, f == COUNT(fields));
            free(packed.data);
        }
    struct sw_text_buffer packed = {0};
    assert_int_equal(sw_tokenize_journal_write(path, &good, (struct sw_text){"abcde", 5}), SW_OK);
    assert_false(sw_tokenize_journal_read(path, limits, &bad, &packed));
    free(packed.data);
}

/* Writes three documents, one of which is split. */
static void pack(struct sw_packer *packer) {
    int32_t id[SEQ + 2];
    char loss[SEQ + 2];
    for (int i = 0; i < SEQ + 2; i++) {
        id[i] = i;
        loss[i] = (char)(i % 2);
    }
    const int lengths[] = {3, SEQ + 2, 4};
    for (int i = 0; i < 3; i++) {
        const struct sw_token_list tokens = {.id = id, .count = (size_t)lengths[i]};
        assert_int_equal(sw_packer_add(packer, &tokens, (struct sw_text){loss, (size_t)lengths[i]}), SW_OK);
    }
}

static sw_status restore(struct sw_text packed, int64_t vocab) {
    struct sw_packer *packer;
    assert_int_equal(sw_packer_open(NULL, SEQ, 0, &packer), SW_OK);
    const sw_status status = sw_packer_restore(packer, vocab, packed);
    if (status == SW_OK)
        assert_int_equal(sw_packer_finish(packer), SW_OK);
    sw_packer_close(packer);
    sw_error_clear();
    return status;
}

/* A state with any of its words changed is refused, or is such as a packer may have. */
static void impossible_states_of_a_packer_are_refused(void **state) {
    (void)state;
    struct sw_packer *packer;
    struct sw_text_buffer packed = {0};
    int refused = 0;
    assert_int_equal(sw_packer_open(NULL, SEQ, 0, &packer), SW_OK);
    pack(packer);
    assert_int_equal(sw_packer_save(packer, &packed), SW_OK);
    assert_true(packed.bytes <= sw_packer_most_bytes(packer));
    sw_packer_close(packer);
    const struct sw_text whole = sw_text_of_buffer(&packed);
    assert_int_equal(restore(whole, VOCAB), SW_OK);
    assert_int_equal(restore(whole, SEQ), SW_ERR_CORRUPT); /* a token is out of the vocabulary */
    for (size_t bytes = 0; bytes < whole.bytes; bytes++)
        assert_int_equal(restore((struct sw_text){whole.data, bytes}, VOCAB), SW_ERR_CORRUPT);
    for (size_t i = 0; i < packed.bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            packed.data[i] ^= (char)(1 << bit);
            refused += restore(whole, VOCAB) != SW_OK;
            packed.data[i] ^= (char)(1 << bit);
        }
    assert_true(refused > (int)packed.bytes * 4);
    free(packed.data);
}

/* A document in parts of any size is packed as it is in one. */
static void parts_are_packed_like_the_whole(void **state) {
    (void)state;
    enum { LONGEST = 5 * SEQ };
    int32_t id[LONGEST];
    char loss[LONGEST];
    for (int i = 0; i < LONGEST; i++) {
        id[i] = i;
        loss[i] = 1;
    }
    for (size_t count = 1; count <= LONGEST; count++)
        for (size_t step = 1; step <= count; step++) {
            struct sw_packer *packer[2];
            struct sw_text_buffer packed[2] = {0};
            for (int p = 0; p < 2; p++) {
                assert_int_equal(sw_packer_open(NULL, SEQ, 0, &packer[p]), SW_OK);
                pack(packer[p]);
            }
            const struct sw_token_list whole = {.id = id, .count = count};
            assert_int_equal(sw_packer_add(packer[0], &whole, (struct sw_text){loss, count}), SW_OK);
            for (size_t at = 0; at < count; at += step) {
                const size_t taken = count - at < step ? count - at : step;
                const struct sw_token_list part = {.id = id + at, .count = taken};
                const struct sw_text part_loss = {loss + at, taken};
                assert_int_equal(sw_packer_add_part(packer[1], &part, part_loss, at + taken == count), SW_OK);
            }
            for (int p = 0; p < 2; p++) {
                assert_int_equal(sw_packer_save(packer[p], &packed[p]), SW_OK);
                sw_packer_close(packer[p]);
            }
            assert_int_equal(packed[0].bytes, packed[1].bytes);
            assert_memory_equal(packed[0].data, packed[1].data, packed[0].bytes);
            free(packed[0].data);
            free(packed[1].data);
        }
}

static void flip(void *const *state, const char *name, off_t at) {
    char path[SUPPORT_PATH_CHARS], byte;
    const int fd = open(support_path(state, name, path), O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static const struct sw_token_files files = {.token_bytes = 2, .documents = true, .digests = true};

static void write_document(struct sw_token_writer *writer) {
    int32_t id[] = {5, 6, 7};
    const struct sw_token_list tokens = {.id = id, .count = 3};
    assert_int_equal(sw_token_writer_add(writer, &tokens, (struct sw_text){"\1\0\1", 3}), SW_OK);
}

/* A writer goes on behind what was flushed only where each of the files has the bytes that it had. */
static void partial_files_are_those_that_were_written(void **state) {
    const char *const names[] = {"", "out.bin.partial", "out.bin.doc.partial", "out.bin.mask.partial"};
    char path[SUPPORT_PATH_CHARS];
    support_path(state, "out.bin", path);
    for (size_t i = 0; i < COUNT(names); i++) {
        struct sw_token_writer *writer;
        assert_int_equal(sw_token_writer_open(path, &files, &writer), SW_OK);
        assert_int_equal(sw_token_writer_begin(writer, &(struct sw_token_position){0}), SW_OK);
        write_document(writer);
        assert_int_equal(sw_token_writer_flush(writer), SW_OK);
        struct sw_token_position position = sw_token_writer_position(writer);
        write_document(writer);
        sw_token_writer_close(writer, true);
        if (i > 0)
            flip(state, names[i], 1);
        assert_int_equal(sw_token_writer_open(path, &files, &writer), SW_OK);
        assert_int_equal(sw_token_writer_begin(writer, &position), i > 0 ? SW_ERR_CORRUPT : SW_OK);
        sw_error_clear();
        position.documents = position.tokens + 1;
        assert_int_equal(sw_token_writer_begin(writer, &position), SW_ERR_CORRUPT);
        sw_error_clear();
        sw_token_writer_close(writer, false);
    }
}

static void digests_tell_of_damage(void **state) {
    const char *const names[] = {"out.bin", "out.bin.doc", "out.bin.mask", "out.bin.xxh3"};
    char path[SUPPORT_PATH_CHARS], other[SUPPORT_PATH_CHARS];
    struct sw_token_writer *writer;
    sw_token_verdict verdict;
    support_path(state, "out.bin", path);
    assert_int_equal(sw_token_writer_open(path, &files, &writer), SW_OK);
    assert_int_equal(sw_token_writer_begin(writer, &(struct sw_token_position){0}), SW_OK);
    write_document(writer);
    assert_int_equal(sw_token_writer_publish(writer), SW_OK);
    sw_token_writer_close(writer, false);
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_int_equal(sw_token_file_check(path, &verdict), SW_OK);
        assert_int_equal(verdict, SW_TOKENS_RIGHT);
        flip(state, names[i], 2);
        assert_int_equal(sw_token_file_check(path, &verdict), SW_OK);
        assert_int_equal(verdict, SW_TOKENS_DAMAGED);
        flip(state, names[i], 2);
    }
    assert_int_equal(truncate(path, 4), 0);
    assert_int_equal(sw_token_file_check(path, &verdict), SW_OK);
    assert_int_equal(verdict, SW_TOKENS_DAMAGED);
    assert_int_equal(unlink(support_path(state, "out.bin.xxh3", other)), 0);
    assert_int_equal(sw_token_file_check(path, &verdict), SW_OK);
    assert_int_equal(verdict, SW_TOKENS_WITHOUT_DIGESTS);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(impossible_journals_are_not_believed),
        cmocka_unit_test(impossible_states_of_a_packer_are_refused),
        cmocka_unit_test(parts_are_packed_like_the_whole),
        IN_FOLDER(partial_files_are_those_that_were_written),
        IN_FOLDER(digests_tell_of_damage),
    };
    return cmocka_run_group_tests_name("journal", tests, NULL, NULL);
}
