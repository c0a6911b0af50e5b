/* Tests: what stands behind `is`. */
#include "text/jinja/run.h"

typedef enum {
    DEFINED,
    UNDEFINED,
    NONE,
    STRING,
    MAPPING,
    ITERABLE,
    SEQUENCE,
    BOOLEAN,
    NUMBER,
    INTEGER,
    FLOAT,
    TRUE,
    FALSE,
    ODD,
    EVEN,
    COMPARISON /* with the argument */
} test_kind;

static const struct test {
    struct sw_jinja_signature signature;
    test_kind kind;
    int operation;
} tests[] = {
    {{"defined", {NULL}, 0}, DEFINED, 0},
    {{"undefined", {NULL}, 0}, UNDEFINED, 0},
    {{"none", {NULL}, 0}, NONE, 0},
    {{"string", {NULL}, 0}, STRING, 0},
    {{"mapping", {NULL}, 0}, MAPPING, 0},
    {{"iterable", {NULL}, 0}, ITERABLE, 0},
    {{"sequence", {NULL}, 0}, SEQUENCE, 0},
    {{"boolean", {NULL}, 0}, BOOLEAN, 0},
    {{"number", {NULL}, 0}, NUMBER, 0},
    {{"integer", {NULL}, 0}, INTEGER, 0},
    {{"float", {NULL}, 0}, FLOAT, 0},
    {{"true", {NULL}, 0}, TRUE, 0},
    {{"false", {NULL}, 0}, FALSE, 0},
    {{"odd", {NULL}, 0}, ODD, 0},
    {{"even", {NULL}, 0}, EVEN, 0},
    {{"equalto", {"b"}, 1}, COMPARISON, SW_JINJA_EQUAL},
    {{"eq", {"b"}, 1}, COMPARISON, SW_JINJA_EQUAL},
    {{"==", {"b"}, 1}, COMPARISON, SW_JINJA_EQUAL},
    {{"ne", {"b"}, 1}, COMPARISON, SW_JINJA_UNEQUAL},
    {{"!=", {"b"}, 1}, COMPARISON, SW_JINJA_UNEQUAL},
    {{"lt", {"b"}, 1}, COMPARISON, SW_JINJA_LESS},
    {{"lessthan", {"b"}, 1}, COMPARISON, SW_JINJA_LESS},
    {{"le", {"b"}, 1}, COMPARISON, SW_JINJA_LESS_OR_EQUAL},
    {{"gt", {"b"}, 1}, COMPARISON, SW_JINJA_GREATER},
    {{"greaterthan", {"b"}, 1}, COMPARISON, SW_JINJA_GREATER},
    {{"ge", {"b"}, 1}, COMPARISON, SW_JINJA_GREATER_OR_EQUAL},
    {{"in", {"seq"}, 1}, COMPARISON, SW_JINJA_IN},
};
enum { TESTS = sizeof tests / sizeof tests[0] };

int sw_jinja_find_test(struct sw_text name) {
    for (int i = 0; i < TESTS; i++)
        if (sw_jinja_is(name, tests[i].signature.name))
            return i;
    return -1;
}

static bool is_list(struct sw_jinja_value value) {
    return value.kind == SW_JINJA_LIST || value.kind == SW_JINJA_TUPLE;
}

static bool is_sequence(struct sw_jinja_value value) {
    return is_list(value) || value.kind == SW_JINJA_STRING || value.kind == SW_JINJA_DICT ||
           value.kind == SW_JINJA_UNDEFINED;
}

static sw_status is_odd(struct sw_jinja_value value, bool *out) {
    if (value.kind != SW_JINJA_INT && value.kind != SW_JINJA_BOOL)
        return sw_jinja_bad_kind("neither odd nor even is", value);
    *out = value.kind == SW_JINJA_BOOL ? value.truth : value.number % 2 != 0;
    return SW_OK;
}

sw_status sw_jinja_test(struct sw_jinja_run *run, int test, struct sw_jinja_value value,
                        const struct sw_jinja_arguments *arguments, bool *out) {
    struct sw_jinja_bound_arguments bound;
    SW_TRY(sw_jinja_bind(&tests[test].signature, arguments, &bound));
    switch (tests[test].kind) {
    case DEFINED: *out = value.kind != SW_JINJA_UNDEFINED; return SW_OK;
    case UNDEFINED: *out = value.kind == SW_JINJA_UNDEFINED; return SW_OK;
    case NONE: *out = value.kind == SW_JINJA_NONE; return SW_OK;
    case STRING: *out = value.kind == SW_JINJA_STRING; return SW_OK;
    case MAPPING: *out = value.kind == SW_JINJA_DICT; return SW_OK;
    case ITERABLE: *out = is_sequence(value) || value.kind == SW_JINJA_GENERATOR; return SW_OK;
    case SEQUENCE: *out = is_sequence(value); return SW_OK;
    case BOOLEAN: *out = value.kind == SW_JINJA_BOOL; return SW_OK;
    case NUMBER: *out = value.kind == SW_JINJA_INT || value.kind == SW_JINJA_BOOL; return SW_OK;
    case INTEGER: *out = value.kind == SW_JINJA_INT; return SW_OK;
    case FLOAT: *out = false; return SW_OK;
    case TRUE: *out = value.kind == SW_JINJA_BOOL && value.truth; return SW_OK;
    case FALSE: *out = value.kind == SW_JINJA_BOOL && !value.truth; return SW_OK;
    case ODD: return is_odd(value, out);
    case EVEN:
        SW_TRY(is_odd(value, out));
        *out = !*out;
        return SW_OK;
    case COMPARISON: break;
    }
    return sw_jinja_compare(run, tests[test].operation, value, bound.value[0], out);
}
