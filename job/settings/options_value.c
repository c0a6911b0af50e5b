/* Parses the text of one value into the member that holds it. */
#include "core/number.h"
#include "core/size.h"
#include "job/settings/options_internal.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS_PER_MINUTE = 60, SECONDS_PER_HOUR = 3600, EVERY_PART_CHARS = 32 };

static int64_t int_max_of(const struct sw_option *option) {
    return option->int_max != 0 ? option->int_max : INT64_MAX;
}

static sw_status fail_int(const struct sw_option *option, const char *text) {
    const char *or_auto = option->allow_auto ? ", or auto" : "";
    if (option->int_max == 0)
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a whole number of at least %lld%s", option->name, text,
                       (long long)option->int_min, or_auto);
    return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a whole number from %lld to %lld%s", option->name, text,
                   (long long)option->int_min, (long long)option->int_max, or_auto);
}

static sw_status set_int(const struct sw_option *option, const char *text, int64_t *out) {
    char *end = NULL;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    const bool is_number = end != text && *end == '\0' && errno == 0 && !isspace((unsigned char)text[0]);
    if (!is_number || number < option->int_min || number > int_max_of(option))
        return fail_int(option, text);
    *out = number;
    return SW_OK;
}

static sw_status set_real(const struct sw_option *option, const char *text, double *out) {
    char *end = NULL;
    const double number = strtod(text, &end);
    const bool is_number = end != text && *end == '\0' && isfinite(number) && !isspace((unsigned char)text[0]);
    const bool has_max = option->real_max != 0;
    const bool too_large = has_max && (option->below_max ? number >= option->real_max : number > option->real_max);
    if (is_number && number >= option->real_min && !too_large) {
        *out = number;
        return SW_OK;
    }
    const char *or_auto = option->allow_auto ? ", or auto" : "";
    if (!has_max)
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a number of at least %g%s", option->name, text,
                       option->real_min, or_auto);
    return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a number from %g to %s%g%s", option->name, text,
                   option->real_min, option->below_max ? "below " : "", option->real_max, or_auto);
}

static sw_status set_size(const struct sw_option *option, const char *text, int64_t *out) {
    int64_t bytes = 0;
    const sw_status status = sw_parse_size(text, &bytes);
    if (status != SW_OK)
        return sw_fail_while(status, "reading %s", option->name);
    char least[SW_SIZE_CHARS], most[SW_SIZE_CHARS];
    if (bytes < option->int_min || bytes > int_max_of(option))
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be from %s to %s", option->name, text,
                       sw_format_size(option->int_min, least), sw_format_size(int_max_of(option), most));
    *out = bytes;
    return SW_OK;
}

/* Returns the seconds of a number with its unit, or -1 for another text. */
static int64_t seconds_of(const char *text) {
    static const struct {
        const char *name;
        int64_t seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", SECONDS_PER_MINUTE}, {"min", SECONDS_PER_MINUTE}, {"h", SECONDS_PER_HOUR}};
    char *end = NULL;
    errno = 0;
    const long long number = isdigit((unsigned char)text[0]) ? strtoll(text, &end, 10) : -1;
    int64_t seconds = 0;
    for (size_t i = 0; end != NULL && errno == 0 && i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].name) == 0 && sw_mul_i64(number, units[i].seconds, &seconds))
            return seconds;
    return -1;
}

static sw_status set_duration(const struct sw_option *option, const char *text, int64_t *out) {
    const int64_t seconds = seconds_of(text);
    if (seconds < 0 || seconds < option->int_min || seconds > int_max_of(option))
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a time of at least %s, such as 90s, 15m or 2h",
                       option->name, text, SW_COUNT(option->int_min, "second"));
    *out = seconds;
    return SW_OK;
}

/* Reads "100,10m": a number without a unit counts steps, one with a unit is a time. */
static sw_status set_every(const struct sw_option *option, const char *text, struct sw_option_every *out) {
    char part[EVERY_PART_CHARS];
    struct sw_option_every every = {0};
    for (const char *at = text;; at++) {
        const size_t chars = strcspn(at, ",");
        snprintf(part, sizeof part, "%.*s", (int)chars, at);
        const bool is_steps = part[strspn(part, "0123456789")] == '\0';
        int64_t *member = is_steps ? &every.steps : &every.seconds;
        const int64_t value = chars < sizeof part ? seconds_of(part) : -1;
        if (value < 1 || *member != 0)
            return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be steps, a time or both, such as 100, 10m or 100,10m",
                           option->name, text);
        *member = value;
        at += chars;
        if (*at == '\0')
            break;
    }
    *out = every;
    return SW_OK;
}

bool sw_option_choice_name(const struct sw_option *option, int index, char buffer[SW_OPTION_CHOICE_CHARS]) {
    const char *at = option->choices;
    for (int i = 0; i < index && at != NULL; i++) {
        at = strchr(at, '|');
        at = at != NULL ? at + 1 : NULL;
    }
    if (at == NULL || index < 0)
        return false;
    const size_t length = strcspn(at, "|");
    assert(length < SW_OPTION_CHOICE_CHARS);
    memcpy(buffer, at, length);
    buffer[length] = '\0';
    return true;
}

static sw_status set_choice(const struct sw_option *option, const char *text, int *out) {
    char name[SW_OPTION_CHOICE_CHARS];
    for (int i = 0; sw_option_choice_name(option, i, name); i++) {
        if (strcmp(name, text) == 0) {
            *out = i;
            return SW_OK;
        }
    }
    return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be one of %s", option->name, text, option->choices);
}

static sw_status check_text(const struct sw_option *option, const char *text) {
    return text[0] != '\0' ? SW_OK : sw_fail(SW_ERR_ARG, "%s is empty; give a value", option->name);
}

static sw_status set_string(const struct sw_option *option, const char *text, char **out) {
    SW_TRY(check_text(option, text));
    char *copy = strdup(text);
    if (copy == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the value of %s", option->name);
    free(*out);
    *out = copy;
    return SW_OK;
}

static void set_auto(const struct sw_option *option, void *member) {
    assert(option->kind == SW_OPTION_INT || option->kind == SW_OPTION_SIZE || option->kind == SW_OPTION_DURATION ||
           option->kind == SW_OPTION_REAL);
    if (option->kind == SW_OPTION_REAL)
        *(double *)member = (double)SW_OPTION_AUTO;
    else
        *(int64_t *)member = SW_OPTION_AUTO;
}

bool sw_option_has_value(const struct sw_option *option, const void *target) {
    const void *member = (const char *)target + option->offset;
    if (option->kind == SW_OPTION_STRING)
        return *(char *const *)member != NULL;
    return !sw_option_is_list(option) || ((const struct sw_option_list *)member)->count > 0;
}

bool sw_option_is_auto(const struct sw_option *option, const void *target) {
    const void *member = (const char *)target + option->offset;
    if (!option->allow_auto)
        return false;
    return option->kind == SW_OPTION_REAL ? *(const double *)member == (double)SW_OPTION_AUTO
                                          : *(const int64_t *)member == SW_OPTION_AUTO;
}

sw_status sw_option_set(const struct sw_option *option, const char *text, void *target) {
    void *member = sw_option_member(option, target);
    if (option->allow_auto && strcmp(text, "auto") == 0) {
        set_auto(option, member);
        return SW_OK;
    }
    switch (option->kind) {
    case SW_OPTION_FLAG: *(bool *)member = true; return SW_OK;
    case SW_OPTION_STRING: return set_string(option, text, member);
    case SW_OPTION_INT: return set_int(option, text, member);
    case SW_OPTION_REAL: return set_real(option, text, member);
    case SW_OPTION_SIZE: return set_size(option, text, member);
    case SW_OPTION_DURATION: return set_duration(option, text, member);
    case SW_OPTION_EVERY: return set_every(option, text, member);
    case SW_OPTION_CHOICE: return set_choice(option, text, member);
    case SW_OPTION_LIST:
    case SW_OPTION_MANY: SW_TRY(check_text(option, text)); return sw_option_list_add(member, text);
    }
    return sw_fail(SW_ERR_INTERNAL, "%s has no known kind", option->name);
}

sw_status sw_option_list_add(struct sw_option_list *list, const char *text) {
    char **items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (items == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a list of %d texts", list->count + 1);
    list->items = items;
    items[list->count] = strdup(text);
    if (items[list->count] == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a list of %d texts", list->count + 1);
    list->count++;
    return SW_OK;
}

void sw_option_list_release(struct sw_option_list *list) {
    for (int i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct sw_option_list){0};
}

void sw_option_clear(const struct sw_option *option, void *target) {
    void *member = sw_option_member(option, target);
    if (option->kind == SW_OPTION_STRING) {
        free(*(char **)member);
        *(char **)member = NULL;
    } else if (sw_option_is_list(option)) {
        sw_option_list_release(member);
    }
}

sw_status sw_options_defaults(const struct sw_command_line *line, void *target) {
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        assert(option->kind != SW_OPTION_FLAG || option->initial == NULL);
        if (option->initial != NULL)
            SW_TRY(sw_option_set(option, option->initial, target));
    }
    return SW_OK;
}

void sw_options_release(const struct sw_command_line *line, void *target) {
    for (int i = 0; i < line->option_count; i++)
        sw_option_clear(&line->options[i], target);
}
