/* Templates as trees. */
#ifndef SW_TEXT_JINJA_SYNTAX_H
#define SW_TEXT_JINJA_SYNTAX_H

#include "text/jinja/value.h"

typedef enum {
    SW_JINJA_TOKEN_TEXT, /* outside of tags */
    SW_JINJA_TOKEN_BLOCK_BEGIN,
    SW_JINJA_TOKEN_BLOCK_END,
    SW_JINJA_TOKEN_OUTPUT_BEGIN,
    SW_JINJA_TOKEN_OUTPUT_END,
    SW_JINJA_TOKEN_NAME,
    SW_JINJA_TOKEN_STRING,
    SW_JINJA_TOKEN_NUMBER,
    SW_JINJA_TOKEN_OPERATOR,
    SW_JINJA_TOKEN_END
} sw_jinja_token_kind;

struct sw_jinja_token {
    sw_jinja_token_kind kind;
    int line;
    struct sw_text text; /* of a string: without quotes, with escapes resolved */
    int64_t number;
};

/* Splits a template into tokens; the last one is SW_JINJA_TOKEN_END. Everything is in the arena. */
sw_status sw_jinja_lex(struct sw_jinja_arena *arena, struct sw_text source, struct sw_jinja_token **out);

typedef enum {
    /* Expressions. */
    SW_JINJA_NODE_CONSTANT,
    SW_JINJA_NODE_NAME,
    SW_JINJA_NODE_LIST,
    SW_JINJA_NODE_TUPLE,
    SW_JINJA_NODE_DICT,      /* children: key and value in turn */
    SW_JINJA_NODE_ATTRIBUTE, /* part[0].name */
    SW_JINJA_NODE_ITEM,      /* part[0][part[1]] */
    SW_JINJA_NODE_SLICE,     /* part[0][part[1]:part[2]:part[3]]; NULL: missing */
    SW_JINJA_NODE_CALL,      /* part[0](children) */
    SW_JINJA_NODE_FILTER,    /* part[0] | name(children) */
    SW_JINJA_NODE_TEST,      /* part[0] is name(children) */
    SW_JINJA_NODE_KEYWORD,   /* name=part[0], among the children of calls */
    SW_JINJA_NODE_NOT,
    SW_JINJA_NODE_NEGATIVE,
    SW_JINJA_NODE_AND,
    SW_JINJA_NODE_OR,
    SW_JINJA_NODE_ARITHMETIC, /* part[0] operation part[1] */
    SW_JINJA_NODE_JOIN,       /* children, joined by ~ */
    SW_JINJA_NODE_COMPARE,    /* part[0], then the children's operations */
    SW_JINJA_NODE_OPERAND,    /* operation part[0] */
    SW_JINJA_NODE_CONDITION,  /* part[1] if part[0] else part[2] (NULL: missing) */
    /* Statements. */
    SW_JINJA_NODE_BODY, /* children */
    SW_JINJA_NODE_TEXT, /* constant */
    SW_JINJA_NODE_OUTPUT,
    SW_JINJA_NODE_IF,        /* children: conditions and bodies in turn, then optionally the body of else */
    SW_JINJA_NODE_FOR,       /* for part[0] in part[1] if part[2]; part[3]: body; children[0]: body of else */
    SW_JINJA_NODE_SET,       /* part[0] = part[1] */
    SW_JINJA_NODE_SET_BLOCK, /* part[0] = the rendering of the body part[1] */
    SW_JINJA_NODE_MACRO,     /* name; children: parameters, NAMEs or KEYWORDs with a default; part[0]: body */
    SW_JINJA_NODE_BREAK,
    SW_JINJA_NODE_CONTINUE,
    SW_JINJA_NODE_GENERATION /* part[0]: body */
} sw_jinja_node_kind;

typedef enum {
    SW_JINJA_ADD,
    SW_JINJA_SUBTRACT,
    SW_JINJA_MULTIPLY,
    SW_JINJA_DIVIDE_DOWN,
    SW_JINJA_MODULO,
    SW_JINJA_EQUAL,
    SW_JINJA_UNEQUAL,
    SW_JINJA_LESS,
    SW_JINJA_LESS_OR_EQUAL,
    SW_JINJA_GREATER,
    SW_JINJA_GREATER_OR_EQUAL,
    SW_JINJA_IN,
    SW_JINJA_NOT_IN
} sw_jinja_operation;

struct sw_jinja_node {
    sw_jinja_node_kind kind;
    int line;
    int operation; /* of arithmetic and operands; of filters and tests: their index */
    struct sw_jinja_value constant;
    struct sw_text name;
    struct sw_jinja_node *part[4];
    struct sw_jinja_node **child; /* [children] */
    size_t children;
};

/* A template while it is parsed, token by token. */
struct sw_jinja_parser {
    struct sw_jinja_arena *arena;
    const struct sw_jinja_token *token; /* the next one */
    int depth, loops;                   /* nesting of nodes; number of loops around the statement */
};

sw_status sw_jinja_parse_statements(struct sw_jinja_parser *parser, struct sw_jinja_node **out);

/* Return the index of a filter, a test or a global function, or -1. */
int sw_jinja_find_filter(struct sw_text name);
int sw_jinja_find_test(struct sw_text name);
int sw_jinja_find_function(struct sw_text name);

#endif
