/* Makes a new run: checks everything, makes the folder and the store, loads the weights and commits them as step 0. */
#include "core/clock.h"
#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/long_work.h"
#include "core/size.h"
#include "job/new_store.h"
#include "job/plan_advice.h"
#include "job/tensor_choice.h"
#include "run/agreement.h"
#include "run/commit_text.h"
#include "run/data/text_data.h"
#include "run/folder/frozen.h"
#include "run/folder/run_lock.h"
#include "run/folder/run_model.h"
#include "run/loading.h"
#include "run/progress.h"
#include "run/trace_file.h"
#include "run/trainer_private.h"
#include "run/turns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The work while a store is made: progress is shown, and a stop request is obeyed. */
struct making {
    struct sw_progress progress;
    struct sw_ranks *ranks;
    const volatile sig_atomic_t *stop;
};

static bool on_progress(void *context, int64_t done_bytes, int64_t total_bytes) {
    struct making *making = context;
    sw_progress_at(&making->progress, done_bytes, total_bytes, sw_now_ns());
    sw_ranks_tick(making->ranks);
    return !*making->stop;
}

/* Makes the store. Every byte of it is written once, which takes a while if it is large. */
static sw_status make_store(void *context, const struct sw_places *places, const char *id, struct sw_store **out) {
    struct sw_trainer *trainer = context;
    const struct sw_new_store wanted = {.plan = trainer->plan,
                                        .places = places,
                                        .id = id,
                                        .allow_buffered = trainer->run.settings.allow_buffered,
                                        .allow_overwrite_device = trainer->run.settings.allow_overwrite_device};
    struct making making = {.progress = sw_progress_begin("taking the store's space", stderr,
                                                          sw_log_takes_escapes(STDERR_FILENO), sw_now_ns()),
                            .ranks = trainer->ranks,
                            .stop = trainer->stop};
    sw_ranks_enter(trainer->ranks, "taking the store's space", 0);
    const sw_status status = sw_new_store_create(&wanted, on_progress, &making, out);
    sw_ranks_leave(trainer->ranks);
    if (status == SW_OK)
        sw_progress_end(&making.progress, sw_store_file_bytes(*out), sw_now_ns());
    else
        sw_progress_break(&making.progress);
    trainer->made_store = status == SW_OK;
    return status;
}

struct sw_rank_stores sw_trainer_stores(struct sw_trainer *trainer) {
    return (struct sw_rank_stores){.ranks = trainer->ranks,
                                   .folder = trainer->folder,
                                   .run = &trainer->run,
                                   .make = make_store,
                                   .context = trainer};
}

static sw_status create_store(struct sw_trainer *trainer) {
    const struct sw_rank_stores stores = sw_trainer_stores(trainer);
    SW_TRY(sw_rank_places_agree(&stores));
    SW_TRY(sw_start_announce(&stores, &trainer->start));
    return sw_rank_store_create(&stores, trainer->start.id, &trainer->store);
}

static sw_status open_model(struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_source_spec spec = {.model = settings->model,
                                        .init = settings->init,
                                        .seed = (uint64_t)settings->seed,
                                        .tiles = settings->tiles,
                                        .tensor_ranks = (int)sw_settings_tensor_ranks(settings),
                                        .tensor_rank = (int)sw_settings_tensor_rank(settings),
                                        .optimizer = sw_settings_optimizer(settings)};
    SW_TRY(sw_source_open_model(&spec, &trainer->source));
    trainer->run.config = *sw_source_config(trainer->source);
    return sw_run_model_folder(NULL, settings->model, &trainer->model_folder);
}

/* Makes the folder with mode 0700, because it will hold weights. */
static sw_status make_folder(struct sw_trainer *trainer) {
    SW_TRY(sw_ranks_first(trainer->ranks, sw_folder_make_with_parents(trainer->folder, 0700, &trainer->made_folders)));
    return sw_ranks_spread(trainer->ranks, "who has made the folder", &trainer->made_folders,
                           sizeof trainer->made_folders);
}

static sw_status write_recipe(const struct sw_trainer *trainer) {
    char path[SW_RUN_PATH_CHARS], *text;
    SW_TRY(sw_path_join(path, sizeof path, trainer->folder, SW_RECIPE_NAME));
    SW_TRY(sw_settings_recipe(&trainer->run.settings, trainer->given, &text));
    const sw_status status = sw_file_replace(path, text, strlen(text), SW_FILE_PRIVATE);
    free(text);
    return status;
}

static sw_status keep_model(struct sw_trainer *trainer) {
    const char *model = trainer->run.settings.model;
    SW_TRY(sw_run_keep_model(trainer->folder, model, &trainer->run.model_files));
    return sw_run_model_folder(trainer->folder, model, &trainer->model_folder);
}

static sw_status begin_run(struct sw_trainer *trainer) {
    SW_TRY(write_recipe(trainer));
    SW_TRY(keep_model(trainer));
    SW_TRY(sw_run_write(trainer->folder, &trainer->run));
    return trainer->run.settings.trace != NULL ? sw_trace_file_check(trainer->run.settings.trace) : SW_OK;
}

static sw_status on_frozen(void *context, int64_t done_grains, int64_t total_grains) {
    const int64_t bytes = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    return on_progress(context, done_grains * bytes, total_grains * bytes)
               ? SW_OK
               : sw_fail(SW_ERR_STOPPED, "stopped before the first commit, so nothing is left of the run");
}

static sw_status write_frozen(struct sw_trainer *trainer, const struct sw_units *units) {
    struct making making = {.progress = sw_progress_begin("writing the frozen weights", stderr,
                                                          sw_log_takes_escapes(STDERR_FILENO), sw_now_ns()),
                            .ranks = trainer->ranks,
                            .stop = trainer->stop};
    struct sw_load from = sw_source_load(trainer->source);
    from.progress = on_frozen;
    from.progress_context = &making;
    sw_ranks_enter(trainer->ranks, "writing the frozen weights", 0);
    const sw_status status = sw_frozen_write(trainer->folder, units, trainer->plan->spec.frozen_units, &from);
    sw_ranks_leave(trainer->ranks);
    sw_progress_break(&making.progress);
    return status;
}

/* Puts the weights of units that are not trained into a file of the run, from which all ranks load them. */
static sw_status keep_frozen(struct sw_trainer *trainer) {
    const struct sw_units *units = sw_model_get_units(trainer->model);
    if (trainer->plan->spec.frozen_units == 0)
        return SW_OK;
    SW_TRY(sw_ranks_first(trainer->ranks, write_frozen(trainer, units)));
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks,
                                   sw_frozen_open(trainer->folder, &trainer->run, units, &trainer->frozen)));
    trainer->run.frozen_digest = sw_frozen_digest(trainer->frozen);
    return SW_OK;
}

/* Finds what is there of the path to the run's folder. */
static sw_status find_folder(const struct sw_trainer *trainer, char folder[SW_RUN_PATH_CHARS]) {
    SW_TRY(sw_path_join(folder, SW_RUN_PATH_CHARS, trainer->folder, "."));
    while (access(folder, F_OK) != 0 && strchr(folder, '/') != NULL)
        *strrchr(folder, '/') = '\0';
    if (access(folder, F_OK) != 0)
        snprintf(folder, SW_RUN_PATH_CHARS, "%s", trainer->folder[0] == '/' ? "/" : ".");
    return SW_OK;
}

/* Checks that this machine's drives have room for the store: in the folders of --nvme, else where the run's folder is
 * or will be. What a start that was cut off has left there is removed before a store is made, so a dry run beside it
 * looks at the sizes in --nvme alone. */
static sw_status check_places(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_store_owner owner = sw_settings_owner(settings);
    const struct sw_model_shape shape = sw_trainer_shape(trainer);
    char folder[SW_RUN_PATH_CHARS];
    struct sw_places places;
    SW_TRY(find_folder(trainer, folder));
    SW_TRY(sw_places_of(&settings->nvme, folder, &owner, &places));
    const struct sw_plan_drives where = {.settings = settings, .places = &places, .of_run = true};
    const sw_status status =
        settings->dry_run && sw_start_is_unfinished(trainer->folder)
            ? sw_new_store_check(&(struct sw_new_store){.plan = trainer->plan, .places = &places})
            : sw_plan_check_drives(trainer->plan, &where, trainer->model, &shape, trainer->devices.compute);
    sw_places_release(&places);
    return status;
}

/* Chooses the size of tensor groups where it is open. The source was opened as if there were none. */
static sw_status choose_groups(struct sw_trainer *trainer) {
    struct sw_tensor_prices prices;
    char folder[SW_RUN_PATH_CHARS], text[SW_TENSOR_CHOICE_CHARS];
    const struct sw_tensor_question question = {.settings = &trainer->run.settings,
                                                .config = &trainer->run.config,
                                                .devices = &trainer->devices,
                                                .folder = folder,
                                                .documents = sw_data_has_documents(trainer->data),
                                                .ranks = trainer->ranks};
    if (!sw_tensor_is_open(&trainer->run.settings))
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, find_folder(trainer, folder)));
    SW_TRY(sw_tensor_choose(&question, &prices));
    if (sw_ranks_rank(trainer->ranks) == 0)
        sw_log_info("%s", sw_tensor_choice_text(&prices, text));
    sw_source_close(trainer->source);
    trainer->source = NULL;
    return sw_ranks_agree_on_error(trainer->ranks, open_model(trainer));
}

static sw_status create(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_settings_check_names(settings));
    SW_TRY(sw_options_to_json(&sw_train_command, settings, &trainer->given));
    SW_TRY(sw_ranks_first(ranks, sw_start_check(trainer->folder)));
    /* The rank says which part of the weights its source has. */
    sw_settings_take_ranks(settings, ranks);
    SW_TRY(sw_ranks_agree_on_error(ranks, open_model(trainer)));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_text_data_check(settings, trainer->run.config.vocab)));
    SW_TRY(sw_trainer_prepare_inputs(trainer));
    SW_TRY(sw_ranks_first(ranks, sw_turns_find(trainer)));
    SW_TRY(choose_groups(trainer));
    SW_TRY(sw_trainer_prepare_plan(trainer));
    if (settings->dry_run)
        return sw_ranks_agree_on_error(ranks, check_places(trainer));
    trainer->run.data_digest = sw_data_digest(trainer->data);
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_data_beside(trainer->data, &trainer->run.beside)));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_settings_make_paths_absolute(settings)));
    SW_TRY(make_folder(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_confine(trainer->folder, &trainer->confined)));
    SW_TRY(sw_ranks_first(ranks, sw_run_lock(trainer->folder, &trainer->lock)));
    SW_TRY(sw_start_clear(ranks, trainer->folder));
    SW_TRY(sw_rank_agree_on_folder(ranks, trainer->folder));
    SW_TRY(sw_trainer_choose_plan(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, check_places(trainer)));
    SW_TRY(create_store(trainer));
    SW_TRY(sw_trainer_add_start(trainer));
    SW_TRY(keep_frozen(trainer));
    SW_TRY(sw_ranks_first(ranks, begin_run(trainer)));
    SW_TRY(sw_rank_agree_on_folder(ranks, trainer->folder));
    SW_TRY(sw_trainer_open_engine(trainer));
    SW_TRY(sw_commit_text_begin(trainer));
    SW_TRY(sw_loading_run(trainer));
    SW_TRY(sw_start_finish(ranks, trainer->folder, &trainer->start));
    sw_ranks_keep(ranks);
    return SW_OK;
}

/* Removes everything that a failed start made. */
static void undo_create(struct sw_trainer *trainer) {
    sw_engine_close(trainer->engine);
    trainer->engine = NULL;
    const struct sw_rank_stores stores = sw_trainer_stores(trainer);
    if (trainer->start.announced) {
        sw_rank_store_undo(&stores, trainer->store);
        trainer->store = NULL;
    }
    sw_start_undo(&stores, &trainer->start);
    if (trainer->lock >= 0)
        sw_run_lock_remove(trainer->folder);
    sw_confine_end(trainer->confined);
    trainer->confined = NULL;
    sw_folder_unmake(trainer->folder, trainer->made_folders);
}

sw_status sw_trainer_create(struct sw_settings *settings, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            struct sw_trainer **out) {
    struct sw_trainer *trainer = NULL;
    SW_TRY(sw_trainer_make(settings->run, ranks, stop, &trainer));
    trainer->run.settings = *settings;
    trainer->run.settings.memory_named[SW_DEVICE] = settings->device_memory != SW_OPTION_AUTO;
    trainer->run.settings.memory_named[SW_HOST] = settings->host_memory != SW_OPTION_AUTO;
    *settings = (struct sw_settings){0};
    sw_long_work_stop_by(stop);
    const sw_status status = create(trainer);
    sw_long_work_stop_by(NULL);
    if (status != SW_OK) {
        undo_create(trainer);
        sw_trainer_close(trainer);
        return status;
    }
    *out = trainer;
    return SW_OK;
}
