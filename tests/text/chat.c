/* Chats as text: what transformers renders (tests/data/chats.json, made by tests/parity/chat_templates.py, and
 * tests/data/jinja.json, made by tests/parity/jinja_rendering.py), and what of a chat has a loss. */
#include "tests/equipment/support.h"

#include "text/documents/chat_template.h"
#include "text/documents/json_document.h"

#include <jansson.h>

static json_t *read_golden(const char *name) {
    char path[4096];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/%s.json", getenv("SW_TEST_DATA"), name);
    json_t *golden = json_load_file(path, 0, &error);
    assert_non_null(golden);
    return golden;
}

static struct sw_text text_of(const json_t *string) {
    return (struct sw_text){json_string_value(string), json_string_length(string)};
}

static const char *member(const json_t *object, const char *name) {
    return json_string_value(json_object_get(object, name));
}

static const char *const specials[] = {"<|im_start|>",
                                       "<|im_end|>",
                                       "<|eot_id|>",
                                       "<|begin_of_text|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<s>",
                                       "</s>",
                                       "[INST]",
                                       "[/INST]",
                                       "<|turn|>",
                                       "<|return|>",
                                       "<|end|>"};
enum { SPECIALS = sizeof specials / sizeof specials[0], ROOM = 4096 };

/* Loads a tokenizer of bytes with special tokens; NULL: those of the formats. */
static struct sw_tokenizer *load_tokenizer(void **state, const json_t *tokens) {
    json_t *vocab = json_object(), *added = json_array();
    struct sw_tokenizer *tokenizer = NULL;
    char path[SUPPORT_PATH_CHARS];
    for (int i = 0; i < 256; i++) {
        char spelled[8];
        (void)snprintf(spelled, sizeof spelled, "<0x%02X>", i);
        json_object_set_new(vocab, spelled, json_integer(i));
    }
    json_object_set_new(vocab, "<unk>", json_integer(256));
    for (size_t i = 0; i < (tokens != NULL ? json_array_size(tokens) : SPECIALS); i++)
        json_array_append_new(
            added, json_pack("{s:i, s:s, s:b, s:b, s:b}", "id", 257 + (int)i, "content",
                             tokens != NULL ? json_string_value(json_array_get(tokens, i)) : specials[i], "special", 1,
                             "normalized", 0, "rstrip", tokens == NULL && strcmp(specials[i], "<|turn|>") == 0));
    json_t *file = json_pack("{s:{s:s, s:o, s:[], s:b, s:s}, s:o, s:{s:s, s:[{s:s}, {s:s}]}}", "model", "type", "BPE",
                             "vocab", vocab, "merges", "byte_fallback", 1, "unk_token", "<unk>", "added_tokens", added,
                             "decoder", "type", "Sequence", "decoders", "type", "ByteFallback", "type", "Fuse");
    char *text = json_dumps(file, 0);
    support_write(state, "tokenizer.json", text, strlen(text), path);
    assert_int_equal(sw_tokenizer_load(path, &tokenizer), SW_OK);
    free(text);
    json_decref(file);
    return tokenizer;
}

/* Opens a style: that of a template with special tokens by name, or of a format. */
static sw_status open_style(void **state, const struct sw_tokenizer *tokenizer, const char *template, json_t *tokens,
                            const char *format, struct sw_chat_style *out) {
    char path[SUPPORT_PATH_CHARS];
    const struct support_folder *folder = *state;
    json_t *config = tokens != NULL ? json_deep_copy(tokens) : json_object();
    if (template != NULL)
        json_object_set_new(config, "chat_template", json_string(template));
    char *text = json_dumps(config, 0);
    support_write(state, "tokenizer_config.json", text, strlen(text), path);
    free(text);
    json_decref(config);
    return sw_chat_style_open(folder->path, format, tokenizer, out);
}

static void must_open(void **state, const struct sw_tokenizer *tokenizer, const char *template, json_t *tokens,
                      const char *format, struct sw_chat_style *out) {
    const sw_status status = open_style(state, tokenizer, template, tokens, format, out);
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
}

/* Collects the parts of a rendered chat that have a loss, or those that may be special tokens. */
static void collect(const struct sw_marked_text *marked, bool special, char *out, size_t room) {
    size_t at = 0, used = 0;
    for (size_t i = 0; i < marked->parts; at += marked->part[i++].bytes) {
        if (special ? !marked->part[i].special : !marked->part[i].loss)
            continue;
        assert_true(used + marked->part[i].bytes < room);
        memcpy(out + used, marked->text.data + at, marked->part[i].bytes);
        used += marked->part[i].bytes;
    }
    out[used] = 0;
}

static sw_status append_chat(const json_t *object, const struct sw_chat_style *style, const char *where,
                             struct sw_marked_text *out) {
    struct sw_json_passed passed = {0};
    const struct sw_chat_lists lists = {.messages = json_object_get(object, "messages")};
    const struct sw_chat_reading how = {.style = style, .where = where, .passed = &passed};
    const sw_status status = sw_chat_append_json(&lists, &how, out);
    sw_json_passed_release(&passed);
    return status;
}

static void check_case(const json_t *item, const struct sw_chat_style *style, const char *name, size_t number) {
    struct sw_marked_text marked = {0};
    const struct sw_text wanted = text_of(json_object_get(item, "text"));
    const char *learnt = member(item, "learnt");
    char found[ROOM];
    const sw_status status = append_chat(item, style, "here", &marked);
    if (status != SW_OK)
        fail_msg("%s: %s", name, sw_error_message(status));
    if (marked.text.bytes != wanted.bytes || memcmp(marked.text.data, wanted.data, wanted.bytes) != 0)
        fail_msg("%s: chat %zu is rendered as '%.*s'", name, number, (int)marked.text.bytes, marked.text.data);
    if (learnt != NULL) {
        collect(&marked, false, found, sizeof found);
        assert_string_equal(found, learnt);
    }
    sw_marked_text_release(&marked);
}

/* The templates of families render what transformers does, and formats what the family's template does. */
static void chats_are_rendered(void **state) {
    json_t *golden = read_golden("chats"), *format, *item;
    struct sw_tokenizer *tokenizer = load_tokenizer(state, NULL);
    size_t i, number;
    json_array_foreach(golden, i, format) {
        json_t *tokens = json_pack("{s:s, s:{s:s}}", "bos_token", member(format, "begin"), "eos_token", "content",
                                   member(format, "end"));
        for (int own = 0; own < 2; own++) {
            struct sw_chat_style style;
            must_open(state, tokenizer, own ? member(format, "template") : NULL, tokens,
                      own ? "auto" : member(format, "name"), &style);
            json_array_foreach(json_object_get(format, "cases"), number, item)
                check_case(item, &style, member(format, "name"), number);
            sw_chat_style_release(&style);
        }
        json_decref(tokens);
    }
    sw_tokenizer_destroy(tokenizer);
    json_decref(golden);
}

/* Templates that no format here is like: text, and what of it is learnt. */
static void families_are_rendered(void **state) {
    json_t *golden = read_golden("jinja"), *family, *item;
    size_t i, number;
    json_array_foreach(json_object_get(golden, "families"), i, family) {
        struct sw_tokenizer *tokenizer = load_tokenizer(state, json_object_get(family, "special"));
        struct sw_chat_style style;
        must_open(state, tokenizer, member(family, "template"), json_object_get(family, "tokens"), "auto", &style);
        json_array_foreach(json_object_get(family, "cases"), number, item)
            check_case(item, &style, member(family, "name"), number);
        sw_chat_style_release(&style);
        sw_tokenizer_destroy(tokenizer);
    }
    json_decref(golden);
}

/* Random templates of the subset. */
static void templates_are_rendered(void **state) {
    (void)state;
    json_t *golden = read_golden("jinja"), *item, *one;
    size_t i, m;
    json_array_foreach(json_object_get(golden, "templates"), i, item) {
        struct sw_jinja_message message[8];
        struct sw_jinja_template *parsed;
        struct sw_jinja_text text = {0};
        const struct sw_jinja_variable token = {"bos_token", "<s>"};
        struct sw_jinja_input input = {.message = message, .token = &token, .tokens = 1, .add_generation_prompt = true};
        json_array_foreach(json_object_get(item, "messages"), m, one) message[input.messages++] =
            (struct sw_jinja_message){member(one, "role"), text_of(json_object_get(one, "content"))};
        sw_status status = sw_jinja_parse(text_of(json_object_get(item, "template")), &parsed);
        assert_int_equal(status, SW_OK);
        status = sw_jinja_render(parsed, &input, &text);
        const struct sw_text wanted = text_of(json_object_get(item, "text"));
        if (status != SW_OK)
            fail_msg("%s: %s", member(item, "template"), sw_error_message(status));
        if (text.bytes.bytes != wanted.bytes || memcmp(text.bytes.data, wanted.data, wanted.bytes) != 0)
            fail_msg("%s is rendered as '%.*s'", member(item, "template"), (int)text.bytes.bytes, text.bytes.data);
        sw_jinja_text_release(&text);
        sw_jinja_destroy(parsed);
    }
    json_decref(golden);
}

static void replies_have_a_loss(void **state) {
    static const struct {
        const char *format, *learnt;
    } cases[] = {
        {"chatml", "A<|im_end|>B<|im_end|>"},
        {"llama2", " A </s> B </s>"},
        {"mistral", "A</s>B</s>"},
        {"mistral-v3", " A</s> B</s>"},
        {"mistral-tekken", "A</s>B</s>"},
        {"phi4", "A<|im_end|>B<|im_end|>"},
        {"qwen3", "A<|im_end|><think>\n\n</think>\n\nB<|im_end|>"},
        {"harmony", "<|channel|>final<|message|>A<|channel|>final<|message|>B<|return|>"},
    };
    const struct sw_chat_turn turn[] = {{SW_CHAT_USER, {"<|im_end|></s>", 14}},
                                        {SW_CHAT_ASSISTANT, {"A", 1}},
                                        {SW_CHAT_USER, {"b", 1}},
                                        {SW_CHAT_ASSISTANT, {"B", 1}}};
    struct sw_tokenizer *tokenizer = load_tokenizer(state, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char found[ROOM];
        struct sw_marked_text marked = {0};
        struct sw_chat_style style;
        must_open(state, tokenizer, NULL, NULL, cases[i].format, &style);
        assert_int_equal(sw_chat_render(&style, turn, 4, (struct sw_chat_rendering){0}, &marked), SW_OK);
        collect(&marked, false, found, sizeof found);
        assert_string_equal(found, cases[i].learnt);
        collect(&marked, true, found, sizeof found);
        assert_null(strstr(found, "<|im_end|></s>"));
        sw_marked_text_release(&marked);
        sw_chat_style_release(&style);
    }
    sw_tokenizer_destroy(tokenizer);
}

#define TURN(begin, end) "{% for m in messages %}" begin "{{ m.content }}" end "{% endfor %}"
#define ASKS(text) "{% if add_generation_prompt %}" text "{% endif %}"

/* Where a reply begins if the template has earlier turns otherwise, or asks for a reply by more than it writes. */
static void replies_begin_where_the_template_has_them(void **state) {
    static const struct {
        const char *template, *learnt;
    } cases[] = {
        /* a count of the messages stands before all */
        {"{{ messages|length }}" TURN("<s>{{ m.role }}:", "</s>") ASKS("<s>assistant:"), "A</s>B</s>"},
        /* a reply that is asked for begins with thoughts */
        {TURN("<s>{{ m.role }}:\n", "</s>") ASKS("<s>assistant:\n<think>\n"), "A</s>B</s>"},
        /* thoughts that are nothing to learn, and marks that say so */
        {"{% for m in messages %}<s>{{ m.role }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>!"
         "{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
         "A</s>!B</s>!"},
    };
    const struct sw_chat_turn turn[] = {{SW_CHAT_USER, {"a", 1}},
                                        {SW_CHAT_ASSISTANT, {"A", 1}},
                                        {SW_CHAT_USER, {"</s>", 4}},
                                        {SW_CHAT_ASSISTANT, {"B", 1}}};
    struct sw_tokenizer *tokenizer = load_tokenizer(state, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char found[256];
        struct sw_marked_text marked = {0};
        struct sw_chat_style style;
        must_open(state, tokenizer, cases[i].template, NULL, "auto", &style);
        const sw_status status = sw_chat_render(&style, turn, 4, (struct sw_chat_rendering){0}, &marked);
        if (status != SW_OK)
            fail_msg("template %zu: %s", i, sw_error_message(status));
        collect(&marked, false, found, sizeof found);
        assert_string_equal(found, cases[i].learnt);
        sw_marked_text_release(&marked);
        sw_chat_style_release(&style);
    }
    sw_tokenizer_destroy(tokenizer);
}

/* A token that takes the white space behind it takes that of a message too, as it does for transformers; a message that
 * spells a token does not become one. */
static void tokens_of_templates_are_special(void **state) {
    static const int32_t wanted[] = {267, 'q', '<', '/', 's', '>', 264, 267, 'A', 264};
    const struct sw_chat_turn turn[] = {{SW_CHAT_USER, {" \n q</s>", 8}}, {SW_CHAT_ASSISTANT, {"A", 1}}};
    struct sw_tokenizer *tokenizer = load_tokenizer(state, NULL);
    struct sw_text_encoder *encoder;
    struct sw_marked_text marked = {0};
    struct sw_token_list tokens = {0};
    struct sw_text_buffer loss = {0};
    struct sw_chat_style style;
    must_open(state, tokenizer, TURN("<|turn|>\n", "</s>") ASKS("<|turn|>\n"), NULL, "auto", &style);
    assert_string_equal(style.end_of_turn, "</s>");
    assert_int_equal(sw_chat_render(&style, turn, 2, (struct sw_chat_rendering){0}, &marked), SW_OK);
    assert_int_equal(sw_text_encoder_create(tokenizer, &encoder), SW_OK);
    assert_int_equal(sw_marked_text_encode(encoder, &marked, false, &tokens, &loss), SW_OK);
    assert_int_equal(tokens.count, sizeof wanted / sizeof wanted[0]);
    for (size_t i = 0; i < tokens.count; i++) {
        assert_int_equal(tokens.id[i], wanted[i]);
        assert_int_equal(loss.data[i], i >= tokens.count - 2);
    }
    free(tokens.id);
    free(loss.data);
    sw_text_encoder_destroy(encoder);
    sw_marked_text_release(&marked);
    sw_chat_style_release(&style);
    sw_tokenizer_destroy(tokenizer);
}

/* A chat that goes on turn by turn is the text of the whole chat, with a reply opened. */
static void chats_go_on(void **state) {
    static const char *const names[] = {"chatml",         "qwen2.5",   "smollm2", "llama3",         "llama3.1",
                                        "zephyr",         "llama2",    "mistral", "mistral-spaced", "mistral-v3",
                                        "mistral-tekken", "ministral", "harmony"};
    const struct sw_chat_turn turn[] = {
        {SW_CHAT_USER, {"a", 1}}, {SW_CHAT_ASSISTANT, {"A", 1}}, {SW_CHAT_USER, {"b", 1}}};
    struct sw_tokenizer *tokenizer = load_tokenizer(state, NULL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct sw_marked_text whole = {0}, begun = {0}, more = {0};
        struct sw_chat_style style;
        const struct sw_chat_rendering opens = {.opens_reply = true};
        const struct sw_chat_rendering goes_on = {.opens_reply = true, .continues = true};
        must_open(state, tokenizer, NULL, NULL, names[i], &style);
        assert_int_equal(sw_chat_render(&style, turn, 3, opens, &whole), SW_OK);
        assert_int_equal(sw_chat_render(&style, turn, 1, opens, &begun), SW_OK);
        assert_int_equal(sw_chat_render(&style, turn + 2, 1, goes_on, &more), SW_OK);
        const size_t end = whole.text.bytes - more.text.bytes;
        assert_memory_equal(whole.text.data, begun.text.data, begun.text.bytes);
        assert_memory_equal(whole.text.data + end, more.text.data, more.text.bytes);
        /* Between them is the reply, with the token that ends its turn; in one format another than the model writes. */
        const char *token = style.earlier_end != NULL ? style.earlier_end : style.end_of_turn;
        assert_memory_equal(whole.text.data + end - strlen(token), token, strlen(token));
        sw_marked_text_release(&whole);
        sw_marked_text_release(&begun);
        sw_marked_text_release(&more);
        sw_chat_style_release(&style);
    }
    sw_tokenizer_destroy(tokenizer);
}

static void bad_chats_are_refused(void **state) {
    static const struct {
        const char *format, *json, *word;
    } cases[] = {
        {"chatml", "{\"messages\": []}", "no messages"},
        {"chatml", "{\"messages\": [{\"content\": \"a\"}]}", "role"},
        {"chatml", "{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}", "tool"},
        {"chatml", "{\"messages\": [{\"role\": \"user\"}]}", "content"},
        {"chatml", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "nothing to learn"},
        {"mistral", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", "alternate"},
        {"mistral",
         "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
         "no system turn"},
        {"chatml",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": \"b\"}]}",
         "not the first"},
    };
    struct sw_tokenizer *tokenizer = load_tokenizer(state, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_error_t error;
        json_t *object = json_loads(cases[i].json, 0, &error);
        struct sw_marked_text marked = {0};
        struct sw_chat_style style;
        must_open(state, tokenizer, NULL, NULL, cases[i].format, &style);
        const sw_status status = append_chat(object, &style, "chat.jsonl:7", &marked);
        assert_int_equal(status, SW_ERR_ARG);
        assert_non_null(strstr(sw_error_message(status), "chat.jsonl:7"));
        if (strstr(sw_error_message(status), cases[i].word) == NULL)
            fail_msg("'%s' lacks '%s'", sw_error_message(status), cases[i].word);
        sw_error_clear();
        sw_marked_text_release(&marked);
        sw_chat_style_release(&style);
        json_decref(object);
    }
    sw_tokenizer_destroy(tokenizer);
}

#define DEEP10(x) x x x x x x x x x x
#define DEEP500(x) DEEP10(DEEP10(x x x x x))
#define TEN "'aaaaaaaaaa'"
#define THROUGH "{% for a in range(99999) %}"

/* Constructs that the subset lacks, and templates that would take too long or too much, are named with their line. */
static void bad_templates_are_refused(void **state) {
    static const struct {
        const char *template, *word;
    } cases[] = {
        {"{{ messages }}", "--chat-format"},
        {"{{ messages }}", "a list as text"},
        {"x\n{{ 'a' | wordwrap }}", "line 2: the filter 'wordwrap'"},
        {"{% if 1 is sameas 1 %}{% endif %}", "the test 'sameas'"},
        {"{{ {1: 2} | dictsort }}", "keys that are no strings"},
        {"{{ {'a': 2} | dictsort(by='value') }}", "something else than the key"},
        {"{{ 'a' | dictsort }}", "no items of a string"},
        {"\n\n{% include 'x' %}", "line 3: the tag 'include'"},
        {"{{ 1.5 }}", "line 1: numbers"},
        {"{{ messages[0].content.swapcase() }}", "'swapcase' of a string"},
        {"{{ messages.append(1) }}", "'append' of a list"},
        {"{{ ''.__class__ }}", "'__class__'"},
        {"{{ strftime_now('%Y') }}", "strftime_now"},
        {"{{ nothing.at.all }}", "'nothing' is undefined, while rendering line 1"},
        {"{{ 'a' + 1 }}", "a string + a number"},
        {"{{ ('a' | safe) + '<' }}", "safe"},
        {"{{ raise_exception('not me') }}", "refuses this chat: not me"},
        {"{% for m in messages %}{{ m.content }}", "no {% endfor %}"},
        {"{% for m in messages %}{{ 'cut off", "a string does not end"},
        {"{{ (1", "a tag does not end"},
        {"{{ 1) }}", "')' closes nothing"},
        {"{% break %}", "within loops"},
        {"{% for m in messages %}{{ m.role }}{% endfor %}", "what the assistant says"},
        {"{% for m in messages %}{{ m.content }}<|no|>{% endfor %}", "'<|no|>', which is no special token"},
        {"{{ " DEEP500("(") "1" DEEP500(")") " }}", "nested more than"},
        {"{{ 1" DEEP500(" + 1") " }}", "nested more than"},
        {"{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}", "nested more than"},
        {"{% set l = range(99999) %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}", "16777216 steps"},
        {"{% set l = range(99999) %}{% set m = range(99999) %}" THROUGH "{% if l != m %}{% endif %}{% endfor %}",
         "16777216 steps"},
        {"{% set s = 'a' * 400000 %}{% set t = 'a' * 200000 %}" THROUGH "{% if s.rfind(t) %}{% endif %}{% endfor %}",
         "16777216 steps"},
        {"{% set s = 'a' * 400000 %}" THROUGH "{% if s.strip(s) %}{% endif %}{% endfor %}", "16777216 steps"},
        {"{% set ns = namespace(a=" TEN ") %}" THROUGH "{% set ns.a = ns.a + ns.a %}{% endfor %}", "memory"},
        {"{% set ns = namespace(a=[]) %}" THROUGH "{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a | tojson }}", "deep"},
        {"{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
         "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
         "more than 1048576 values"},
        {"{{ range(1, 100002) }}", "more than 100000"},
        {"{{ 9223372036854775807 }}", "more than 18 digits"},
        {"{{ 999999999999999999 * 999999999999999999 }}", "64 bits"},
        {"{{ 1 // 0 }}", "zero"},
    };
    struct sw_tokenizer *tokenizer = load_tokenizer(state, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_chat_style style;
        const sw_status status = open_style(state, tokenizer, cases[i].template, NULL, "auto", &style);
        assert_int_not_equal(status, SW_OK);
        if (strstr(sw_error_message(status), cases[i].word) == NULL)
            fail_msg("'%s' lacks '%s'", sw_error_message(status), cases[i].word);
        sw_error_clear();
    }
    sw_tokenizer_destroy(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chats_are_rendered, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(families_are_rendered, support_make_folder, support_remove_folder),
        cmocka_unit_test(templates_are_rendered),
        cmocka_unit_test_setup_teardown(replies_have_a_loss, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(replies_begin_where_the_template_has_them, support_make_folder,
                                        support_remove_folder),
        cmocka_unit_test_setup_teardown(tokens_of_templates_are_special, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(chats_go_on, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(bad_chats_are_refused, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(bad_templates_are_refused, support_make_folder, support_remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
