/* Two things at once: both run, and the error that is kept is one's own. */
#include "core/both.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

struct task {
    bool ran;
    const char *failure; /* NULL: none */
};

static sw_status run(void *context) {
    struct task *task = context;
    task->ran = true;
    return task->failure != NULL ? sw_fail(SW_ERR_IO, "%s", task->failure) : SW_OK;
}

static void expect(const char *own_failure, const char *other_failure, const char *kept) {
    struct task own = {.failure = own_failure}, other = {.failure = other_failure};
    const sw_status status = sw_run_both(run, &own, &other);
    assert_true(own.ran && other.ran);
    assert_int_equal(status, kept != NULL ? SW_ERR_IO : SW_OK);
    if (kept != NULL)
        assert_non_null(strstr(sw_error_message(status), kept));
    sw_error_clear();
}

static void errors_are_kept(void **state) {
    (void)state;
    expect(NULL, NULL, NULL);
    expect("own broke", NULL, "own broke");
    expect(NULL, "other broke", "other broke");
    expect("own broke", "other broke", "own broke");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_kept),
    };
    return cmocka_run_group_tests_name("both", tests, NULL, NULL);
}
