/* A tokenizer.json, and behind a zero byte a text: what is accepted makes tokens that exist, and UTF-8 of them. A
 * byte-level tokenizer of our own gives every text back. */
#include "tests/fuzz/target.h"

#include "text/tokenizer.h"
#include "text/unicode.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static struct sw_tokenizer *bytes_tokenizer; /* its tokens are the 256 bytes */

/* Spells the 256 bytes with GPT-2's characters: those that print by themselves, the others from 256 on. */
static json_t *spell_bytes(void) {
    json_t *vocab = json_object();
    int next = 256;
    for (int byte = 0; byte < 256; byte++) {
        const int prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        const int code = prints ? byte : next++;
        const char two[] = {(char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F)), 0}, one[] = {(char)code, 0};
        json_object_set_new(vocab, code < 128 ? one : two, json_integer(byte));
    }
    return vocab;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    json_t *file = json_pack("{s:{s:s, s:o, s:[]}, s:{s:s, s:b}, s:{s:s}}", "model", "type", "BPE", "vocab",
                             spell_bytes(), "merges", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0,
                             "decoder", "type", "ByteLevel");
    char *text = json_dumps(file, 0);
    fuzz_put("bytes.json", text, strlen(text));
    const sw_status status = sw_tokenizer_load(fuzz_path("bytes.json"), &bytes_tokenizer);
    assert(status == SW_OK);
    free(text);
    json_decref(file);
    return 0;
}

/* Encodes and decodes. *out has the text again. */
static sw_status there_and_back(const struct sw_tokenizer *tokenizer, struct sw_text text, struct sw_text_buffer *out) {
    struct sw_token_list ids = {0};
    struct sw_text_encoder *encoder = NULL;
    struct sw_text_decoder *decoder = NULL;
    sw_status status = sw_text_encoder_create(tokenizer, &encoder);
    assert(status == SW_OK && sw_text_decoder_create(tokenizer, false, &decoder) == SW_OK);
    const struct sw_encode_options how = {.parse_special = true, .add_special = true};
    status = sw_text_encode(encoder, text, how, &ids);
    for (size_t i = 0; status == SW_OK && i < ids.count; i++) {
        assert(ids.id[i] >= 0 && ids.id[i] < sw_tokenizer_ids(tokenizer));
        status = sw_text_decode(decoder, ids.id[i], out);
        assert(status == SW_OK && sw_utf8_is_valid(sw_text_of_buffer(out)));
    }
    if (status == SW_OK)
        status = sw_text_decode_end(decoder, out);
    assert(sw_utf8_is_valid(sw_text_of_buffer(out)));
    sw_text_decoder_destroy(decoder);
    sw_text_encoder_destroy(encoder);
    free(ids.id);
    return status;
}

static void check_bytes(struct sw_text text) {
    struct sw_text_buffer again = {0}, repaired = {0};
    sw_status status = there_and_back(bytes_tokenizer, text, &again);
    assert(status == SW_OK);
    status = sw_utf8_append_repaired(text, &repaired, NULL);
    assert(status == SW_OK && again.bytes == repaired.bytes);
    assert(again.bytes == 0 || memcmp(again.data, repaired.data, again.bytes) == 0);
    free(again.data);
    free(repaired.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *end = bytes == 0 ? NULL : memchr(data, 0, bytes);
    const size_t file_bytes = end == NULL ? bytes : (size_t)(end - data);
    const struct sw_text text = {(const char *)data + file_bytes, bytes - file_bytes};
    struct sw_tokenizer *tokenizer;
    struct sw_text_buffer out = {0};
    fuzz_put("tokenizer.json", data, file_bytes);
    if (sw_tokenizer_load(fuzz_path("tokenizer.json"), &tokenizer) == SW_OK) {
        /* A pattern may be too slow for its limits; that is an error, and no wrong answer. */
        (void)there_and_back(tokenizer, text, &out);
        sw_tokenizer_destroy(tokenizer);
    }
    sw_error_clear();
    free(out.data);
    check_bytes(text);
    return 0;
}
