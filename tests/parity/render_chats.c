/* Renders templates for jinja_rendering.py: a line of JSON with "template", "messages", "tokens" and
 * "add_generation_prompt" becomes one with "text" and the marks of its bytes, or with "error". */
#include "text/jinja/jinja.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static struct sw_text text_of(const json_t *string) {
    return (struct sw_text){json_string_value(string), json_string_length(string)};
}

static sw_status render(const json_t *line, struct sw_jinja_text *out) {
    const json_t *messages = json_object_get(line, "messages");
    json_t *tokens = json_object_get(line, "tokens"), *value;
    const size_t count = json_array_size(messages);
    struct sw_jinja_message *message = calloc(count + 1, sizeof *message);
    struct sw_jinja_variable *token = calloc(json_object_size(tokens) + 1, sizeof *token);
    struct sw_jinja_template *parsed = NULL;
    const char *name;
    size_t named = 0;
    if (message == NULL || token == NULL)
        abort();
    for (size_t i = 0; i < count; i++) {
        const json_t *from = json_array_get(messages, i);
        message[i] = (struct sw_jinja_message){json_string_value(json_object_get(from, "role")),
                                               text_of(json_object_get(from, "content"))};
    }
    json_object_foreach(tokens, name, value) token[named++] =
        (struct sw_jinja_variable){name, json_string_value(value)};
    const struct sw_jinja_input input = {.message = message,
                                         .messages = count,
                                         .token = token,
                                         .tokens = named,
                                         .add_generation_prompt =
                                             json_is_true(json_object_get(line, "add_generation_prompt"))};
    sw_status status = sw_jinja_parse(text_of(json_object_get(line, "template")), &parsed);
    if (status == SW_OK)
        status = sw_jinja_render(parsed, &input, out);
    sw_jinja_destroy(parsed);
    free(message);
    free(token);
    return status;
}

static json_t *answer(const json_t *line) {
    struct sw_jinja_text text = {0};
    const sw_status status = render(line, &text);
    json_t *result = json_object(), *marks = json_array();
    if (status != SW_OK)
        json_object_set_new(result, "error", json_string(sw_error_message(status)));
    else
        json_object_set_new(result, "text",
                            json_stringn(text.bytes.bytes > 0 ? text.bytes.data : "", text.bytes.bytes));
    for (size_t i = 0; i < text.marks.bytes; i++)
        json_array_append_new(marks, json_integer((unsigned char)text.marks.data[i]));
    json_object_set_new(result, "marks", marks);
    json_object_set_new(result, "unsupported", json_boolean(status == SW_ERR_UNSUPPORTED));
    sw_error_clear();
    sw_jinja_text_release(&text);
    return result;
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    json_error_t error;
    while (getline(&line, &room, stdin) > 0) {
        json_t *read = json_loads(line, JSON_ALLOW_NUL, &error);
        json_t *result = answer(read);
        json_dumpf(result, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
        fflush(stdout);
        json_decref(result);
        json_decref(read);
    }
    free(line);
    return 0;
}
