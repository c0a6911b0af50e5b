/* A token file with a mask and the borders of its documents beside it, after zero-terminated lengths of them: windows
 * of what is accepted have tokens of the vocabulary, and documents that begin within the window. */
#include "tests/fuzz/target.h"

#include "run/data/data.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES = 4, SEQ = 8, WINDOWS = 4 };

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

static void put_or_remove(const char *name, const uint8_t *data, size_t bytes) {
    if (bytes > 0)
        fuzz_put(name, data, bytes);
    else
        (void)unlink(fuzz_path(name));
}

static void check_window(const struct sw_tokens *window, int64_t vocab) {
    for (int i = 0; i < SEQ; i++) {
        assert(window->inputs[i] >= 0 && window->inputs[i] < vocab);
        assert(window->targets[i] >= -1 && window->targets[i] < vocab);
        assert(window->document_start[i] >= 0 && window->document_start[i] <= i);
    }
}

static void check_data(struct sw_data *data, int64_t vocab) {
    int32_t inputs[SEQ], targets[SEQ], starts[SEQ];
    const struct sw_tokens window = {inputs, targets, starts};
    char text[SW_DATA_TEXT_CHARS];
    assert(sw_data_text(data, text)[0] != '\0' && sw_data_train_windows(data) > 0);
    for (uint64_t i = 0; i < WINDOWS; i++) {
        int64_t learnt = 0, counted = 0;
        sw_status status = sw_data_train_window(data, i, window);
        assert(status == SW_OK);
        check_window(&window, vocab);
        for (int k = 0; k < SEQ; k++)
            counted += targets[k] >= 0;
        status = sw_data_train_targets(data, i, &learnt);
        assert(status == SW_OK && learnt == counted);
    }
}

/* The head: how the tokens are stored and how large the vocabulary is, the share of validation, and the bytes of the
 * mask and of the borders, which follow in this order and before the tokens. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < HEAD_BYTES || (size_t)HEAD_BYTES + data[2] + data[3] > bytes)
        return 0;
    const uint8_t *mask = data + HEAD_BYTES, *borders = mask + data[2], *tokens = borders + data[3];
    put_or_remove("t.bin.mask", mask, data[2]);
    put_or_remove("t.bin.doc", borders, data[3]);
    fuzz_put("t.bin", tokens, bytes - (size_t)(tokens - data));
    const char *path = fuzz_path("t.bin");
    const struct sw_data_spec spec = {.files = &path,
                                      .file_count = 1,
                                      .format = {.type = data[0] % 3},
                                      .vocab = data[0] & 64 ? INT64_C(70000) : 256,
                                      .seq = SEQ,
                                      .validation_percent = data[1] % 51,
                                      .seed = 1};
    struct sw_data *opened = NULL;
    int64_t counted = 0;
    const sw_status count_status = sw_data_count_train_tokens(&spec, &counted);
    sw_error_clear();
    if (sw_data_open(&spec, &opened) == SW_OK) {
        assert(count_status == SW_OK && counted == sw_data_train_tokens(opened));
        check_data(opened, spec.vocab);
        sw_data_close(opened);
    }
    sw_error_clear();
    return 0;
}
