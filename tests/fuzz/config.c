/* config.json: what is accepted can be written, and read again as the same model. */
#include "tests/fuzz/target.h"

#include "model/hf/config.h"
#include "model/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 64 };

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    return 0;
}

static void check_accepted(const struct sw_model_config *config) {
    struct sw_model_config again;
    struct sw_units *units = NULL;
    char *text = NULL, *text_again = NULL;
    sw_status status = sw_config_to_json(config, &text);
    assert(status == SW_OK);
    status = sw_config_parse(text, "what was written", &again);
    assert(status == SW_OK);
    status = sw_config_to_json(&again, &text_again);
    assert(status == SW_OK && strcmp(text, text_again) == 0);
    if (config->layers <= MAX_LAYERS && sw_model_units(config, 1, SW_OPTIMIZER_FP32, NULL, &units) == SW_OK)
        sw_units_destroy(units);
    free(text);
    free(text_again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct sw_model_config config;
    char *text = malloc(bytes + 1);
    if (bytes > 0)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (sw_config_parse(text, "config.json", &config) == SW_OK)
        check_accepted(&config);
    sw_error_clear();
    free(text);
    return 0;
}
