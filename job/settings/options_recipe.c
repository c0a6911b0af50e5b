/* A recipe is a YAML file whose keys are flags: `batch-tokens: 16384`, `data: [a.bin, b.bin]`, `init: true`. */
#include "core/files/files.h"
#include "job/settings/options_internal.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* As much as a run writes (settings_recipe.c). */
#define MOST_BYTES ((size_t)16 << 20)
/* Deeper nesting and more anchors than these are no recipe, and would take a time that grows with their square. */
enum { NAME_CHARS = 64, NAME_PREFIX_CHARS = 2, MOST_LEVELS = 16, MOST_ANCHORS = 64 };

struct recipe {
    const struct sw_command_line *line;
    const char *path;
    void *target;
    bool *given; /* by index of the option */
    yaml_document_t document;
};

static const char *scalar_of(const yaml_node_t *node) {
    return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

static bool is_nothing(const yaml_node_t *node) {
    const char *text = scalar_of(node);
    return text == NULL || (node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                            (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0));
}

/* A recipe of train serves plan as well, which passes over the flags that it does not have. */
static bool another_command_has(const struct sw_command_line *line, const char *name) {
    for (int i = 0; i < line->option_count; i++)
        if (strcmp(line->options[i].name, name) == 0)
            return true;
    return false;
}

static sw_status set_scalar(const struct recipe *recipe, const struct sw_option *option, const yaml_node_t *node) {
    if (is_nothing(node))
        return sw_fail(SW_ERR_ARG, "%s has no value, or one that is neither a word nor a list of words", option->name);
    const char *text = scalar_of(node);
    if (option->kind != SW_OPTION_FLAG)
        return sw_option_set(option, text, recipe->target);
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return sw_fail(SW_ERR_ARG, "%s is '%s'; it must be true or false", option->name, text);
    return strcmp(text, "true") == 0 ? sw_option_set(option, NULL, recipe->target) : SW_OK;
}

static sw_status set_value(struct recipe *recipe, const struct sw_option *option, const yaml_node_t *node) {
    bool *given = &recipe->given[option - recipe->line->options];
    if (option->recipe)
        return sw_fail(SW_ERR_ARG, "a recipe cannot name another recipe");
    if (*given)
        return sw_fail(SW_ERR_ARG, "%s is given twice; give it once", option->name);
    *given = true;
    sw_option_clear(option, recipe->target);
    if (node->type != YAML_SEQUENCE_NODE || !sw_option_is_list(option))
        return set_scalar(recipe, option, node);
    for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++)
        SW_TRY(set_scalar(recipe, option, yaml_document_get_node(&recipe->document, *item)));
    return !option->required || sw_option_has_value(option, recipe->target)
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "%s is an empty list; name at least one %s", option->name, option->value);
}

static sw_status set_pair(struct recipe *recipe, const yaml_node_t *key, const yaml_node_t *value) {
    char name[NAME_CHARS];
    const char *text = scalar_of(key);
    const int chars = text != NULL ? snprintf(name, sizeof name, "--%s", text) : 0;
    if (chars <= NAME_PREFIX_CHARS || chars >= NAME_CHARS)
        return sw_fail(SW_ERR_ARG, "a key must be the name of a flag without its dashes");
    for (char *at = name; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
    const struct sw_option *option = sw_option_find(recipe->line, name, (size_t)chars);
    if (option != NULL)
        return set_value(recipe, option, value);
    return another_command_has(recipe->line, name) ? SW_OK : sw_option_fail_unknown(recipe->line, name, (size_t)chars);
}

static sw_status set_all(struct recipe *recipe) {
    const yaml_node_t *root = yaml_document_get_root_node(&recipe->document);
    if (root == NULL || root->type != YAML_MAPPING_NODE)
        return sw_fail(SW_ERR_ARG, "%s is no recipe: it must hold lines such as `batch-tokens: 16384`", recipe->path);
    for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(&recipe->document, pair->key);
        const sw_status status = set_pair(recipe, key, yaml_document_get_node(&recipe->document, pair->value));
        if (status != SW_OK)
            return sw_fail_while(status, "reading %s, line %zu", recipe->path, key->start_mark.line + 1);
    }
    return SW_OK;
}

static bool has_anchor(const yaml_event_t *event) {
    return (event->type == YAML_SCALAR_EVENT && event->data.scalar.anchor != NULL) ||
           (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.anchor != NULL) ||
           (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.anchor != NULL);
}

/* Follows the parser to the end of the text, or to what no recipe has. Text that is not YAML is left to the loader,
 * which says what is wrong. */
static sw_status follow(yaml_parser_t *parser, const char *path) {
    yaml_event_t event;
    int levels = 0, anchors = 0;
    bool ended = false;
    while (!ended && levels <= MOST_LEVELS && anchors <= MOST_ANCHORS && yaml_parser_parse(parser, &event)) {
        levels += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        levels -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        anchors += has_anchor(&event);
        ended = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    if (levels > MOST_LEVELS)
        return sw_fail(SW_ERR_ARG, "%s is no recipe: line %zu has more than %d lists within each other", path,
                       parser->mark.line + 1, MOST_LEVELS);
    return anchors <= MOST_ANCHORS
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "%s is no recipe: up to line %zu it has more than %d anchors (&NAME)", path,
                         parser->mark.line + 1, MOST_ANCHORS);
}

/* Reads the structure once before it is loaded, because libyaml has no bounds of its own. Directives are refused first:
 * they are kept until the document begins, and a recipe needs none but %YAML. */
static sw_status check_structure(const char *text, const char *path) {
    yaml_parser_t parser;
    if (strncmp(text, "%TAG", 4) == 0 || strstr(text, "\n%TAG") != NULL)
        return sw_fail(SW_ERR_ARG, "%s has a %%TAG directive, which means nothing in a recipe; remove it", path);
    if (!yaml_parser_initialize(&parser))
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    const sw_status status = follow(&parser, path);
    yaml_parser_delete(&parser);
    return status;
}

static sw_status read_text(struct recipe *recipe, const char *text) {
    yaml_parser_t parser;
    SW_TRY(check_structure(text, recipe->path));
    if (!yaml_parser_initialize(&parser))
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", recipe->path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    sw_status status;
    if (yaml_parser_load(&parser, &recipe->document)) {
        status = set_all(recipe);
        yaml_document_delete(&recipe->document);
    } else {
        status = sw_fail(SW_ERR_ARG, "%s is not YAML: line %zu: %s", recipe->path, parser.problem_mark.line + 1,
                         parser.problem);
    }
    yaml_parser_delete(&parser);
    return status;
}

sw_status sw_options_read_recipe(const struct sw_command_line *line, const char *path, void *target, bool *given) {
    struct recipe recipe = {.line = line, .path = path, .target = target, .given = given};
    char *text;
    SW_TRY(sw_file_read_text(path, MOST_BYTES, &text));
    const sw_status status = read_text(&recipe, text);
    free(text);
    return status;
}
