/* Included before every file of the build of `./dev mutants`: each `if` of the files under SW_MUTANTS, those of SW_TRY
 * too, asks here what its condition is. The environment names one that is forced, or a file that gets what all were. */
#ifndef SW_TESTS_EQUIPMENT_MUTANTS_H
#define SW_TESTS_EQUIPMENT_MUTANTS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SW_MUTANT_MOST_LINES = 4096, SW_MUTANT_CHARS = 256 };

/* Adds a line "FILE:LINE:VALUE" to the file that SW_MUTANTS_SEEN names, once for each in a process. A line is one
 * write, so that a kill loses none and processes do not mix theirs. */
static inline void sw_mutant_note(const char *file, int line, bool value) {
    static unsigned char noted[SW_MUTANT_MOST_LINES];
    const char *path = getenv("SW_MUTANTS_SEEN");
    if (path == NULL || line >= SW_MUTANT_MOST_LINES || (noted[line] & (1 << value)) != 0)
        return;
    noted[line] |= (unsigned char)(1 << value);
    FILE *to = fopen(path, "ae");
    if (to == NULL || fprintf(to, "%s:%d:%d\n", file, line, value) < 0 || fclose(to) != 0)
        abort();
}

/* SW_MUTANT is "FILE:LINE:VALUE". */
static inline bool sw_mutant(const char *file, int line, bool value) {
    const char *forced = getenv("SW_MUTANT");
    const size_t chars = strlen(file);
    char rest[SW_MUTANT_CHARS];
    sw_mutant_note(file, line, value);
    if (forced == NULL || strncmp(forced, file, chars) != 0)
        return value;
    (void)snprintf(rest, sizeof rest, ":%d:%d", line, !value);
    return strcmp(forced + chars, rest) == 0 ? !value : value;
}

/* The compiler knows the file's name, so that all other files cost nothing. Paths begin at the tree: "../io/...". */
#define SW_MUTANT_IS_HERE                                                                                              \
    (__builtin_strncmp(__FILE__, "../io/store/", 12) == 0 ||                                                           \
     __builtin_strncmp(__FILE__, "../train/folder/", 16) == 0 ||                                                       \
     __builtin_strncmp(__FILE__, "../train/stores/", 16) == 0)
/* The formatter would take the macro for a statement. */
/* clang-format off */
#define if(...) if (SW_MUTANT_IS_HERE ? sw_mutant(__FILE__ + 3, __LINE__, !!(__VA_ARGS__)) : !!(__VA_ARGS__))
/* clang-format on */

#endif
