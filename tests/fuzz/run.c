/* run.json: what is accepted can be written, read again, and not be read with a bit of it flipped. The same input is
 * also read as the text of a commit. */
#include "tests/fuzz/target.h"

#include "io/store/store.h"
#include "run/folder/run.h"

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

/* Flips a bit of the file that was written, behind the name of its checksum. Where it is follows from the file. */
static void flip_one(void) {
    char path[SW_RUN_PATH_CHARS];
    snprintf(path, sizeof path, "%.*s/run.json", (int)sizeof path - 16, again_folder);
    FILE *file = fopen(path, "r+b");
    assert(file != NULL);
    unsigned sum = 0;
    long bytes = 0;
    for (int byte = fgetc(file); byte != EOF; byte = fgetc(file), bytes++)
        sum = sum * 31 + (unsigned)byte;
    const long first = (long)sizeof "{\n  \"checksum\"" - 1, at = first + (long)(sum / 8) % (bytes - first);
    fseek(file, at, SEEK_SET);
    const int byte = fgetc(file) ^ 1 << sum % 8;
    fseek(file, at, SEEK_SET);
    fputc(byte, file);
    fclose(file);
}

static void check_accepted(const struct sw_run *run) {
    struct sw_run again = {0};
    sw_status status = sw_run_write(again_folder, run);
    assert(status == SW_OK);
    status = sw_run_read(again_folder, &again);
    assert(status == SW_OK && again.data_digest == run->data_digest);
    sw_run_release(&again);
    flip_one();
    status = sw_run_read(again_folder, &again);
    assert(status != SW_OK);
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
