#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_CHARS = 1024 };

static _Thread_local char error_text[ERROR_CHARS];

void sw_record_error(const char *format, ...) {
    if (error_text[0] == '\0') {
        va_list args;
        va_start(args, format);
        vsnprintf(error_text, sizeof error_text, format, args);
        va_end(args);
    }
}

sw_status sw_fail_while(sw_status code, const char *format, ...) {
    size_t used = strlen(error_text);
    if (code == SW_OK || used == 0 || used + 16 > sizeof error_text)
        return code;
    used += (size_t)snprintf(error_text + used, sizeof error_text - used, ", while ");
    va_list args;
    va_start(args, format);
    vsnprintf(error_text + used, sizeof error_text - used, format, args);
    va_end(args);
    return code;
}

const char *sw_error_message(sw_status code) {
    return error_text[0] != '\0' ? error_text : sw_status_name(code);
}

void sw_error_clear(void) {
    error_text[0] = '\0';
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
    case SW_ERR_INTERNAL: return "internal error";
    default: return "unknown status";
    }
}
