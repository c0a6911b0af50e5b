/* Parses arguments, reports errors and prints JSON, the same way for all commands. */
#include "cli/commands.h"
#include "core/log.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

/* Training seldom overtakes a reader: the reader is as fast as the drive, and a step seldom is. */
enum { MOST_ATTEMPTS = 20, PAUSE_US = 20000 };
enum { LINE_CHARS = 4608 };

int sw_command_fail(const char *command, sw_status status) {
    sw_log_error("spillway %s: %s", command, sw_error_message(status));
    return status == SW_ERR_USAGE ? SW_EXIT_USAGE : SW_EXIT_FAILED;
}

bool sw_command_parse(const struct sw_command_line *line, int argc, char **argv, void *target, int *out_exit) {
    bool help = false;
    sw_status status = sw_options_defaults(line, target);
    if (status == SW_OK)
        status = sw_options_parse(line, argc, argv, target, &help);
    if (status != SW_OK) {
        /* SW_ERR_UNSUPPORTED is no usage error: a later version may accept the same arguments. */
        *out_exit = sw_command_fail(line->command, sw_as_usage(status));
        return false;
    }
    if (!help)
        return true;
    sw_options_help(line, stdout);
    *out_exit = SW_EXIT_DONE;
    return false;
}

int sw_command_run(const struct sw_command_line *line, int argc, char **argv, void *target,
                   sw_status (*run)(const void *target)) {
    int code;
    if (sw_command_parse(line, argc, argv, target, &code)) {
        const sw_status status = run(target);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail(line->command, status);
    }
    sw_options_release(line, target);
    return code;
}

void sw_command_print_to(FILE *to, int column, int indent, const char *format, ...) {
    char line[LINE_CHARS];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sw_print_wrapped(line, column, indent, to);
    fputc('\n', to);
}

sw_status sw_command_print_json(json_t *object) {
    if (object == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the JSON object of --json");
    sw_log_end_folding();
    json_dumpf(object, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(object);
    return SW_OK;
}

sw_status sw_command_read_run(sw_status (*attempt)(void *context), void (*end)(void *context), void *context) {
    for (int attempts = 1;; attempts++) {
        const sw_status status = attempt(context);
        if (status != SW_ERR_OVERTAKEN || attempts == MOST_ATTEMPTS)
            return status;
        end(context);
        sw_error_clear();
        usleep(PAUSE_US);
    }
}
