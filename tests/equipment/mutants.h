/* Included before every file of the build of `./dev mutants`: each `if` of the files under SW_MUTANTS, those of SW_TRY
 * too, asks here what its condition is. The environment names one that is forced, or a file that gets what all were. */
#ifndef SW_TESTS_EQUIPMENT_MUTANTS_H
#define SW_TESTS_EQUIPMENT_MUTANTS_H

enum { SW_MUTANT_MOST_LINES = 4096, SW_MUTANT_CHARS = 256, SW_MUTANT_APPEND = 02000 | 01 };

/* No header is included, which would declare common names and settle what a file's own macros ask of the headers. */
extern char *sw_mutant_getenv(const char *name) __asm__("getenv");
extern int sw_mutant_open(const char *path, int flags, ...) __asm__("open");
extern long sw_mutant_write(int fd, const void *data, unsigned long bytes) __asm__("write");
extern int sw_mutant_close(int fd) __asm__("close");

/* Adds a line "FILE:LINE:VALUE" to the file that SW_MUTANTS_SEEN names, once for each in a process. A line is one
 * write, so that a kill loses none and processes do not mix theirs. */
static inline void sw_mutant_note(const char *file, int line, _Bool value) {
    static unsigned char noted[SW_MUTANT_MOST_LINES];
    const char *path = sw_mutant_getenv("SW_MUTANTS_SEEN");
    char text[SW_MUTANT_CHARS];
    if (path == (void *)0 || line >= SW_MUTANT_MOST_LINES || (noted[line] & (1 << value)) != 0)
        return;
    noted[line] |= (unsigned char)(1 << value);
    const int chars = __builtin_snprintf(text, sizeof text, "%s:%d:%d\n", file, line, value);
    const int to = sw_mutant_open(path, SW_MUTANT_APPEND); /* O_APPEND, O_WRONLY */
    if (to < 0 || sw_mutant_write(to, text, (unsigned long)chars) != chars)
        __builtin_trap();
    sw_mutant_close(to);
}

/* SW_MUTANT is "FILE:LINE:VALUE". */
static inline _Bool sw_mutant(const char *file, int line, _Bool value) {
    const char *forced = sw_mutant_getenv("SW_MUTANT");
    const unsigned long chars = __builtin_strlen(file);
    char rest[SW_MUTANT_CHARS];
    sw_mutant_note(file, line, value);
    if (forced == (void *)0 || __builtin_strncmp(forced, file, chars) != 0)
        return value;
    (void)__builtin_snprintf(rest, sizeof rest, ":%d:%d", line, !value);
    return __builtin_strcmp(forced + chars, rest) == 0 ? !value : value;
}

/* Every test program of this build runs the cases that SW_TEST_FILTER names, so that the tool can tell which of them
 * reach a condition. Other programs are not linked with cmocka. */
extern void cmocka_set_test_filter(const char *pattern) __attribute__((weak));
static void __attribute__((constructor)) sw_mutant_filter(void) {
    const char *filter = sw_mutant_getenv("SW_TEST_FILTER");
    if (filter != (void *)0 && cmocka_set_test_filter != (void *)0)
        cmocka_set_test_filter(filter);
}

/* The compiler knows the file's name, so that all other files cost nothing. Paths begin at the tree: "../io/...". */
#define SW_MUTANT_IS_HERE                                                                                              \
    (__builtin_strncmp(__FILE__, "../io/store/", 12) == 0 || __builtin_strncmp(__FILE__, "../run/folder/", 14) == 0 || \
     __builtin_strncmp(__FILE__, "../run/stores/", 14) == 0)
/* The formatter would take the macro for a statement. */
/* clang-format off */
#define if(...) if (SW_MUTANT_IS_HERE ? sw_mutant(__FILE__ + 3, __LINE__, !!(__VA_ARGS__)) : !!(__VA_ARGS__))
/* clang-format on */

#endif
