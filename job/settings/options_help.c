/* The help of a command. */
#include "core/exit.h"
#include "core/log.h"
#include "job/settings/options_internal.h"

#include <string.h>

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

/* Rows of every command, below its own. */
static const struct sw_option common[] = {
    {.name = "--quiet", .kind = SW_OPTION_FLAG, .transient = true, .what = "print only results, warnings and errors"},
    {.name = "--help", .kind = SW_OPTION_FLAG, .transient = true, .what = "print this text"},
};

/* Prints a word after a space, or at `indent` on the next line where it would pass the last column. */
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

/* Writes what stands behind the explanation, such as "(default: 2)"; returns its length. */
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
    /* A head that is too wide for its column stands on a line of its own. */
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
