/* The registered tensors: their units, and tensors.json, which lists them for the next process. */
#include "core/confine.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/json.h"
#include "core/size.h"
#include "library/library_private.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A unit is closed once it has so many elements or tensors, because state is placed, and runs of equal factors are
 * sought, unit by unit. A file of a store has room for thousands of units. */
enum { UNIT_ELEMS = 64 << 20, UNIT_TENSORS = 1024, RECORD_VERSION = 3 };
/* Each unit has as many sums of squares as the largest one, so a large tensor makes the others' units larger. */
enum { UNITS_OF_LARGEST = 4 };
/* An upper bound of what tensors.json has for a tensor beside the name, in which each byte may take two, and for each
 * process that has a part of it. */
enum { ENTRY_BYTES = 192, PART_BYTES = 32 };

static sw_status record_path(const spillway *self, char path[LIBRARY_PATH_CHARS]) {
    return sw_path_join(path, LIBRARY_PATH_CHARS, self->folder, "tensors.json");
}

void sw_library_order_as_added(spillway *self) {
    for (int64_t t = 0; t < sw_library_all_tensors(self); t++)
        self->order[t] = t;
}

/* Tells whether a tensor begins a unit behind the one that has `last`. */
static bool begins_unit(const struct tensor *tensor, const struct tensor *last, bool found) {
    return found ? tensor->kept_unit != last->kept_unit : tensor->begins_unit;
}

/* Gives each tensor its unit and its number in it. found: the units are those of the store. Where each process has
 * elements of its own, units begin alike in all, so that one list tells the places of all. Returns the number of units.
 */
static int64_t sort_into_units(spillway *self, bool found) {
    int64_t unit = 0, elems = 0, within = 0, most = UNIT_ELEMS;
    for (int64_t t = 0; t < sw_library_all_tensors(self); t++)
        most = sw_max_i64(most, self->tensor[t].most / UNITS_OF_LARGEST);
    for (int64_t i = 0; i < sw_library_all_tensors(self); i++) {
        struct tensor *tensor = &self->tensor[self->order[i]];
        if (elems > 0 && (begins_unit(tensor, &self->tensor[self->order[i - 1]], found) ||
                          (!found && (elems + tensor->most > most || within == UNIT_TENSORS)))) {
            unit++;
            elems = within = 0;
        }
        tensor->unit = unit;
        tensor->within = within++;
        elems += tensor->most;
    }
    return unit + 1;
}

static sw_status fill_units(spillway *self) {
    for (int64_t i = 0; i < sw_library_all_tensors(self); i++) {
        const struct tensor *tensor = &self->tensor[self->order[i]];
        struct sw_unit *unit = &self->units->unit[tensor->unit];
        if (tensor->within == 0)
            snprintf(unit->name, sizeof unit->name, "unit %lld", (long long)tensor->unit);
        SW_TRY(sw_unit_add_tensor(unit, tensor->name, 1, &tensor->count, tensor->decay));
        unit->tensor[tensor->within].lr_scale = tensor->lr_scale;
    }
    return sw_units_seal(self->units);
}

/* Sealing may move small tensors behind larger ones. */
static int by_place(const void *left, const void *right, void *context) {
    const spillway *self = context;
    const struct tensor *a = &self->tensor[*(const int64_t *)left], *b = &self->tensor[*(const int64_t *)right];
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Refuses more tensors than tensors.json can list, before anything is made. */
static sw_status check_list(const spillway *self) {
    size_t bytes = ENTRY_BYTES;
    for (int64_t t = 0; t < self->tensor_count; t++)
        bytes += ENTRY_BYTES + 2 * strlen(self->tensor[t].name) +
                 (self->options.sharded ? (size_t)self->ranks * PART_BYTES : 0);
    return bytes <= SW_JSON_MOST_WRITTEN_BYTES
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "%lld tensors are too many for a store, whose list of names takes at most %zu MiB: register "
                         "fewer and larger ones, or give them shorter names",
                         (long long)self->tensor_count, SW_JSON_MOST_WRITTEN_BYTES >> 20);
}

sw_status sw_library_lay_out(spillway *self, bool found) {
    SW_TRY(check_list(self));
    const int64_t count = sort_into_units(self, found);
    SW_TRY(sw_units_create(count, &self->units));
    self->units->optimizer = (sw_optimizer_format)self->options.state;
    /* A tensor that a step leaves out keeps its blocks of moments as they are, so none is another tensor's, too. */
    if (self->units->optimizer != SW_OPTIMIZER_FP32)
        self->units->tensor_align_elems = SW_MOMENT_BLOCK_ELEMS;
    SW_TRY(fill_units(self));
    self->unit_first = calloc((size_t)count + 1, sizeof *self->unit_first);
    if (self->unit_first == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %lld tensors", (long long)self->tensor_count);
    for (int64_t t = 0; t < sw_library_all_tensors(self); t++) {
        struct tensor *tensor = &self->tensor[t];
        tensor->offset = self->units->unit[tensor->unit].tensor[tensor->within].offset;
        tensor->listed = found ? tensor->kept : t;
        self->unit_first[tensor->unit + 1]++;
    }
    for (int64_t u = 0; u < count; u++)
        self->unit_first[u + 1] += self->unit_first[u];
    qsort_r(self->order, (size_t)sw_library_all_tensors(self), sizeof *self->order, by_place, self);
    return SW_OK;
}

sw_status sw_library_check_places(const spillway *self) {
    for (int64_t t = 0; t < sw_library_all_tensors(self); t++) {
        const struct tensor *tensor = &self->tensor[t];
        if (self->options.sharded)
            continue;
        if (tensor->unit != tensor->kept_unit || tensor->offset != tensor->kept_offset)
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "the state of '%s' lies elsewhere in %s than this version of spillway puts it: open the "
                           "store with the version that made it",
                           tensor->name, self->folder);
    }
    return SW_OK;
}

/* Adds to a tensor's entry which of its elements each process has. Returns false for lack of memory. */
static bool list_parts(const spillway *self, json_t *entry, int64_t t) {
    if (!self->options.sharded || t == self->tensor_count)
        return true;
    const size_t ranks = (size_t)self->ranks;
    json_t *counts = json_array(), *firsts = json_array();
    for (size_t rank = 0; rank < ranks; rank++) {
        const struct tensor_part *part = &self->part[(int64_t)rank * self->tensor_count + t];
        (void)json_array_append_new(counts, json_integer(part->count));
        (void)json_array_append_new(firsts, json_integer(part->first));
    }
    const bool whole = json_array_size(counts) == ranks && json_array_size(firsts) == ranks;
    return json_object_set_new(entry, "counts", counts) == 0 && json_object_set_new(entry, "firsts", firsts) == 0 &&
           json_object_set_new(entry, "whole", json_integer(self->tensor[t].whole)) == 0 && whole;
}

struct tensor_part sw_library_listed_part(const json_t *entry, int rank) {
    const json_t *counts = json_object_get(entry, "counts");
    const json_t *count = counts != NULL ? json_array_get(counts, (size_t)rank) : json_object_get(entry, "count");
    const json_t *first = json_array_get(json_object_get(entry, "firsts"), (size_t)rank);
    return (struct tensor_part){json_is_integer(count) ? json_integer_value(count) : -1, json_integer_value(first)};
}

int64_t sw_library_listed_whole(const json_t *entry) {
    const bool sharded = json_object_get(entry, "counts") != NULL;
    return json_integer_value(json_object_get(entry, sharded ? "whole" : "count"));
}

/* Appends the tensors in the order in which they were put into the units, from which the same order of calls makes the
 * same units again. Returns false for lack of memory. */
static bool list_tensors(const spillway *self, json_t *tensors, int64_t *at) {
    for (int64_t i = 0; i < sw_library_all_tensors(self); i++) {
        const struct tensor *tensor = &self->tensor[self->order[i]];
        at[self->unit_first[tensor->unit] + tensor->within] = self->order[i];
    }
    for (int64_t i = 0; i < sw_library_all_tensors(self); i++) {
        const struct tensor *tensor = &self->tensor[at[i]];
        json_t *entry = json_pack("{s:s, s:I, s:I, s:I}", "name", tensor->name, "count", (json_int_t)tensor->count,
                                  "unit", (json_int_t)tensor->unit, "offset", (json_int_t)tensor->offset);
        if (json_array_append_new(tensors, entry) != 0 || !list_parts(self, entry, at[i]))
            return false;
    }
    return true;
}

/* Returns the content of tensors.json; NULL: no memory. */
static json_t *describe(const spillway *self, const struct store_record *record) {
    int64_t *at = calloc((size_t)sw_library_all_tensors(self), sizeof *at);
    json_t *tensors = record->listed != NULL ? json_incref(record->listed) : json_array(), *object = NULL;
    if (at != NULL && tensors != NULL && (record->listed != NULL || list_tensors(self, tensors, at)))
        object = json_pack("{s:i, s:s, s:i, s:b, s:s, s:i, s:b, s:s, s:b, s:b, s:O}", "version", RECORD_VERSION, "id",
                           record->set.id, "ranks", record->set.ranks, "other", record->set.other, "orphan",
                           record->orphan.id, "orphan_ranks", record->orphan.ranks, "orphan_other",
                           record->orphan.other, "state", sw_optimizer_format_name(record->state), "started",
                           record->started, "sharded", record->sharded, "tensors", tensors);
    json_decref(tensors);
    free(at);
    return object;
}

sw_status sw_library_write_record(const spillway *self, const struct store_record *record) {
    char path[LIBRARY_PATH_CHARS];
    SW_TRY(record_path(self, path));
    json_t *object = describe(self, record);
    return object != NULL ? sw_json_write_checked_file(path, object, SW_FILE_PRIVATE)
                          : sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
}

/* A tensor by its name. */
struct name {
    const char *name;
    int64_t number;
};

static int by_name(const void *left, const void *right) {
    return strcmp(((const struct name *)left)->name, ((const struct name *)right)->name);
}

/* Returns the tensors sorted by name; NULL: no memory. */
static struct name *sorted_names(const spillway *self) {
    const int64_t count = sw_library_all_tensors(self);
    struct name *names = calloc((size_t)count, sizeof *names);
    for (int64_t t = 0; names != NULL && t < count; t++)
        names[t] = (struct name){self->tensor[t].name, t};
    if (names != NULL)
        qsort(names, (size_t)count, sizeof *names, by_name);
    return names;
}

/* Refuses the first registered tensor that the store does not have. missing: a tensor of the store that is not
 * registered, with missing_count elements; NULL: there is none. */
static sw_status refuse_others(const spillway *self, const bool *known, const char *missing, int64_t missing_count) {
    for (int64_t t = 0; t < self->tensor_count; t++) {
        const struct tensor *tensor = &self->tensor[t];
        if (known[t])
            continue;
        if (missing != NULL && (tensor->whole > 0 ? tensor->whole : sw_library_elems(tensor)) == missing_count)
            return sw_fail(SW_ERR_ARG,
                           "%s has a tensor '%s' and none of the name '%s', which has as many elements: register it "
                           "by its old name if it was renamed",
                           self->folder, missing, tensor->name);
        return sw_fail(SW_ERR_ARG,
                       "%s has no tensor '%s': it was added after the store was made; leave it out, or begin a new "
                       "store",
                       self->folder, tensor->name);
    }
    if (missing != NULL)
        return sw_fail(SW_ERR_ARG,
                       "%s has the state of a tensor '%s' of %lld elements, which is not registered: register it, or "
                       "begin a new store",
                       self->folder, missing, (long long)missing_count);
    return SW_OK;
}

/* Tells whether each process has the elements of a tensor that it had in the store. */
static bool has_same_parts(const spillway *self, const struct store_record *record, const json_t *entry, int64_t t) {
    if (record->sharded != (self->options.sharded != 0))
        return false;
    if (!record->sharded || t == self->tensor_count)
        return true;
    bool same = record->set.ranks == self->ranks;
    for (int rank = 0; same && rank < self->ranks; rank++) {
        const struct tensor_part was = sw_library_listed_part(entry, rank),
                                 *is = &self->part[rank * self->tensor_count + t];
        /* The size is all that is known of parts without a place. */
        same = was.count == is->count &&
               (was.first == is->first || sw_library_listed_whole(entry) == 0 || self->tensor[t].whole == 0);
    }
    return same;
}

/* Refuses a tensor that has another size than in the store, or whose parts have changed and have no places. */
static sw_status check_size(const spillway *self, const struct store_record *record, const json_t *entry, int64_t t) {
    const struct tensor *tensor = &self->tensor[t];
    const int64_t was = sw_library_listed_whole(entry), is = tensor->whole;
    if (was > 0 && is > 0 && was != is)
        return sw_fail(SW_ERR_ARG,
                       "the tensor '%s' has %lld elements, and %lld in %s: a store keeps the sizes that it was made "
                       "with",
                       tensor->name, (long long)is, (long long)was, self->folder);
    if ((was > 0 && is > 0) || has_same_parts(self, record, entry, t))
        return SW_OK;
    return sw_fail(
        SW_ERR_ARG,
        "'%s' is in other parts than in %s, and %s not say where its parts lie in the tensor: open the store "
        "with the %d processes and the counts that made it, or begin a new store",
        tensor->name, self->folder, was > 0 ? "its registration does" : "the store does", record->set.ranks);
}

/* Takes the order of the store's tensors, and compares them with the registered ones. */
static sw_status match(spillway *self, struct store_record *record, const json_t *tensors, const struct name *names,
                       bool *known) {
    const char *missing = NULL;
    int64_t missing_count = 0, matched = 0;
    size_t i;
    json_t *entry;
    json_array_foreach(tensors, i, entry) {
        const struct name wanted = {json_string_value(json_object_get(entry, "name")), 0};
        const int64_t count = sw_library_listed_part(entry, 0).count;
        const json_t *unit = json_object_get(entry, "unit"), *offset = json_object_get(entry, "offset");
        if (wanted.name == NULL || count < (record->sharded ? 0 : 1) || !json_is_integer(unit) ||
            !json_is_integer(offset))
            return sw_fail(SW_ERR_CORRUPT, "tensors.json in %s has an entry that lacks a member", self->folder);
        const struct name *found =
            bsearch(&wanted, names, (size_t)sw_library_all_tensors(self), sizeof *names, by_name);
        if (found == NULL) {
            const int64_t whole = sw_library_listed_whole(entry);
            missing_count = missing == NULL ? (whole > 0 ? whole : count) : missing_count;
            missing = missing == NULL ? wanted.name : missing;
            continue;
        }
        /* The counts of other tensors have another size, and refuse_others names those. */
        if (found->number < self->tensor_count)
            SW_TRY(check_size(self, record, entry, found->number));
        if (known[found->number])
            return sw_fail(SW_ERR_CORRUPT, "tensors.json in %s lists '%s' twice", self->folder, wanted.name);
        known[found->number] = true;
        record->converts |= !has_same_parts(self, record, entry, found->number);
        struct tensor *tensor = &self->tensor[found->number];
        tensor->kept_unit = json_integer_value(unit);
        tensor->kept_offset = json_integer_value(offset);
        tensor->kept = matched;
        self->order[matched++] = found->number;
    }
    SW_TRY(refuse_others(self, known, missing, missing_count));
    return known[self->tensor_count]
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "tensors.json in %s lacks the counts of steps", self->folder);
}

static sw_status match_tensors(spillway *self, struct store_record *record, json_t *tensors) {
    struct name *names = sorted_names(self);
    bool *known = calloc((size_t)sw_library_all_tensors(self), sizeof *known);
    const sw_status status = names != NULL && known != NULL
                                 ? match(self, record, tensors, names, known)
                                 : sw_fail(SW_ERR_NOMEM, "no memory for %lld tensors", (long long)self->tensor_count);
    free(names);
    free(known);
    if (status == SW_OK && record->converts) {
        record->listed = json_incref(tensors);
        sw_library_order_as_added(self);
    }
    return status;
}

static sw_status read_members(const spillway *self, const json_t *object, struct store_record *out) {
    const char *id = json_string_value(json_object_get(object, "id"));
    const char *state = json_string_value(json_object_get(object, "state"));
    const int64_t version = json_integer_value(json_object_get(object, "version"));
    int format = 0;
    if (version > RECORD_VERSION)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s was made by a later version of spillway", self->folder);
    if (version == 1)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s was made by a version of spillway before 0.1.0, with one count of steps for all tensors: "
                       "begin a new store, or go on with that version",
                       self->folder);
    while (state != NULL && format < SW_OPTIMIZER_FORMATS &&
           strcmp(state, sw_optimizer_format_name((sw_optimizer_format)format)) != 0)
        format++;
    if (version < 1 || id == NULL || strlen(id) != SW_STORE_ID_CHARS - 1 || state == NULL ||
        format == SW_OPTIMIZER_FORMATS || !json_is_array(json_object_get(object, "tensors")))
        return sw_fail(SW_ERR_CORRUPT, "tensors.json in %s lacks a member, or has one of another kind", self->folder);
    snprintf(out->set.id, sizeof out->set.id, "%s", id);
    /* A store without these members is of one process. */
    const char *orphan = json_string_value(json_object_get(object, "orphan"));
    const int64_t ranks = json_integer_value(json_object_get(object, "ranks")),
                  orphan_ranks = json_integer_value(json_object_get(object, "orphan_ranks"));
    out->set.ranks = ranks >= 1 && ranks <= INT_MAX ? (int)ranks : 1;
    if (orphan != NULL && strlen(orphan) == SW_STORE_ID_CHARS - 1 && orphan_ranks >= 1 && orphan_ranks <= INT_MAX) {
        snprintf(out->orphan.id, sizeof out->orphan.id, "%s", orphan);
        out->orphan.ranks = (int)orphan_ranks;
    }
    out->set.other = json_is_true(json_object_get(object, "other"));
    out->orphan.other = json_is_true(json_object_get(object, "orphan_other"));
    out->sharded = json_is_true(json_object_get(object, "sharded"));
    out->state = (sw_optimizer_format)format;
    out->started = json_is_true(json_object_get(object, "started"));
    return SW_OK;
}

sw_status sw_library_read_record(spillway *self, struct store_record *out, bool *found) {
    char path[LIBRARY_PATH_CHARS];
    json_t *object;
    *out = (struct store_record){0};
    SW_TRY(record_path(self, path));
    SW_TRY(sw_path_find(path, found));
    if (!*found)
        return SW_OK;
    SW_TRY(sw_json_read_checked_file(path, SW_JSON_MOST_WRITTEN_BYTES, SW_ERR_CORRUPT, &object));
    sw_status status = read_members(self, object, out);
    if (status == SW_OK && out->started)
        status = match_tensors(self, out, json_object_get(object, "tensors"));
    json_decref(object);
    return status;
}

void sw_library_release_record(struct store_record *record) {
    json_decref(record->listed);
    record->listed = NULL;
}
