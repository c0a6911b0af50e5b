/* Expressions. */
#include "text/jinja/run.h"

#include <string.h>

enum { MOST_DEPTH = 400 };

static sw_status evaluate_name(struct sw_jinja_run *run, struct sw_text name, struct sw_jinja_value *out) {
    for (const struct sw_jinja_scope *scope = run->scope; scope != NULL; scope = scope->parent)
        for (size_t i = 0; i < scope->count; i++)
            if (scope->bound[i].name.bytes == name.bytes &&
                memcmp(scope->bound[i].name.data, name.data, name.bytes) == 0) {
                *out = scope->bound[i].value;
                return SW_OK;
            }
    const int function = sw_jinja_find_function(name);
    *out = function >= 0 ? (struct sw_jinja_value){.kind = SW_JINJA_FUNCTION, .function = function}
                         : sw_jinja_undefined(name);
    return SW_OK;
}

static sw_status evaluate_list(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    const sw_jinja_kind kind = node->kind == SW_JINJA_NODE_LIST ? SW_JINJA_LIST : SW_JINJA_TUPLE;
    SW_TRY(sw_jinja_new_list(&run->arena, kind, node->children, out));
    for (size_t i = 0; i < node->children; i++)
        SW_TRY(sw_jinja_evaluate(run, node->child[i], &out->list->item[i]));
    return SW_OK;
}

static sw_status evaluate_dict(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    SW_TRY(sw_jinja_new_dict(&run->arena, SW_JINJA_DICT, node->children / 2, out));
    for (size_t i = 0; i < node->children; i += 2) {
        struct sw_jinja_value key, item;
        SW_TRY(sw_jinja_evaluate(run, node->child[i], &key));
        SW_TRY(sw_jinja_evaluate(run, node->child[i + 1], &item));
        if (key.kind != SW_JINJA_STRING && key.kind != SW_JINJA_INT)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s as the key of a dict is not supported",
                           sw_jinja_kind_name(key.kind));
        SW_TRY(sw_jinja_charge(run, out->dict->count));
        SW_TRY(sw_jinja_dict_set(&run->arena, out->dict, key, item));
    }
    return SW_OK;
}

/* The places that a slice takes, as Python counts them. */
struct slice {
    int64_t begin, step, count;
};

static int64_t clamp_bound(int64_t bound, int64_t length, bool forward) {
    if (bound < 0)
        bound += length;
    if (bound < 0)
        return forward ? 0 : -1;
    const int64_t most = forward ? length : length - 1;
    return bound < most ? bound : most;
}

static sw_status evaluate_slice_bounds(struct sw_jinja_run *run, const struct sw_jinja_node *node, int64_t length,
                                       struct slice *out) {
    bool given[3] = {false};
    int64_t bound[3] = {0};
    for (int i = 0; i < 3; i++) {
        struct sw_jinja_value value = {.kind = SW_JINJA_NONE};
        if (node->part[i + 1] != NULL)
            SW_TRY(sw_jinja_evaluate(run, node->part[i + 1], &value));
        given[i] = value.kind == SW_JINJA_INT;
        bound[i] = given[i] ? value.number : 0;
        if (!given[i] && value.kind != SW_JINJA_NONE)
            return sw_jinja_bad_kind("a slice is bounded by", value);
    }
    const int64_t step = given[2] ? bound[2] : 1;
    if (step == 0)
        return sw_fail(SW_ERR_ARG, "a slice has the step 0");
    const bool forward = step > 0;
    const int64_t begin = given[0] ? clamp_bound(bound[0], length, forward) : forward ? 0 : length - 1;
    const int64_t end = given[1] ? clamp_bound(bound[1], length, forward) : forward ? length : -1;
    const int64_t span = forward ? end - begin : begin - end;
    const uint64_t size = forward ? (uint64_t)step : -(uint64_t)step;
    *out = (struct slice){begin, step, span > 0 ? (int64_t)(((uint64_t)span + size - 1) / size) : 0};
    return SW_OK;
}

static sw_status slice_string(struct sw_jinja_run *run, struct sw_jinja_string string, const struct slice *slice,
                              struct sw_jinja_value *out) {
    const struct sw_text text = sw_jinja_text_of(string);
    struct sw_jinja_builder builder = {.arena = &run->arena};
    const struct sw_jinja_list *list;
    if (slice->step == 1) {
        const size_t begin = sw_jinja_char_at(text, (size_t)slice->begin);
        const size_t bytes =
            sw_jinja_char_at((struct sw_text){text.data + begin, text.bytes - begin}, (size_t)slice->count);
        *out = (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = sw_jinja_part(string, begin, bytes)};
        return SW_OK;
    }
    SW_TRY(sw_jinja_iterate(run, (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = string}, &list));
    for (int64_t i = 0; i < slice->count; i++)
        SW_TRY(sw_jinja_build(&builder, list->item[slice->begin + i * slice->step].string));
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

static sw_status evaluate_slice(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                struct sw_jinja_value *out) {
    struct sw_jinja_value of;
    struct slice slice = {0};
    int64_t length;
    SW_TRY(sw_jinja_evaluate(run, node->part[0], &of));
    if (of.kind != SW_JINJA_STRING && of.kind != SW_JINJA_LIST && of.kind != SW_JINJA_TUPLE) {
        *out = sw_jinja_undefined((struct sw_text){"slice", 5});
        return of.kind == SW_JINJA_UNDEFINED ? sw_jinja_bad_kind("", of) : SW_OK;
    }
    SW_TRY(sw_jinja_length(run, of, &length));
    SW_TRY(evaluate_slice_bounds(run, node, length, &slice));
    SW_TRY(sw_jinja_charge(run, (size_t)slice.count));
    if (of.kind == SW_JINJA_STRING)
        return slice_string(run, of.string, &slice, out);
    SW_TRY(sw_jinja_new_list(&run->arena, of.kind, (size_t)slice.count, out));
    for (int64_t i = 0; i < slice.count; i++)
        out->list->item[i] = of.list->item[slice.begin + i * slice.step];
    return SW_OK;
}

static sw_status evaluate_arguments(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                    struct sw_jinja_arguments *out) {
    struct sw_jinja_value named;
    SW_TRY(sw_jinja_new_dict(&run->arena, SW_JINJA_DICT, 0, &named));
    SW_TRY(sw_jinja_take(&run->arena, node->children * sizeof *out->value, &out->value));
    out->count = 0;
    out->named = named.dict;
    for (size_t i = 0; i < node->children; i++) {
        const struct sw_jinja_node *argument = node->child[i];
        struct sw_jinja_value value;
        const bool is_named = argument->kind == SW_JINJA_NODE_KEYWORD;
        SW_TRY(sw_jinja_evaluate(run, is_named ? argument->part[0] : argument, &value));
        SW_TRY(sw_jinja_charge(run, named.dict->count));
        if (is_named)
            SW_TRY(sw_jinja_dict_set(&run->arena, named.dict, sw_jinja_string(argument->name), value));
        else
            out->value[out->count++] = value;
    }
    return SW_OK;
}

static sw_status evaluate_call(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    struct sw_jinja_arguments arguments;
    struct sw_jinja_value callee;
    SW_TRY(sw_jinja_evaluate(run, node->part[0], &callee));
    if (callee.kind == SW_JINJA_UNDEFINED && sw_jinja_is(sw_jinja_text_of(callee.string), "strftime_now"))
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "strftime_now is not supported: the same chat would be another text each day");
    SW_TRY(evaluate_arguments(run, node, &arguments));
    switch (callee.kind) {
    case SW_JINJA_FUNCTION: return sw_jinja_call_function(run, callee.function, &arguments, out);
    case SW_JINJA_METHOD: return sw_jinja_call_method(run, callee.method, &arguments, out);
    case SW_JINJA_MACRO: return run->call_macro(run, callee.macro, &arguments, out);
    default: return sw_jinja_bad_kind("what is called is", callee);
    }
}

static sw_status evaluate_filter(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                 struct sw_jinja_value *out) {
    struct sw_jinja_arguments arguments;
    struct sw_jinja_value value;
    bool truth;
    SW_TRY(sw_jinja_evaluate(run, node->part[0], &value));
    SW_TRY(evaluate_arguments(run, node, &arguments));
    if (node->kind == SW_JINJA_NODE_FILTER)
        return sw_jinja_filter(run, node->operation, value, &arguments, out);
    SW_TRY(sw_jinja_test(run, node->operation, value, &arguments, &truth));
    *out = sw_jinja_bool(truth);
    return SW_OK;
}

static sw_status evaluate_logic(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                struct sw_jinja_value *out) {
    SW_TRY(sw_jinja_evaluate(run, node->part[0], out));
    const bool truth = sw_jinja_truth(*out);
    switch (node->kind) {
    case SW_JINJA_NODE_NOT: *out = sw_jinja_bool(!truth); return SW_OK;
    case SW_JINJA_NODE_AND: return truth ? sw_jinja_evaluate(run, node->part[1], out) : SW_OK;
    case SW_JINJA_NODE_OR: return truth ? SW_OK : sw_jinja_evaluate(run, node->part[1], out);
    default: break;
    }
    if (truth)
        return sw_jinja_evaluate(run, node->part[1], out);
    *out = sw_jinja_undefined((struct sw_text){"else", 4});
    return node->part[2] != NULL ? sw_jinja_evaluate(run, node->part[2], out) : SW_OK;
}

static sw_status evaluate_arithmetic(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                     struct sw_jinja_value *out) {
    struct sw_jinja_value left, right;
    SW_TRY(sw_jinja_evaluate(run, node->part[0], &left));
    SW_TRY(sw_jinja_evaluate(run, node->part[1], &right));
    return sw_jinja_calculate(run, node->operation, left, right, out);
}

static sw_status evaluate_join(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    struct sw_jinja_builder builder = {.arena = &run->arena};
    for (size_t i = 0; i < node->children; i++) {
        struct sw_jinja_value value;
        struct sw_jinja_string text;
        SW_TRY(sw_jinja_evaluate(run, node->child[i], &value));
        SW_TRY(sw_jinja_str(&run->arena, value, &text));
        SW_TRY(sw_jinja_charge(run, text.bytes));
        SW_TRY(sw_jinja_build(&builder, text));
    }
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

static sw_status evaluate_comparison(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                     struct sw_jinja_value *out) {
    struct sw_jinja_value left, right;
    bool truth = true;
    SW_TRY(sw_jinja_evaluate(run, node->part[0], &left));
    for (size_t i = 0; i < node->children && truth; i++) {
        SW_TRY(sw_jinja_evaluate(run, node->child[i]->part[0], &right));
        SW_TRY(sw_jinja_compare(run, node->child[i]->operation, left, right, &truth));
        left = right;
    }
    *out = sw_jinja_bool(truth);
    return SW_OK;
}

static sw_status evaluate_member(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                 struct sw_jinja_value *out) {
    struct sw_jinja_value of, key;
    SW_TRY(sw_jinja_evaluate(run, node->part[0], &of));
    if (node->kind == SW_JINJA_NODE_ATTRIBUTE)
        return sw_jinja_get_attribute(run, of, node->name, out);
    SW_TRY(sw_jinja_evaluate(run, node->part[1], &key));
    return sw_jinja_get_item(run, of, key, out);
}

static sw_status negate(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    struct sw_jinja_value value;
    SW_TRY(sw_jinja_evaluate(run, node->part[0], &value));
    return sw_jinja_calculate(run, SW_JINJA_SUBTRACT, sw_jinja_int(0), value, out);
}

static sw_status evaluate_kind(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    switch (node->kind) {
    case SW_JINJA_NODE_CONSTANT: *out = node->constant; return SW_OK;
    case SW_JINJA_NODE_NAME: return evaluate_name(run, node->name, out);
    case SW_JINJA_NODE_LIST:
    case SW_JINJA_NODE_TUPLE: return evaluate_list(run, node, out);
    case SW_JINJA_NODE_DICT: return evaluate_dict(run, node, out);
    case SW_JINJA_NODE_ATTRIBUTE:
    case SW_JINJA_NODE_ITEM: return evaluate_member(run, node, out);
    case SW_JINJA_NODE_SLICE: return evaluate_slice(run, node, out);
    case SW_JINJA_NODE_CALL: return evaluate_call(run, node, out);
    case SW_JINJA_NODE_FILTER:
    case SW_JINJA_NODE_TEST: return evaluate_filter(run, node, out);
    case SW_JINJA_NODE_NEGATIVE: return negate(run, node, out);
    case SW_JINJA_NODE_ARITHMETIC: return evaluate_arithmetic(run, node, out);
    case SW_JINJA_NODE_JOIN: return evaluate_join(run, node, out);
    case SW_JINJA_NODE_COMPARE: return evaluate_comparison(run, node, out);
    default: return evaluate_logic(run, node, out);
    }
}

sw_status sw_jinja_evaluate(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    SW_TRY(sw_jinja_charge(run, 0));
    if (run->depth++ > MOST_DEPTH)
        return sw_fail(SW_ERR_UNSUPPORTED, "an expression is nested more than %d deep", MOST_DEPTH);
    const sw_status status = evaluate_kind(run, node, out);
    run->depth--;
    return status;
}
