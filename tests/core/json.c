/* The reader of JSON: what Jansson alone refuses although it is JSON, and what is refused here. */
#include "core/json.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static sw_status decode(const char *text, size_t bytes, sw_json_kind kind, json_t **out) {
    const struct sw_json_source source = {.text = text, .bytes = bytes, .name = "x", .bad = SW_ERR_ARG, .kind = kind};
    return sw_json_decode(source, out);
}

static json_t *read_text(const char *text, sw_json_kind kind) {
    json_t *out;
    if (decode(text, strlen(text), kind, &out) != SW_OK)
        fail_msg("%s: %s", text, sw_error_message(SW_ERR_ARG));
    return out;
}

static void numbers_are_the_nearest(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double real; /* where the value is a real */
        json_int_t whole;
    } table[] = {
        {"0", NAN, 0},
        {"-0", NAN, 0},
        {"18", NAN, 18},
        {"9223372036854775807", NAN, INT64_MAX},
        {"-9223372036854775808", NAN, INT64_MIN},
        {"9223372036854775808", 9223372036854775808.0, 0},
        {"-9223372036854775809", -9223372036854775808.0, 0},
        {"18446744073709551615", 18446744073709551616.0, 0},
        {"1000000000000000019884624838656", 1e30, 0},
        {"0.1", 0.1, 0},
        {"1e300", 1e300, 0},
        {"1.7976931348623157e308", DBL_MAX, 0},
        {"1e309", DBL_MAX, 0},
        {"-1E+400", -DBL_MAX, 0},
        {"1e99999999999999999999", DBL_MAX, 0},
        {"1e-400", 0.0, 0},
        {"Infinity", DBL_MAX, 0},
        {"-Infinity", -DBL_MAX, 0},
        {"123456789012345678901234567890.5", 123456789012345678901234567890.5, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char text[128];
        json_t *root;
        (void)snprintf(text, sizeof text, "{\"a\": %s, \"b\": [%s]}", table[i].text, table[i].text);
        root = read_text(text, SW_JSON_PLAIN);
        const json_t *value = json_object_get(root, "a");
        assert_true(json_equal(value, json_array_get(json_object_get(root, "b"), 0)));
        if (isnan(table[i].real)) {
            assert_true(json_is_integer(value));
            assert_true(json_integer_value(value) == table[i].whole);
        } else {
            assert_true(json_is_real(value));
            assert_true(json_real_value(value) == table[i].real);
        }
        json_decref(root);
    }
}

/* An integer of a thousand digits is as large as a double can be. */
static void long_integers_are_read(void **state) {
    (void)state;
    char text[1100] = "[";
    memset(text + 1, '7', 1000);
    strcpy(text + 1001, ", 5]");
    json_t *root = read_text(text, SW_JSON_PLAIN);
    assert_true(json_real_value(json_array_get(root, 0)) == DBL_MAX);
    assert_int_equal(json_integer_value(json_array_get(root, 1)), 5);
    json_decref(root);
}

static void zero_is_a_character(void **state) {
    (void)state;
    static const char text[] = "{\"a\\u0000b\" : \"c\\u0000d\", \"\\\\u0000\": \"\\\\u0000\"}";
    json_t *root = read_text(text, SW_JSON_TEXTS);
    const json_t *value = json_object_get(root, "a" SW_JSON_ZERO_IN_NAME "b");
    assert_int_equal(json_string_length(value), 3);
    assert_memory_equal(json_string_value(value), "c\0d", 3);
    assert_string_equal(json_string_value(json_object_get(root, "\\u0000")), "\\u0000");
    json_decref(root);
}

/* A text is neither a number nor a level. */
static void texts_stay_as_they_are(void **state) {
    (void)state;
    static const char text[] = "[\"NaN \\\" 99999999999999999999 [[[ \\\\\", 99999999999999999999, \"Infinity\"]";
    json_t *root = read_text(text, SW_JSON_PLAIN);
    assert_string_equal(json_string_value(json_array_get(root, 0)), "NaN \" 99999999999999999999 [[[ \\");
    assert_true(json_real_value(json_array_get(root, 1)) == 1e20);
    assert_string_equal(json_string_value(json_array_get(root, 2)), "Infinity");
    json_decref(root);
}

static void data_may_be_pythons(void **state) {
    (void)state;
    json_t *root = read_text("\xEF\xBB\xBF{\"a\": NaN, \"b\": [NaN, -Infinity]}", SW_JSON_DATA);
    assert_true(json_is_null(json_object_get(root, "a")));
    assert_true(json_is_null(json_array_get(json_object_get(root, "b"), 0)));
    json_decref(root);
    root = read_text("\"a\"", SW_JSON_DATA);
    assert_true(json_is_string(root));
    json_decref(root);
}

static void refuse(const char *text, size_t bytes, sw_json_kind kind, const char *word) {
    json_t *root;
    assert_int_equal(decode(text, bytes, kind, &root), SW_ERR_ARG);
    assert_null(root);
    if (strstr(sw_error_message(SW_ERR_ARG), word) == NULL)
        fail_msg("'%s' lacks '%s'", sw_error_message(SW_ERR_ARG), word);
    sw_error_clear();
}

static void what_is_not_json_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } table[] = {
        {"", "line 1"},
        {"{\"a\": 1,\n\"a\": 2}", "x: line 2: an object has two members of one name near '\"a\"'"},
        {"{\"a\": 1,\n\"b\": NaN}", "line 2: NaN"},
        {"[1,\n\n2", "line 3"},
        {"[01]", "line 1"},
        {"[1e]", "line 1"},
        {"[-]", "line 1"},
        {"[1.]", "line 1"},
        {"[99999999999999999999e]", "line 1"},
        {"[Infinityx]", "line 1"},
        {"[\"a\\u0000\"]", "U+0000"},
        {"{\"a\\u0000\": 1}", "a name has U+0000"},
        {"5", "line 1"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        refuse(table[i].text, strlen(table[i].text), SW_JSON_PLAIN, table[i].word);
    refuse("\xFF\xFE[\0]\0", 6, SW_JSON_PLAIN, "UTF-16");
    refuse("[1]\0", 4, SW_JSON_TEXTS, "line 1");
    json_t *nothing;
    assert_int_equal(sw_json_try("[1", 2, &nothing), SW_OK);
    assert_null(nothing);
    assert_string_equal(sw_error_message(SW_ERR_ARG), sw_status_name(SW_ERR_ARG));
}

/* Values may take eighty times their text, so that a small file would fill the memory. */
static void memory_is_limited(void **state) {
    (void)state;
    const char *const elements[] = {"{},", "[],", "\"\",", "0,"};
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++) {
        const size_t chars = strlen(elements[i]), count = SW_JSON_MOST_BYTES / 64;
        char *text = malloc(count * chars + 3);
        assert_non_null(text);
        text[0] = '[';
        for (size_t k = 0; k < count; k++)
            memcpy(text + 1 + k * chars, elements[i], chars);
        memcpy(text + 1 + count * chars, "0]", 2);
        refuse(text, count * chars + 3, SW_JSON_PLAIN, "would take more than 256 MiB of memory");
        free(text);
    }
}

static void levels_are_limited(void **state) {
    (void)state;
    char text[2 * SW_JSON_MOST_LEVELS + 3];
    for (int more = 0; more < 2; more++) {
        const size_t levels = SW_JSON_MOST_LEVELS + (size_t)more;
        memset(text, '[', levels);
        memset(text + levels, ']', levels);
        if (more == 0) {
            json_t *whole, *cut;
            assert_int_equal(sw_json_try(text, 2 * levels, &whole), SW_OK);
            assert_int_equal(sw_json_try(text, 2 * levels - 1, &cut), SW_OK);
            assert_non_null(whole);
            assert_null(cut);
            json_decref(whole);
        } else {
            refuse(text, 2 * levels, SW_JSON_PLAIN, "512 levels");
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_the_nearest), cmocka_unit_test(long_integers_are_read),
        cmocka_unit_test(zero_is_a_character),     cmocka_unit_test(texts_stay_as_they_are),
        cmocka_unit_test(data_may_be_pythons),     cmocka_unit_test(memory_is_limited),
        cmocka_unit_test(levels_are_limited),      cmocka_unit_test(what_is_not_json_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
