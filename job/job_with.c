/* Varies a job: whatever the change does not touch is borrowed from the original job.
 *
 * A what-if is planned by the same code as the original, so its answer cannot drift from what a run with those settings
 * would do. Borrowing matters: opening devices, measuring and making a model take seconds each, and an answer tries
 * dozens of variations. */
#include "job/job.h"

#include <assert.h>

sw_status sw_job_place(struct sw_job *job, const char *folder) {
    const struct sw_store_owner owner = sw_settings_owner(job->settings);
    sw_places_release(&job->places);
    return sw_places_of(&job->settings->nvme, folder, &owner, &job->places);
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
           a->tensor_ranks == b->tensor_ranks && a->tensor_rank == b->tensor_rank && a->optimizer == b->optimizer &&
           a->fp8 == b->fp8;
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
    job->model = another || !same_shape(&shape, &before) ? NULL : of->model;
    return job->model != NULL ? SW_OK : sw_model_create(&job->config, &shape, job->devices.compute, &job->model);
}

sw_status sw_job_with(const struct sw_job *job, const struct sw_job_change *change, struct sw_job *out) {
    assert(change->config == NULL || job->rates.units == NULL); /* rates belong to the units of one model */
    *out = (struct sw_job){.of = job,
                           .changed = change->settings,
                           .settings = &out->changed,
                           .ranks = job->ranks,
                           .config = change->config != NULL ? *change->config : job->config,
                           .documents = job->documents,
                           .data = job->data,
                           .places = job->places,
                           .devices = job->devices,
                           .is_described = job->is_described,
                           .profile = job->profile,
                           .rates = job->rates};
    if (change->drives > 0.0) {
        out->rates.rates.read.bytes_per_s *= change->drives;
        out->rates.rates.write.bytes_per_s *= change->drives;
    }
    if (change->resolves)
        SW_TRY(resolve(out));
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
    return sw_plan_choose(job->settings, job->model, &job->rates.rates, most_ops, &job->price.choices, &job->plan);
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
    sw_rates_release(&job->rates);
    sw_model_destroy(job->model);
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
