#include "text/documents/json_document.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_MEMBERS = 8, SHOWN_CHARS = 400 };

typedef enum { NONE, CHAT, PROMPT, PAIR, TEXT } kind;

/* The schema of an object. Its value is borrowed. */
struct found {
    kind kind;
    const char *name; /* of the member that shows the kind; of a pair, the question's */
    const json_t *value;
    const char *reply; /* of a pair: the name of its other member */
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

/* Finds a question and its reply by the names that data sets have for them. A 'prompt' may be a user's turn, or text
 * that the reply continues. */
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
                   "%s has no '%s' and no chat, no 'prompt' with 'completion', no 'instruction' with 'output' and no "
                   "'question' with 'answer'; its members are %s; --field names the one that has the text or the "
                   "messages",
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

/* Returns the text of 'system' (or 'system_prompt') in *out, or NULL where it is absent or empty. */
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

/* Returns what an instruction is about, or NULL: 'input', which Dolly calls 'context'. Other questions have none. */
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
    SW_TRY(find_schema(&r, &found));
    const bool is_chosen = found.name != NULL && rules->field != NULL && strcmp(found.name, rules->field) == 0;
    SW_TRY(append_found(&r, &found));
    passed->beside += found.kind != TEXT && !is_chosen && sw_json_member(object, "text") != NULL;
    return SW_OK;
}
