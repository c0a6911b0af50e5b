/* Statements. */
#include "text/jinja/syntax.h"

#include <string.h>

/* Tells whether a tag with one of these names is next. */
static bool ends_body(const struct sw_jinja_parser *parser, const char *const *ends) {
    if (parser->token->kind != SW_JINJA_TOKEN_BLOCK_BEGIN || parser->token[1].kind != SW_JINJA_TOKEN_NAME)
        return false;
    for (; *ends != NULL; ends++)
        if (sw_jinja_is(parser->token[1].text, *ends))
            return true;
    return false;
}

static sw_status parse_tag(struct sw_jinja_parser *parser, struct sw_jinja_node **out);

static sw_status parse_text_or_output(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    const bool is_text = parser->token->kind == SW_JINJA_TOKEN_TEXT;
    SW_TRY(sw_jinja_new_node(parser, is_text ? SW_JINJA_NODE_TEXT : SW_JINJA_NODE_OUTPUT, out));
    (*out)->constant = sw_jinja_string(parser->token->text);
    parser->token++;
    if (is_text)
        return SW_OK;
    SW_TRY(sw_jinja_parse_tuple(parser, true, &(*out)->part[0]));
    return sw_jinja_expect(parser, SW_JINJA_TOKEN_OUTPUT_END, NULL);
}

/* Parses statements up to a tag with one of the names, or to the end of the template where `ends` has none. */
static sw_status parse_body(struct sw_jinja_parser *parser, const char *const *ends, struct sw_jinja_node **out) {
    SW_TRY(sw_jinja_descend(parser));
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_BODY, out));
    while (!ends_body(parser, ends)) {
        struct sw_jinja_node *child;
        if (parser->token->kind == SW_JINJA_TOKEN_END && *ends == NULL)
            break;
        if (parser->token->kind == SW_JINJA_TOKEN_END)
            return sw_fail(SW_ERR_ARG, "line %d: there is no {%% %s %%}", (*out)->line, ends[0]);
        SW_TRY(parser->token->kind == SW_JINJA_TOKEN_BLOCK_BEGIN ? parse_tag(parser, &child)
                                                                 : parse_text_or_output(parser, &child));
        SW_TRY(sw_jinja_add_child(parser, *out, child));
    }
    parser->depth--;
    return SW_OK;
}

static sw_status end_tag(struct sw_jinja_parser *parser) {
    return sw_jinja_expect(parser, SW_JINJA_TOKEN_BLOCK_END, NULL);
}

/* Parses a body and the tag that ends it. */
static sw_status parse_closed_body(struct sw_jinja_parser *parser, const char *end, struct sw_jinja_node **out) {
    SW_TRY(parse_body(parser, (const char *const[]){end, NULL}, out));
    parser->token += 2;
    return end_tag(parser);
}

static sw_status parse_if(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    for (bool more = true; more;) {
        struct sw_jinja_node *condition, *body;
        SW_TRY(sw_jinja_parse_tuple(parser, false, &condition));
        SW_TRY(end_tag(parser));
        SW_TRY(parse_body(parser, ends, &body));
        SW_TRY(sw_jinja_add_child(parser, node, condition));
        SW_TRY(sw_jinja_add_child(parser, node, body));
        parser->token++;
        more = sw_jinja_skip(parser, SW_JINJA_TOKEN_NAME, "elif");
    }
    if (sw_jinja_skip(parser, SW_JINJA_TOKEN_NAME, "else")) {
        struct sw_jinja_node *body;
        SW_TRY(end_tag(parser));
        SW_TRY(parse_closed_body(parser, "endif", &body));
        return sw_jinja_add_child(parser, node, body);
    }
    SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_NAME, "endif"));
    return end_tag(parser);
}

static sw_status parse_target_name(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_NAME, out));
    (*out)->name = parser->token->text;
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (sw_jinja_next_is(parser, SW_JINJA_TOKEN_NAME, constants[i]))
            return sw_jinja_unexpected(parser);
    return sw_jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL);
}

/* Parses what is assigned to: a name, several, or with `with_member` the member of a namespace. */
static sw_status parse_target(struct sw_jinja_parser *parser, bool with_member, struct sw_jinja_node **out) {
    struct sw_jinja_node *node, *more;
    const bool in_parentheses = sw_jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, "(");
    SW_TRY(parse_target_name(parser, out));
    if (with_member && sw_jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, ".")) {
        SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_ATTRIBUTE, &node));
        node->part[0] = *out;
        node->name = parser->token->text;
        *out = node;
        return sw_jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL);
    }
    if (sw_jinja_next_is(parser, SW_JINJA_TOKEN_OPERATOR, ",")) {
        SW_TRY(sw_jinja_new_node(parser, SW_JINJA_NODE_TUPLE, &node));
        SW_TRY(sw_jinja_add_child(parser, node, *out));
        while (sw_jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, ",")) {
            SW_TRY(parse_target_name(parser, &more));
            SW_TRY(sw_jinja_add_child(parser, node, more));
        }
        *out = node;
    }
    return in_parentheses ? sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ")") : SW_OK;
}

static sw_status parse_for(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct sw_jinja_node *otherwise;
    SW_TRY(parse_target(parser, false, &node->part[0]));
    SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_NAME, "in"));
    SW_TRY(sw_jinja_parse_tuple(parser, false, &node->part[1]));
    if (sw_jinja_skip(parser, SW_JINJA_TOKEN_NAME, "if"))
        SW_TRY(sw_jinja_parse_expression(parser, true, &node->part[2]));
    if (sw_jinja_next_is(parser, SW_JINJA_TOKEN_NAME, "recursive"))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: loops that are recursive are not supported", node->line);
    SW_TRY(end_tag(parser));
    parser->loops++;
    SW_TRY(parse_body(parser, ends, &node->part[3]));
    parser->loops--;
    parser->token++;
    if (sw_jinja_skip(parser, SW_JINJA_TOKEN_NAME, "endfor"))
        return end_tag(parser);
    parser->token++;
    SW_TRY(end_tag(parser));
    SW_TRY(parse_closed_body(parser, "endfor", &otherwise));
    return sw_jinja_add_child(parser, node, otherwise);
}

static sw_status parse_set(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    SW_TRY(parse_target(parser, true, &node->part[0]));
    if (sw_jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, "=")) {
        SW_TRY(sw_jinja_parse_tuple(parser, true, &node->part[1]));
        return end_tag(parser);
    }
    if (sw_jinja_next_is(parser, SW_JINJA_TOKEN_OPERATOR, "|"))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: set with a filter and a body is not supported", node->line);
    node->kind = SW_JINJA_NODE_SET_BLOCK;
    SW_TRY(end_tag(parser));
    return parse_closed_body(parser, "endset", &node->part[1]);
}

static sw_status parse_macro(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    const int loops = parser->loops;
    node->name = parser->token->text;
    SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL));
    SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, "("));
    while (!sw_jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, ")")) {
        struct sw_jinja_node *parameter;
        if (node->children > 0)
            SW_TRY(sw_jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ","));
        SW_TRY(parse_target_name(parser, &parameter));
        if (sw_jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, "=")) {
            parameter->kind = SW_JINJA_NODE_KEYWORD;
            SW_TRY(sw_jinja_parse_expression(parser, true, &parameter->part[0]));
        }
        SW_TRY(sw_jinja_add_child(parser, node, parameter));
    }
    SW_TRY(end_tag(parser));
    parser->loops = 0;
    SW_TRY(parse_closed_body(parser, "endmacro", &node->part[0]));
    parser->loops = loops;
    return SW_OK;
}

/* Parses a tag behind its name. */
static sw_status parse_statement(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    switch (node->kind) {
    case SW_JINJA_NODE_IF: return parse_if(parser, node);
    case SW_JINJA_NODE_FOR: return parse_for(parser, node);
    case SW_JINJA_NODE_SET: return parse_set(parser, node);
    case SW_JINJA_NODE_MACRO: return parse_macro(parser, node);
    case SW_JINJA_NODE_GENERATION:
        SW_TRY(end_tag(parser));
        return parse_closed_body(parser, "endgeneration", &node->part[0]);
    default: break;
    }
    if (parser->loops == 0)
        return sw_fail(SW_ERR_ARG, "line %d: break and continue stand within loops", node->line);
    return end_tag(parser);
}

static sw_status parse_tag(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    static const struct {
        const char *name;
        sw_jinja_node_kind kind;
    } tags[] = {{"if", SW_JINJA_NODE_IF},
                {"for", SW_JINJA_NODE_FOR},
                {"set", SW_JINJA_NODE_SET},
                {"macro", SW_JINJA_NODE_MACRO},
                {"break", SW_JINJA_NODE_BREAK},
                {"continue", SW_JINJA_NODE_CONTINUE},
                {"generation", SW_JINJA_NODE_GENERATION}};
    parser->token++;
    const struct sw_text name = parser->token->text;
    if (parser->token->kind != SW_JINJA_TOKEN_NAME)
        return sw_jinja_unexpected(parser);
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        if (!sw_jinja_is(name, tags[i].name))
            continue;
        SW_TRY(sw_jinja_new_node(parser, tags[i].kind, out));
        parser->token++;
        return parse_statement(parser, *out);
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the tag '%.*s' is not supported here", parser->token->line,
                   name.bytes < 40 ? (int)name.bytes : 40, name.data);
}

sw_status sw_jinja_parse_statements(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    return parse_body(parser, (const char *const[]){NULL}, out);
}
