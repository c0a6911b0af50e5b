#include "core/json.h"
#include "core/log.h"
#include "core/status.h"
#include "job/settings/options_internal.h"

#include <string.h>

/* The help of a command. */

/* tools/manual.py knows TEXT_COLUMN. */
enum {
    TEXT_COLUMN = 28,
    NARROW_COLUMNS = 72,
    NARROW_TEXT_COLUMN = 6,
    EXAMPLE_INDENT = 2,
    HEAD_CHARS = 128,
    USAGE_CHARS = 512,
    DEFAULT_CHARS = 64
};

/* Rows that every command has, printed below its own. */
static const struct sw_option common[] = {
    {.name = "--quiet", .kind = SW_OPTION_FLAG, .transient = true, .what = "print only results, warnings and errors"},
    {.name = "--help", .kind = SW_OPTION_FLAG, .transient = true, .what = "print this text"},
};

/* Prints a word after a space, or at `indent` on the next line if it would pass the last column. */
static void add_word(const char *word, int length, int *column, int indent, FILE *to) {
    if (*column + 1 + length > sw_log_columns(to)) {
        fprintf(to, "\n%*s", indent, "");
        *column = indent;
    } else {
        fputc(' ', to);
        ++*column;
    }
    fprintf(to, "%.*s", length, word);
    *column += length;
}

int sw_print_wrapped(const char *text, int column, int indent, FILE *to) {
    const char *at = text + strcspn(text, " ");
    fprintf(to, "%.*s", (int)(at - text), text);
    column += (int)(at - text);
    for (at += strspn(at, " "); *at != '\0'; at += strspn(at, " ")) {
        const int length = (int)strcspn(at, " ");
        add_word(at, length, &column, indent, to);
        at += length;
    }
    return column;
}

static const char *value_name(const struct sw_option *option) {
    return option->kind == SW_OPTION_CHOICE && option->value == NULL ? option->choices : option->value;
}

static void print_usage(const struct sw_command_line *line, FILE *to) {
    char text[USAGE_CHARS];
    int length = snprintf(text, sizeof text, "Usage: spillway %s", line->command);
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        const char *more = sw_option_is_list(option) ? "..." : "";
        const size_t left = sizeof text - (size_t)length;
        if (!sw_option_has_flag(option))
            length += snprintf(text + length, left, option->required ? " %s%s" : " [%s%s]", option->name, more);
        else if (option->required)
            length += snprintf(text + length, left, " %s %s%s", option->name, value_name(option), more);
    }
    snprintf(text + length, sizeof text - (size_t)length, " [flags]");
    sw_print_wrapped(text, 0, 0, to);
    fputs("\n\n", to);
    sw_print_wrapped(line->summary, 0, 0, to);
    fputc('\n', to);
}

/* Writes what follows the explanation, such as "(default: 2)", and returns its length. */
static int default_text(const struct sw_command_line *line, const struct sw_option *option, char text[DEFAULT_CHARS]) {
    text[0] = '\0';
    if (option->required)
        return snprintf(text, DEFAULT_CHARS, "(required)");
    if (line->goes_on && !option->transient)
        return snprintf(text, DEFAULT_CHARS, "(default: as before)");
    return option->initial != NULL ? snprintf(text, DEFAULT_CHARS, "(default: %s)", option->initial) : 0;
}

static void print_option(const struct sw_command_line *line, const struct sw_option *option, FILE *to) {
    char head[HEAD_CHARS], text[DEFAULT_CHARS];
    const char *value = sw_option_has_flag(option) ? value_name(option) : NULL;
    const int width = snprintf(head, sizeof head, "  %s%s%s%s", option->name, value != NULL ? " " : "",
                               value != NULL ? value : "", sw_option_is_list(option) ? "..." : "");
    const int text_column = sw_log_columns(to) < NARROW_COLUMNS ? NARROW_TEXT_COLUMN : TEXT_COLUMN;
    /* A head that is too wide for its column gets a line of its own. */
    if (width + 2 > text_column)
        fprintf(to, "%s\n%*s", head, text_column, "");
    else
        fprintf(to, "%-*s", text_column, head);
    int column = sw_print_wrapped(option->what, text_column, text_column, to);
    const int length = default_text(line, option, text);
    if (length > 0)
        add_word(text, length, &column, text_column, to);
    fputc('\n', to);
}

static void print_options(const struct sw_command_line *line, FILE *to) {
    static const char no_groups[] = "Flags";
    const char *group = "";
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        const char *own = option->group != NULL ? option->group : no_groups;
        if (strcmp(group, own) != 0)
            fprintf(to, "\n%s:\n", own);
        group = own;
        print_option(line, option, to);
    }
    if (strcmp(group, no_groups) != 0 && strcmp(group, SW_OPTION_OUTPUT) != 0)
        fputs("\n" SW_OPTION_OUTPUT ":\n", to);
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        print_option(line, &common[i], to);
}

void sw_options_help(const struct sw_command_line *line, FILE *to) {
    print_usage(line, to);
    print_options(line, to);
    if (line->more_help != NULL)
        line->more_help(to);
    if (line->examples[0] != NULL)
        fputs("\nExamples:\n", to);
    for (int i = 0; i < SW_COMMAND_EXAMPLES && line->examples[i] != NULL; i++)
        fprintf(to, "%*s%s\n", EXAMPLE_INDENT, "", line->examples[i]);
}

void sw_options_help_exits(FILE *to) {
    enum { EXIT_COLUMN = 15 };
    static const struct {
        int status;
        const char *what;
    } exits[] = {{SW_EXIT_DONE, "done"},
                 {SW_EXIT_FAILED, "failed"},
                 {SW_EXIT_USAGE, "wrong arguments"},
                 {SW_EXIT_TIME_LIMIT, "train, resume: stopped by --time-limit; all is saved"},
                 {SW_EXIT_NOT_FINITE, "train, resume: the loss, gradients or weights are not finite"},
                 {SW_EXIT_INTERRUPTED, "train, resume: stopped by a signal; all is saved"}};
    fputs("\nExit status:\n", to);
    for (size_t i = 0; i < sizeof exits / sizeof exits[0]; i++) {
        fprintf(to, "  %-12d ", exits[i].status);
        sw_print_wrapped(exits[i].what, EXIT_COLUMN, EXIT_COLUMN, to);
        fputc('\n', to);
    }
}

/* Converts flags to and from the settings in run.json. */

enum { KEY_CHARS = 64, NUMBER_CHARS = 40 };

/* Turns "--micro-batch" into "micro_batch". */
static const char *key_of(const struct sw_option *option, char key[KEY_CHARS]) {
    snprintf(key, KEY_CHARS, "%s", option->name + strspn(option->name, "-"));
    for (char *at = key; *at != '\0'; at++)
        *at = *at == '-' ? '_' : *at;
    return key;
}

static bool is_kept(const struct sw_option *option) {
    return sw_option_has_flag(option) && !option->transient;
}

json_t *sw_option_list_to_json(const struct sw_option_list *list) {
    json_t *array = json_array();
    for (int i = 0; i < list->count; i++) {
        if (json_array_append_new(array, json_string(list->items[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* Writes an interval of steps only as a plain number, as versions without times did. */
static json_t *every_to_json(const struct sw_option_every *every) {
    const long long steps = (long long)every->steps, seconds = (long long)every->seconds;
    if (seconds == 0)
        return json_integer(steps);
    return steps == 0 ? json_sprintf("%llds", seconds) : json_sprintf("%lld,%llds", steps, seconds);
}

static json_t *value_to_json(const struct sw_option *option, const void *target) {
    const void *member = (const char *)target + option->offset;
    char choice[SW_OPTION_CHOICE_CHARS];
    if (sw_option_is_auto(option, target))
        return json_string("auto");
    switch (option->kind) {
    case SW_OPTION_FLAG: return json_boolean(*(const bool *)member);
    case SW_OPTION_STRING: {
        const char *text = *(char *const *)member;
        return text != NULL ? json_string(text) : json_null();
    }
    case SW_OPTION_INT:
    case SW_OPTION_SIZE:
    case SW_OPTION_DURATION: return json_integer(*(const int64_t *)member);
    case SW_OPTION_REAL: return json_real(*(const double *)member);
    case SW_OPTION_EVERY: return every_to_json(member);
    case SW_OPTION_CHOICE:
        return sw_option_choice_name(option, *(const int *)member, choice) ? json_string(choice) : NULL;
    case SW_OPTION_LIST:
    case SW_OPTION_MANY: return sw_option_list_to_json(member);
    }
    return NULL;
}

static bool is_common(const struct sw_option *option) {
    return is_kept(option) && !option->own;
}

static sw_status to_json(const struct sw_command_line *line, const void *target,
                         bool (*wanted)(const struct sw_option *), json_t **out) {
    json_t *object = json_object();
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        char key[KEY_CHARS];
        if (!wanted(option))
            continue;
        if (json_object_set_new(object, key_of(option, key), value_to_json(option, target)) != 0) {
            json_decref(object);
            return sw_json_lacked_memory()
                       ? sw_fail(SW_ERR_NOMEM, "no memory to keep the value of %s", option->name)
                       : sw_fail(SW_ERR_ARG, "the value of %s cannot be kept in JSON; it must be UTF-8 text",
                                 option->name);
        }
    }
    *out = object;
    return SW_OK;
}

sw_status sw_options_to_json(const struct sw_command_line *line, const void *target, json_t **out) {
    return to_json(line, target, is_kept, out);
}

sw_status sw_options_common_json(const struct sw_command_line *line, const void *target, json_t **out) {
    return to_json(line, target, is_common, out);
}

/* Returns the text that a user would give the flag, so that one set of checks serves both; NULL: the JSON has the wrong
 * type. */
static const char *scalar_text(const struct sw_option *option, const json_t *value, char buffer[NUMBER_CHARS]) {
    if (option->kind == SW_OPTION_REAL && json_is_number(value)) {
        snprintf(buffer, NUMBER_CHARS, "%.17g", json_number_value(value));
        return buffer;
    }
    const bool is_every = option->kind == SW_OPTION_EVERY;
    const bool is_whole = option->kind == SW_OPTION_INT || option->kind == SW_OPTION_SIZE ||
                          option->kind == SW_OPTION_DURATION || is_every;
    if (is_whole && json_is_integer(value)) {
        snprintf(buffer, NUMBER_CHARS, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return buffer;
    }
    const bool is_word = option->kind == SW_OPTION_STRING || option->kind == SW_OPTION_CHOICE || is_every ||
                         (option->allow_auto && json_is_string(value) && strcmp(json_string_value(value), "auto") == 0);
    return is_word && json_is_string(value) ? json_string_value(value) : NULL;
}

static sw_status list_from_json(const struct sw_option *option, const json_t *value, void *target) {
    sw_option_clear(option, target);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *text = json_string_value(json_array_get(value, i));
        if (text == NULL)
            return sw_fail(SW_ERR_ARG, "a value of %s is not a string; restore the file from a copy", option->name);
        SW_TRY(sw_option_set(option, text, target));
    }
    return SW_OK;
}

/* Refuses settings that lack a required value: their user relies on it. */
static sw_status check_required(const struct sw_command_line *line, const char *origin, void *target) {
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (is_kept(option) && option->required && !sw_option_has_value(option, target))
            return sw_fail(SW_ERR_ARG, "%s gives no value for %s; restore the file from a copy", origin, option->name);
    return SW_OK;
}

static sw_status value_from_json(const struct sw_option *option, const json_t *value, void *target) {
    char buffer[NUMBER_CHARS];
    if (option->kind == SW_OPTION_FLAG && json_is_boolean(value)) {
        *(bool *)sw_option_member(option, target) = json_is_true(value);
        return SW_OK;
    }
    /* Null is allowed only for a text without a default: one with a default always has a value. */
    if (option->kind == SW_OPTION_STRING && json_is_null(value) && !option->required && option->initial == NULL) {
        sw_option_clear(option, target);
        return SW_OK;
    }
    if (sw_option_is_list(option) && json_is_array(value))
        return list_from_json(option, value, target);
    const char *text = scalar_text(option, value, buffer);
    if (text == NULL)
        return sw_fail(SW_ERR_ARG, "the value of %s has the wrong type; restore the file from a copy", option->name);
    return sw_option_set(option, text, target);
}

static const struct sw_option *find_key(const struct sw_command_line *line, const char *key) {
    char own[KEY_CHARS];
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (is_kept(option) && strcmp(key_of(option, own), key) == 0)
            return option;
    return NULL;
}

sw_status sw_options_from_json(const struct sw_command_line *line, const json_t *object, const char *origin,
                               void *target) {
    if (!json_is_object(object))
        return sw_fail(SW_ERR_ARG, "%s: the settings are not a JSON object; restore the file from a copy", origin);
    /* Iterating does not change the object, but Jansson's iterators take it as writable. */
    json_t *iterable = (json_t *)(uintptr_t)object;
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(iterable, key, value) {
        const struct sw_option *option = find_key(line, key);
        if (option == NULL)
            return sw_fail(SW_ERR_ARG, "%s has the option '%.60s', which this version does not know", origin, key);
        const sw_status status = value_from_json(option, value, target);
        if (status != SW_OK)
            return sw_fail_while(status, "reading %s", origin);
    }
    return check_required(line, origin, target);
}
