#include "text/documents/chat_template.h"

#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "text/documents/chat_format.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CONFIG_BYTES = 16 << 20 };

/* The files of a folder that say how chats are written; NULL: there is no such file. */
struct chat_files {
    json_t *config;    /* tokenizer_config.json */
    char *jinja;       /* chat_template.jinja */
    json_t *processor; /* chat_template.json, of models that take images, too; read where the others have no template */
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

/* Returns the template of several that is named "default". NULL: there is none. */
static const json_t *default_of(const json_t *several) {
    for (size_t i = 0; i < json_array_size(several); i++) {
        const json_t *one = json_array_get(several, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            return json_object_get(one, "template");
    }
    return NULL;
}

/* Finds the folder's template: chat_template.jinja, else that of tokenizer_config.json, which is a string, or of
 * several the one named "default", else chat_template.json. out->data is NULL where there is none. */
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
                       folder, is_own ? "tokenizer_config.json" : "chat_template.json", sw_chat_format_names());
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

/* Returns a token of tokenizer_config.json, which is a string or an object with its content, or NULL. */
static const char *token_text(const json_t *token) {
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}

/* Takes the special tokens that tokenizer_config.json names, as transformers gives them to templates. */
static sw_status add_tokens(struct sw_chat_style *style, const struct sw_chat_format *format, const json_t *config) {
    json_t *iterable = (json_t *)(uintptr_t)config, *value; /* Jansson's iterators want it writable */
    const char *key;
    json_object_foreach(iterable, key, value) if (sw_path_ends_in(key, "_token"))
        SW_TRY(add_token(style, key, token_text(value)));
    if (format == NULL)
        return SW_OK;
    SW_TRY(
        add_token(style, "bos_token", token_text(json_object_get(config, "bos_token")) == NULL ? format->begin : NULL));
    return add_token(style, "eos_token", token_text(json_object_get(config, "eos_token")) == NULL ? "</s>" : NULL);
}

sw_status sw_chat_style_render(const struct sw_chat_style *style, const struct sw_jinja_message *message,
                               size_t messages, bool asks, struct sw_jinja_text *out) {
    const struct sw_jinja_input input = {.message = message,
                                         .messages = messages,
                                         .token = style->token,
                                         .tokens = style->tokens,
                                         .add_generation_prompt = asks};
    return sw_jinja_render(style->parsed, &input, out);
}

size_t sw_chat_content_end(const struct sw_jinja_text *text, unsigned char mark) {
    size_t end = text->marks.bytes;
    while (end > 0 && ((unsigned char)text->marks.data[end - 1] & SW_JINJA_CONTENT) != mark)
        end--;
    return end;
}

/* Finds the special token that ends a reply: the first one behind the content of the last message. */
static sw_status find_end_of_turn(struct sw_chat_style *style, const struct sw_tokenizer *tokenizer,
                                  const struct sw_jinja_text *text, size_t reply) {
    const size_t end = sw_chat_content_end(text, sw_jinja_mark_of(reply));
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

/* Finds what stands between a question, the last message, and the reply. */
static sw_status find_opening(struct sw_chat_style *style, const struct sw_jinja_text *asked,
                              const struct sw_jinja_text *told, size_t question) {
    const size_t end = sw_chat_content_end(asked, sw_jinja_mark_of(question));
    const bool goes_on = told->bytes.bytes <= asked->bytes.bytes && told->bytes.bytes > 0 &&
                         memcmp(asked->bytes.data, told->bytes.data, told->bytes.bytes) == 0;
    style->opening =
        goes_on ? strndup(asked->bytes.data + told->bytes.bytes, asked->bytes.bytes - told->bytes.bytes) : strdup("");
    style->behind_question = end > 0 ? strndup(asked->bytes.data + end, asked->bytes.bytes - end) : strdup("");
    return style->opening != NULL && style->behind_question != NULL ? SW_OK : out_of_memory();
}

/* Renders a question and its reply, to see what the template has around them. */
static sw_status probe(struct sw_chat_style *style, const struct sw_tokenizer *tokenizer,
                       const struct sw_jinja_message *message, size_t messages) {
    struct sw_jinja_text whole = {0}, asked = {0}, told = {0};
    sw_status status = sw_chat_style_render(style, message, messages, false, &whole);
    if (status == SW_OK)
        status = sw_chat_style_render(style, message, messages - 1, true, &asked);
    if (status == SW_OK)
        status = sw_chat_style_render(style, message, messages - 1, false, &told);
    if (status == SW_OK)
        status = find_end_of_turn(style, tokenizer, &whole, messages - 1);
    if (status == SW_OK)
        status = find_opening(style, &asked, &told, messages - 2);
    sw_jinja_text_release(&whole);
    sw_jinja_text_release(&asked);
    sw_jinja_text_release(&told);
    return status;
}

/* Looks at what the template renders. Some templates need a system turn for want of a date, some refuse one. */
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

/* Says that a template cannot be used, and what to do instead. */
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
                  folder, said, sw_chat_format_names());
    free(said);
    return status;
}

static sw_status open_template(struct sw_chat_style *style, struct sw_text text, const struct sw_tokenizer *tokenizer) {
    SW_TRY(sw_jinja_parse(text, &style->parsed));
    return look(style, tokenizer);
}

static sw_status choose(const char *folder, const char *name, const struct chat_files *files,
                        const struct sw_tokenizer *tokenizer, struct sw_chat_style *style) {
    const struct sw_chat_format *format = strcmp(name, "auto") == 0 ? NULL : sw_chat_format_find(name);
    struct sw_text own = {0};
    SW_TRY(sw_chat_format_check(name));
    if (format == NULL)
        SW_TRY(find_template(folder, files, &own));
    if (format == NULL && own.data == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no chat template; name the format with --chat-format: %s", folder,
                       sw_chat_format_names());
    SW_TRY(add_tokens(style, format, files->config));
    if (format == NULL) {
        const sw_status status = open_template(style, own, tokenizer);
        return status == SW_OK ? SW_OK : refuse(status, folder);
    }
    style->format = format->name;
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
