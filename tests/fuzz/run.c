/* run.json: what is accepted can be written, and read again. The same input is also read as the text of a commit. */
#include "tests/fuzz/target.h"

#include "io/store/store.h"
#include "train/folder/run.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Larger whole numbers are not all real ones. */
#define MOST_STEPS (INT64_C(1) << 53)

static const char *again_folder;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    static char path[SW_RUN_PATH_CHARS];
    snprintf(path, sizeof path, "%s", fuzz_path("again"));
    const int made = mkdir(path, 0700);
    assert(made == 0);
    again_folder = path;
    return 0;
}

static void check_accepted(const struct sw_run *run) {
    struct sw_run again = {0};
    sw_status status = sw_run_write(again_folder, run);
    assert(status == SW_OK);
    status = sw_run_read(again_folder, &again);
    assert(status == SW_OK && again.data_digest == run->data_digest);
    sw_run_release(&again);
}

static void read_position(const uint8_t *data, size_t bytes) {
    struct sw_run_position position;
    char *text = malloc(bytes + 1);
    assert(text != NULL);
    if (bytes > 0)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (sw_run_position_read(text, 0, &position) == SW_OK) {
        assert(position.step >= 0 && position.step <= MOST_STEPS && position.loss_scale.scale > 0.0);
        for (int i = 0; i < SW_RUN_RECENT_STEPS; i++)
            assert(position.recent[i].step >= 0 && position.recent[i].step <= position.step);
        char again[SW_STORE_META_BYTES];
        const sw_status status = sw_run_position_write(&position, 0, again, sizeof again);
        assert(status == SW_OK);
    }
    sw_error_clear();
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct sw_run run = {0};
    read_position(data, bytes);
    fuzz_put("run.json", data, bytes);
    if (sw_run_read(fuzz_folder(), &run) == SW_OK) {
        /* Its values are judged when the run goes on: also then in a sentence. */
        if (sw_settings_check(&run.settings) != SW_OK)
            sw_error_clear();
        check_accepted(&run);
    }
    sw_run_release(&run);
    sw_error_clear();
    return 0;
}
