/* A text file: its name and how it is read are in the first bytes. Documents are UTF-8 and have their parts' bytes, and
 * a reader that goes on between two of them reads the same ones. */
#include "tests/fuzz/target.h"

#include "core/log.h"
#include "text/documents/text_reader.h"
#include "text/unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { HEAD_BYTES = 2, MOST_DOCUMENTS = 64, CUT_BYTES = 100 };

/* The first byte is a letter of one of these; '?' cannot be read and must not be. */
static const char *const names[] = {"a.txt", "a.jsonl", "a.json", "a.md", "a.txt.gz", "a.jsonl.gz", "a.json.zst"};
static const char *const encodings[] = {NULL, NULL, "UTF-16", "LATIN1", "GBK", NULL, NULL, NULL};

struct documents {
    uint64_t digest[MOST_DOCUMENTS];
    struct sw_text_position before[MOST_DOCUMENTS]; /* where each begins */
    int count;
    bool ended; /* without an error, and not because there are too many */
};

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

/* The bits of the second byte. */
static struct sw_text_rules rules_of(uint8_t how) {
    return (struct sw_text_rules){
        .lines = (how & 7) == 1,
        .separator = (how & 7) == 2 ? "<|endoftext|>" : NULL,
        .field = (how & 7) == 3 ? "text" : NULL,
        .most_text_bytes = (how & 7) == 4 ? CUT_BYTES : 0,
        .all_loss = (how & 8) != 0,
        .skip_bad = (how & 16) != 0,
        .model = fuzz_folder(),
        .chat_format = "auto",
        .coding = {.encoding = encodings[how & 7], .lossy = (how & 32) != 0},
    };
}

static void check_document(const struct sw_marked_text *document) {
    size_t bytes = 0;
    assert(document->text.bytes > 0 && sw_utf8_is_valid(sw_text_of_buffer(&document->text)));
    for (size_t i = 0; i < document->parts; i++)
        bytes += document->part[i].bytes;
    assert(document->parts == 0 || bytes == document->text.bytes);
}

static void read_from(const char *path, const struct sw_text_rules *rules, const struct sw_text_position *from,
                      struct documents *out) {
    struct sw_text_reader *reader = NULL;
    struct sw_marked_text document = {0};
    sw_status status = sw_text_reader_open(&path, 1, rules, &reader);
    assert(status == SW_OK);
    if (from != NULL)
        status = sw_text_reader_go_to(reader, from);
    for (*out = (struct documents){0}; status == SW_OK && out->count < MOST_DOCUMENTS; out->count++) {
        out->before[out->count] = sw_text_reader_position(reader);
        status = sw_text_reader_next(reader, &document, &out->ended);
        if (status != SW_OK || out->ended)
            break;
        check_document(&document);
        out->digest[out->count] = XXH3_64bits(document.text.data, document.text.bytes);
    }
    sw_error_clear();
    sw_marked_text_release(&document);
    sw_text_reader_close(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct documents all, rest;
    if (bytes < HEAD_BYTES)
        return 0;
    const char *name = names[data[0] % (sizeof names / sizeof names[0])];
    const struct sw_text_rules rules = rules_of(data[1]);
    sw_log_set_quiet();
    fuzz_put(name, data + HEAD_BYTES, bytes - HEAD_BYTES);
    read_from(fuzz_path(name), &rules, NULL, &all);
    const int half = all.count / 2;
    if (half > 0) {
        read_from(fuzz_path(name), &rules, &all.before[half], &rest);
        assert(rest.ended == all.ended || all.count == MOST_DOCUMENTS);
        for (int i = 0; i < rest.count && half + i < all.count; i++)
            assert(rest.digest[i] == all.digest[half + i]);
    }
    return 0;
}
