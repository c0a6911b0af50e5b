/* The third argument of open and openat, for libraries that stand in front of them. */
#ifndef SW_TESTS_E2E_OPEN_MODE_H
#define SW_TESTS_E2E_OPEN_MODE_H

#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

/* Declares `mode`: the argument behind `flags` where these say that there is one, else 0. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a name that is declared takes no parentheses. */
#define MODE_OF(flags, mode)                                                                                           \
    mode_t mode = 0;                                                                                                   \
    if (((flags) & (O_CREAT | O_TMPFILE)) != 0) {                                                                      \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
