/* Expressions, with the precedence that Jinja has: conditions, or, and, not, comparisons, + and -, ~, the other
 * arithmetic, signs, and then what stands behind a value: members, calls, filters and tests. */
#include "text/jinja/syntax.h"

#include <string.h>

enum { MOST_DEPTH = 200, MOST_CHILDREN = 1 << 16 };

sw_status sw_jinja_new_node(struct sw_jinja_parser *parser, sw_jinja_node_kind kind, struct sw_jinja_node **out) {
    SW_TRY(sw_jinja_take(parser->arena, sizeof **out, out));
    (*out)->kind = kind;
    (*out)->line = parser->token->line;
    return SW_OK;
}

sw_status sw_jinja_add_child(struct sw_jinja_parser *parser, struct sw_jinja_node *node, struct sw_jinja_node *child) {
    const size_t count = node->children;
    if (count == MOST_CHILDREN)
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: more than %d parts", node->line, MOST_CHILDREN);
    if ((count & (count - 1)) == 0) { /* full at powers of two */
        struct sw_jinja_node **grown;
        SW_TRY(sw_jinja_take(parser->arena, (count == 0 ? 1 : count * 2) * sizeof(struct sw_jinja_node *), &grown));
        for (size_t i = 0; i < count; i++)
            grown[i] = node->child[i];
        node->child = grown;
    }
    node->child[node->children++] = child;
    return SW_OK;
}

sw_status sw_jinja_descend(struct sw_jinja_parser *parser) {
    if (parser->depth++ < MOST_DEPTH)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED, "line %d: nested more than %d deep", parser->token->line, MOST_DEPTH);
}

bool sw_jinja_next_is(const struct sw_jinja_parser *parser, sw_jinja_token_kind kind, const char *text) {
    return parser->token->kind == kind && (text == NULL || sw_jinja_is(parser->token->text, text));
}

bool sw_jinja_skip(struct sw_jinja_parser *parser, sw_jinja_token_kind kind, const char *text) {
    const bool found = sw_jinja_next_is(parser, kind, text);
    parser->token += found && kind != SW_JINJA_TOKEN_END;
    return found;
}

sw_status sw_jinja_unexpected(const struct sw_jinja_parser *parser) {
    static const char *const names[] = {"text",   "a tag",    "the end of a tag", "an output",   "the end of an output",
                                        "a name", "a string", "a number",         "an operator", "the end"};
    const struct sw_jinja_token *token = parser->token;
    const int bytes = token->text.bytes < 40 ? (int)token->text.bytes : 40;
    return sw_fail(SW_ERR_ARG, "line %d: unexpected %s%s%.*s", token->line, names[token->kind], bytes > 0 ? " " : "",
                   bytes, bytes > 0 ? token->text.data : "");
}

sw_status sw_jinja_expect(struct sw_jinja_parser *parser, sw_jinja_token_kind kind, const char *text) {
    return sw_jinja_skip(parser, kind, text) ? SW_OK : sw_jinja_unexpected(parser);
}

static bool skip_operator(struct sw_jinja_parser *parser, const char *text) {
    return sw_jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, text);
}

static bool next_is_operator(const struct sw_jinja_parser *parser, const char *text) {
    return sw_jinja_next_is(parser, SW_JINJA_TOKEN_OPERATOR, text);
}

static bool next_is_name(const struct sw_jinja_parser *parser, const char *text) {
    return sw_jinja_next_is(parser, SW_JINJA_TOKEN_NAME, text);
}

static sw_status parse_expression(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    return sw_jinja_parse_expression(parser, true, out);
}

static sw_status new_constant(struct sw_jinja_parser *parser, struct sw_jinja_value value, struct sw_jinja_node **out) {
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_CONSTANT, out));
    (*out)->constant = value;
    return SW_OK;
}

static sw_status parse_name(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    static const char *const refused[] = {"cycler", "joiner", "lipsum"};
    const struct sw_text name = parser->token->text;
    if (sw_jinja_is(name, "true") || sw_jinja_is(name, "True"))
        SW_TRY(new_constant(parser, sw_jinja_bool(true), out));
    else if (sw_jinja_is(name, "false") || sw_jinja_is(name, "False"))
        SW_TRY(new_constant(parser, sw_jinja_bool(false), out));
    else if (sw_jinja_is(name, "none") || sw_jinja_is(name, "None"))
        SW_TRY(new_constant(parser, (struct sw_jinja_value){.kind = SW_JINJA_NONE}, out));
    else
        SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_NAME, out));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (sw_jinja_is(name, refused[i]))
            return sw_fail(SW_ERR_UNSUPPORTED, "line %d: '%s' is not supported", parser->token->line, refused[i]);
    (*out)->name = name;
    parser->token++;
    return SW_OK;
}

/* Strings one after the other are one string. */
static sw_status parse_strings(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    struct sw_jinja_builder builder = {.arena = parser->arena};
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_CONSTANT, out));
    for (; parser->token->kind == SW_JINJA_TOKEN_STRING; parser->token++)
        SW_TRY(sw_jinja_build(&builder, sw_jinja_string(parser->token->text).string));
    (*out)->constant = sw_jinja_built(&builder);
    (*out)->constant.string.marks = NULL;
    return SW_OK;
}

/* Parses what stands between brackets of a list or a dict. */
static sw_status parse_members(struct sw_jinja_parser *parser, bool is_dict, struct sw_jinja_node **out) {
    const char *end = is_dict ? "}" : "]";
    struct sw_jinja_node *member;
    SW_TRY(sw_jinja_new_node(parser, is_dict ? SW_JINJA_NODE_DICT : SW_JINJA_NODE_LIST, out));
    parser->token++;
    while (!skip_operator(parser, end)) {
        if ((*out)->children > 0)
            SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ","));
        if (skip_operator(parser, end))
            break;
        SW_TRY(parse_expression(parser, &member));
        SW_TRY(sw_jinja_add_child(parser, *out, member));
        if (!is_dict)
            continue;
        SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ":"));
        SW_TRY(parse_expression(parser, &member));
        SW_TRY(sw_jinja_add_child(parser, *out, member));
    }
    return SW_OK;
}

static sw_status parse_parentheses(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    parser->token++;
    if (skip_operator(parser, ")"))
        return sw_jinja_new_node(parser, SW_JINJA_NODE_TUPLE, out);
    SW_TRY(sw_jinja_parse_tuple(parser, true, out));
    return sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ")");
}

static sw_status parse_primary(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    switch (parser->token->kind) {
    case SW_JINJA_TOKEN_NAME: return parse_name(parser, out);
    case SW_JINJA_TOKEN_STRING: return parse_strings(parser, out);
    case SW_JINJA_TOKEN_NUMBER:
        SW_TRY(new_constant(parser, sw_jinja_int(parser->token->number), out));
        parser->token++;
        return SW_OK;
    default: break;
    }
    if (next_is_operator(parser, "["))
        return parse_members(parser, false, out);
    if (next_is_operator(parser, "{"))
        return parse_members(parser, true, out);
    return next_is_operator(parser, "(") ? parse_parentheses(parser, out) : sw_jinja_unexpected(parser);
}

/* Parses the arguments of a call behind its opening parenthesis, as children of a node. */
static sw_status parse_arguments(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    struct sw_jinja_node *argument, *value;
    while (!skip_operator(parser, ")")) {
        if (node->children > 0)
            SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ","));
        if (skip_operator(parser, ")"))
            break;
        if (next_is_operator(parser, "*") || next_is_operator(parser, "**"))
            return sw_fail(SW_ERR_UNSUPPORTED, "line %d: arguments with * are not supported", parser->token->line);
        const struct sw_jinja_token *name = parser->token;
        if (name->kind == SW_JINJA_TOKEN_NAME && name[1].kind == SW_JINJA_TOKEN_OPERATOR &&
            sw_jinja_is(name[1].text, "=")) {
            SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_KEYWORD, &argument));
            parser->token += 2;
            argument->name = name->text;
            SW_TRY(parse_expression(parser, &value));
            argument->part[0] = value;
        } else {
            SW_TRY(parse_expression(parser, &argument));
            if (node->children > 0 && node->child[node->children - 1]->kind == SW_JINJA_NODE_KEYWORD)
                return sw_fail(SW_ERR_ARG, "line %d: an argument without a name follows one with a name", name->line);
        }
        SW_TRY(sw_jinja_add_child(parser, node, argument));
    }
    return SW_OK;
}

/* Parses one bound of a slice, which may be left out. */
static sw_status parse_bound(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    if (next_is_operator(parser, ":") || next_is_operator(parser, "]"))
        return SW_OK;
    return parse_expression(parser, out);
}

static sw_status parse_item(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_ITEM, out));
    (*out)->part[0] = of;
    parser->token++;
    if (next_is_operator(parser, "]"))
        return sw_jinja_unexpected(parser);
    SW_TRY(parse_bound(parser, &(*out)->part[1]));
    for (int i = 2; i < 4 && skip_operator(parser, ":"); i++) {
        (*out)->kind = SW_JINJA_NODE_SLICE;
        SW_TRY(parse_bound(parser, &(*out)->part[i]));
    }
    return sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, "]");
}

static sw_status parse_attribute(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    parser->token++;
    const bool is_number = parser->token->kind == SW_JINJA_TOKEN_NUMBER;
    if (!is_number && parser->token->kind != SW_JINJA_TOKEN_NAME)
        return sw_jinja_unexpected(parser);
    SW_TRY(sw_jinja_new_node(parser, is_number ? SW_JINJA_NODE_ITEM : SW_JINJA_NODE_ATTRIBUTE, out));
    (*out)->part[0] = of;
    (*out)->name = parser->token->text;
    if (is_number)
        SW_TRY(new_constant(parser, sw_jinja_int(parser->token->number), &(*out)->part[1]));
    parser->token++;
    return SW_OK;
}

static sw_status parse_call(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_CALL, out));
    (*out)->part[0] = of;
    parser->token++;
    return parse_arguments(parser, *out);
}

/* Parses members and calls behind a value. */
static sw_status parse_members_of(struct sw_jinja_parser *parser, struct sw_jinja_node **node) {
    for (;;) {
        if (next_is_operator(parser, "."))
            SW_TRY(parse_attribute(parser, *node, node));
        else if (next_is_operator(parser, "["))
            SW_TRY(parse_item(parser, *node, node));
        else if (next_is_operator(parser, "("))
            SW_TRY(parse_call(parser, *node, node));
        else
            return SW_OK;
    }
}

static sw_status unknown(const struct sw_jinja_node *node, const char *what) {
    const int bytes = node->name.bytes < 40 ? (int)node->name.bytes : 40;
    return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the %s '%.*s' is not supported", node->line, what, bytes,
                   node->name.data);
}

static sw_status parse_filter(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    parser->token++;
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_FILTER, out));
    (*out)->part[0] = of;
    (*out)->name = parser->token->text;
    SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL));
    (*out)->operation = sw_jinja_find_filter((*out)->name);
    if ((*out)->operation < 0)
        return unknown(*out, "filter");
    /* Jinja escapes what is added to a text that is safe; where it is put out at once, it is as it was. */
    if (sw_jinja_is((*out)->name, "safe") && parser->token->kind != SW_JINJA_TOKEN_OUTPUT_END)
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the filter 'safe' within an expression is not supported",
                       (*out)->line);
    return skip_operator(parser, "(") ? parse_arguments(parser, *out) : SW_OK;
}

/* Tells whether a test's argument without parentheses is next: x is divisibleby 3. */
static bool has_bare_argument(const struct sw_jinja_parser *parser) {
    static const char *const others[] = {"else", "or", "and", "if", "in", "not", "is"};
    if (parser->token->kind == SW_JINJA_TOKEN_STRING || parser->token->kind == SW_JINJA_TOKEN_NUMBER ||
        next_is_operator(parser, "[") || next_is_operator(parser, "{"))
        return true;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (next_is_name(parser, others[i]))
            return false;
    return parser->token->kind == SW_JINJA_TOKEN_NAME;
}

static sw_status parse_test(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    struct sw_jinja_node *argument, *negated;
    parser->token++;
    const bool negates = sw_jinja_skip(parser, SW_JINJA_TOKEN_NAME, "not");
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_TEST, out));
    (*out)->part[0] = of;
    (*out)->name = parser->token->text;
    SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL));
    (*out)->operation = sw_jinja_find_test((*out)->name);
    if ((*out)->operation < 0)
        return unknown(*out, "test");
    if (skip_operator(parser, "(")) {
        SW_TRY(parse_arguments(parser, *out));
    } else if (has_bare_argument(parser)) {
        SW_TRY(parse_primary(parser, &argument));
        SW_TRY(parse_members_of(parser, &argument));
        SW_TRY(sw_jinja_add_child(parser, *out, argument));
    }
    if (!negates)
        return SW_OK;
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_NOT, &negated));
    negated->part[0] = *out;
    *out = negated;
    return SW_OK;
}

/* Parses filters, tests and calls behind a value. */
static sw_status parse_filters(struct sw_jinja_parser *parser, struct sw_jinja_node **node) {
    for (;;) {
        if (next_is_operator(parser, "|"))
            SW_TRY(parse_filter(parser, *node, node));
        else if (next_is_name(parser, "is"))
            SW_TRY(parse_test(parser, *node, node));
        else if (next_is_operator(parser, "("))
            SW_TRY(parse_call(parser, *node, node));
        else
            return SW_OK;
    }
}

static sw_status parse_unary(struct sw_jinja_parser *parser, bool with_filters, struct sw_jinja_node **out) {
    if (next_is_operator(parser, "+"))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the sign + is not supported", parser->token->line);
    if (next_is_operator(parser, "-")) {
        SW_TRY(sw_jinja_descend(parser));
        SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_NEGATIVE, out));
        parser->token++;
        SW_TRY(parse_unary(parser, false, &(*out)->part[0]));
        parser->depth--;
    } else {
        SW_TRY(parse_primary(parser, out));
    }
    SW_TRY(parse_members_of(parser, out));
    return with_filters ? parse_filters(parser, out) : SW_OK;
}

/* Returns the operation that an operator stands for at one level of precedence, or -1. */
static int arithmetic_of(const struct sw_jinja_parser *parser, bool sums) {
    if (next_is_operator(parser, "+"))
        return sums ? SW_JINJA_ADD : -1;
    if (next_is_operator(parser, "-"))
        return sums ? SW_JINJA_SUBTRACT : -1;
    if (sums)
        return -1;
    if (next_is_operator(parser, "*"))
        return SW_JINJA_MULTIPLY;
    if (next_is_operator(parser, "//"))
        return SW_JINJA_DIVIDE_DOWN;
    return next_is_operator(parser, "%") ? SW_JINJA_MODULO : -1;
}

static sw_status parse_joined(struct sw_jinja_parser *parser, struct sw_jinja_node **out);

/* Parses operands with operators of one level between them, from left to right. */
static sw_status parse_arithmetic(struct sw_jinja_parser *parser, bool sums, struct sw_jinja_node **out) {
    SW_TRY(sums ? parse_joined(parser, out) : parse_unary(parser, true, out));
    if (!sums && (next_is_operator(parser, "/") || next_is_operator(parser, "**")))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the operator %.*s is not supported", parser->token->line,
                       (int)parser->token->text.bytes, parser->token->text.data);
    for (int operation; (operation = arithmetic_of(parser, sums)) >= 0;) {
        struct sw_jinja_node *node;
        SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_ARITHMETIC, &node));
        parser->token++;
        node->operation = operation;
        node->part[0] = *out;
        SW_TRY(sums ? parse_joined(parser, &node->part[1]) : parse_unary(parser, true, &node->part[1]));
        *out = node;
    }
    return SW_OK;
}

static sw_status parse_joined(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    struct sw_jinja_node *more, *first;
    SW_TRY(parse_arithmetic(parser, false, out));
    if (!next_is_operator(parser, "~"))
        return SW_OK;
    first = *out;
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_JOIN, out));
    SW_TRY(sw_jinja_add_child(parser, *out, first));
    while (skip_operator(parser, "~")) {
        SW_TRY(parse_arithmetic(parser, false, &more));
        SW_TRY(sw_jinja_add_child(parser, *out, more));
    }
    return SW_OK;
}

/* Takes the operator of a comparison; -1: there is none. */
static int take_comparison(struct sw_jinja_parser *parser) {
    static const struct {
        const char *text;
        int operation;
    } known[] = {{"==", SW_JINJA_EQUAL},         {"!=", SW_JINJA_UNEQUAL}, {"<", SW_JINJA_LESS},
                 {"<=", SW_JINJA_LESS_OR_EQUAL}, {">", SW_JINJA_GREATER},  {">=", SW_JINJA_GREATER_OR_EQUAL}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (skip_operator(parser, known[i].text))
            return known[i].operation;
    if (sw_jinja_skip(parser, SW_JINJA_TOKEN_NAME, "in"))
        return SW_JINJA_IN;
    if (!next_is_name(parser, "not") || parser->token[1].kind != SW_JINJA_TOKEN_NAME ||
        !sw_jinja_is(parser->token[1].text, "in"))
        return -1;
    parser->token += 2;
    return SW_JINJA_NOT_IN;
}

static sw_status parse_comparison(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    struct sw_jinja_node *compared = NULL, *operand;
    SW_TRY(parse_arithmetic(parser, true, out));
    for (int operation; (operation = take_comparison(parser)) >= 0;) {
        if (compared == NULL) {
            SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_COMPARE, &compared));
            compared->part[0] = *out;
            *out = compared;
        }
        SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_OPERAND, &operand));
        operand->operation = operation;
        SW_TRY(parse_arithmetic(parser, true, &operand->part[0]));
        SW_TRY(sw_jinja_add_child(parser, compared, operand));
    }
    return SW_OK;
}

static sw_status parse_not(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    if (!next_is_name(parser, "not"))
        return parse_comparison(parser, out);
    SW_TRY(sw_jinja_descend(parser));
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_NOT, out));
    parser->token++;
    SW_TRY(parse_not(parser, &(*out)->part[0]));
    parser->depth--;
    return SW_OK;
}

/* Parses operands of `and`, or of `or`. */
static sw_status parse_logic(struct sw_jinja_parser *parser, bool is_or, struct sw_jinja_node **out) {
    SW_TRY(is_or ? parse_logic(parser, false, out) : parse_not(parser, out));
    while (next_is_name(parser, is_or ? "or" : "and")) {
        struct sw_jinja_node *node;
        SW_TRY(sw_jinja_new_node(parser, is_or ? SW_JINJA_NODE_OR : SW_JINJA_NODE_AND, &node));
        parser->token++;
        node->part[0] = *out;
        SW_TRY(is_or ? parse_logic(parser, false, &node->part[1]) : parse_not(parser, &node->part[1]));
        *out = node;
    }
    return SW_OK;
}

sw_status sw_jinja_parse_expression(struct sw_jinja_parser *parser, bool with_condition, struct sw_jinja_node **out) {
    SW_TRY(sw_jinja_descend(parser));
    SW_TRY(parse_logic(parser, true, out));
    while (with_condition && next_is_name(parser, "if")) {
        struct sw_jinja_node *node;
        SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_CONDITION, &node));
        parser->token++;
        node->part[1] = *out;
        SW_TRY(parse_logic(parser, true, &node->part[0]));
        if (sw_jinja_skip(parser, SW_JINJA_TOKEN_NAME, "else"))
            SW_TRY(sw_jinja_parse_expression(parser, true, &node->part[2]));
        *out = node;
    }
    parser->depth--;
    return SW_OK;
}

sw_status sw_jinja_parse_tuple(struct sw_jinja_parser *parser, bool with_condition, struct sw_jinja_node **out) {
    struct sw_jinja_node *tuple, *more;
    SW_TRY(sw_jinja_parse_expression(parser, with_condition, out));
    if (!next_is_operator(parser, ","))
        return SW_OK;
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_TUPLE, &tuple));
    SW_TRY(sw_jinja_add_child(parser, tuple, *out));
    while (skip_operator(parser, ",")) {
        if (next_is_operator(parser, ")") || parser->token->kind == SW_JINJA_TOKEN_BLOCK_END ||
            parser->token->kind == SW_JINJA_TOKEN_OUTPUT_END)
            break;
        SW_TRY(sw_jinja_parse_expression(parser, with_condition, &more));
        SW_TRY(sw_jinja_add_child(parser, tuple, more));
    }
    *out = tuple;
    return SW_OK;
}
