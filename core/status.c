#include "core/status.h"

#include "core/text/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_CHARS = 1024, ALL_ERRORS_CHARS = 4 * ERROR_CHARS };

/* The errors of the open scopes, outermost first, each ended by 0. */
static _Thread_local char error_texts[ALL_ERRORS_CHARS];
static _Thread_local size_t innermost; /* where the error of the innermost scope begins */

/* Returns how many characters the innermost error may have, including its end. One character is reserved for the end of
 * another error, so that a scope can open even if no text fits. */
static size_t room(void) {
    const size_t left = sizeof error_texts - 1 - innermost;
    return left < ERROR_CHARS ? left : ERROR_CHARS;
}

/* Appends to the innermost error. Errors quote names and contents of files, whose control characters are made visible.
 */
static void append(const char *format, va_list args) {
    char text[ERROR_CHARS];
    const size_t used = strlen(error_texts + innermost);
    vsnprintf(text, sizeof text, format, args);
    sw_visible_line(text, error_texts + innermost + used, room() - used);
}

void sw_record_error(const char *format, ...) {
    if (error_texts[innermost] == '\0') {
        va_list args;
        va_start(args, format);
        append(format, args);
        va_end(args);
    }
}

sw_status sw_fail_while(sw_status code, const char *format, ...) {
    char *text = error_texts + innermost;
    const size_t used = strlen(text);
    if (code == SW_OK || used == 0 || used + 16 > room())
        return code;
    snprintf(text + used, room() - used, ", while ");
    va_list args;
    va_start(args, format);
    append(format, args);
    va_end(args);
    return code;
}

const char *sw_error_message(sw_status code) {
    return error_texts[innermost] != '\0' ? error_texts + innermost : sw_status_name(code);
}

void sw_error_clear(void) {
    error_texts[innermost] = '\0';
}

size_t sw_error_go_on(void) {
    const size_t before = innermost, chars = strlen(error_texts + before);
    innermost += chars > 0 ? chars + 1 : 0;
    sw_error_clear();
    return before;
}

void sw_error_go_back(const size_t *before) {
    sw_error_clear();
    innermost = *before;
}

sw_status sw_as_usage(sw_status code) {
    return code == SW_ERR_ARG ? SW_ERR_USAGE : code;
}

const char *sw_status_name(sw_status code) {
    switch (code) {
    case SW_OK: return "done";
    case SW_ERR_ARG: return "wrong input";
    case SW_ERR_NOMEM: return "out of memory";
    case SW_ERR_IO: return "input/output error";
    case SW_ERR_SPACE: return "no space left";
    case SW_ERR_CORRUPT: return "corrupt data";
    case SW_ERR_BUDGET: return "does not fit in the budget";
    case SW_ERR_UNSUPPORTED: return "not supported";
    case SW_ERR_BUSY: return "in use";
    case SW_ERR_STOPPED: return "stopped";
    case SW_ERR_DEVICE: return "device error";
    case SW_ERR_OVERTAKEN: return "overtaken by another process";
    case SW_ERR_NOT_FINITE: return "not finite";
    case SW_ERR_USAGE: return "wrong arguments";
    case SW_ERR_INTERNAL: return "internal error";
    default: return "unknown status";
    }
}
