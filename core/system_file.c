#include "core/system_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_CHARS = 64 };

static bool read_line(const char *root, char *out, size_t chars, const char *format, va_list args) {
    char path[SW_SYSTEM_PATH_CHARS];
    const int used = snprintf(path, sizeof path, "%s", root);
    out[0] = '\0';
    if (used < 0 || (size_t)used >= sizeof path)
        return false;
    const int more = vsnprintf(path + used, sizeof path - (size_t)used, format, args);
    if (more < 0 || (size_t)(used + more) >= sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    const bool found = file != NULL && fgets(out, (int)chars, file) != NULL;
    if (file != NULL)
        fclose(file);
    out[found ? strcspn(out, "\n") : 0] = '\0';
    return found;
}

bool sw_system_line(const char *root, char *out, size_t chars, const char *path, ...) {
    va_list args;
    va_start(args, path);
    const bool found = read_line(root, out, chars, path, args);
    va_end(args);
    return found;
}

int64_t sw_system_number(const char *root, const char *path, ...) {
    char text[NUMBER_CHARS], *end = text;
    va_list args;
    va_start(args, path);
    const bool found = read_line(root, text, sizeof text, path, args);
    va_end(args);
    errno = 0;
    const long long value = found ? strtoll(text, &end, 10) : -1;
    return end == text || errno != 0 || value < 0 ? -1 : value;
}
