#include "model/optimizer_for.h"

#include <fnmatch.h>
#include <string.h>

enum { PATTERN_CHARS = 256 };
#define MUON "=muon"

struct rule {
    char pattern[PATTERN_CHARS];
    bool muon;
};

/* Parses the rule at *text and moves *text behind it, to NULL after the last one. */
static sw_status next_rule(const char **text, struct rule *out) {
    const size_t length = strcspn(*text, ",");
    char part[PATTERN_CHARS];
    if (length >= sizeof part)
        return sw_fail(SW_ERR_ARG, "a part of --optimizer-for is longer than %d characters", PATTERN_CHARS - 1);
    memcpy(part, *text, length);
    part[length] = '\0';
    *text = (*text)[length] == ',' ? *text + length + 1 : NULL;
    char *name = strrchr(part, '=');
    const bool named = name != NULL && (strcmp(name, "=adamw") == 0 || strcmp(name, MUON) == 0);
    if (!named || name == part)
        return sw_fail(SW_ERR_ARG,
                       "'%s' in --optimizer-for is not PATTERN=NAME with adamw or muon as NAME, as in '*.mlp.*=muon'",
                       part);
    out->muon = strcmp(name, MUON) == 0;
    *name = '\0';
    memcpy(out->pattern, part, sizeof part);
    return SW_OK;
}

sw_status sw_optimizer_for_check(const char *text) {
    struct rule rule;
    while (text != NULL)
        SW_TRY(next_rule(&text, &rule));
    return SW_OK;
}

bool sw_optimizer_for_has_muon(const char *text) {
    const size_t chars = sizeof MUON - 1;
    while (text != NULL) {
        const size_t length = strcspn(text, ",");
        if (length > chars && memcmp(text + length - chars, MUON, chars) == 0)
            return true;
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
    return false;
}

/* Leaves the matrices that a rule names to Muon or to AdamW. */
static sw_status apply_rule(const struct rule *rule, bool some, struct sw_units *units) {
    const char *other = NULL; /* a name that matches and is no matrix of a layer */
    bool matches = false;
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            struct sw_tensor *tensor = &units->unit[u].tensor[t];
            if (fnmatch(rule->pattern, tensor->name, 0) != 0)
                continue;
            const bool is_matrix = tensor->muon_count > 0;
            other = is_matrix || other != NULL ? other : tensor->name;
            tensor->keeps_moments = !rule->muon;
            matches |= is_matrix || !rule->muon;
        }
    if (matches || (some && other == NULL))
        return SW_OK;
    if (other != NULL)
        return sw_fail(
            SW_ERR_ARG,
            "--optimizer-for '%s=muon' matches %s, and Muon updates matrices of layers only; leave it to adamw",
            rule->pattern, other);
    return sw_fail(SW_ERR_ARG, "--optimizer-for '%s' matches no tensor of the model, whose tensors are named like %s",
                   rule->pattern, units->unit[1].tensor[0].name);
}

sw_status sw_optimizer_for_apply(const struct sw_tuning *tuning, bool some, struct sw_units *units) {
    const char *text = tuning != NULL ? tuning->optimizer_for : NULL;
    struct rule rule;
    for (int64_t u = 0; text != NULL && u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            units->unit[u].tensor[t].keeps_moments = tuning->optimizer == SW_TRAINS_ADAMW;
    while (text != NULL) {
        SW_TRY(next_rule(&text, &rule));
        SW_TRY(apply_rule(&rule, some, units));
    }
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (units->unit[u].tensor[t].keeps_moments)
                units->unit[u].tensor[t].muon_count = 0;
    return SW_OK;
}
