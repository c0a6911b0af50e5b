/* A run in memory: creates or resumes it, and takes it apart.
 *
 * Both ways follow one order: everything that can be refused is refused before anything is written; the announcement of
 * a start comes before the stores it lists; the folder with run.json comes before the first commit. A failure undoes
 * what this start made, in reverse. The checks run on all ranks, and ranks agree on errors after each part, so that no
 * rank waits in a collective that another will never enter.
 *
 * A resume does not read a plan or a placement: it plans again from the settings, because where grains are on the drive
 * depends only on the ranks and the layout, never on the plan. So every start may have other budgets, and another
 * number of ranks needs no more than new stores (run/stores). */
#include "run/trainer.h"

#include "core/clock.h"
#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "job/machine/drives.h"
#include "job/settings/pipeline.h"
#include "job/settings/room.h"
#include "job/sizes.h"
#include "job/store.h"
#include "job/what_if.h"
#include "model/hf/folder_contents.h"
#include "model/hf/in_place.h"
#include "model/model.h"
#include "model/peft.h"
#include "run/agreement.h"
#include "run/change.h"
#include "run/data/text_data.h"
#include "run/folder/frozen.h"
#include "run/folder/run.h"
#include "run/folder/state.h"
#include "run/folder/stored_parts.h"
#include "run/progress.h"
#include "run/samples.h"
#include "run/steplog.h"
#include "run/stores/start.h"
#include "run/stores/store_set.h"
#include "run/trace_file.h"
#include "text/documents/chat_template.h"
#include "text/model_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GB 1e-9

struct loading {
    struct sw_trainer *trainer;
    struct sw_progress progress;
    int64_t total_bytes; /* bytes to read and to write */
    const char *stopped; /* the error of a stop request */
};

static struct loading begin_loading(struct sw_trainer *trainer, const char *what, int64_t total_bytes) {
    return (struct loading){.trainer = trainer,
                            .progress =
                                sw_progress_begin(what, stderr, sw_log_takes_escapes(STDERR_FILENO), sw_now_ns()),
                            .total_bytes = total_bytes};
}

/* Shows the progress. A stop request ends the loading at once: before the first step nothing is worth finishing. */
static sw_status show_progress(void *context, int64_t done_grains, int64_t total_grains) {
    struct loading *loading = context;
    if (*loading->trainer->stop)
        return sw_fail(SW_ERR_STOPPED, "%s", loading->stopped);
    const double share = (double)done_grains / (double)total_grains;
    sw_progress_at(&loading->progress, (int64_t)(share * (double)loading->total_bytes), loading->total_bytes,
                   sw_now_ns());
    return SW_OK;
}

static void say_rate(int64_t read_bytes, int64_t written_bytes, int64_t nanoseconds) {
    const double seconds = (double)nanoseconds * 1e-9, total = (double)(read_bytes + written_bytes);
    sw_log_info("loaded the weights in %.2f s: %.2f GB read and %.2f GB written, %.2f GB/s", seconds,
                GB * (double)read_bytes, GB * (double)written_bytes, GB * total / seconds);
}

/* Keeps the checksums of the weights that the run's base has. Writes run.json again, which lacked their digest. */
static sw_status keep_base(void *context) {
    struct sw_trainer *trainer = ((struct loading *)context)->trainer;
    if (sw_frozen_base(trainer->frozen) == NULL)
        return SW_OK;
    SW_TRY(sw_frozen_finish(trainer->frozen, trainer->folder, trainer->ranks));
    trainer->run.frozen_digest = sw_frozen_digest(trainer->frozen);
    return sw_ranks_first(trainer->ranks, sw_run_write(trainer->folder, &trainer->run));
}

/* Returns the tiles of the run, or of the run that is about to start. */
static int64_t tiles_of(const struct sw_trainer *trainer) {
    return trainer->run.tiles > 0 ? trainer->run.tiles : trainer->run.settings.tiles;
}

/* Gives the engine's load function the weights that `load` reads, of which a rank of a tensor group has parts. */
static sw_status load_parts(struct sw_trainer *trainer, const struct sw_load *load,
                            sw_status (*engine_load)(struct sw_engine *engine, const struct sw_load *load)) {
    const struct sw_state_part whole = {.units = trainer->whole, .tiles = tiles_of(trainer), .load = *load};
    struct sw_state_reader *state = NULL;
    struct sw_stored_parts *stored = NULL;
    struct sw_load parts = *load;
    if (trainer->whole == NULL)
        return engine_load(trainer->engine, load);
    SW_TRY(sw_state_join(&whole, 1, &state));
    sw_status status = sw_state_load(state, sw_model_get_units(trainer->job.model), &parts);
    parts.progress = load->progress;
    parts.progress_context = load->progress_context;
    parts.loaded = load->loaded;
    if (status == SW_OK)
        status =
            sw_stored_parts_open(sw_run_base(&trainer->run), sw_model_get_units(trainer->job.model), &parts, &stored);
    if (status == SW_OK)
        status = engine_load(trainer->engine, &parts);
    sw_stored_parts_close(stored);
    sw_state_close(state);
    return status;
}

/* Loads the trainer's source into its engine, commits the weights as step 0, and closes the source. */
static sw_status load_weights(struct sw_trainer *trainer) {
    const int64_t start_ns = sw_now_ns(), written_before = sw_store_counters(trainer->store).write_bytes;
    const int64_t bytes = sw_source_bytes_to_read(trainer->source) + sw_writes_of_loading(trainer->job.plan);
    const struct sw_load source = sw_source_load(trainer->source);
    struct sw_load load;
    SW_TRY(sw_frozen_load(trainer->frozen, &source, &load));
    struct loading loading = begin_loading(trainer, "loading the weights", bytes);
    loading.stopped = "stopped before the first commit, so nothing is left of the run";
    load.progress = show_progress;
    load.progress_context = &loading;
    load.loaded = keep_base;
    sw_status status = load_parts(trainer, &load, sw_engine_load);
    sw_progress_break(&loading.progress);
    if (status == SW_OK)
        status = sw_engine_keep_frozen(trainer->engine, sw_frozen_digest(trainer->frozen));
    if (status == SW_OK)
        say_rate(sw_source_bytes_read(trainer->source), sw_store_counters(trainer->store).write_bytes - written_before,
                 sw_now_ns() - start_ns);
    sw_source_close(trainer->source);
    trainer->source = NULL;
    return status;
}

/* Loads the frozen weights of a run that is resumed, but those that its store still has. */
static sw_status load_frozen(struct sw_trainer *trainer) {
    const int64_t grain_bytes = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    const int64_t bytes = sw_engine_frozen_grains_to_load(trainer->engine) * grain_bytes;
    struct sw_load load;
    SW_TRY(sw_frozen_load(trainer->frozen, &(struct sw_load){0}, &load));
    struct loading loading = begin_loading(trainer, "loading the frozen weights", bytes);
    loading.stopped = "stopped before the first step; the run is as it was";
    load.progress = show_progress;
    load.progress_context = &loading;
    const sw_status status = load_parts(trainer, &load, sw_engine_load_frozen);
    sw_progress_break(&loading.progress);
    sw_frozen_rest(trainer->frozen);
    SW_TRY(status);
    return sw_engine_keep_frozen(trainer->engine, sw_frozen_digest(trainer->frozen));
}

/* Opens the model's tokenizer. A run on token files does not need it, so failing to read it is no error. */
static bool opens(const char *folder, struct sw_model_text *model) {
    SW_HANDLES_ERRORS();
    return sw_model_text_is_there(folder) && sw_model_text_open(folder, model) == SW_OK;
}

/* Returns the token that ends a turn in the model's chat template, or -1 if spillway cannot write its chats. */
static int32_t end_of_turn(const struct sw_trainer *trainer, const struct sw_model_text *model) {
    SW_HANDLES_ERRORS();
    struct sw_chat_style chat = {0};
    int32_t id = -1;
    if (sw_chat_style_open(trainer->model_folder, trainer->run.settings.chat_format, model->tokenizer, &chat) == SW_OK)
        id = sw_tokenizer_find(model->tokenizer, chat.end_of_turn);
    sw_chat_style_release(&chat);
    return id;
}

static sw_status note(struct sw_trainer *trainer, const struct sw_model_text *model, int32_t id) {
    const struct sw_text token = sw_tokenizer_text(model->tokenizer, id);
    trainer->run.turn_end = (struct sw_turn_end){.id = id, .token = strndup(token.data, token.bytes)};
    if (trainer->run.turn_end.token == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the token that ends turns");
    sw_log_info("turns end with %s (%d), which is not the model's eos_token; exports name it as theirs, so that other "
                "programs stop there too",
                trainer->run.turn_end.token, id);
    return SW_OK;
}

/* Finds the token that ends a turn of the model's chats, if the training data teach it and the model's files do not
 * name it as an end; notes it for exports in trainer->run, and logs it. */
static sw_status turns_find(struct sw_trainer *trainer) {
    struct sw_model_text model;
    bool learns = false;
    if (!opens(trainer->model_folder, &model))
        return SW_OK;
    const int32_t id = end_of_turn(trainer, &model);
    sw_status status = SW_OK;
    if (id >= 0 && !sw_model_text_ends(&model, id))
        status = sw_data_learns(trainer->data, id, &learns);
    if (status == SW_OK && learns)
        status = note(trainer, &model, id);
    sw_model_text_close(&model);
    return status;
}

static sw_status open_data(struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    struct sw_data_spec spec = {
        .files = (const char *const *)settings->data.items,
        .file_count = settings->data.count,
        .format = {.type = settings->tokens, .flag = "--tokens"},
        .vocab = trainer->run.config.vocab,
        .seq = settings->seq,
        .seed = (uint64_t)settings->seed,
        .pairs = settings->dpo,
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
    int part_ranks;
    sw_settings_take_ranks(settings, trainer->ranks);
    if (settings->ranks > 1 && settings->speculate == SW_SPECULATE_ALWAYS)
        return sw_fail(SW_ERR_USAGE, "--speculate always works with one rank only; leave it out");
    SW_TRY(sw_as_usage(sw_settings_secondary(settings, &part_ranks)));
    SW_TRY(sw_as_usage(sw_settings_check_quantized(settings)));
    return sw_as_usage(sw_settings_check(settings));
}

/* Opens the data, which determine how many steps --epochs are. */
static sw_status open_windows(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    SW_TRY(open_data(trainer));
    SW_TRY(sw_settings_resolve_steps(settings, sw_data_train_windows(trainer->data)));
    if (settings->early_stop > 0 && settings->eval_every == 0)
        return sw_fail(SW_ERR_USAGE, "--early-stop counts the evaluations of --eval-every; give it too");
    if (settings->early_stop > 0 && sw_data_validation_windows(trainer->data) == 0)
        return sw_fail(SW_ERR_ARG, "--early-stop goes by the validation loss; give validation data with --val");
    const struct sw_schedule schedule = sw_settings_schedule(settings);
    return sw_as_usage(sw_schedule_check(&schedule));
}

/* Rank 0 makes tokens of text; the other ranks find them in the cache. */
static sw_status open_tokens(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    struct sw_ranks *ranks = trainer->ranks;
    struct sw_text_sources *sources = &trainer->run.texts;
    const int64_t vocab = trainer->run.config.vocab;
    const char *folder = trainer->model_folder;
    SW_TRY(sw_ranks_first(ranks, sw_text_data_prepare(settings, folder, vocab, true, sources)));
    if (sw_ranks_count(ranks) > 1)
        SW_TRY(sw_ranks_agree_on_error(ranks, sw_text_data_prepare(settings, folder, vocab, false, sources)));
    return sw_ranks_agree_on_error(ranks, open_windows(trainer));
}

/* Opens the data for the job (struct sw_job_spec). */
static sw_status open_job_data(void *context, struct sw_job *job) {
    struct sw_trainer *trainer = context;
    SW_TRY(open_tokens(trainer));
    /* Each sequence of a pair holds one document, and its padding comes last, so no query sees another. */
    job->documents = sw_data_has_documents(trainer->data) && !trainer->run.settings.dpo;
    return SW_OK;
}

/* Finds the part of the path to the run's folder that exists. */
static sw_status find_folder(const struct sw_trainer *trainer, char folder[SW_RUN_PATH_CHARS]) {
    SW_TRY(sw_path_join(folder, SW_RUN_PATH_CHARS, trainer->folder, "."));
    while (access(folder, F_OK) != 0 && strchr(folder, '/') != NULL)
        *strrchr(folder, '/') = '\0';
    if (access(folder, F_OK) != 0)
        snprintf(folder, SW_RUN_PATH_CHARS, "%s", trainer->folder[0] == '/' ? "/" : ".");
    return SW_OK;
}

/* Says where the store will be: in the folders of --nvme, else in the run's folder. */
static sw_status place_job(struct sw_trainer *trainer) {
    char folder[SW_RUN_PATH_CHARS];
    SW_TRY(find_folder(trainer, folder));
    return sw_job_place(&trainer->job, folder);
}

/* Compares the job with those of the other ranks (struct sw_job_spec). */
static sw_status agree_on_job(void *context, struct sw_job *job) {
    struct sw_trainer *trainer = context;
    SW_TRY(sw_agree_on_inputs(trainer));
    SW_TRY(sw_samples_open(trainer, &trainer->samples));
    const struct sw_settings *settings = job->settings;
    const bool chooses =
        sw_tensor_is_open(settings) || sw_pipeline_is_open(settings) || sw_expert_group_is_open(settings);
    const bool places = chooses || sw_tuning_freezes(&settings->tuning);
    return places ? sw_ranks_agree_on_error(job->ranks, place_job(trainer)) : SW_OK;
}

static sw_status open_model(struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_source_spec spec = {.model = settings->model,
                                        .init = settings->init,
                                        .seed = (uint64_t)settings->seed,
                                        .expert_group = sw_expert_group_is_open(settings) ? 0 : settings->expert_group,
                                        .tiles = settings->tiles,
                                        .expert_ranks = (int)sw_settings_expert_ranks(settings),
                                        .tensor_ranks = (int)sw_settings_part_ranks(settings),
                                        .tensor_rank = (int)sw_settings_part_rank(settings),
                                        .optimizer = sw_settings_optimizer(settings),
                                        .tuning = &settings->tuning,
                                        .adapter = settings->adapter};
    SW_TRY(sw_source_open_model(&spec, &trainer->source));
    trainer->run.config = *sw_source_config(trainer->source);
    return sw_run_model_folder(NULL, settings->model, &trainer->model_folder);
}

static void log_choice(const char *flag, const struct sw_size_prices *prices) {
    char text[SW_SIZE_CHOICE_CHARS];
    if (prices->count > 0)
        sw_log_info("%s", sw_size_choice_text(flag, prices, text));
}

/* Opens the source again for the tensor groups or the units of experts that were chosen (struct sw_job_spec): it was
 * opened as if there were none. */
static sw_status regroup_source(void *context, struct sw_job *job) {
    struct sw_trainer *trainer = context;
    if (sw_ranks_rank(job->ranks) == 0) {
        log_choice("--tensor", &job->tensor_prices);
        log_choice("--pipeline", &job->stage_prices);
        log_choice("--expert-group", &job->expert_prices);
    }
    sw_source_close(trainer->source);
    trainer->source = NULL;
    return sw_ranks_agree_on_error(job->ranks, open_model(trainer));
}

/* Lays out whole layers, by which frozen weights are kept: so every number of ranks and every size of tensor groups has
 * the same file of them. */
static sw_status lay_out_whole(struct sw_trainer *trainer) {
    const struct sw_run *run = &trainer->run;
    const struct sw_settings *settings = &run->settings;
    if (sw_settings_part_ranks(settings) == 1 || !sw_tuning_freezes(&settings->tuning))
        return SW_OK;
    return sw_model_units(&run->config, tiles_of(trainer), sw_settings_optimizer(settings), &settings->tuning,
                          &trainer->whole);
}

/* Refuses exports on the way that could not be written. */
static sw_status check_exports(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const char *unwritable = settings->export_every > 0 && settings->tuning.lora.rank > 0
                                 ? sw_peft_unwritable(sw_model_get_units(trainer->job.model))
                                 : NULL;
    return unwritable == NULL
               ? SW_OK
               : sw_fail(SW_ERR_USAGE,
                         "--export-every writes adapters, whose folder cannot hold %s: it is trained and is the "
                         "model's output table too; give --export-every 0, and export the whole model by spillway "
                         "export --merge",
                         unwritable);
}

/* Does everything that can fail before anything is written: opens the job with its data, and checks its memory. */
static sw_status trainer_open_job(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    struct sw_job *job = &trainer->job;
    const struct sw_job_spec spec = {.settings = &trainer->run.settings,
                                     .ranks = ranks,
                                     .base = sw_run_base(&trainer->run),
                                     .config = &trainer->run.config,
                                     .products = &trainer->run.products,
                                     .caller = trainer,
                                     .open_data = open_job_data,
                                     .agree = agree_on_job,
                                     .regroup = regroup_source};
    SW_TRY(sw_ranks_agree_on_error(ranks, check_settings(trainer)));
    SW_TRY(sw_agree_on_settings(ranks, spec.settings));
    SW_TRY(sw_job_open(&spec, job));
    SW_TRY(sw_ranks_agree_on_error(ranks, check_exports(trainer)));
    if (sw_ranks_comm(ranks) != NULL)
        sw_comm_use_library_reduction(ranks->comm, spec.settings->reduce == SW_REDUCE_LIBRARY);
    SW_TRY(sw_ranks_agree_on_error(ranks, lay_out_whole(trainer)));
    const struct sw_device_info info = sw_devices_info(&job->devices);
    return sw_ranks_agree_on_error(ranks, sw_room_check(job->plan, &info, spec.settings));
}

/* Prepares the timeline of a step; a run can do without it. */
static void open_timeline(struct sw_trainer *trainer) {
    SW_HANDLES_ERRORS();
    const struct sw_timeline_spec spec = {.plan = trainer->job.plan,
                                          .predicted = trainer->forecast.timeline,
                                          .first_step = trainer->position.step + 1,
                                          .last_step = trainer->run.settings.steps};
    /* The first rank of each stage, rank 0 without a pipeline. */
    if (sw_ranks_rank(trainer->ranks) % sw_settings_stage_ranks(&trainer->run.settings) == 0)
        (void)sw_timeline_file_open(&spec, &trainer->timeline);
}

/* Opens the files from which the plan reads frozen weights in place. */
static sw_status open_in_place(struct sw_trainer *trainer) {
    const struct sw_job *job = &trainer->job;
    if (sw_plan_in_place_bytes(job->plan) == 0)
        return SW_OK;
    return sw_in_place_open(job->in_place, sw_settings_type(job->settings), sw_model_get_units(job->model),
                            &trainer->in_place);
}

/* Returns the digest by which the engine takes over what the store keeps of frozen weights; 0: it takes nothing over.
 * The checksums of weights that are read in place say nothing of a folder that the run has not read before. */
static uint64_t kept_digest(const struct sw_trainer *trainer) {
    const bool is_new = trainer->in_place != NULL && trainer->run.moved_model != NULL;
    return is_new ? 0 : sw_frozen_digest(trainer->frozen);
}

/* Opens the engine; loads nothing yet. */
static sw_status trainer_open_engine(struct sw_trainer *trainer) {
    const bool traces = trainer->run.settings.trace != NULL && sw_ranks_rank(trainer->ranks) == 0;
    open_timeline(trainer);
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, open_in_place(trainer)));
    const struct sw_engine_spec spec = {
        .plan = trainer->job.plan,
        .device = trainer->job.devices.compute,
        .host = trainer->job.devices.host,
        .store = trainer->store,
        .io_depth = SW_STORE_IO_DEPTH,
        .speculation = (sw_speculation)trainer->run.settings.speculate,
        .rounding = sw_settings_rounding(&trainer->run.settings),
        .seed = (uint64_t)trainer->run.settings.seed,
        .ops = sw_model_ops(trainer->job.model),
        .files = sw_in_place_files(trainer->in_place),
        .frozen_digest = kept_digest(trainer),
        .described = true,
        .applied_steps = trainer->position.applied_steps,
        .skipped_steps = trainer->position.skipped_steps,
        .loss_scale = trainer->position.loss_scale,
        .trace_ops = traces ? SW_TRACE_OPS : sw_timeline_file_ops(trainer->timeline),
        .trace_step = traces ? 0 : sw_timeline_file_step(trainer->timeline),
        .comm = sw_ranks_comm(trainer->ranks),
        .comm_stream = sw_ranks_stream(trainer->ranks),
        .watch = sw_ranks_watch(trainer->ranks),
    };
    return sw_engine_open(&spec, &trainer->engine);
}

/* Chooses and completes the cheapest plan. Checks its memory again, since it may take more than the plan that was
 * checked before, and that all ranks have the same collectives. */
static sw_status trainer_choose_plan(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    struct sw_job *job = &trainer->job;
    const struct sw_device_info info = sw_devices_info(&job->devices);
    SW_TRY(sw_job_start(job, trainer->folder, &trainer->forecast));
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, sw_room_check(job->plan, &info, settings)));
    SW_TRY(sw_room_say(job->plan, &info, settings));
    return sw_agree_on_plan(trainer);
}

/* Describes machine and plan in run.json, for reports. */
static sw_status describe_start(struct sw_trainer *trainer) {
    struct sw_run *run = &trainer->run;
    struct sw_job *job = &trainer->job;
    const struct sw_device_info info = sw_devices_info(&job->devices);
    SW_TRY(sw_job_place(job, trainer->folder));
    json_decref(run->machine);
    json_decref(run->prediction);
    run->machine = sw_machine_record(&info, job->places.path, job->places.count);
    run->prediction =
        sw_forecast_to_json(&trainer->forecast, job->plan, trainer->position.step + 1, run->settings.batch_tokens);
    return SW_OK;
}

/* Adds the id of this start to the run, before its first commit, which carries the id. */
static sw_status trainer_add_start(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    char id[SW_STORE_ID_CHARS];
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_new_id(id)));
    SW_TRY(sw_ranks_spread(ranks, "identity of the start", id, sizeof id));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_run_add_start(&trainer->run, trainer->position.start, id)));
    return sw_ranks_first(ranks, describe_start(trainer));
}

/* Allocates a trainer with nothing open. *stop is the stop request. */
static sw_status trainer_make(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                              struct sw_trainer **out) {
    struct sw_trainer *trainer = calloc(1, sizeof *trainer);
    if (trainer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the run");
    trainer->folder = folder;
    trainer->ranks = ranks;
    trainer->stop = stop;
    trainer->start_ns = sw_now_ns();
    trainer->lock = -1;
    *out = trainer;
    return SW_OK;
}

void sw_trainer_close(struct sw_trainer *trainer) {
    if (trainer == NULL)
        return;
    sw_engine_close(trainer->engine);
    sw_frozen_close(trainer->frozen);
    sw_units_destroy(trainer->whole);
    if (trainer->store != NULL)
        sw_store_close(trainer->store);
    sw_in_place_close(trainer->in_place);
    if (trainer->data != NULL)
        sw_data_close(trainer->data);
    sw_samples_close(trainer->samples);
    sw_reference_release(&trainer->reference);
    sw_job_release(&trainer->job);
    sw_source_close(trainer->source);
    json_decref(trainer->given);
    free(trainer->model_folder);
    sw_timeline_file_close(trainer->timeline);
    sw_forecast_release(&trainer->forecast);
    sw_run_release(&trainer->run);
    if (trainer->lock >= 0)
        close(trainer->lock);
    sw_confine_end(trainer->confined);
    free(trainer);
}

/* Creates a new run: checks everything, makes the folder and the store, loads the weights and commits them as step 0.
 */

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

/* Makes the store. Every byte of it is written once, which takes a while for a large one. */
static sw_status make_store(void *context, const struct sw_places *places, const char *id, struct sw_store **out) {
    struct sw_trainer *trainer = context;
    const struct sw_new_store wanted = {.plan = trainer->job.plan,
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

/* Describes how this run's stores are made and opened. */
static struct sw_store_set *describe_stores(struct sw_trainer *trainer) {
    trainer->stores = (struct sw_store_set){.ranks = trainer->ranks,
                                            .folder = trainer->folder,
                                            .run = &trainer->run,
                                            .make = make_store,
                                            .context = trainer};
    return &trainer->stores;
}

static sw_status create_store(struct sw_trainer *trainer) {
    struct sw_store_set *stores = describe_stores(trainer);
    SW_TRY(sw_store_set_places_agree(stores));
    return sw_store_set_begin(stores, &trainer->store);
}

/* Makes the folder with mode 0700: it will hold weights. */
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
    const sw_status status = sw_frozen_write(trainer->folder, units, &from);
    sw_ranks_leave(trainer->ranks);
    sw_progress_break(&making.progress);
    return status;
}

/* Writes the frozen weights into a file of the run, from which all ranks load them. Weights of a Hugging Face folder
 * stay there; their checksums follow when they are loaded (keep_base). */
static sw_status keep_frozen(struct sw_trainer *trainer) {
    const struct sw_units *units = sw_trainer_whole_units(trainer);
    if (!sw_tuning_freezes(&trainer->run.settings.tuning))
        return SW_OK;
    if (sw_source_is_folder(trainer->source))
        return sw_ranks_agree_on_error(trainer->ranks,
                                       sw_frozen_begin(trainer->run.settings.model, units, &trainer->frozen));
    SW_TRY(sw_ranks_first(trainer->ranks, write_frozen(trainer, units)));
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks,
                                   sw_frozen_open(trainer->folder, &trainer->run, units, &trainer->frozen)));
    trainer->run.frozen_digest = sw_frozen_digest(trainer->frozen);
    return SW_OK;
}

static sw_status take_adapter(struct sw_settings *settings) {
    struct sw_model_config config;
    if (settings->adapter == NULL)
        return SW_OK;
    SW_TRY(sw_config_load(settings->model, &config));
    return sw_settings_take_adapter(settings, &config);
}

/* Checks that this machine's drives have room for the store. The remains of an unfinished start are removed before a
 * store is made, so a dry run looks only at the sizes in --nvme. */
static sw_status check_places(struct sw_trainer *trainer) {
    const struct sw_job *job = &trainer->job;
    SW_TRY(place_job(trainer));
    return job->settings->dry_run && sw_start_is_unfinished(trainer->folder)
               ? sw_new_store_check(&(struct sw_new_store){.plan = job->plan, .places = &job->places})
               : sw_job_check_drives(job, true);
}

static sw_status create(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_settings_check_names(settings));
    SW_TRY(sw_ranks_agree_on_error(ranks, take_adapter(settings)));
    SW_TRY(sw_options_to_json(&sw_train_command, settings, &trainer->given));
    SW_TRY(sw_ranks_first(ranks, sw_start_check(trainer->folder)));
    /* The rank decides which part of the weights its source has. */
    sw_settings_take_ranks(settings, ranks);
    SW_TRY(sw_ranks_agree_on_error(ranks, open_model(trainer)));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_text_data_check(settings, trainer->run.config.vocab)));
    SW_TRY(trainer_open_job(trainer));
    SW_TRY(sw_ranks_first(ranks, turns_find(trainer)));
    if (settings->dry_run)
        return sw_ranks_agree_on_error(ranks, check_places(trainer));
    trainer->run.data_digest = sw_data_digest(trainer->data);
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_data_beside(trainer->data, &trainer->run.beside)));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_settings_make_paths_absolute(settings)));
    SW_TRY(make_folder(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_confine(trainer->folder, &trainer->confined)));
    SW_TRY(sw_ranks_first(ranks, sw_run_lock(trainer->folder, &trainer->lock)));
    SW_TRY(sw_start_clear(ranks, trainer->folder));
    SW_TRY(sw_store_set_folder_agrees(ranks, trainer->folder));
    SW_TRY(trainer_choose_plan(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, check_places(trainer)));
    SW_TRY(create_store(trainer));
    SW_TRY(trainer_add_start(trainer));
    SW_TRY(keep_frozen(trainer));
    SW_TRY(sw_ranks_first(ranks, begin_run(trainer)));
    SW_TRY(sw_store_set_folder_agrees(ranks, trainer->folder));
    SW_TRY(trainer_open_engine(trainer));
    SW_TRY(sw_commit_text_begin(trainer));
    SW_TRY(load_weights(trainer));
    SW_TRY(sw_store_set_publish(&trainer->stores));
    sw_ranks_keep(ranks);
    return SW_OK;
}

/* Removes everything that a failed start made. */
static void undo_create(struct sw_trainer *trainer) {
    sw_engine_close(trainer->engine);
    trainer->engine = NULL;
    if (trainer->stores.announced) {
        sw_store_set_withdraw(&trainer->stores, trainer->store);
        trainer->store = NULL;
    }
    if (trainer->lock >= 0)
        sw_run_lock_remove(trainer->folder);
    sw_confine_end(trainer->confined);
    trainer->confined = NULL;
    sw_folder_unmake(trainer->folder, trainer->made_folders);
}

sw_status sw_trainer_create(struct sw_settings *settings, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            struct sw_trainer **out) {
    struct sw_trainer *trainer = NULL;
    SW_TRY(trainer_make(settings->run, ranks, stop, &trainer));
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

/* Resumes a run from its last commit. */

static sw_status check_store(const struct sw_trainer *trainer) {
    if (!sw_run_store_is_of(trainer->store, sw_model_get_units(trainer->job.model)))
        return sw_fail(
            SW_ERR_CORRUPT,
            "the store was made for another model than run.json describes; restore the one that belongs to it");
    if ((sw_store_generations(trainer->store) == 1) != trainer->job.plan->spec.one_generation)
        return sw_fail(
            SW_ERR_ARG,
            "the store was made with another --durability than run.json names; restore the one that belongs to it");
    return SW_OK;
}

/* Drops --zero-secondary if one rank is left: one rank has no second shard. */
static sw_status leave_secondary(struct sw_settings *settings) {
    if (strcmp(settings->zero_secondary, SW_NO_SECONDARY) == 0)
        return SW_OK;
    sw_log_info("one rank keeps no second shard of weights: going on with --zero-secondary " SW_NO_SECONDARY);
    free(settings->zero_secondary);
    settings->zero_secondary = strdup(SW_NO_SECONDARY);
    return settings->zero_secondary != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the settings");
}

/* Names the model's new place in run.json. */
static sw_status keep_moved_model(struct sw_trainer *trainer) {
    struct sw_run *run = &trainer->run;
    if (run->moved_model == NULL)
        return SW_OK;
    free(run->settings.model);
    run->settings.model = run->moved_model;
    run->moved_model = NULL;
    SW_TRY(sw_settings_make_paths_absolute(&run->settings));
    return sw_run_write(trainer->folder, run);
}

static sw_status read_run(struct sw_trainer *trainer, const struct sw_run_change *change) {
    struct sw_settings *settings = &trainer->run.settings;
    SW_TRY(sw_run_read(trainer->folder, &trainer->run));
    trainer->past_schedule = sw_settings_schedule(settings);
    if (sw_ranks_count(trainer->ranks) == 1)
        SW_TRY(leave_secondary(settings));
    SW_TRY(sw_run_change(&trainer->run, trainer->ranks, change));
    const char *model = trainer->run.moved_model != NULL ? trainer->run.moved_model : settings->model;
    SW_TRY(sw_run_model_folder(trainer->folder, model, &trainer->model_folder));
    return settings->trace != NULL && sw_ranks_rank(trainer->ranks) == 0 ? sw_trace_file_check(settings->trace) : SW_OK;
}

static sw_status open_store(struct sw_trainer *trainer) {
    struct sw_store_set *stores = describe_stores(trainer);
    stores->previous = trainer->run.settings.previous;
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, sw_settings_make_paths_absolute(&trainer->run.settings)));
    SW_TRY(sw_store_set_places_agree(stores));
    return sw_store_set_open(stores, &trainer->store);
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

/* Says that a run keeps its number of threads although there are fewer cores now, and whether another number would
 * change its bits. */
static sw_status say_threads(const struct sw_trainer *trainer) {
    const int64_t threads = trainer->run.settings.threads;
    const bool keeps_bits =
        sw_devices_info(&trainer->job.devices).threads_keep_bits[sw_settings_type(&trainer->run.settings)];
    int64_t cores;
    SW_TRY(sw_ranks_cores(trainer->ranks, &cores));
    if (threads > cores)
        sw_log_info("going on with %s on %s, as %s; --threads %lld may be faster%s", SW_COUNT(threads, "thread"),
                    SW_COUNT(cores, "core"), keeps_bits ? "before" : "the last bits of a product depend on them",
                    (long long)cores, keeps_bits ? " and changes no bit" : "");
    return SW_OK;
}

/* Compares the data with those that the run began with, and names the text if they are its tokens. */
static sw_status check_data(const struct sw_trainer *trainer) {
    const struct sw_option_list *text = &trainer->run.texts.data;
    const sw_status status = sw_data_check_digest(trainer->data, trainer->run.data_digest);
    return text->count == 0 ? status : sw_fail_while(status, "comparing the tokens of %s", text->items[0]);
}

static sw_status resume(struct sw_trainer *trainer, const struct sw_run_change *change) {
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_confine(trainer->folder, &trainer->confined)));
    SW_TRY(sw_ranks_first(ranks, lock_run(trainer)));
    SW_TRY(sw_store_set_folder_agrees(ranks, trainer->folder));
    SW_TRY(sw_ranks_agree_on_error(ranks, read_run(trainer, change)));
    SW_TRY(trainer_open_job(trainer));
    SW_TRY(say_threads(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_data_check_beside(trainer->data, &trainer->run.beside)));
    SW_TRY(sw_ranks_agree_on_error(ranks, check_data(trainer)));
    SW_TRY(sw_reference_read(trainer));
    SW_TRY(trainer_choose_plan(trainer));
    SW_TRY(sw_ranks_agree_on_error(
        ranks, sw_frozen_open(trainer->folder, &trainer->run, sw_trainer_whole_units(trainer), &trainer->frozen)));
    SW_TRY(open_store(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, read_position(trainer)));
    SW_TRY(trainer_add_start(trainer));
    SW_TRY(sw_ranks_first(ranks, sw_run_write(trainer->folder, &trainer->run)));
    SW_TRY(sw_start_finish(ranks, trainer->folder));
    sw_ranks_keep(ranks);
    SW_TRY(trainer_open_engine(trainer));
    SW_TRY(sw_engine_restore(trainer->engine));
    SW_TRY(load_frozen(trainer));
    return sw_ranks_first(ranks, keep_moved_model(trainer));
}

sw_status sw_trainer_resume(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            sw_status (*change)(void *context, struct sw_settings *settings), void *context,
                            struct sw_trainer **out) {
    struct sw_trainer *trainer = NULL;
    SW_TRY(trainer_make(folder, ranks, stop, &trainer));
    sw_long_work_stop_by(stop);
    const sw_status status = resume(trainer, &(struct sw_run_change){change, context});
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
