/* Tokens of a template. White space around tags goes as Jinja has it with trim_blocks and lstrip_blocks: a line end
 * behind a block, and spaces between a line's beginning and a block, are not text. */
#include "text/jinja/syntax.h"
#include "text/utf8.h"

#include <ctype.h>
#include <string.h>

struct lexer {
    struct sw_jinja_arena *arena;
    struct sw_text source;
    size_t at;
    int line;
    int open;         /* brackets that are open in the tag */
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

/* Copies a source with line ends of one character, and without the last one. */
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

/* Takes the white space off a text that stands before a tag. */
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

/* Goes behind the end of a tag or a comment, and behind the white space that it takes. */
static void end_tag(struct lexer *lexer, char sign, char kind) {
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
    end_tag(lexer, sign, '#');
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

/* Reads a character's number of `most` digits (`least` of them at the least). */
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

/* Reads an escape behind its backslash. One that Python does not know stays as it is. */
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

/* Ends the tag where its end is next. `kind` is the first character of the end. */
static bool ends_tag(struct lexer *lexer, char kind) {
    const bool has_sign = peek(lexer, 0) == '-' || (kind == '%' && peek(lexer, 0) == '+');
    const char sign = (char)(has_sign ? peek(lexer, 0) : 0);
    if (lexer->open > 0 || peek(lexer, has_sign) != kind || peek(lexer, has_sign + 1U) != '}')
        return false;
    end_tag(lexer, sign, kind);
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
