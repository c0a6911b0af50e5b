/* Opens a model for forward passes, and decodes a growing text.
 *
 * Inference uses the training engine with a plan that has no backward pass. A second, smaller engine would have to
 * repeat placement, loading and the exchange of tensor groups, and would be a second place for the bits to differ.
 *
 * A prompt is computed in passes of a fixed number of tokens, as the engine's shapes are fixed; single tokens have a
 * shape of their own. The last pass of a prompt overlaps the pass before instead of being shorter. Weights that memory
 * cannot hold are read from a drive in every pass, through the store, from files without names. */
#include "run/inference/inference.h"

#include "core/log.h"
#include "core/machine.h"
#include "core/rng.h"
#include "core/size.h"
#include "offload/engine/scratch.h"
#include "offload/plan/shard.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Chooses a token from logits, with the filters of transformers in their order.
 *
 * A full sort of 150,000 logits per token would cost more than the choice is worth, so the most likely tokens are taken
 * from a heap one by one, until the filters need no more. Random numbers depend on seed and position alone: the same
 * text goes on in the same way however it is cut into calls. */

/* Keeps the random numbers of sampling apart from other uses of the seed. */
#define SAMPLER_STREAM UINT64_C(0x73616d706c657200)

struct candidate {
    float logit;
    int32_t token;
};

/* The tokens partially sorted by logit. Only the few most likely are ever asked for, so the others need no order. */
struct sw_sampler {
    struct sw_sampler_spec spec;
    struct candidate *candidate; /* a heap of `heap` tokens, followed by the most likely ones in rising order */
    int64_t heap;
};

sw_status sw_sampler_create(const struct sw_sampler_spec *spec, struct sw_sampler **out) {
    struct sw_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler != NULL) {
        sampler->spec = *spec;
        sampler->candidate = calloc((size_t)spec->vocab, sizeof *sampler->candidate);
    }
    if (sampler == NULL || sampler->candidate == NULL) {
        sw_sampler_destroy(sampler);
        return sw_fail(SW_ERR_NOMEM, "no memory to sample from %lld tokens", (long long)spec->vocab);
    }
    *out = sampler;
    return SW_OK;
}

void sw_sampler_destroy(struct sw_sampler *sampler) {
    if (sampler == NULL)
        return;
    free(sampler->candidate);
    free(sampler);
}

/* Orders tokens by logit. Of equal logits the higher token counts as likelier, as in transformers, whose nucleus drops
 * the lower tokens first. */
static bool is_likelier(struct candidate a, struct candidate b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token > b.token;
}

static void sift_down(struct sw_sampler *sampler, int64_t at) {
    struct candidate *heap = sampler->candidate, moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < sampler->heap; at = child) {
        if (child + 1 < sampler->heap && is_likelier(heap[child + 1], heap[child]))
            child++;
        if (!is_likelier(heap[child], moved))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void fill(struct sw_sampler *sampler, const float *logits) {
    sampler->heap = sampler->spec.vocab;
    for (int64_t t = 0; t < sampler->heap; t++)
        sampler->candidate[t] = (struct candidate){.logit = logits[t], .token = (int32_t)t};
    for (int64_t at = sampler->heap / 2 - 1; at >= 0; at--)
        sift_down(sampler, at);
}

/* Returns the token of a rank. Rank 0 is the most likely. */
static struct candidate ranked(struct sw_sampler *sampler, int64_t rank) {
    const int64_t place = sampler->spec.vocab - 1 - rank;
    while (sampler->heap > place) {
        const struct candidate likeliest = sampler->candidate[0];
        sampler->candidate[0] = sampler->candidate[--sampler->heap];
        sift_down(sampler, 0);
        sampler->candidate[sampler->heap] = likeliest;
    }
    return sampler->candidate[place];
}

/* Returns a probability relative to that of the most likely token. */
static double weight_of(const struct sw_sampler *sampler, struct candidate candidate, float best) {
    return exp(((double)candidate.logit - (double)best) / sampler->spec.temperature);
}

/* Counts the tokens that top_k keeps: the most likely ones, and those whose logits equal that of the last. */
static int64_t count_top_k(struct sw_sampler *sampler) {
    const int64_t vocab = sampler->spec.vocab;
    int64_t count = sampler->spec.top_k;
    if (count == 0 || count >= vocab)
        return vocab;
    const float last = ranked(sampler, count - 1).logit;
    while (count < vocab && ranked(sampler, count).logit == last)
        count++;
    return count;
}

/* Counts the tokens of the nucleus, the smallest set of the `most` likeliest whose probability reaches top_p. */
static int64_t count_nucleus(struct sw_sampler *sampler, int64_t most, float best) {
    const bool all = most == sampler->spec.vocab;
    double total = 0.0, reached = 0.0;
    int64_t count = 0;
    for (int64_t i = 0; i < most; i++)
        total += weight_of(sampler, all ? sampler->candidate[i] : ranked(sampler, i), best);
    while (count < most && (count == 0 || reached < sampler->spec.top_p * total))
        reached += weight_of(sampler, ranked(sampler, count++), best);
    return count;
}

/* Counts those of the `most` likeliest tokens that are at least min_p as probable as the best one. */
static int64_t count_probable(struct sw_sampler *sampler, int64_t most, float best) {
    int64_t count = 1;
    while (count < most && weight_of(sampler, ranked(sampler, count), best) >= sampler->spec.min_p)
        count++;
    return count;
}

/* Returns the most likely token, of equal ones the first. */
static int32_t likeliest(const float *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t t = 1; t < vocab; t++)
        best = logits[t] > logits[best] ? t : best;
    return (int32_t)best;
}

/* Filters in the order of transformers: temperature, top_k, top_p, min_p. Each filter sees the probabilities of the
 * tokens that the one before kept. */
int32_t sw_sampler_choose(struct sw_sampler *sampler, const float *logits, uint64_t position) {
    const struct sw_sampler_spec *spec = &sampler->spec;
    if (spec->temperature <= 0)
        return likeliest(logits, spec->vocab);
    fill(sampler, logits);
    const float best = ranked(sampler, 0).logit;
    int64_t kept = count_top_k(sampler);
    if (spec->top_p < 1)
        kept = count_nucleus(sampler, kept, best);
    if (spec->min_p > 0)
        kept = count_probable(sampler, kept, best);
    const bool all = kept == spec->vocab;
    double total = 0.0;
    for (int64_t i = 0; i < kept; i++)
        total += weight_of(sampler, all ? sampler->candidate[i] : ranked(sampler, i), best);
    double left = sw_rng_uniform(spec->seed, SAMPLER_STREAM, position) * total;
    for (int64_t i = 0; i < kept; i++) {
        left -= weight_of(sampler, ranked(sampler, i), best);
        if (left < 0)
            return ranked(sampler, i).token;
    }
    return ranked(sampler, kept - 1).token;
}

/* Parts of the logits that ranks exchange begin at multiples of this many bytes. */
enum { SHARE_ALIGN = 64 };

sw_status sw_logits_share(struct sw_ranks *ranks, int tensor_ranks, int64_t vocab, float *logits) {
    if (tensor_ranks == 1)
        return SW_OK;
    const int64_t most = sw_shard_most_grains(vocab, tensor_ranks);
    const int64_t part_bytes = sw_round_up(most * (int64_t)sizeof *logits, SHARE_ALIGN);
    const struct sw_span own = sw_shard(vocab, tensor_ranks, sw_ranks_rank(ranks) % tensor_ranks);
    char *mine = calloc(1, (size_t)part_bytes);
    void *all = NULL;
    sw_status status = mine != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the logits of all ranks");
    SW_TRY_GOTO(sw_ranks_agree_on_error(ranks, status), end);
    assert(mine != NULL);
    memcpy(mine, logits + own.first_grain, (size_t)own.grains * sizeof *logits);
    SW_TRY_GOTO(sw_ranks_collect(ranks, "logits", mine, part_bytes, &all), end);
    for (int rank = 0; rank < tensor_ranks; rank++) {
        const struct sw_span part = sw_shard(vocab, tensor_ranks, rank);
        memcpy(logits + part.first_grain, (const char *)all + rank * part_bytes, (size_t)part.grains * sizeof *logits);
    }
end:
    free(all);
    free(mine);
    return status;
}

/* Prompt tokens per pass: enough to be bound by arithmetic, few enough to need little memory between layers. */
enum { PASS_TOKENS = 512 };

int64_t sw_decoder_left(int64_t positions) {
    return sw_max_i64(1, positions / 2);
}

sw_status sw_decoder_open(const struct sw_decoder_spec *spec, struct sw_decoder *out) {
    out->context = sw_min_i64(sw_source_config(spec->source)->max_positions, spec->most_tokens);
    const bool outgrows = spec->most_tokens > out->context;
    out->pass_tokens = sw_min_i64(PASS_TOKENS, outgrows ? sw_decoder_left(out->context) : spec->prompt_tokens);
    /* The ranks of a group divide the rows of a pass, so there must be one for each. */
    out->pass_tokens = sw_max_i64(out->pass_tokens, sw_min_i64(sw_ranks_count(spec->ranks), out->context));
    const struct sw_inference_spec inference = {.source = spec->source,
                                                .ranks = spec->ranks,
                                                .tensor_ranks = sw_ranks_count(spec->ranks),
                                                .options = spec->options,
                                                .batch = 1,
                                                .seq = out->pass_tokens,
                                                .context = out->context};
    return sw_inference_open(&inference, &out->inference);
}

void sw_decoder_close(struct sw_decoder *decoder) {
    sw_inference_close(&decoder->inference);
}

/* Runs one pass of `count` tokens after the first `past` tokens of the text. Adds the keys and values of the first
 * `used` of them to the cache. The rest is padding: no token attends to it, and the next pass overwrites it. */
static sw_status pass(struct sw_decoder *decoder, const int32_t *tokens, int64_t past, int64_t used, int64_t count,
                      float *logits) {
    struct sw_engine *engine = decoder->inference.engine;
    int32_t *to = sw_engine_tokens(engine, 0);
    const struct sw_step_input input = {
        .kind = SW_STEP_LOGITS, .loss_tokens = 1, .row = used - 1, .past = past, .count = count, .logits = logits};
    struct sw_step_result result;
    memcpy(to, tokens + past, (size_t)used * sizeof *tokens);
    memset(to + used, 0, (size_t)(count - used) * sizeof *tokens);
    SW_TRY(sw_engine_begin(engine, &input));
    SW_TRY(sw_engine_wait(engine, &result));
    if (count == 1) {
        decoder->singles++;
        decoder->fetched_bytes += sw_max_i64(result.lane_bytes[SW_LANE_UPLOAD], result.lane_bytes[SW_LANE_READ]);
    }
    decoder->kept = past + used;
    return SW_OK;
}

sw_status sw_decoder_logits(struct sw_decoder *decoder, const int32_t *text, int64_t length, float *logits) {
    const bool begins = decoder->kept == 0;
    assert(length > decoder->first + decoder->kept);
    if (length - decoder->first > decoder->context) {
        decoder->first = length - (begins ? decoder->context : sw_decoder_left(decoder->context));
        decoder->kept = 0;
    }
    const int32_t *tokens = text + decoder->first;
    const int64_t seen = length - decoder->first;
    while (decoder->kept < seen) {
        /* The last pass of a prompt is full too: it starts at tokens of the pass before and computes them again. */
        const int64_t count = seen - decoder->kept == 1 ? 1 : decoder->pass_tokens;
        const int64_t past = sw_max_i64(0, sw_min_i64(decoder->kept, seen - count));
        SW_TRY(pass(decoder, tokens, past, sw_min_i64(count, seen - past), count, logits));
    }
    const struct sw_job *job = &decoder->inference.job;
    return sw_logits_share(job->ranks, sw_ranks_count(job->ranks), job->config.vocab, logits);
}

enum { CHUNK_GRAINS = 16, UNIT_SLOTS = 2, LEAST_RING_CHUNKS = 2 };
/* Budgets of "auto" as shares of available memory. With a GPU, host memory takes only what the GPU cannot hold. */
#define AUTO_DEVICE_SHARE 0.85
#define AUTO_HOST_SHARE 0.1
#define AUTO_GPU_HOST_SHARE 0.8

/* Returns the folders for weights that memory cannot hold; NULL: memory must hold all. */
static const struct sw_option_list *scratch_of(const struct sw_inference_spec *spec) {
    return spec->options->scratch.count > 0 ? &spec->options->scratch : sw_source_drives(spec->source);
}

static int64_t given_or(int64_t given, double automatic_bytes) {
    return given == SW_OPTION_AUTO ? (int64_t)automatic_bytes : given;
}

static void choose_budgets(const struct sw_inference_options *options, const struct sw_device_info *device,
                           const struct sw_machine *machine, int64_t budget_bytes[SW_TIERS]) {
    const bool gpu = !device->host_memory;
    const double available = (double)machine->available_bytes;
    budget_bytes[SW_DEVICE] =
        given_or(options->device_memory, gpu ? (double)sw_devices_gpu_budget(device) : AUTO_DEVICE_SHARE * available);
    budget_bytes[SW_HOST] = given_or(options->host_memory, (gpu ? AUTO_GPU_HOST_SHARE : AUTO_HOST_SHARE) * available);
}

/* Checks the host memory that the plan takes. A GPU itself refuses what it has no room for. A budget that the user
 * named may exceed the available memory, but not the limit of a cgroup (job/settings/room.h). */
static sw_status check_memory(const struct sw_inference_options *options, const struct sw_plan *plan,
                              const struct sw_device_info *device, const struct sw_machine *machine) {
    const int64_t need_bytes = plan->tier_bytes[SW_HOST] + (device->host_memory ? plan->tier_bytes[SW_DEVICE] : 0);
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    const bool named =
        options->host_memory != SW_OPTION_AUTO || (device->host_memory && options->device_memory != SW_OPTION_AUTO);
    if (named && need_bytes > machine->available_bytes && need_bytes <= machine->limit.room_bytes) {
        sw_log_info("taking %s of memory, as --device-memory and --host-memory allow, although only %s is available",
                    sw_format_size(need_bytes, need), sw_format_size(machine->available_bytes, have));
        return SW_OK;
    }
    return need_bytes <= machine->available_bytes
               ? SW_OK
               : sw_fail(SW_ERR_BUDGET,
                         "the model takes %s of memory, but this machine has %s available; lower --device-memory and "
                         "--host-memory to that",
                         sw_format_size(need_bytes, need), sw_format_size(machine->available_bytes, have));
}

/* Adds to an error about too small budgets what the memory is for. */
static sw_status explain(sw_status status, const struct sw_inference_spec *spec, const struct sw_model *model) {
    const struct sw_model_bytes bytes = sw_model_bytes(model);
    char text[SW_SIZE_CHARS];
    int64_t cache_bytes = 0;
    for (int64_t u = 0; u < sw_model_get_units(model)->count; u++)
        cache_bytes += bytes.cost[u].cache_bytes;
    if (status != SW_ERR_BUDGET)
        return status;
    const bool in_memory = scratch_of(spec)->count == 0;
    if (cache_bytes > 0)
        return sw_fail_while(status, "keeping %s of keys and values of a text of %lld tokens%s",
                             sw_format_size(cache_bytes, text), (long long)spec->context,
                             in_memory ? ", and all weights in memory, as without --scratch FOLDER" : "");
    return in_memory ? sw_fail_while(status, "keeping all weights in memory, as without --scratch FOLDER") : status;
}

static sw_status make_plan(const struct sw_inference_spec *spec, struct sw_job *job) {
    const struct sw_settings *settings = job->settings;
    const struct sw_device_info device = sw_devices_info(&job->devices);
    const int tensor_ranks = (int)sw_settings_tensor_ranks(settings);
    struct sw_machine machine;
    SW_TRY(sw_machine_read(&machine));
    machine.available_bytes /= sw_ranks_local_count(spec->ranks);
    const struct sw_model_bytes bytes = sw_model_bytes(job->model);
    struct sw_plan_spec plan = {
        .units = sw_model_get_units(job->model),
        .type = sw_settings_type(settings),
        .ranks = (int)sw_settings_data_ranks(settings),
        .rank = (int)sw_settings_data_rank(settings),
        .scratch_store = scratch_of(spec)->count > 0,
        .micro_batches = 1,
        .group = 1,
        .unit_slots = UNIT_SLOTS,
        .token_bytes = bytes.token,
        .cost = bytes.cost,
        .work_bytes = bytes.work,
        .recompute = SW_RECOMPUTE_UNIT,
        .chunk_grains = CHUNK_GRAINS,
        .ring_chunks = LEAST_RING_CHUNKS,
        .ring_auto = true,
    };
    if (tensor_ranks > 1)
        plan.tensor = (struct sw_plan_tensor){.ranks = tensor_ranks,
                                              .rank = (int)sw_settings_tensor_rank(settings),
                                              .rows = bytes.rows,
                                              .softmax_bytes = bytes.softmax};
    choose_budgets(spec->options, &device, &machine, plan.budget_bytes);
    SW_TRY(sw_placement_parse("auto", &plan.place));
    SW_TRY(explain(sw_plan_create(&plan, &job->plan), spec, job->model));
    SW_TRY(sw_plan_check(job->plan));
    return check_memory(spec->options, job->plan, &device, &machine);
}

/* Makes the store for weights that memory cannot hold. Its files have no names, so nothing of them remains however the
 * process ends. A store must hold at least one grain; the weights are in the scratch area that follows it. */
static sw_status make_store(const struct sw_inference_spec *inferred, struct sw_inference *inference) {
    const struct sw_option_list *folders = scratch_of(inferred);
    const struct sw_plan *plan = inference->job.plan;
    const int64_t bytes = plan->tier_bytes[SW_NVME];
    char size[SW_SIZE_CHARS];
    if (bytes == 0)
        return SW_OK;
    int64_t *grains = calloc((size_t)plan->spec.units->count, sizeof *grains);
    if (grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the layout of the weights");
    struct sw_scratch scratch;
    sw_status status = sw_scratch_of(plan, &scratch);
    grains[0] = 1;
    const struct sw_store_spec spec = {.directories = (const char *const *)folders->items,
                                       .directory_count = folders->count,
                                       .unit_grains = grains,
                                       .unit_count = plan->spec.units->count,
                                       .scratch = scratch.kind,
                                       .scratch_count = scratch.count,
                                       .allow_buffered = inferred->options->allow_buffered,
                                       .one_generation = true,
                                       .unnamed = true};
    if (status == SW_OK)
        status = sw_store_create(&spec, NULL, NULL, &inference->store);
    sw_scratch_release(&scratch);
    free(grains);
    if (status == SW_OK)
        sw_log_info("memory cannot hold %s of the weights: every pass reads them from a copy in %s",
                    sw_format_size(bytes, size), folders->items[0]);
    return status;
}

/* Says that a base which is rounded has other values than the run trained with: each rank rounds its part by itself. */
static void say_base(const struct sw_inference_spec *spec, int tensor_ranks) {
    const int base = sw_source_tuning(spec->source)->base;
    const bool rounded = base != SW_BASE_TYPED && sw_base_stored_elems((sw_base_format)base) == 0;
    char before[SW_GROUPS_CHARS];
    if (rounded && !sw_source_has_groups(spec->source, tensor_ranks) && sw_ranks_rank(spec->ranks) == 0)
        sw_log_info("the run rounds its base to %s for %s; --tensor %d rounds other parts, so results differ a little",
                    sw_base_format_name((sw_base_format)base), sw_source_groups_text(spec->source, before),
                    tensor_ranks);
}

/* Cuts the source for the rank's group, and describes the work as the settings of a job. */
static sw_status choose_settings(const struct sw_inference_spec *spec, struct sw_settings *s) {
    const struct sw_inference_options *options = spec->options;
    const int tensor_ranks = spec->tensor_ranks > 1 ? spec->tensor_ranks : 1;
    say_base(spec, tensor_ranks);
    if (tensor_ranks > 1)
        SW_TRY(sw_source_cut(spec->source, tensor_ranks, sw_ranks_rank(spec->ranks) % tensor_ranks));
    SW_TRY(sw_options_defaults(&sw_plan_command, s));
    s->precision = options->precision;
    s->device = options->device;
    s->threads = options->threads;
    s->device_memory = options->device_memory;
    s->host_memory = options->host_memory;
    s->rank_timeout = options->rank_timeout;
    s->tensor = tensor_ranks;
    s->tiles = sw_source_tiles(spec->source);
    s->optimizer_state = (int)sw_source_units(spec->source)->optimizer;
    SW_TRY(sw_tuning_copy(sw_source_tuning(spec->source), &s->tuning));
    s->chunk_grains = CHUNK_GRAINS;
    s->micro_batch = spec->batch;
    s->seq = spec->seq;
    s->batch_tokens = spec->batch * spec->seq * (sw_ranks_count(spec->ranks) / tensor_ranks);
    return SW_OK;
}

/* Does nothing: the ranks of forward passes have compared their arguments before, and may have different devices. */
static sw_status agree_on_nothing(void *context, struct sw_job *job) {
    (void)context;
    (void)job;
    return SW_OK;
}

/* Tells whether the experts of a source may become units, of which a pass of one token fetches only those that it
 * chooses. A quantized base would be rounded by other grains, and one of a checkpoint has no records for them. */
static bool may_divide(const struct sw_inference_spec *spec) {
    const struct sw_model_config *config = sw_source_config(spec->source);
    return config->experts > 0 && config->expert_group != 1 && spec->context > 0 && spec->tensor_ranks <= 1 &&
           sw_source_tuning(spec->source)->base == SW_BASE_TYPED;
}

/* Tells whether every pass fetches weights. */
static bool fetches_weights(const struct sw_plan *plan) {
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        if (plan->placement[u].tier[SW_WEIGHTS] != SW_DEVICE)
            return true;
    return false;
}

static sw_status open_job(const struct sw_inference_spec *spec, const struct sw_job_spec *job,
                          struct sw_inference *out) {
    SW_TRY(sw_ranks_agree_on_error(spec->ranks, choose_settings(spec, &out->settings)));
    SW_TRY(sw_job_open(job, &out->job));
    return sw_ranks_agree_on_error(spec->ranks, make_plan(spec, &out->job));
}

/* Opens the job again with each expert in a unit of its own, also after it had too little memory. */
static sw_status divide_blocks(const struct sw_inference_spec *spec, const struct sw_job_spec *job,
                               struct sw_inference *out) {
    sw_job_release(&out->job);
    sw_options_release(&sw_plan_command, &out->settings);
    sw_error_clear();
    SW_TRY(sw_ranks_agree_on_error(spec->ranks, sw_source_group_experts(spec->source, 1)));
    return open_job(spec, job, out);
}

static sw_status open_engine(const struct sw_inference_spec *spec, struct sw_inference *out) {
    const struct sw_job *job = &out->job;
    const struct sw_engine_spec engine = {.plan = job->plan,
                                          .device = job->devices.compute,
                                          .host = job->devices.host,
                                          .store = out->store,
                                          .io_depth = SW_STORE_IO_DEPTH,
                                          .ops = sw_model_ops(job->model),
                                          .comm = sw_ranks_comm(spec->ranks),
                                          .comm_stream = sw_ranks_stream(spec->ranks),
                                          .watch = sw_ranks_watch(spec->ranks)};
    SW_TRY(sw_engine_open(&engine, &out->engine));
    const struct sw_load load = sw_source_load(spec->source);
    return sw_engine_load(out->engine, &load);
}

sw_status sw_inference_open(const struct sw_inference_spec *spec, struct sw_inference *out) {
    struct sw_ranks *ranks = spec->ranks;
    struct sw_algorithm_record kept = {0};
    const struct sw_job_spec job = {.settings = &out->settings,
                                    .ranks = ranks,
                                    .config = sw_source_config(spec->source),
                                    .documents = spec->documents,
                                    .forward_only = true,
                                    .context = spec->context,
                                    .unplanned = true,
                                    .products = &kept,
                                    .agree = agree_on_nothing};
    sw_status status = open_job(spec, &job, out);
    if (may_divide(spec) && (status == SW_ERR_BUDGET || (status == SW_OK && fetches_weights(out->job.plan))))
        status = divide_blocks(spec, &job, out);
    SW_TRY(status);
    SW_TRY(sw_ranks_agree_on_error(ranks, make_store(spec, out)));
    SW_TRY(sw_ranks_agree_on_error(ranks, open_engine(spec, out)));
    sw_ranks_relax_timeout(ranks, false);
    return SW_OK;
}

void sw_inference_close(struct sw_inference *inference) {
    sw_engine_close(inference->engine);
    if (inference->store != NULL)
        sw_store_close(inference->store);
    sw_job_release(&inference->job);
    sw_options_release(&sw_plan_command, &inference->settings);
    *inference = (struct sw_inference){0};
}
