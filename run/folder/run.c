#include "run/folder/run.h"

#include "core/confine.h"
#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/json.h"
#include "run/folder/run_stores.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_STEPS (1LL << 53)
/* A run keeps the curve of its learning rate. In version 1, and in files without one, the last step has min_lr. */
enum { SCHEDULE_VERSION = 2 };
enum { DIGEST_CHARS = 24, REAL_CHARS = 32, RECENT_CHARS = 224 };

static void digest_text(uint64_t digest, char text[DIGEST_CHARS]) {
    snprintf(text, DIGEST_CHARS, "%016" PRIx64, digest);
}

/* Puts what names of text stood for, where that is known. */
static void put_files(json_t *root, const char *name, const struct sw_text_files *files) {
    char digest[DIGEST_CHARS];
    digest_text(files->digest, digest);
    if (root != NULL && files->count > 0)
        json_object_set_new(root, name,
                            json_pack("{s:I, s:I, s:s}", "count", (json_int_t)files->count, "bytes",
                                      (json_int_t)files->bytes, "digest", digest));
}

sw_status sw_run_write(const char *folder, const struct sw_run *run) {
    json_t *settings = NULL, *model = NULL;
    char *config = NULL, path[SW_RUN_PATH_CHARS], digest[DIGEST_CHARS];
    digest_text(run->data_digest, digest);
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    SW_TRY(sw_config_to_json(&run->config, &config));
    sw_status status = sw_json_try(config, strlen(config), &model);
    if (status == SW_OK)
        status = sw_options_to_json(&sw_train_command, &run->settings, &settings);
    json_t *root = json_pack(
        "{s:i, s:s, s:i, s:i, s:o, s:o, s:s, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "version", SW_RUN_VERSION,
        "spillway", SW_VERSION, "schedule_version", run->settings.min_lr_at_last ? 1 : SCHEDULE_VERSION, "text_version",
        run->settings.old_text ? 0 : SW_RUN_TEXT_VERSION, "settings", settings, "config", model, "data_digest", digest,
        "ranks", (json_int_t)run->ranks, "whole", run->whole, "stores", sw_run_stores_to_json(run->store, run->ranks),
        "left", sw_run_left_to_json(run), "starts", sw_option_list_to_json(&run->starts), "beside",
        sw_option_list_to_json(&run->beside), "data_text", sw_option_list_to_json(&run->texts.data), "val_text",
        sw_option_list_to_json(&run->texts.val));
    free(config);
    put_files(root, "data_files", &run->texts.data_files);
    put_files(root, "val_files", &run->texts.val_files);
    if (root != NULL)
        sw_run_optimizer_to_json(run, root);
    if (root != NULL && run->turn_end.token != NULL)
        json_object_set_new(root, "turn_end",
                            json_pack("{s:i, s:s}", "id", (int)run->turn_end.id, "token", run->turn_end.token));
    digest_text(run->frozen_digest, digest);
    if (root != NULL && run->frozen_digest != 0)
        json_object_set_new(root, "frozen_digest", json_string(digest));
    if (root != NULL && run->products.library != 0)
        json_object_set_new(root, "products", sw_algorithm_record_to_json(&run->products));
    if (run->model_files != NULL)
        json_object_set(root, "model_files", run->model_files);
    if (run->machine != NULL)
        json_object_set(root, "machine", run->machine);
    if (run->prediction != NULL)
        json_object_set(root, "prediction", run->prediction);
    if (status == SW_OK)
        return sw_json_write_checked_file(path, root, SW_FILE_PRIVATE);
    json_decref(root);
    return status;
}

static sw_status read_config(const json_t *object, const char *path, struct sw_model_config *out) {
    char *text = sw_json_text(object, 0);
    if (text == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    const sw_status status = sw_config_parse(text, path, out);
    free(text);
    return status;
}

/* Reads the digest that a run with frozen weights has. */
static sw_status read_frozen(const json_t *root, const char *path, struct sw_run *run) {
    const char *digest = json_string_value(json_object_get(root, "frozen_digest"));
    const bool read = digest != NULL && sscanf(digest, "%" SCNx64, &run->frozen_digest) == 1;
    return read || run->settings.freeze == NULL
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "%s lacks the frozen_digest of its frozen weights; restore the file", path);
}

/* Reads the token that ends turns, which runs that learn none and older ones do not have. */
static sw_status read_turn_end(const json_t *root, struct sw_run *run) {
    const json_t *end = json_object_get(root, "turn_end"), *id = json_object_get(end, "id");
    const char *token = json_string_value(json_object_get(end, "token"));
    if (token == NULL || !json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return SW_OK;
    run->turn_end = (struct sw_turn_end){.id = (int32_t)json_integer_value(id), .token = strdup(token)};
    return run->turn_end.token != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read run.json");
}

/* Reads what names of text stood for, which older runs do not have. */
static void read_files(const json_t *root, const char *name, struct sw_text_files *out) {
    const json_t *files = json_object_get(root, name);
    const char *digest = json_string_value(json_object_get(files, "digest"));
    const json_int_t count = json_integer_value(json_object_get(files, "count"));
    const json_int_t bytes = json_integer_value(json_object_get(files, "bytes"));
    if (digest != NULL && count > 0 && bytes >= 0 && sscanf(digest, "%" SCNx64, &out->digest) == 1) {
        out->count = count;
        out->bytes = bytes;
    }
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
        return sw_fail(SW_ERR_CORRUPT, "%s lacks settings, config or data_digest; restore the file", path);
    SW_TRY(sw_options_from_json(&sw_train_command, settings, path, &run->settings));
    run->settings.min_lr_at_last = json_integer_value(json_object_get(root, "schedule_version")) < SCHEDULE_VERSION;
    run->settings.old_text = json_integer_value(json_object_get(root, "text_version")) < SW_RUN_TEXT_VERSION;
    if (run->settings.model == NULL)
        return sw_fail(SW_ERR_CORRUPT, "%s does not name the model; restore the file", path);
    for (int i = 0; i < run->settings.nvme.count; i++)
        SW_TRY(sw_option_list_add(&run->nvme, run->settings.nvme.items[i]));
    SW_TRY(sw_run_list_from_json(root, "beside", path, &run->beside));
    SW_TRY(sw_run_list_from_json(root, "data_text", path, &run->texts.data));
    SW_TRY(sw_run_list_from_json(root, "val_text", path, &run->texts.val));
    read_files(root, "data_files", &run->texts.data_files);
    read_files(root, "val_files", &run->texts.val_files);
    SW_TRY(read_turn_end(root, run));
    SW_TRY(read_frozen(root, path, run));
    SW_TRY(sw_run_stores_from_json(root, path, run));
    if (sw_settings_optimizer(&run->settings) != run->optimizer)
        return sw_fail(SW_ERR_CORRUPT,
                       "%s says that the optimizer state is %s and that its stores hold %s; restore the file", path,
                       sw_optimizer_format_name(sw_settings_optimizer(&run->settings)),
                       sw_optimizer_format_name(run->optimizer));
    run->model_files = json_incref(json_object_get(root, "model_files"));
    run->machine = json_incref(json_object_get(root, "machine"));
    run->prediction = json_incref(json_object_get(root, "prediction"));
    SW_TRY(sw_algorithm_record_from_json(json_object_get(root, "products"), path, &run->products));
    return read_config(config, path, &run->config);
}

sw_status sw_run_read(const char *folder, struct sw_run *run) {
    char path[SW_RUN_PATH_CHARS];
    json_t *root;
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    if (!sw_run_is_one(folder))
        return sw_fail(
            SW_ERR_ARG,
            "%s is not the folder of a run: it has no run.json (if the run ended before its first commit, start "
            "it again with train)",
            folder);
    if (access(path, R_OK) != 0 && errno == EACCES)
        return sw_fail(SW_ERR_ARG, "%s cannot be read (%s); if it belongs to another user, ask for permission", path,
                       strerror(EACCES));
    SW_TRY(sw_options_defaults(&sw_train_command, &run->settings));
    SW_TRY(sw_json_read_checked_file(path, SW_RUN_JSON_LIMIT_BYTES, SW_ERR_CORRUPT, &root));
    const sw_status status = parse_run(root, path, run);
    json_decref(root);
    return status;
}

void sw_run_release(struct sw_run *run) {
    sw_options_release(&sw_train_command, &run->settings);
    sw_run_stores_release(run->store, run->ranks);
    sw_option_list_release(&run->nvme);
    sw_option_list_release(&run->beside);
    free(run->turn_end.token);
    sw_option_list_release(&run->texts.data);
    sw_option_list_release(&run->texts.val);
    sw_run_stores_release(run->left, run->left_count);
    sw_option_list_release(&run->starts);
    sw_algorithm_record_release(&run->products);
    json_decref(run->model_files);
    json_decref(run->machine);
    json_decref(run->prediction);
    *run = (struct sw_run){0};
}

bool sw_run_is_one(const char *folder) {
    SW_HANDLES_ERRORS();
    char path[SW_RUN_PATH_CHARS];
    if (sw_path_join(path, sizeof path, folder, "run.json") != SW_OK)
        return false;
    /* A folder that this user may not look into is refused as that when it is read. */
    return sw_path_exists(path) || errno == EACCES;
}

/* JSON has no number that is not finite, so it is written as null. */
static const char *real_text(double value, char text[REAL_CHARS]) {
    snprintf(text, REAL_CHARS, isfinite(value) ? "%.17g" : "null", value);
    return text;
}

sw_status sw_run_position_write(const struct sw_run_position *position, uint64_t data_digest, char *text,
                                size_t chars) {
    char digest[DIGEST_CHARS], recent[SW_RUN_RECENT_STEPS * RECENT_CHARS] = "", loss[REAL_CHARS], norm[REAL_CHARS],
                                                            lr[REAL_CHARS];
    size_t length = 0;
    digest_text(data_digest, digest);
    for (int i = 0; i < SW_RUN_RECENT_STEPS; i++) {
        const struct sw_run_step *step = &position->recent[i];
        if (step->step > 0)
            length += (size_t)snprintf(recent + length, RECENT_CHARS,
                                       "%s{\"step\": %lld, \"loss\": %s, \"loss_tokens\": %lld, \"grad_norm\": %s, "
                                       "\"lr\": %s, \"skipped\": %s}",
                                       length > 0 ? ", " : "", (long long)step->step, real_text(step->loss, loss),
                                       (long long)step->loss_tokens, real_text(step->grad_norm, norm),
                                       real_text(step->lr, lr), step->skipped ? "true" : "false");
    }
    const int used = snprintf(text, chars,
                              "{\"step\": %lld, \"applied_steps\": %lld, \"skipped_steps\": %lld, "
                              "\"loss_scale\": %.17g, \"good_steps\": %lld, \"recent\": [%s], "
                              "\"start\": \"%s\", \"data_digest\": \"%s\"}",
                              (long long)position->step, (long long)position->applied_steps,
                              (long long)position->skipped_steps, position->loss_scale.scale,
                              (long long)position->loss_scale.good_steps, recent, position->start, digest);
    return used < 0 || (size_t)used >= chars ? sw_fail(SW_ERR_INTERNAL, "the commit's text is too long") : SW_OK;
}

static double real_or_nan(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static sw_status read_recent(const json_t *recent, struct sw_run_position *out) {
    for (size_t i = 0; i < SW_RUN_RECENT_STEPS && i < json_array_size(recent); i++) {
        const json_t *step = json_array_get(recent, i);
        const json_t *loss_tokens = json_object_get(step, "loss_tokens");
        out->recent[i] = (struct sw_run_step){.step = json_integer_value(json_object_get(step, "step")),
                                              .loss = real_or_nan(json_object_get(step, "loss")),
                                              .loss_tokens = loss_tokens != NULL ? json_integer_value(loss_tokens) : -1,
                                              .grad_norm = real_or_nan(json_object_get(step, "grad_norm")),
                                              .lr = real_or_nan(json_object_get(step, "lr")),
                                              .skipped = json_is_true(json_object_get(step, "skipped"))};
        if (out->recent[i].step < 0 || out->recent[i].step > out->step)
            return sw_fail(SW_ERR_CORRUPT, "the store's commit of step %lld holds the position of step %lld",
                           (long long)out->step, (long long)out->recent[i].step);
    }
    return SW_OK;
}

/* Steps are also kept as real numbers, which must hold them exactly. */
static bool is_count(long long value) {
    return value >= 0 && value <= MOST_STEPS;
}

sw_status sw_run_position_read(const char *text, uint64_t expected_digest, struct sw_run_position *out) {
    json_t *root, *recent;
    SW_TRY(sw_json_try(text, strlen(text), &root));
    long long step, applied, skipped, good_steps;
    double scale;
    const char *digest, *start = json_string_value(json_object_get(root, "start"));
    uint64_t value = 0;
    sw_status status = SW_OK;
    if (json_unpack(root, "{s:I, s:I, s:I, s:F, s:I, s:o, s:s}", "step", &step, "applied_steps", &applied,
                    "skipped_steps", &skipped, "loss_scale", &scale, "good_steps", &good_steps, "recent", &recent,
                    "data_digest", &digest) != 0 ||
        sscanf(digest, "%" SCNx64, &value) != 1)
        status = sw_json_lacked_memory()
                     ? sw_fail(SW_ERR_NOMEM, "no memory to read the position of the run")
                     : sw_fail(SW_ERR_CORRUPT, "the store's commit does not hold the position of the run");
    else if (!is_count(step) || !is_count(applied) || !is_count(skipped) || !is_count(good_steps) || !isfinite(scale) ||
             scale <= 0.0)
        status =
            sw_fail(SW_ERR_CORRUPT,
                    "the store's commit holds an impossible position: step %lld, of which %lld were applied and %lld "
                    "skipped, with the loss scale %g",
                    step, applied, skipped, scale);
    else if (value != expected_digest)
        status = sw_fail(SW_ERR_ARG, "the store belongs to a run on other data");
    if (status == SW_OK) {
        *out = (struct sw_run_position){.step = step,
                                        .applied_steps = applied,
                                        .skipped_steps = skipped,
                                        .loss_scale = {.scale = scale, .good_steps = good_steps}};
        if (start != NULL)
            snprintf(out->start, sizeof out->start, "%s", start);
        status = read_recent(recent, out);
    }
    json_decref(root);
    return status;
}
