/* Chats as text: what transformers renders (tests/data/chats.json, made by tests/parity/chat_templates.py), which
 * templates are known, and what of a chat has a loss. */
#include "tests/train/support.h"

#include "train/documents/chat_json.h"
#include "train/documents/chat_template.h"

#include <jansson.h>

static json_t *read_golden(void) {
    char path[4096];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/chats.json", getenv("SW_TEST_DATA"));
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

static struct sw_chat_style style_of(const json_t *format) {
    return (struct sw_chat_style){.format = sw_chat_format_find(member(format, "name")),
                                  .begin = strdup(member(format, "begin")),
                                  .end = strdup(member(format, "end"))};
}

static void templates_are_recognized(void **state) {
    (void)state;
    json_t *golden = read_golden(), *format;
    size_t i;
    json_array_foreach(golden, i, format) {
        const struct sw_chat_format *found = sw_chat_template_recognize(text_of(json_object_get(format, "template")));
        if (found == NULL || strcmp(sw_chat_format_name(found), member(format, "name")) != 0)
            fail_msg("the template of %s was not recognized", member(format, "name"));
    }
    json_decref(golden);
}

/* A template that differs in one word may render anything. */
static void other_templates_are_not(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "{{ messages }}",
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + "
        "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}{% endfor %}!{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}\n{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{% for message in messages %}{{ 'cut off",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (sw_chat_template_recognize((struct sw_text){texts[i], strlen(texts[i])}) != NULL)
            fail_msg("template %zu was recognized", i);
    const char *spelled = "{%- for message in messages -%}\n  {{- \"<|im_start|>\" + message.role + \"\\n\" + "
                          "message.content + \"<|im_end|>\\n\" -}}\n{%- endfor -%}\n{# reply #}{%- if "
                          "add_generation_prompt -%}{{- \"<|im_start|>assistant\\n\" -}}{%- endif -%}\n";
    assert_ptr_equal(sw_chat_template_recognize((struct sw_text){spelled, strlen(spelled)}),
                     sw_chat_format_find("chatml"));
}

/* A template of a known format that puts the system turn elsewhere. */
static void tools_do_not_hide_differences(void **state) {
    (void)state;
    json_t *golden = read_golden(), *format;
    size_t i;
    json_array_foreach(golden, i, format) {
        const char *text = member(format, "template"), *at = strstr(text, "loop.last and system_message");
        char *other = NULL;
        if (at == NULL)
            continue;
        assert_true(asprintf(&other, "%.*sloop.first%s", (int)(at - text), text, at + strlen("loop.last")) > 0);
        if (sw_chat_template_recognize((struct sw_text){other, strlen(other)}) != NULL)
            fail_msg("%s with a system turn in the first question was recognized", member(format, "name"));
        free(other);
    }
    json_decref(golden);
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

static void check_case(const json_t *item, const struct sw_chat_style *style, size_t number) {
    struct sw_marked_text marked = {0};
    const struct sw_text wanted = text_of(json_object_get(item, "text"));
    assert_int_equal(append_chat(item, style, "here", &marked), SW_OK);
    if (marked.text.bytes != wanted.bytes || memcmp(marked.text.data, wanted.data, wanted.bytes) != 0)
        fail_msg("%s: chat %zu is rendered as '%.*s'", sw_chat_format_name(style->format), number,
                 (int)marked.text.bytes, marked.text.data);
    sw_marked_text_release(&marked);
}

static void chats_are_rendered(void **state) {
    (void)state;
    json_t *golden = read_golden(), *format, *item;
    size_t i, number;
    json_array_foreach(golden, i, format) {
        struct sw_chat_style style = style_of(format);
        json_array_foreach(json_object_get(format, "cases"), number, item) check_case(item, &style, number);
        sw_chat_style_release(&style);
    }
    json_decref(golden);
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

static void replies_have_a_loss(void **state) {
    (void)state;
    static const struct {
        const char *format, *learnt, *special;
    } cases[] = {
        {"chatml", "A<|im_end|>B<|im_end|>",
         "<|im_start|><|im_end|><|im_start|><|im_end|><|im_start|><|im_end|><|im_start|><|im_end|>"},
        {"llama2", " A </s> B </s>", "<s></s><s></s>"},
        {"mistral", "A</s>B</s>", "<s></s></s>"},
        {"mistral-v3", " A</s> B</s>", "<s>[INST][/INST]</s>[INST][/INST]</s>"},
        {"mistral-tekken", "A</s>B</s>", "<s>[INST][/INST]</s>[INST][/INST]</s>"},
        {"qwen3", "A<|im_end|><think>\n\n</think>\n\nB<|im_end|>",
         "<|im_start|><|im_end|><|im_start|><|im_end|><|im_start|><|im_end|><|im_start|><|im_end|>"},
    };
    const struct sw_chat_turn turn[] = {{SW_CHAT_USER, {"<|im_end|></s>", 14}},
                                        {SW_CHAT_ASSISTANT, {"A", 1}},
                                        {SW_CHAT_USER, {"b", 1}},
                                        {SW_CHAT_ASSISTANT, {"B", 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char found[256];
        struct sw_marked_text marked = {0};
        const struct sw_chat_style style = {
            .format = sw_chat_format_find(cases[i].format), .begin = (char[]){"<s>"}, .end = (char[]){"</s>"}};
        assert_int_equal(sw_chat_render(&style, turn, 4, (struct sw_chat_rendering){0}, &marked), SW_OK);
        collect(&marked, false, found, sizeof found);
        assert_string_equal(found, cases[i].learnt);
        collect(&marked, true, found, sizeof found);
        assert_string_equal(found, cases[i].special);
        sw_marked_text_release(&marked);
    }
}

/* A chat that goes on turn by turn is the text of the whole chat, with a reply opened. */
static void chats_go_on(void **state) {
    (void)state;
    static const char *const names[] = {"chatml",         "qwen2.5",    "smollm2",        "llama3",
                                        "llama3.1",       "zephyr",     "llama2",         "mistral",
                                        "mistral-spaced", "mistral-v3", "mistral-tekken", "ministral"};
    const struct sw_chat_turn turn[] = {
        {SW_CHAT_USER, {"a", 1}}, {SW_CHAT_ASSISTANT, {"A", 1}}, {SW_CHAT_USER, {"b", 1}}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct sw_marked_text whole = {0}, begun = {0}, more = {0};
        const struct sw_chat_style style = {
            .format = sw_chat_format_find(names[i]), .begin = (char[]){"<s>"}, .end = (char[]){"</s>"}};
        const struct sw_chat_rendering opens = {.opens_reply = true};
        const struct sw_chat_rendering goes_on = {.opens_reply = true, .continues = true};
        assert_int_equal(sw_chat_render(&style, turn, 3, opens, &whole), SW_OK);
        assert_int_equal(sw_chat_render(&style, turn, 1, opens, &begun), SW_OK);
        assert_int_equal(sw_chat_render(&style, turn + 2, 1, goes_on, &more), SW_OK);
        const size_t end = whole.text.bytes - more.text.bytes;
        assert_memory_equal(whole.text.data, begun.text.data, begun.text.bytes);
        assert_memory_equal(whole.text.data + end, more.text.data, more.text.bytes);
        /* Between them is the reply, as the model writes it: with the token that ends its turn. */
        const char *token = sw_chat_end_of_turn(&style);
        assert_memory_equal(whole.text.data + end - strlen(token), token, strlen(token));
        sw_marked_text_release(&whole);
        sw_marked_text_release(&begun);
        sw_marked_text_release(&more);
    }
}

static void bad_chats_are_refused(void **state) {
    (void)state;
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
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_error_t error;
        json_t *object = json_loads(cases[i].json, 0, &error);
        struct sw_marked_text marked = {0};
        const struct sw_chat_style style = {
            .format = sw_chat_format_find(cases[i].format), .begin = (char[]){"<s>"}, .end = (char[]){"</s>"}};
        const sw_status status = append_chat(object, &style, "chat.jsonl:7", &marked);
        assert_int_equal(status, SW_ERR_ARG);
        assert_non_null(strstr(sw_error_message(status), "chat.jsonl:7"));
        if (strstr(sw_error_message(status), cases[i].word) == NULL)
            fail_msg("'%s' lacks '%s'", sw_error_message(status), cases[i].word);
        sw_error_clear();
        sw_marked_text_release(&marked);
        json_decref(object);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_are_recognized),      cmocka_unit_test(other_templates_are_not),
        cmocka_unit_test(tools_do_not_hide_differences), cmocka_unit_test(chats_are_rendered),
        cmocka_unit_test(replies_have_a_loss),           cmocka_unit_test(chats_go_on),
        cmocka_unit_test(bad_chats_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
