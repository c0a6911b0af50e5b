/* Finds what an object of training data is, by its members, and makes a document of it.
 *
 * Data sets follow a few schemas by custom, not by a standard, and nearly all have extra members. A member that could
 * change what is learned (tools, images, preferences, loss switches of other tools) is read or refused; any other is
 * passed over and named in the log once. Ignoring all unknown members would train on chats without their tools;
 * refusing all would refuse most data sets. */
#include "text/documents/json_document.h"

#include "core/log.h"
#include "core/size.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ROOM = 8, MOST_NAMES = 64, SAID_CHARS = 600 };

/* Members of a line or a message that change what is learned and that nothing here renders. */
static const char *const matters[] = {"tools",
                                      "functions",
                                      "tool_calls",
                                      "function_call",
                                      "tool_call_id",
                                      "images",
                                      "image",
                                      "videos",
                                      "video",
                                      "audios",
                                      "audio",
                                      "chosen",
                                      "rejected",
                                      "rejected_response",
                                      "rejected_messages",
                                      "chosen_messages",
                                      "input_ids",
                                      "labels",
                                      "weights",
                                      "history",
                                      "system_prompt",
                                      "reasoning_content",
                                      "reasoning",
                                      "thinking",
                                      "documents",
                                      "channel",
                                      "chat_template",
                                      "sample_weight",
                                      "chat_template_kwargs"};

static const struct {
    const char *name;
    bool on_is_off; /* a value of true switches the loss off */
} switches[] = {{"loss", false},      {"train", false},  {"training", false}, {"trainable", false},
                {"loss_mask", false}, {"weight", false}, {"masked", true}};
enum { SWITCHES = sizeof switches / sizeof switches[0] };

void sw_json_passed_release(struct sw_json_passed *passed) {
    for (int i = 0; i < passed->count; i++)
        free(passed->name[i]);
    free(passed->name);
    *passed = (struct sw_json_passed){0};
}

void sw_json_passed_say(const struct sw_json_passed *passed) {
    if (passed->beside > 0)
        sw_log_warn(
            "the 'text' of %s is not read, because messages or a prompt come with it; --field text reads it instead",
            SW_COUNT(passed->beside, "document"));
    char names[SAID_CHARS] = "";
    size_t used = 0;
    int named = 0;
    for (; named < passed->count && used + strlen(passed->name[named]) + 3 < sizeof names; named++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", named > 0 ? ", " : "", passed->name[named]);
    if (passed->count > 0)
        sw_log_info("members of the data that are not read: %s%s", names,
                    passed->more || named < passed->count ? ", and others" : "");
}

static sw_status note(struct sw_json_passed *passed, struct sw_json_place place, const char *name) {
    char full[96];
    (void)snprintf(full, sizeof full, "%s%.60s", place.what != NULL ? "(of messages) " : "", name);
    for (int i = 0; i < passed->count; i++)
        if (strcmp(passed->name[i], full) == 0)
            return SW_OK;
    if (passed->count == MOST_NAMES) {
        passed->more = true;
        return SW_OK;
    }
    if (passed->count == passed->room) {
        const int room = passed->room == 0 ? LEAST_ROOM : passed->room * 2;
        char **grown = reallocarray(passed->name, (size_t)room, sizeof *grown);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the names of members");
        passed->name = grown;
        passed->room = room;
    }
    passed->name[passed->count] = strdup(full);
    return passed->name[passed->count++] != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a member's name");
}

const json_t *sw_json_member(const json_t *object, const char *name) {
    const json_t *member = json_object_get(object, name);
    return json_is_null(member) ? NULL : member;
}

static bool is_in(const char *name, const char *const *names) {
    for (; *names != NULL; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

static bool does_matter(const char *name) {
    for (size_t i = 0; i < sizeof matters / sizeof matters[0]; i++)
        if (strcasecmp(name, matters[i]) == 0)
            return true;
    return false;
}

/* Tells whether a name may be another tool's word for a partial loss. On a message any value counts; on a line most
 * names count only with a boolean, because a 'train' may name a part of the data. */
static bool concerns_loss(const char *name, bool is_switch) {
    static const char *const parts[] = {"mask",     "loss",   "train", "weight", "learn",
                                        "supervis", "ignore", "skip",  "exclude"};
    const size_t count = is_switch ? sizeof parts / sizeof parts[0] : 2;
    for (size_t i = 0; i < count; i++)
        if (strcasestr(name, parts[i]) != NULL)
            return true;
    return false;
}

/* Returns the number of a switch, ignoring case, or -1. */
static int find_switch(const char *name) {
    for (int i = 0; i < SWITCHES; i++)
        if (strcasecmp(name, switches[i].name) == 0)
            return i;
    return -1;
}

/* Tells whether a member has content. A string may be a list or an object written as text, as columns of tables have
 * them. */
static bool says_something(const json_t *member) {
    const char *text = json_string_value(member);
    if (text != NULL && (strcmp(text, "[]") == 0 || strcmp(text, "{}") == 0 || strcmp(text, "null") == 0))
        return false;
    if (json_is_array(member) || json_is_object(member) || json_is_string(member))
        return json_array_size(member) > 0 || json_object_size(member) > 0 || json_string_length(member) > 0;
    return !json_is_null(member) && !json_is_false(member);
}

/* Examines all members except those in `known`, which ends with NULL, and the loss switches. Refuses what could change
 * what is learned (tools, images, preference pairs), and notes the rest in `passed`. */
static sw_status json_check_members(const json_t *object, const char *const *known, struct sw_json_place place,
                                    struct sw_json_passed *passed) {
    json_t *iterable = (json_t *)(uintptr_t)object; /* iterating does not change it, but Jansson takes it as writable */
    const char *name;
    json_t *member;
    json_object_foreach(iterable, name, member) {
        if (json_is_null(member) || is_in(name, known) || (find_switch(name) >= 0 && !place.chosen))
            continue;
        const bool matters_if_said = !place.chosen && does_matter(name);
        if (matters_if_said && !says_something(member))
            continue;
        if (matters_if_said && (strcasecmp(name, "chosen") == 0 || strcasecmp(name, "rejected") == 0))
            return sw_fail(
                SW_ERR_UNSUPPORTED,
                "%s has %s%s'%s', as pairs of replies do: train --dpo learns from them, tokenize --dpo makes "
                "token files of them, and --skip-bad leaves such lines out",
                place.where, place.what != NULL ? place.what : "", place.what != NULL ? " with " : "", name);
        if (matters_if_said || (!place.chosen && concerns_loss(name, place.what != NULL || json_is_boolean(member))))
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "%s has %s%s'%s', which this version does not read; take it out of the data, or leave such "
                           "lines out with --skip-bad",
                           place.where, place.what != NULL ? place.what : "", place.what != NULL ? " with " : "", name);
        SW_TRY(note(passed, place, name));
    }
    return SW_OK;
}

/* Reads a value as 0 or 1. Columns of tables have booleans and numbers as text. */
static bool read_boolean(const json_t *value, bool *out) {
    static const char *const words[][2] = {{"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}, {"0.0", "1.0"}};
    const char *text = json_string_value(value);
    *out = json_is_true(value) || json_number_value(value) == 1.0;
    if (text == NULL)
        return json_is_boolean(value) || *out || (json_is_number(value) && json_number_value(value) == 0.0);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        *out = strcasecmp(text, words[i][1]) == 0;
        if (*out || strcasecmp(text, words[i][0]) == 0)
            return true;
    }
    return false;
}

/* Reads one switch. */
static sw_status read_switch(const json_t *value, int number, struct sw_json_place place, sw_loss_switch *out) {
    const char *name = switches[number].name, *what = place.what != NULL ? place.what : "a line";
    bool is_true;
    if (read_boolean(value, &is_true)) {
        *out = is_true != switches[number].on_is_off ? SW_LOSS_ON : SW_LOSS_OFF;
        return SW_OK;
    }
    if (json_is_number(value))
        return sw_fail(SW_ERR_UNSUPPORTED, "%s has %s with a '%s' of %g, but a reply counts as 0 or 1 here",
                       place.where, what, name, json_number_value(value));
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "%s has %s with a '%s' that is no switch; write true, false, 0 or 1, or leave it out", place.where,
                   what, name);
}

/* Reads the members by which data sets switch the loss of a message or line: loss, train, training, trainable,
 * loss_mask and weight (true or 1: on), and masked (true or 1: off). Names may have capitals, and values may be
 * strings: "True", "no", "off", "0". Refuses other values, switches that disagree, and weights between 0 and 1.
 * *out_name is the switch. */
static sw_status json_loss_switch(const json_t *object, struct sw_json_place place, sw_loss_switch *out,
                                  const char **out_name) {
    json_t *iterable = (json_t *)(uintptr_t)object;
    const char *name;
    json_t *value;
    *out = SW_LOSS_NOT_SAID;
    *out_name = NULL;
    json_object_foreach(iterable, name, value) {
        const int number = json_is_null(value) ? -1 : find_switch(name);
        sw_loss_switch said;
        if (number < 0)
            continue;
        SW_TRY(read_switch(value, number, place, &said));
        if (*out != SW_LOSS_NOT_SAID && said != *out)
            return sw_fail(SW_ERR_ARG, "%s has %s whose '%s' and '%s' contradict each other; take one of them out",
                           place.where, place.what != NULL ? place.what : "a line", *out_name, switches[number].name);
        *out = said;
        *out_name = switches[number].name;
    }
    return SW_OK;
}

static struct sw_text text_of(const json_t *string) {
    return (struct sw_text){json_string_value(string), json_string_length(string)};
}

/* A chat while it is read from JSON. */
struct chat {
    const struct sw_chat_reading *how;
    struct sw_chat_turn *turn;
    bool *is_off; /* per turn: it is a reply without a loss */
    size_t turns;
    json_t *kept; /* texts that were joined from parts */
};

/* Returns the member of a message that has one of two names; *out is NULL if it has neither. */
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

/* Joins the parts of a content, which must all be text. */
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

/* Applies a switch, which must agree with --loss. */
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
    SW_TRY(json_check_members(message, known, place, chat->how->passed));
    SW_TRY(json_loss_switch(message, place, &said, &name));
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

/* Removes the loss of replies. Each reply is a run of parts with a loss; the beginning of a turn, without a loss,
 * separates two. */
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

/* Appends a prompt, which has a loss only if `all_loss` is set, and its completion, which must not be empty. */
static sw_status completion_append_json(const json_t *prompt, const json_t *completion, bool all_loss,
                                        const char *where, struct sw_marked_text *out) {
    if (json_string_length(completion) == 0)
        return sw_fail(SW_ERR_ARG, "%s has an empty 'completion', so there is nothing to learn", where);
    SW_TRY(sw_marked_text_append(out, text_of(prompt), (struct sw_text_part){.loss = all_loss}));
    return sw_marked_text_append(out, text_of(completion), (struct sw_text_part){.loss = true});
}

enum { SHOWN_MEMBERS = 8, SHOWN_CHARS = 400 };

typedef enum { NONE, CHAT, PROMPT, PAIR, TEXT } kind;

/* The schema of an object; the value is borrowed. */
struct found {
    kind kind;
    const char *name; /* the member that identifies the schema; of a pair, the question's */
    const json_t *value;
    const char *reply; /* of a pair: the other member's name */
};

/* An object while it becomes a document. */
struct reading {
    const json_t *object;
    const struct sw_json_rules *rules;
    const char *where;
    struct sw_json_passed *passed;
    struct sw_marked_text *out;
};

static sw_status put_schema(const struct reading *r, struct found new, struct found *found) {
    if (found->kind != NONE && found->kind != TEXT && new.kind != TEXT)
        return sw_fail(SW_ERR_ARG, "%s has both '%s' and '%s'; --field NAME says which one is read", r->where,
                       found->name, new.name);
    if (found->kind == NONE || found->kind == TEXT)
        *found = new;
    return SW_OK;
}

static sw_status find_by_field(const struct reading *r, struct found *found) {
    const char *field = r->rules->field;
    const json_t *value = sw_json_member(r->object, field);
    if (value == NULL)
        return SW_OK;
    *found = (struct found){.kind = json_is_array(value) ? CHAT : TEXT, .name = field, .value = value};
    if (json_is_array(value) || json_is_string(value))
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s: '%s' is neither a string nor a list of messages; --field names another member",
                   r->where, field);
}

/* Returns how many of the members an object has, and the name of the last one. */
static int count_members(const struct reading *r, const char *const *names, int count, const char **last) {
    int found = 0;
    for (int i = 0; i < count; i++) {
        if (sw_json_member(r->object, names[i]) == NULL)
            continue;
        found++;
        *last = names[i];
    }
    return found;
}

/* Finds a question and its reply by the names that data sets use. A 'prompt' may be a user's turn, or text that the
 * reply continues. */
static sw_status find_pair(const struct reading *r, struct found *out) {
    static const char *const questions[] = {"input", "prompt", "query", "question", "instruction"};
    static const char *const replies[] = {"output", "response", "answer"};
    enum { QUESTIONS = sizeof questions / sizeof questions[0], REPLIES = sizeof replies / sizeof replies[0] };
    const char *question = NULL, *reply = NULL;
    int asked = count_members(r, questions, QUESTIONS, &question);
    const int replied = count_members(r, replies, REPLIES, &reply);
    if (asked == 0 || replied == 0)
        return SW_OK;
    if (strcmp(question, "instruction") == 0 && sw_json_member(r->object, "input") != NULL)
        asked--;
    if (asked > 1 || replied > 1)
        return sw_fail(SW_ERR_ARG,
                       "%s has several questions or several replies ('%s', '%s' and others); keep one of each, or name "
                       "the one text to learn with --field",
                       r->where, question, reply);
    if (strcmp(question, "prompt") == 0)
        return sw_fail(SW_ERR_ARG,
                       "%s has 'prompt' with '%s', which may be a chat or a text to continue; rename 'prompt' to "
                       "'question' for a chat, or '%s' to 'completion' for a text",
                       r->where, reply, reply);
    *out = (struct found){PAIR, question, sw_json_member(r->object, question), reply};
    return SW_OK;
}

static sw_status find_schema(const struct reading *r, struct found *out) {
    static const char *const chats[] = {"messages", "conversations", "conversation"};
    *out = (struct found){0};
    if (r->rules->field != NULL) {
        SW_TRY(find_by_field(r, out));
        if (out->kind != NONE)
            return SW_OK;
    }
    const json_t *text = sw_json_member(r->object, "text");
    if (text != NULL && r->rules->field == NULL)
        *out = (struct found){.kind = TEXT, .name = "text", .value = text};
    for (size_t i = 0; i < sizeof chats / sizeof chats[0]; i++) {
        const json_t *value = sw_json_member(r->object, chats[i]);
        if (value != NULL && (json_is_array(value) || i == 0))
            SW_TRY(put_schema(r, (struct found){.kind = CHAT, .name = chats[i], .value = value}, out));
    }
    const json_t *prompt = sw_json_member(r->object, "prompt");
    if (prompt != NULL && sw_json_member(r->object, "completion") != NULL)
        SW_TRY(put_schema(r, (struct found){.kind = PROMPT, .name = "completion", .value = prompt}, out));
    const json_t *instruction = sw_json_member(r->object, "instruction");
    if (instruction != NULL && sw_json_member(r->object, "output") != NULL)
        SW_TRY(put_schema(r, (struct found){PAIR, "instruction", instruction, "output"}, out));
    return out->kind == NONE ? find_pair(r, out) : SW_OK;
}

/* Fails for an object without a schema, and says what it has instead. */
static sw_status refuse_schema(const struct reading *r) {
    static const char *const known[] = {NULL};
    char names[SHOWN_CHARS] = "none";
    size_t used = 0;
    int shown = 0;
    json_t *iterable = (json_t *)(uintptr_t)r->object;
    const char *name;
    json_t *value;
    struct sw_json_passed passed = {0}; /* not reported, since the line is not read */
    const sw_status status = json_check_members(r->object, known, (struct sw_json_place){.where = r->where}, &passed);
    sw_json_passed_release(&passed);
    SW_TRY(status);
    json_object_foreach(iterable, name, value) {
        if (shown == SHOWN_MEMBERS)
            break;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%.40s'", shown++ > 0 ? ", " : "", name);
    }
    return sw_fail(SW_ERR_ARG,
                   "%s has no '%s' and no chat, no 'prompt' with 'completion', no 'instruction' with 'output' and no "
                   "'question' with 'answer'; its members are %s; --field names the one that has the text or the "
                   "messages",
                   r->where, r->rules->field != NULL ? r->rules->field : "text", names);
}

/* Checks the members that the schema does not read. */
static sw_status check_members(const struct reading *r, const char *const *known, bool chosen) {
    const struct sw_json_place place = {.where = r->where, .chosen = chosen};
    const char *name;
    sw_loss_switch said = SW_LOSS_NOT_SAID;
    SW_TRY(json_check_members(r->object, known, place, r->passed));
    if (!chosen)
        SW_TRY(json_loss_switch(r->object, place, &said, &name));
    return said != SW_LOSS_OFF
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "%s takes the loss off all of the line ('%s'), so there is nothing to learn; leave the line "
                         "out, as --skip-bad does",
                         r->where, name);
}

/* Returns the text of 'system' (or 'system_prompt') in *out; NULL: absent or empty. */
static sw_status read_system(const struct reading *r, const json_t **out) {
    const json_t *first = sw_json_member(r->object, "system"), *second = sw_json_member(r->object, "system_prompt");
    const json_t *system = first != NULL ? first : second;
    *out = json_string_length(system) > 0 ? system : NULL;
    if (first != NULL && second != NULL)
        return sw_fail(SW_ERR_ARG, "%s has both 'system' and 'system_prompt'; keep one", r->where);
    return system == NULL || json_is_string(system)
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "%s: '%s' is no string", r->where, first != NULL ? "system" : "system_prompt");
}

static sw_status refuse_system(const struct reading *r, const char *beside) {
    const json_t *system;
    SW_TRY(read_system(r, &system));
    return system == NULL
               ? SW_OK
               : sw_fail(
                     SW_ERR_UNSUPPORTED,
                     "%s has 'system' together with %s, which has no system turn; make the line a chat of 'messages'",
                     r->where, beside);
}

/* Refuses lines of KTO and of ranked replies, which say whether the reply is worth learning. */
static sw_status refuse_label(const struct reading *r) {
    static const char *const names[] = {"label", "kto_tag"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (json_is_boolean(json_object_get(r->object, names[i])))
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "%s has a '%s' that says whether its reply is wanted, which this version does not read; "
                           "keep the lines that are, without it",
                           r->where, names[i]);
    return SW_OK;
}

static sw_status append_chat(const struct reading *r, struct sw_chat_lists lists) {
    struct sw_chat_reading how = {.all_loss = r->rules->all_loss, .where = r->where, .passed = r->passed};
    SW_TRY(r->rules->chat_style(r->rules->context, r->where, true, &how.style));
    return sw_chat_append_json(&lists, &how, r->out);
}

static sw_status append_messages(const struct reading *r, const struct found *found) {
    const bool chosen = r->rules->field != NULL && strcmp(found->name, r->rules->field) == 0;
    const char *known[] = {found->name, "system", "system_prompt", chosen ? NULL : "text", NULL};
    struct sw_chat_lists lists = {.messages = found->value};
    if (!json_is_array(found->value))
        return sw_fail(SW_ERR_ARG, "%s: '%s' is no list of messages", r->where, found->name);
    if (!chosen)
        SW_TRY(refuse_label(r));
    SW_TRY(check_members(r, known, chosen));
    SW_TRY(read_system(r, &lists.system));
    return append_chat(r, lists);
}

static sw_status append_prompt(const struct reading *r) {
    static const char *const known[] = {"prompt", "completion", "system", "system_prompt", "text", NULL};
    SW_TRY(refuse_label(r));
    const json_t *prompt = sw_json_member(r->object, "prompt"), *completion = sw_json_member(r->object, "completion");
    struct sw_chat_lists lists = {.prompt = prompt, .messages = completion};
    SW_TRY(check_members(r, known, false));
    if (json_is_array(prompt) && json_is_array(completion)) {
        SW_TRY(read_system(r, &lists.system));
        return append_chat(r, lists);
    }
    if (!json_is_string(prompt) || !json_is_string(completion))
        return sw_fail(SW_ERR_ARG, "%s: 'prompt' and 'completion' are both strings or both lists of messages",
                       r->where);
    SW_TRY(refuse_system(r, "a 'prompt' of text"));
    return completion_append_json(prompt, completion, r->rules->all_loss, r->where, r->out);
}

/* The prompts of Stanford Alpaca's data, without an input and with one. */
static const char alpaca_plain[] = "Below is an instruction that describes a task. Write a response that appropriately "
                                   "completes the request.\n\n### Instruction:\n";
static const char alpaca_input[] =
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n";
static const char alpaca_between[] = "\n\n### Input:\n", alpaca_end[] = "\n\n### Response:\n";

static sw_status put(struct sw_text_buffer *out, const char *text) {
    return sw_text_buffer_append(out, (struct sw_text){text, strlen(text)});
}

static sw_status put_string(struct sw_text_buffer *out, const json_t *string) {
    return sw_text_buffer_append(out, (struct sw_text){json_string_value(string), json_string_length(string)});
}

/* Writes the question of an Alpaca line: for a chat, or in Alpaca's own prompt. */
static sw_status write_question(const json_t *instruction, const json_t *input, bool for_chat,
                                struct sw_text_buffer *out) {
    const bool has_input = json_string_length(input) > 0;
    if (!for_chat)
        SW_TRY(put(out, has_input ? alpaca_input : alpaca_plain));
    SW_TRY(put_string(out, instruction));
    if (has_input) {
        SW_TRY(put(out, for_chat ? "\n" : alpaca_between));
        SW_TRY(put_string(out, input));
    }
    return for_chat ? SW_OK : put(out, alpaca_end);
}

static sw_status append_question(const struct reading *r, const json_t *question, const json_t *output, bool is_chat) {
    struct sw_chat_lists lists = {0};
    if (!is_chat)
        return completion_append_json(question, output, r->rules->all_loss, r->where, r->out);
    SW_TRY(read_system(r, &lists.system));
    json_t *messages = json_pack("[{s:s, s:O}, {s:s, s:O}]", "role", "user", "content", question, "role", "assistant",
                                 "content", output);
    lists.messages = messages;
    const sw_status status = messages == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for a chat") : append_chat(r, lists);
    json_decref(messages);
    return status;
}

/* Returns what an instruction is about: 'input', or Dolly's 'context'. NULL: other questions have none. */
static sw_status read_input(const struct reading *r, const struct found *found, const json_t **out) {
    const json_t *input = sw_json_member(r->object, "input"), *context = sw_json_member(r->object, "context");
    const bool is_instruction = strcmp(found->name, "instruction") == 0, has_input = json_string_length(input) > 0;
    *out = NULL;
    if (is_instruction)
        *out = has_input || context == NULL ? input : context;
    if (context == NULL || (json_is_string(context) && json_string_length(context) == 0) ||
        (is_instruction && !has_input))
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED, "%s has 'context' beside '%s', where it is not read; put it into the question",
                   r->where, is_instruction ? "input" : found->name);
}

static sw_status append_pair(const struct reading *r, const struct found *found) {
    const bool is_instruction = strcmp(found->name, "instruction") == 0;
    const char *known[] = {
        found->name, found->reply, "context", "system", "system_prompt", "text", is_instruction ? "input" : NULL, NULL};
    const json_t *question = found->value, *reply = sw_json_member(r->object, found->reply), *input;
    const struct sw_chat_style *style;
    struct sw_text_buffer text = {0};
    SW_TRY(refuse_label(r));
    SW_TRY(check_members(r, known, false));
    SW_TRY(read_input(r, found, &input));
    if (!json_is_string(question) || (input != NULL && !json_is_string(input)) || json_string_length(reply) == 0)
        return sw_fail(SW_ERR_ARG, "%s: '%s'%s and '%s' are strings, and '%s' is not empty", r->where, found->name,
                       is_instruction ? ", 'input'" : "", found->reply, found->reply);
    SW_TRY(r->rules->chat_style(r->rules->context, r->where, !is_instruction, &style));
    if (style == NULL)
        SW_TRY(refuse_system(r, "an 'instruction' for a model without a chat template"));
    sw_status status = write_question(question, input, style != NULL, &text);
    json_t *whole = status == SW_OK ? json_stringn(text.bytes > 0 ? text.data : "", text.bytes) : NULL;
    if (status == SW_OK)
        status = whole == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for a chat")
                               : append_question(r, whole, reply, style != NULL);
    json_decref(whole);
    free(text.data);
    return status;
}

static sw_status append_text(const struct reading *r, const struct found *found) {
    const char *known[] = {found->name, "system", "system_prompt", NULL};
    const bool chosen = r->rules->field != NULL;
    if (!json_is_string(found->value))
        return sw_fail(SW_ERR_ARG, "%s: '%s' is no string; --field names the member that has the text", r->where,
                       found->name);
    SW_TRY(check_members(r, known, chosen));
    if (!chosen)
        SW_TRY(refuse_system(r, "a 'text'"));
    return put_string(&r->out->text, found->value);
}

/* The replies of a pair, or lists of messages, and what both follow. Borrowed. */
struct pair {
    const json_t *prompt, *reply[2];
};

/* Reads a pair of strings, or of lists with a prompt in a list of its own. */
static sw_status append_reply(const struct reading *r, const json_t *prompt, const json_t *reply) {
    const char *name = r->rules->pair == SW_JSON_CHOSEN ? "chosen" : "rejected";
    if (json_string_length(reply) == 0 && json_array_size(reply) == 0)
        return sw_fail(SW_ERR_ARG, "%s has an empty '%s', so there is nothing to compare", r->where, name);
    if (json_is_array(reply))
        return append_chat(r, (struct sw_chat_lists){.prompt = prompt, .messages = reply});
    SW_TRY(refuse_system(r, "a 'prompt' of text"));
    return completion_append_json(prompt, reply, false, r->where, r->out);
}

/* Returns how many messages two lists have in common at their beginnings, of which each keeps one for itself. */
static size_t count_common(const json_t *first, const json_t *second) {
    const size_t a = json_array_size(first), b = json_array_size(second), least = a < b ? a : b;
    size_t common = 0;
    while (common + 1 < least && json_equal(json_array_get(first, common), json_array_get(second, common)))
        common++;
    return common;
}

static json_t *part_of(const json_t *list, size_t first, size_t end) {
    json_t *part = json_array();
    for (size_t i = first; part != NULL && i < end; i++)
        if (json_array_append(part, json_array_get(list, i)) != 0) {
            json_decref(part);
            return NULL;
        }
    return part;
}

/* Takes what both lists begin with as the prompt. */
static sw_status append_shared(const struct reading *r, const struct pair *pair) {
    const size_t common = count_common(pair->reply[0], pair->reply[1]);
    const json_t *whole = pair->reply[r->rules->pair == SW_JSON_REJECTED];
    if (common == 0 && json_array_size(whole) > 0)
        return sw_fail(
            SW_ERR_ARG,
            "%s has no 'prompt', and 'chosen' and 'rejected' begin with different messages; put the messages "
            "that both answer into 'prompt'",
            r->where);
    json_t *prompt = part_of(whole, 0, common), *reply = part_of(whole, common, json_array_size(whole));
    const sw_status status = prompt == NULL || reply == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for a chat")
                                                             : append_reply(r, prompt, reply);
    json_decref(prompt);
    json_decref(reply);
    return status;
}

static sw_status append_preference(const struct reading *r) {
    static const char *const known[] = {"prompt", "chosen", "rejected", "system", "system_prompt", NULL};
    const struct pair pair = {.prompt = sw_json_member(r->object, "prompt"),
                              .reply = {sw_json_member(r->object, "chosen"), sw_json_member(r->object, "rejected")}};
    const json_t *system;
    for (int i = 0; i < 2; i++)
        if (pair.reply[i] == NULL)
            return sw_fail(SW_ERR_ARG, "%s has no '%s'; --dpo compares a 'chosen' with a 'rejected' reply", r->where,
                           i == 0 ? "chosen" : "rejected");
    SW_TRY(check_members(r, known, false));
    const bool texts = json_is_string(pair.reply[0]) && json_is_string(pair.reply[1]);
    const bool lists = json_is_array(pair.reply[0]) && json_is_array(pair.reply[1]);
    if (!texts && !lists)
        return sw_fail(SW_ERR_ARG, "%s: 'chosen' and 'rejected' are both strings or both lists of messages", r->where);
    if (texts && !json_is_string(pair.prompt))
        return sw_fail(SW_ERR_ARG, "%s: 'chosen' and 'rejected' are strings and need a 'prompt' that is one", r->where);
    if (lists && pair.prompt != NULL && !json_is_array(pair.prompt) && !json_is_string(pair.prompt))
        return sw_fail(SW_ERR_ARG, "%s: 'prompt' is no list of messages", r->where);
    SW_TRY(read_system(r, &system));
    if (lists && system != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s has 'system' with a pair; make it the first message of 'prompt'",
                       r->where);
    return lists && !json_is_array(pair.prompt)
               ? append_shared(r, &pair)
               : append_reply(r, pair.prompt, pair.reply[r->rules->pair == SW_JSON_REJECTED]);
}

static sw_status append_found(const struct reading *r, const struct found *found) {
    switch (found->kind) {
    case CHAT: return append_messages(r, found);
    case PROMPT: return append_prompt(r);
    case PAIR: return append_pair(r, found);
    case TEXT: return append_text(r, found);
    case NONE: break;
    }
    return refuse_schema(r);
}

sw_status sw_json_append_document(const json_t *object, const struct sw_json_rules *rules, const char *where,
                                  struct sw_json_passed *passed, struct sw_marked_text *out) {
    const struct reading r = {.object = object, .rules = rules, .where = where, .passed = passed, .out = out};
    struct found found;
    if (!json_is_object(object))
        return sw_fail(SW_ERR_ARG, "%s is %s; each document is an object, such as {\"messages\": [...]}", where,
                       json_is_array(object) ? "a list" : "no object");
    if (rules->pair != SW_JSON_NO_PAIR)
        return append_preference(&r);
    SW_TRY(find_schema(&r, &found));
    const bool is_chosen = found.name != NULL && rules->field != NULL && strcmp(found.name, rules->field) == 0;
    SW_TRY(append_found(&r, &found));
    passed->beside += found.kind != TEXT && !is_chosen && sw_json_member(object, "text") != NULL;
    return SW_OK;
}
