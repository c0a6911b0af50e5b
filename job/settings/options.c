#include "core/log.h"
#include "job/settings/options_internal.h"

#include <assert.h>
#include <string.h>

enum { MAX_OPTIONS = 128 };

struct parser {
    const struct sw_command_line *line;
    void *target;
    int argc;
    char *const *argv;
    int next;                /* index of the next argument */
    bool seen[MAX_OPTIONS];  /* by index of the option: given on the command line */
    bool given[MAX_OPTIONS]; /* given by the recipe */
    bool flags_ended;        /* "--" was read: all later arguments are values */
    bool help;
};

static bool looks_like_flag(const char *text) {
    return text[0] == '-' && text[1] == '-';
}

/* Marks an option as given, and empties its list the first time: given values replace earlier ones. */
static sw_status mark(struct parser *parser, const struct sw_option *option) {
    bool *seen = &parser->seen[option - parser->line->options];
    if (*seen && !sw_option_is_list(option))
        return sw_fail(SW_ERR_ARG, "%s is given twice; give it once", option->name);
    if (!*seen)
        sw_option_clear(option, parser->target);
    *seen = true;
    return SW_OK;
}

static sw_status parse_values(struct parser *parser, const struct sw_option *option) {
    if (parser->next >= parser->argc || looks_like_flag(parser->argv[parser->next]))
        return sw_fail(SW_ERR_ARG, "%s needs a value (%s)", option->name,
                       option->value != NULL ? option->value : "see --help");
    do {
        SW_TRY(sw_option_set(option, parser->argv[parser->next++], parser->target));
    } while (option->kind == SW_OPTION_MANY && parser->next < parser->argc &&
             !looks_like_flag(parser->argv[parser->next]));
    return SW_OK;
}

static sw_status parse_flag(struct parser *parser, const char *argument) {
    const size_t length = strcspn(argument, "=");
    const char *attached = argument[length] == '=' ? argument + length + 1 : NULL;
    const struct sw_option *option = sw_option_find(parser->line, argument, length);
    if (option == NULL)
        return sw_option_fail_unknown(parser->line, argument, length);
    SW_TRY(mark(parser, option));
    if (option->kind == SW_OPTION_FLAG && attached != NULL)
        return sw_fail(SW_ERR_ARG, "%s takes no value, but '%s' is given; leave it out", option->name, attached);
    if (option->kind == SW_OPTION_FLAG || attached != NULL)
        return sw_option_set(option, attached, parser->target);
    return parse_values(parser, option);
}

static sw_status parse_positional(struct parser *parser, const char *argument) {
    const struct sw_command_line *line = parser->line;
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        if (sw_option_has_flag(option) || (parser->seen[option - line->options] && !sw_option_is_list(option)))
            continue;
        SW_TRY(mark(parser, option));
        return sw_option_set(option, argument, parser->target);
    }
    return sw_fail(SW_ERR_ARG, "%s does not know what to do with '%s'; 'spillway %s --help' shows what it takes",
                   line->command, argument, line->command);
}

static bool asks_for_help(const char *argument) {
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

static sw_status parse_argument(struct parser *parser) {
    const char *argument = parser->argv[parser->next++];
    if (parser->flags_ended)
        return parse_positional(parser, argument);
    if (strcmp(argument, "--") == 0) {
        parser->flags_ended = true;
        return SW_OK;
    }
    if (asks_for_help(argument)) {
        parser->help = true;
        return SW_OK;
    }
    if (strcmp(argument, "--quiet") == 0) {
        sw_log_set_quiet();
        return SW_OK;
    }
    if (argument[0] == '-' && argument[1] != '\0')
        return parse_flag(parser, argument);
    return parse_positional(parser, argument);
}

static sw_status check_required(const struct parser *parser) {
    const struct sw_command_line *line = parser->line;
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (option->required && !parser->seen[option - line->options] && !parser->given[option - line->options])
            return sw_fail(SW_ERR_ARG, "%s needs %s (%s)", line->command, option->name, option->what);
    return SW_OK;
}

static const struct sw_option *recipe_of(const struct sw_command_line *line) {
    const struct sw_option *option = NULL;
    while ((option = sw_option_next(line, option)) != NULL && !option->recipe)
        ;
    return option;
}

/* Reads the recipe before any other flag, wherever it stands, so that the command line counts more. A flag without its
 * file is refused later. */
static sw_status read_recipe(struct parser *parser) {
    const struct sw_option *option = recipe_of(parser->line);
    const size_t chars = option != NULL ? strlen(option->name) : 0;
    for (int i = 0; option != NULL && i < parser->argc; i++) {
        const char *at = parser->argv[i];
        assert(at != NULL);
        if (strcmp(at, "--") == 0)
            break;
        const bool is_flag = strncmp(at, option->name, chars) == 0;
        const char *file = NULL;
        if (is_flag && at[chars] == '=')
            file = at + chars + 1;
        else if (is_flag && at[chars] == '\0' && i + 1 < parser->argc)
            file = parser->argv[i + 1];
        if (file != NULL)
            return sw_options_read_recipe(parser->line, file, parser->target, parser->given);
    }
    return SW_OK;
}

sw_status sw_options_parse(const struct sw_command_line *line, int argc, char *const *argv, void *target,
                           bool *out_help) {
    assert(line->option_count <= MAX_OPTIONS);
    struct parser parser = {.line = line, .target = target, .argc = argc, .argv = argv};
    *out_help = false;
    SW_TRY(read_recipe(&parser));
    while (parser.next < argc && !parser.help)
        SW_TRY(parse_argument(&parser));
    *out_help = parser.help;
    if (parser.help)
        return SW_OK;
    SW_TRY(check_required(&parser));
    return line->check != NULL ? line->check(target) : SW_OK;
}
