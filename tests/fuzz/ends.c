/* The files that name a model's special tokens, each behind a zero byte: config.json, generation_config.json,
 * tokenizer_config.json and special_tokens_map.json. What is found are tokens of the vocabulary, and an export that
 * names another end keeps JSON in them that names it first. */
#include "tests/fuzz/target.h"

#include "model/hf/checkpoint.h"
#include "text/model_text.h"

#include <assert.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"config.json", "generation_config.json", "tokenizer_config.json",
                                    "special_tokens_map.json"};
enum { NAMES = sizeof names / sizeof names[0], END = 2 };

static const char tokenizer[] =
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"<s>\": 2, \"</s>\": 3}, \"merges\": []},"
    "\"added_tokens\": [{\"id\": 2, \"content\": \"<s>\", \"special\": true},"
    "{\"id\": 3, \"content\": \"</s>\", \"special\": true}]}";

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    fuzz_put("tokenizer.json", tokenizer, sizeof tokenizer - 1);
    return 0;
}

static void check_found(const struct sw_model_text *text) {
    assert(text->end >= -1 && text->end < text->vocab && text->bos >= -1 && text->bos < text->vocab);
    assert(text->old_end >= -1 && text->old_end < text->vocab);
    for (size_t i = 0; i < text->ends.count; i++)
        assert(text->ends.id[i] >= 0 && text->ends.id[i] < text->vocab);
}

static void check_written(void) {
    for (int i = 0; i < 2; i++) {
        json_t *written = json_load_file(fuzz_path(names[i]), JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        const json_t *end = json_object_get(written, "eos_token_id");
        assert(json_number_value(i == 0 ? end : json_array_get(end, 0)) == END);
        json_decref(written);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static char token[] = "<s>";
    const struct sw_turn_end end = {.id = END, .token = token};
    struct sw_model_text text;
    for (int i = 0; i < NAMES; i++) {
        const uint8_t *zero = bytes == 0 ? NULL : memchr(data, 0, bytes);
        const size_t part = zero == NULL ? bytes : (size_t)(zero - data);
        if (part > 0)
            fuzz_put(names[i], data, part);
        else
            (void)unlink(fuzz_path(names[i]));
        bytes -= zero == NULL ? part : part + 1;
        data = zero == NULL ? data + part : zero + 1;
    }
    if (sw_model_text_open(fuzz_folder(), &text) == SW_OK) {
        check_found(&text);
        sw_model_text_close(&text);
    }
    sw_error_clear();
    if (sw_turn_end_write(fuzz_folder(), &end) == SW_OK)
        check_written();
    sw_error_clear();
    return 0;
}
