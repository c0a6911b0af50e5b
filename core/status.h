/* Status codes and the first error.
 *
 * Functions that can fail return a sw_status: 0 or a negative code from the list below. The message that explains a
 * thread's first failure is kept in thread-local storage until someone handles it (sw_error_clear) or prints it. Later
 * failures, typically of clean-up, do not replace it. */
#ifndef SW_CORE_STATUS_H
#define SW_CORE_STATUS_H

#include <stddef.h>

typedef int sw_status;

enum {
    SW_OK = 0,
    SW_ERR_ARG = -1,         /* input from outside is wrong: a flag, a file's content, a size */
    SW_ERR_NOMEM = -2,       /* the system refused memory */
    SW_ERR_IO = -3,          /* a file or device failed */
    SW_ERR_SPACE = -4,       /* no room on a file system */
    SW_ERR_CORRUPT = -5,     /* a checksum or a structure on disk is wrong */
    SW_ERR_BUDGET = -6,      /* does not fit in the budgets */
    SW_ERR_UNSUPPORTED = -7, /* known, but not available in this build or on this machine */
    SW_ERR_BUSY = -8,        /* in use by another process */
    SW_ERR_STOPPED = -9,     /* ended on request, or because another lane failed */
    SW_ERR_DEVICE = -11,     /* a GPU or its driver failed */
    SW_ERR_OVERTAKEN = -12,  /* another process has overwritten what was being read: read again */
    SW_ERR_NOT_FINITE = -13, /* losses, gradients or weights of a training are not finite */
    SW_ERR_USAGE = -14,      /* the command line is wrong, whatever is in the files that it names */
    SW_ERR_INTERNAL = -10,   /* our own mistake that an assert cannot catch */
};

/* Records code and message, unless this thread has an unhandled error. Returns code. It is a macro, so that compilers
 * and analysers see the code. */
#define sw_fail(code, ...)                                                                                             \
    ({                                                                                                                 \
        const sw_status sw_code_ __attribute__((unused)) = (code);                                                     \
        sw_record_error(__VA_ARGS__);                                                                                  \
        sw_code_;                                                                                                      \
    })
void sw_record_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds ", while ..." to the recorded error, if there is one. Returns code unchanged, so that it can end a return
 * statement. */
sw_status sw_fail_while(sw_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the recorded message, or the code's own name if nothing was recorded. Valid until the next call on this
 * thread that fails or clears. */
const char *sw_error_message(sw_status code);

/* Forgets the recorded error of this thread: it has been handled. */
void sw_error_clear(void);

/* Turns SW_ERR_ARG into SW_ERR_USAGE, for calls in which only the command line can be wrong. Returns all other codes
 * unchanged. */
sw_status sw_as_usage(sw_status code);

const char *sw_status_name(sw_status code);

/* Returns from the enclosing function with the status of the expression if it is an error. */
#define SW_TRY(expression)                                                                                             \
    do {                                                                                                               \
        const sw_status sw_try_ = (expression);                                                                        \
        if (sw_try_ != SW_OK)                                                                                          \
            return sw_try_;                                                                                            \
    } while (0)

/* Does the same in functions with a cleanup label: sets the local variable `status` and jumps. */
#define SW_TRY_GOTO(expression, label)                                                                                 \
    do {                                                                                                               \
        status = (expression);                                                                                         \
        if (status != SW_OK)                                                                                           \
            goto label;                                                                                                \
    } while (0)

/* Exit statuses, by which scripts tell how a command ended. */
enum {
    SW_EXIT_DONE = 0,
    SW_EXIT_FAILED = 1,
    SW_EXIT_USAGE = 2,         /* wrong arguments */
    SW_EXIT_TIME_LIMIT = 3,    /* training reached --time-limit; its state is saved */
    SW_EXIT_NOT_FINITE = 4,    /* losses, gradients or weights of a training are not finite */
    SW_EXIT_INTERRUPTED = 130, /* a signal stopped the training; its state is saved */
};

/* A scope that handles its own errors, such as a probe, a clean-up or a fallback. A thread's first error, which is kept
 * above, must survive it. The macro opens the scope, until the end of the enclosing block. In it, the functions above
 * see only its own errors, which are forgotten at its end. An earlier error, which not even sw_error_clear can reach
 * from within, is then the recorded one again. */
#define SW_HANDLES_ERRORS()                                                                                            \
    const size_t sw_error_before_ __attribute__((cleanup(sw_error_go_back), unused)) = sw_error_go_on()
size_t sw_error_go_on(void);
void sw_error_go_back(const size_t *before);

#endif
