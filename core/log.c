#include "core/log.h"

#include "core/clock.h"
#include "core/size.h"
#include "core/text/text.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { DEFAULT_COLUMNS = 80, LEAST_COLUMNS = 40, MOST_COLUMNS = 120, LINE_CHARS = 4608 };

static _Thread_local int log_rank;
static atomic_bool is_quiet;
static atomic_bool progress_open; /* the line on the terminal is not ended yet */

static struct {
    pthread_mutex_t mutex;    /* guards function and context, which belong together */
    sw_log_receiver function; /* NULL: messages go to standard error */
    void *context;
    atomic_bool is_set; /* function is not NULL */
} receiver = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void sw_log_send_to(sw_log_receiver function, void *context) {
    pthread_mutex_lock(&receiver.mutex);
    receiver.function = function;
    receiver.context = context;
    receiver.is_set = function != NULL;
    pthread_mutex_unlock(&receiver.mutex);
}

/* Hands a message to the receiver, without the lock: the receiver may wait for a lock whose owner sets another one.
 * Returns false if there is none. */
static bool hand_on(const char *prefix, const char *text) {
    char line[LINE_CHARS];
    pthread_mutex_lock(&receiver.mutex);
    const sw_log_receiver function = receiver.function;
    void *context = receiver.context;
    pthread_mutex_unlock(&receiver.mutex);
    if (function == NULL)
        return false;
    sw_visible_line(text, line, sizeof line);
    function(context, prefix[0] != '\0', line);
    return true;
}

void sw_log_set_rank(int rank) {
    log_rank = rank;
}

void sw_log_set_quiet(void) {
    is_quiet = true;
}

int sw_log_rank(void) {
    return log_rank;
}

bool sw_log_is_quiet(void) {
    return is_quiet;
}

bool sw_log_takes_escapes(int fd) {
    const char *terminal = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return isatty(fd) == 1 && terminal != NULL && terminal[0] != '\0' && strcmp(terminal, "dumb") != 0 &&
           (no_color == NULL || no_color[0] == '\0');
}

/* Standard output on a terminal: control characters are shown, except our own. */
static struct {
    FILE *stream,
        *before; /* stream NULL: everything passes unchanged; before: the stream that writes to the terminal */
    char begun[SW_VISIBLE_CHARS]; /* bytes of an incomplete character */
    size_t begun_bytes;
    char line[LINE_CHARS]; /* text to be shown next */
    size_t chars;
    bool folds; /* lines are collected and broken between words */
} output;

static int terminal_columns(int fd) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : DEFAULT_COLUMNS;
}

static int fd_of(FILE *to) {
    const int fd = to == output.stream ? STDOUT_FILENO : fileno(to);
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

/* Breaks a line between words where it would pass the terminal's edge, but never within a command in backticks, which
 * users copy. Continuation lines are indented. Elsewhere lines stay whole, for programs that search them. */
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
        /* Continues between words, outside a command. */
        begin = at = space + 1;
        copied = has_words = false;
    }
}

static void log_line(const char *prefix, const char *format, va_list args) {
    char text[LINE_CHARS], line[LINE_CHARS];
    const char *end = atomic_exchange(&progress_open, false) ? "\n" : "";
    vsnprintf(text, sizeof text, format, args);
    if (hand_on(prefix, text))
        return;
    const int used = snprintf(line, sizeof line, "%s%s", end, prefix);
    sw_visible_line(text, line + used, sizeof line - (size_t)used - 1);
    break_line(line, stderr);
    strcat(line, "\n");
    /* One write per line keeps lines of several threads whole. */
    fputs(line, stderr);
}

void sw_log_text(const char *text) {
    char shown[SW_VISIBLE_CHARS], whole[4 * LINE_CHARS];
    size_t used = 0;
    for (size_t left = strlen(text), taken; (taken = sw_visible_next(text, left, shown)) > 0; left -= taken) {
        text += taken;
        const size_t chars = strlen(shown);
        if (used + chars >= sizeof whole)
            break;
        memcpy(whole + used, shown, chars);
        used += chars;
    }
    whole[used] = '\0';
    /* One write keeps the text whole if another rank reports a failure meanwhile. */
    fputs(whole, stderr);
}

static bool write_all(const char *text, size_t chars) {
    for (size_t done = 0; done < chars;) {
        const ssize_t more = write(STDOUT_FILENO, text + done, chars - done);
        if (more < 0 && errno != EINTR)
            return false;
        done += more > 0 ? (size_t)more : 0;
    }
    return true;
}

/* Writes the collected line, broken between words or unchanged. */
static bool write_line(bool breaks) {
    output.line[output.chars] = '\0';
    if (breaks)
        break_line(output.line, stdout);
    output.chars = 0;
    return write_all(output.line, strlen(output.line));
}

static bool gather(const char *text) {
    const size_t chars = strlen(text);
    if (output.chars + chars >= sizeof output.line && !write_line(false))
        return false;
    memcpy(output.line + output.chars, text, chars);
    output.chars += chars;
    return !output.folds || text[0] != '\n' || write_line(true);
}

/* Takes a byte, and appends the visible form of the character that it completes. */
static bool take_byte(char byte) {
    char shown[SW_VISIBLE_CHARS];
    output.begun[output.begun_bytes++] = byte;
    for (size_t taken; (taken = sw_visible_next(output.begun, output.begun_bytes, shown)) > 0;) {
        output.begun_bytes -= taken;
        memmove(output.begun, output.begun + taken, output.begun_bytes);
        if (!gather(shown))
            return false;
    }
    return true;
}

static ssize_t write_output(void *cookie, const char *text, size_t chars) {
    (void)cookie;
    for (size_t i = 0; i < chars; i++)
        if (!take_byte(text[i]))
            return 0;
    return output.folds || write_line(false) ? (ssize_t)chars : 0;
}

void sw_log_begin_output(bool folds) {
    const cookie_io_functions_t functions = {.write = write_output};
    if (isatty(STDOUT_FILENO) != 1)
        return;
    output.stream = fopencookie(NULL, "w", functions);
    output.before = stdout;
    output.folds = folds;
    if (output.stream == NULL)
        return;
    setvbuf(output.stream, NULL, _IOLBF, BUFSIZ);
    stdout = output.stream;
}

void sw_log_end_folding(void) {
    if (output.stream == NULL)
        return;
    fflush(stdout);
    write_line(false);
    output.folds = false;
}

void sw_log_escape(const char *sequence) {
    if (output.stream == NULL) {
        fputs(sequence, stdout);
        return;
    }
    fflush(stdout);
    if (gather(sequence) && !output.folds)
        write_line(false);
}

void sw_log_end_output(void) {
    sw_log_end_folding();
    if (output.stream == NULL)
        return;
    /* The bytes of a character that was never completed are shown one by one. */
    output.begun[output.begun_bytes] = '\0';
    char shown[sizeof output.begun * SW_VISIBLE_CHARS];
    write_all(shown, sw_visible_line(output.begun, shown, sizeof shown));
    stdout = output.before;
    output.stream = NULL;
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

/* Returns how many characters of the text to show: a line that wraps could not be replaced, and half a number would
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
    if (log_rank != 0 || is_quiet || receiver.is_set)
        return;
    char line[LINE_CHARS], shown[LINE_CHARS / 2];
    sw_visible_line(text, shown, sizeof shown);
    snprintf(line, sizeof line, "\r%.*s\033[K", fitting_chars(shown, terminal_columns(STDERR_FILENO)), shown);
    fputs(line, stderr);
    fflush(stderr);
    progress_open = true;
}

void sw_log_end_progress(void) {
    if (atomic_exchange(&progress_open, false))
        fputc('\n', stderr);
}

/* A terminal shows progress often. A file keeps every line and needs few. */
#define FIRST_SHOWN_NS INT64_C(2000000000)
#define SHOW_EVERY_NS INT64_C(500000000)
#define WRITE_EVERY_NS INT64_C(30000000000)
enum { SHOWN_CHARS = 160 };

static const volatile sig_atomic_t *_Atomic stop_flag;

void sw_long_work_stop_by(const volatile sig_atomic_t *stop) {
    stop_flag = stop;
}

struct sw_long_work sw_long_work_begin(const char *what, int64_t total_bytes) {
    const int64_t now_ns = sw_now_ns();
    struct sw_long_work work = {.total_bytes = total_bytes, .begun_ns = now_ns, .said_ns = now_ns};
    snprintf(work.what, sizeof work.what, "%s", what);
    return work;
}

static void describe(const struct sw_long_work *work, int64_t done, int64_t now_ns, char line[SHOWN_CHARS]) {
    char done_text[SW_SIZE_CHARS], total[SW_SIZE_CHARS];
    if (work->total_bytes == 0)
        snprintf(line, SHOWN_CHARS, "%s: %.0f s so far", work->what, (double)(now_ns - work->begun_ns) * 1e-9);
    else if (work->unit != NULL)
        snprintf(line, SHOWN_CHARS, "%s: %lld of %lld %s", work->what, (long long)done, (long long)work->total_bytes,
                 work->unit);
    else
        snprintf(line, SHOWN_CHARS, "%s: %s of %s", work->what, sw_format_size(done, done_text),
                 sw_format_size(work->total_bytes, total));
}

sw_status sw_long_work_at(struct sw_long_work *work, int64_t done) {
    const volatile sig_atomic_t *stop = stop_flag;
    const int64_t now_ns = sw_now_ns();
    const bool on_terminal = sw_log_takes_escapes(STDERR_FILENO);
    char line[SHOWN_CHARS];
    if (stop != NULL && *stop)
        return sw_fail(SW_ERR_STOPPED, "stopped while %s", work->what);
    if (work->total_bytes == SW_LONG_WORK_SILENT || now_ns - work->begun_ns < FIRST_SHOWN_NS ||
        now_ns - work->said_ns < (on_terminal ? SHOW_EVERY_NS : WRITE_EVERY_NS))
        return SW_OK;
    work->said_ns = now_ns;
    describe(work, done, now_ns, line);
    if (on_terminal)
        sw_log_progress(line);
    else
        sw_log_info("%s", line);
    return SW_OK;
}

void sw_long_work_end(const struct sw_long_work *work) {
    if (work->total_bytes != SW_LONG_WORK_SILENT)
        sw_log_end_progress();
}
