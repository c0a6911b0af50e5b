/* The library as a guest in another program: its messages, errors, structs of other versions, and signals. */
#include "core/log.h"
#include "library/library_private.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static_assert((int)SPILLWAY_OK == (int)SW_OK && (int)SPILLWAY_ERROR_ARGUMENT == (int)SW_ERR_ARG &&
                  (int)SPILLWAY_ERROR_MEMORY == (int)SW_ERR_NOMEM && (int)SPILLWAY_ERROR_IO == (int)SW_ERR_IO &&
                  (int)SPILLWAY_ERROR_SPACE == (int)SW_ERR_SPACE &&
                  (int)SPILLWAY_ERROR_CORRUPT == (int)SW_ERR_CORRUPT &&
                  (int)SPILLWAY_ERROR_BUDGET == (int)SW_ERR_BUDGET &&
                  (int)SPILLWAY_ERROR_UNSUPPORTED == (int)SW_ERR_UNSUPPORTED &&
                  (int)SPILLWAY_ERROR_BUSY == (int)SW_ERR_BUSY && (int)SPILLWAY_ERROR_PEER == (int)SW_ERR_STOPPED &&
                  (int)SPILLWAY_ERROR_INTERNAL == (int)SW_ERR_INTERNAL &&
                  (int)SPILLWAY_ERROR_DEVICE == (int)SW_ERR_DEVICE,
              "statuses are numbered alike");

/* Messages. */

static void tell_nobody(void *context, int is_warning, const char *line) {
    (void)context;
    (void)is_warning;
    (void)line;
}

void spillway_set_log(spillway_log_function function, void *context) {
    sw_log_send_to(function != NULL ? function : tell_nobody, context);
}

/* Errors. */

/* The error of the thread's last call without a handle. */
static _Thread_local char own_error[LIBRARY_ERROR_CHARS];

/* Advice of the engine that names flags and commands of the program, and what callers of the library can do. The text
 * from `begin` to the end of `end` is replaced. */
static const struct {
    const char *begin, *end, *by;
} advice[] = {
    {"in the folder of a run: name its directory by --nvme", "--nvme",
     "in a store's folder: put the file itself there"},
    {"if it was moved, name its directory by --nvme", "--nvme", "if it was moved, put it back"},
    {"resume --previous goes back", "otherwise go back to an export or another copy", "go back to a copy of the store"},
    {"go back to an export or another copy", "copy", "go back to a copy of the store"},
    {"; a larger --micro-batch", "makes fewer", ": register fewer and larger tensors"},
    {"accept page-cache speed and memory with --allow-buffered", "--allow-buffered",
     "accept page-cache speed and memory with allow_buffered"},
};

static void keep_error(char to[LIBRARY_ERROR_CHARS], sw_status status) {
    char text[LIBRARY_ERROR_CHARS];
    if (status == SW_OK) {
        to[0] = '\0';
        sw_error_clear();
        return;
    }
    snprintf(text, sizeof text, "%s", sw_error_message(status));
    memcpy(to, text, sizeof text);
    for (size_t i = 0; i < sizeof advice / sizeof advice[0]; i++) {
        const char *begin = strstr(text, advice[i].begin);
        const char *end = begin != NULL ? strstr(begin, advice[i].end) : NULL;
        if (end == NULL)
            continue;
        snprintf(to, LIBRARY_ERROR_CHARS, "%.*s%s%s", (int)(begin - text), text, advice[i].by,
                 end + strlen(advice[i].end));
        break;
    }
    sw_error_clear();
}

/* Returns the status by which callers know an internal one. */
static int public_status(sw_status status) {
    switch (status) {
    case SW_OK:
    case SW_ERR_ARG:
    case SW_ERR_NOMEM:
    case SW_ERR_IO:
    case SW_ERR_SPACE:
    case SW_ERR_CORRUPT:
    case SW_ERR_BUDGET:
    case SW_ERR_UNSUPPORTED:
    case SW_ERR_BUSY:
    case SW_ERR_DEVICE:
    case SW_ERR_STOPPED: return status;
    case SW_ERR_USAGE: return SPILLWAY_ERROR_ARGUMENT;
    default: return SPILLWAY_ERROR_INTERNAL;
    }
}

int sw_library_end(spillway *self, sw_status status, bool fatal) {
    const int known = public_status(status);
    keep_error(self != NULL ? self->error : own_error, status);
    if (self == NULL || !fatal || known == SPILLWAY_OK)
        return known;
    self->failed |= known != SPILLWAY_ERROR_ARGUMENT;
    /* A store that is not opened is of no use, whatever the reason. */
    if (known != SPILLWAY_ERROR_ARGUMENT || !self->open)
        sw_library_tell(self, self->error);
    return known;
}

sw_status sw_library_begin(spillway *self, bool open) {
    sw_error_clear();
    if (self == NULL)
        return sw_fail(SW_ERR_ARG, "the handle is NULL: spillway_create makes one");
    self->agreed = self->failed;
    if (self->owner != getpid())
        return sw_fail(SW_ERR_ARG,
                       "this process is a fork of the one that opened %s, whose threads it lacks: open the "
                       "store after the fork, in one process",
                       self->folder);
    if (self->failed)
        return sw_fail(SW_ERR_ARG, "an earlier call failed, so %s can only be closed", self->folder);
    if (open && !self->open)
        return sw_fail(SW_ERR_ARG, "%s is not open yet: call spillway_open first", self->folder);
    if (!open && self->open)
        return sw_fail(SW_ERR_ARG, "%s is open: this call comes before spillway_open", self->folder);
    return SW_OK;
}

const char *spillway_error(const spillway *self) {
    return self == NULL ? own_error : self->error;
}

const char *spillway_status_name(int status) {
    return status == SPILLWAY_OK ? "ok" : sw_status_name(status);
}

/* Versions. */

int spillway_version(void) {
    return SPILLWAY_VERSION_MAJOR * 1000000 + SPILLWAY_VERSION_MINOR * 1000 + SPILLWAY_VERSION_PATCH;
}

/* A struct whose size was never set has any size, and must not be read to its supposed end. */
enum { MOST_APPENDED_BYTES = 4096 };

/* 0.1 is the first version, so no struct is smaller than these. */
static sw_status check_size(const void *given, size_t bytes, const char *what, const char *init, size_t *out) {
    *out = 0;
    if (given != NULL)
        memcpy(out, given, sizeof *out);
    return *out >= bytes && *out <= bytes + MOST_APPENDED_BYTES
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "%s cannot be read: the pointer is NULL, or `size` is that of no version; begin with %s", what,
                         init);
}

sw_status sw_library_take_struct(void *out, size_t bytes, const void *given, const char *what, const char *init) {
    size_t size;
    SW_TRY(check_size(given, bytes, what, init, &size));
    for (size_t at = bytes; at < size; at++)
        if (((const char *)given)[at] != 0)
            return sw_fail(SW_ERR_ARG, "%s cannot be taken: a member of a later version is set, which %d.%d.%d lacks",
                           what, SPILLWAY_VERSION_MAJOR, SPILLWAY_VERSION_MINOR, SPILLWAY_VERSION_PATCH);
    memcpy(out, given, bytes);
    return SW_OK;
}

sw_status sw_library_check_result(const void *given, size_t bytes, const char *what, const char *init) {
    size_t size;
    return check_size(given, bytes, what, init, &size);
}

void sw_library_give_struct(void *given, const void *result, size_t bytes) {
    memcpy((char *)given + sizeof bytes, (const char *)result + sizeof bytes, bytes - sizeof bytes);
}

/* Signals. */

struct sw_library_signals sw_library_block_signals(bool all) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    struct sw_library_signals signals;
    sigset_t blocked, pending;
    if (all)
        sigfillset(&blocked);
    else
        sigemptyset(&blocked);
    sigaddset(&blocked, SIGXFSZ);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    sigpending(&pending);
    signals.was_pending = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &blocked, &signals.before);
    return signals;
}

void sw_library_allow_signals(const struct sw_library_signals *signals) {
    sigset_t limit;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    if (!signals->was_pending)
        (void)sigtimedwait(&limit, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
}
