#include "train/run.h"

#include "core/log.h"
#include "train/files.h"
#include "train/places.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_JSON_LIMIT_BYTES ((size_t)1 << 20)
enum { DIGEST_CHARS = 24, REAL_CHARS = 32, RECENT_CHARS = 192, LOST_CHARS = 32 };

static void digest_text(uint64_t digest, char text[DIGEST_CHARS]) {
    snprintf(text, DIGEST_CHARS, "%016" PRIx64, digest);
}

sw_status sw_run_write(const char *folder, const struct sw_run *run) {
    sw_status status = SW_OK;
    json_t *root = NULL, *settings = NULL, *config = NULL;
    char *config_text = NULL, *text = NULL, path[SW_RUN_PATH_CHARS], digest[DIGEST_CHARS];
    digest_text(run->data_digest, digest);
    SW_TRY_GOTO(sw_path_join(path, sizeof path, folder, "run.json"), end);
    SW_TRY_GOTO(sw_options_to_json(&sw_train_command, &run->settings, &settings), end);
    SW_TRY_GOTO(sw_config_to_json(&run->config, &config_text), end);
    config = json_loads(config_text, 0, NULL);
    root = json_pack("{s:i, s:s, s:O, s:O, s:s, s:s}", "version", SW_RUN_VERSION, "spillway", SW_VERSION, "settings",
                     settings, "config", config, "data_digest", digest, "store_id", run->store_id);
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    if (text == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory to write %s", path), end);
    status = sw_file_replace(path, text, strlen(text));
end:
    free(text);
    free(config_text);
    json_decref(root);
    json_decref(config);
    json_decref(settings);
    return status;
}

static sw_status read_config(const json_t *object, const char *path, struct sw_model_config *out) {
    char *text = json_dumps(object, 0);
    if (text == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    const sw_status status = sw_config_parse(text, path, out);
    free(text);
    return status;
}

static sw_status parse_run(const json_t *root, const char *path, struct sw_run *run) {
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    const json_t *settings = json_object_get(root, "settings"), *config = json_object_get(root, "config");
    const char *digest = json_string_value(json_object_get(root, "data_digest"));
    if (version != SW_RUN_VERSION)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s has version %lld; this program reads version %d", path,
                       (long long)version, SW_RUN_VERSION);
    if (!json_is_object(settings) || !json_is_object(config) || digest == NULL ||
        sscanf(digest, "%" SCNx64, &run->data_digest) != 1)
        return sw_fail(SW_ERR_CORRUPT, "%s lacks settings, config or data_digest", path);
    const char *store_id = json_string_value(json_object_get(root, "store_id"));
    snprintf(run->store_id, sizeof run->store_id, "%s", store_id != NULL ? store_id : "");
    SW_TRY(sw_options_from_json(&sw_train_command, settings, path, &run->settings));
    return read_config(config, path, &run->config);
}

sw_status sw_run_read(const char *folder, struct sw_run *run) {
    char path[SW_RUN_PATH_CHARS], *text = NULL;
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    if (!sw_run_is_one(folder))
        return sw_fail(SW_ERR_ARG,
                       "%s is not the folder of a run: it has no run.json (what is left of a run that ended before its "
                       "first commit must be removed and begun again)",
                       folder);
    SW_TRY(sw_options_defaults(&sw_train_command, &run->settings));
    SW_TRY(sw_file_read_text(path, RUN_JSON_LIMIT_BYTES, &text));
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    sw_status status = root == NULL
                           ? sw_fail(SW_ERR_CORRUPT, "%s is not JSON: %s in line %d", path, error.text, error.line)
                           : parse_run(root, path, run);
    json_decref(root);
    free(text);
    return status;
}

bool sw_run_is_one(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    if (sw_path_join(path, sizeof path, folder, "run.json") != SW_OK) {
        sw_error_clear();
        return false;
    }
    return access(path, F_OK) == 0;
}

/* A step that is or may be lost is never lost in silence. */
static void warn_of_bad_records(const struct sw_store *store) {
    static const char *const meanings[] = {
        [SW_STORE_RECORD_HARMLESS] = "it is that of an earlier commit, or of one that never finished",
        [SW_STORE_RECORD_LOST] = "its commit had finished, and it has been damaged since",
        [SW_STORE_RECORD_UNSURE] = "its commit never finished, or it has been damaged since"};
    const struct sw_store_bad_record *bad;
    const int count = sw_store_bad_records(store, &bad);
    const long long opened = (long long)sw_store_last_commit(store)->step;
    for (int i = 0; i < count; i++) {
        char lost[LOST_CHARS] = "a later step";
        if (bad[i].step >= 0)
            snprintf(lost, sizeof lost, "step %lld", (long long)bad[i].step);
        if (bad[i].loss == SW_STORE_RECORD_HARMLESS)
            sw_log_info(
                "%s: a commit record at offset %lld is not whole: %s; nothing is lost, step %lld is whole, and the "
                "next commit replaces it",
                bad[i].path, (long long)bad[i].offset_bytes, meanings[bad[i].loss], opened);
        else
            sw_log_warn(
                "%s: a commit record at offset %lld is damaged: %s %s lost: %s; the store is opened at step %lld",
                bad[i].path, (long long)bad[i].offset_bytes, lost,
                bad[i].loss == SW_STORE_RECORD_LOST ? "is" : "may be", meanings[bad[i].loss], opened);
    }
}

static sw_status open_places(const struct sw_places *places, const struct sw_run *run, struct sw_store **out) {
    char id[SW_STORE_ID_CHARS];
    SW_TRY(sw_store_open(places->path, places->count, run->settings.allow_buffered, SW_STORE_NEWEST, out));
    for (int i = 0; i < places->count; i++)
        SW_TRY(sw_store_limit(*out, places->path[i], places->most_bytes[i]));
    if (run->store_id[0] == '\0' || strcmp(sw_store_id(*out, id), run->store_id) == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "the store in %s is another run's: name the place of this run's by --nvme",
                   places->path[0]);
}

sw_status sw_run_open_store(const char *folder, const struct sw_run *run, const struct sw_option_list *moved,
                            struct sw_store **out) {
    const bool elsewhere = moved != NULL && moved->count > 0;
    struct sw_places places;
    *out = NULL;
    SW_TRY(sw_places_of(elsewhere ? moved : &run->settings.nvme, folder, &places));
    const sw_status status = open_places(&places, run, out);
    sw_places_release(&places);
    if (status == SW_OK) {
        warn_of_bad_records(*out);
        return SW_OK;
    }
    sw_store_close(*out);
    *out = NULL;
    return status;
}

/* JSON has no word for a number that is not finite. */
static const char *real_text(double value, char text[REAL_CHARS]) {
    snprintf(text, REAL_CHARS, isfinite(value) ? "%.17g" : "null", value);
    return text;
}

sw_status sw_run_position_write(const struct sw_run_position *position, uint64_t data_digest, char *text,
                                size_t chars) {
    char digest[DIGEST_CHARS], recent[SW_RUN_RECENT_STEPS * RECENT_CHARS] = "", loss[REAL_CHARS], norm[REAL_CHARS];
    size_t length = 0;
    digest_text(data_digest, digest);
    for (int i = 0; i < SW_RUN_RECENT_STEPS; i++) {
        const struct sw_run_step *step = &position->recent[i];
        if (step->step > 0)
            length += (size_t)snprintf(recent + length, RECENT_CHARS,
                                       "%s{\"step\": %lld, \"loss\": %s, \"grad_norm\": %s, \"skipped\": %s}",
                                       length > 0 ? ", " : "", (long long)step->step, real_text(step->loss, loss),
                                       real_text(step->grad_norm, norm), step->skipped ? "true" : "false");
    }
    const int used =
        snprintf(text, chars,
                 "{\"step\": %lld, \"applied_steps\": %lld, \"skipped_steps\": %lld, "
                 "\"loss_scale\": %.17g, \"good_steps\": %lld, \"recent\": [%s], "
                 "\"data_digest\": \"%s\"}",
                 (long long)position->step, (long long)position->applied_steps, (long long)position->skipped_steps,
                 position->loss_scale.scale, (long long)position->loss_scale.good_steps, recent, digest);
    return used < 0 || (size_t)used >= chars ? sw_fail(SW_ERR_INTERNAL, "the commit's text is too long") : SW_OK;
}

static double real_or_nan(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void read_recent(const json_t *recent, struct sw_run_position *out) {
    for (size_t i = 0; i < SW_RUN_RECENT_STEPS && i < json_array_size(recent); i++) {
        const json_t *step = json_array_get(recent, i);
        out->recent[i] = (struct sw_run_step){.step = json_integer_value(json_object_get(step, "step")),
                                              .loss = real_or_nan(json_object_get(step, "loss")),
                                              .grad_norm = real_or_nan(json_object_get(step, "grad_norm")),
                                              .skipped = json_is_true(json_object_get(step, "skipped"))};
    }
}

sw_status sw_run_position_read(const char *text, uint64_t expected_digest, struct sw_run_position *out) {
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_t *recent;
    long long step, applied, skipped, good_steps;
    double scale;
    const char *digest;
    uint64_t value = 0;
    sw_status status = SW_OK;
    if (json_unpack(root, "{s:I, s:I, s:I, s:F, s:I, s:o, s:s}", "step", &step, "applied_steps", &applied,
                    "skipped_steps", &skipped, "loss_scale", &scale, "good_steps", &good_steps, "recent", &recent,
                    "data_digest", &digest) != 0 ||
        sscanf(digest, "%" SCNx64, &value) != 1)
        status = sw_fail(SW_ERR_CORRUPT, "the store's commit does not say where the run stands");
    else if (value != expected_digest)
        status = sw_fail(SW_ERR_ARG, "the store belongs to a run on other data");
    if (status == SW_OK) {
        *out = (struct sw_run_position){.step = step,
                                        .applied_steps = applied,
                                        .skipped_steps = skipped,
                                        .loss_scale = {.scale = scale, .good_steps = good_steps}};
        read_recent(recent, out);
    }
    json_decref(root);
    return status;
}
