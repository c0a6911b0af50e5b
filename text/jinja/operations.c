/* Operations on values. */
#include "text/jinja/run.h"

#include <string.h>

/* Members of values by name and by number. */

static sw_status loop_attribute(const struct sw_jinja_loop *loop, struct sw_text name, struct sw_jinja_value *out) {
    const size_t count = loop->list->count, index = loop->index;
    const bool ends = index + 1 >= count;
    if (sw_jinja_is(name, "index") || sw_jinja_is(name, "index0"))
        *out = sw_jinja_int((int64_t)index + (name.bytes == 5));
    else if (sw_jinja_is(name, "revindex") || sw_jinja_is(name, "revindex0"))
        *out = sw_jinja_int((int64_t)(count - index) - (name.bytes == 9));
    else if (sw_jinja_is(name, "first") || sw_jinja_is(name, "last"))
        *out = sw_jinja_bool(name.bytes == 5 ? index == 0 : ends);
    else if (sw_jinja_is(name, "length"))
        *out = sw_jinja_int((int64_t)count);
    else if (sw_jinja_is(name, "previtem"))
        *out = index > 0 ? loop->list->item[index - 1] : sw_jinja_undefined(name);
    else if (sw_jinja_is(name, "nextitem"))
        *out = !ends ? loop->list->item[index + 1] : sw_jinja_undefined(name);
    else
        return sw_fail(SW_ERR_UNSUPPORTED, "loop.%.*s is not supported", name.bytes < 40 ? (int)name.bytes : 40,
                       name.data);
    return SW_OK;
}

static sw_status bind_method(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_text name,
                             struct sw_jinja_value *out) {
    struct sw_jinja_method *method;
    SW_TRY(sw_jinja_take(&run->arena, sizeof *method, &method));
    *method = (struct sw_jinja_method){of, name};
    *out = (struct sw_jinja_value){.kind = SW_JINJA_METHOD, .method = method};
    return SW_OK;
}

static sw_status refuse_private(struct sw_text name) {
    return name.bytes > 0 && name.data[0] == '_' ? sw_fail(SW_ERR_UNSUPPORTED, "the member '%.*s' is not supported",
                                                           name.bytes < 40 ? (int)name.bytes : 40, name.data)
                                                 : SW_OK;
}

sw_status sw_jinja_get_attribute(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_text name,
                                 struct sw_jinja_value *out) {
    const struct sw_jinja_value *member = NULL;
    SW_TRY(refuse_private(name));
    if (of.kind == SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("", of);
    if (of.kind == SW_JINJA_LOOP)
        return loop_attribute(of.loop, name, out);
    if (sw_jinja_has_method(of.kind, name))
        return bind_method(run, of, name, out);
    if (of.kind == SW_JINJA_DICT || of.kind == SW_JINJA_NAMESPACE)
        member = sw_jinja_dict_named(of.dict, name);
    *out = member != NULL ? *member : sw_jinja_undefined(name);
    return SW_OK;
}

/* Returns the place in a list of `count` that a number counted from either end means, or SIZE_MAX. */
static size_t place_of(int64_t number, size_t count) {
    if (number < 0)
        number += (int64_t)count;
    return number >= 0 && (uint64_t)number < count ? (size_t)number : SIZE_MAX;
}

static sw_status get_numbered(struct sw_jinja_run *run, struct sw_jinja_value of, int64_t number,
                              struct sw_jinja_value *out) {
    const bool is_string = of.kind == SW_JINJA_STRING;
    const struct sw_text text = is_string ? sw_jinja_text_of(of.string) : (struct sw_text){0};
    *out = sw_jinja_undefined((struct sw_text){"item", 4});
    if (!is_string && of.kind != SW_JINJA_LIST && of.kind != SW_JINJA_TUPLE)
        return SW_OK;
    SW_TRY(sw_jinja_charge(run, text.bytes));
    const size_t at = place_of(number, is_string ? sw_jinja_chars(text) : of.list->count);
    if (at == SIZE_MAX)
        return SW_OK;
    if (!is_string) {
        *out = of.list->item[at];
        return SW_OK;
    }
    const size_t begin = sw_jinja_char_at(text, at);
    const size_t bytes = sw_jinja_char_bytes((struct sw_text){text.data + begin, text.bytes - begin});
    *out = (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = sw_jinja_part(of.string, begin, bytes)};
    return SW_OK;
}

sw_status sw_jinja_get_item(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_jinja_value key,
                            struct sw_jinja_value *out) {
    if (of.kind == SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("", of);
    const struct sw_jinja_value *member = of.kind == SW_JINJA_DICT ? sw_jinja_dict_get(of.dict, key) : NULL;
    if (member != NULL) {
        *out = *member;
        return SW_OK;
    }
    if (key.kind == SW_JINJA_STRING)
        return sw_jinja_get_attribute(run, of, sw_jinja_text_of(key.string), out);
    if (key.kind == SW_JINJA_INT || key.kind == SW_JINJA_BOOL)
        return get_numbered(run, of, key.kind == SW_JINJA_BOOL ? key.truth : key.number, out);
    *out = sw_jinja_undefined((struct sw_text){"item", 4});
    return SW_OK;
}

static bool as_number(struct sw_jinja_value value, int64_t *out) {
    *out = value.kind == SW_JINJA_BOOL ? value.truth : value.kind == SW_JINJA_INT ? value.number : 0;
    return value.kind == SW_JINJA_BOOL || value.kind == SW_JINJA_INT;
}

static sw_status calculate(int operation, int64_t left, int64_t right, struct sw_jinja_value *out) {
    const bool divides = operation == SW_JINJA_DIVIDE_DOWN || operation == SW_JINJA_MODULO;
    bool overflows = divides && right == -1 && left == INT64_MIN;
    int64_t result = 0;
    if (divides && right == 0)
        return sw_fail(SW_ERR_ARG, "a division by zero");
    if (operation == SW_JINJA_ADD)
        overflows = __builtin_add_overflow(left, right, &result);
    else if (operation == SW_JINJA_SUBTRACT)
        overflows = __builtin_sub_overflow(left, right, &result);
    else if (operation == SW_JINJA_MULTIPLY)
        overflows = __builtin_mul_overflow(left, right, &result);
    else if (!overflows) {
        /* Python rounds down, C towards zero. */
        const int64_t rest = left % right;
        const bool is_up = rest != 0 && (rest < 0) != (right < 0);
        result = operation == SW_JINJA_MODULO ? rest + (is_up ? right : 0) : left / right - is_up;
    }
    if (overflows)
        return sw_fail(SW_ERR_UNSUPPORTED, "numbers of more than 64 bits are not supported");
    *out = sw_jinja_int(result);
    return SW_OK;
}

static sw_status add_lists(struct sw_jinja_run *run, struct sw_jinja_value left, struct sw_jinja_value right,
                           struct sw_jinja_value *out) {
    const struct sw_jinja_list *first = left.list, *second = right.list;
    SW_TRY(sw_jinja_charge(run, first->count + second->count));
    SW_TRY(sw_jinja_new_list(&run->arena, left.kind, first->count + second->count, out));
    for (size_t i = 0; i < out->list->count; i++)
        out->list->item[i] = i < first->count ? first->item[i] : second->item[i - first->count];
    return SW_OK;
}

static sw_status repeat(struct sw_jinja_run *run, struct sw_jinja_string string, int64_t times,
                        struct sw_jinja_value *out) {
    struct sw_jinja_builder builder = {.arena = &run->arena};
    for (int64_t i = 0; i < times && string.bytes > 0; i++) {
        SW_TRY(sw_jinja_charge(run, string.bytes));
        SW_TRY(sw_jinja_build(&builder, string));
    }
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

sw_status sw_jinja_calculate(struct sw_jinja_run *run, int operation, struct sw_jinja_value left,
                             struct sw_jinja_value right, struct sw_jinja_value *out) {
    static const char *const names[] = {"+", "-", "*", "//", "%"};
    int64_t l, r;
    const bool left_is_number = as_number(left, &l), right_is_number = as_number(right, &r);
    if (left_is_number && right_is_number)
        return calculate(operation, l, r, out);
    if (operation == SW_JINJA_ADD && left.kind == right.kind && left.kind == SW_JINJA_STRING) {
        SW_TRY(sw_jinja_charge(run, left.string.bytes + right.string.bytes));
        return sw_jinja_join(&run->arena, left.string, right.string, out);
    }
    if (operation == SW_JINJA_ADD && left.kind == right.kind &&
        (left.kind == SW_JINJA_LIST || left.kind == SW_JINJA_TUPLE))
        return add_lists(run, left, right, out);
    if (operation == SW_JINJA_MULTIPLY && left.kind == SW_JINJA_STRING && right_is_number)
        return repeat(run, left.string, r, out);
    if (operation == SW_JINJA_MULTIPLY && right.kind == SW_JINJA_STRING && left_is_number)
        return repeat(run, right.string, l, out);
    if (left.kind == SW_JINJA_UNDEFINED || right.kind == SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("", left.kind == SW_JINJA_UNDEFINED ? left : right);
    return sw_fail(operation == SW_JINJA_ADD || operation == SW_JINJA_SUBTRACT ? SW_ERR_ARG : SW_ERR_UNSUPPORTED,
                   "%s %s %s", sw_jinja_kind_name(left.kind), names[operation], sw_jinja_kind_name(right.kind));
}

static sw_status contains(struct sw_jinja_run *run, struct sw_jinja_value in, struct sw_jinja_value what, bool *out) {
    const struct sw_jinja_list *list;
    size_t bytes;
    *out = false;
    if (in.kind == SW_JINJA_STRING && what.kind != SW_JINJA_STRING)
        return sw_jinja_bad_kind("a string has no", what);
    if (in.kind == SW_JINJA_STRING) {
        SW_TRY(sw_jinja_charge(run, in.string.bytes));
        *out = sw_jinja_find(sw_jinja_text_of(in.string), sw_jinja_text_of(what.string), 0, false) != SIZE_MAX;
        return SW_OK;
    }
    SW_TRY(sw_jinja_iterate(run, in, &list));
    for (size_t i = 0; i < list->count && !*out; i++) {
        SW_TRY(sw_jinja_equal(list->item[i], what, out, &bytes));
        SW_TRY(sw_jinja_charge(run, bytes));
    }
    return SW_OK;
}

/* Returns a negative number, 0 or a positive one, as `left` is less, equal or greater. */
static sw_status order(struct sw_jinja_value left, struct sw_jinja_value right, int *out) {
    int64_t l, r;
    if (as_number(left, &l) && as_number(right, &r)) {
        *out = (l > r) - (l < r);
        return SW_OK;
    }
    if (left.kind != SW_JINJA_STRING || right.kind != SW_JINJA_STRING)
        return sw_jinja_bad_kind("no order of", left.kind == SW_JINJA_STRING ? right : left);
    /* UTF-8 is ordered as its characters are. */
    const size_t shared = left.string.bytes < right.string.bytes ? left.string.bytes : right.string.bytes;
    *out = shared > 0 ? memcmp(left.string.data, right.string.data, shared) : 0;
    if (*out == 0)
        *out = (left.string.bytes > right.string.bytes) - (left.string.bytes < right.string.bytes);
    return SW_OK;
}

sw_status sw_jinja_compare(struct sw_jinja_run *run, int operation, struct sw_jinja_value left,
                           struct sw_jinja_value right, bool *out) {
    int how = 0;
    size_t bytes = 0;
    if (operation == SW_JINJA_EQUAL || operation == SW_JINJA_UNEQUAL)
        SW_TRY(sw_jinja_equal(left, right, out, &bytes));
    else if (operation == SW_JINJA_IN || operation == SW_JINJA_NOT_IN)
        SW_TRY(contains(run, right, left, out));
    else
        SW_TRY(order(left, right, &how));
    SW_TRY(sw_jinja_charge(run, bytes));
    switch (operation) {
    case SW_JINJA_UNEQUAL:
    case SW_JINJA_NOT_IN: *out = !*out; break;
    case SW_JINJA_LESS: *out = how < 0; break;
    case SW_JINJA_LESS_OR_EQUAL: *out = how <= 0; break;
    case SW_JINJA_GREATER: *out = how > 0; break;
    case SW_JINJA_GREATER_OR_EQUAL: *out = how >= 0; break;
    default: break;
    }
    return SW_OK;
}
