/* Exports during a run: which to write, which to keep, which to remove, and how rank 0 gets the weights of all ranks.
 *
 * Rank 0 writes the files and asks the others for the grains it needs, in file order. Gathering whole tensors on rank 0
 * would need memory for the largest tensor of a model that may not fit; a file per rank would not be a Hugging Face
 * folder.
 *
 * The index, not the directory, decides what exists. It lists a folder as `unlisted` before the folder is created or
 * removed, so a kill at any instant leaves nothing that the next start cannot finish, and a folder that the user put
 * there is never touched.
 *
 * A run that went back to an earlier commit has exports of weights it no longer has. They are marked as given up, count
 * for nothing, and stay until a new export replaces them. */
#include "run/exports.h"

#include "core/clock.h"
#include "core/confine.h"
#include "core/files/json_file.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "model/hf/checkpoint.h"
#include "model/peft.h"
#include "run/folder/frozen.h"
#include "run/folder/run.h"
#include "run/folder/state.h"
#include "run/trainer.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sw_gathered_masters;

/* The most grains that ranks exchange at once. */
enum { GATHERED_GRAINS = 16 };
#define MASTER_BYTES (SW_GRAIN_ELEMS * (int64_t)sizeof(float))

/* A request of rank 0 for grains of one tensor rank's parts; count 0 ends the gathering. */
struct request {
    int64_t tensor_rank, unit, first, count;
};

/* The parts of one tensor rank, as rank 0 reads them. */
struct part {
    struct sw_gathered_masters *masters;
    int64_t tensor_rank;
    const struct sw_units *units;
    struct sw_units *own; /* owned: the units, unless they are those of this rank's model; NULL: they are */
};

struct sw_gathered_masters {
    struct sw_trainer *trainer;
    bool shared;         /* whether there are several ranks */
    bool failed;         /* some rank failed, and all ranks know it */
    char *records;       /* optimizer state of GATHERED_GRAINS grains of this rank */
    float *all;          /* masters of GATHERED_GRAINS grains for each rank, in rank order */
    struct request held; /* on rank 0: the grains that its part of `all` holds; count 0: none */
    int64_t tensor_ranks;
    struct part *part;             /* on rank 0: one entry per tensor rank; else NULL */
    const struct sw_units *whole;  /* on rank 0: the units of whole layers; NULL: the model's are whole */
    struct sw_units *own_whole;    /* owned: these, unless the trainer has them; NULL: it does, or there are none */
    struct sw_state_reader *state; /* on rank 0: reads the parts */
};

/* Copies masters of one tensor rank's parts, and exchanges the grains that rank 0 does not hold. A sw_fill_function
 * whose context is a struct part. */
static sw_status fill_part(void *context, int64_t unit, int64_t first, int64_t count, float *out);

static sw_status make_part(struct sw_gathered_masters *self, int tensor_rank) {
    const struct sw_trainer *trainer = self->trainer;
    struct part *part = &self->part[tensor_rank];
    *part = (struct part){.masters = self, .tensor_rank = tensor_rank, .units = sw_model_get_units(trainer->job.model)};
    if (self->tensor_ranks == 1)
        return SW_OK;
    const struct sw_model_group group = {.ranks = (int)self->tensor_ranks,
                                         .rank = tensor_rank,
                                         .experts = (int)sw_settings_expert_ranks(&trainer->run.settings)};
    SW_TRY(sw_model_group_units(&trainer->run.config, &group, trainer->run.tiles, part->units->optimizer,
                                &trainer->run.settings.tuning, &part->own));
    part->units = part->own;
    return SW_OK;
}

/* Makes what rank 0 needs for reading. */
static sw_status make_parts(struct sw_gathered_masters *self) {
    const int ranks = (int)self->tensor_ranks;
    self->part = calloc((size_t)ranks, sizeof *self->part);
    struct sw_state_part *given = calloc((size_t)ranks, sizeof *given);
    sw_status status = self->part != NULL && given != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to export");
    for (int rank = 0; status == SW_OK && rank < ranks; rank++) {
        status = make_part(self, rank);
        given[rank] = (struct sw_state_part){.units = self->part[rank].units,
                                             .tiles = self->trainer->run.tiles,
                                             .load = {.fill = fill_part, .context = &self->part[rank]}};
    }
    self->whole = self->trainer->whole;
    if (status == SW_OK && ranks > 1 && self->whole == NULL) {
        status = sw_model_units(&self->trainer->run.config, 1, self->part[0].units->optimizer, NULL, &self->own_whole);
        self->whole = self->own_whole;
    }
    if (status == SW_OK)
        status = sw_state_join(given, ranks, &self->state);
    free(given);
    return status;
}

static sw_status make(struct sw_gathered_masters *self) {
    const struct sw_trainer *trainer = self->trainer;
    self->shared = sw_ranks_count(trainer->ranks) > 1;
    self->tensor_ranks = sw_settings_part_ranks(&trainer->run.settings);
    self->records = malloc((size_t)sw_plan_optimizer_bytes(trainer->job.plan, GATHERED_GRAINS));
    self->all = calloc((size_t)sw_ranks_count(trainer->ranks), GATHERED_GRAINS * MASTER_BYTES);
    if (self->records == NULL || self->all == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to export");
    return sw_ranks_rank(trainer->ranks) == 0 ? make_parts(self) : SW_OK;
}

static void gathered_masters_close(struct sw_gathered_masters *self);

static sw_status gathered_masters_open(struct sw_trainer *trainer, struct sw_gathered_masters **out) {
    struct sw_gathered_masters *self = calloc(1, sizeof *self);
    sw_status status = self != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to export");
    if (self != NULL) {
        self->trainer = trainer;
        status = make(self);
    }
    *out = self;
    status = sw_ranks_agree_on_error(trainer->ranks, status);
    if (status != SW_OK)
        gathered_masters_close(self);
    return status;
}

static void gathered_masters_close(struct sw_gathered_masters *self) {
    if (self == NULL)
        return;
    sw_state_close(self->state);
    for (int64_t rank = 0; self->part != NULL && rank < self->tensor_ranks; rank++)
        sw_units_destroy(self->part[rank].own);
    sw_units_destroy(self->own_whole);
    free(self->part);
    free(self->records);
    free(self->all);
    free(self);
}

static float *part_of(struct sw_gathered_masters *self, int64_t rank) {
    return self->all + rank * GATHERED_GRAINS * SW_GRAIN_ELEMS;
}

/* Returns how many parts of a unit the ranks have: those of a group; or, of a unit without experts, those of a tensor
 * group, which lie on the ranks with the same number in their tensor groups. */
static int parts_of(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_stage_ranks(plan) / sw_plan_unit_ranks(plan, unit);
}

/* Reads the requested grains that this rank holds into its part of `all`. */
static sw_status read_own(struct sw_gathered_masters *self, const struct request *request) {
    const struct sw_unit *unit = &self->trainer->job.plan->spec.units->unit[request->unit];
    const struct sw_span has = sw_plan_span(self->trainer->job.plan, SW_OPTIMIZER, request->unit);
    const int64_t first = sw_max_i64(request->first, has.first_grain);
    const int64_t end = sw_min_i64(request->first + request->count, has.first_grain + has.grains);
    float *own = part_of(self, sw_ranks_rank(self->trainer->ranks));
    const int parts = parts_of(self->trainer->job.plan, request->unit);
    if ((sw_settings_part_rank(&self->trainer->run.settings) - request->tensor_rank) % parts != 0 || first >= end)
        return SW_OK;
    SW_TRY(sw_engine_read_optimizer(self->trainer->engine, request->unit, first, end - first, self->records));
    for (int64_t g = first; g < end; g++)
        sw_unit_masters(unit, g, self->records + sw_plan_optimizer_bytes(self->trainer->job.plan, g - first),
                        own + (g - request->first) * SW_GRAIN_ELEMS);
    return SW_OK;
}

static sw_status exchange(struct sw_gathered_masters *self, const struct request *request) {
    const sw_status status = sw_ranks_agree_on_error(self->trainer->ranks, read_own(self, request));
    self->failed = status != SW_OK;
    SW_TRY(status);
    return self->shared ? sw_comm_share_records(sw_ranks_comm(self->trainer->ranks), "export", self->all,
                                                GATHERED_GRAINS * MASTER_BYTES)
                        : SW_OK;
}

/* Returns the rank that holds a grain of a part, among the ranks with this number in their groups; or of a unit that
 * all ranks share. */
static int64_t owner_of(const struct part *part, int64_t unit, int64_t grain) {
    const struct sw_plan *plan = part->masters->trainer->job.plan;
    const int parts = parts_of(plan, unit);
    const int64_t first = (int64_t)sw_plan_stage_of(plan, unit) * sw_plan_stage_ranks(plan);
    return first + (int64_t)sw_plan_owner_of(plan, unit, grain) * parts + part->tensor_rank % parts;
}

/* Brings a grain of a part, and some that follow it, to rank 0's part of `all`. */
static sw_status hold(const struct part *part, int64_t unit, int64_t grain) {
    struct sw_gathered_masters *self = part->masters;
    const struct request *held = &self->held;
    if (held->count > 0 && held->tensor_rank == part->tensor_rank && held->unit == unit && grain >= held->first &&
        grain < held->first + held->count)
        return SW_OK;
    const int64_t first = grain / GATHERED_GRAINS * GATHERED_GRAINS;
    struct request request = {.tensor_rank = part->tensor_rank,
                              .unit = unit,
                              .first = first,
                              .count = sw_min_i64(GATHERED_GRAINS, part->units->unit[unit].grains - first)};
    self->held = (struct request){0};
    SW_TRY(sw_ranks_spread(self->trainer->ranks, "export", &request, sizeof request));
    SW_TRY(exchange(self, &request));
    for (int64_t g = 0; g < request.count; g++) {
        const int64_t rank = owner_of(part, unit, first + g);
        if (rank > 0)
            memcpy(part_of(self, 0) + g * SW_GRAIN_ELEMS, part_of(self, rank) + g * SW_GRAIN_ELEMS,
                   (size_t)MASTER_BYTES);
    }
    self->held = request;
    return SW_OK;
}

static sw_status fill_part(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct part *part = context;
    struct sw_gathered_masters *self = part->masters;
    while (count > 0) {
        const int64_t grain = first / SW_GRAIN_ELEMS, within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        SW_TRY(hold(part, unit, grain));
        const int64_t at = (grain - self->held.first) * SW_GRAIN_ELEMS;
        memcpy(out, part_of(self, 0) + at + within, (size_t)run * sizeof *out);
        first += run;
        count -= run;
        out += run;
    }
    return SW_OK;
}

/* On rank 0: returns the units to read: whole layers, even if tensor groups have parts of them. Valid until the masters
 * are closed. */
static const struct sw_units *gathered_masters_units(const struct sw_gathered_masters *self) {
    return self->whole != NULL ? self->whole : self->part[0].units;
}

/* On rank 0: lets the other ranks return from gathered_masters_follow. */
static void gathered_masters_end(struct sw_gathered_masters *self) {
    struct request end = {0};
    if (self->failed)
        return;
    /* A failure here makes the next agreement on errors fail too. */
    (void)sw_ranks_spread(self->trainer->ranks, "export", &end, sizeof end);
}

/* On the other ranks: answers rank 0 until it ends. */
static sw_status gathered_masters_follow(struct sw_gathered_masters *self) {
    for (;;) {
        struct request request = {0};
        SW_TRY(sw_ranks_spread(self->trainer->ranks, "export", &request, sizeof request));
        if (request.count == 0)
            return SW_OK;
        SW_TRY(exchange(self, &request));
    }
}

/* Room of the index: the exports that --keep allows, those being written or removed, and those given up. */
enum { MOST_ENTRIES = 2 * SW_EXPORTS_MOST };

/* Indexes of older versions do not name the start of an export. Its loss and the log's may differ by this share for
 * equal weights: the log has six digits, and the device may have been another. */
#define SAME_LOSS 1e-3

struct export {
    int64_t step;
    double loss;                   /* NAN: unknown */
    char start[SW_STORE_ID_CHARS]; /* id of the start that committed the step (run.h); empty: unknown */
    bool unlisted;                 /* being written or removed: its folder is to be deleted, even after a kill */
    bool given_up;                 /* the run went back from the commit of these weights */
};

struct exports {
    char folder[SW_RUN_PATH_CHARS];
    struct export kept[MOST_ENTRIES]; /* at most one per step */
    int count;
};

static sw_status path_of(const struct exports *exports, int64_t step, char path[SW_RUN_PATH_CHARS]) {
    char name[32];
    snprintf(name, sizeof name, "step-%lld", (long long)step);
    return sw_path_join(path, SW_RUN_PATH_CHARS, exports->folder, name);
}

static struct export *find(struct exports *exports, int64_t step) {
    for (int i = 0; i < exports->count; i++)
        if (exports->kept[i].step == step)
            return &exports->kept[i];
    return NULL;
}

/* Adds an export, in place of one of the same step if there is one. Returns its entry; NULL: there is no room. */
static struct export *put(struct exports *exports, const struct export *added) {
    struct export *place = find(exports, added->step);
    if (place == NULL && exports->count < MOST_ENTRIES)
        place = &exports->kept[exports->count++];
    if (place != NULL)
        *place = *added;
    return place;
}

static bool is_flag(const json_t *value) {
    return value == NULL || json_is_boolean(value);
}

static bool parse_entry(const json_t *entry, struct export *out) {
    const json_t *step = json_object_get(entry, "step"), *loss = json_object_get(entry, "val_loss");
    const json_t *start = json_object_get(entry, "start");
    const json_t *unlisted = json_object_get(entry, "unlisted"), *given_up = json_object_get(entry, "given_up");
    *out = (struct export){.step = json_integer_value(step),
                           .loss = json_is_number(loss) ? json_number_value(loss) : NAN,
                           .unlisted = json_is_true(unlisted),
                           .given_up = json_is_true(given_up)};
    const char *id = json_is_string(start) ? json_string_value(start) : "";
    const size_t length = strlen(id);
    snprintf(out->start, sizeof out->start, "%s", id);
    return json_is_integer(step) && out->step > 0 && (loss == NULL || json_is_number(loss) || json_is_null(loss)) &&
           (start == NULL || json_is_string(start)) && length < sizeof out->start && is_flag(unlisted) &&
           is_flag(given_up);
}

static sw_status parse_index(const json_t *root, const char *path, struct exports *exports) {
    size_t i;
    json_t *entry;
    if (!json_is_array(root))
        return sw_fail(SW_ERR_CORRUPT, "%s is not a list of exports", path);
    json_array_foreach((json_t *)(uintptr_t)root, i, entry) {
        struct export read;
        if (!parse_entry(entry, &read))
            return sw_fail(SW_ERR_CORRUPT, "entry %zu of %s describes no export", i + 1, path);
        if (put(exports, &read) == NULL)
            return sw_fail(SW_ERR_CORRUPT, "%s lists more than %d exports", path, MOST_ENTRIES);
    }
    return SW_OK;
}

static sw_status read_index_file(const char *path, struct exports *exports) {
    json_t *root;
    SW_TRY(sw_json_read_own_file(path, SW_JSON_MOST_WRITTEN_BYTES, SW_ERR_CORRUPT, &root));
    const sw_status status = parse_index(root, path, exports);
    json_decref(root);
    return status;
}

/* Unlists exports whose folders someone has removed. Forgets those whose name now belongs to something else, such as a
 * link to where the folder was moved: that is not ours to count or to remove. */
static sw_status heed_missing(struct exports *exports) {
    char path[SW_RUN_PATH_CHARS];
    struct stat info;
    int kept = 0;
    for (int i = 0; i < exports->count; i++) {
        struct export *export = &exports->kept[i];
        SW_TRY(path_of(exports, export->step, path));
        const bool is_there = sw_path_lstat(path, &info) == 0;
        export->unlisted |= !is_there && errno == ENOENT;
        if (!is_there || S_ISDIR(info.st_mode))
            exports->kept[kept++] = *export;
    }
    exports->count = kept;
    return SW_OK;
}

static sw_status read_index(const char *run_folder, struct exports *exports) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(exports->folder, sizeof exports->folder, run_folder, "exports"));
    SW_TRY(sw_folder_make_own(exports->folder, 0700));
    SW_TRY(sw_path_join(path, sizeof path, exports->folder, "index.json"));
    bool found;
    SW_TRY(sw_path_find(path, &found));
    if (!found)
        return SW_OK;
    const sw_status status = read_index_file(path, exports);
    if (status == SW_ERR_CORRUPT || status == SW_ERR_ARG)
        return sw_fail_while(status,
                             "reading the list of the run's exports; move %s away, and the run begins a new one",
                             exports->folder);
    return status == SW_OK ? heed_missing(exports) : status;
}

static sw_status write_index(const struct exports *exports) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, exports->folder, "index.json"));
    json_t *root = json_array();
    for (int i = 0; i < exports->count; i++) {
        const struct export *kept = &exports->kept[i];
        json_t *loss = isfinite(kept->loss) ? json_real(kept->loss) : json_null();
        json_t *entry = json_pack("{s:I, s:o}", "step", (json_int_t)kept->step, "val_loss", loss);
        if (kept->start[0] != '\0')
            json_object_set_new(entry, "start", json_string(kept->start));
        if (kept->unlisted)
            json_object_set_new(entry, "unlisted", json_true());
        if (kept->given_up)
            json_object_set_new(entry, "given_up", json_true());
        json_array_append_new(root, entry);
    }
    return sw_json_write_file(path, root, SW_FILE_PRIVATE);
}

/* Compares exports: a known loss beats none, then the lower loss wins, then the newer export. */
static bool is_worse(const struct export *a, const struct export *b) {
    const bool known[] = {isfinite(a->loss), isfinite(b->loss)};
    if (known[0] != known[1])
        return known[1];
    if (known[0] && a->loss != b->loss)
        return a->loss > b->loss;
    return a->step < b->step;
}

/* Tells whether an export is complete and has weights that the run still has. */
static bool counts(const struct export *export) {
    return !export->unlisted && !export->given_up;
}

static int count_listed(const struct exports *exports) {
    int count = 0;
    for (int i = 0; i < exports->count; i++)
        count += counts(&exports->kept[i]);
    return count;
}

static void unlist_worst(struct exports *exports) {
    struct export *worst = NULL;
    for (int i = 0; i < exports->count; i++)
        if (counts(&exports->kept[i]) && (worst == NULL || is_worse(&exports->kept[i], worst)))
            worst = &exports->kept[i];
    if (worst != NULL)
        worst->unlisted = true;
}

/* Returns the folder of an export, and the folder of its unfinished state. */
static sw_status paths_of(const struct exports *exports, int64_t step, char path[SW_RUN_PATH_CHARS],
                          char partial[SW_RUN_PATH_CHARS]) {
    SW_TRY(path_of(exports, step, path));
    return (size_t)snprintf(partial, SW_RUN_PATH_CHARS, "%s.partial", path) < SW_RUN_PATH_CHARS
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "the path %s is too long", path);
}

/* Refuses to write an export where something exists that the index does not list: after a kill it would be removed. */
static sw_status must_be_free(const struct exports *exports, int64_t step) {
    char path[SW_RUN_PATH_CHARS], partial[SW_RUN_PATH_CHARS];
    struct stat info;
    SW_TRY(paths_of(exports, step, path, partial));
    const char *found = sw_path_lstat(path, &info) == 0 ? path : NULL;
    if (found == NULL && sw_path_lstat(partial, &info) == 0)
        found = partial;
    return found == NULL ? SW_OK
                         : sw_fail(SW_ERR_ARG, "%s is in the way of an export of step %lld: move it away", found,
                                   (long long)step);
}

static sw_status remove_one(const struct exports *exports, int64_t step) {
    char path[SW_RUN_PATH_CHARS], partial[SW_RUN_PATH_CHARS];
    SW_TRY(paths_of(exports, step, path, partial));
    SW_TRY(sw_folder_remove(path));
    return sw_folder_remove(partial);
}

/* Removes the folders of unlisted exports. The index names a folder before it is removed and forgets it afterwards, so
 * that the next start finishes what a kill interrupted. A folder that cannot be removed does not end the training. */
static sw_status remove_unlisted(struct exports *exports) {
    const int before = exports->count;
    int kept = 0;
    for (int i = 0; i < before; i++) {
        SW_HANDLES_ERRORS();
        const sw_status status = exports->kept[i].unlisted ? remove_one(exports, exports->kept[i].step) : SW_OK;
        if (status != SW_OK)
            sw_log_warn("an old export cannot be removed: %s", sw_error_message(status));
        if (!exports->kept[i].unlisted || status != SW_OK)
            exports->kept[kept++] = exports->kept[i];
    }
    exports->count = kept;
    return kept < before ? write_index(exports) : SW_OK;
}

/* Tells whether the log and the export disagree on the loss of the export's step. */
static bool log_differs(const struct sw_steplog *log, const struct export *export) {
    int64_t count;
    const struct sw_eval_record *evaluation = sw_steplog_evaluations(log, &count);
    for (int64_t i = 0; i < count; i++)
        if (evaluation[i].step == export->step)
            return !(fabs(evaluation[i].val_loss - export->loss) <= SAME_LOSS * fabs(export->loss)) &&
                   isfinite(export->loss);
    return false;
}

/* Tells whether the run, as it continues now, has passed through the weights of an export. */
static bool is_of_run(const struct sw_trainer *trainer, const struct sw_steplog *log, const struct export *export) {
    if (export->step > trainer->position.step || export->given_up)
        return false;
    return export->start[0] != '\0' ? sw_run_start_age(&trainer->run, export->start) >= 0 : !log_differs(log, export);
}

/* Names the start of the last commit as the export's, if the export's start is unknown or will soon be forgotten. */
static bool renew_start(const struct sw_trainer *trainer, struct export *export) {
    const int age = sw_run_start_age(&trainer->run, export->start);
    const bool renews =
        (age < 0 || age == SW_RUN_KEPT_STARTS - 1) && strcmp(export->start, trainer->position.start) != 0;
    if (renews)
        snprintf(export->start, sizeof export->start, "%s", trainer->position.start);
    return renews;
}

/* Gives up the exports whose weights the run has gone back from. The index says so before the run can commit a later
 * step. */
static sw_status give_up(const struct sw_trainer *trainer, const struct sw_steplog *log, struct exports *exports) {
    int count = 0;
    bool changes = false;
    for (int i = 0; i < exports->count; i++) {
        struct export *export = &exports->kept[i];
        if (is_of_run(trainer, log, export)) {
            changes |= renew_start(trainer, export);
        } else {
            count += counts(export);
            changes |= !export->given_up;
            export->given_up = true;
        }
    }
    if (count > 0)
        sw_log_info("the run goes on from step %lld, so %s in %s no longer %s: its next exports replace %s",
                    (long long)trainer->position.step, SW_COUNT(count, "export"), exports->folder,
                    count == 1 ? "counts" : "count", count == 1 ? "it" : "them");
    return changes ? write_index(exports) : SW_OK;
}

sw_status sw_exports_tidy(const struct sw_trainer *trainer, const struct sw_steplog *log) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, trainer->folder, "exports/index.json"));
    bool found;
    SW_TRY(sw_path_find(path, &found));
    if (!found)
        return SW_OK;
    struct exports exports = {0};
    SW_TRY(read_index(trainer->folder, &exports));
    SW_TRY(give_up(trainer, log, &exports));
    return remove_unlisted(&exports);
}

/* Removes given-up exports that the export of this step replaces: those up to its step, and all if the index is full.
 */
static sw_status replace_given_up(struct exports *exports, int64_t step) {
    const bool is_full = exports->count == MOST_ENTRIES;
    bool changes = false;
    for (int i = 0; i < exports->count; i++) {
        struct export *export = &exports->kept[i];
        const bool goes = export->given_up && !export->unlisted && (export->step <= step || is_full);
        export->unlisted |= goes;
        changes |= goes;
    }
    if (changes)
        SW_TRY(write_index(exports));
    return remove_unlisted(exports);
}

static sw_status write_weights(struct sw_trainer *trainer, struct sw_gathered_masters *masters, const char *path) {
    const struct sw_checkpoint_format format = {
        .type = SW_F32, .shard_bytes = SW_CHECKPOINT_SHARD_BYTES, .turn_end = trainer->run.turn_end};
    struct sw_load trained, from;
    SW_TRY(sw_state_load(masters->state, gathered_masters_units(masters), &trained));
    SW_TRY(sw_frozen_load(trainer->frozen, &trained, &from));
    const struct sw_peft_export adapters = {.config = &trainer->run.config,
                                            .units = gathered_masters_units(masters),
                                            .from = &from,
                                            .lora = &trainer->run.settings.tuning.lora,
                                            .base = trainer->run.settings.model,
                                            .type = SW_F32};
    const sw_status status = adapters.lora->rank > 0
                                 ? sw_peft_write(path, &adapters)
                                 : sw_checkpoint_write(path, &trainer->run.config, gathered_masters_units(masters),
                                                       &format, &from, trainer->model_folder);
    sw_frozen_rest(trainer->frozen);
    return status;
}

static bool has(struct exports *exports, int64_t step) {
    const struct export *found = find(exports, step);
    return found != NULL && counts(found);
}

static bool list_has(struct sw_trainer *trainer, int64_t step) {
    SW_HANDLES_ERRORS();
    struct exports exports = {0};
    const bool found = read_index(trainer->folder, &exports) == SW_OK && has(&exports, step);
    return found;
}

sw_status sw_exports_has(struct sw_trainer *trainer, int64_t step, bool *out) {
    *out = sw_ranks_rank(trainer->ranks) == 0 && list_has(trainer, step);
    return sw_ranks_spread(trainer->ranks, "whether there is an export", out, sizeof *out);
}

static sw_status write_export(struct sw_trainer *trainer, struct sw_gathered_masters *masters, int64_t step,
                              double validation_loss) {
    struct exports exports = {0};
    char path[SW_RUN_PATH_CHARS], lack[SW_RUN_MODEL_CHARS];
    const int64_t begin_ns = sw_now_ns();
    SW_TRY(read_index(trainer->folder, &exports));
    SW_TRY(path_of(&exports, step, path));
    if (has(&exports, step))
        return SW_OK; /* an export of the commit from which the run continues has the same bits */
    SW_TRY(replace_given_up(&exports, step));
    SW_TRY(must_be_free(&exports, step));
    struct export entry = {.step = step, .loss = validation_loss, .unlisted = true};
    snprintf(entry.start, sizeof entry.start, "%s",
             step > trainer->position.step ? sw_run_last_start(&trainer->run) : trainer->position.start);
    struct export *added = put(&exports, &entry);
    if (added == NULL)
        return sw_fail(SW_ERR_IO, "%s has %d exports, most of which cannot be removed: move some away", exports.folder,
                       MOST_ENTRIES);
    SW_TRY(write_index(&exports));
    SW_TRY(write_weights(trainer, masters, path));
    added->unlisted = false;
    while (count_listed(&exports) > trainer->run.settings.keep)
        unlist_worst(&exports);
    SW_TRY(write_index(&exports));
    const struct sw_run_model from = {trainer->run.settings.model, trainer->model_folder, trainer->run.model_files};
    const bool adapters = trainer->run.settings.tuning.lora.rank > 0; /* beside which nothing of the model is copied */
    sw_log_info("wrote %s in %.3g s%s", path, (double)(sw_now_ns() - begin_ns) * 1e-9,
                adapters ? "" : sw_run_model_lack(path, &from, lack));
    return remove_unlisted(&exports);
}

/* Writes an export: rank 0 writes the files and asks the other ranks for the grains that it does not hold. */
sw_status sw_exports_write(struct sw_trainer *trainer, int64_t step, double validation_loss) {
    struct sw_gathered_masters *masters;
    SW_TRY(sw_engine_settle(trainer->engine));
    SW_TRY(gathered_masters_open(trainer, &masters));
    sw_status status = SW_OK;
    sw_ranks_relax_timeout(trainer->ranks, true);
    if (sw_ranks_rank(trainer->ranks) == 0) {
        status = write_export(trainer, masters, step, validation_loss);
        gathered_masters_end(masters);
    } else {
        status = gathered_masters_follow(masters);
    }
    gathered_masters_close(masters);
    status = sw_ranks_agree_on_error(trainer->ranks, status);
    sw_ranks_relax_timeout(trainer->ranks, false);
    return status;
}
