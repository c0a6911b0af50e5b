/* Control characters are shown, all other text stays as it is, and what is shown has none any more. */
#include "core/text/text.h"

#include "core/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 256 };

static void shows(const char *text, const char *expected) {
    char shown[ROOM];
    assert_int_equal(sw_visible_line(text, shown, sizeof shown), strlen(expected));
    assert_string_equal(shown, expected);
    /* A text that was shown once stays as it is. */
    char again[ROOM];
    sw_visible_line(shown, again, sizeof again);
    assert_string_equal(again, expected);
}

static void controls_are_shown(void **state) {
    (void)state;
    shows("", "");
    shows("a tab\tand plain text \\ \"", "a tab\tand plain text \\ \"");
    shows("\033]52;c;ZWNobw==\a", "\\u001b]52;c;ZWNobw==\\u0007");
    shows("a\r\nb\177", "a\\u000d\\nb\\u007f");
    shows("C1 \302\233 2J \302\235", "C1 \\u009b 2J \\u009d");
    shows("bytes \233 \235 \377", "bytes \\x9b \\x9d \\xff");
    shows("\342\200\256txt.exe\342\201\246", "\\u202etxt.exe\\u2066");
    shows("\342\200\250\342\200\217\330\234", "\\u2028\\u200f\\u061c");
    shows("d\303\251j\303\240 \344\270\255\346\226\207 \360\237\230\200",
          "d\303\251j\303\240 \344\270\255\346\226\207 \360\237\230\200");
    shows("longer than needed \300\233 \340\202\233", "longer than needed \\xc0\\x9b \\xe0\\x82\\x9b");
    shows("cut \342\200", "cut \\xe2\\x80");
}

static size_t encode(uint32_t point, char out[5]) {
    const size_t more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    out[0] = (char)(lead[more] | point >> (6 * more));
    for (size_t i = 1; i <= more; i++)
        out[i] = (char)(0x80 | (point >> (6 * (more - i)) & 0x3F));
    out[more + 1] = '\0';
    return more + 1;
}

static void every_character_is_taken_whole(void **state) {
    (void)state;
    for (uint32_t point = 1; point < 0x110000; point++) {
        char text[5], shown[SW_VISIBLE_CHARS];
        const size_t bytes = encode(point, text);
        const bool is_surrogate = point >= 0xD800 && point < 0xE000;
        assert_int_equal(sw_visible_next(text, bytes, shown), is_surrogate ? 1 : bytes);
        for (size_t cut = 0; cut < bytes && !is_surrogate; cut++)
            assert_int_equal(sw_visible_next(text, cut, shown), 0);
    }
    char shown[SW_VISIBLE_CHARS];
    assert_int_equal(sw_visible_next("\0", 1, shown), 1);
    assert_string_equal(shown, "\\u0000");
    assert_int_equal(sw_visible_next("\n", 1, shown), 1);
    assert_string_equal(shown, "\n");
}

static void long_text_is_cut_between_characters(void **state) {
    (void)state;
    char shown[ROOM];
    for (size_t room = 1; room < 20; room++) {
        const size_t used = sw_visible_line("\033\033\033\033", shown, room);
        assert_true(used < room && used % strlen("\\u001b") == 0 && used + strlen("\\u001b") >= room);
    }
}

static void errors_show_them(void **state) {
    (void)state;
    sw_error_clear();
    sw_fail_while(sw_fail(SW_ERR_ARG, "the type %s is not known", "\033]0;x\a"), "reading a\nb\302\233");
    assert_string_equal(sw_error_message(SW_ERR_ARG),
                        "the type \\u001b]0;x\\u0007 is not known, while reading a\\nb\\u009b");
    sw_error_clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controls_are_shown),
        cmocka_unit_test(every_character_is_taken_whole),
        cmocka_unit_test(long_text_is_cut_between_characters),
        cmocka_unit_test(errors_show_them),
    };
    return cmocka_run_group_tests_name("core/visible", tests, NULL, NULL);
}
