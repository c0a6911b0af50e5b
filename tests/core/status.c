/* The first error of a thread is kept, told apart from later ones, and forgotten when it was handled. */
#include "core/status.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static int forget(void **state) {
    (void)state;
    sw_error_clear();
    return 0;
}

static void every_code_has_a_name(void **state) {
    (void)state;
    for (sw_status code = SW_OK; code >= SW_ERR_INTERNAL; code--) {
        assert_string_not_equal(sw_status_name(code), sw_status_name(1));
        for (sw_status other = SW_OK; other > code; other--)
            assert_string_not_equal(sw_status_name(code), sw_status_name(other));
    }
}

static void first_error_stays(void **state) {
    (void)state;
    assert_int_equal(sw_fail(SW_ERR_IO, "disk %d is gone", 3), SW_ERR_IO);
    assert_int_equal(sw_fail(SW_ERR_ARG, "a later one"), SW_ERR_ARG);
    assert_string_equal(sw_error_message(SW_ERR_IO), "disk 3 is gone");
    sw_error_clear();
    assert_string_equal(sw_error_message(SW_ERR_IO), sw_status_name(SW_ERR_IO));
    sw_fail(SW_ERR_ARG, "a later one");
    assert_string_equal(sw_error_message(SW_ERR_ARG), "a later one");
}

static void context_is_added_to_an_error_only(void **state) {
    (void)state;
    assert_int_equal(sw_fail_while(SW_ERR_IO, "reading unit %d", 1), SW_ERR_IO);
    assert_string_equal(sw_error_message(SW_ERR_IO), sw_status_name(SW_ERR_IO));
    sw_fail(SW_ERR_IO, "short read");
    assert_int_equal(sw_fail_while(SW_ERR_IO, "reading unit %d", 1), SW_ERR_IO);
    assert_string_equal(sw_error_message(SW_ERR_IO), "short read, while reading unit 1");
}

static void long_messages_are_cut_not_overrun(void **state) {
    (void)state;
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 3; i++)
        sw_fail_while(sw_fail(SW_ERR_IO, "%s", text), "%s", text);
    const size_t length = strlen(sw_error_message(SW_ERR_IO));
    assert_true(length >= 100 && length < sizeof text);

    sw_error_clear();
    sw_fail(SW_ERR_IO, "short");
    for (int i = 0; i < 500; i++)
        sw_fail_while(SW_ERR_IO, "step %d", i);
    assert_memory_equal(sw_error_message(SW_ERR_IO), "short, while step 0, while step 1", 33);
    assert_true(strlen(sw_error_message(SW_ERR_IO)) < sizeof text);
}

static sw_status probe(int depth) {
    SW_HANDLES_ERRORS();
    sw_fail_while(SW_ERR_IO, "probing");
    assert_string_equal(sw_error_message(SW_ERR_IO), sw_status_name(SW_ERR_IO));
    sw_fail(SW_ERR_BUSY, "probe %d failed", depth);
    sw_fail_while(SW_ERR_BUSY, "probing");
    if (depth > 0)
        probe(depth - 1);
    assert_int_equal(strncmp(sw_error_message(SW_ERR_BUSY), "probe ", 6), 0);
    if (depth % 2 == 0)
        sw_error_clear();
    return SW_ERR_BUSY;
}

static void handled_errors_leave_the_first(void **state) {
    (void)state;
    probe(3);
    assert_string_equal(sw_error_message(SW_ERR_IO), sw_status_name(SW_ERR_IO));
    sw_fail(SW_ERR_IO, "disk is gone");
    for (int i = 0; i < 3; i++)
        probe(3);
    assert_string_equal(sw_error_message(SW_ERR_IO), "disk is gone");
    sw_fail_while(SW_ERR_IO, "reading");
    assert_string_equal(sw_error_message(SW_ERR_IO), "disk is gone, while reading");
}

static void fill(const char *text, int depth) {
    SW_HANDLES_ERRORS();
    sw_fail_while(sw_fail(SW_ERR_IO, "%s", text), "%s", text);
    if (depth > 0)
        fill(text, depth - 1);
}

static void deep_scopes_run_out_of_text_not_of_errors(void **state) {
    (void)state;
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    sw_fail(SW_ERR_IO, "disk is gone");
    fill(text, 20);
    assert_string_equal(sw_error_message(SW_ERR_IO), "disk is gone");
}

static void *fail_in_thread(void *clean) {
    *(bool *)clean = strcmp(sw_error_message(SW_ERR_IO), sw_status_name(SW_ERR_IO)) == 0;
    sw_fail(SW_ERR_NOMEM, "the other thread's");
    return NULL;
}

static void threads_do_not_share_errors(void **state) {
    (void)state;
    bool clean = false;
    pthread_t thread;
    sw_fail(SW_ERR_IO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, &clean), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(clean);
    assert_string_equal(sw_error_message(SW_ERR_IO), "mine");
}

static sw_status pass_on(sw_status given, bool *went_on) {
    SW_TRY(given);
    *went_on = true;
    return SW_OK;
}

static sw_status clean_up(sw_status given, bool *went_on, bool *cleaned) {
    sw_status status = SW_OK;
    SW_TRY_GOTO(given, out);
    *went_on = true;
out:
    *cleaned = true;
    return status;
}

static void macros_return_or_clean_up(void **state) {
    (void)state;
    bool went_on = false, cleaned = false;
    assert_int_equal(pass_on(SW_ERR_SPACE, &went_on), SW_ERR_SPACE);
    assert_int_equal(clean_up(SW_ERR_BUSY, &went_on, &cleaned), SW_ERR_BUSY);
    assert_true(!went_on && cleaned);
    assert_int_equal(pass_on(SW_OK, &went_on), SW_OK);
    assert_true(went_on);
    went_on = false;
    assert_int_equal(clean_up(SW_OK, &went_on, &cleaned), SW_OK);
    assert_true(went_on);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_name),
        cmocka_unit_test_setup(first_error_stays, forget),
        cmocka_unit_test_setup(context_is_added_to_an_error_only, forget),
        cmocka_unit_test_setup(long_messages_are_cut_not_overrun, forget),
        cmocka_unit_test_setup(handled_errors_leave_the_first, forget),
        cmocka_unit_test_setup(deep_scopes_run_out_of_text_not_of_errors, forget),
        cmocka_unit_test_setup(threads_do_not_share_errors, forget),
        cmocka_unit_test_setup(macros_return_or_clean_up, forget),
    };
    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
