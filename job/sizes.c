/* --tensor auto, --pipeline auto and --expert-group auto: prices each possible size and takes the one with the shortest
 * predicted step.
 *
 * Each size is a varied job with a model of its own, since the units depend on the size. All sizes get a quick search;
 * those close to the best get the full search, so that the winner is not decided by the noise of a quick one. A size
 * must save something against the sizes before it: larger tensor groups exclude other flags, and more units make more
 * ops.
 *
 * Only rank 0 prices: its choice is spread, because two ranks with equal inputs but other measurements could choose
 * differently. */
#include "job/sizes.h"

#include "core/size.h"
#include "core/status.h"
#include "job/what_if.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The share of a step that a size must save against one before it. */
#define LEAST_SAVED 0.005
/* Sizes whose quick searches are this close get a full search. */
#define CLOSE 0.02

/* A comparison of sizes for one flag that is "auto". */
struct question {
    const char *flag;
    const char *work; /* what the ranks wait for meanwhile */
    const char *why;  /* for the message that this machine is measured */
    /* Lists the sizes to try, in the order of preference. */
    void (*list)(const struct sw_job *job, struct sw_size_prices *out);
    /* Returns the change that sets a size. */
    struct sw_job_change (*with)(const struct sw_job *job, int64_t size);
    /* Ends the comparison where so many sizes in a row are slower than the best before them, each slower than the one
     * before it; 0: tries all. */
    int most_slower;
    bool makes_split; /* each attempt has a --pipeline-split of its own */
};

/* The job with one size. */
struct attempt {
    struct sw_job job;
    bool fits;     /* false: there is no plan; `price` has the reason */
    bool searched; /* searched as thoroughly as a plan of a given size */
    struct sw_size_price *price;
};

/* The attempts of rank 0, which prices them. */
struct attempts {
    const struct question *question;
    struct sw_job *job;
    struct attempt *of_size; /* `count` of them */
    int count;
    struct sw_size_prices *prices;
};

static void add_size(struct sw_size_prices *prices, int64_t size) {
    if (prices->count < SW_MOST_SIZES)
        prices->size[prices->count++] = (struct sw_size_price){.size = size, .step_s = INFINITY};
}

bool sw_tensor_is_open(const struct sw_settings *settings) {
    return settings->tensor == SW_OPTION_AUTO;
}

static bool divides(int64_t group, const struct sw_job *job) {
    return sw_settings_ranks(job->settings) % (group * sw_settings_expert_ranks(job->settings)) == 0 &&
           job->config.heads % group == 0 && job->config.kv_heads % group == 0;
}

static void list_tensor_groups(const struct sw_job *job, struct sw_size_prices *out) {
    for (int64_t group = 1; group <= sw_settings_ranks(job->settings); group++)
        if (divides(group, job))
            add_size(out, group);
}

/* Returns unresolved settings with tensor groups of `group` ranks. An open micro-batch depends on them. */
static struct sw_job_change with_tensor_groups(const struct sw_job *job, int64_t group) {
    struct sw_job_change change = {.settings = *job->settings, .resolves = true};
    change.settings.tensor = group;
    if (change.settings.micro_batch_open)
        change.settings.micro_batch = SW_OPTION_AUTO;
    return change;
}

static const struct question tensor_groups = {.flag = "--tensor",
                                              .work = "choosing the size of tensor groups",
                                              .why = ", to choose the size of tensor groups; it is kept",
                                              .list = list_tensor_groups,
                                              .with = with_tensor_groups};

bool sw_pipeline_is_open(const struct sw_settings *settings) {
    return settings->pipeline == SW_OPTION_AUTO;
}

/* Only the first and the last stage may be without layers. */
static void list_stages(const struct sw_job *job, struct sw_size_prices *out) {
    const int64_t groups = sw_settings_ranks(job->settings) / sw_settings_part_ranks(job->settings);
    for (int64_t stages = 1; stages <= sw_min_i64(SW_MOST_STAGES, job->config.layers + 2); stages++)
        if (groups % stages == 0)
            add_size(out, stages);
}

/* Returns unresolved settings with so many stages, and without a split, which each variation makes for itself. */
static struct sw_job_change with_stages(const struct sw_job *job, int64_t stages) {
    struct sw_job_change change = {.settings = *job->settings, .resolves = true};
    change.settings.pipeline = stages;
    change.settings.pipeline_split = NULL;
    if (stages == 1) /* which has no turns */
        change.settings.pipeline_interleave = 1;
    if (change.settings.micro_batch_open)
        change.settings.micro_batch = SW_OPTION_AUTO;
    return change;
}

static const struct question pipeline_stages = {.flag = "--pipeline",
                                                .work = "choosing the stages of a pipeline",
                                                .why = ", to choose the stages of a pipeline; it is kept",
                                                .list = list_stages,
                                                .with = with_stages,
                                                .makes_split = true};

bool sw_expert_group_is_open(const struct sw_settings *settings) {
    return settings->expert_group == SW_OPTION_AUTO;
}

/* Whole blocks come first, then ever smaller units of experts, as a plan of fewer units has fewer ops. */
static void list_expert_groups(const struct sw_job *job, struct sw_size_prices *out) {
    const bool divides = sw_settings_part_ranks(job->settings) == 1;
    add_size(out, 0);
    for (int64_t group = job->config.experts; divides && group >= 1; group--)
        if (job->config.experts % group == 0)
            add_size(out, group);
}

static struct sw_job_change with_expert_group(const struct sw_job *job, int64_t group) {
    struct sw_job_change change = sw_job_same(job);
    change.settings.expert_group = group;
    return change;
}

static const struct question expert_groups = {.flag = "--expert-group",
                                              .work = "choosing the units of experts",
                                              .why = ", to choose the units of experts; it is kept",
                                              .list = list_expert_groups,
                                              .with = with_expert_group,
                                              .most_slower = 2};

/* Notes why a size has no plan. A failure that is not a refusal ends the choice. */
static sw_status refuse(struct attempt *a, sw_status status) {
    if (status != SW_ERR_BUDGET && status != SW_ERR_ARG && status != SW_ERR_USAGE && status != SW_ERR_UNSUPPORTED)
        return status;
    *a->price = (struct sw_size_price){.size = a->price->size, .step_s = INFINITY};
    snprintf(a->price->refused, sizeof a->price->refused, "%s", sw_error_message(status));
    sw_error_clear();
    a->fits = false;
    return SW_OK;
}

/* Makes the usual outline again: a search begins with it, and not with the result of the search before. */
static sw_status outline_again(struct sw_job *job) {
    sw_plan_destroy(job->plan);
    job->plan = NULL;
    return sw_plan_fit(job->settings, job->model, &job->plan);
}

/* Prices the other stages, too: the slowest one's step is the job's. */
static sw_status price_stages(struct attempt *a) {
    const int64_t stages = sw_settings_stages(a->job.settings);
    a->price->step_s = 0.0;
    for (int64_t stage = 0; stage < stages; stage++) {
        struct sw_stage_price found;
        SW_TRY(sw_what_if_stage(&a->job, stage, &found));
        if (!isfinite(found.step.step_s))
            return sw_fail(SW_ERR_ARG, "the rates of the drives that stage %lld needs are unknown", (long long)stage);
        if (found.step.step_s > a->price->step_s) {
            a->price->step_s = found.step.step_s;
            a->price->bottleneck = found.step.bottleneck;
        }
        for (int tier = SW_DEVICE; tier < SW_NVME; tier++)
            a->price->peak_bytes[tier] = sw_max_i64(a->price->peak_bytes[tier], found.peak_bytes[tier]);
    }
    return SW_OK;
}

static sw_status simulate(struct attempt *a, int64_t most_ops) {
    struct sw_job *job = &a->job;
    struct sw_outline_price found;
    /* The search before may have raised the chunks. */
    if (job->settings->auto_chunk_grains > 0)
        job->settings->chunk_grains = job->settings->auto_chunk_grains;
    a->searched = most_ops == SW_SEARCH_OPS;
    if (a->searched)
        SW_TRY(outline_again(job));
    SW_TRY(sw_job_choose(job, most_ops));
    const sw_status status = sw_outline_simulate(job->plan, &job->rates.rates, INFINITY, job->memory, &found);
    sw_price_memory_drop_room(job->memory); /* a training may follow */
    SW_TRY(status);
    if (!found.simulated)
        return sw_fail(SW_ERR_ARG, "its plan has more operations than a plan may have; use a larger --chunk-grains");
    a->price->step_s = found.step.step_s;
    a->price->bottleneck = found.step.bottleneck;
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++)
        a->price->peak_bytes[tier] = job->plan->tier_bytes[tier];
    return sw_settings_stages(job->settings) > 1 ? price_stages(a) : SW_OK;
}

/* The rates belong to the attempt's model, however often it is priced. */
static sw_status price_attempt(struct attempt *a, int64_t most_ops) {
    sw_status status = a->job.rates.units == NULL ? sw_job_count_rates(&a->job) : SW_OK;
    if (status == SW_OK)
        status = simulate(a, most_ops);
    return status == SW_OK ? SW_OK : refuse(a, status);
}

/* Returns the error if no size has a plan: that of the last, which needs the least memory. */
static sw_status fail_all(const struct attempts *all) {
    const char *flag = all->question->flag;
    const struct sw_size_price *last = &all->prices->size[all->prices->count - 1];
    return sw_fail(SW_ERR_BUDGET, "%s auto finds no plan; with %s %lld: %s", flag, flag, (long long)last->size,
                   last->refused);
}

static sw_status make_outlines(struct attempts *all, bool *out_drives) {
    bool any = false;
    for (int i = 0; i < all->count; i++) {
        struct attempt *a = &all->of_size[i];
        const struct sw_job_change change = all->question->with(all->job, a->price->size);
        const sw_status status = sw_job_with(all->job, &change, &a->job);
        a->fits = status == SW_OK;
        if (status != SW_OK)
            SW_TRY(refuse(a, status));
        *out_drives |= a->fits && sw_plan_uses_nvme(a->job.plan);
        any |= a->fits;
    }
    return any ? SW_OK : fail_all(all); /* before a machine is measured, which may take a minute */
}

/* Prices the sizes whose step may be shorter than most_s. */
static sw_status price_below(struct attempts *all, double most_s, int64_t most_ops) {
    double least_s = INFINITY, before_s = 0.0;
    int slower = 0;
    for (int i = 0; i < all->prices->count; i++) {
        struct attempt *a = &all->of_size[i];
        a->job.profile = all->job->profile;
        if (a->fits && !(isfinite(a->price->step_s) && a->price->step_s > most_s))
            SW_TRY(price_attempt(a, most_ops));
        sw_ranks_tick(all->job->ranks);
        slower = a->fits && a->price->step_s > fmax(least_s, before_s) ? slower + 1 : 0;
        before_s = a->fits ? a->price->step_s : before_s;
        least_s = fmin(least_s, a->price->step_s);
        if (!isfinite(most_s) && slower > 0 && slower == all->question->most_slower)
            all->prices->count = i + 1;
    }
    return SW_OK;
}

/* Takes the size with the shortest step. Returns how many sizes with a plan are close to it. */
static int choose(struct sw_size_prices *prices) {
    const struct sw_size_price *size = prices->size;
    int close = 0;
    prices->chosen = 0;
    for (int i = 1; i < prices->count; i++) {
        const double most_s = size[prices->chosen].step_s * (1.0 - LEAST_SAVED);
        if (size[i].step_s < most_s)
            prices->chosen = i;
    }
    for (int i = 0; i < prices->count; i++)
        close += isfinite(size[i].step_s) && size[i].step_s <= size[prices->chosen].step_s * (1.0 + CLOSE);
    return close;
}

static sw_status price_all(struct attempts *all) {
    struct sw_size_prices *prices = all->prices;
    SW_TRY(price_below(all, INFINITY, SW_SEARCH_QUICK_OPS));
    if (choose(prices) > 1) {
        const double least_s = prices->size[prices->chosen].step_s;
        SW_TRY(price_below(all, least_s * (1.0 + CLOSE), SW_SEARCH_OPS));
        choose(prices);
    }
    return isfinite(prices->size[prices->chosen].step_s) ? SW_OK : fail_all(all);
}

/* Rank 0 makes the outlines. All ranks find the profile, measuring it together if it is not kept. Rank 0 prices. */
static sw_status compare(struct attempts *all) {
    struct sw_job *job = all->job;
    struct sw_profile_need need = {.why = all->question->why};
    SW_TRY(sw_ranks_first(job->ranks, make_outlines(all, &need.drives)));
    SW_TRY(sw_ranks_spread(job->ranks, "use of drives", &need.drives, sizeof need.drives));
    if (!job->is_described)
        SW_TRY(sw_job_find_profile(job, &need));
    return sw_ranks_first(job->ranks, price_all(all));
}

static sw_status begin(struct attempts *all) {
    struct sw_size_prices *prices = all->prices;
    *prices = (struct sw_size_prices){0};
    all->question->list(all->job, prices);
    all->of_size = calloc((size_t)prices->count, sizeof *all->of_size);
    if (all->of_size == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to compare sizes");
    all->count = prices->count;
    for (int i = 0; i < prices->count; i++)
        all->of_size[i].price = &prices->size[i];
    return SW_OK;
}

static void end(struct attempts *all) {
    for (int i = 0; i < all->count; i++) {
        if (all->question->makes_split)
            free(all->of_size[i].job.changed.pipeline_split);
        sw_job_release(&all->of_size[i].job);
    }
    free(all->of_size);
}

/* Hands the job the plan of the chosen size, if it was searched as thoroughly as it would be now and by rates that stay
 * valid. Ranks make theirs together. */
static void hand_over(struct attempts *all) {
    struct sw_job *job = all->job;
    struct attempt *a = &all->of_size[all->prices->chosen];
    if (!a->searched || all->question->makes_split || !job->is_described || sw_ranks_comm(job->ranks) != NULL)
        return;
    *job->settings = *a->job.settings;
    job->config = a->job.config;
    job->model = a->job.model;
    job->plan = a->job.plan;
    job->rates = a->job.rates;
    job->price.choices = a->job.price.choices;
    a->job.plan = NULL;
}

/* Sets the size on all ranks. */
static sw_status take(struct sw_job *job, const struct sw_job_change *change) {
    const struct sw_device_info info = sw_devices_info(&job->devices);
    char *split = job->settings->pipeline_split;
    *job->settings = change->settings;
    job->settings->pipeline_split = split;
    SW_TRY(sw_settings_check(job->settings));
    if (change->resolves)
        SW_TRY(sw_settings_resolve(job->settings, &job->config, &info));
    return sw_job_group_experts(job);
}

/* Sets the only size that there is, which has nothing to be compared with. */
static sw_status take_only(struct attempts *all) {
    const struct sw_job_change change = all->question->with(all->job, all->prices->size[0].size);
    end(all);
    all->prices->count = 0;
    return sw_ranks_agree_on_error(all->job->ranks, take(all->job, &change));
}

static sw_status choose_size(struct sw_job *job, const struct question *question, struct sw_size_prices *prices) {
    struct attempts all = {.question = question, .job = job, .prices = prices};
    sw_status status = sw_ranks_agree_on_error(job->ranks, begin(&all));
    if (status == SW_OK && prices->count == 1)
        return take_only(&all);
    sw_ranks_enter(job->ranks, question->work, 0);
    if (status == SW_OK)
        status = compare(&all);
    sw_ranks_leave(job->ranks);
    if (status == SW_OK)
        hand_over(&all);
    end(&all);
    SW_TRY(status);
    int64_t size = prices->size[prices->chosen].size;
    SW_TRY(sw_ranks_spread(job->ranks, "size", &size, sizeof size));
    if (job->plan != NULL)
        return SW_OK;
    const struct sw_job_change change = question->with(job, size);
    return sw_ranks_agree_on_error(job->ranks, take(job, &change));
}

sw_status sw_tensor_choose(struct sw_job *job) {
    SW_TRY(choose_size(job, &tensor_groups, &job->tensor_prices));
    return sw_settings_group_ranks(job->settings, job->ranks);
}

sw_status sw_pipeline_choose(struct sw_job *job) {
    SW_TRY(choose_size(job, &pipeline_stages, &job->stage_prices));
    return sw_settings_group_ranks(job->settings, job->ranks);
}

sw_status sw_expert_group_choose(struct sw_job *job) {
    return choose_size(job, &expert_groups, &job->expert_prices);
}

/* Appends "; no plan with 1, 2 and 4" if sizes have none. */
static void put_refused(const struct sw_size_prices *prices, char *out, int chars) {
    int left = 0, said = 0;
    for (int i = 0; i < prices->count; i++)
        left += !isfinite(prices->size[i].step_s);
    for (int i = 0; i < prices->count && chars < SW_SIZE_CHOICE_CHARS; i++) {
        if (isfinite(prices->size[i].step_s))
            continue;
        const char *before = left-- > 1 ? ", " : " and ";
        chars += snprintf(out + chars, (size_t)(SW_SIZE_CHOICE_CHARS - chars), "%s%lld",
                          said++ == 0 ? "; no plan with " : before, (long long)prices->size[i].size);
    }
}

const char *sw_size_choice_text(const char *flag, const struct sw_size_prices *prices, char out[SW_SIZE_CHOICE_CHARS]) {
    const struct sw_size_price *chosen = &prices->size[prices->chosen];
    char time[SW_TIME_TEXT_CHARS];
    int chars = snprintf(out, SW_SIZE_CHOICE_CHARS, "%s auto is %s %lld: a step takes %s", flag, flag,
                         (long long)chosen->size, sw_format_seconds(chosen->step_s, time));
    for (int i = 0; i < prices->count && chars < SW_SIZE_CHOICE_CHARS; i++) {
        const struct sw_size_price *price = &prices->size[i];
        if (i != prices->chosen && isfinite(price->step_s))
            chars += snprintf(out + chars, (size_t)(SW_SIZE_CHOICE_CHARS - chars), ", %s with %lld",
                              sw_format_seconds(price->step_s, time), (long long)price->size);
    }
    put_refused(prices, out, chars);
    return out;
}
