/* Libraries that are loaded when they are needed: by name, else by path, and what is missing is named, every time. */
#include "core/library.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define HERE "libm.so.6"
#define NOWHERE "libspillway-has-no-such.so"

typedef double (*of_one)(double);

struct found {
    of_one cosine, other;
};

static const char *load(struct sw_library *library, const char *name, const char *path, const char *second,
                        struct found *found) {
    const struct sw_library_function functions[] = {{"cos", (void **)&found->cosine}, {second, (void **)&found->other}};
    return sw_library_load(library, name, path, functions, 2);
}

static void expect_found(const char *name, const char *path) {
    struct sw_library library = SW_LIBRARY_INIT;
    struct found found = {0};
    assert_null(load(&library, name, path, "sqrt", &found));
    assert_true(found.cosine(0.0) == 1.0 && found.other(4.0) == 2.0);
    /* Loaded once: later calls get the functions of the first. */
    assert_null(load(&library, NOWHERE, NOWHERE, "sqrt", &found));
}

static void finds_functions(void **state) {
    (void)state;
    expect_found(HERE, NOWHERE);
    expect_found(NOWHERE, HERE);
    expect_found(HERE, "");
}

static void expect_failure(const char *name, const char *path, const char *function, const char *expected) {
    struct sw_library library = SW_LIBRARY_INIT;
    struct found found = {0};
    for (int i = 0; i < 2; i++) {
        const char *failure = load(&library, name, path, function, &found);
        assert_non_null(failure);
        if (strstr(failure, expected) == NULL)
            fail_msg("'%s' is not in: %s", expected, failure);
    }
}

static void says_what_is_missing(void **state) {
    (void)state;
    expect_failure(NOWHERE, NOWHERE, "sqrt", NOWHERE);
    expect_failure(NOWHERE, "", "sqrt", NOWHERE);
    expect_failure(HERE, "", "no_such_function", "no_such_function is not in it");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_functions), cmocka_unit_test(says_what_is_missing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
