/* Answers questions about other settings. Each question is a varied job (sw_job_with), planned by the planner's own
 * code. */
#include "job/what_if.h"

#include "core/size.h"
#include "core/status.h"
#include "job/job.h"
#include "job/settings/pipeline.h"
#include "model/hf/in_place.h"
#include "offload/simulate/outline_price.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Varies a job: whatever the change does not touch is borrowed from the original job.
 *
 * A what-if is planned by the same code as the original, so its answer cannot drift from what a run with those settings
 * would do. Borrowing matters: opening devices, measuring and making a model take seconds each, and an answer tries
 * dozens of variations. */

sw_status sw_job_place(struct sw_job *job, const char *folder) {
    const struct sw_store_owner owner = sw_settings_owner(job->settings);
    sw_places_release(&job->places);
    return sw_places_of(&job->settings->nvme, folder, &owner, &job->places);
}

sw_status sw_job_group_experts(struct sw_job *job) {
    const int64_t experts = job->settings->expert_group;
    return experts == SW_OPTION_AUTO ? SW_OK : sw_model_group_experts(&job->config, experts);
}

void sw_job_mark_in_place(struct sw_job *job) {
    if (job->in_place != NULL)
        sw_in_place_mark(job->in_place, sw_settings_type(job->settings), sw_model_tunable_units(job->model));
}

struct sw_model_shape sw_job_shape(const struct sw_job *job) {
    struct sw_model_shape shape = sw_settings_shape(job->settings);
    shape.documents = job->documents;
    shape.forward_only = job->forward_only;
    shape.context = job->context;
    return shape;
}

struct sw_job_change sw_job_same(const struct sw_job *job) {
    struct sw_job_change same = {.settings = *job->settings};
    same.settings.group = 0;
    if (same.settings.auto_chunk_grains > 0)
        same.settings.chunk_grains =
            same.settings.auto_chunk_grains; /* a search of the original job may have raised it */
    return same;
}

static bool same_shape(const struct sw_model_shape *a, const struct sw_model_shape *b) {
    return a->type == b->type && a->batch == b->batch && a->seq == b->seq && a->tiles == b->tiles &&
           a->tensor_ranks == b->tensor_ranks && a->expert_ranks == b->expert_ranks &&
           a->tensor_rank == b->tensor_rank && a->optimizer == b->optimizer && a->fp8 == b->fp8 &&
           a->dpo_beta == b->dpo_beta && a->micro_batches == b->micro_batches &&
           a->router_aux_loss == b->router_aux_loss && a->router_z_loss == b->router_z_loss &&
           sw_tuning_same(&a->tuning, &b->tuning);
}

static sw_status resolve(struct sw_job *job) {
    const struct sw_device_info info = sw_devices_info(&job->devices);
    SW_TRY(sw_settings_check(job->settings));
    SW_TRY(sw_settings_resolve(job->settings, &job->config, &info));
    return sw_settings_resolve_steps(job->settings, 0);
}

/* Borrows the original job's model if it would be the same. */
static sw_status make_model(struct sw_job *job, bool another) {
    const struct sw_job *of = job->of;
    const struct sw_model_shape shape = sw_job_shape(job), before = sw_job_shape(of);
    const bool same = same_shape(&shape, &before) && job->config.expert_group == of->config.expert_group;
    job->model = another || !same ? NULL : of->model;
    if (job->model != NULL)
        return SW_OK;
    SW_TRY(sw_model_create(&job->config, &shape, job->devices.compute, &job->model));
    sw_job_mark_in_place(job);
    return SW_OK;
}

sw_status sw_job_with(const struct sw_job *job, const struct sw_job_change *change, struct sw_job *out) {
    assert(change->config == NULL || job->rates.units == NULL); /* rates belong to the units of one model */
    *out = (struct sw_job){.of = job,
                           .changed = change->settings,
                           .settings = &out->changed,
                           .ranks = job->ranks,
                           .config = change->config != NULL ? *change->config : job->config,
                           .documents = job->documents,
                           .in_place = change->config == NULL ? job->in_place : NULL,
                           .data = job->data,
                           .places = job->places,
                           .devices = job->devices,
                           .is_described = job->is_described,
                           .profile = job->profile,
                           .rates = job->rates,
                           .memory = job->memory};
    if (change->drives > 0.0) {
        out->rates.rates.read.bytes_per_s *= change->drives;
        out->rates.rates.write.bytes_per_s *= change->drives;
    }
    if (change->resolves)
        SW_TRY(resolve(out));
    SW_TRY(sw_job_group_experts(out));
    SW_TRY(make_model(out, change->config != NULL));
    return out->settings->group > 0 ? sw_settings_outline(out->settings, out->model, NULL, &out->plan)
                                    : sw_plan_fit(out->settings, out->model, &out->plan);
}

struct sw_rates_target sw_job_target(const struct sw_job *job) {
    return (struct sw_rates_target){.settings = job->settings,
                                    .model = job->model,
                                    .devices = &job->devices,
                                    .ring_chunks = job->plan != NULL ? job->plan->spec.ring_chunks : 0,
                                    .directories = job->places.path,
                                    .directory_count = job->places.count,
                                    .ranks = job->measures ? NULL : job->ranks};
}

sw_status sw_job_find_profile(struct sw_job *job, const struct sw_profile_need *need) {
    const struct sw_rates_target target = sw_job_target(job);
    sw_profile_release(&job->profile);
    return sw_profile_find(&target, need, &job->profile);
}

sw_status sw_job_count_rates(struct sw_job *job) {
    return sw_profile_price(&job->profile, job->settings, &job->config, &job->rates);
}

sw_status sw_job_choose(struct sw_job *job, int64_t most_ops) {
    if (!sw_plan_choice_is_open(job->settings, &job->devices, job->plan))
        return SW_OK;
    return sw_plan_choose(job->settings, job->model, &job->rates.rates, most_ops, job->memory, &job->price.choices,
                          &job->plan);
}

/* Releases what a varied job owns, which is what differs from the original. */
static void release_varied(struct sw_job *job) {
    const struct sw_job *of = job->of;
    if (job->rates.units != of->rates.units)
        sw_rates_release(&job->rates);
    if (job->model != of->model)
        sw_model_destroy(job->model);
}

static void release_opened(struct sw_job *job) {
    sw_price_memory_destroy(job->memory);
    sw_rates_release(&job->rates);
    sw_model_destroy(job->model);
    free(job->in_place);
    sw_profile_release(&job->profile);
    sw_places_release(&job->places);
    if (!sw_ranks_hold(job->ranks, &job->devices))
        sw_devices_close(&job->devices);
}

void sw_job_release(struct sw_job *job) {
    sw_plan_destroy(job->plan);
    if (job->of != NULL)
        release_varied(job);
    else
        release_opened(job);
    *job = (struct sw_job){0};
}

/* With at least the same memory and batch the original plan works too, and a short search may find none that is faster.
 */
static sw_status keep_faster(const struct sw_job *varied, struct sw_simulation *step) {
    const struct sw_settings *now = varied->settings, *before = varied->of->settings;
    struct sw_simulation same;
    if (now->device_memory < before->device_memory || now->host_memory < before->host_memory ||
        now->batch_tokens != before->batch_tokens || now->optimizer_state != before->optimizer_state ||
        now->grads_state != before->grads_state)
        return SW_OK;
    SW_TRY(sw_simulate(varied->of->plan, SW_PROGRAM_UPDATE, false, &varied->rates.rates, NULL, &same));
    if (same.step_s < step->step_s)
        *step = same;
    return SW_OK;
}

static sw_status predict(struct sw_job *varied, struct sw_what_if *out) {
    struct sw_outline_price found;
    SW_TRY(sw_job_choose(varied, SW_SEARCH_QUICK_OPS));
    out->disk_bytes = sw_plan_disk_bytes(varied->plan);
    if (sw_plan_uses_nvme(varied->plan) && !sw_rates_know_drives(&varied->rates.rates))
        return SW_OK;
    SW_TRY(sw_outline_simulate(varied->plan, &varied->rates.rates, INFINITY, varied->memory, &found));
    out->step = found.step;
    SW_TRY(keep_faster(varied, &out->step));
    out->tokens_per_s = (double)varied->settings->batch_tokens / out->step.step_s;
    return SW_OK;
}

/* Plans with a change, and predicts the step. */
static sw_status plan_again(const struct sw_job *job, const char *what, const struct sw_job_change *change,
                            struct sw_what_if *out) {
    struct sw_job varied;
    *out = (struct sw_what_if){.what = what,
                               .device_memory = change->settings.device_memory,
                               .host_memory = change->settings.host_memory,
                               .tokens_per_s = NAN};
    sw_status status = sw_job_with(job, change, &varied);
    if (status == SW_OK)
        status = predict(&varied, out);
    sw_job_release(&varied);
    out->fits = status == SW_OK;
    /* SW_ERR_ARG: every group that fits has too many ops. SW_ERR_UNSUPPORTED: the model cannot have the change. */
    if (status != SW_ERR_BUDGET && status != SW_ERR_ARG && status != SW_ERR_UNSUPPORTED)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Plans with another format of the optimizer state. */
static sw_status plan_format(const struct sw_job *job, sw_optimizer_format format, struct sw_what_if *out) {
    static const char *const names[SW_OPTIMIZER_FORMATS] = {[SW_OPTIMIZER_FP32] = "optimizer state fp32",
                                                            [SW_OPTIMIZER_BF16] = "optimizer state bf16",
                                                            [SW_OPTIMIZER_8BIT] = "optimizer state 8bit"};
    struct sw_job_change change = sw_job_same(job);
    change.settings.optimizer_state = (int)format;
    return plan_again(job, names[format], &change, out);
}

bool sw_what_helps_is_quick(const struct sw_job *job) {
    enum { MOST_OPS = 200000 };
    return job->plan->program[SW_PROGRAM_UPDATE].op_count <= MOST_OPS;
}

sw_status sw_what_helps(const struct sw_job *job, struct sw_helps *out) {
    const struct sw_job_change same = sw_job_same(job);
    struct sw_job_change drive = same, host = same, device = same, batch = same, grads = same;
    const bool typed = same.settings.grads_state == SW_GRADS_TYPED;
    drive.drives = 2.0;
    host.settings.host_memory *= 2;
    device.settings.device_memory *= 2;
    batch.settings.batch_tokens *= 2;
    out->count = 0;
    SW_TRY(plan_again(job, "one more drive", &drive, &out->row[out->count++]));
    SW_TRY(plan_again(job, "host memory doubled", &host, &out->row[out->count++]));
    SW_TRY(plan_again(job, "device memory doubled", &device, &out->row[out->count++]));
    SW_TRY(plan_again(job, "batch doubled", &batch, &out->row[out->count++]));
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++)
        if (format != same.settings.optimizer_state)
            SW_TRY(plan_format(job, (sw_optimizer_format)format, &out->row[out->count++]));
    grads.settings.grads_state = typed ? SW_GRADS_8BIT : SW_GRADS_TYPED;
    if (sw_settings_ranks(job->settings) == 1)
        SW_TRY(plan_again(job, typed ? "gradients in 8 bits" : "gradients in full", &grads, &out->row[out->count++]));
    return SW_OK;
}

/* With more memory a plan recomputes less, but a forward pass is at most a quarter of the compute lane. So a step whose
 * compute lane is busy for two thirds of the time cannot become half as long. */
#define MOST_COMPUTING (2.0 / 3.0)

static bool may_double(const struct sw_job *job) {
    const struct sw_simulation *step = &job->price.prediction.plain;
    bool on_nvme = false;
    for (int64_t u = 0; u < job->plan->spec.units->count; u++)
        on_nvme |= sw_plan_trains(job->plan, u) && job->plan->placement[u].tier[SW_OPTIMIZER] == SW_NVME;
    return on_nvme && sw_settings_optimizer(job->settings) == SW_OPTIMIZER_FP32 && sw_what_helps_is_quick(job) &&
           step->lane_busy_s[SW_LANE_COMPUTE] < MOST_COMPUTING * step->step_s;
}

sw_status sw_what_if_narrow(const struct sw_job *job, double *out_step_s) {
    struct sw_what_if narrow;
    *out_step_s = 0.0;
    if (!may_double(job))
        return SW_OK;
    SW_TRY(plan_format(job, SW_OPTIMIZER_8BIT, &narrow));
    if (narrow.fits && narrow.step.step_s < job->price.prediction.plain.step_s / 2.0)
        *out_step_s = narrow.step.step_s;
    return SW_OK;
}

static sw_status price_stage(struct sw_job *varied, struct sw_stage_price *out) {
    struct sw_outline_price found;
    SW_TRY(sw_job_choose(varied, SW_SEARCH_QUICK_OPS));
    out->disk_bytes = sw_plan_disk_bytes(varied->plan);
    memcpy(out->peak_bytes, varied->plan->tier_bytes, sizeof out->peak_bytes);
    if (sw_plan_uses_nvme(varied->plan) && !sw_rates_know_drives(&varied->rates.rates))
        return SW_OK;
    SW_TRY(sw_outline_simulate(varied->plan, &varied->rates.rates, INFINITY, varied->memory, &found));
    out->step = found.step;
    return SW_OK;
}

sw_status sw_what_if_stage(const struct sw_job *job, int64_t stage, struct sw_stage_price *out) {
    struct sw_job_change change = sw_job_same(job);
    struct sw_job varied;
    change.settings.rank = stage * sw_settings_stage_ranks(job->settings);
    *out = (struct sw_stage_price){.layers = sw_settings_layers_of(job->settings, stage), .step.step_s = NAN};
    sw_status status = sw_job_with(job, &change, &varied);
    if (status == SW_OK)
        status = price_stage(&varied, out);
    sw_job_release(&varied);
    return status == SW_OK ? SW_OK
                           : sw_fail_while(status, "planning stage %lld of stages 0 to %lld", (long long)stage,
                                           (long long)sw_settings_stages(job->settings) - 1);
}

/* Rounds bytes up to what a flag can say briefly: whole MiB, or pages if there are only a few MiB. */
static int64_t round_budget(int64_t bytes) {
    const int64_t unit = bytes >= (INT64_C(64) << 20) ? INT64_C(1) << 20 : INT64_C(1) << 12;
    return sw_div_up(bytes, unit) * unit;
}

/* Two budgets. sw_least_memory searches for the smallest ones on the line between a pair that is too small and one that
 * fits. */
struct budgets {
    int64_t device, host;
};

static struct budgets between(struct budgets low, struct budgets high) {
    const struct budgets middle = {.device = round_budget(low.device + (high.device - low.device) / 2),
                                   .host = round_budget(low.host + (high.host - low.host) / 2)};
    return (struct budgets){.device = sw_min_i64(middle.device, high.device),
                            .host = sw_min_i64(middle.host, high.host)};
}

static bool are_near(struct budgets low, struct budgets high) {
    enum { SHARE = 256 };
    return high.device - low.device <= high.device / SHARE && high.host - low.host <= high.host / SHARE;
}

static struct sw_job_change with_budgets(const struct sw_job *job, struct budgets budgets) {
    struct sw_job_change change = sw_job_same(job);
    change.settings.device_memory = budgets.device;
    change.settings.host_memory = budgets.host;
    return change;
}

static sw_status fits_budgets(const struct sw_job *job, struct budgets budgets, bool *out) {
    const struct sw_job_change change = with_budgets(job, budgets);
    struct sw_job varied;
    const sw_status status = sw_job_with(job, &change, &varied);
    sw_job_release(&varied);
    *out = status == SW_OK;
    if (status != SW_ERR_BUDGET)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Halves the distance between `high`, which fits, and `low`, which need not, until they are close. */
static sw_status find_least(const struct sw_job *job, struct budgets low, struct budgets high, struct budgets *out) {
    enum { MOST_TRIES = 40 };
    for (int tries = 0; tries < MOST_TRIES && !are_near(low, high); tries++) {
        const struct budgets tried = between(low, high);
        bool fit;
        if (tried.device == high.device && tried.host == high.host)
            break;
        SW_TRY(fits_budgets(job, tried, &fit));
        *(fit ? &high : &low) = tried;
    }
    *out = high;
    return SW_OK;
}

static sw_status price_budgets(const struct sw_job *job, const char *what, struct budgets budgets,
                               struct sw_what_if *out) {
    const struct sw_job_change change = with_budgets(job, budgets);
    return plan_again(job, what, &change, out);
}

sw_status sw_least_memory(const struct sw_job *job, struct sw_what_if out[SW_LEASTS]) {
    const struct budgets all = {.device = job->settings->device_memory, .host = job->settings->host_memory};
    struct budgets device, host, both;
    SW_TRY(find_least(job, (struct budgets){.host = all.host}, all, &device));
    SW_TRY(find_least(job, (struct budgets){.device = all.device}, all, &host));
    const struct budgets corner = {.device = device.device, .host = host.host};
    bool fit;
    SW_TRY(fits_budgets(job, corner, &fit));
    both = corner;
    if (!fit)
        SW_TRY(find_least(job, corner, all, &both));
    SW_TRY(price_budgets(job, "as they are", all, &out[0]));
    SW_TRY(price_budgets(job, "least device memory", device, &out[1]));
    SW_TRY(price_budgets(job, "least host memory", host, &out[2]));
    return price_budgets(job, "both small", both, &out[3]);
}

enum { LEAST_SEQ = 64, MESSAGE_CHARS = 1024, FLAGS_CHARS = 128 };

/* Tells whether the plan fits with a change. */
static bool fits(const struct sw_job *job, const struct sw_job_change *change) {
    SW_HANDLES_ERRORS();
    struct sw_job varied;
    const sw_status status = sw_job_with(job, change, &varied);
    sw_job_release(&varied);
    return status == SW_OK;
}

/* Shrinks settings in the order in which a user gives them up most easily: the micro-batch, which changes only the
 * order of sums; then kept intermediates; then the length of sequences. Writes the first settings that fit to `flags`;
 * returns false if none do. */
static bool find_smaller(const struct sw_job *job, char flags[FLAGS_CHARS]) {
    const struct sw_settings *given = job->settings;
    struct sw_job_change change = sw_job_same(job);
    struct sw_settings *tried = &change.settings;
    tried->micro_batch = given->dpo ? 2 : 1;
    bool found = given->micro_batch > tried->micro_batch && fits(job, &change);
    if (!found && given->recompute != SW_OPTION_RECOMPUTE_ALL) {
        tried->recompute = SW_OPTION_RECOMPUTE_ALL;
        found = fits(job, &change);
    }
    while (!found && tried->seq / 2 >= LEAST_SEQ && tried->seq % 2 == 0) {
        tried->seq /= 2;
        found = fits(job, &change);
    }
    int chars = 0;
    if (tried->micro_batch != given->micro_batch)
        chars += snprintf(flags + chars, (size_t)(FLAGS_CHARS - chars), " --micro-batch %lld",
                          (long long)tried->micro_batch);
    if (tried->recompute != given->recompute)
        chars += snprintf(flags + chars, (size_t)(FLAGS_CHARS - chars), " --recompute all");
    if (tried->seq != given->seq)
        snprintf(flags + chars, (size_t)(FLAGS_CHARS - chars), " --seq %lld", (long long)tried->seq);
    return found;
}

/* Returns the next smaller micro-batch that divides a step, or 0. */
static int64_t next_micro_batch(const struct sw_settings *settings) {
    const int64_t sequences = settings->batch_tokens / settings->seq;
    const int64_t step = settings->dpo ? 2 : 1;
    int64_t next = settings->micro_batch - step;
    while (next > 0 && sequences % next != 0)
        next -= step;
    return next;
}

void sw_job_lower_micro_batch(struct sw_job *job) {
    struct sw_job_change change = sw_job_same(job);
    struct sw_settings *tried = &change.settings;
    if (!tried->micro_batch_open || tried->micro_batch <= 1 || sw_settings_ranks(tried) > 1)
        return;
    while (tried->micro_batch > 0 && !fits(job, &change))
        tried->micro_batch = next_micro_batch(tried);
    if (tried->micro_batch > 0)
        job->settings->micro_batch = tried->micro_batch;
}

sw_status sw_job_fit_or_advise(struct sw_job *job) {
    char message[MESSAGE_CHARS], flags[FLAGS_CHARS] = "";
    const int64_t stages = sw_settings_stages(job->settings);
    const sw_status status = sw_plan_fit(job->settings, job->model, &job->plan);
    if (status != SW_ERR_BUDGET)
        return status;
    if (stages > 1)
        (void)sw_fail_while(status, "planning stage %lld of stages 0 to %lld, whose layers --pipeline-split sets",
                            (long long)sw_settings_stage(job->settings), (long long)stages - 1);
    snprintf(message, sizeof message, "%s", sw_error_message(status));
    sw_error_clear();
    if (find_smaller(job, flags))
        return sw_fail(status, "%s; with%s it fits", message, flags);
    return sw_fail(status, "%s", message);
}

static sw_status check_store(const struct sw_job *job, bool of_run) {
    const struct sw_settings *settings = job->settings;
    const struct sw_drive_look look = {.named = settings->nvme.count > 0 || of_run,
                                       .ranks = sw_places_are_shared(&settings->nvme) ? settings->local_ranks : 1};
    const struct sw_new_store wanted = {
        .plan = job->plan, .places = &job->places, .allow_buffered = settings->allow_buffered};
    return sw_new_store_check_drives(&wanted, &look);
}

/* Tells whether the drives have room for the plan with another format of the optimizer state. */
static bool has_room_with(const struct sw_job *job, sw_optimizer_format format, bool of_run) {
    SW_HANDLES_ERRORS();
    struct sw_job_change change = sw_job_same(job);
    struct sw_job varied;
    change.settings.optimizer_state = (int)format;
    sw_status status = sw_job_with(job, &change, &varied);
    if (status == SW_OK)
        status = check_store(&varied, of_run);
    sw_job_release(&varied);
    return status == SW_OK;
}

/* Returns the format of the optimizer state for which the drives have room: the one nearest to the current format, or
 * else the current one. */
static sw_optimizer_format find_format(const struct sw_job *job, bool of_run) {
    const sw_optimizer_format given = (sw_optimizer_format)job->settings->optimizer_state;
    for (int format = (int)given + 1; format < SW_OPTIMIZER_FORMATS; format++)
        if (has_room_with(job, (sw_optimizer_format)format, of_run))
            return (sw_optimizer_format)format;
    return given;
}

sw_status sw_job_check_drives(const struct sw_job *job, bool of_run) {
    char message[MESSAGE_CHARS];
    const sw_status status = check_store(job, of_run);
    if (status != SW_ERR_SPACE)
        return status;
    snprintf(message, sizeof message, "%s", sw_error_message(status));
    sw_error_clear();
    const sw_optimizer_format format = find_format(job, of_run);
    if ((int)format != job->settings->optimizer_state)
        return sw_fail(status, "%s; with --optimizer-state %s it fits, or name a larger drive by --nvme", message,
                       sw_optimizer_format_name(format));
    return sw_fail(status, "%s; no --optimizer-state fits there, so name a larger drive, or several, by --nvme",
                   message);
}
