#include "text/documents/json_members.h"

#include "core/log.h"
#include "core/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ROOM = 8, MOST_NAMES = 64, SAID_CHARS = 600 };

/* Members of a line or a message that change what is learnt and that nothing here renders. */
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
    bool on_is_off; /* true takes the loss off */
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
        sw_log_warn("the 'text' of %s is not read, as messages or a prompt stand beside it; --field text "
                    "reads it in their place",
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

/* Names that may be another tool's word for a loss that is not whole. On a message, its value says so whatever it is;
 * on a line, most of them count only as true or false, because a 'train' may be the name of a part of the data. */
static bool concerns_loss(const char *name, bool is_switch) {
    static const char *const parts[] = {"mask",     "loss",   "train", "weight", "learn",
                                        "supervis", "ignore", "skip",  "exclude"};
    const size_t count = is_switch ? sizeof parts / sizeof parts[0] : 2;
    for (size_t i = 0; i < count; i++)
        if (strcasestr(name, parts[i]) != NULL)
            return true;
    return false;
}

/* Returns the number of a switch, whose name may have capitals, or -1. */
static int find_switch(const char *name) {
    for (int i = 0; i < SWITCHES; i++)
        if (strcasecmp(name, switches[i].name) == 0)
            return i;
    return -1;
}

/* A string may be a list or an object that was written as text, as columns of tables have them. */
static bool says_something(const json_t *member) {
    const char *text = json_string_value(member);
    if (text != NULL && (strcmp(text, "[]") == 0 || strcmp(text, "{}") == 0 || strcmp(text, "null") == 0))
        return false;
    if (json_is_array(member) || json_is_object(member) || json_is_string(member))
        return json_array_size(member) > 0 || json_object_size(member) > 0 || json_string_length(member) > 0;
    return !json_is_null(member) && !json_is_false(member);
}

sw_status sw_json_check_members(const json_t *object, const char *const *known, struct sw_json_place place,
                                struct sw_json_passed *passed) {
    json_t *iterable = (json_t *)(uintptr_t)object; /* iterating does not change it, but Jansson wants it writable */
    const char *name;
    json_t *member;
    json_object_foreach(iterable, name, member) {
        if (json_is_null(member) || is_in(name, known) || (find_switch(name) >= 0 && !place.chosen))
            continue;
        const bool matters_if_said = !place.chosen && does_matter(name);
        if (matters_if_said && !says_something(member))
            continue;
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

sw_status sw_json_loss_switch(const json_t *object, struct sw_json_place place, sw_loss_switch *out,
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
