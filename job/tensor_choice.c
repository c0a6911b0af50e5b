#include "job/tensor_choice.h"

#include "core/number.h"
#include "core/size.h"
#include "job/plan_choice.h"
#include "job/profile.h"
#include "job/settings/places.h"
#include "job/settings_plan.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The part of a step that larger groups must save, because groups exclude other flags. */
#define LEAST_SAVED 0.005
/* Steps of quick searches that are this close are searched as thoroughly as the plan of one size. */
#define CLOSE 0.02

/* The plan with one size of groups. */
struct attempt {
    const struct sw_tensor_question *question;
    struct sw_settings settings; /* borrows its texts */
    struct sw_model *model;
    struct sw_plan *plan; /* NULL: there is none, for the reason in `price` */
    struct sw_tensor_price *price;
};

bool sw_tensor_is_open(const struct sw_settings *settings) {
    return settings->tensor == SW_OPTION_AUTO;
}

/* Resolves the settings of a job with groups of so many ranks. A micro-batch that is open depends on them. */
static sw_status resolve(const struct sw_tensor_question *question, int64_t group, struct sw_settings *settings) {
    const struct sw_device_info info = sw_devices_info(question->devices);
    settings->tensor = group;
    if (settings->micro_batch_open)
        settings->micro_batch = SW_OPTION_AUTO;
    SW_TRY(sw_settings_check(settings));
    return sw_settings_resolve(settings, question->config, &info);
}

static sw_status make_outline(struct attempt *a) {
    const struct sw_tensor_question *question = a->question;
    SW_TRY(resolve(question, a->price->ranks, &a->settings));
    const struct sw_model_shape shape = {.type = sw_settings_type(&a->settings),
                                         .batch = a->settings.micro_batch,
                                         .seq = a->settings.seq,
                                         .tiles = a->settings.tiles,
                                         .tensor_ranks = (int)sw_settings_tensor_ranks(&a->settings),
                                         .tensor_rank = (int)sw_settings_tensor_rank(&a->settings),
                                         .optimizer = sw_settings_optimizer(&a->settings),
                                         .fp8 = sw_settings_fp8(&a->settings),
                                         .documents = question->documents};
    SW_TRY(sw_model_create(question->config, &shape, question->devices->compute, &a->model));
    return sw_plan_fit(&a->settings, a->model, &a->plan);
}

/* Notes why a size has no plan. Another failure than a refusal ends the choice. */
static sw_status refuse(struct attempt *a, sw_status status) {
    if (status != SW_ERR_BUDGET && status != SW_ERR_ARG && status != SW_ERR_USAGE)
        return status;
    *a->price = (struct sw_tensor_price){.ranks = a->price->ranks, .step_s = INFINITY};
    snprintf(a->price->refused, sizeof a->price->refused, "%s", sw_error_message(status));
    sw_error_clear();
    sw_plan_destroy(a->plan);
    a->plan = NULL;
    return SW_OK;
}

static sw_status find_rates(const struct attempt *a, const struct sw_profile *profile, struct sw_machine_rates *out) {
    const struct sw_tensor_question *question = a->question;
    const struct sw_rates_target target = {.settings = &a->settings, .model = a->model, .devices = question->devices};
    return question->machine != NULL
               ? sw_described_machine_rates(question->machine, &a->settings, a->model, question->devices->compute, out)
               : sw_profile_price(profile, &target, out);
}

static sw_status simulate(struct attempt *a, const struct sw_rates *rates, int64_t most_ops) {
    struct sw_search_prices prices;
    struct sw_outline_price found;
    /* A search before may have raised the chunks. */
    if (a->settings.auto_chunk_grains > 0)
        a->settings.chunk_grains = a->settings.auto_chunk_grains;
    if (sw_plan_choice_is_open(&a->settings, a->question->devices, a->plan))
        SW_TRY(sw_plan_choose(&a->settings, a->model, rates, most_ops, &prices, &a->plan));
    SW_TRY(sw_outline_simulate(a->plan, rates, INFINITY, &found));
    if (!found.simulated)
        return sw_fail(SW_ERR_ARG, "its plan has more operations than a plan may have; use a larger --chunk-grains");
    a->price->step_s = found.step.step_s;
    a->price->bottleneck = found.step.bottleneck;
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++)
        a->price->peak_bytes[tier] = a->plan->tier_bytes[tier];
    return SW_OK;
}

static sw_status price_attempt(struct attempt *a, const struct sw_profile *profile, int64_t most_ops) {
    struct sw_machine_rates rates = {0};
    sw_status status = find_rates(a, profile, &rates);
    if (status == SW_OK)
        status = simulate(a, &rates.rates, most_ops);
    sw_rates_release(&rates);
    return status == SW_OK ? SW_OK : refuse(a, status);
}

/* All attempts of rank 0, which prices them. */
struct attempts {
    struct attempt *of_size;
    struct sw_tensor_prices *prices;
};

static sw_status make_outlines(struct attempts *all, bool *out_drives) {
    for (int i = 0; i < all->prices->count; i++) {
        struct attempt *a = &all->of_size[i];
        const sw_status status = make_outline(a);
        if (status != SW_OK)
            SW_TRY(refuse(a, status));
        *out_drives |= a->plan != NULL && sw_plan_uses_nvme(a->plan);
    }
    return SW_OK;
}

/* Returns the failure of a choice in which no size has a plan: that of the largest. */
static sw_status fail_all(const struct sw_tensor_prices *prices) {
    const struct sw_tensor_price *largest = &prices->size[prices->count - 1];
    return sw_fail(SW_ERR_BUDGET, "--tensor auto finds no plan; with --tensor %lld: %s", (long long)largest->ranks,
                   largest->refused);
}

/* Prices the sizes whose step is not known to be longer than most_s. */
static sw_status price_below(struct attempts *all, const struct sw_profile *profile, double most_s, int64_t most_ops) {
    for (int i = 0; i < all->prices->count; i++) {
        struct attempt *a = &all->of_size[i];
        if (a->plan != NULL && !(isfinite(a->price->step_s) && a->price->step_s > most_s))
            SW_TRY(price_attempt(a, profile, most_ops));
        sw_ranks_tick(a->question->ranks);
    }
    return SW_OK;
}

/* Takes the size with the least step. Returns how many sizes with a plan are close to it. */
static int choose(struct sw_tensor_prices *prices) {
    const struct sw_tensor_price *size = prices->size;
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

static sw_status price_all(struct attempts *all, const struct sw_profile *profile) {
    struct sw_tensor_prices *prices = all->prices;
    SW_TRY(price_below(all, profile, INFINITY, SW_SEARCH_QUICK_OPS));
    if (choose(prices) > 1) {
        const double least_s = prices->size[prices->chosen].step_s;
        SW_TRY(price_below(all, profile, least_s * (1.0 + CLOSE), SW_SEARCH_OPS));
        choose(prices);
    }
    return isfinite(prices->size[prices->chosen].step_s) ? SW_OK : fail_all(prices);
}

/* Finds the profile on all ranks, which measure it together where it is not kept. */
static sw_status find_profile(const struct sw_tensor_question *question, bool drives, struct sw_profile *out) {
    const struct sw_profile_need need = {.drives = drives, .why = ", to choose the size of tensor groups; it is kept"};
    const struct sw_store_owner owner = sw_settings_owner(question->settings);
    struct sw_places places;
    SW_TRY(sw_ranks_agree_on_error(question->ranks,
                                   sw_places_of(&question->settings->nvme, question->folder, &owner, &places)));
    const struct sw_rates_target target = {.settings = question->settings,
                                           .devices = question->devices,
                                           .directories = places.path,
                                           .directory_count = places.count,
                                           .ranks = question->ranks};
    const sw_status status = sw_profile_find(&target, &need, out);
    sw_places_release(&places);
    return status;
}

/* Rank 0 makes the outlines, all find the rates, and rank 0 prices. */
static sw_status compare(const struct sw_tensor_question *question, struct attempts *all) {
    struct sw_profile profile = {0};
    bool drives = false;
    SW_TRY(sw_ranks_first(question->ranks, make_outlines(all, &drives)));
    SW_TRY(sw_ranks_spread(question->ranks, "use of drives", &drives, sizeof drives));
    if (question->machine == NULL)
        SW_TRY(find_profile(question, drives, &profile));
    const sw_status status = sw_ranks_first(question->ranks, price_all(all, &profile));
    if (question->machine == NULL)
        sw_profile_release(&profile);
    return status;
}

static bool divides(int64_t group, const struct sw_tensor_question *question) {
    return sw_settings_ranks(question->settings) % group == 0 && question->config->heads % group == 0 &&
           question->config->kv_heads % group == 0;
}

static sw_status begin(const struct sw_tensor_question *question, struct attempts *all) {
    struct sw_tensor_prices *prices = all->prices;
    for (int64_t group = 1; group <= sw_settings_ranks(question->settings); group++)
        if (divides(group, question) && prices->count < SW_TENSOR_MOST_SIZES)
            prices->size[prices->count++] = (struct sw_tensor_price){.ranks = group, .step_s = INFINITY};
    all->of_size = calloc((size_t)prices->count, sizeof *all->of_size);
    if (all->of_size == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to choose the size of tensor groups");
    for (int i = 0; i < prices->count; i++)
        all->of_size[i] =
            (struct attempt){.question = question, .settings = *question->settings, .price = &prices->size[i]};
    return SW_OK;
}

static void end(struct attempts *all) {
    for (int i = 0; all->of_size != NULL && i < all->prices->count; i++) {
        sw_plan_destroy(all->of_size[i].plan);
        sw_model_destroy(all->of_size[i].model);
    }
    free(all->of_size);
}

sw_status sw_tensor_choose(const struct sw_tensor_question *question, struct sw_tensor_prices *out) {
    struct attempts all = {.prices = out};
    *out = (struct sw_tensor_prices){0};
    sw_status status = sw_ranks_agree_on_error(question->ranks, begin(question, &all));
    sw_ranks_enter(question->ranks, "choosing the size of tensor groups", 0);
    if (status == SW_OK)
        status = compare(question, &all);
    sw_ranks_leave(question->ranks);
    end(&all);
    SW_TRY(status);
    int64_t group = out->size[out->chosen].ranks;
    SW_TRY(sw_ranks_spread(question->ranks, "size of tensor groups", &group, sizeof group));
    SW_TRY(sw_ranks_agree_on_error(question->ranks, resolve(question, group, question->settings)));
    return sw_settings_group_ranks(question->settings, question->ranks);
}

const char *sw_tensor_choice_text(const struct sw_tensor_prices *prices, char out[SW_TENSOR_CHOICE_CHARS]) {
    const struct sw_tensor_price *chosen = &prices->size[prices->chosen];
    char time[SW_TIME_TEXT_CHARS];
    int chars = snprintf(out, SW_TENSOR_CHOICE_CHARS, "--tensor auto is --tensor %lld: a step takes %s",
                         (long long)chosen->ranks, sw_format_seconds(chosen->step_s, time));
    for (int i = 0; i < prices->count && chars < SW_TENSOR_CHOICE_CHARS; i++) {
        const struct sw_tensor_price *price = &prices->size[i];
        char *at = out + chars;
        const size_t room = (size_t)(SW_TENSOR_CHOICE_CHARS - chars);
        if (i == prices->chosen)
            continue;
        if (isfinite(price->step_s))
            chars +=
                snprintf(at, room, ", %s with %lld", sw_format_seconds(price->step_s, time), (long long)price->ranks);
        else
            chars += snprintf(at, room, ", and %lld has no plan", (long long)price->ranks);
    }
    return out;
}
