/* Looks for rows in the table of a command's flags. */
#include "core/files/nearest.h"
#include "job/settings/options_internal.h"

#include <string.h>

const struct sw_option *sw_option_next(const struct sw_command_line *line, const struct sw_option *previous) {
    const struct sw_option *option = previous == NULL ? line->options : previous + 1;
    for (; option < line->options + line->option_count; option++)
        if (line->bit == 0 || (option->commands & line->bit) != 0)
            return option;
    return NULL;
}

const struct sw_option *sw_option_find(const struct sw_command_line *line, const char *name, size_t length) {
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (sw_option_has_flag(option) && strlen(option->name) == length && strncmp(option->name, name, length) == 0)
            return option;
    return NULL;
}

bool sw_options_have(const struct sw_command_line *line, const char *argument) {
    return sw_option_find(line, argument, strcspn(argument, "=")) != NULL;
}

const char *sw_options_nearest(const struct sw_command_line *line, const char *typed, size_t length) {
    struct sw_nearest nearest = sw_nearest_begin(typed, length);
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (sw_option_has_flag(option))
            sw_nearest_consider(&nearest, option->name);
    return nearest.name;
}
