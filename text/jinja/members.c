/* Steps that are counted, arguments by their names, and all members of a value. */
#include "text/jinja/run.h"

#include <string.h>

enum { BYTES_A_STEP = 64 };

sw_status sw_jinja_charge(struct sw_jinja_run *run, size_t amount) {
    run->steps -= 1 + (int64_t)(amount / BYTES_A_STEP);
    return run->steps > 0
               ? SW_OK
               : sw_fail(SW_ERR_UNSUPPORTED, "the chat template needs more than %d steps", SW_JINJA_MOST_STEPS);
}

sw_status sw_jinja_bind(const struct sw_jinja_signature *signature, const struct sw_jinja_arguments *arguments,
                        struct sw_jinja_bound_arguments *out) {
    size_t named = 0, i = 0;
    *out = (struct sw_jinja_bound_arguments){0};
    for (; i < SW_JINJA_MOST_PARAMETERS && signature->parameter[i] != NULL; i++) {
        const struct sw_text name = {signature->parameter[i], strlen(signature->parameter[i])};
        const struct sw_jinja_value *given = sw_jinja_dict_named(arguments->named, name);
        out->given[i] = i < arguments->count || given != NULL;
        if (i < arguments->count)
            out->value[i] = arguments->value[i];
        else if (given != NULL)
            out->value[i] = *given;
        named += given != NULL;
        if (!out->given[i] && (int)i < signature->least)
            return sw_fail(SW_ERR_ARG, "'%s' lacks the argument '%s'", signature->name, signature->parameter[i]);
    }
    if (arguments->count > i || named < arguments->named->count)
        return sw_fail(SW_ERR_UNSUPPORTED, "'%s' with these arguments is not supported", signature->name);
    return SW_OK;
}

sw_status sw_jinja_iterate(struct sw_jinja_run *run, struct sw_jinja_value of, const struct sw_jinja_list **out) {
    struct sw_jinja_value list;
    size_t count = 0;
    if (of.kind == SW_JINJA_LIST || of.kind == SW_JINJA_TUPLE || of.kind == SW_JINJA_GENERATOR) {
        *out = of.list;
        return SW_OK;
    }
    if (of.kind == SW_JINJA_STRING)
        count = sw_jinja_chars(sw_jinja_text_of(of.string));
    else if (of.kind == SW_JINJA_DICT)
        count = of.dict->count;
    else if (of.kind != SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("nothing to go through in", of);
    SW_TRY(sw_jinja_charge(run, count * sizeof list));
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, count, &list));
    for (size_t i = 0, at = 0; i < count; i++) {
        if (of.kind == SW_JINJA_DICT) {
            list.list->item[i] = of.dict->key[i];
            continue;
        }
        const size_t bytes = sw_jinja_char_bytes((struct sw_text){of.string.data + at, of.string.bytes - at});
        list.list->item[i] =
            (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = sw_jinja_part(of.string, at, bytes)};
        at += bytes;
    }
    *out = list.list;
    return SW_OK;
}

sw_status sw_jinja_length(struct sw_jinja_run *run, struct sw_jinja_value of, int64_t *out) {
    switch (of.kind) {
    case SW_JINJA_UNDEFINED: *out = 0; return SW_OK;
    case SW_JINJA_STRING:
        SW_TRY(sw_jinja_charge(run, of.string.bytes));
        *out = (int64_t)sw_jinja_chars(sw_jinja_text_of(of.string));
        return SW_OK;
    case SW_JINJA_LIST:
    case SW_JINJA_TUPLE: *out = (int64_t)of.list->count; return SW_OK;
    case SW_JINJA_DICT: *out = (int64_t)of.dict->count; return SW_OK;
    default: return sw_jinja_bad_kind("no length of", of);
    }
}
