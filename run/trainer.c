#include "run/trainer_private.h"

#include "core/clock.h"
#include "core/confine.h"
#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/log.h"
#include "job/machine/algorithms.h"
#include "job/machine/gpu_verdict.h"
#include "job/machine/machine_record.h"
#include "job/plan_advice.h"
#include "job/plan_start.h"
#include "job/settings/places.h"
#include "job/settings/room.h"
#include "job/settings/tensor_rates.h"
#include "job/settings_plan.h"
#include "run/agreement.h"
#include "run/commit_text.h"
#include "run/data/text_data.h"
#include "run/folder/frozen.h"
#include "run/folder/run_starts.h"
#include "run/samples.h"
#include "run/trace_file.h"

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
    int part_ranks;
    sw_settings_take_ranks(settings, trainer->ranks);
    if (settings->ranks > 1 && settings->speculate == SW_SPECULATE_ALWAYS)
        return sw_fail(SW_ERR_USAGE, "--speculate always works with one rank only; leave it out");
    SW_TRY(sw_as_usage(sw_settings_secondary(settings, &part_ranks)));
    SW_TRY(sw_as_usage(sw_settings_check_quantized(settings)));
    return sw_as_usage(sw_settings_check(settings));
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
    if (settings->early_stop > 0 && settings->eval_every == 0)
        return sw_fail(SW_ERR_USAGE, "--early-stop counts the evaluations of --eval-every; give it too");
    if (settings->early_stop > 0 && sw_data_validation_windows(trainer->data) == 0)
        return sw_fail(SW_ERR_ARG, "--early-stop goes by the validation loss; give validation data with --val");
    const struct sw_schedule schedule = sw_settings_schedule(settings);
    return sw_as_usage(sw_schedule_check(&schedule));
}

/* Rank 0 makes tokens of text, and the others find them. */
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

struct sw_model_shape sw_trainer_shape(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    return (struct sw_model_shape){.type = sw_settings_type(settings),
                                   .batch = settings->micro_batch,
                                   .seq = settings->seq,
                                   .tiles = settings->tiles,
                                   .tensor_ranks = (int)sw_settings_tensor_ranks(settings),
                                   .tensor_rank = (int)sw_settings_tensor_rank(settings),
                                   .optimizer = sw_settings_optimizer(settings),
                                   .fp8 = sw_settings_fp8(settings),
                                   .documents = sw_data_has_documents(trainer->data)};
}

static void lower_micro_batch(struct sw_trainer *trainer) {
    const struct sw_model_shape shape = sw_trainer_shape(trainer);
    sw_plan_lower_micro_batch(&trainer->run.settings, &trainer->run.config, &shape, trainer->devices.compute);
}

static sw_status make_model(struct sw_trainer *trainer) {
    const struct sw_model_shape shape = sw_trainer_shape(trainer);
    SW_TRY(sw_model_create(&trainer->run.config, &shape, trainer->devices.compute, &trainer->model));
    return sw_tensor_rates_apply(&trainer->run.settings, sw_model_tunable_units(trainer->model));
}

static sw_status make_plan(struct sw_trainer *trainer) {
    const struct sw_device_info info = sw_devices_info(&trainer->devices);
    struct sw_settings *settings = &trainer->run.settings;
    const struct sw_model_shape shape = sw_trainer_shape(trainer);
    SW_TRY(sw_plan_fit_or_advise(settings, trainer->model, &shape, trainer->devices.compute, &trainer->plan));
    return sw_room_check(trainer->plan, &info, settings);
}

sw_status sw_trainer_prepare_inputs(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, check_settings(trainer)));
    SW_TRY(sw_agree_on_settings(ranks, &trainer->run.settings));
    SW_TRY(sw_settings_group_ranks(&trainer->run.settings, ranks));
    SW_TRY(sw_ranks_begin_watch(ranks, trainer->run.settings.rank_timeout));
    SW_TRY(share_cores(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, open_inputs(trainer)));
    SW_TRY(open_tokens(trainer));
    lower_micro_batch(trainer);
    SW_TRY(sw_agree_on_inputs(trainer));
    SW_TRY(sw_samples_open(trainer, &trainer->samples));
    SW_TRY(sw_ranks_use_gpu(ranks, &trainer->devices));
    if (sw_ranks_comm(ranks) != NULL)
        sw_comm_use_library_reduction(ranks->comm, trainer->run.settings.reduce == SW_REDUCE_LIBRARY);
    return SW_OK;
}

sw_status sw_trainer_prepare_plan(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    /* Rank 0 chooses algorithms for its matrix products first, and the others take the same. */
    SW_TRY(sw_ranks_first(ranks, make_model(trainer)));
    SW_TRY(sw_algorithms_agree(ranks, trainer->devices.compute, &trainer->run.products));
    SW_TRY(sw_ranks_agree_on_error(ranks, trainer->model == NULL ? make_model(trainer) : SW_OK));
    return sw_ranks_agree_on_error(ranks, make_plan(trainer));
}

/* Prepares the timeline of a step, which a run can do without. */
static void open_timeline(struct sw_trainer *trainer) {
    SW_HANDLES_ERRORS();
    const struct sw_timeline_spec spec = {.plan = trainer->plan,
                                          .predicted = trainer->forecast.timeline,
                                          .first_step = trainer->position.step + 1,
                                          .last_step = trainer->run.settings.steps};
    if (sw_ranks_rank(trainer->ranks) == 0)
        (void)sw_timeline_file_open(&spec, &trainer->timeline);
}

sw_status sw_trainer_open_engine(struct sw_trainer *trainer) {
    const bool traces = trainer->run.settings.trace != NULL && sw_ranks_rank(trainer->ranks) == 0;
    open_timeline(trainer);
    const struct sw_engine_spec spec = {
        .plan = trainer->plan,
        .device = trainer->devices.compute,
        .host = trainer->devices.host,
        .store = trainer->store,
        .io_depth = SW_STORE_IO_DEPTH,
        .speculation = (sw_speculation)trainer->run.settings.speculate,
        .rounding = sw_settings_rounding(&trainer->run.settings),
        .seed = (uint64_t)trainer->run.settings.seed,
        .ops = sw_model_ops(trainer->model),
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

sw_status sw_trainer_choose_plan(struct sw_trainer *trainer) {
    struct sw_settings *settings = &trainer->run.settings;
    const struct sw_device_info info = sw_devices_info(&trainer->devices);
    const struct sw_plan_start start = {.settings = settings,
                                        .model = trainer->model,
                                        .devices = &trainer->devices,
                                        .folder = trainer->folder,
                                        .ranks = trainer->ranks};
    SW_TRY(sw_plan_choose_at_start(&start, &trainer->plan, &trainer->forecast));
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, sw_room_check(trainer->plan, &info, settings)));
    SW_TRY(sw_room_say(trainer->plan, &info, settings));
    return sw_agree_on_plan(trainer);
}

/* Describes machine and plan in run.json, for reports. */
static sw_status describe_start(struct sw_trainer *trainer) {
    struct sw_run *run = &trainer->run;
    const struct sw_device_info info = sw_devices_info(&trainer->devices);
    const struct sw_store_owner owner = sw_settings_owner(&run->settings);
    struct sw_places places;
    SW_TRY(sw_places_of(&run->settings.nvme, trainer->folder, &owner, &places));
    json_decref(run->machine);
    json_decref(run->prediction);
    run->machine = sw_machine_record(&info, places.path, places.count);
    run->prediction =
        sw_forecast_to_json(&trainer->forecast, trainer->plan, trainer->position.step + 1, run->settings.batch_tokens);
    sw_places_release(&places);
    return SW_OK;
}

sw_status sw_trainer_add_start(struct sw_trainer *trainer) {
    struct sw_ranks *ranks = trainer->ranks;
    char id[SW_STORE_ID_CHARS];
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_new_id(id)));
    SW_TRY(sw_ranks_spread(ranks, "identity of the start", id, sizeof id));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_run_add_start(&trainer->run, trainer->position.start, id)));
    return sw_ranks_first(ranks, describe_start(trainer));
}

sw_status sw_trainer_make(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
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
    if (trainer->store != NULL)
        sw_store_close(trainer->store);
    if (trainer->data != NULL)
        sw_data_close(trainer->data);
    sw_samples_close(trainer->samples);
    sw_plan_destroy(trainer->plan);
    sw_model_destroy(trainer->model);
    if (!sw_ranks_hold(trainer->ranks, &trainer->devices))
        sw_devices_close(&trainer->devices);
    sw_source_close(trainer->source);
    sw_frozen_close(trainer->frozen);
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
