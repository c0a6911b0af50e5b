#include "train/documents/json_document.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_MEMBERS = 8, SHOWN_CHARS = 400 };

typedef enum { NONE, CHAT, PROMPT, ALPACA, TEXT } kind;

/* The schema of an object. Its value is borrowed. */
struct found {
    kind kind;
    const char *name; /* of the member that shows the kind */
    const json_t *value;
};

/* An object on its way to a document. */
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
    *found = (struct found){json_is_array(value) ? CHAT : TEXT, field, value};
    if (json_is_array(value) || json_is_string(value))
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s: '%s' is neither a string nor a list of messages; --field names another member",
                   r->where, field);
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
        *out = (struct found){TEXT, "text", text};
    for (size_t i = 0; i < sizeof chats / sizeof chats[0]; i++) {
        const json_t *value = sw_json_member(r->object, chats[i]);
        if (value != NULL && (json_is_array(value) || i == 0))
            SW_TRY(put_schema(r, (struct found){CHAT, chats[i], value}, out));
    }
    const json_t *prompt = sw_json_member(r->object, "prompt");
    if (prompt != NULL && sw_json_member(r->object, "completion") != NULL)
        SW_TRY(put_schema(r, (struct found){PROMPT, "completion", prompt}, out));
    const json_t *instruction = sw_json_member(r->object, "instruction");
    if (instruction != NULL && sw_json_member(r->object, "output") != NULL)
        SW_TRY(put_schema(r, (struct found){ALPACA, "instruction", instruction}, out));
    return SW_OK;
}

/* Says what an object without a schema has instead. */
static sw_status refuse_schema(const struct reading *r) {
    static const char *const known[] = {NULL};
    char names[SHOWN_CHARS] = "none";
    size_t used = 0;
    int shown = 0;
    json_t *iterable = (json_t *)(uintptr_t)r->object;
    const char *name;
    json_t *value;
    struct sw_json_passed passed = {0}; /* is not said, as the line is not read */
    const sw_status status =
        sw_json_check_members(r->object, known, (struct sw_json_place){.where = r->where}, &passed);
    sw_json_passed_release(&passed);
    SW_TRY(status);
    json_object_foreach(iterable, name, value) {
        if (shown == SHOWN_MEMBERS)
            break;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%.40s'", shown++ > 0 ? ", " : "", name);
    }
    return sw_fail(SW_ERR_ARG,
                   "%s has no '%s' and no chat, no 'prompt' with 'completion' and no 'instruction' with 'output'; its "
                   "members are %s; --field names the one that has the text or the messages",
                   r->where, r->rules->field != NULL ? r->rules->field : "text", names);
}

/* Checks the members besides those that a schema reads. */
static sw_status check_members(const struct reading *r, const char *const *known, bool chosen) {
    const struct sw_json_place place = {.where = r->where, .chosen = chosen};
    const char *name;
    sw_loss_switch said = SW_LOSS_NOT_SAID;
    SW_TRY(sw_json_check_members(r->object, known, place, r->passed));
    if (!chosen)
        SW_TRY(sw_json_loss_switch(r->object, place, &said, &name));
    return said != SW_LOSS_OFF
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "%s takes the loss off all of the line ('%s'), so there is nothing to learn; leave the line "
                         "out, as --skip-bad does",
                         r->where, name);
}

/* Returns the text of 'system' in *out, or NULL where it is absent or empty. */
static sw_status read_system(const struct reading *r, const json_t **out) {
    const json_t *system = sw_json_member(r->object, "system");
    *out = json_string_length(system) > 0 ? system : NULL;
    return system == NULL || json_is_string(system) ? SW_OK
                                                    : sw_fail(SW_ERR_ARG, "%s: 'system' is no string", r->where);
}

static sw_status refuse_system(const struct reading *r, const char *beside) {
    const json_t *system;
    SW_TRY(read_system(r, &system));
    return system == NULL ? SW_OK
                          : sw_fail(SW_ERR_UNSUPPORTED,
                                    "%s has 'system' beside %s, where it has no place; make the "
                                    "line a chat of 'messages'",
                                    r->where, beside);
}

/* Lines of KTO and of ranked replies say whether the reply is one to learn. */
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
    const char *known[] = {found->name, "system", chosen ? NULL : "text", NULL};
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
    static const char *const known[] = {"prompt", "completion", "system", "text", NULL};
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
    return sw_completion_append_json(prompt, completion, r->rules->all_loss, r->where, r->out);
}

/* The prompt that Stanford Alpaca's data were made for, without an input and with one. */
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
        return sw_completion_append_json(question, output, r->rules->all_loss, r->where, r->out);
    SW_TRY(read_system(r, &lists.system));
    json_t *messages = json_pack("[{s:s, s:O}, {s:s, s:O}]", "role", "user", "content", question, "role", "assistant",
                                 "content", output);
    lists.messages = messages;
    const sw_status status = messages == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for a chat") : append_chat(r, lists);
    json_decref(messages);
    return status;
}

static sw_status append_alpaca(const struct reading *r) {
    static const char *const known[] = {"instruction", "input", "output", "system", "text", NULL};
    const json_t *instruction = sw_json_member(r->object, "instruction"), *input = sw_json_member(r->object, "input");
    const json_t *output = sw_json_member(r->object, "output");
    const struct sw_chat_style *style;
    struct sw_text_buffer text = {0};
    SW_TRY(refuse_label(r));
    SW_TRY(check_members(r, known, false));
    if (!json_is_string(instruction) || (input != NULL && !json_is_string(input)) || json_string_length(output) == 0)
        return sw_fail(SW_ERR_ARG, "%s: 'instruction', 'input' and 'output' are strings, and 'output' is not empty",
                       r->where);
    SW_TRY(r->rules->chat_style(r->rules->context, r->where, false, &style));
    if (style == NULL)
        SW_TRY(refuse_system(r, "an 'instruction' for a model without a chat template"));
    sw_status status = write_question(instruction, input, style != NULL, &text);
    json_t *question = status == SW_OK ? json_stringn(text.bytes > 0 ? text.data : "", text.bytes) : NULL;
    if (status == SW_OK)
        status = question == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for a chat")
                                  : append_question(r, question, output, style != NULL);
    json_decref(question);
    free(text.data);
    return status;
}

static sw_status append_text(const struct reading *r, const struct found *found) {
    const char *known[] = {found->name, "system", NULL};
    const bool chosen = r->rules->field != NULL;
    if (!json_is_string(found->value))
        return sw_fail(SW_ERR_ARG, "%s: '%s' is no string; --field names the member that has the text", r->where,
                       found->name);
    SW_TRY(check_members(r, known, chosen));
    if (!chosen)
        SW_TRY(refuse_system(r, "a 'text'"));
    return put_string(&r->out->text, found->value);
}

static sw_status append_found(const struct reading *r, const struct found *found) {
    switch (found->kind) {
    case CHAT: return append_messages(r, found);
    case PROMPT: return append_prompt(r);
    case ALPACA: return append_alpaca(r);
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
    SW_TRY(find_schema(&r, &found));
    const bool is_chosen = found.name != NULL && rules->field != NULL && strcmp(found.name, rules->field) == 0;
    SW_TRY(append_found(&r, &found));
    passed->beside += found.kind != TEXT && !is_chosen && sw_json_member(object, "text") != NULL;
    return SW_OK;
}
