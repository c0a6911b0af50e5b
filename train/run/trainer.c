#include "train/run/trainer.h"
#include "train/plan/settings_plan.h"

#include "core/clock.h"
#include "core/confine.h"
#include "core/log.h"
#include "core/long_work.h"
#include "core/machine.h"
#include "train/data/text_data.h"
#include "train/devices/algorithms.h"
#include "train/devices/gpu_verdict.h"
#include "train/files/files.h"
#include "train/folder/run_lock.h"
#include "train/folder/run_starts.h"
#include "train/plan/plan_advice.h"
#include "train/plan/plan_choice.h"
#include "train/run/agreement.h"
#include "train/run/commit_text.h"
#include "train/run/loading.h"
#include "train/run/progress.h"
#include "train/run/trace_file.h"
#include "train/settings/room.h"
#include "train/stores/new_store.h"
#include "train/stores/rank_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sw_status open_data(struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    struct sw_data_spec spec = {
        .files = (const char *const *)settings->data.items,
        .file_count = settings->data.count,
        .format = {.type = settings->tokens, .flag = "--tokens"},
        .vocab = trainer->run.config.vocab,
        .seq = settings->seq,
        .seed = (uint64_t)settings->seed,
    };
    SW_TRY(sw_settings_validation(settings, &spec.validation_percent, &spec.validation_file));
    const sw_status status = sw_data_open(&spec, &trainer->data);
    return status == SW_ERR_IO && sw_run_is_one(trainer->folder)
               ? sw_fail_while(status, "opening the data of this run; if it was moved, --data (or --val) says where it "
                                       "is now")
               : status;
}

static sw_status check_settings(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    settings->ranks = sw_ranks_count(trainer->ranks);
    settings->rank = sw_ranks_rank(trainer->ranks);
    settings->local_rank = sw_ranks_local_rank(trainer->ranks);
    settings->local_ranks = sw_ranks_local_count(trainer->ranks);
    if (settings->ranks > 1 && settings->speculate == SW_SPECULATE_ALWAYS)
        return sw_fail(SW_ERR_ARG, "--speculate always works with one rank only; leave it out");
    return sw_settings_check(settings);
}

static sw_status share_cores(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    int64_t cores;
    SW_TRY(sw_ranks_cores(trainer->ranks, &cores));
    if (settings->threads == SW_OPTION_AUTO)
        settings->threads = cores;
    return sw_ranks_least(trainer->ranks, &settings->threads, 1);
}

static sw_status open_inputs(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    SW_TRY(sw_settings_open_devices(settings, &trainer->devices));
    SW_TRY(sw_gpu_verdict_require(&trainer->devices));
    SW_TRY(sw_algorithms_begin(trainer->devices.compute, &trainer->run.products));
    const struct sw_device_info info = sw_devices_info(&trainer->devices);
    sw_ranks_keep_to_node(trainer->ranks, info.bus);
    return sw_settings_resolve(settings, &trainer->run.config, &info);
}

/* Opens the data, which says how many steps --epochs are. */
static sw_status open_windows(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    SW_TRY(open_data(trainer));
    SW_TRY(sw_settings_resolve_steps(settings, sw_data_train_windows(trainer->data)));
    const struct sw_schedule schedule = sw_settings_schedule(settings);
    return sw_schedule_check(&schedule);
}

/* Rank 0 makes tokens of text, and the others find them. */
static sw_status open_tokens(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    struct sw_ranks *ranks = trainer->ranks;
    const int64_t vocab = trainer->run.config.vocab;
    SW_TRY(sw_ranks_first(ranks, sw_text_data_prepare(settings, vocab, true)));
    if (sw_ranks_count(ranks) > 1)
        SW_TRY(sw_ranks_gate(ranks, sw_text_data_prepare(settings, vocab, false)));
    return sw_ranks_gate(ranks, open_windows(trainer));
}

static struct sw_model_shape shape_of(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    return (struct sw_model_shape){.type = sw_settings_type(settings),
                                   .batch = settings->micro_batch,
                                   .seq = settings->seq,
                                   .tiles = settings->tiles,
                                   .documents = sw_data_has_documents(trainer->data)};
}

static sw_status make_model(struct sw_trainer *trainer) {
    const struct sw_model_shape shape = shape_of(trainer);
    return sw_model_create(&trainer->run.config, &shape, trainer->devices.compute, &trainer->model);
}

static sw_status make_plan(struct sw_trainer *trainer) {
    const struct sw_device_info info = sw_devices_info(&trainer->devices);
    struct sw_settings *settings = &trainer->run.settings;
    const struct sw_model_shape shape = shape_of(trainer);
    SW_TRY(sw_plan_fit_or_advise(settings, trainer->model, &shape, trainer->devices.compute, &trainer->plan));
    return sw_room_check(trainer->plan, &info, settings);
}

/* Prepares device, model, data and plan: everything that can be refused before anything is written. After each part
 * that a rank does by itself, all ranks learn whether any failed. */
static sw_status prepare(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_ranks_gate(ranks, check_settings(trainer)));
    SW_TRY(sw_agree_on_settings(ranks, &trainer->run.settings));
    SW_TRY(sw_ranks_begin_watch(ranks, trainer->run.settings.rank_timeout));
    SW_TRY(share_cores(trainer));
    SW_TRY(sw_ranks_gate(ranks, open_inputs(trainer)));
    SW_TRY(open_tokens(trainer));
    SW_TRY(sw_agree_on_inputs(trainer));
    SW_TRY(sw_ranks_use_gpu(ranks, &trainer->devices));
    if (sw_ranks_comm(ranks) != NULL)
        sw_comm_use_library_reduction(ranks->comm, trainer->run.settings.reduce == SW_REDUCE_LIBRARY);
    /* Rank 0 chooses algorithms for its matrix products first, and the others take the same. */
    SW_TRY(sw_ranks_first(ranks, make_model(trainer)));
    SW_TRY(sw_algorithms_agree(ranks, trainer->devices.compute, &trainer->run.products));
    SW_TRY(sw_ranks_gate(ranks, trainer->model == NULL ? make_model(trainer) : SW_OK));
    return sw_ranks_gate(ranks, make_plan(trainer));
}

static sw_status open_engine(struct sw_trainer *trainer) {
    const struct sw_engine_spec spec = {
        .plan = trainer->plan,
        .device = trainer->devices.compute,
        .host = trainer->devices.host,
        .store = trainer->store,
        .io_depth = SW_STORE_IO_DEPTH,
        .speculation = (sw_speculation)trainer->run.settings.speculate,
        .ops = sw_model_ops(trainer->model),
        .described = true,
        .applied_steps = trainer->position.applied_steps,
        .skipped_steps = trainer->position.skipped_steps,
        .loss_scale = trainer->position.loss_scale,
        .trace_ops = trainer->run.settings.trace != NULL && sw_ranks_rank(trainer->ranks) == 0 ? SW_TRACE_OPS : 0,
        .comm = sw_ranks_comm(trainer->ranks),
        .watch = sw_ranks_watch(trainer->ranks),
    };
    return sw_engine_open(&spec, &trainer->engine);
}

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
    struct making making = {
        .progress = sw_progress_begin("taking the store's space", stderr, isatty(STDERR_FILENO) == 1, sw_now_ns()),
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

static struct sw_rank_stores stores_of(struct sw_trainer *trainer) {
    return (struct sw_rank_stores){.ranks = trainer->ranks,
                                   .folder = trainer->folder,
                                   .run = &trainer->run,
                                   .make = make_store,
                                   .context = trainer};
}

static sw_status create_store(struct sw_trainer *trainer) {
    const struct sw_rank_stores stores = stores_of(trainer);
    SW_TRY(sw_rank_places_agree(&stores));
    SW_TRY(sw_start_announce(&stores, &trainer->start));
    return sw_rank_store_create(&stores, trainer->start.id, &trainer->store);
}

/* Chooses the cheapest plan and checks its memory again, as it may take more than the plan that was checked. */
static sw_status choose_by_price(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    const struct sw_device_info info = sw_devices_info(&trainer->devices);
    SW_TRY(sw_plan_choose_at_start(settings, trainer->model, &trainer->devices, trainer->folder, trainer->ranks,
                                   &trainer->plan, &trainer->predicted_step_s));
    SW_TRY(sw_ranks_gate(trainer->ranks, sw_room_check(trainer->plan, &info, settings)));
    return sw_room_say(trainer->plan, &info, settings);
}

static sw_status open_model(struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    SW_TRY(sw_source_open_model(settings->model, settings->init, (uint64_t)settings->seed, settings->tiles,
                                &trainer->source));
    trainer->run.config = *sw_source_config(trainer->source);
    return SW_OK;
}

/* Makes the folder with mode 0700, because it will hold weights. */
static sw_status make_folder(struct sw_trainer *trainer) {
    SW_TRY(sw_ranks_first(trainer->ranks, sw_folder_make_with_parents(trainer->folder, 0700, &trainer->made_folders)));
    return sw_ranks_spread(trainer->ranks, "who has made the folder", &trainer->made_folders,
                           sizeof trainer->made_folders);
}

/* Lists the id of this start in run.json before its first commit, which carries the id. */
static sw_status add_start(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    char id[SW_STORE_ID_CHARS];
    SW_TRY(sw_ranks_gate(ranks, sw_store_new_id(id)));
    SW_TRY(sw_ranks_spread(ranks, "identity of the start", id, sizeof id));
    return sw_ranks_gate(ranks, sw_run_add_start(&trainer->run, trainer->position.start, id));
}

static sw_status write_recipe(const struct sw_trainer *trainer) {
    char path[SW_RUN_PATH_CHARS], *text;
    SW_TRY(sw_path_join(path, sizeof path, trainer->folder, SW_RECIPE_NAME));
    SW_TRY(sw_settings_recipe(&trainer->run.settings, trainer->given, &text));
    const sw_status status = sw_file_replace(path, text, strlen(text), SW_FILE_PRIVATE);
    free(text);
    return status;
}

static sw_status begin_run(struct sw_trainer *trainer) {
    SW_TRY(write_recipe(trainer));
    SW_TRY(sw_run_write(trainer->folder, &trainer->run));
    return trainer->run.settings.trace != NULL ? sw_trace_file_check(trainer->run.settings.trace) : SW_OK;
}

/* Checks that the store has room: in the folders of --nvme, else in what is there of the path to the run's folder. */
static sw_status check_places(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_store_owner owner = sw_settings_owner(settings);
    char folder[SW_RUN_PATH_CHARS];
    struct sw_places places;
    SW_TRY(sw_path_join(folder, sizeof folder, trainer->folder, "."));
    while (access(folder, F_OK) != 0 && strchr(folder, '/') != NULL)
        *strrchr(folder, '/') = '\0';
    if (access(folder, F_OK) != 0)
        snprintf(folder, sizeof folder, "%s", trainer->folder[0] == '/' ? "/" : ".");
    SW_TRY(sw_places_of(&settings->nvme, folder, &owner, &places));
    const sw_status status = sw_new_store_check(&(struct sw_new_store){.plan = trainer->plan, .places = &places});
    sw_places_release(&places);
    return status;
}

static sw_status create(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_settings_check_names(settings));
    SW_TRY(sw_options_to_json(&sw_train_command, settings, &trainer->given));
    SW_TRY(sw_ranks_first(ranks, sw_start_check(trainer->folder)));
    SW_TRY(sw_ranks_gate(ranks, open_model(trainer)));
    SW_TRY(prepare(trainer));
    if (settings->dry_run)
        return sw_ranks_gate(ranks, check_places(trainer));
    trainer->run.data_digest = sw_data_digest(trainer->data);
    SW_TRY(sw_ranks_gate(ranks, sw_data_beside(trainer->data, &trainer->run.beside)));
    SW_TRY(sw_ranks_gate(ranks, sw_settings_make_paths_absolute(settings)));
    SW_TRY(make_folder(trainer));
    SW_TRY(sw_ranks_gate(ranks, sw_confine(trainer->folder, &trainer->confined)));
    SW_TRY(sw_ranks_first(ranks, sw_run_lock(trainer->folder, &trainer->lock)));
    SW_TRY(sw_start_clear(ranks, trainer->folder));
    SW_TRY(sw_rank_agree_on_folder(ranks, trainer->folder));
    SW_TRY(choose_by_price(trainer));
    SW_TRY(sw_agree_on_plan(trainer));
    SW_TRY(create_store(trainer));
    SW_TRY(add_start(trainer));
    SW_TRY(sw_ranks_first(ranks, begin_run(trainer)));
    SW_TRY(sw_rank_agree_on_folder(ranks, trainer->folder));
    SW_TRY(open_engine(trainer));
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
    const struct sw_rank_stores stores = stores_of(trainer);
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

static sw_status make(const char *folder, struct sw_ranks *ranks, struct sw_trainer **out) {
    struct sw_trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the run");
    trainer->folder = folder;
    trainer->ranks = ranks;
    trainer->start_ns = sw_now_ns();
    trainer->lock = -1;
    *out = trainer;
    return SW_OK;
}

sw_status sw_trainer_create(struct sw_settings *settings, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            struct sw_trainer **out) {
    struct sw_trainer *trainer = NULL;
    SW_TRY(make(settings->run, ranks, &trainer));
    trainer->stop = stop;
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

static sw_status check_store(const struct sw_trainer *trainer) {
    const struct sw_units *units = sw_model_get_units(trainer->model);
    bool same = sw_store_unit_count(trainer->store) == units->count;
    for (int64_t u = 0; same && u < units->count; u++)
        same = sw_store_unit_whole_grains(trainer->store, u) == units->unit[u].grains;
    if (!same)
        return sw_fail(
            SW_ERR_CORRUPT,
            "the store was made for another model than run.json describes; restore the one that belongs to it");
    if ((sw_store_generations(trainer->store) == 1) != trainer->plan->spec.one_generation)
        return sw_fail(
            SW_ERR_ARG,
            "the store was made with another --durability than run.json names; restore the one that belongs to it");
    return SW_OK;
}

/* Edits the settings of a run that is resumed; apply NULL: no edit. */
struct change {
    sw_status (*apply)(void *context, struct sw_settings *settings);
    void *context;
};

/* Applies the edit, and notes what the user named now: only budgets that are named may exceed the available memory, and
 * only a chunk size that is not named may be raised. */
static sw_status apply_change(const struct change *change, struct sw_settings *settings) {
    enum { UNNAMED = INT32_MIN };
    const int64_t chunk_grains = settings->chunk_grains;
    settings->chunk_grains = UNNAMED;
    const int64_t before[] = {[SW_DEVICE] = settings->device_memory, [SW_HOST] = settings->host_memory};
    int64_t *const now[] = {[SW_DEVICE] = &settings->device_memory, [SW_HOST] = &settings->host_memory};
    settings->device_memory = settings->host_memory = UNNAMED;
    const sw_status status = change->apply(change->context, settings);
    for (int tier = SW_DEVICE; tier <= SW_HOST; tier++) {
        settings->memory_named[tier] = *now[tier] != UNNAMED && *now[tier] != SW_OPTION_AUTO;
        *now[tier] = *now[tier] == UNNAMED ? before[tier] : *now[tier];
    }
    settings->chunk_may_grow = settings->chunk_grains == UNNAMED;
    settings->chunk_grains = settings->chunk_may_grow ? chunk_grains : settings->chunk_grains;
    return status;
}

static sw_status read_run(struct sw_trainer *trainer, const struct change *change) {
    struct sw_settings *settings = &trainer->run.settings;
    SW_TRY(sw_run_read(trainer->folder, &trainer->run));
    trainer->past_schedule = sw_settings_schedule(settings);
    if (trainer->run.ranks != sw_ranks_count(trainer->ranks))
        sw_settings_regroup(settings, trainer->run.ranks);
    if (change->apply != NULL)
        SW_TRY(apply_change(change, settings));
    return settings->trace != NULL && sw_ranks_rank(trainer->ranks) == 0 ? sw_trace_file_check(settings->trace) : SW_OK;
}

static sw_status open_store(struct sw_trainer *trainer) {
    struct sw_rank_stores stores = stores_of(trainer);
    stores.previous = trainer->run.settings.previous;
    SW_TRY(sw_ranks_gate(trainer->ranks, sw_settings_make_paths_absolute(&trainer->run.settings)));
    SW_TRY(sw_rank_places_agree(&stores));
    return sw_rank_store_open(&stores, &trainer->store);
}

static sw_status read_position(struct sw_trainer *trainer) {
    SW_TRY(check_store(trainer));
    return sw_run_position_read(sw_store_last_commit(trainer->store)->meta, trainer->run.data_digest,
                                &trainer->position);
}

/* Locks the run. A folder without a run gets no lock file: reading it fails with a better error. */
static sw_status lock_run(struct sw_trainer *trainer) {
    return sw_run_is_one(trainer->folder) ? sw_run_lock(trainer->folder, &trainer->lock) : SW_OK;
}

static sw_status resume(struct sw_trainer *trainer, const struct change *change) {
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_ranks_gate(ranks, sw_confine(trainer->folder, &trainer->confined)));
    SW_TRY(sw_ranks_first(ranks, lock_run(trainer)));
    SW_TRY(sw_rank_agree_on_folder(ranks, trainer->folder));
    SW_TRY(sw_ranks_gate(ranks, read_run(trainer, change)));
    SW_TRY(prepare(trainer));
    SW_TRY(sw_ranks_gate(ranks, sw_data_check_beside(trainer->data, &trainer->run.beside)));
    SW_TRY(sw_ranks_gate(ranks, sw_data_check_digest(trainer->data, trainer->run.data_digest)));
    SW_TRY(choose_by_price(trainer));
    SW_TRY(sw_agree_on_plan(trainer));
    SW_TRY(open_store(trainer));
    SW_TRY(sw_ranks_gate(ranks, read_position(trainer)));
    SW_TRY(add_start(trainer));
    SW_TRY(sw_ranks_first(ranks, sw_run_write(trainer->folder, &trainer->run)));
    SW_TRY(sw_start_finish(ranks, trainer->folder, &trainer->start));
    sw_ranks_keep(ranks);
    SW_TRY(open_engine(trainer));
    return sw_engine_restore(trainer->engine);
}

sw_status sw_trainer_resume(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            sw_status (*change)(void *context, struct sw_settings *settings), void *context,
                            struct sw_trainer **out) {
    struct sw_trainer *trainer = NULL;
    SW_TRY(make(folder, ranks, &trainer));
    trainer->stop = stop;
    sw_long_work_stop_by(stop);
    const sw_status status = resume(trainer, &(struct change){change, context});
    sw_long_work_stop_by(NULL);
    if (status != SW_OK && status != SW_ERR_BUSY && sw_run_is_one(folder) && sw_start_is_unfinished(folder))
        (void)sw_fail_while(status, "resuming a run whose start was cut off; start it again with train");
    if (status != SW_OK) {
        sw_trainer_close(trainer);
        return status;
    }
    *out = trainer;
    return SW_OK;
}

void sw_trainer_close(struct sw_trainer *trainer) {
    if (trainer == NULL)
        return;
    sw_engine_close(trainer->engine);
    if (trainer->store != NULL)
        sw_store_close(trainer->store);
    if (trainer->data != NULL)
        sw_data_close(trainer->data);
    sw_plan_destroy(trainer->plan);
    sw_model_destroy(trainer->model);
    if (!sw_ranks_hold(trainer->ranks, &trainer->devices))
        sw_devices_close(&trainer->devices);
    sw_source_close(trainer->source);
    json_decref(trainer->given);
    sw_run_release(&trainer->run);
    if (trainer->lock >= 0)
        close(trainer->lock);
    sw_confine_end(trainer->confined);
    free(trainer);
}
