#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { DEFAULT_COLUMNS = 80, LEAST_COLUMNS = 40, MOST_COLUMNS = 120, LINE_CHARS = 4608 };

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

/* Standard output whose lines are broken. */
static struct {
    FILE *stream, *before; /* stream NULL: lines stay as they are; before: what writes to the terminal itself */
    char line[LINE_CHARS];
    size_t chars;
} folded;

static int terminal_columns(int fd) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : DEFAULT_COLUMNS;
}

static int fd_of(FILE *to) {
    const int fd = to == folded.stream ? STDOUT_FILENO : fileno(to);
    return fd >= 0 ? fd : STDERR_FILENO;
}

int sw_log_columns(FILE *to) {
    const char *named = getenv("COLUMNS");
    const int fd = fd_of(to), columns = named != NULL ? atoi(named) : 0;
    if (isatty(fd) != 1)
        return DEFAULT_COLUMNS;
    const int width = columns > 0 ? columns : terminal_columns(fd);
    const int bounded = width < MOST_COLUMNS ? width : MOST_COLUMNS;
    return bounded > LEAST_COLUMNS ? bounded : LEAST_COLUMNS;
}

/* Breaks a line between words where it would pass the terminal's edge, but never a command in backticks, which users
 * copy; further lines are indented. Elsewhere lines stay whole, for programs that search them. */
static void break_line(char line[LINE_CHARS], FILE *to) {
    static const char next[] = "\n  ";
    enum { NEXT = sizeof next - 1 };
    if (isatty(fd_of(to)) != 1)
        return;
    const int columns = sw_log_columns(to);
    char *begin = line, *space = line;
    bool copied = false, has_words = false;
    for (char *at = line; *at != '\0' && strlen(line) + NEXT < LINE_CHARS; at++) {
        if (*at == '\n') {
            begin = space = at + 1;
            has_words = false;
            continue;
        }
        copied ^= *at == '`';
        if (*at == ' ' && !copied && has_words)
            space = at;
        has_words |= *at != ' ';
        if (at - begin < columns || space <= begin)
            continue;
        const char *rest = space + strspn(space, " ");
        memmove(space + NEXT, rest, strlen(rest) + 1);
        memcpy(space, next, NEXT);
        /* The text that is read again begins between words, outside a command. */
        begin = at = space + 1;
        copied = has_words = false;
    }
}

static void log_line(const char *prefix, const char *format, va_list args) {
    /* One write per line keeps lines of several threads whole. */
    char line[LINE_CHARS];
    int used = snprintf(line, sizeof line, "%s%s", atomic_exchange(&progress_open, false) ? "\n" : "", prefix);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    if (used > (int)sizeof line - 2)
        line[sizeof line - 2] = '\0';
    break_line(line, stderr);
    used = (int)strlen(line);
    line[used] = '\n';
    line[used + 1] = '\0';
    fputs(line, stderr);
}

/* Writes the line that was gathered, broken or as it is. */
static bool write_line(bool breaks) {
    folded.line[folded.chars] = '\0';
    if (breaks)
        break_line(folded.line, stdout);
    const size_t chars = strlen(folded.line);
    folded.chars = 0;
    for (size_t done = 0; done < chars;) {
        const ssize_t more = write(STDOUT_FILENO, folded.line + done, chars - done);
        if (more < 0 && errno != EINTR)
            return false;
        done += more > 0 ? (size_t)more : 0;
    }
    return true;
}

static ssize_t fold(void *cookie, const char *text, size_t chars) {
    (void)cookie;
    for (size_t i = 0; i < chars; i++) {
        folded.line[folded.chars++] = text[i];
        const bool whole = text[i] == '\n', full = folded.chars + 1 == sizeof folded.line;
        if ((whole || full) && !write_line(whole))
            return 0;
    }
    return (ssize_t)chars;
}

void sw_log_fold_output(void) {
    const cookie_io_functions_t functions = {.write = fold};
    if (isatty(STDOUT_FILENO) != 1)
        return;
    folded.stream = fopencookie(NULL, "w", functions);
    folded.before = stdout;
    if (folded.stream == NULL)
        return;
    setvbuf(folded.stream, NULL, _IOLBF, BUFSIZ);
    stdout = folded.stream;
}

void sw_log_end_folding(void) {
    if (folded.stream == NULL)
        return;
    fflush(stdout);
    write_line(false);
    stdout = folded.before;
    folded.stream = NULL;
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
    snprintf(line, sizeof line, "\r%.*s\033[K", fitting_chars(text, terminal_columns(STDERR_FILENO)), text);
    fputs(line, stderr);
    fflush(stderr);
    progress_open = true;
}

void sw_log_end_progress(void) {
    if (atomic_exchange(&progress_open, false))
        fputc('\n', stderr);
}
