/* Helpers shared by the options' files. */
#ifndef SW_JOB_SETTINGS_OPTIONS_INTERNAL_H
#define SW_JOB_SETTINGS_OPTIONS_INTERNAL_H

#include "job/settings/options.h"

enum { SW_OPTION_CHOICE_CHARS = 64 };

static inline bool sw_option_has_flag(const struct sw_option *option) {
    return option->name[0] == '-';
}

static inline bool sw_option_is_list(const struct sw_option *option) {
    return option->kind == SW_OPTION_LIST || option->kind == SW_OPTION_MANY;
}

static inline void *sw_option_member(const struct sw_option *option, void *target) {
    return (char *)target + option->offset;
}

/* Returns the command's row after `previous` (NULL: the first row), or NULL after the last. */
const struct sw_option *sw_option_next(const struct sw_command_line *line, const struct sw_option *previous);

/* Sets the member from a text. A list grows by one. */
sw_status sw_option_set(const struct sw_option *option, const char *text, void *target);

/* Tells whether a text is set or a list has an entry. Members of other kinds always have a value. */
bool sw_option_has_value(const struct sw_option *option, const void *target);

/* Tells whether the member holds "auto". */
bool sw_option_is_auto(const struct sw_option *option, const void *target);

/* Releases what the member owns and empties it. */
void sw_option_clear(const struct sw_option *option, void *target);

/* Writes the choice's name. Returns false if there is no such choice. */
bool sw_option_choice_name(const struct sw_option *option, int index, char buffer[SW_OPTION_CHOICE_CHARS]);

#endif
