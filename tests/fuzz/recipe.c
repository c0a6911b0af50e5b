/* A recipe: settings that are accepted can be written as run.json has them, and read again. */
#include "tests/fuzz/target.h"

#include "job/settings/settings.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_CHARS = 4200 };

static char path[PATH_CHARS];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    (void)snprintf(path, sizeof path, "%s", fuzz_path("recipe.yaml"));
    return 0;
}

static void check_accepted(const struct sw_settings *settings) {
    struct sw_settings again = {0};
    json_t *first = NULL, *second = NULL;
    sw_status status = sw_options_to_json(&sw_train_command, settings, &first);
    /* A text that is not UTF-8 cannot be written as JSON, which a start says before it makes anything. */
    if (status == SW_OK) {
        status = sw_options_defaults(&sw_train_command, &again);
        assert(status == SW_OK);
        status = sw_options_from_json(&sw_train_command, first, "run.json", &again);
        assert(status == SW_OK);
        status = sw_options_to_json(&sw_train_command, &again, &second);
        assert(status == SW_OK && json_equal(first, second));
    }
    json_decref(first);
    json_decref(second);
    sw_options_release(&sw_train_command, &again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct sw_settings settings = {0};
    bool help = false;
    char *argv[] = {"--recipe", path};
    fuzz_put("recipe.yaml", data, bytes);
    const sw_status status = sw_options_defaults(&sw_train_command, &settings);
    assert(status == SW_OK);
    if (sw_options_parse(&sw_train_command, sizeof argv / sizeof argv[0], argv, &settings, &help) == SW_OK && !help)
        check_accepted(&settings);
    sw_options_release(&sw_train_command, &settings);
    sw_error_clear();
    return 0;
}
