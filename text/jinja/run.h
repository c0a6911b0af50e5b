/* A rendering in progress. */
#ifndef SW_TEXT_JINJA_RUN_H
#define SW_TEXT_JINJA_RUN_H

#include "text/jinja/value.h"

/* Templates as trees. */
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

struct sw_jinja_scope {
    struct sw_jinja_scope *parent; /* NULL: this scope has the global variables */
    struct sw_jinja_bound {
        struct sw_text name;
        struct sw_jinja_value value;
    } * bound;
    size_t count, room;
};

struct sw_jinja_loop {
    const struct sw_jinja_list *list;
    size_t index;
};

struct sw_jinja_macro {
    const struct sw_jinja_node *node;
    struct sw_jinja_scope *scope; /* in which it was defined */
};

enum { SW_JINJA_MOST_STEPS = 1 << 24 };

struct sw_jinja_arguments {
    struct sw_jinja_value *value; /* [count] */
    size_t count;
    struct sw_jinja_dict *named;
};

struct sw_jinja_run {
    struct sw_jinja_arena arena;
    struct sw_jinja_scope *scope;
    struct sw_jinja_builder *out;
    int64_t steps; /* steps left */
    int depth;     /* nesting of evaluations and statements */
    bool has_line; /* the error message already has its line */
    /* Runs the statements of a macro. */
    sw_status (*call_macro)(struct sw_jinja_run *run, const struct sw_jinja_macro *macro,
                            const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out);
};

enum { SW_JINJA_MOST_PARAMETERS = 3 };
/* The parameters of a function, filter, test or method. */
struct sw_jinja_signature {
    const char *name;
    const char *parameter[SW_JINJA_MOST_PARAMETERS]; /* ended by NULL */
    int least;                                       /* number of required arguments */
};
/* Arguments by parameter. given[i]: there is one. */
struct sw_jinja_bound_arguments {
    struct sw_jinja_value value[SW_JINJA_MOST_PARAMETERS];
    bool given[SW_JINJA_MOST_PARAMETERS];
};
sw_status sw_jinja_bind(const struct sw_jinja_signature *signature, const struct sw_jinja_arguments *arguments,
                        struct sw_jinja_bound_arguments *out);

/* Takes steps from those left: one, plus more for work on `amount` bytes or members. */
sw_status sw_jinja_charge(struct sw_jinja_run *run, size_t amount);

/* Return value.name and value[key]. A missing member is undefined. */
sw_status sw_jinja_get_attribute(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_text name,
                                 struct sw_jinja_value *out);
sw_status sw_jinja_get_item(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_jinja_value key,
                            struct sw_jinja_value *out);
/* Returns the members of a value that can be iterated: characters of strings, keys of dicts. */
sw_status sw_jinja_iterate(struct sw_jinja_run *run, struct sw_jinja_value of, const struct sw_jinja_list **out);
sw_status sw_jinja_length(struct sw_jinja_run *run, struct sw_jinja_value of, int64_t *out);
sw_status sw_jinja_calculate(struct sw_jinja_run *run, int operation, struct sw_jinja_value left,
                             struct sw_jinja_value right, struct sw_jinja_value *out);
sw_status sw_jinja_compare(struct sw_jinja_run *run, int operation, struct sw_jinja_value left,
                           struct sw_jinja_value right, bool *out);

sw_status sw_jinja_filter(struct sw_jinja_run *run, int filter, struct sw_jinja_value value,
                          const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out);
sw_status sw_jinja_test(struct sw_jinja_run *run, int test, struct sw_jinja_value value,
                        const struct sw_jinja_arguments *arguments, bool *out);
sw_status sw_jinja_call_function(struct sw_jinja_run *run, int function, const struct sw_jinja_arguments *arguments,
                                 struct sw_jinja_value *out);
sw_status sw_jinja_call_method(struct sw_jinja_run *run, const struct sw_jinja_method *method,
                               const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out);

/* The work of methods of strings, and of filters with the same names. */
sw_status sw_jinja_replace(struct sw_jinja_run *run, struct sw_jinja_string in, struct sw_jinja_string old,
                           struct sw_jinja_string with, int64_t most, struct sw_jinja_value *out);
sw_status sw_jinja_change_case(struct sw_jinja_run *run, struct sw_jinja_string in, const char *name,
                               struct sw_jinja_value *out);
sw_status sw_jinja_join_list(struct sw_jinja_run *run, struct sw_jinja_string between, const struct sw_jinja_list *list,
                             struct sw_jinja_value *out);

#endif
