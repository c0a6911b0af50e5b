/* Help, and the guess at what a mistyped flag was meant to be. */
#include "core/exit.h"
#include "train/files/nearest.h"
#include "train/settings/options_internal.h"

#include <stdlib.h>
#include <string.h>

enum { FLAG_COLUMN_CHARS = 30 };

const char *sw_options_nearest(const struct sw_command_line *line, const char *typed, size_t length) {
    struct sw_nearest nearest = sw_nearest_begin(typed, length);
    for (int i = 0; i < line->option_count; i++)
        if (sw_option_has_flag(&line->options[i]))
            sw_nearest_consider(&nearest, line->options[i].name);
    return nearest.name;
}

static const char *value_name(const struct sw_option *option) {
    return option->kind == SW_OPTION_CHOICE && option->value == NULL ? option->choices : option->value;
}

static void print_usage(const struct sw_command_line *line, FILE *to) {
    fprintf(to, "Usage: spillway %s", line->command);
    for (int i = 0; i < line->option_count; i++) {
        const struct sw_option *option = &line->options[i];
        const char *more = sw_option_is_list(option) ? "..." : "";
        if (!sw_option_has_flag(option))
            fprintf(to, option->required ? " %s%s" : " [%s%s]", option->name, more);
        else if (option->required)
            fprintf(to, " %s %s%s", option->name, value_name(option), more);
    }
    fprintf(to, " [flags]\n\n%s\n\n", line->summary);
}

static void print_option(const struct sw_command_line *line, const struct sw_option *option, FILE *to) {
    char head[128];
    const char *value = sw_option_has_flag(option) ? value_name(option) : NULL;
    const char *more = sw_option_is_list(option) ? "..." : "";
    const int width = snprintf(head, sizeof head, "%s%s%s%s", option->name, value != NULL ? " " : "",
                               value != NULL ? value : "", more);
    /* What is too wide for the column stands on a line of its own. */
    if (width > FLAG_COLUMN_CHARS)
        fprintf(to, "  %s\n  %-*s  %s", head, FLAG_COLUMN_CHARS, "", option->what);
    else
        fprintf(to, "  %-*s  %s", FLAG_COLUMN_CHARS, head, option->what);
    if (option->required)
        fprintf(to, " (required)");
    else if (line->goes_on && !option->transient)
        fprintf(to, " (default: as before)");
    else if (option->initial != NULL)
        fprintf(to, " (default: %s)", option->initial);
    fputc('\n', to);
}

void sw_options_help(const struct sw_command_line *line, FILE *to) {
    print_usage(line, to);
    for (int i = 0; i < line->option_count; i++)
        print_option(line, &line->options[i], to);
    fprintf(to, "  %-*s  %s\n", FLAG_COLUMN_CHARS, "--quiet", "say nothing but results, warnings and errors");
    fprintf(to, "  %-*s  %s\n", FLAG_COLUMN_CHARS, "--help", "show this");
    if (line->more_help != NULL)
        line->more_help(to);
}

void sw_options_help_exits(FILE *to) {
    static const struct {
        int status;
        const char *what;
    } exits[] = {{SW_EXIT_DONE, "done"},
                 {SW_EXIT_FAILED, "failed"},
                 {SW_EXIT_USAGE, "wrong arguments"},
                 {SW_EXIT_TIME_LIMIT, "train, resume: the time limit is reached, and all is saved"},
                 {SW_EXIT_NOT_FINITE, "train, resume: losses, gradients or weights are not finite"},
                 {SW_EXIT_INTERRUPTED, "train, resume: stopped by a signal, and all is saved"}};
    fputs("\nexit status:\n", to);
    for (size_t i = 0; i < sizeof exits / sizeof exits[0]; i++)
        fprintf(to, "  %-12d %s\n", exits[i].status, exits[i].what);
}
