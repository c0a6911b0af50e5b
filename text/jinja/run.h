/* A rendering in progress. */
#ifndef SW_TEXT_JINJA_RUN_H
#define SW_TEXT_JINJA_RUN_H

#include "text/jinja/syntax.h"

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

/* Return value.name and value[key]. What does not exist is undefined. */
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
