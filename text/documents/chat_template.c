/* Renders chats by a model's template, and finds which bytes are replies.
 *
 * A template is a program, so what it does around contents cannot be read off; it can be tried. Two probes, a question
 * alone and a question with its reply, show what opens and what ends a reply. Every byte of a rendering is marked with
 * the message it came from (text/jinja), so a user who writes the template's own tags cannot be taken for the template.
 *
 * Splitting by string search for role tags would depend on each template's spelling and be wrong for contents that
 * quote them. Where the beginning of a reply still cannot be told, the chat is refused: a loss on the wrong bytes would
 * teach the wrong thing in silence. */
#include "text/documents/chat_template.h"

#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/status.h"
#include "text/unicode.h"

#include <assert.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define CHATML_TURN "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
#define CHATML_REPLY "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define CHATML "{% for m in messages %}" CHATML_TURN "{% endfor %}" CHATML_REPLY
#define CHATML_WITH(system)                                                                                            \
    "{% if messages[0].role != 'system' %}<|im_start|>system\n" system "<|im_end|>\n{% endif %}" CHATML

/* Only replies after the last question keep their thoughts; the last one has a block for them even if it is empty. What
 * a tool answers is no question. */
#define QWEN3                                                                                                          \
    "{% set ns = namespace(question=messages|length - 1) %}{% for m in messages %}{% if m.role == 'user' and "         \
    "not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}"                      \
    "{% set ns.question = loop.index0 %}{% endif %}{% endfor %}"                                                       \
    "{% for m in messages %}{% if m.role != 'assistant' %}" CHATML_TURN "{% else %}"                                   \
    "{% set said = m.content %}{% set thoughts = '' %}{% if '</think>' in said %}"                                     \
    "{% set thoughts = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"                  \
    "{% set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}<|im_start|>assistant\n"                      \
    "{% if loop.index0 > ns.question and (loop.last or thoughts) %}<think>\n{{ thoughts.strip('\\n') }}\n</think>\n\n" \
    "{{ said.lstrip('\\n') }}{% else %}{{ said }}{% endif %}<|im_end|>\n{% endif %}{% endfor %}" CHATML_REPLY

#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3                                                                                                         \
    "{% for m in messages %}" HEADER("{{ m.role }}") "{{ m.content | trim }}<|eot_id|>{% endfor %}"                    \
                                                     "{% if add_generation_prompt %}" HEADER(                          \
                                                         "assistant") "{% endif %}"
/* Each chat begins with a system turn, with the published template's default date. */
#define LLAMA31                                                                                                        \
    "{{ bos_token }}{% set system = '' %}{% if messages[0].role == 'system' %}"                                        \
    "{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}{% endif %}" HEADER(                \
        "system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{{ system }}<|eot_id|>" LLAMA3

#define ZEPHYR                                                                                                         \
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"                            \
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"

/* Takes the system turn out of the messages. */
#define TAKE_SYSTEM                                                                                                    \
    "{% set system = none %}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"               \
    "{% set messages = messages[1:] %}{% endif %}"
#define ALTERNATE                                                                                                      \
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"                                                            \
    "{{ raise_exception('turns of user and assistant must alternate') }}{% endif %}"
#define EACH_TURN "{% for m in messages %}" ALTERNATE
#define LLAMA2                                                                                                         \
    TAKE_SYSTEM EACH_TURN                                                                                              \
        "{% set content = m.content %}{% if loop.first and system is not none %}"                                      \
        "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + content %}{% endif %}{% if m.role == 'user' "  \
        "%}{{ bos_token }}[INST] {{ content.strip() }} [/INST]{% else %} {{ content.strip() }} {{ eos_token }}"        \
        "{% endif %}{% endfor %}"
#define MISTRAL                                                                                                        \
    "{% if messages[0].role == 'system' %}{{ raise_exception('there is no system turn in this format') }}{% endif %}"  \
    "{{ bos_token }}" EACH_TURN "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"                    \
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
#define MISTRAL_SPACED                                                                                                 \
    TAKE_SYSTEM "{{ bos_token }}" EACH_TURN                                                                            \
                "{% if m.role == 'user' %} [INST] {% if loop.first and system is not none %}{{ system }}\n\n"          \
                "{% endif %}{{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
/* Puts the system turn into the last question. */
#define MISTRAL_V3(before_question, reply)                                                                             \
    TAKE_SYSTEM                                                                                                        \
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 "   \
    "%}{% endif %}{% endfor %}{{ bos_token }}" EACH_TURN "{% if m.role == 'user' %}[INST]" before_question             \
    "{% if loop.index0 == ns.last and system is not none %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"          \
    "{% else %}" reply "{{ eos_token }}{% endif %}{% endfor %}"

#define PHI4                                                                                                           \
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"                   \
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"

/* gpt-oss, without tools. Each chat begins with the published system turn, but for its date, which would make the same
 * chat another text each day; a system turn of a chat is the developer's. Only the last reply ends with <|return|>:
 * what ends earlier ones is not learnt. */
#define HARMONY_END "<|end|>"
#define HARMONY                                                                                                        \
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: "         \
    "2024-06\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for "     \
    "every message.<|end|>{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant{% generation %}"     \
    "<|channel|>final<|message|>{{ m.content }}{% if loop.last %}<|return|>{% endif %}{% endgeneration %}"             \
    "{% if not loop.last %}" HARMONY_END "{% endif %}{% elif m.role == 'system' %}<|start|>developer<|message|>"       \
    "# Instructions\n\n{{ m.content }}<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"         \
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"

static const struct sw_chat_format formats[] = {
    {"chatml", CHATML, "<s>", NULL},
    {"qwen2", CHATML_WITH("You are a helpful assistant."), "<s>", NULL},
    {"qwen2.5", CHATML_WITH("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."), "<s>", NULL},
    {"qwen3", QWEN3, "<s>", NULL},
    {"smollm2", CHATML_WITH("You are a helpful AI assistant named SmolLM, trained by Hugging Face"), "<s>", NULL},
    {"llama3", "{{ bos_token }}" LLAMA3, "<|begin_of_text|>", NULL},
    {"llama3.1", LLAMA31, "<|begin_of_text|>", NULL},
    {"zephyr", ZEPHYR, "<s>", NULL},
    {"llama2", LLAMA2, "<s>", NULL},
    {"mistral", MISTRAL, "<s>", NULL},
    {"mistral-spaced", MISTRAL_SPACED, "<s>", NULL},
    {"mistral-v3", MISTRAL_V3(" ", " {{ m.content | trim }}"), "<s>", NULL},
    {"mistral-tekken", MISTRAL_V3("", "{{ m.content }}"), "<s>", NULL},
    {"ministral", MISTRAL_V3("", " {{ m.content | trim }}"), "<s>", NULL},
    {"phi4", PHI4, "<s>", NULL},
    {"harmony", HARMONY, "<|startoftext|>", HARMONY_END},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* Returns the format of this name, or NULL. */
static const struct sw_chat_format *chat_format_find(const char *name) {
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

/* Returns the names of all formats, for messages: "chatml, qwen2, ...". */
static const char *chat_format_names(void) {
    return "chatml, qwen2, qwen2.5, qwen3, smollm2, llama3, llama3.1, zephyr, llama2, mistral, mistral-spaced, "
           "mistral-v3, mistral-tekken, ministral, phi4, harmony";
}

sw_status sw_chat_format_check(const char *name) {
    if (strcmp(name, "auto") == 0 || chat_format_find(name) != NULL)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "there is no chat format '%s'; the formats are %s", name, chat_format_names());
}

enum { MOST_CONFIG_BYTES = 16 << 20 };

/* The files of a folder that say how chats are written. NULL: there is no such file. */
struct chat_files {
    json_t *config;    /* tokenizer_config.json */
    char *jinja;       /* chat_template.jinja */
    json_t *processor; /* chat_template.json, of models that also take images; read if the others have no template */
};

static sw_status read_object(const char *folder, const char *name, json_t **out) {
    char path[PATH_MAX];
    bool is_there;
    SW_TRY(sw_model_file_find(folder, name, path, &is_there));
    return is_there ? sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, out) : SW_OK;
}

static sw_status read_files(const char *folder, struct chat_files *out) {
    char path[PATH_MAX];
    bool is_there;
    SW_TRY(read_object(folder, "tokenizer_config.json", &out->config));
    SW_TRY(sw_model_file_find(folder, "chat_template.jinja", path, &is_there));
    if (is_there)
        return sw_file_read_text(path, MOST_CONFIG_BYTES, &out->jinja);
    const json_t *own = json_object_get(out->config, "chat_template");
    return own == NULL || json_is_null(own) ? read_object(folder, "chat_template.json", &out->processor) : SW_OK;
}

/* Returns the template named "default" of several; NULL: there is none. */
static const json_t *default_of(const json_t *several) {
    for (size_t i = 0; i < json_array_size(several); i++) {
        const json_t *one = json_array_get(several, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            return json_object_get(one, "template");
    }
    return NULL;
}

/* Finds the folder's template: chat_template.jinja, else that of tokenizer_config.json (a string, or the one named
 * "default" of several), else chat_template.json. out->data is NULL if there is none. */
static sw_status find_template(const char *folder, const struct chat_files *files, struct sw_text *out) {
    const bool is_own = files->processor == NULL;
    const json_t *given = json_object_get(is_own ? files->config : files->processor, "chat_template");
    const json_t *template = json_is_array(given) ? default_of(given) : given;
    *out = (struct sw_text){json_string_value(template), json_string_length(template)};
    if (files->jinja != NULL)
        *out = (struct sw_text){files->jinja, strlen(files->jinja)};
    if (out->data == NULL && given != NULL && !json_is_null(given))
        return sw_fail(SW_ERR_ARG,
                       "%s/%s: its chat_template is neither a string nor a list of templates of which one has "
                       "the name 'default'; name a format with --chat-format: %s",
                       folder, is_own ? "tokenizer_config.json" : "chat_template.json", chat_format_names());
    return SW_OK;
}

static sw_status out_of_memory(void) {
    return sw_fail(SW_ERR_NOMEM, "no memory for a chat template");
}

/* Adds a variable, unless the value is NULL. Copies both. */
static sw_status add_token(struct sw_chat_style *style, const char *name, const char *value) {
    if (value == NULL)
        return SW_OK;
    struct sw_jinja_variable *grown = reallocarray(style->token, style->tokens + 1, sizeof *grown);
    if (grown == NULL)
        return out_of_memory();
    style->token = grown;
    struct sw_jinja_variable *token = &grown[style->tokens++];
    *token = (struct sw_jinja_variable){strdup(name), strdup(value)};
    return token->name != NULL && token->value != NULL ? SW_OK : out_of_memory();
}

/* Returns the text of a token in tokenizer_config.json, a string or an object with its content; NULL: neither. */
static const char *token_text(const json_t *token) {
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* Adds the special tokens that tokenizer_config.json names, as transformers gives them to templates. */
static sw_status add_tokens(struct sw_chat_style *style, const struct sw_chat_format *format, const json_t *config) {
    json_t *iterable = (json_t *)(uintptr_t)config, *value; /* Jansson's iterators take it as writable */
    const char *key;
    json_object_foreach(iterable, key, value) if (sw_path_ends_in(key, "_token"))
        SW_TRY(add_token(style, key, token_text(value)));
    if (format == NULL)
        return SW_OK;
    SW_TRY(
        add_token(style, "bos_token", token_text(json_object_get(config, "bos_token")) == NULL ? format->begin : NULL));
    return add_token(style, "eos_token", token_text(json_object_get(config, "eos_token")) == NULL ? "</s>" : NULL);
}

/* Renders messages. `asks`: followed by what begins a reply (add_generation_prompt). */
static sw_status chat_style_render(const struct sw_chat_style *style, const struct sw_jinja_message *message,
                                   size_t messages, bool asks, struct sw_jinja_text *out) {
    const struct sw_jinja_input input = {.message = message,
                                         .messages = messages,
                                         .token = style->token,
                                         .tokens = style->tokens,
                                         .add_generation_prompt = asks};
    return sw_jinja_render(style->parsed, &input, out);
}

/* Returns where the last byte with a message's mark ends, or 0. */
static size_t chat_content_end(const struct sw_jinja_text *text, unsigned char mark) {
    size_t end = text->marks.bytes;
    while (end > 0 && ((unsigned char)text->marks.data[end - 1] & SW_JINJA_CONTENT) != mark)
        end--;
    return end;
}

/* Finds the special token that ends a reply: the first one after the last message's content. */
static sw_status find_end_of_turn(struct sw_chat_style *style, const struct sw_tokenizer *tokenizer,
                                  const struct sw_jinja_text *text, size_t reply) {
    const size_t end = chat_content_end(text, sw_jinja_mark_of(reply));
    struct sw_text tail = {text->bytes.data + end, text->bytes.bytes - end};
    const struct sw_special_match match = sw_tokenizer_next_special(tokenizer, tail, 0);
    if (end == 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "it does not render what the assistant says");
    while (tail.bytes > 0 && tail.data[tail.bytes - 1] == '\n')
        tail.bytes--;
    if (match.id < 0)
        return sw_fail(SW_ERR_ARG, "it ends turns with '%.*s', which is no special token of the tokenizer.json",
                       tail.bytes < 60 ? (int)tail.bytes : 60, tail.data);
    style->end_of_turn = strndup(tail.data + match.begin, match.end - match.begin);
    return style->end_of_turn != NULL ? SW_OK : out_of_memory();
}

/* Finds the text between a question, the last message, and the reply. */
static sw_status find_opening(struct sw_chat_style *style, const struct sw_jinja_text *asked,
                              const struct sw_jinja_text *told, size_t question) {
    const size_t end = chat_content_end(asked, sw_jinja_mark_of(question));
    const bool goes_on = told->bytes.bytes <= asked->bytes.bytes && told->bytes.bytes > 0 &&
                         memcmp(asked->bytes.data, told->bytes.data, told->bytes.bytes) == 0;
    style->opening =
        goes_on ? strndup(asked->bytes.data + told->bytes.bytes, asked->bytes.bytes - told->bytes.bytes) : strdup("");
    style->behind_question = end > 0 ? strndup(asked->bytes.data + end, asked->bytes.bytes - end) : strdup("");
    return style->opening != NULL && style->behind_question != NULL ? SW_OK : out_of_memory();
}

/* Renders a question and its reply, to learn what the template puts around them. */
static sw_status probe(struct sw_chat_style *style, const struct sw_tokenizer *tokenizer,
                       const struct sw_jinja_message *message, size_t messages) {
    struct sw_jinja_text whole = {0}, asked = {0}, told = {0};
    sw_status status = chat_style_render(style, message, messages, false, &whole);
    if (status == SW_OK)
        status = chat_style_render(style, message, messages - 1, true, &asked);
    if (status == SW_OK)
        status = chat_style_render(style, message, messages - 1, false, &told);
    if (status == SW_OK)
        status = find_end_of_turn(style, tokenizer, &whole, messages - 1);
    if (status == SW_OK)
        status = find_opening(style, &asked, &told, messages - 2);
    sw_jinja_text_release(&whole);
    sw_jinja_text_release(&asked);
    sw_jinja_text_release(&told);
    return status;
}

/* Learns what the template renders. Some templates need a system turn because of a date, some refuse one. */
static sw_status look(struct sw_chat_style *style, const struct sw_tokenizer *tokenizer) {
    static const struct sw_jinja_message message[] = {
        {"system", {"Rule.", 5}}, {"user", {"Question?", 9}}, {"assistant", {"Answer.", 7}}};
    const sw_status status = probe(style, tokenizer, message + 1, 2);
    if (status == SW_OK)
        return status;
    struct sw_chat_style other = *style;
    other.end_of_turn = other.opening = other.behind_question = NULL;
    {
        SW_HANDLES_ERRORS();
        if (probe(&other, tokenizer, message, 3) != SW_OK)
            return status;
    }
    sw_error_clear();
    *style = other;
    return SW_OK;
}

/* Fails: the template cannot be used. Says what to do instead. */
static sw_status refuse(sw_status status, const char *folder) {
    char *said = strdup(sw_error_message(status));
    if (said == NULL || status == SW_ERR_NOMEM) {
        free(said);
        return status;
    }
    sw_error_clear();
    (void)sw_fail(status,
                  "the chat template of %s cannot be used: %s; if one of these formats writes the same, name it with "
                  "--chat-format: %s; else write chats as the template does, one 'text' a line, and give them to "
                  "spillway tokenize --special",
                  folder, said, chat_format_names());
    free(said);
    return status;
}

static sw_status open_template(struct sw_chat_style *style, struct sw_text text, const struct sw_tokenizer *tokenizer) {
    SW_TRY(sw_jinja_parse(text, &style->parsed));
    return look(style, tokenizer);
}

static sw_status choose(const char *folder, const char *name, const struct chat_files *files,
                        const struct sw_tokenizer *tokenizer, struct sw_chat_style *style) {
    const struct sw_chat_format *format = strcmp(name, "auto") == 0 ? NULL : chat_format_find(name);
    struct sw_text own = {0};
    SW_TRY(sw_chat_format_check(name));
    if (format == NULL)
        SW_TRY(find_template(folder, files, &own));
    if (format == NULL && own.data == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no chat template; name the format with --chat-format: %s", folder,
                       chat_format_names());
    SW_TRY(add_tokens(style, format, files->config));
    if (format == NULL) {
        const sw_status status = open_template(style, own, tokenizer);
        return status == SW_OK ? SW_OK : refuse(status, folder);
    }
    style->format = format->name;
    style->earlier_end = format->earlier_end;
    const struct sw_text text = {format->chat_template, strlen(format->chat_template)};
    return sw_fail_while(open_template(style, text, tokenizer), "looking at the chat format %s", format->name);
}

sw_status sw_chat_style_open(const char *folder, const char *name, const struct sw_tokenizer *tokenizer,
                             struct sw_chat_style *out) {
    struct chat_files files = {0};
    assert(tokenizer != NULL);
    *out = (struct sw_chat_style){0};
    sw_status status = read_files(folder, &files);
    if (status == SW_OK)
        status = choose(folder, name, &files, tokenizer, out);
    json_decref(files.config);
    json_decref(files.processor);
    free(files.jinja);
    if (status != SW_OK)
        sw_chat_style_release(out);
    return status;
}

void sw_chat_style_release(struct sw_chat_style *style) {
    sw_jinja_destroy(style->parsed);
    for (size_t i = 0; i < style->tokens; i++) {
        free((char *)(uintptr_t)style->token[i].name);
        free((char *)(uintptr_t)style->token[i].value);
    }
    free(style->token);
    free(style->end_of_turn);
    free(style->opening);
    free(style->behind_question);
    *style = (struct sw_chat_style){0};
}

/* Finds which bytes of a rendered chat are replies. A reply begins where the rendering of the turns before it, with
 * add_generation_prompt, ends. If the template writes earlier turns differently once later ones follow, the opening
 * text is searched for right before the reply's content. */

/* Rendering a chat's beginning costs as much as the chat, so only the first replies of a long one get it. */
enum { MOST_BEGINNINGS = 64 };

/* A chat while it is being rendered. */
struct rendering {
    const struct sw_chat_style *style;
    const struct sw_chat_turn *turn;
    const struct sw_jinja_message *message; /* the turns, [messages] */
    size_t messages;
    struct sw_jinja_text text; /* the whole text */
    bool *loss;                /* per byte of the text */
};

static unsigned char content_at(const struct rendering *r, size_t at) {
    return (unsigned char)r->text.marks.data[at] & SW_JINJA_CONTENT;
}

/* The bytes of a message's content in the text, perhaps with text of the template in between. */
struct range {
    size_t begin, end; /* both SIZE_MAX: none */
};

/* Finds a message's content at `from` or later, but before that of the next messages. */
static struct range find_content(const struct rendering *r, size_t message, size_t from) {
    const unsigned char mark = sw_jinja_mark_of(message);
    struct range found = {SIZE_MAX, SIZE_MAX};
    for (size_t at = from; at < r->text.bytes.bytes; at++) {
        if (content_at(r, at) == mark)
            found = (struct range){found.begin == SIZE_MAX ? at : found.begin, at + 1};
        else if (content_at(r, at) != 0 &&
                 (found.begin != SIZE_MAX || content_at(r, at) == sw_jinja_mark_of(message + 1) ||
                  content_at(r, at) == sw_jinja_mark_of(message + 2)))
            break;
    }
    return found;
}

/* Tells whether a text at `at` comes from the template itself. */
static bool template_has(const struct rendering *r, size_t at, const char *text) {
    const size_t bytes = strlen(text);
    if (r->text.bytes.bytes - at < bytes || memcmp(r->text.bytes.data + at, text, bytes) != 0)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (content_at(r, at + i) != 0)
            return false;
    return true;
}

static size_t shared_bytes(struct sw_text left, struct sw_text right) {
    size_t shared = 0;
    while (shared < left.bytes && shared < right.bytes && left.data[shared] == right.data[shared])
        shared++;
    return shared;
}

/* Returns where the reply begins if the template's opening of a reply continues differently from the text, as <think>
 * may: after the last whole tag or line of the opening that the text has, or with the content. */
static size_t begin_where_they_part(struct sw_text whole, struct sw_text asked, struct sw_text told, size_t content) {
    size_t shared = shared_bytes(whole, asked);
    if (shared < told.bytes || shared_bytes(whole, told) < told.bytes || asked.bytes == told.bytes)
        return SIZE_MAX;
    if (shared >= content)
        return content;
    while (shared > told.bytes && strchr(">]}\n", whole.data[shared - 1]) == NULL)
        shared--;
    return shared;
}

/* Stores where reply `i` begins, according to the rendering of the turns before it; SIZE_MAX: it does not tell. */
static sw_status begin_by_turns_before(const struct rendering *r, size_t i, size_t content, size_t *out) {
    const struct sw_text whole = sw_text_of_buffer(&r->text.bytes);
    struct sw_jinja_text asked = {0}, told = {0};
    sw_status status = chat_style_render(r->style, r->message, i, true, &asked);
    *out = SIZE_MAX;
    if (status == SW_OK && shared_bytes(whole, sw_text_of_buffer(&asked.bytes)) == asked.bytes.bytes) {
        *out = asked.bytes.bytes;
    } else if (status == SW_OK) {
        status = chat_style_render(r->style, r->message, i, false, &told);
        if (status == SW_OK)
            *out =
                begin_where_they_part(whole, sw_text_of_buffer(&asked.bytes), sw_text_of_buffer(&told.bytes), content);
    }
    sw_jinja_text_release(&asked);
    sw_jinja_text_release(&told);
    if (status == SW_OK || status == SW_ERR_NOMEM)
        return status;
    sw_error_clear(); /* the template refuses the beginning of the chat by itself, such as one without a question */
    return SW_OK;
}

/* Returns where the text that opens replies ends: its last occurrence before the content and after other content. */
static size_t begin_by_opening(const struct rendering *r, size_t from, size_t content) {
    const char *opening = *r->style->opening != 0 ? r->style->opening : r->style->behind_question;
    size_t found = SIZE_MAX;
    if (*opening == 0)
        return SIZE_MAX;
    for (size_t at = from; at < content && at < r->text.bytes.bytes; at++) {
        if (content_at(r, at) != 0)
            found = content == SIZE_MAX ? found : SIZE_MAX;
        else if ((content != SIZE_MAX || found == SIZE_MAX) && template_has(r, at, opening))
            found = at + strlen(opening);
    }
    return found <= content ? found : SIZE_MAX;
}

/* Returns where the token that ends a turn ends: the first one at `from` or later, before other content. */
static size_t end_of_reply(const struct rendering *r, size_t from) {
    const char *earlier = r->style->earlier_end;
    for (size_t at = from; at < r->text.bytes.bytes && content_at(r, at) == 0; at++) {
        if (template_has(r, at, r->style->end_of_turn))
            return at + strlen(r->style->end_of_turn);
        if (earlier != NULL && template_has(r, at, earlier))
            return at + strlen(earlier);
    }
    return SIZE_MAX;
}

static sw_status find_reply(const struct rendering *r, size_t i, size_t from, struct range *out) {
    const struct range content = find_content(r, i, from);
    size_t begin = SIZE_MAX;
    if (i < MOST_BEGINNINGS)
        SW_TRY(begin_by_turns_before(r, i, content.begin, &begin));
    if (begin == SIZE_MAX || begin < from || begin > content.begin)
        begin = begin_by_opening(r, from, content.begin);
    if (begin == SIZE_MAX)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the chat template writes earlier turns otherwise once later ones follow, so that it is not "
                       "known where the reply in message %zu begins",
                       i + 1);
    const size_t end = end_of_reply(r, content.begin != SIZE_MAX ? content.end : begin);
    if (end == SIZE_MAX)
        return sw_fail(SW_ERR_UNSUPPORTED, "the chat template does not end the reply in message %zu with %s", i + 1,
                       r->style->end_of_turn);
    *out = (struct range){begin, end};
    return SW_OK;
}

/* Marks what is within {% generation %}, if the template uses it. Returns whether it does. */
static bool mark_generated(struct rendering *r) {
    bool any = false;
    for (size_t at = 0; at < r->text.bytes.bytes; at++) {
        r->loss[at] = ((unsigned char)r->text.marks.data[at] & SW_JINJA_GENERATED) != 0;
        any |= r->loss[at];
    }
    return any;
}

static sw_status mark_replies(struct rendering *r) {
    struct range reply = {0};
    if (mark_generated(r))
        return SW_OK;
    for (size_t i = 0; i < r->messages; i++) {
        if (r->turn[i].role != SW_CHAT_ASSISTANT)
            continue;
        SW_TRY(find_reply(r, i, reply.end, &reply));
        memset(r->loss + reply.begin, true, reply.end - reply.begin);
    }
    return SW_OK;
}

/* Appends the text from `from` on, in parts that belong to the template or not, and have a loss or not. */
static sw_status append(const struct rendering *r, size_t from, struct sw_marked_text *out) {
    for (size_t end = from; from < r->text.bytes.bytes; from = end) {
        const struct sw_text_part how = {.special = content_at(r, from) == 0, .loss = r->loss[from]};
        while (end < r->text.bytes.bytes && (content_at(r, end) == 0) == how.special && r->loss[end] == how.loss)
            end++;
        SW_TRY(sw_marked_text_append(out, (struct sw_text){r->text.bytes.data + from, end - from}, how));
    }
    return SW_OK;
}

/* Finds where a chat continues after the reply of its second message. */
static sw_status find_continuation(const struct rendering *r, size_t *out) {
    const struct range reply = find_content(r, 1, 0);
    *out = reply.begin != SIZE_MAX ? end_of_reply(r, reply.end) : SIZE_MAX;
    return *out != SIZE_MAX
               ? SW_OK
               : sw_fail(SW_ERR_UNSUPPORTED, "the chat template does not end a reply with %s", r->style->end_of_turn);
}

static sw_status render(struct rendering *r, struct sw_chat_rendering how, struct sw_marked_text *out) {
    size_t from = 0;
    SW_TRY(chat_style_render(r->style, r->message, r->messages, how.opens_reply, &r->text));
    r->loss = calloc(r->text.bytes.bytes + 1, sizeof *r->loss);
    if (r->loss == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a chat");
    if (how.continues)
        SW_TRY(find_continuation(r, &from));
    else if (!how.opens_reply)
        SW_TRY(mark_replies(r));
    return append(r, from, out);
}

sw_status sw_chat_render(const struct sw_chat_style *style, const struct sw_chat_turn *turn, size_t turns,
                         struct sw_chat_rendering how, struct sw_marked_text *out) {
    static const char *const role_names[] = {"system", "user", "assistant"};
    /* A chat that continues is rendered after a question and a reply, which are then dropped. */
    const size_t before = how.continues ? 2 : 0;
    struct sw_jinja_message *message = calloc(turns + 2, sizeof *message);
    if (message == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a chat");
    message[0] = (struct sw_jinja_message){"user", {"?", 1}};
    message[1] = (struct sw_jinja_message){"assistant", {".", 1}};
    for (size_t i = 0; i < turns; i++)
        message[before + i] = (struct sw_jinja_message){role_names[turn[i].role], turn[i].content};
    struct rendering r = {.style = style, .turn = turn, .message = message, .messages = turns + before};
    const sw_status status = render(&r, how, out);
    sw_jinja_text_release(&r.text);
    free(r.loss);
    free(message);
    return status;
}

enum { LEAST_ROOM = 16 };

sw_status sw_marked_text_append(struct sw_marked_text *marked, struct sw_text text, struct sw_text_part how) {
    if (text.bytes == 0)
        return SW_OK;
    if (marked->parts == marked->room) {
        const size_t room = marked->room == 0 ? LEAST_ROOM : marked->room * 2;
        struct sw_text_part *grown = reallocarray(marked->part, room, sizeof *grown);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a document of %zu parts", room);
        marked->part = grown;
        marked->room = room;
    }
    SW_TRY(sw_text_buffer_append(&marked->text, text));
    how.bytes = text.bytes;
    marked->part[marked->parts++] = how;
    return SW_OK;
}

void sw_marked_text_clear(struct sw_marked_text *marked) {
    marked->text.bytes = 0;
    marked->parts = 0;
    marked->closed = marked->continues = marked->goes_on = marked->chosen = false;
    marked->line = 0;
    marked->from = NULL;
}

void sw_marked_text_release(struct sw_marked_text *marked) {
    free(marked->text.data);
    free(marked->part);
    *marked = (struct sw_marked_text){0};
}

/* Parts that are encoded as one text. */
struct run {
    struct sw_text text;
    size_t unlearnt_bytes; /* bytes without a loss at its beginning */
};

static sw_status append_loss(struct sw_text_buffer *loss, size_t count, bool value) {
    if (count == 0)
        return SW_OK;
    SW_TRY(sw_text_buffer_reserve(loss, count));
    memset(loss->data + loss->bytes, value ? 1 : 0, count);
    loss->bytes += count;
    return SW_OK;
}

/* Counts the tokens at `from` and later that a run has in common with the tokens of its beginning without a loss. */
static sw_status count_unlearnt(struct sw_text_encoder *encoder, const struct run *run,
                                struct sw_encode_options options, const struct sw_token_list *tokens, size_t from,
                                size_t *out) {
    struct sw_token_list alone = {0};
    const struct sw_text text = {run->text.data, run->unlearnt_bytes};
    const sw_status status = sw_text_encode(encoder, text, options, &alone);
    *out = 0;
    while (status == SW_OK && *out < alone.count && from + *out < tokens->count &&
           alone.id[*out] == tokens->id[from + *out])
        ++*out;
    free(alone.id);
    return status;
}

static sw_status encode_run(struct sw_text_encoder *encoder, struct run *run, struct sw_token_list *out,
                            struct sw_text_buffer *out_loss) {
    const size_t from = out->count;
    const struct sw_encode_options options = {.continues = from > 0};
    size_t unlearnt;
    if (run->text.bytes == 0)
        return SW_OK;
    SW_TRY(sw_text_encode(encoder, run->text, options, out));
    unlearnt = out->count - from;
    if (run->unlearnt_bytes > 0 && run->unlearnt_bytes < run->text.bytes)
        SW_TRY(count_unlearnt(encoder, run, options, out, from, &unlearnt));
    else if (run->unlearnt_bytes == 0)
        unlearnt = 0;
    SW_TRY(append_loss(out_loss, unlearnt, false));
    SW_TRY(append_loss(out_loss, out->count - from - unlearnt, true));
    *run = (struct run){0};
    return SW_OK;
}

/* A document while it is being encoded. */
struct encoding {
    struct sw_text_encoder *encoder;
    struct run run; /* read and not encoded yet */
    struct sw_token_list *out;
    struct sw_text_buffer *out_loss;
    size_t skipped; /* white space taken by a special token: bytes to skip */
};

static sw_status end_run(struct encoding *e) {
    return encode_run(e->encoder, &e->run, e->out, e->out_loss);
}

/* Adds the text at `data` to the end of the run. */
static sw_status add_text(struct encoding *e, const char *data, size_t bytes, bool loss) {
    const size_t skipped = bytes < e->skipped ? bytes : e->skipped;
    struct run *run = &e->run;
    e->skipped -= skipped;
    if (skipped == bytes)
        return SW_OK;
    /* A part without a loss after one with a loss needs a special token between them to end its loss. */
    if (!loss && run->unlearnt_bytes < run->text.bytes)
        SW_TRY(end_run(e));
    if (run->text.bytes == 0)
        run->text.data = data + skipped;
    run->unlearnt_bytes += loss ? 0 : bytes - skipped;
    run->text.bytes += bytes - skipped;
    return SW_OK;
}

static sw_status add_special(struct encoding *e, const struct sw_special_match *match, struct sw_text behind,
                             bool loss) {
    struct run *run = &e->run;
    if (match->strips_left)
        run->text.bytes -= sw_utf8_trailing_space_bytes(run->text);
    if (run->unlearnt_bytes > run->text.bytes)
        run->unlearnt_bytes = run->text.bytes;
    SW_TRY(end_run(e));
    SW_TRY(sw_token_list_append(e->out, &match->id, 1));
    e->skipped = match->strips_right ? sw_utf8_leading_space_bytes(behind) : 0;
    return append_loss(e->out_loss, 1, loss);
}

/* Adds the part of a text that begins at `at`. */
static sw_status add_part(struct encoding *e, struct sw_text text, size_t at, const struct sw_text_part *part) {
    const struct sw_text own = {text.data + at, part->bytes};
    for (size_t done = 0; done < own.bytes;) {
        struct sw_special_match match = {.id = -1, .begin = own.bytes, .end = own.bytes};
        if (part->special)
            match = sw_tokenizer_next_special(sw_text_encoder_tokenizer(e->encoder), own, done);
        SW_TRY(add_text(e, own.data + done, match.begin - done, part->loss));
        if (match.id >= 0) {
            const struct sw_text behind = {own.data + match.end, text.bytes - at - match.end};
            SW_TRY(add_special(e, &match, behind, part->loss));
        }
        done = match.end;
    }
    return SW_OK;
}

sw_status sw_marked_text_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                                bool parse_special, struct sw_token_list *out, struct sw_text_buffer *out_loss) {
    if (marked->parts == 0) {
        const struct sw_encode_options options = {.parse_special = parse_special};
        const size_t before = out->count;
        SW_TRY(sw_text_encode(encoder, sw_text_of_buffer(&marked->text), options, out));
        return append_loss(out_loss, out->count - before, true);
    }
    struct encoding e = {.encoder = encoder, .out = out, .out_loss = out_loss};
    for (size_t i = 0, at = 0; i < marked->parts; at += marked->part[i++].bytes)
        SW_TRY(add_part(&e, sw_text_of_buffer(&marked->text), at, &marked->part[i]));
    return end_run(&e);
}

static bool begins_with(const struct sw_token_list *tokens, size_t from, const struct sw_token_list *begin) {
    return tokens->count - from >= begin->count &&
           memcmp(tokens->id + from, begin->id, begin->count * sizeof *begin->id) == 0;
}

/* Inserts tokens before a document whose own tokens begin at `from`. They have a loss if its first token has one. */
static sw_status put_before(const struct sw_token_list *begin, size_t from, struct sw_token_list *tokens,
                            struct sw_text_buffer *loss) {
    const size_t own = tokens->count - from;
    SW_TRY(sw_token_list_append(tokens, begin->id, begin->count));
    memmove(tokens->id + from + begin->count, tokens->id + from, own * sizeof *tokens->id);
    memcpy(tokens->id + from, begin->id, begin->count * sizeof *begin->id);
    SW_TRY(append_loss(loss, begin->count, true));
    memmove(loss->data + from + begin->count, loss->data + from, own);
    memset(loss->data + from, loss->data[from + begin->count], begin->count);
    return SW_OK;
}

sw_status sw_document_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                             const struct sw_document_frame *frame, struct sw_token_list *out,
                             struct sw_text_buffer *out_loss) {
    const size_t from = out->count;
    SW_TRY(sw_marked_text_encode(encoder, marked, frame->parse_special, out, out_loss));
    if (out->count == from)
        return SW_OK;
    const bool begins = frame->begin.count > 0 && !marked->continues && (!marked->closed || frame->begins_chats);
    if (begins && !begins_with(out, from, &frame->begin))
        SW_TRY(put_before(&frame->begin, from, out, out_loss));
    if (frame->end < 0 || marked->closed || marked->goes_on)
        return SW_OK;
    SW_TRY(sw_token_list_append(out, &frame->end, 1));
    return append_loss(out_loss, 1, true);
}

sw_status sw_prompt_encode(struct sw_text_encoder *encoder, const struct sw_model_text *model, int bos,
                           struct sw_text prompt, struct sw_token_list *out) {
    const struct sw_marked_text marked = {.text = {.data = (char *)(uintptr_t)prompt.data, .bytes = prompt.bytes}};
    struct sw_document_frame frame = {.end = -1, .parse_special = true};
    struct sw_text_buffer loss = {0};
    const size_t from = out->count;
    sw_status status = sw_model_text_begin(model, bos, &frame.begin);
    if (status == SW_OK)
        status = sw_document_encode(encoder, &marked, &frame, out, &loss);
    if (status == SW_OK && out->count == from)
        status = sw_token_list_append(out, frame.begin.id, frame.begin.count);
    free(frame.begin.id);
    free(loss.data);
    return status;
}
