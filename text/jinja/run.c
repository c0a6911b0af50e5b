/* Runs a parsed template, within bounds.
 *
 * The tree is walked directly. Templates run once per chat and are short, so compiling them would gain nothing. Every
 * evaluation takes from a budget of steps, depth and memory: a template from outside must not loop, recurse or grow
 * without end. Values live in one arena that is released with the rendering, so no value needs a reference count.
 *
 * Strings carry a mark per byte that says which message it came from; the marks survive joins, slices and filters. They
 * make it certain, not likely, which bytes of a chat are content. */
#include "text/jinja/run.h"

#include "text/jinja/jinja.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_TEMPLATE_BYTES = 1 << 20,
    MOST_PARSED_BYTES = 256 << 20,
    MOST_RENDERING_BYTES = 256 << 20,
    MOST_DEPTH = 400
};

struct sw_jinja_template {
    struct sw_jinja_arena arena;
    struct sw_jinja_node *body;
};

static sw_status jinja_assign(struct sw_jinja_run *run, struct sw_text name, struct sw_jinja_value value) {
    struct sw_jinja_scope *scope = run->scope;
    for (size_t i = 0; i < scope->count; i++)
        if (scope->bound[i].name.bytes == name.bytes && memcmp(scope->bound[i].name.data, name.data, name.bytes) == 0) {
            scope->bound[i].value = value;
            return SW_OK;
        }
    if (scope->count == SW_JINJA_MOST_MEMBERS)
        return sw_fail(SW_ERR_UNSUPPORTED, "the chat template sets more than %d names", SW_JINJA_MOST_MEMBERS);
    if (scope->count == scope->room) {
        const size_t room = scope->room * 2 + 4;
        struct sw_jinja_bound *grown;
        SW_TRY(sw_jinja_take(&run->arena, room * sizeof *grown, &grown));
        for (size_t i = 0; i < scope->count; i++)
            grown[i] = scope->bound[i];
        scope->bound = grown;
        scope->room = room;
    }
    scope->bound[scope->count++] = (struct sw_jinja_bound){name, value};
    return SW_OK;
}

/* How a body was left. */
typedef enum { RAN, BROKE, CONTINUED } ending;

static sw_status execute(struct sw_jinja_run *run, const struct sw_jinja_node *node, ending *out);

static sw_status execute_body(struct sw_jinja_run *run, const struct sw_jinja_node *body, ending *out) {
    *out = RAN;
    for (size_t i = 0; i < body->children && *out == RAN; i++)
        SW_TRY(execute(run, body->child[i], out));
    return SW_OK;
}

static sw_status jinja_evaluate(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out);

static sw_status execute_output(struct sw_jinja_run *run, const struct sw_jinja_node *node) {
    struct sw_jinja_value value;
    struct sw_jinja_string text;
    SW_TRY(jinja_evaluate(run, node->part[0], &value));
    SW_TRY(sw_jinja_str(&run->arena, value, &text));
    SW_TRY(sw_jinja_charge(run, text.bytes));
    return sw_jinja_build(run->out, text);
}

static sw_status execute_if(struct sw_jinja_run *run, const struct sw_jinja_node *node, ending *out) {
    size_t i = 0;
    for (; i + 1 < node->children; i += 2) {
        struct sw_jinja_value condition;
        SW_TRY(jinja_evaluate(run, node->child[i], &condition));
        if (sw_jinja_truth(condition))
            return execute_body(run, node->child[i + 1], out);
    }
    return i < node->children ? execute_body(run, node->child[i], out) : SW_OK;
}

static sw_status assign_target(struct sw_jinja_run *run, const struct sw_jinja_node *target,
                               struct sw_jinja_value value) {
    const struct sw_jinja_list *list;
    struct sw_jinja_value space;
    if (target->kind == SW_JINJA_NODE_NAME)
        return jinja_assign(run, target->name, value);
    if (target->kind == SW_JINJA_NODE_ATTRIBUTE) {
        SW_TRY(jinja_evaluate(run, target->part[0], &space));
        if (space.kind != SW_JINJA_NAMESPACE)
            return sw_jinja_bad_kind("members are set of namespaces, not of", space);
        return sw_jinja_dict_set(&run->arena, space.dict, sw_jinja_string(target->name), value);
    }
    SW_TRY(sw_jinja_iterate(run, value, &list));
    if (list->count != target->children)
        return sw_fail(SW_ERR_ARG, "%zu values are assigned to %zu names", list->count, target->children);
    for (size_t i = 0; i < list->count; i++)
        SW_TRY(jinja_assign(run, target->child[i]->name, list->item[i]));
    return SW_OK;
}

/* Makes the list of the members that pass a loop's condition. */
static sw_status choose_members(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                const struct sw_jinja_list **list) {
    struct sw_jinja_value chosen, condition;
    struct sw_jinja_scope scope = {.parent = run->scope};
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, (*list)->count, &chosen));
    chosen.list->count = 0;
    run->scope = &scope;
    for (size_t i = 0; i < (*list)->count; i++) {
        scope.count = 0;
        SW_TRY(assign_target(run, node->part[0], (*list)->item[i]));
        SW_TRY(jinja_evaluate(run, node->part[2], &condition));
        if (sw_jinja_truth(condition))
            chosen.list->item[chosen.list->count++] = (*list)->item[i];
    }
    run->scope = scope.parent;
    *list = chosen.list;
    return SW_OK;
}

static sw_status execute_for(struct sw_jinja_run *run, const struct sw_jinja_node *node, ending *out) {
    static const struct sw_text loop_name = {"loop", 4};
    struct sw_jinja_value value;
    struct sw_jinja_loop *loop;
    struct sw_jinja_scope *scope;
    SW_TRY(sw_jinja_take(&run->arena, sizeof *loop, &loop));
    SW_TRY(sw_jinja_take(&run->arena, sizeof *scope, &scope));
    SW_TRY(jinja_evaluate(run, node->part[1], &value));
    SW_TRY(sw_jinja_iterate(run, value, &loop->list));
    if (node->part[2] != NULL)
        SW_TRY(choose_members(run, node, &loop->list));
    scope->parent = run->scope;
    run->scope = scope;
    bool ran = false; /* an iteration reached the end of the body; otherwise Jinja treats the loop as empty */
    for (ending how = RAN; loop->index < loop->list->count && how != BROKE; loop->index++) {
        scope->count = 0;
        SW_TRY(sw_jinja_charge(run, 0));
        SW_TRY(jinja_assign(run, loop_name, (struct sw_jinja_value){.kind = SW_JINJA_LOOP, .loop = loop}));
        SW_TRY(assign_target(run, node->part[0], loop->list->item[loop->index]));
        SW_TRY(execute_body(run, node->part[3], &how));
        ran |= how == RAN;
    }
    scope->count = 0;
    if (!ran && node->children > 0)
        SW_TRY(execute_body(run, node->child[0], out));
    run->scope = scope->parent;
    return SW_OK;
}

/* Runs a body in a scope of its own, with its output in a builder. */
static sw_status capture(struct sw_jinja_run *run, const struct sw_jinja_node *body, struct sw_jinja_scope *scope,
                         struct sw_jinja_builder *builder) {
    struct sw_jinja_scope *outer_scope = run->scope;
    struct sw_jinja_builder *outer = run->out;
    ending how;
    run->scope = scope;
    run->out = builder;
    SW_TRY(execute_body(run, body, &how));
    run->scope = outer_scope;
    run->out = outer;
    return SW_OK;
}

static sw_status execute_set_block(struct sw_jinja_run *run, const struct sw_jinja_node *node) {
    struct sw_jinja_builder builder = {.arena = &run->arena};
    struct sw_jinja_scope *scope;
    SW_TRY(sw_jinja_take(&run->arena, sizeof *scope, &scope));
    scope->parent = run->scope;
    SW_TRY(capture(run, node->part[1], scope, &builder));
    return assign_target(run, node->part[0], sw_jinja_built(&builder));
}

static sw_status execute_generation(struct sw_jinja_run *run, const struct sw_jinja_node *node) {
    struct sw_jinja_scope *scope;
    const size_t begin = run->out->bytes;
    SW_TRY(sw_jinja_take(&run->arena, sizeof *scope, &scope));
    scope->parent = run->scope;
    SW_TRY(capture(run, node->part[0], scope, run->out));
    SW_TRY(sw_jinja_charge(run, run->out->bytes - begin));
    for (size_t i = begin; i < run->out->bytes; i++)
        run->out->marks[i] |= SW_JINJA_GENERATED;
    return SW_OK;
}

static sw_status define_macro(struct sw_jinja_run *run, const struct sw_jinja_node *node) {
    struct sw_jinja_macro *macro;
    SW_TRY(sw_jinja_take(&run->arena, sizeof *macro, &macro));
    *macro = (struct sw_jinja_macro){.node = node, .scope = run->scope};
    return jinja_assign(run, node->name, (struct sw_jinja_value){.kind = SW_JINJA_MACRO, .macro = macro});
}

static sw_status call_macro(struct sw_jinja_run *run, const struct sw_jinja_macro *macro,
                            const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out) {
    const struct sw_jinja_node *node = macro->node;
    struct sw_jinja_builder builder = {.arena = &run->arena};
    struct sw_jinja_scope *scope, *outer = run->scope;
    size_t named = 0;
    SW_TRY(sw_jinja_take(&run->arena, sizeof *scope, &scope));
    scope->parent = macro->scope;
    run->scope = scope;
    for (size_t i = 0; i < node->children; i++) {
        const struct sw_jinja_node *parameter = node->child[i];
        const struct sw_jinja_value *given = sw_jinja_dict_named(arguments->named, parameter->name);
        struct sw_jinja_value value = sw_jinja_undefined(parameter->name);
        named += given != NULL && i >= arguments->count;
        if (i < arguments->count)
            value = arguments->value[i];
        else if (given != NULL)
            value = *given;
        else if (parameter->kind == SW_JINJA_NODE_KEYWORD)
            SW_TRY(jinja_evaluate(run, parameter->part[0], &value));
        SW_TRY(jinja_assign(run, parameter->name, value));
    }
    if (arguments->count > node->children || named < arguments->named->count)
        return sw_fail(SW_ERR_ARG, "the macro '%.*s' has no such parameters", (int)node->name.bytes, node->name.data);
    SW_TRY(capture(run, node->part[0], scope, &builder));
    run->scope = outer;
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

static sw_status execute_kind(struct sw_jinja_run *run, const struct sw_jinja_node *node, ending *out) {
    struct sw_jinja_value value;
    switch (node->kind) {
    case SW_JINJA_NODE_TEXT: return sw_jinja_build(run->out, node->constant.string);
    case SW_JINJA_NODE_OUTPUT: return execute_output(run, node);
    case SW_JINJA_NODE_IF: return execute_if(run, node, out);
    case SW_JINJA_NODE_FOR: return execute_for(run, node, out);
    case SW_JINJA_NODE_SET:
        SW_TRY(jinja_evaluate(run, node->part[1], &value));
        return assign_target(run, node->part[0], value);
    case SW_JINJA_NODE_SET_BLOCK: return execute_set_block(run, node);
    case SW_JINJA_NODE_MACRO: return define_macro(run, node);
    case SW_JINJA_NODE_GENERATION: return execute_generation(run, node);
    case SW_JINJA_NODE_BREAK: *out = BROKE; return SW_OK;
    default: *out = CONTINUED; return SW_OK;
    }
}

static sw_status execute(struct sw_jinja_run *run, const struct sw_jinja_node *node, ending *out) {
    SW_TRY(sw_jinja_charge(run, 0));
    if (run->depth++ > MOST_DEPTH)
        return sw_fail(SW_ERR_UNSUPPORTED, "the chat template nests statements more than %d deep", MOST_DEPTH);
    const sw_status status = execute_kind(run, node, out);
    run->depth--;
    if (status == SW_OK || run->has_line)
        return status;
    run->has_line = true;
    return sw_fail_while(status, "rendering line %d of the chat template", node->line);
}

unsigned char sw_jinja_mark_of(size_t message) {
    return (unsigned char)(1 + message % SW_JINJA_CONTENT);
}

static sw_status set_text(struct sw_jinja_run *run, struct sw_jinja_dict *dict, const char *name, const char *value) {
    const struct sw_jinja_value text = sw_jinja_string((struct sw_text){value, strlen(value)});
    return sw_jinja_dict_set(&run->arena, dict, sw_jinja_string((struct sw_text){name, strlen(name)}), text);
}

/* Makes the dict of a message, with its content marked. */
static sw_status make_message(struct sw_jinja_run *run, const struct sw_jinja_input *input, size_t number,
                              struct sw_jinja_value *out) {
    const struct sw_text content = input->message[number].content;
    struct sw_jinja_value text = sw_jinja_string(content);
    unsigned char *marks;
    SW_TRY(sw_jinja_take(&run->arena, content.bytes, &marks));
    memset(marks, sw_jinja_mark_of(number), content.bytes);
    text.string.marks = marks;
    SW_TRY(sw_jinja_new_dict(&run->arena, SW_JINJA_DICT, 2, out));
    SW_TRY(set_text(run, out->dict, "role", input->message[number].role));
    return sw_jinja_dict_set(&run->arena, out->dict, sw_jinja_string((struct sw_text){"content", 7}), text);
}

static sw_status define(struct sw_jinja_run *run, const char *name, struct sw_jinja_value value) {
    return jinja_assign(run, (struct sw_text){name, strlen(name)}, value);
}

static sw_status define_all(struct sw_jinja_run *run, const struct sw_jinja_input *input) {
    const struct sw_jinja_value none = {.kind = SW_JINJA_NONE};
    struct sw_jinja_value messages;
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, input->messages, &messages));
    for (size_t i = 0; i < input->messages; i++)
        SW_TRY(make_message(run, input, i, &messages.list->item[i]));
    for (size_t i = 0; i < input->tokens; i++) {
        const struct sw_text value = {input->token[i].value, strlen(input->token[i].value)};
        SW_TRY(define(run, input->token[i].name, sw_jinja_string(value)));
    }
    SW_TRY(define(run, "messages", messages));
    SW_TRY(define(run, "tools", none));
    SW_TRY(define(run, "documents", none));
    return define(run, "add_generation_prompt", sw_jinja_bool(input->add_generation_prompt));
}

static sw_status copy_out(const struct sw_jinja_builder *builder, struct sw_jinja_text *out) {
    out->bytes.bytes = out->marks.bytes = 0;
    SW_TRY(sw_text_buffer_append(&out->bytes, (struct sw_text){builder->data, builder->bytes}));
    return sw_text_buffer_append(&out->marks, (struct sw_text){(const char *)builder->marks, builder->bytes});
}

sw_status sw_jinja_render(const struct sw_jinja_template *parsed, const struct sw_jinja_input *input,
                          struct sw_jinja_text *out) {
    struct sw_jinja_run run = {
        .arena.most = MOST_RENDERING_BYTES, .call_macro = call_macro, .steps = SW_JINJA_MOST_STEPS};
    struct sw_jinja_scope scope = {0};
    struct sw_jinja_builder builder = {.arena = &run.arena};
    ending how;
    run.scope = &scope;
    run.out = &builder;
    sw_status status = define_all(&run, input);
    if (status == SW_OK)
        status = execute_body(&run, parsed->body, &how);
    if (status == SW_OK)
        status = copy_out(&builder, out);
    sw_jinja_arena_release(&run.arena);
    return status;
}

void sw_jinja_text_release(struct sw_jinja_text *text) {
    free(text->bytes.data);
    free(text->marks.data);
    *text = (struct sw_jinja_text){0};
}

static sw_status parse(struct sw_jinja_template *parsed, struct sw_text source) {
    struct sw_jinja_token *token;
    if (source.bytes > MOST_TEMPLATE_BYTES)
        return sw_fail(SW_ERR_UNSUPPORTED, "it is larger than %d KiB", MOST_TEMPLATE_BYTES >> 10);
    if (!sw_utf8_is_valid(source))
        return sw_fail(SW_ERR_ARG, "it is not UTF-8");
    SW_TRY(sw_jinja_lex(&parsed->arena, source, &token));
    struct sw_jinja_parser parser = {.arena = &parsed->arena, .token = token};
    return sw_jinja_parse_statements(&parser, &parsed->body);
}

sw_status sw_jinja_parse(struct sw_text source, struct sw_jinja_template **out) {
    struct sw_jinja_template *parsed = calloc(1, sizeof *parsed);
    if (parsed == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a chat template");
    parsed->arena.most = MOST_PARSED_BYTES;
    const sw_status status = parse(parsed, source);
    if (status != SW_OK) {
        sw_jinja_destroy(parsed);
        return status;
    }
    *out = parsed;
    return SW_OK;
}

void sw_jinja_destroy(struct sw_jinja_template *parsed) {
    if (parsed == NULL)
        return;
    sw_jinja_arena_release(&parsed->arena);
    free(parsed);
}

/* Expressions. */

enum { MOST_EXPRESSION_DEPTH = 400 };

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
        SW_TRY(jinja_evaluate(run, node->child[i], &out->list->item[i]));
    return SW_OK;
}

static sw_status evaluate_dict(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    SW_TRY(sw_jinja_new_dict(&run->arena, SW_JINJA_DICT, node->children / 2, out));
    for (size_t i = 0; i < node->children; i += 2) {
        struct sw_jinja_value key, item;
        SW_TRY(jinja_evaluate(run, node->child[i], &key));
        SW_TRY(jinja_evaluate(run, node->child[i + 1], &item));
        if (key.kind != SW_JINJA_STRING && key.kind != SW_JINJA_INT)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s as the key of a dict is not supported",
                           sw_jinja_kind_name(key.kind));
        SW_TRY(sw_jinja_charge(run, out->dict->count));
        SW_TRY(sw_jinja_dict_set(&run->arena, out->dict, key, item));
    }
    return SW_OK;
}

/* The bounds of a slice, counted as Python does. */
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
            SW_TRY(jinja_evaluate(run, node->part[i + 1], &value));
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
    SW_TRY(jinja_evaluate(run, node->part[0], &of));
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
        SW_TRY(jinja_evaluate(run, is_named ? argument->part[0] : argument, &value));
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
    SW_TRY(jinja_evaluate(run, node->part[0], &callee));
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
    SW_TRY(jinja_evaluate(run, node->part[0], &value));
    SW_TRY(evaluate_arguments(run, node, &arguments));
    if (node->kind == SW_JINJA_NODE_FILTER)
        return sw_jinja_filter(run, node->operation, value, &arguments, out);
    SW_TRY(sw_jinja_test(run, node->operation, value, &arguments, &truth));
    *out = sw_jinja_bool(truth);
    return SW_OK;
}

static sw_status evaluate_logic(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                struct sw_jinja_value *out) {
    SW_TRY(jinja_evaluate(run, node->part[0], out));
    const bool truth = sw_jinja_truth(*out);
    switch (node->kind) {
    case SW_JINJA_NODE_NOT: *out = sw_jinja_bool(!truth); return SW_OK;
    case SW_JINJA_NODE_AND: return truth ? jinja_evaluate(run, node->part[1], out) : SW_OK;
    case SW_JINJA_NODE_OR: return truth ? SW_OK : jinja_evaluate(run, node->part[1], out);
    default: break;
    }
    if (truth)
        return jinja_evaluate(run, node->part[1], out);
    *out = sw_jinja_undefined((struct sw_text){"else", 4});
    return node->part[2] != NULL ? jinja_evaluate(run, node->part[2], out) : SW_OK;
}

static sw_status evaluate_arithmetic(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                     struct sw_jinja_value *out) {
    struct sw_jinja_value left, right;
    SW_TRY(jinja_evaluate(run, node->part[0], &left));
    SW_TRY(jinja_evaluate(run, node->part[1], &right));
    return sw_jinja_calculate(run, node->operation, left, right, out);
}

static sw_status evaluate_join(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    struct sw_jinja_builder builder = {.arena = &run->arena};
    for (size_t i = 0; i < node->children; i++) {
        struct sw_jinja_value value;
        struct sw_jinja_string text;
        SW_TRY(jinja_evaluate(run, node->child[i], &value));
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
    SW_TRY(jinja_evaluate(run, node->part[0], &left));
    for (size_t i = 0; i < node->children && truth; i++) {
        SW_TRY(jinja_evaluate(run, node->child[i]->part[0], &right));
        SW_TRY(sw_jinja_compare(run, node->child[i]->operation, left, right, &truth));
        left = right;
    }
    *out = sw_jinja_bool(truth);
    return SW_OK;
}

static sw_status evaluate_member(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                 struct sw_jinja_value *out) {
    struct sw_jinja_value of, key;
    SW_TRY(jinja_evaluate(run, node->part[0], &of));
    if (node->kind == SW_JINJA_NODE_ATTRIBUTE)
        return sw_jinja_get_attribute(run, of, node->name, out);
    SW_TRY(jinja_evaluate(run, node->part[1], &key));
    return sw_jinja_get_item(run, of, key, out);
}

static sw_status negate(struct sw_jinja_run *run, const struct sw_jinja_node *node, struct sw_jinja_value *out) {
    struct sw_jinja_value value;
    SW_TRY(jinja_evaluate(run, node->part[0], &value));
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

static sw_status jinja_evaluate(struct sw_jinja_run *run, const struct sw_jinja_node *node,
                                struct sw_jinja_value *out) {
    SW_TRY(sw_jinja_charge(run, 0));
    if (run->depth++ > MOST_EXPRESSION_DEPTH)
        return sw_fail(SW_ERR_UNSUPPORTED, "an expression is nested more than %d deep", MOST_EXPRESSION_DEPTH);
    const sw_status status = evaluate_kind(run, node, out);
    run->depth--;
    return status;
}
