/* A chat template, and behind a zero byte an object of JSON: each document that is accepted, whatever its schema,
 * becomes tokens by the template and in each format, in which only special tokens of the template are special, whatever
 * the chat says. */
#include "core/json.h"
#include "tests/fuzz/target.h"

#include "text/documents/json_document.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"chatml", "qwen2.5", "qwen3",   "smollm2",        "llama3", "llama3.1",
                                    "zephyr", "llama2",  "mistral", "mistral-spaced", "phi4",   "harmony"};
static const char *const specials[] = {
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>",
    "<|system|>",   "<|user|>",   "<|assistant|>",       "<|return|>",        "<|end|>"};
static struct sw_tokenizer *tokenizer;
static struct sw_text_encoder *encoder;
static struct sw_chat_style styles[sizeof names / sizeof names[0]];

static void load_tokenizer(const json_t *file) {
    char *text = json_dumps(file, 0);
    fuzz_put("tokenizer.json", text, strlen(text));
    sw_status status = sw_tokenizer_load(fuzz_path("tokenizer.json"), &tokenizer);
    assert(status == SW_OK);
    status = sw_text_encoder_create(tokenizer, &encoder);
    assert(status == SW_OK);
    free(text);
}

/* Tokens of one character each, with the special tokens of all formats. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    json_t *vocab = json_object(), *added = json_array();
    for (int i = 0; i < 256; i++) {
        char spelled[8];
        (void)snprintf(spelled, sizeof spelled, "<0x%02X>", i);
        json_object_set_new(vocab, spelled, json_integer(i));
    }
    json_object_set_new(vocab, "<unk>", json_integer(256));
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b}", "id", 257 + (int)i, "content", specials[i],
                                               "special", 1, "normalized", 0));
    json_t *file = json_pack("{s:{s:s, s:o, s:[], s:b, s:s}, s:o, s:{s:s, s:[{s:s}, {s:s}]}}", "model", "type", "BPE",
                             "vocab", vocab, "merges", "byte_fallback", 1, "unk_token", "<unk>", "added_tokens", added,
                             "decoder", "type", "Sequence", "decoders", "type", "ByteFallback", "type", "Fuse");
    load_tokenizer(file);
    json_decref(file);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const sw_status status = sw_chat_style_open(fuzz_folder(), names[i], tokenizer, &styles[i]);
        assert(status == SW_OK);
    }
    return 0;
}

static bool is_special(int32_t id) {
    return sw_tokenizer_next_special(tokenizer, sw_tokenizer_text(tokenizer, id), 0).id == id;
}

static void check_tokens(const struct sw_marked_text *marked) {
    struct sw_token_list tokens = {0};
    struct sw_text_buffer loss = {0};
    size_t bytes = 0, wanted = 0, found = 0;
    for (size_t i = 0; i < marked->parts; i++) {
        const struct sw_text part = {marked->text.data + bytes, marked->part[i].bytes};
        struct sw_special_match match = {.id = -1};
        while (marked->part[i].special && (match = sw_tokenizer_next_special(tokenizer, part, match.end)).id >= 0)
            wanted++;
        bytes += part.bytes;
    }
    assert(marked->parts == 0 || bytes == marked->text.bytes);
    const sw_status status = sw_marked_text_encode(encoder, marked, false, &tokens, &loss);
    assert(status == SW_OK && loss.bytes == tokens.count);
    for (size_t i = 0; i < tokens.count; i++)
        found += is_special(tokens.id[i]);
    assert(found == wanted);
    free(tokens.id);
    free(loss.data);
}

static sw_status style_of(void *context, const char *where, bool needed, const struct sw_chat_style **out) {
    (void)where, (void)needed;
    *out = context;
    return SW_OK;
}

/* Alpaca's lines for a model without a chat template. */
static sw_status no_style(void *context, const char *where, bool needed, const struct sw_chat_style **out) {
    (void)context;
    *out = NULL;
    return needed ? sw_fail(SW_ERR_ARG, "%s is a chat", where) : SW_OK;
}

static void check_document(const json_t *object, const struct sw_json_rules *rules) {
    struct sw_marked_text marked = {0};
    struct sw_json_passed passed = {0};
    if (sw_json_append_document(object, rules, "input", &passed, &marked) == SW_OK)
        check_tokens(&marked);
    sw_error_clear();
    sw_json_passed_release(&passed);
    sw_marked_text_release(&marked);
}

static void check_chat(const json_t *object) {
    check_document(object, &(struct sw_json_rules){.chat_style = no_style});
    for (int pair = SW_JSON_CHOSEN; pair <= SW_JSON_REJECTED; pair++) {
        check_document(object, &(struct sw_json_rules){.pair = (sw_json_pair)pair, .chat_style = no_style});
        check_document(
            object, &(struct sw_json_rules){.pair = (sw_json_pair)pair, .chat_style = style_of, .context = &styles[0]});
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const struct sw_json_rules rules = {
            .field = i == 1 ? "text" : NULL, .all_loss = i % 2 == 0, .chat_style = style_of, .context = &styles[i]};
        check_document(object, &rules);
    }
}

/* Renders a chat by the template itself. A template that is refused at once is not written to a file. */
static void check_template(struct sw_text text, const json_t *object) {
    struct sw_jinja_template *parsed;
    struct sw_chat_style style;
    if (sw_jinja_parse(text, &parsed) == SW_OK) {
        sw_jinja_destroy(parsed);
        fuzz_put("chat_template.jinja", text.data, text.bytes);
        if (sw_chat_style_open(fuzz_folder(), "auto", tokenizer, &style) == SW_OK) {
            const struct sw_json_rules rules = {.chat_style = style_of, .context = &style};
            if (object != NULL)
                check_document(object, &rules);
            sw_chat_style_release(&style);
        }
    }
    sw_error_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *end = bytes == 0 ? NULL : memchr(data, 0, bytes);
    const size_t template_bytes = end == NULL ? bytes : (size_t)(end - data);
    const struct sw_json_source source = {.text = end != NULL ? (const char *)end + 1 : NULL,
                                          .bytes = end != NULL ? bytes - template_bytes - 1 : 0,
                                          .name = "input",
                                          .bad = SW_ERR_ARG,
                                          .kind = SW_JSON_DATA};
    json_t *object = NULL;
    if (end != NULL && sw_json_decode(source, &object) != SW_OK)
        object = NULL;
    sw_error_clear();
    check_template((struct sw_text){(const char *)data, template_bytes}, object);
    if (object != NULL)
        check_chat(object);
    sw_error_clear();
    json_decref(object);
    return 0;
}
