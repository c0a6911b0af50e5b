/* Continues a run from its last commit. */
#include "core/confine.h"
#include "core/log.h"
#include "core/long_work.h"
#include "core/number.h"
#include "job/tensor_choice.h"
#include "run/folder/frozen.h"
#include "run/folder/run_lock.h"
#include "run/folder/run_model.h"
#include "run/folder/run_stores.h"
#include "run/trace_file.h"
#include "run/trainer_private.h"

#include <stdlib.h>
#include <string.h>

static sw_status check_store(const struct sw_trainer *trainer) {
    if (!sw_run_store_is_of(trainer->store, sw_model_get_units(trainer->model)))
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

/* Keeps the run's rounding where the edit names none; fp32 state has none. */
static void keep_rounding(int before, int unnamed, struct sw_settings *settings) {
    if (settings->rounding == unnamed)
        settings->rounding = settings->optimizer_state == SW_OPTIMIZER_FP32 ? SW_OPTION_ROUNDING_AUTO : before;
}

/* Leaves open the settings that depend on how ranks share out the work, if that changes. A run of one data rank has not
 * chosen its stage, which was `zero_before` until the edit could name one. Groups whose parts of a layer cannot be cut
 * into as many tiles have none. */
static void regroup(const struct sw_trainer *trainer, int64_t zero_before, struct sw_settings *settings) {
    const struct sw_run *run = &trainer->run;
    const int64_t tensor_ranks = sw_settings_tensor_ranks(settings), zero = settings->zero;
    if (run->ranks != sw_ranks_count(trainer->ranks) || run->tensor_ranks != tensor_ranks) {
        sw_settings_regroup(settings, run->ranks / run->tensor_ranks);
        settings->zero = zero;
    } else if (zero == SW_OPTION_AUTO && run->ranks == run->tensor_ranks) {
        settings->zero = zero_before;
    }
    if (tensor_ranks > 1 && !sw_model_tiles_fit(&run->config, (int)tensor_ranks, settings->tiles))
        settings->tiles = 1;
}

/* The rows that a tensor group's ranks keep; a run without groups leaves them open. */
struct rows_kept {
    int partition, sequence;
};

static struct rows_kept leave_rows_open(struct sw_settings *settings) {
    const struct rows_kept before = {settings->partition, settings->sequence};
    settings->partition = SW_PARTITION_AUTO;
    settings->sequence = SW_SEQUENCE_AUTO;
    return before;
}

/* Goes on as before where there still are groups and the edit named nothing else. */
static void keep_rows(struct rows_kept before, struct sw_settings *settings) {
    if (sw_settings_tensor_ranks(settings) == 1)
        return;
    if (settings->partition == SW_PARTITION_AUTO)
        settings->partition = before.partition;
    if (settings->sequence == SW_SEQUENCE_AUTO)
        settings->sequence = before.sequence;
}

/* Applies the edit, and notes what the user named now: only budgets that are named may exceed the available memory, and
 * only a chunk size that is not named may be raised. */
static sw_status apply_change(const struct change *change, const struct sw_trainer *trainer,
                              struct sw_settings *settings) {
    enum { UNNAMED = INT32_MIN };
    enum { CHUNK_GRAINS, DEVICE_MEMORY, HOST_MEMORY, THREADS, NUMBERS };
    int64_t *const number[] = {[CHUNK_GRAINS] = &settings->chunk_grains,
                               [DEVICE_MEMORY] = &settings->device_memory,
                               [HOST_MEMORY] = &settings->host_memory,
                               [THREADS] = &settings->threads};
    int64_t before[NUMBERS], named[NUMBERS];
    const int rounding = settings->rounding;
    const int64_t zero = settings->zero;
    if (trainer->run.ranks == trainer->run.tensor_ranks)
        settings->zero = SW_OPTION_AUTO;
    for (int i = 0; i < NUMBERS; i++) {
        before[i] = *number[i];
        *number[i] = UNNAMED;
    }
    settings->rounding = UNNAMED;
    const struct rows_kept rows = leave_rows_open(settings);
    const sw_status status = change->apply != NULL ? change->apply(change->context, settings) : SW_OK;
    if (sw_tensor_is_open(settings))
        settings->tensor = trainer->run.tensor_ranks;
    for (int i = 0; i < NUMBERS; i++) {
        named[i] = *number[i];
        *number[i] = before[i];
    }
    keep_rows(rows, settings);
    regroup(trainer, zero, settings);
    for (int i = 0; i < NUMBERS; i++)
        if (named[i] != UNNAMED)
            *number[i] = named[i];
    keep_rounding(rounding, UNNAMED, settings);
    settings->chunk_may_grow = change->apply != NULL && named[CHUNK_GRAINS] == UNNAMED;
    settings->memory_named[SW_DEVICE] = named[DEVICE_MEMORY] != UNNAMED && named[DEVICE_MEMORY] != SW_OPTION_AUTO;
    settings->memory_named[SW_HOST] = named[HOST_MEMORY] != UNNAMED && named[HOST_MEMORY] != SW_OPTION_AUTO;
    return status;
}

/* Ends a run's --zero-secondary, which has no meaning for one rank. */
static sw_status leave_secondary(struct sw_settings *settings) {
    if (strcmp(settings->zero_secondary, SW_NO_SECONDARY) == 0)
        return SW_OK;
    sw_log_info("one rank keeps no second shard of weights: going on with --zero-secondary " SW_NO_SECONDARY);
    free(settings->zero_secondary);
    settings->zero_secondary = strdup(SW_NO_SECONDARY);
    return settings->zero_secondary != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the settings");
}

static sw_status read_run(struct sw_trainer *trainer, const struct change *change) {
    struct sw_settings *settings = &trainer->run.settings;
    SW_TRY(sw_run_read(trainer->folder, &trainer->run));
    SW_TRY(sw_run_model_folder(trainer->folder, settings->model, &trainer->model_folder));
    trainer->past_schedule = sw_settings_schedule(settings);
    if (sw_ranks_count(trainer->ranks) == 1)
        SW_TRY(leave_secondary(settings));
    SW_TRY(apply_change(change, trainer, settings));
    return settings->trace != NULL && sw_ranks_rank(trainer->ranks) == 0 ? sw_trace_file_check(settings->trace) : SW_OK;
}

static sw_status open_store(struct sw_trainer *trainer) {
    struct sw_rank_stores stores = sw_trainer_stores(trainer);
    stores.previous = trainer->run.settings.previous;
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, sw_settings_make_paths_absolute(&trainer->run.settings)));
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

/* Says that a run keeps its threads where there are fewer cores for them now, and whether another number changes its
 * bits. */
static sw_status say_threads(const struct sw_trainer *trainer) {
    const int64_t threads = trainer->run.settings.threads;
    const bool keeps_bits =
        sw_devices_info(&trainer->devices).threads_keep_bits[sw_settings_type(&trainer->run.settings)];
    int64_t cores;
    SW_TRY(sw_ranks_cores(trainer->ranks, &cores));
    if (threads > cores)
        sw_log_info("going on with %s on %s, as %s; --threads %lld may be faster%s", SW_COUNT(threads, "thread"),
                    SW_COUNT(cores, "core"), keeps_bits ? "before" : "the last bits of a product depend on them",
                    (long long)cores, keeps_bits ? " and changes no bit" : "");
    return SW_OK;
}

/* Compares the data with those that the run began with, and names the text where they are tokens of one. */
static sw_status check_data(const struct sw_trainer *trainer) {
    const struct sw_option_list *text = &trainer->run.texts.data;
    const sw_status status = sw_data_check_digest(trainer->data, trainer->run.data_digest);
    return text->count == 0 ? status : sw_fail_while(status, "comparing the tokens of %s", text->items[0]);
}

static sw_status resume(struct sw_trainer *trainer, const struct change *change) {
    struct sw_ranks *ranks = trainer->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_confine(trainer->folder, &trainer->confined)));
    SW_TRY(sw_ranks_first(ranks, lock_run(trainer)));
    SW_TRY(sw_rank_agree_on_folder(ranks, trainer->folder));
    SW_TRY(sw_ranks_agree_on_error(ranks, read_run(trainer, change)));
    SW_TRY(sw_trainer_prepare_inputs(trainer));
    SW_TRY(say_threads(trainer));
    SW_TRY(sw_trainer_prepare_plan(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_data_check_beside(trainer->data, &trainer->run.beside)));
    SW_TRY(sw_ranks_agree_on_error(ranks, check_data(trainer)));
    SW_TRY(sw_trainer_choose_plan(trainer));
    SW_TRY(sw_ranks_agree_on_error(
        ranks, sw_frozen_open(trainer->folder, &trainer->run, sw_model_get_units(trainer->model), &trainer->frozen)));
    SW_TRY(open_store(trainer));
    SW_TRY(sw_ranks_agree_on_error(ranks, read_position(trainer)));
    SW_TRY(sw_trainer_add_start(trainer));
    SW_TRY(sw_ranks_first(ranks, sw_run_write(trainer->folder, &trainer->run)));
    SW_TRY(sw_start_finish(ranks, trainer->folder, &trainer->start));
    sw_ranks_keep(ranks);
    SW_TRY(sw_trainer_open_engine(trainer));
    SW_TRY(sw_engine_restore(trainer->engine));
    const struct sw_load frozen = sw_frozen_load(trainer->frozen, &(struct sw_load){0});
    return sw_engine_load_frozen(trainer->engine, &frozen);
}

sw_status sw_trainer_resume(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            sw_status (*change)(void *context, struct sw_settings *settings), void *context,
                            struct sw_trainer **out) {
    struct sw_trainer *trainer = NULL;
    SW_TRY(sw_trainer_make(folder, ranks, stop, &trainer));
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
