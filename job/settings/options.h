/* The flags of a command. One table drives parsing, defaults, --help and the settings in run.json. */
#ifndef SW_JOB_SETTINGS_OPTIONS_H
#define SW_JOB_SETTINGS_OPTIONS_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The kind of a flag: the form of its text, and the type of its member. */
typedef enum {
    SW_OPTION_FLAG,     /* bool: given or not */
    SW_OPTION_STRING,   /* char *: owned; NULL: no value */
    SW_OPTION_INT,      /* int64_t */
    SW_OPTION_REAL,     /* double */
    SW_OPTION_SIZE,     /* int64_t: bytes, written "512MiB" */
    SW_OPTION_DURATION, /* int64_t: seconds, written "90", "90s", "15m", "15min" or "2h" */
    SW_OPTION_EVERY,    /* struct sw_option_every: written "100", "10m" or, for both, "100,10m" */
    SW_OPTION_CHOICE,   /* int: index in `choices` */
    SW_OPTION_LIST,     /* struct sw_option_list: the flag may be repeated, one value each time */
    SW_OPTION_MANY,     /* struct sw_option_list: also takes all values up to the next flag */
} sw_option_kind;

/* How often something is done: after `steps` steps or `seconds` seconds, whichever comes first. 0: that one does not
 * count. */
struct sw_option_every {
    int64_t steps, seconds;
};

struct sw_option_list {
    char **items;
    int count;
};

sw_status sw_option_list_add(struct sw_option_list *list, const char *text);
void sw_option_list_release(struct sw_option_list *list);
/* Returns the texts as an array; NULL: one is not UTF-8. The caller releases it. */
json_t *sw_option_list_to_json(const struct sw_option_list *list);

/* The value of an int, size, duration or real that was given as "auto". */
#define SW_OPTION_AUTO INT64_C(-1)

struct sw_option {
    const char *name; /* "--micro-batch", or "DIR" for an argument without a flag, in order */
    sw_option_kind kind;
    size_t offset;             /* offset of the member in the target */
    const char *initial;       /* the default, as a user would write it; NULL: none, the member stays zero */
    const char *value;         /* the value's name in --help: "N", "FILE", "SIZE" */
    const char *what;          /* the explanation in --help, which wraps it */
    const char *choices;       /* "auto|cpu|cuda" */
    int64_t int_min, int_max;  /* inclusive; int_max 0: no upper limit */
    double real_min, real_max; /* inclusive; real_max 0: no upper limit */
    bool below_max;            /* real_max itself is excluded */
    bool allow_auto;           /* "auto" gives SW_OPTION_AUTO */
    bool required;
    bool transient;    /* applies to one start of a run, so run.json does not keep it */
    bool own;          /* each rank may have its own value */
    bool recipe;       /* names a recipe, a file of flags; a command has at most one such flag */
    const char *group; /* heading in --help; the rows of a group are neighbours. NULL: the table has no groups */
    unsigned commands; /* bits of the commands that have this row; ignored for a command without a bit */
};

/* The heading of flags about output, under which --quiet and --help are listed. */
#define SW_OPTION_OUTPUT "Output"

enum { SW_COMMAND_EXAMPLES = 3 };

/* One command. Several commands may share a table of options: each row's `commands` says which have it. */
struct sw_command_line {
    const char *command; /* "train" */
    const char *summary; /* one sentence */
    const struct sw_option *options;
    int option_count;
    unsigned bit; /* this command's bit in `commands`; 0: the table is not shared */
    sw_status (*check)(
        const void *target);     /* called after parsing, for checks that the table cannot make; may be NULL */
    void (*more_help)(FILE *to); /* prints the part of --help below the flags; may be NULL */
    bool goes_on;                /* a flag that is not given keeps the run's value */
    const char *examples[SW_COMMAND_EXAMPLES]; /* the last lines of --help; a test runs them */
};

/* Fills target with the defaults. Strings and lists in it must be zero or released. */
sw_status sw_options_defaults(const struct sw_command_line *line, void *target);

/* Parses the arguments after the command's name into target. Members whose flag is not given keep their value: resume
 * first fills target from run.json. A list that is given replaces the one in target. Every command has --quiet, which
 * silences the log (core/log.h). Fails with SW_ERR_ARG, or with the error of the command's check. If --help is among
 * the arguments, sets *out_help, stops there, and checks neither required flags nor combinations. */
sw_status sw_options_parse(const struct sw_command_line *line, int argc, char *const *argv, void *target,
                           bool *out_help);

/* Tells whether the command has the flag of an argument, such as "--seq" or "--seq=1024". */
bool sw_options_have(const struct sw_command_line *line, const char *argument);

/* Releases the strings and lists of target. */
void sw_options_release(const struct sw_command_line *line, void *target);

void sw_options_help(const struct sw_command_line *line, FILE *to);
/* Prints the words of a text in the columns of the stream (sw_log_columns). The text begins at `column`, further lines
 * at `indent`. Prints no final line end. Returns the column after the text. */
int sw_print_wrapped(const char *text, int column, int indent, FILE *to);
/* Prints the exit statuses of all commands (core/status.h). */
void sw_options_help_exits(FILE *to);

/* Returns all flags that are not transient; "--micro-batch" becomes "micro_batch". The caller releases the object. */
sw_status sw_options_to_json(const struct sw_command_line *line, const void *target, json_t **out);

/* Returns those of them that must be equal on all ranks. The caller releases the object. */
sw_status sw_options_common_json(const struct sw_command_line *line, const void *target, json_t **out);

/* Reads an object that sw_options_to_json wrote; messages call it `origin`. Flags that it lacks keep their value,
 * unknown ones fail, and values are checked like those of the command line. */
sw_status sw_options_from_json(const struct sw_command_line *line, const json_t *object, const char *origin,
                               void *target);

#endif
