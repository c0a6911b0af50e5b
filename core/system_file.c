#include "core/system_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_CHARS = 64 };

/* Reads the line. errno becomes why the file cannot be read, or 0. */
static bool read_line(const char *root, char *out, size_t chars, const char *format, va_list args) {
    char path[SW_SYSTEM_PATH_CHARS];
    const int used = snprintf(path, sizeof path, "%s", root);
    out[0] = '\0';
    errno = ENAMETOOLONG;
    if (used < 0 || (size_t)used >= sizeof path)
        return false;
    const int more = vsnprintf(path + used, sizeof path - (size_t)used, format, args);
    errno = ENAMETOOLONG;
    if (more < 0 || (size_t)(used + more) >= sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    errno = 0;
    const bool found = fgets(out, (int)chars, file) != NULL;
    const int error = ferror(file) ? errno : 0;
    fclose(file);
    out[found ? strcspn(out, "\n") : 0] = '\0';
    errno = error;
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
    if (!found)
        return -1;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    const bool is_number = end != text && errno == 0;
    errno = 0;
    return is_number && value >= 0 ? value : -1;
}
