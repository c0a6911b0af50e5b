/* Parses templates: tokens, expressions, statements.
 *
 * A recursive descent with one function per level of precedence follows Jinja's own grammar. A construct that this
 * subset lacks is refused by name and line when the template is parsed, not in the middle of a chat.
 *
 * A template comes from outside. Depth and numbers of nodes are bounded, so a hostile one cannot exhaust the stack or
 * the memory. */
#include "text/jinja/run.h"
#include "text/unicode.h"

#include <ctype.h>
#include <string.h>

/* Tokens of a template. White space around tags is treated as Jinja does with trim_blocks and lstrip_blocks: a line end
 * after a block, and spaces between a line's beginning and a block, are not text. */

struct lexer {
    struct sw_jinja_arena *arena;
    struct sw_text source;
    size_t at;
    int line;
    int open;         /* brackets open in the tag */
    bool line_starts; /* what was read last ended with a line end */
    struct sw_jinja_token *token;
    size_t count, room;
};

static char peek(const struct lexer *lexer, size_t ahead) {
    return lexer->at + ahead < lexer->source.bytes ? lexer->source.data[lexer->at + ahead] : '\0';
}

static void advance(struct lexer *lexer, size_t bytes) {
    for (; bytes > 0; bytes--)
        lexer->line += lexer->source.data[lexer->at++] == '\n';
}

static sw_status put(struct lexer *lexer, struct sw_jinja_token token) {
    if (lexer->count == lexer->room) {
        const size_t room = lexer->room * 2 + 64;
        struct sw_jinja_token *grown;
        SW_TRY(sw_jinja_take(lexer->arena, room * sizeof *grown, &grown));
        for (size_t i = 0; i < lexer->count; i++)
            grown[i] = lexer->token[i];
        lexer->token = grown;
        lexer->room = room;
    }
    token.line = lexer->line;
    lexer->token[lexer->count++] = token;
    return SW_OK;
}

/* Copies a source with single-character line ends, and without the last one. */
static sw_status normalize(struct sw_jinja_arena *arena, struct sw_text source, struct sw_text *out) {
    char *copy;
    size_t bytes = 0;
    SW_TRY(sw_jinja_take(arena, source.bytes + 1, &copy));
    for (size_t i = 0; i < source.bytes; i++) {
        if (source.data[i] == '\r' && i + 1 < source.bytes && source.data[i + 1] == '\n')
            continue;
        copy[bytes++] = (char)(source.data[i] == '\r' ? '\n' : source.data[i]);
    }
    if (bytes > 0 && copy[bytes - 1] == '\n')
        bytes--;
    *out = (struct sw_text){copy, bytes};
    return SW_OK;
}

static size_t space_bytes(struct sw_text text) {
    return text.bytes - sw_jinja_strip(sw_jinja_string(text).string, NULL, true, false).bytes;
}

static struct sw_text rest(const struct lexer *lexer) {
    return (struct sw_text){lexer->source.data + lexer->at, lexer->source.bytes - lexer->at};
}

/* Removes the white space of a text before a tag. */
static struct sw_text trim_before(const struct lexer *lexer, struct sw_text text, char kind, char sign) {
    if (sign == '-')
        return sw_jinja_text_of(sw_jinja_strip(sw_jinja_string(text).string, NULL, false, true));
    if (sign == '+' || kind == '{')
        return text;
    const char *end = text.bytes > 0 ? memrchr(text.data, '\n', text.bytes) : NULL;
    const size_t begin = end != NULL ? (size_t)(end - text.data) + 1 : 0;
    if (begin == 0 && !lexer->line_starts)
        return text;
    const struct sw_text line = {text.data + begin, text.bytes - begin};
    return space_bytes(line) == line.bytes ? (struct sw_text){text.data, begin} : text;
}

/* Moves past the end of a tag or a comment, and past the white space that it removes. */
static void end_of_tag(struct lexer *lexer, char sign, char kind) {
    const size_t before = lexer->at;
    advance(lexer, sign != '\0' ? 3 : 2);
    if (sign == '-')
        advance(lexer, space_bytes(rest(lexer)));
    else if (sign == '\0' && kind != '}' && peek(lexer, 0) == '\n')
        advance(lexer, 1);
    lexer->line_starts = lexer->at > before && lexer->source.data[lexer->at - 1] == '\n';
}

static sw_status skip_comment(struct lexer *lexer) {
    const struct sw_text left = rest(lexer);
    const size_t end = sw_jinja_find(left, (struct sw_text){"#}", 2}, 0, false);
    if (end == SIZE_MAX)
        return sw_fail(SW_ERR_ARG, "line %d: a comment does not end", lexer->line);
    const char sign =
        (char)(end > 0 && (left.data[end - 1] == '-' || left.data[end - 1] == '+') ? left.data[end - 1] : 0);
    advance(lexer, end - (sign != 0));
    end_of_tag(lexer, sign, '#');
    return SW_OK;
}

static int digit_of(char byte) {
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    const int letter = tolower((unsigned char)byte);
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

static size_t put_utf8(uint32_t code, char *out) {
    if (code < 0x80)
        return *out = (char)code, 1;
    const size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    for (size_t i = more; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[more] | code);
    return more + 1;
}

/* Reads a character's number of `least` to `most` digits. */
static sw_status read_code(struct lexer *lexer, int base, int least, int most, char *out, size_t *bytes) {
    uint32_t code = 0;
    int digits = 0;
    for (; digits < most && digit_of(peek(lexer, 0)) >= 0 && digit_of(peek(lexer, 0)) < base; digits++) {
        code = code * (uint32_t)base + (uint32_t)digit_of(peek(lexer, 0));
        advance(lexer, 1);
    }
    if (digits < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: a string has an escape that is no character", lexer->line);
    *bytes += put_utf8(code, out + *bytes);
    return SW_OK;
}

/* Reads an escape after its backslash. An escape that Python does not know stays as it is. */
static sw_status read_escape(struct lexer *lexer, char *out, size_t *bytes) {
    static const char names[] = "nrtabfv\\'\"", meant[] = "\n\r\t\a\b\f\v\\'\"";
    const char name = peek(lexer, 0);
    const char *place = name != '\0' ? strchr(names, name) : NULL;
    if (name >= '0' && name <= '7')
        return read_code(lexer, 8, 1, 3, out, bytes);
    if (name == 'N')
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the escape \\N is not supported", lexer->line);
    if (name != '\0')
        advance(lexer, 1);
    switch (name) {
    case '\0':
    case '\n': return SW_OK;
    case 'x': return read_code(lexer, 16, 2, 2, out, bytes);
    case 'u': return read_code(lexer, 16, 4, 4, out, bytes);
    case 'U': return read_code(lexer, 16, 8, 8, out, bytes);
    default: break;
    }
    if (place == NULL)
        out[(*bytes)++] = '\\';
    out[(*bytes)++] = place != NULL ? meant[place - names] : name;
    return SW_OK;
}

static sw_status lex_string(struct lexer *lexer) {
    const char quote = peek(lexer, 0);
    char *copy;
    size_t end = lexer->at + 1, bytes = 0;
    while (end < lexer->source.bytes && lexer->source.data[end] != quote)
        end += lexer->source.data[end] == '\\' ? 2 : 1;
    if (end >= lexer->source.bytes)
        return sw_fail(SW_ERR_ARG, "line %d: a string does not end", lexer->line);
    SW_TRY(sw_jinja_take(lexer->arena, end - lexer->at + 4, &copy));
    advance(lexer, 1);
    while (lexer->at < end) {
        const char byte = peek(lexer, 0);
        advance(lexer, 1);
        if (byte == '\\')
            SW_TRY(read_escape(lexer, copy, &bytes));
        else
            copy[bytes++] = byte;
    }
    advance(lexer, 1);
    return put(lexer, (struct sw_jinja_token){.kind = SW_JINJA_TOKEN_STRING, .text = {copy, bytes}});
}

static sw_status lex_number(struct lexer *lexer) {
    enum { MOST_DIGITS = 18 };
    const bool behind_dot = lexer->at > 0 && lexer->source.data[lexer->at - 1] == '.';
    int64_t number = 0;
    int digits = 0;
    for (; isdigit((unsigned char)peek(lexer, 0)) || peek(lexer, 0) == '_'; advance(lexer, 1))
        if (peek(lexer, 0) != '_' && digits++ < MOST_DIGITS)
            number = number * 10 + (peek(lexer, 0) - '0');
    if (digits > MOST_DIGITS)
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: a number has more than %d digits", lexer->line, MOST_DIGITS);
    const bool is_real = peek(lexer, 0) == '.' && isdigit((unsigned char)peek(lexer, 1)) && !behind_dot;
    if (is_real || isalpha((unsigned char)peek(lexer, 0)))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: numbers that are no integers of decimal digits are not supported",
                       lexer->line);
    return put(lexer, (struct sw_jinja_token){.kind = SW_JINJA_TOKEN_NUMBER, .number = number});
}

static sw_status lex_operator(struct lexer *lexer) {
    static const char *const two[] = {"==", "!=", ">=", "<=", "//", "**"};
    size_t bytes = 1;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
        if (peek(lexer, 0) == two[i][0] && peek(lexer, 1) == two[i][1])
            bytes = 2;
    const struct sw_text text = {lexer->source.data + lexer->at, bytes};
    if (peek(lexer, 0) == '\0' || (bytes == 1 && strchr("+-*/%~[](){}<>=.:|,;", text.data[0]) == NULL))
        return sw_fail(SW_ERR_ARG, "line %d: a tag has the character '%.*s'", lexer->line,
                       (int)sw_jinja_char_bytes(rest(lexer)), text.data);
    lexer->open += strchr("([{", text.data[0]) != NULL;
    lexer->open -= strchr(")]}", text.data[0]) != NULL;
    if (lexer->open < 0)
        return sw_fail(SW_ERR_ARG, "line %d: '%c' closes nothing", lexer->line, text.data[0]);
    advance(lexer, bytes);
    return put(lexer, (struct sw_jinja_token){.kind = SW_JINJA_TOKEN_OPERATOR, .text = text});
}

/* Ends the tag if its end is next. `kind` is the first character of the end. */
static bool ends_tag(struct lexer *lexer, char kind) {
    const bool has_sign = peek(lexer, 0) == '-' || (kind == '%' && peek(lexer, 0) == '+');
    const char sign = (char)(has_sign ? peek(lexer, 0) : 0);
    if (lexer->open > 0 || peek(lexer, has_sign) != kind || peek(lexer, has_sign + 1U) != '}')
        return false;
    end_of_tag(lexer, sign, kind);
    return true;
}

static sw_status lex_tag(struct lexer *lexer, bool is_block) {
    SW_TRY(put(lexer,
               (struct sw_jinja_token){.kind = is_block ? SW_JINJA_TOKEN_BLOCK_BEGIN : SW_JINJA_TOKEN_OUTPUT_BEGIN}));
    lexer->open = 0;
    for (;;) {
        advance(lexer, space_bytes(rest(lexer)));
        const int line = lexer->line;
        const char byte = peek(lexer, 0);
        if (lexer->at == lexer->source.bytes)
            return sw_fail(SW_ERR_ARG, "line %d: a tag does not end", line);
        if (ends_tag(lexer, (char)(is_block ? '%' : '}')))
            return put(lexer, (struct sw_jinja_token){.kind = is_block ? SW_JINJA_TOKEN_BLOCK_END
                                                                       : SW_JINJA_TOKEN_OUTPUT_END});
        if (byte == '"' || byte == '\'') {
            SW_TRY(lex_string(lexer));
        } else if (isdigit((unsigned char)byte)) {
            SW_TRY(lex_number(lexer));
        } else if (isalpha((unsigned char)byte) || byte == '_') {
            const size_t begin = lexer->at;
            while (isalnum((unsigned char)peek(lexer, 0)) || peek(lexer, 0) == '_')
                advance(lexer, 1);
            const struct sw_text name = {lexer->source.data + begin, lexer->at - begin};
            SW_TRY(put(lexer, (struct sw_jinja_token){.kind = SW_JINJA_TOKEN_NAME, .text = name}));
        } else {
            SW_TRY(lex_operator(lexer));
        }
    }
}

/* Returns where the next tag or comment begins. */
static size_t find_tag(const struct lexer *lexer) {
    for (size_t at = lexer->at; at + 1 < lexer->source.bytes; at++)
        if (lexer->source.data[at] == '{' && memchr("%{#", lexer->source.data[at + 1], 3) != NULL)
            return at;
    return lexer->source.bytes;
}

sw_status sw_jinja_lex(struct sw_jinja_arena *arena, struct sw_text source, struct sw_jinja_token **out) {
    struct lexer lexer = {.arena = arena, .line = 1, .line_starts = true};
    SW_TRY(normalize(arena, source, &lexer.source));
    while (lexer.at < lexer.source.bytes) {
        const size_t tag = find_tag(&lexer);
        struct sw_text text = {lexer.source.data + lexer.at, tag - lexer.at};
        const bool ends = tag == lexer.source.bytes;
        const char kind = (char)(ends ? 0 : lexer.source.data[tag + 1]);
        const char next = (char)(tag + 2 < lexer.source.bytes ? lexer.source.data[tag + 2] : 0);
        const char sign = (char)(next == '-' || next == '+' ? next : 0);
        text = ends ? text : trim_before(&lexer, text, kind, sign);
        if (text.bytes > 0)
            SW_TRY(put(&lexer, (struct sw_jinja_token){.kind = SW_JINJA_TOKEN_TEXT, .text = text}));
        advance(&lexer, tag - lexer.at + (ends ? 0 : 2) + (sign != 0));
        if (!ends)
            SW_TRY(kind == '#' ? skip_comment(&lexer) : lex_tag(&lexer, kind == '%'));
    }
    SW_TRY(put(&lexer, (struct sw_jinja_token){.kind = SW_JINJA_TOKEN_END}));
    *out = lexer.token;
    return SW_OK;
}

/* Expressions, with Jinja's precedence: conditions, or, and, not, comparisons, + and -, ~, other arithmetic, signs, and
 * then what follows a value: members, calls, filters and tests. */

enum { MOST_DEPTH = 200, MOST_CHILDREN = 1 << 16 };

static sw_status jinja_new_node(struct sw_jinja_parser *parser, sw_jinja_node_kind kind, struct sw_jinja_node **out) {
    SW_TRY(sw_jinja_take(parser->arena, sizeof **out, out));
    (*out)->kind = kind;
    (*out)->line = parser->token->line;
    return SW_OK;
}

static sw_status jinja_add_child(struct sw_jinja_parser *parser, struct sw_jinja_node *node,
                                 struct sw_jinja_node *child) {
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

/* Enters a level of nesting, and refuses too many. The caller decrements `depth` afterwards. */
static sw_status jinja_descend(struct sw_jinja_parser *parser) {
    if (parser->depth++ < MOST_DEPTH)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED, "line %d: nested more than %d deep", parser->token->line, MOST_DEPTH);
}

static bool jinja_next_is(const struct sw_jinja_parser *parser, sw_jinja_token_kind kind, const char *text) {
    return parser->token->kind == kind && (text == NULL || sw_jinja_is(parser->token->text, text));
}

/* Skips a token if it is the next one. */
static bool jinja_skip(struct sw_jinja_parser *parser, sw_jinja_token_kind kind, const char *text) {
    const bool found = jinja_next_is(parser, kind, text);
    parser->token += found && kind != SW_JINJA_TOKEN_END;
    return found;
}

/* Refuses the next token. */
static sw_status jinja_unexpected(const struct sw_jinja_parser *parser) {
    static const char *const names[] = {"text",   "a tag",    "the end of a tag", "an output",   "the end of an output",
                                        "a name", "a string", "a number",         "an operator", "the end"};
    const struct sw_jinja_token *token = parser->token;
    const int bytes = token->text.bytes < 40 ? (int)token->text.bytes : 40;
    return sw_fail(SW_ERR_ARG, "line %d: unexpected %s%s%.*s", token->line, names[token->kind], bytes > 0 ? " " : "",
                   bytes, bytes > 0 ? token->text.data : "");
}

static sw_status jinja_expect(struct sw_jinja_parser *parser, sw_jinja_token_kind kind, const char *text) {
    return jinja_skip(parser, kind, text) ? SW_OK : jinja_unexpected(parser);
}

static bool skip_operator(struct sw_jinja_parser *parser, const char *text) {
    return jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, text);
}

static bool next_is_operator(const struct sw_jinja_parser *parser, const char *text) {
    return jinja_next_is(parser, SW_JINJA_TOKEN_OPERATOR, text);
}

static bool next_is_name(const struct sw_jinja_parser *parser, const char *text) {
    return jinja_next_is(parser, SW_JINJA_TOKEN_NAME, text);
}

static sw_status jinja_parse_expression(struct sw_jinja_parser *parser, bool with_condition,
                                        struct sw_jinja_node **out);

static sw_status parse_expression(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    return jinja_parse_expression(parser, true, out);
}

static sw_status new_constant(struct sw_jinja_parser *parser, struct sw_jinja_value value, struct sw_jinja_node **out) {
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_CONSTANT, out));
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
        SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_NAME, out));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (sw_jinja_is(name, refused[i]))
            return sw_fail(SW_ERR_UNSUPPORTED, "line %d: '%s' is not supported", parser->token->line, refused[i]);
    (*out)->name = name;
    parser->token++;
    return SW_OK;
}

/* Consecutive strings are one string. */
static sw_status parse_strings(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    struct sw_jinja_builder builder = {.arena = parser->arena};
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_CONSTANT, out));
    for (; parser->token->kind == SW_JINJA_TOKEN_STRING; parser->token++)
        SW_TRY(sw_jinja_build(&builder, sw_jinja_string(parser->token->text).string));
    (*out)->constant = sw_jinja_built(&builder);
    (*out)->constant.string.marks = NULL;
    return SW_OK;
}

/* Parses what is between the brackets of a list or a dict. */
static sw_status parse_members(struct sw_jinja_parser *parser, bool is_dict, struct sw_jinja_node **out) {
    const char *end = is_dict ? "}" : "]";
    struct sw_jinja_node *member;
    SW_TRY(jinja_new_node(parser, is_dict ? SW_JINJA_NODE_DICT : SW_JINJA_NODE_LIST, out));
    parser->token++;
    while (!skip_operator(parser, end)) {
        if ((*out)->children > 0)
            SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ","));
        if (skip_operator(parser, end))
            break;
        SW_TRY(parse_expression(parser, &member));
        SW_TRY(jinja_add_child(parser, *out, member));
        if (!is_dict)
            continue;
        SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ":"));
        SW_TRY(parse_expression(parser, &member));
        SW_TRY(jinja_add_child(parser, *out, member));
    }
    return SW_OK;
}

static sw_status jinja_parse_tuple(struct sw_jinja_parser *parser, bool with_condition, struct sw_jinja_node **out);

static sw_status parse_parentheses(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    parser->token++;
    if (skip_operator(parser, ")"))
        return jinja_new_node(parser, SW_JINJA_NODE_TUPLE, out);
    SW_TRY(jinja_parse_tuple(parser, true, out));
    return jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ")");
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
    return next_is_operator(parser, "(") ? parse_parentheses(parser, out) : jinja_unexpected(parser);
}

/* Parses the arguments of a call after its opening parenthesis, as children of a node. */
static sw_status parse_arguments(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    struct sw_jinja_node *argument, *value;
    while (!skip_operator(parser, ")")) {
        if (node->children > 0)
            SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ","));
        if (skip_operator(parser, ")"))
            break;
        if (next_is_operator(parser, "*") || next_is_operator(parser, "**"))
            return sw_fail(SW_ERR_UNSUPPORTED, "line %d: arguments with * are not supported", parser->token->line);
        const struct sw_jinja_token *name = parser->token;
        if (name->kind == SW_JINJA_TOKEN_NAME && name[1].kind == SW_JINJA_TOKEN_OPERATOR &&
            sw_jinja_is(name[1].text, "=")) {
            SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_KEYWORD, &argument));
            parser->token += 2;
            argument->name = name->text;
            SW_TRY(parse_expression(parser, &value));
            argument->part[0] = value;
        } else {
            SW_TRY(parse_expression(parser, &argument));
            if (node->children > 0 && node->child[node->children - 1]->kind == SW_JINJA_NODE_KEYWORD)
                return sw_fail(SW_ERR_ARG, "line %d: an argument without a name follows one with a name", name->line);
        }
        SW_TRY(jinja_add_child(parser, node, argument));
    }
    return SW_OK;
}

/* Parses one bound of a slice, which may be missing. */
static sw_status parse_bound(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    if (next_is_operator(parser, ":") || next_is_operator(parser, "]"))
        return SW_OK;
    return parse_expression(parser, out);
}

static sw_status parse_item(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_ITEM, out));
    (*out)->part[0] = of;
    parser->token++;
    if (next_is_operator(parser, "]"))
        return jinja_unexpected(parser);
    SW_TRY(parse_bound(parser, &(*out)->part[1]));
    for (int i = 2; i < 4 && skip_operator(parser, ":"); i++) {
        (*out)->kind = SW_JINJA_NODE_SLICE;
        SW_TRY(parse_bound(parser, &(*out)->part[i]));
    }
    return jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, "]");
}

static sw_status parse_attribute(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    parser->token++;
    const bool is_number = parser->token->kind == SW_JINJA_TOKEN_NUMBER;
    if (!is_number && parser->token->kind != SW_JINJA_TOKEN_NAME)
        return jinja_unexpected(parser);
    SW_TRY(jinja_new_node(parser, is_number ? SW_JINJA_NODE_ITEM : SW_JINJA_NODE_ATTRIBUTE, out));
    (*out)->part[0] = of;
    (*out)->name = parser->token->text;
    if (is_number)
        SW_TRY(new_constant(parser, sw_jinja_int(parser->token->number), &(*out)->part[1]));
    parser->token++;
    return SW_OK;
}

static sw_status parse_call(struct sw_jinja_parser *parser, struct sw_jinja_node *of, struct sw_jinja_node **out) {
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_CALL, out));
    (*out)->part[0] = of;
    parser->token++;
    return parse_arguments(parser, *out);
}

/* Parses members and calls after a value. */
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
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_FILTER, out));
    (*out)->part[0] = of;
    (*out)->name = parser->token->text;
    SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL));
    (*out)->operation = sw_jinja_find_filter((*out)->name);
    if ((*out)->operation < 0)
        return unknown(*out, "filter");
    /* Jinja escapes what is added to a text marked as safe; output at once is unchanged. */
    if (sw_jinja_is((*out)->name, "safe") && parser->token->kind != SW_JINJA_TOKEN_OUTPUT_END)
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the filter 'safe' within an expression is not supported",
                       (*out)->line);
    return skip_operator(parser, "(") ? parse_arguments(parser, *out) : SW_OK;
}

/* Tells whether a test's argument without parentheses is next, as in x is divisibleby 3. */
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
    const bool negates = jinja_skip(parser, SW_JINJA_TOKEN_NAME, "not");
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_TEST, out));
    (*out)->part[0] = of;
    (*out)->name = parser->token->text;
    SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL));
    (*out)->operation = sw_jinja_find_test((*out)->name);
    if ((*out)->operation < 0)
        return unknown(*out, "test");
    if (skip_operator(parser, "(")) {
        SW_TRY(parse_arguments(parser, *out));
    } else if (has_bare_argument(parser)) {
        SW_TRY(parse_primary(parser, &argument));
        SW_TRY(parse_members_of(parser, &argument));
        SW_TRY(jinja_add_child(parser, *out, argument));
    }
    if (!negates)
        return SW_OK;
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_NOT, &negated));
    negated->part[0] = *out;
    *out = negated;
    return SW_OK;
}

/* Parses filters, tests and calls after a value. */
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
        SW_TRY(jinja_descend(parser));
        SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_NEGATIVE, out));
        parser->token++;
        SW_TRY(parse_unary(parser, false, &(*out)->part[0]));
        parser->depth--;
    } else {
        SW_TRY(parse_primary(parser, out));
    }
    SW_TRY(parse_members_of(parser, out));
    return with_filters ? parse_filters(parser, out) : SW_OK;
}

/* Returns the operation of an operator at one level of precedence, or -1. */
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

/* Parses operands with operators of one level between them, left to right. */
static sw_status parse_arithmetic(struct sw_jinja_parser *parser, bool sums, struct sw_jinja_node **out) {
    SW_TRY(sums ? parse_joined(parser, out) : parse_unary(parser, true, out));
    if (!sums && (next_is_operator(parser, "/") || next_is_operator(parser, "**")))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the operator %.*s is not supported", parser->token->line,
                       (int)parser->token->text.bytes, parser->token->text.data);
    for (int operation; (operation = arithmetic_of(parser, sums)) >= 0;) {
        struct sw_jinja_node *node;
        SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_ARITHMETIC, &node));
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
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_JOIN, out));
    SW_TRY(jinja_add_child(parser, *out, first));
    while (skip_operator(parser, "~")) {
        SW_TRY(parse_arithmetic(parser, false, &more));
        SW_TRY(jinja_add_child(parser, *out, more));
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
    if (jinja_skip(parser, SW_JINJA_TOKEN_NAME, "in"))
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
            SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_COMPARE, &compared));
            compared->part[0] = *out;
            *out = compared;
        }
        SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_OPERAND, &operand));
        operand->operation = operation;
        SW_TRY(parse_arithmetic(parser, true, &operand->part[0]));
        SW_TRY(jinja_add_child(parser, compared, operand));
    }
    return SW_OK;
}

static sw_status parse_not(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    if (!next_is_name(parser, "not"))
        return parse_comparison(parser, out);
    SW_TRY(jinja_descend(parser));
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_NOT, out));
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
        SW_TRY(jinja_new_node(parser, is_or ? SW_JINJA_NODE_OR : SW_JINJA_NODE_AND, &node));
        parser->token++;
        node->part[0] = *out;
        SW_TRY(is_or ? parse_logic(parser, false, &node->part[1]) : parse_not(parser, &node->part[1]));
        *out = node;
    }
    return SW_OK;
}

static sw_status jinja_parse_expression(struct sw_jinja_parser *parser, bool with_condition,
                                        struct sw_jinja_node **out) {
    SW_TRY(jinja_descend(parser));
    SW_TRY(parse_logic(parser, true, out));
    while (with_condition && next_is_name(parser, "if")) {
        struct sw_jinja_node *node;
        SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_CONDITION, &node));
        parser->token++;
        node->part[1] = *out;
        SW_TRY(parse_logic(parser, true, &node->part[0]));
        if (jinja_skip(parser, SW_JINJA_TOKEN_NAME, "else"))
            SW_TRY(jinja_parse_expression(parser, true, &node->part[2]));
        *out = node;
    }
    parser->depth--;
    return SW_OK;
}

/* Parses an expression, or several with commas between them as a tuple. */
static sw_status jinja_parse_tuple(struct sw_jinja_parser *parser, bool with_condition, struct sw_jinja_node **out) {
    struct sw_jinja_node *tuple, *more;
    SW_TRY(jinja_parse_expression(parser, with_condition, out));
    if (!next_is_operator(parser, ","))
        return SW_OK;
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_TUPLE, &tuple));
    SW_TRY(jinja_add_child(parser, tuple, *out));
    while (skip_operator(parser, ",")) {
        if (next_is_operator(parser, ")") || parser->token->kind == SW_JINJA_TOKEN_BLOCK_END ||
            parser->token->kind == SW_JINJA_TOKEN_OUTPUT_END)
            break;
        SW_TRY(jinja_parse_expression(parser, with_condition, &more));
        SW_TRY(jinja_add_child(parser, tuple, more));
    }
    *out = tuple;
    return SW_OK;
}

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
    SW_TRY(jinja_new_node(parser, is_text ? SW_JINJA_NODE_TEXT : SW_JINJA_NODE_OUTPUT, out));
    (*out)->constant = sw_jinja_string(parser->token->text);
    parser->token++;
    if (is_text)
        return SW_OK;
    SW_TRY(jinja_parse_tuple(parser, true, &(*out)->part[0]));
    return jinja_expect(parser, SW_JINJA_TOKEN_OUTPUT_END, NULL);
}

/* Parses statements up to a tag with one of the names; without names, to the end of the template. */
static sw_status parse_body(struct sw_jinja_parser *parser, const char *const *ends, struct sw_jinja_node **out) {
    SW_TRY(jinja_descend(parser));
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_BODY, out));
    while (!ends_body(parser, ends)) {
        struct sw_jinja_node *child;
        if (parser->token->kind == SW_JINJA_TOKEN_END && *ends == NULL)
            break;
        if (parser->token->kind == SW_JINJA_TOKEN_END)
            return sw_fail(SW_ERR_ARG, "line %d: there is no {%% %s %%}", (*out)->line, ends[0]);
        SW_TRY(parser->token->kind == SW_JINJA_TOKEN_BLOCK_BEGIN ? parse_tag(parser, &child)
                                                                 : parse_text_or_output(parser, &child));
        SW_TRY(jinja_add_child(parser, *out, child));
    }
    parser->depth--;
    return SW_OK;
}

static sw_status end_tag(struct sw_jinja_parser *parser) {
    return jinja_expect(parser, SW_JINJA_TOKEN_BLOCK_END, NULL);
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
        SW_TRY(jinja_parse_tuple(parser, false, &condition));
        SW_TRY(end_tag(parser));
        SW_TRY(parse_body(parser, ends, &body));
        SW_TRY(jinja_add_child(parser, node, condition));
        SW_TRY(jinja_add_child(parser, node, body));
        parser->token++;
        more = jinja_skip(parser, SW_JINJA_TOKEN_NAME, "elif");
    }
    if (jinja_skip(parser, SW_JINJA_TOKEN_NAME, "else")) {
        struct sw_jinja_node *body;
        SW_TRY(end_tag(parser));
        SW_TRY(parse_closed_body(parser, "endif", &body));
        return jinja_add_child(parser, node, body);
    }
    SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_NAME, "endif"));
    return end_tag(parser);
}

static sw_status parse_target_name(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_NAME, out));
    (*out)->name = parser->token->text;
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (jinja_next_is(parser, SW_JINJA_TOKEN_NAME, constants[i]))
            return jinja_unexpected(parser);
    return jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL);
}

/* Parses the target of an assignment: a name, several, or, with `with_member`, the member of a namespace. */
static sw_status parse_target(struct sw_jinja_parser *parser, bool with_member, struct sw_jinja_node **out) {
    struct sw_jinja_node *node, *more;
    const bool in_parentheses = jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, "(");
    SW_TRY(parse_target_name(parser, out));
    if (with_member && jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, ".")) {
        SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_ATTRIBUTE, &node));
        node->part[0] = *out;
        node->name = parser->token->text;
        *out = node;
        return jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL);
    }
    if (jinja_next_is(parser, SW_JINJA_TOKEN_OPERATOR, ",")) {
        SW_TRY(jinja_new_node(parser, SW_JINJA_NODE_TUPLE, &node));
        SW_TRY(jinja_add_child(parser, node, *out));
        while (jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, ",")) {
            SW_TRY(parse_target_name(parser, &more));
            SW_TRY(jinja_add_child(parser, node, more));
        }
        *out = node;
    }
    return in_parentheses ? jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ")") : SW_OK;
}

static sw_status parse_for(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    static const char *const ends[] = {"endfor", "else", NULL};
    struct sw_jinja_node *otherwise;
    SW_TRY(parse_target(parser, false, &node->part[0]));
    SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_NAME, "in"));
    SW_TRY(jinja_parse_tuple(parser, false, &node->part[1]));
    if (jinja_skip(parser, SW_JINJA_TOKEN_NAME, "if"))
        SW_TRY(jinja_parse_expression(parser, true, &node->part[2]));
    if (jinja_next_is(parser, SW_JINJA_TOKEN_NAME, "recursive"))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: loops that are recursive are not supported", node->line);
    SW_TRY(end_tag(parser));
    parser->loops++;
    SW_TRY(parse_body(parser, ends, &node->part[3]));
    parser->loops--;
    parser->token++;
    if (jinja_skip(parser, SW_JINJA_TOKEN_NAME, "endfor"))
        return end_tag(parser);
    parser->token++;
    SW_TRY(end_tag(parser));
    SW_TRY(parse_closed_body(parser, "endfor", &otherwise));
    return jinja_add_child(parser, node, otherwise);
}

static sw_status parse_set(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    SW_TRY(parse_target(parser, true, &node->part[0]));
    if (jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, "=")) {
        SW_TRY(jinja_parse_tuple(parser, true, &node->part[1]));
        return end_tag(parser);
    }
    if (jinja_next_is(parser, SW_JINJA_TOKEN_OPERATOR, "|"))
        return sw_fail(SW_ERR_UNSUPPORTED, "line %d: set with a filter and a body is not supported", node->line);
    node->kind = SW_JINJA_NODE_SET_BLOCK;
    SW_TRY(end_tag(parser));
    return parse_closed_body(parser, "endset", &node->part[1]);
}

static sw_status parse_macro(struct sw_jinja_parser *parser, struct sw_jinja_node *node) {
    const int loops = parser->loops;
    node->name = parser->token->text;
    SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_NAME, NULL));
    SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, "("));
    while (!jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, ")")) {
        struct sw_jinja_node *parameter;
        if (node->children > 0)
            SW_TRY(jinja_expect(parser, SW_JINJA_TOKEN_OPERATOR, ","));
        SW_TRY(parse_target_name(parser, &parameter));
        if (jinja_skip(parser, SW_JINJA_TOKEN_OPERATOR, "=")) {
            parameter->kind = SW_JINJA_NODE_KEYWORD;
            SW_TRY(jinja_parse_expression(parser, true, &parameter->part[0]));
        }
        SW_TRY(jinja_add_child(parser, node, parameter));
    }
    SW_TRY(end_tag(parser));
    parser->loops = 0;
    SW_TRY(parse_closed_body(parser, "endmacro", &node->part[0]));
    parser->loops = loops;
    return SW_OK;
}

/* Parses a tag after its name. */
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
        return jinja_unexpected(parser);
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        if (!sw_jinja_is(name, tags[i].name))
            continue;
        SW_TRY(jinja_new_node(parser, tags[i].kind, out));
        parser->token++;
        return parse_statement(parser, *out);
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "line %d: the tag '%.*s' is not supported here", parser->token->line,
                   name.bytes < 40 ? (int)name.bytes : 40, name.data);
}

sw_status sw_jinja_parse_statements(struct sw_jinja_parser *parser, struct sw_jinja_node **out) {
    return parse_body(parser, (const char *const[]){NULL}, out);
}
