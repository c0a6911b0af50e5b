#include "job/plan_advice.h"

#include "core/error_scope.h"
#include "job/new_store.h"

#include <stdio.h>

enum { LEAST_SEQ = 64, MESSAGE_CHARS = 1024, FLAGS_CHARS = 128 };

/* Tells whether the plan fits with these settings. The model for them differs only in the shape that they imply. */
static bool fits(const struct sw_settings *settings, const struct sw_model_config *config,
                 const struct sw_model_shape *shape, struct sw_device *device) {
    SW_HANDLES_ERRORS();
    struct sw_settings tried = *settings; /* a shallow copy: the caller keeps the strings */
    struct sw_model_shape smaller = *shape;
    struct sw_model *made = NULL;
    struct sw_plan *plan = NULL;
    smaller.batch = settings->micro_batch;
    smaller.seq = settings->seq;
    sw_status status = sw_model_create(config, &smaller, device, &made);
    if (status == SW_OK)
        status = sw_plan_fit(&tried, made, &plan);
    if (status == SW_OK)
        sw_plan_destroy(plan);
    sw_model_destroy(made);
    return status == SW_OK;
}

/* Shrinks settings in the order in which a user gives them up most easily: the micro-batch, which changes only the
 * order of sums, then kept intermediates, then the length of sequences. Fills flags with the first settings that fit;
 * returns false if none do. */
static bool find_smaller(struct sw_settings settings, const struct sw_model_config *config,
                         const struct sw_model_shape *shape, struct sw_device *device, char flags[FLAGS_CHARS]) {
    const struct sw_settings given = settings;
    bool found = false;
    settings.micro_batch = 1;
    found = given.micro_batch > 1 && fits(&settings, config, shape, device);
    if (!found && given.recompute != SW_OPTION_RECOMPUTE_ALL) {
        settings.recompute = SW_OPTION_RECOMPUTE_ALL;
        found = fits(&settings, config, shape, device);
    }
    while (!found && settings.seq / 2 >= LEAST_SEQ && settings.seq % 2 == 0) {
        settings.seq /= 2;
        found = fits(&settings, config, shape, device);
    }
    int chars = 0;
    if (settings.micro_batch != given.micro_batch)
        chars += snprintf(flags + chars, (size_t)(FLAGS_CHARS - chars), " --micro-batch 1");
    if (settings.recompute != given.recompute)
        chars += snprintf(flags + chars, (size_t)(FLAGS_CHARS - chars), " --recompute all");
    if (settings.seq != given.seq)
        snprintf(flags + chars, (size_t)(FLAGS_CHARS - chars), " --seq %lld", (long long)settings.seq);
    return found;
}

/* Returns the next smaller micro-batch of which a step has a whole number, or 0. */
static int64_t next_micro_batch(const struct sw_settings *settings) {
    const int64_t sequences = settings->batch_tokens / settings->seq;
    int64_t next = settings->micro_batch - 1;
    while (next > 0 && sequences % next != 0)
        next--;
    return next;
}

void sw_plan_lower_micro_batch(struct sw_settings *settings, const struct sw_model_config *config,
                               const struct sw_model_shape *shape, struct sw_device *device) {
    struct sw_settings tried = *settings;
    if (!settings->micro_batch_open || settings->micro_batch <= 1 || sw_settings_ranks(settings) > 1)
        return;
    while (tried.micro_batch > 0 && !fits(&tried, config, shape, device))
        tried.micro_batch = next_micro_batch(&tried);
    if (tried.micro_batch > 0)
        settings->micro_batch = tried.micro_batch;
}

sw_status sw_plan_fit_or_advise(struct sw_settings *settings, const struct sw_model *model,
                                const struct sw_model_shape *shape, struct sw_device *device, struct sw_plan **out) {
    char message[MESSAGE_CHARS], flags[FLAGS_CHARS] = "";
    const struct sw_settings given = *settings;
    const sw_status status = sw_plan_fit(settings, model, out);
    if (status != SW_ERR_BUDGET)
        return status;
    snprintf(message, sizeof message, "%s", sw_error_message(status));
    sw_error_clear();
    if (find_smaller(given, sw_model_get_config(model), shape, device, flags))
        return sw_fail(status, "%s; with%s it fits", message, flags);
    return sw_fail(status, "%s", message);
}

/* A training whose store has no room, and the drives that it shall have it on. */
struct drives {
    const struct sw_places *places;
    struct sw_drive_look look;
    bool allow_buffered;
};

static sw_status check_store(const struct drives *drives, const struct sw_plan *plan) {
    const struct sw_new_store wanted = {
        .plan = plan, .places = drives->places, .allow_buffered = drives->allow_buffered};
    return sw_new_store_check_drives(&wanted, &drives->look);
}

/* Tells whether the drives have room for the plan with another format of the optimizer state. */
static bool has_room_with(const struct drives *drives, struct sw_settings settings,
                          const struct sw_model_config *config, const struct sw_model_shape *shape,
                          struct sw_device *device) {
    SW_HANDLES_ERRORS();
    struct sw_model_shape narrow = *shape;
    struct sw_model *model = NULL;
    struct sw_plan *plan = NULL;
    narrow.optimizer = sw_settings_optimizer(&settings);
    sw_status status = sw_model_create(config, &narrow, device, &model);
    if (status == SW_OK)
        status = sw_plan_fit(&settings, model, &plan);
    if (status == SW_OK)
        status = check_store(drives, plan);
    sw_plan_destroy(plan);
    sw_model_destroy(model);
    return status == SW_OK;
}

/* Returns the format of the optimizer state nearest to the one at hand with which the drives have room, or the one at
 * hand. */
static sw_optimizer_format find_format(const struct drives *drives, const struct sw_settings *settings,
                                       const struct sw_model_config *config, const struct sw_model_shape *shape,
                                       struct sw_device *device) {
    const sw_optimizer_format given = (sw_optimizer_format)settings->optimizer_state;
    struct sw_settings tried = *settings; /* a shallow copy: the caller keeps the strings */
    for (int format = (int)given + 1; format < SW_OPTIMIZER_FORMATS; format++) {
        tried.optimizer_state = format;
        if (has_room_with(drives, tried, config, shape, device))
            return (sw_optimizer_format)format;
    }
    return given;
}

sw_status sw_plan_check_drives(const struct sw_plan *plan, const struct sw_plan_drives *where,
                               const struct sw_model *model, const struct sw_model_shape *shape,
                               struct sw_device *device) {
    const struct sw_settings *settings = where->settings;
    const struct drives drives = {.places = where->places,
                                  .look = {.named = settings->nvme.count > 0 || where->of_run,
                                           .ranks = sw_places_are_shared(&settings->nvme) ? settings->local_ranks : 1},
                                  .allow_buffered = settings->allow_buffered};
    char message[MESSAGE_CHARS];
    const sw_status status = check_store(&drives, plan);
    if (status != SW_ERR_SPACE)
        return status;
    snprintf(message, sizeof message, "%s", sw_error_message(status));
    sw_error_clear();
    const sw_optimizer_format format = find_format(&drives, settings, sw_model_get_config(model), shape, device);
    if ((int)format != settings->optimizer_state)
        return sw_fail(status, "%s; with --optimizer-state %s it fits, or name a larger drive by --nvme", message,
                       sw_optimizer_format_name(format));
    return sw_fail(status, "%s; no --optimizer-state fits there, so name a larger drive, or several, by --nvme",
                   message);
}
