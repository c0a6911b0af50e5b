/* The line about work that takes long: when it is shown, what it says, and that short work says nothing. */
#include "run/progress.h"

#include "tests/equipment/support.h"

#include <stdlib.h>
#include <string.h>

#define SECOND_NS INT64_C(1000000000)
#define GB INT64_C(1000000000)
enum { SECONDS = 20, CALLS_A_SECOND = 100 };

/* Returns the text shown for the first `seconds` of filling 40 GB at 2 GB/s. The caller frees it. */
static char *said(bool on_terminal, int seconds, bool ends) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    const int64_t start_ns = 7 * SECOND_NS, call_ns = SECOND_NS / CALLS_A_SECOND, total = 2 * SECONDS * GB;
    struct sw_progress progress = sw_progress_begin("filling", to, on_terminal, start_ns);
    int64_t elapsed_ns = 0;
    for (; elapsed_ns < seconds * SECOND_NS; elapsed_ns += call_ns)
        sw_progress_at(&progress, 2 * elapsed_ns, total, start_ns + elapsed_ns);
    if (ends)
        sw_progress_end(&progress, 2 * elapsed_ns, start_ns + elapsed_ns);
    else
        sw_progress_break(&progress);
    fclose(to);
    return text;
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        count++;
    return count;
}

static void plain_lines_come_every_few_seconds(void **state) {
    (void)state;
    char *text = said(false, SECONDS, true);
    assert_string_equal(text, "filling: 10.00 of 40.00 GB, 2.00 GB/s, 15 s left\n"
                              "filling: 20.00 of 40.00 GB, 2.00 GB/s, 10 s left\n"
                              "filling: 30.00 of 40.00 GB, 2.00 GB/s, 5 s left\n"
                              "filling: 40.00 GB in 20.0 s, 2.00 GB/s\n");
    free(text);
}

static void a_terminal_has_one_line(void **state) {
    (void)state;
    char *text = said(true, SECONDS, true);
    assert_int_equal(count_of(text, "\n"), 1);
    assert_string_equal(strrchr(text, '\r'), "\rfilling: 40.00 GB in 20.0 s, 2.00 GB/s\033[K\n");
    assert_non_null(strstr(text, "\rfilling: 2.00 of 40.00 GB, 2.00 GB/s, 19 s left\033[K\r"));
    /* Often enough to be seen moving, not with every call. */
    assert_in_range(count_of(text, "\r"), 2 * SECONDS, 10 * SECONDS);
    free(text);
}

static void short_work_says_nothing(void **state) {
    (void)state;
    for (int on_terminal = 0; on_terminal < 2; on_terminal++) {
        char *text = said(on_terminal == 1, 0, true);
        assert_string_equal(text, "");
        free(text);
    }
}

static void work_that_fails_leaves_a_whole_line(void **state) {
    (void)state;
    char *text = said(true, 2, false);
    assert_int_equal(count_of(text, "\n"), 1);
    assert_string_equal(text + strlen(text) - 1, "\n");
    free(text);
    text = said(false, 2, false);
    assert_string_equal(text, "");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_lines_come_every_few_seconds),
        cmocka_unit_test(a_terminal_has_one_line),
        cmocka_unit_test(short_work_says_nothing),
        cmocka_unit_test(work_that_fails_leaves_a_whole_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
