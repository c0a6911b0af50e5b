#include "train/documents/chat_json.h"

#include <stdlib.h>
#include <string.h>

sw_json_document sw_json_document_of(const json_t *object) {
    const json_t *prompt = json_object_get(object, "prompt"), *completion = json_object_get(object, "completion");
    if (json_object_get(object, "messages") != NULL)
        return SW_JSON_CHAT;
    if (prompt == NULL || completion == NULL)
        return SW_JSON_TEXT;
    return json_is_string(prompt) && json_is_string(completion) ? SW_JSON_COMPLETION : SW_JSON_CHAT;
}

static struct sw_text text_of(const json_t *string) {
    return (struct sw_text){json_string_value(string), json_string_length(string)};
}

static sw_status read_role(const json_t *message, const char *where, sw_chat_role *out) {
    static const char *const names[] = {"system", "user", "assistant"};
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role == NULL)
        return sw_fail(SW_ERR_ARG, "%s has a message without a 'role'", where);
    for (int i = 0; i < 3; i++) {
        if (strcmp(role, names[i]) != 0)
            continue;
        *out = (sw_chat_role)i;
        return SW_OK;
    }
    return sw_fail(SW_ERR_ARG, "%s has a message of the role '%.40s'; the roles are system, user and assistant", where,
                   role);
}

static bool says_something(const json_t *member) {
    return json_array_size(member) > 0 || json_object_size(member) > 0 || json_string_length(member) > 0;
}

/* Members of a message, or of the chat, that have something to say, but that no format here renders. */
static sw_status refuse_more(const json_t *object, const char *what, const char *where) {
    static const char *const names[] = {"tools", "functions", "tool_calls", "function_call", "reasoning_content"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (says_something(json_object_get(object, names[i])))
            return sw_fail(SW_ERR_UNSUPPORTED, "%s has %s with '%s', which this version does not render", where, what,
                           names[i]);
    const json_t *weight = json_object_get(object, "weight");
    if (json_is_number(weight) && json_number_value(weight) != 1.0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s has %s with a 'weight' of %g, but every reply counts as 1 here", where,
                       what, json_number_value(weight));
    return SW_OK;
}

static sw_status read_turns(const json_t *messages, const char *where, struct sw_chat_turn *turn) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
        SW_TRY(read_role(message, where, &turn[i].role));
        SW_TRY(refuse_more(message, "a message", where));
        if (!json_is_string(content))
            return sw_fail(SW_ERR_ARG, "%s has a message whose 'content' is no string", where);
        turn[i].content = text_of(content);
    }
    return SW_OK;
}

static sw_status check_turns(const struct sw_chat_turn *turn, size_t turns, bool all_loss, const char *where) {
    bool replies = false;
    for (size_t i = 0; i < turns; i++) {
        if (i > 0 && turn[i].role == SW_CHAT_SYSTEM)
            return sw_fail(SW_ERR_ARG, "%s has a system message that is not the first", where);
        replies |= turn[i].role == SW_CHAT_ASSISTANT;
    }
    if (turns == 0)
        return sw_fail(SW_ERR_ARG, "%s has no messages", where);
    if (!replies && !all_loss)
        return sw_fail(SW_ERR_ARG, "%s has no message of the assistant, so there is nothing to learn", where);
    return SW_OK;
}

static void mark_all(struct sw_marked_text *out) {
    for (size_t i = 0; i < out->parts; i++)
        out->part[i].loss = true;
}

sw_status sw_chat_append_json(const json_t *object, const struct sw_chat_style *style, bool all_loss, const char *where,
                              struct sw_marked_text *out) {
    const json_t *messages = json_object_get(object, "messages"), *more = NULL;
    if (messages == NULL) {
        messages = json_object_get(object, "prompt");
        more = json_object_get(object, "completion");
    }
    if (!json_is_array(messages) || (more != NULL && !json_is_array(more)))
        return sw_fail(SW_ERR_ARG, "%s: 'messages' is a list; 'prompt' and 'completion' are both strings or both lists",
                       where);
    SW_TRY(refuse_more(object, "a chat", where));
    const size_t first = json_array_size(messages), turns = first + json_array_size(more);
    struct sw_chat_turn *turn = calloc(turns + 1, sizeof *turn);
    if (turn == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a chat");
    sw_status status = read_turns(messages, where, turn);
    if (status == SW_OK)
        status = read_turns(more, where, turn + first);
    if (status == SW_OK)
        status = check_turns(turn, turns, all_loss, where);
    if (status == SW_OK)
        status = sw_fail_while(sw_chat_render(style, turn, turns, (struct sw_chat_rendering){0}, out), "rendering %s",
                               where);
    if (all_loss)
        mark_all(out);
    out->closed = true;
    free(turn);
    return status;
}

sw_status sw_completion_append_json(const json_t *object, bool all_loss, const char *where,
                                    struct sw_marked_text *out) {
    if (json_string_length(json_object_get(object, "completion")) == 0)
        return sw_fail(SW_ERR_ARG, "%s has an empty 'completion', so there is nothing to learn", where);
    SW_TRY(sw_marked_text_append(out, text_of(json_object_get(object, "prompt")),
                                 (struct sw_text_part){.loss = all_loss}));
    return sw_marked_text_append(out, text_of(json_object_get(object, "completion")),
                                 (struct sw_text_part){.loss = true});
}
