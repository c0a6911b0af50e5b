#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { DEFAULT_COLUMNS = 80, LEAST_COLUMNS = 40, LINE_CHARS = 4608 };

static _Atomic int log_rank;
static atomic_bool is_quiet;
static atomic_bool progress_open; /* the terminal's line is still to be ended */

void sw_log_set_rank(int rank) {
    log_rank = rank;
}

void sw_log_set_quiet(void) {
    is_quiet = true;
}

bool sw_log_is_quiet(void) {
    return is_quiet;
}

bool sw_log_takes_escapes(int fd) {
    const char *terminal = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(fd) == 1 && terminal != NULL && terminal[0] != '\0' && strcmp(terminal, "dumb") != 0 &&
           (no_color == NULL || no_color[0] == '\0');
}

static int terminal_columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : DEFAULT_COLUMNS;
}

/* Returns the width that messages are broken to: COLUMNS where users set it, else the terminal's; and no less than
 * words and paths need to be read. */
static int message_columns(void) {
    const char *named = getenv("COLUMNS");
    const int columns = named != NULL ? atoi(named) : 0, width = columns > 0 ? columns : terminal_columns();
    return width > LEAST_COLUMNS ? width : LEAST_COLUMNS;
}

/* Breaks a line between words where it would pass the terminal's edge, but never a command in backticks, which users
 * copy; further lines are indented. Elsewhere lines stay whole, for programs that search them. */
static void break_line(char line[LINE_CHARS]) {
    static const char next[] = "\n  ";
    enum { NEXT = sizeof next - 1 };
    if (isatty(STDERR_FILENO) != 1)
        return;
    const int columns = message_columns();
    char *begin = line, *space = line;
    bool copied = false;
    for (char *at = line; *at != '\0' && strlen(line) + NEXT < LINE_CHARS; at++) {
        if (*at == '\n')
            begin = at + 1;
        copied ^= *at == '`';
        if (*at == ' ' && !copied && at > begin + NEXT)
            space = at;
        if (at - begin < columns || space <= begin)
            continue;
        memmove(space + NEXT, space + 1, strlen(space));
        memcpy(space, next, NEXT);
        begin = space + 1;
        at += NEXT - 1;
    }
}

static void log_line(const char *prefix, const char *format, va_list args) {
    /* One write per line keeps lines of several threads whole. */
    char line[LINE_CHARS];
    int used = snprintf(line, sizeof line, "%s%s", atomic_exchange(&progress_open, false) ? "\n" : "", prefix);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    if (used > (int)sizeof line - 2)
        line[sizeof line - 2] = '\0';
    break_line(line);
    used = (int)strlen(line);
    line[used] = '\n';
    line[used + 1] = '\0';
    fputs(line, stderr);
}

void sw_log_info(const char *format, ...) {
    if (log_rank != 0 || is_quiet)
        return;
    va_list args;
    va_start(args, format);
    log_line("", format, args);
    va_end(args);
}

void sw_log_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line("", format, args);
    va_end(args);
}

void sw_log_warn(const char *format, ...) {
    char prefix[32] = "warning: ";
    if (log_rank != 0)
        snprintf(prefix, sizeof prefix, "rank %d: warning: ", log_rank);
    va_list args;
    va_start(args, format);
    log_line(prefix, format, args);
    va_end(args);
}

/* Returns how many characters of the text to show: a line that wraps could not be replaced, and half a number would be
 * read as another one. */
static int fitting_chars(const char *text, int columns) {
    int length = (int)strlen(text);
    if (length < columns)
        return length;
    for (length = columns - 1; length > 0; length--)
        if (text[length] == ' ' && text[length + 1] == ' ')
            return length;
    return columns - 1;
}

void sw_log_progress(const char *text) {
    if (log_rank != 0 || is_quiet)
        return;
    char line[LINE_CHARS];
    snprintf(line, sizeof line, "\r%.*s\033[K", fitting_chars(text, terminal_columns()), text);
    fputs(line, stderr);
    fflush(stderr);
    progress_open = true;
}

void sw_log_end_progress(void) {
    if (atomic_exchange(&progress_open, false))
        fputc('\n', stderr);
}
