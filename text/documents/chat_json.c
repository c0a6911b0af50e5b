#include "text/documents/chat_json.h"

#include <stdlib.h>
#include <string.h>

static struct sw_text text_of(const json_t *string) {
    return (struct sw_text){json_string_value(string), json_string_length(string)};
}

/* A chat on its way from JSON. */
struct chat {
    const struct sw_chat_reading *how;
    struct sw_chat_turn *turn;
    bool *is_off; /* of each turn: it is a reply without a loss */
    size_t turns;
    json_t *kept; /* texts that were put together of parts */
};

/* Returns the member of a message that has one of two names; *out is NULL where it has none. */
static sw_status either(const json_t *message, const char *name, const char *other, const char *where,
                        const json_t **out) {
    const json_t *first = sw_json_member(message, name), *second = sw_json_member(message, other);
    *out = first != NULL ? first : second;
    return first == NULL || second == NULL
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "%s has a message with both '%s' and '%s'; keep one", where, name, other);
}

static sw_status read_role(const json_t *message, const char *where, sw_chat_role *out) {
    static const struct {
        const char *name;
        sw_chat_role role;
    } names[] = {{"system", SW_CHAT_SYSTEM},     {"user", SW_CHAT_USER},           {"human", SW_CHAT_USER},
                 {"prompter", SW_CHAT_USER},     {"assistant", SW_CHAT_ASSISTANT}, {"gpt", SW_CHAT_ASSISTANT},
                 {"chatgpt", SW_CHAT_ASSISTANT}, {"bot", SW_CHAT_ASSISTANT},       {"chatbot", SW_CHAT_ASSISTANT},
                 {"model", SW_CHAT_ASSISTANT},   {"ai", SW_CHAT_ASSISTANT},        {"bard", SW_CHAT_ASSISTANT},
                 {"bing", SW_CHAT_ASSISTANT}};
    const json_t *member;
    if (!json_is_object(message))
        return sw_fail(SW_ERR_ARG, "%s has a message that is no object with 'role' and 'content'", where);
    SW_TRY(either(message, "role", "from", where, &member));
    const char *role = json_string_value(member);
    if (member == NULL)
        return sw_fail(SW_ERR_ARG, "%s has a message without a 'role' (or ShareGPT's 'from')", where);
    if (role == NULL)
        return sw_fail(SW_ERR_ARG, "%s has a message whose 'role' (or ShareGPT's 'from') is no string", where);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcasecmp(role, names[i].name) != 0)
            continue;
        *out = names[i].role;
        return SW_OK;
    }
    return sw_fail(SW_ERR_ARG,
                   "%s has a message of the role '%.40s'; the roles are system, user (or human) and assistant (or gpt, "
                   "bot, model)",
                   where, role);
}

/* Joins the parts of a content, which are all text. */
static sw_status join_parts(struct chat *chat, const json_t *parts, struct sw_text *out) {
    struct sw_text_buffer joined = {0};
    sw_status status = SW_OK;
    for (size_t i = 0; status == SW_OK && i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = sw_json_member(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type != NULL && strcmp(type, "text") != 0)
            status = sw_fail(SW_ERR_UNSUPPORTED,
                             "%s has a message with a part of the type '%.40s'; only text is trained here",
                             chat->how->where, type);
        else if (!json_is_string(text))
            status = sw_fail(SW_ERR_ARG,
                             "%s has a message whose 'content' has a part that is no text, such as "
                             "{\"type\": \"text\", \"text\": \"...\"}",
                             chat->how->where);
        else
            status = sw_text_buffer_append(&joined, text_of(text));
    }
    json_t *whole = status == SW_OK ? json_stringn(joined.bytes > 0 ? joined.data : "", joined.bytes) : NULL;
    if (status == SW_OK && (whole == NULL || json_array_append_new(chat->kept, whole) != 0))
        status = sw_fail(SW_ERR_NOMEM, "no memory for a chat");
    if (status == SW_OK)
        *out = text_of(whole);
    free(joined.data);
    return status;
}

/* A switch must agree with --loss. */
static sw_status take_switch(struct chat *chat, const struct sw_chat_turn *turn, bool in_prompt, sw_loss_switch said,
                             const char *name) {
    const char *where = chat->how->where;
    const bool is_reply = turn->role == SW_CHAT_ASSISTANT, all = chat->how->all_loss;
    if (said == SW_LOSS_ON && !is_reply && !all)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s switches the loss of a message on that is no reply ('%s'); take the switch out, or give all "
                       "messages a loss with --loss all",
                       where, name);
    if (said == SW_LOSS_OFF && all)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s switches the loss of a message off ('%s'), but --loss all gives all of them one; leave one "
                       "of the two out",
                       where, name);
    chat->is_off[chat->turns] = is_reply && (said == SW_LOSS_OFF || (in_prompt && said == SW_LOSS_NOT_SAID));
    return SW_OK;
}

static sw_status read_turn(struct chat *chat, const json_t *message, bool in_prompt) {
    static const char *const known[] = {"role", "content", "from", "value", NULL};
    struct sw_chat_turn *turn = &chat->turn[chat->turns];
    const char *where = chat->how->where, *name;
    const struct sw_json_place place = {.where = where, .what = "a message"};
    const json_t *content;
    sw_loss_switch said;
    SW_TRY(read_role(message, where, &turn->role));
    SW_TRY(sw_json_check_members(message, known, place, chat->how->passed));
    SW_TRY(sw_json_loss_switch(message, place, &said, &name));
    SW_TRY(take_switch(chat, turn, in_prompt, said, name));
    SW_TRY(either(message, "content", "value", where, &content));
    if (json_is_array(content))
        SW_TRY(join_parts(chat, content, &turn->content));
    else if (json_is_string(content))
        turn->content = text_of(content);
    else
        return sw_fail(SW_ERR_ARG, "%s has a message whose 'content' (or ShareGPT's 'value') is no string", where);
    chat->turns++;
    return SW_OK;
}

static sw_status read_turns(struct chat *chat, const json_t *messages, bool in_prompt) {
    for (size_t i = 0; i < json_array_size(messages); i++)
        SW_TRY(read_turn(chat, json_array_get(messages, i), in_prompt));
    return SW_OK;
}

static sw_status check_turns(const struct chat *chat) {
    const char *where = chat->how->where;
    size_t replies = 0, off = 0;
    for (size_t i = 0; i < chat->turns; i++) {
        if (i > 0 && chat->turn[i].role == SW_CHAT_SYSTEM)
            return sw_fail(SW_ERR_ARG, "%s has a system message that is not the first", where);
        replies += chat->turn[i].role == SW_CHAT_ASSISTANT;
        off += chat->is_off[i];
    }
    if (chat->turns == 0)
        return sw_fail(SW_ERR_ARG, "%s has no messages", where);
    if (chat->how->all_loss || replies > off)
        return SW_OK;
    if (replies > 0)
        return sw_fail(SW_ERR_ARG, "%s has a loss of no reply, so there is nothing to learn", where);
    return sw_fail(SW_ERR_ARG, "%s has no message of the assistant, so there is nothing to learn", where);
}

/* Takes the loss off replies. Each reply is one run of parts with a loss: a turn's beginning, which has none, stands
 * between two. */
static sw_status mask_replies(const struct chat *chat, size_t first_part, struct sw_marked_text *out) {
    size_t turn = 0, runs = 0, replies = 0;
    for (size_t i = 0; i < chat->turns; i++)
        replies += chat->turn[i].role == SW_CHAT_ASSISTANT;
    for (size_t i = first_part; i < out->parts; i++)
        runs += out->part[i].loss && (i == first_part || !out->part[i - 1].loss);
    if (runs != replies)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s switches the loss of a reply off, but the chat format does not keep replies apart",
                       chat->how->where);
    for (size_t i = first_part; i < out->parts; turn++) {
        while (i < out->parts && !out->part[i].loss)
            i++;
        while (turn < chat->turns && chat->turn[turn].role != SW_CHAT_ASSISTANT)
            turn++;
        const bool is_off = turn < chat->turns && chat->is_off[turn];
        for (; i < out->parts && out->part[i].loss; i++)
            out->part[i].loss = !is_off;
    }
    return SW_OK;
}

static sw_status render(const struct chat *chat, struct sw_marked_text *out) {
    const struct sw_chat_reading *how = chat->how;
    const size_t first_part = out->parts;
    bool any_off = false;
    SW_TRY(sw_fail_while(sw_chat_render(how->style, chat->turn, chat->turns, (struct sw_chat_rendering){0}, out),
                         "rendering %s", how->where));
    for (size_t i = 0; i < chat->turns; i++)
        any_off |= chat->is_off[i];
    if (any_off && !how->all_loss)
        SW_TRY(mask_replies(chat, first_part, out));
    for (size_t i = first_part; how->all_loss && i < out->parts; i++)
        out->part[i].loss = true;
    out->closed = true;
    return SW_OK;
}

static sw_status read_and_render(struct chat *chat, const struct sw_chat_lists *lists, struct sw_marked_text *out) {
    if (lists->system != NULL)
        chat->turn[chat->turns++] = (struct sw_chat_turn){SW_CHAT_SYSTEM, text_of(lists->system)};
    SW_TRY(read_turns(chat, lists->prompt, true));
    SW_TRY(read_turns(chat, lists->messages, false));
    SW_TRY(check_turns(chat));
    return render(chat, out);
}

sw_status sw_chat_append_json(const struct sw_chat_lists *lists, const struct sw_chat_reading *how,
                              struct sw_marked_text *out) {
    const size_t room = json_array_size(lists->prompt) + json_array_size(lists->messages) + 1;
    struct chat chat = {.how = how,
                        .turn = calloc(room, sizeof *chat.turn),
                        .is_off = calloc(room, sizeof *chat.is_off),
                        .kept = json_array()};
    const sw_status status = chat.turn == NULL || chat.is_off == NULL || chat.kept == NULL
                                 ? sw_fail(SW_ERR_NOMEM, "no memory for a chat")
                                 : read_and_render(&chat, lists, out);
    json_decref(chat.kept);
    free(chat.is_off);
    free(chat.turn);
    return status;
}

sw_status sw_completion_append_json(const json_t *prompt, const json_t *completion, bool all_loss, const char *where,
                                    struct sw_marked_text *out) {
    if (json_string_length(completion) == 0)
        return sw_fail(SW_ERR_ARG, "%s has an empty 'completion', so there is nothing to learn", where);
    SW_TRY(sw_marked_text_append(out, text_of(prompt), (struct sw_text_part){.loss = all_loss}));
    return sw_marked_text_append(out, text_of(completion), (struct sw_text_part){.loss = true});
}
