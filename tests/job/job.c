/* A varied job is the job that would be opened with the changed settings: the same plan, by the same rates. It shares
 * what stays the same. */
#include "job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"
#include "offload/simulate/outline_price.h"

/* A search of so many ops tries only some candidates, which is enough to differ. */
enum { SEARCH_OPS = 100000 };
#define DEVICE_BYTES (160 * SW_MIB)

/* An edit of settings, as a user would give other flags. */
struct edit {
    const char *name;
    void (*apply)(struct sw_settings *settings);
    bool same_model;
};

static void same(struct sw_settings *settings) {
    (void)settings;
}

static void less_memory(struct sw_settings *settings) {
    settings->device_memory = 130 * SW_MIB;
    settings->host_memory = 180 * SW_MIB;
}

static void larger_batch(struct sw_settings *settings) {
    settings->batch_tokens *= 2;
}

static void narrow_state(struct sw_settings *settings) {
    settings->optimizer_state = SW_OPTIMIZER_8BIT;
}

static void narrow_grads(struct sw_settings *settings) {
    settings->grads_state = SW_GRADS_8BIT;
}

static void smaller_micro_batch(struct sw_settings *settings) {
    settings->micro_batch = 1;
}

static void updates_on_device(struct sw_settings *settings) {
    settings->update = SW_UPDATE_DEVICE;
}

static const struct edit edits[] = {
    {"nothing", same, true},
    {"less memory", less_memory, true},
    {"a larger batch", larger_batch, true},
    {"narrow optimizer state", narrow_state, false},
    {"narrow gradients", narrow_grads, true},
    {"a smaller micro-batch", smaller_micro_batch, false},
    {"updates on the device", updates_on_device, true},
};
enum { EDITS = sizeof edits / sizeof edits[0] };

static void make_settings(struct sw_settings *out) {
    *out = (struct sw_settings){0};
    assert_int_equal(sw_options_defaults(&sw_plan_command, out), SW_OK);
    free(out->model);
    free(out->machine);
    out->model = strdup("gpt2-demo");
    out->machine = strdup("rtx4090");
    out->device_memory = DEVICE_BYTES;
    out->host_memory = 256 * SW_MIB;
    out->seq = 128;
    out->micro_batch = 2;
    out->batch_tokens = 2048;
}

static void open_job(struct sw_settings *settings, struct sw_job *out) {
    const struct sw_job_spec spec = {.settings = settings, .folder = "."};
    if (sw_job_open(&spec, out) != SW_OK)
        fail_msg("%s", sw_error_message(SW_ERR_ARG));
}

/* Chooses by the job's own rates. Returns the predicted step, and the complete plan as text. */
static double price(struct sw_job *job, char **out_text) {
    struct sw_outline_price found;
    size_t bytes;
    FILE *to = open_memstream(out_text, &bytes);
    assert_non_null(to);
    if (job->rates.units == NULL)
        assert_int_equal(sw_job_count_rates(job), SW_OK);
    assert_int_equal(sw_job_choose(job, SEARCH_OPS), SW_OK);
    assert_int_equal(sw_outline_simulate(job->plan, &job->rates.rates, INFINITY, NULL, &found), SW_OK);
    assert_int_equal(sw_settings_complete_plan(job->plan), SW_OK);
    sw_plan_print(job->plan, to);
    fclose(to);
    return found.step.step_s;
}

static void a_varied_job_is_the_job_that_would_be_opened(void **state) {
    (void)state;
    struct sw_settings settings;
    struct sw_job job;
    make_settings(&settings);
    open_job(&settings, &job);
    for (int i = 0; i < EDITS; i++) {
        struct sw_job_change change = sw_job_same(&job);
        struct sw_settings edited;
        struct sw_job varied, opened;
        char *of_varied, *of_opened;
        make_settings(&edited);
        edits[i].apply(&edited);
        edits[i].apply(&change.settings);
        open_job(&edited, &opened);
        assert_int_equal(sw_job_with(&job, &change, &varied), SW_OK);
        const double varied_s = price(&varied, &of_varied), opened_s = price(&opened, &of_opened);
        if (varied_s != opened_s)
            fail_msg("%s: a step of the varied job takes %.17g s, of the opened one %.17g s", edits[i].name, varied_s,
                     opened_s);
        if (strcmp(of_varied, of_opened) != 0)
            fail_msg("%s: the varied job has another plan than the opened one", edits[i].name);
        free(of_varied);
        free(of_opened);
        sw_job_release(&varied);
        sw_job_release(&opened);
        sw_options_release(&sw_plan_command, &edited);
    }
    sw_job_release(&job);
    sw_options_release(&sw_plan_command, &settings);
}

static void a_varied_job_shares_what_stays_the_same(void **state) {
    (void)state;
    struct sw_settings settings;
    struct sw_job job;
    make_settings(&settings);
    open_job(&settings, &job);
    assert_int_equal(sw_job_predict(&job), SW_OK);
    for (int i = 0; i < EDITS; i++) {
        struct sw_job_change change = sw_job_same(&job);
        struct sw_job varied;
        edits[i].apply(&change.settings);
        assert_int_equal(sw_job_with(&job, &change, &varied), SW_OK);
        assert_ptr_equal(varied.devices.compute, job.devices.compute);
        assert_ptr_equal(varied.rates.units, job.rates.units);
        assert_int_equal(varied.model == job.model, edits[i].same_model);
        sw_job_release(&varied);
    }
    assert_true(job.rates.units[1].forward_s > 0.0);
    sw_job_release(&job);
    sw_options_release(&sw_plan_command, &settings);
}

/* Drives count by their factor, for the varied job alone. A job that does not fit leaves nothing behind. */
static void the_first_job_stays_as_it_is(void **state) {
    (void)state;
    struct sw_settings settings;
    struct sw_job job, varied;
    make_settings(&settings);
    open_job(&settings, &job);
    assert_int_equal(sw_job_count_rates(&job), SW_OK);
    const double read = job.rates.rates.read.bytes_per_s;
    struct sw_job_change change = sw_job_same(&job);
    change.drives = 2.0;
    assert_int_equal(sw_job_with(&job, &change, &varied), SW_OK);
    assert_true(varied.rates.rates.read.bytes_per_s == 2.0 * read && job.rates.rates.read.bytes_per_s == read);
    sw_job_release(&varied);
    change.settings.device_memory = SW_MIB;
    assert_int_equal(sw_job_with(&job, &change, &varied), SW_ERR_BUDGET);
    sw_job_release(&varied);
    sw_error_clear();
    assert_int_equal(job.settings->device_memory, DEVICE_BYTES);
    sw_job_release(&job);
    sw_options_release(&sw_plan_command, &settings);
}

/* Returns the forward pass of all units for one token, and checks that a block's products make up what is trained. */
static double forward_of(const struct sw_job *job) {
    const struct sw_plan *plan = job->plan;
    double flops = 0.0;
    for (int64_t u = 1; u < plan->spec.units->count; u++) { /* the embedding multiplies nothing */
        const struct sw_unit_cost *cost = &plan->spec.cost[u];
        flops += cost->forward_flops;
        assert_true(cost->first_product_flops >= 0.0 && cost->last_product_flops >= 0.0 &&
                    cost->first_product_flops + cost->last_product_flops + cost->frozen_flops <=
                        cost->forward_flops * (1.0 + 1e-9));
    }
    return flops / (double)(job->settings->micro_batch * job->settings->seq);
}

/* Whole, as units, in groups of ranks and frozen: a token goes through the chosen experts only. A training step has
 * three times the operations of a forward pass. */
static void the_chosen_experts_count(void **state) {
    (void)state;
    static const struct {
        int64_t expert_group, experts, tensor;
        const char *freeze;
    } cases[] = {{0},           {.expert_group = 2},         {.experts = 4},
                 {.tensor = 4}, {.experts = 2, .tensor = 2}, {.freeze = "*.experts.*"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_settings settings;
        struct sw_job job;
        make_settings(&settings);
        free(settings.model);
        free(settings.machine);
        settings.model = strdup("mixtral-8x7b");
        settings.machine = strdup("h100");
        settings.device_memory = settings.host_memory = INT64_C(1) << 40;
        settings.micro_batch = 1;
        settings.batch_tokens = 4 * settings.seq;
        settings.expert_group = cases[i].expert_group;
        settings.experts = cases[i].experts;
        settings.tensor = cases[i].tensor;
        settings.ranks = cases[i].experts + cases[i].tensor; /* two and two are as many as two times two */
        settings.tuning.freeze = cases[i].freeze;
        assert_int_equal(sw_job_open(&(struct sw_job_spec){.settings = &settings, .folder = "."}, &job), SW_OK);
        const double ranks = cases[i].tensor > 0 ? (double)cases[i].tensor : 1.0;
        const double wanted = sw_model_flops_per_token(&job.config, settings.seq) / 3.0 / ranks;
        const double found = forward_of(&job);
        if (fabs(found / wanted - 1.0) > 0.02)
            fail_msg("case %zu: %g operations of a token's forward pass, not %g", i, found, wanted);
        sw_job_release(&job);
        settings.tuning.freeze = NULL;
        sw_options_release(&sw_plan_command, &settings);
    }
}

/* The choices of a stage's plan. `alike`: those that all stages must share, or they would pass each other other bytes
 * in another order. */
struct stage_choices {
    int64_t alike[5];
    int64_t device_bytes, recomputed, updates_on_device;
};

static struct stage_choices choices_of(const struct sw_plan *plan) {
    struct stage_choices out = {.alike = {plan->spec.zero, plan->spec.micro_batches, plan->spec.group,
                                          plan->commit_every_step, (int64_t)plan->spec.type},
                                .device_bytes = plan->tier_bytes[SW_DEVICE]};
    for (int64_t u = sw_plan_first_unit(plan, 0); u < sw_plan_end_unit(plan, 0); u++) {
        out.recomputed += plan->recompute[u] != SW_RECOMPUTE_NOTHING;
        out.updates_on_device += sw_plan_updates_on_device(plan, u);
    }
    return out;
}

/* Plans the stages of a described GPU machine each by itself, as their ranks would, by a search over all that is open.
 * Returns how many of them have an open choice. */
static int plan_stages(const struct sw_job *job, int64_t stages, struct stage_choices *out) {
    int open = 0;
    for (int64_t stage = 0; stage < stages; stage++) {
        struct sw_job_change change = sw_job_same(job);
        struct sw_job varied;
        change.settings.rank = stage * sw_settings_stage_ranks(job->settings);
        assert_int_equal(sw_job_with(job, &change, &varied), SW_OK);
        open += sw_plan_choice_is_open(varied.settings, &varied.devices, varied.plan);
        assert_int_equal(sw_job_choose(&varied, SEARCH_OPS), SW_OK);
        assert_int_equal(sw_settings_complete_plan(varied.plan), SW_OK);
        out[stage] = choices_of(varied.plan);
        sw_job_release(&varied);
    }
    return open;
}

/* However unequal the stages are: the memory is enough for all that some of them keep, and not for others. */
static void stages_choose_alike_what_they_share(void **state) {
    (void)state;
    static const char *const splits[] = {"auto", "10,1,1,0", "0,1,1,10"};
    enum { STAGES = 4, LEAST_MIB = 450, MOST_MIB = 1350, STEP_MIB = 300 };
    int some_open = 0, unequal = 0;
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++)
        for (int64_t mib = LEAST_MIB; mib <= MOST_MIB; mib += STEP_MIB) {
            struct sw_settings settings;
            struct sw_job job;
            struct stage_choices found[STAGES];
            make_settings(&settings);
            free(settings.model);
            settings.model = strdup("gpt2-124m");
            settings.device_memory = mib * SW_MIB;
            settings.host_memory = 4096 * SW_MIB;
            settings.ranks = 2 * STAGES;
            settings.pipeline = STAGES;
            settings.micro_batch = 1;
            settings.batch_tokens = 16 * settings.seq;
            free(settings.pipeline_split);
            settings.pipeline_split = strdup(splits[i]);
            open_job(&settings, &job);
            assert_int_equal(sw_job_count_rates(&job), SW_OK);
            const int open = plan_stages(&job, STAGES, found);
            some_open += open > 0 && open < STAGES;
            for (int s = 1; s < STAGES; s++) {
                assert_memory_equal(found[s].alike, found[0].alike, sizeof found[0].alike);
                unequal += found[s].recomputed != found[0].recomputed ||
                           found[s].updates_on_device != found[0].updates_on_device;
            }
            sw_job_release(&job);
            sw_options_release(&sw_plan_command, &settings);
        }
    print_message("# stages with a choice beside others without one: %d plans; with other choices: %d stages\n",
                  some_open, unequal);
    assert_true(some_open > 0 && unequal > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_choose_alike_what_they_share), cmocka_unit_test(the_chosen_experts_count),
        cmocka_unit_test(a_varied_job_is_the_job_that_would_be_opened),
        cmocka_unit_test(a_varied_job_shares_what_stays_the_same), cmocka_unit_test(the_first_job_stays_as_it_is)};
    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
