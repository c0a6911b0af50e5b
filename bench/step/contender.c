#include "bench/step/contender.h"
#include "job/settings_plan.h"

#include "core/clock.h"
#include "core/rng.h"
#include "job/new_store.h"
#include "job/planned.h"
#include "run/trace_file.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static sw_status open_store(struct sw_contender *contender) {
    const struct sw_new_store wanted = {.plan = contender->spec.plan,
                                        .places = contender->spec.places,
                                        .allow_buffered = contender->spec.settings->allow_buffered,
                                        .unnamed = true};
    return sw_new_store_create(&wanted, NULL, NULL, &contender->store);
}

static sw_status open_engine(struct sw_contender *contender) {
    const struct sw_contender_spec *given = &contender->spec;
    const struct sw_engine_spec spec = {
        .plan = given->plan,
        .device = given->devices->compute,
        .host = given->devices->host,
        .store = contender->store,
        .comm = sw_ranks_comm(given->ranks),
        .comm_stream = sw_ranks_stream(given->ranks),
        .watch = sw_ranks_watch(given->ranks),
        .io_depth = SW_STORE_IO_DEPTH,
        .speculation = given->speculation,
        .rounding = sw_settings_rounding(given->settings),
        .ops = sw_model_ops(given->model),
        .trace_ops = given->traced ? SW_TRACE_OPS : 0,
    };
    struct sw_model_init init = {.config = sw_model_get_config(given->model),
                                 .units = sw_model_get_units(given->model)};
    SW_TRY(sw_engine_open(&spec, &contender->engine));
    const struct sw_load random = {.fill = sw_model_fill_random, .context = &init};
    const int64_t start_ns = sw_now_ns();
    SW_TRY(sw_engine_load(contender->engine, given->load != NULL ? given->load : &random));
    contender->load_s = (double)(sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

sw_status sw_contender_open(const struct sw_contender_spec *spec, struct sw_contender *out) {
    *out = (struct sw_contender){.spec = *spec};
    sw_status status = sw_plan_uses_nvme(spec->plan) ? open_store(out) : SW_OK;
    if (status == SW_OK)
        status = open_engine(out);
    if (status != SW_OK)
        sw_contender_close(out);
    return status;
}

void sw_contender_close(struct sw_contender *contender) {
    sw_engine_close(contender->engine);
    sw_store_close(contender->store);
    *contender = (struct sw_contender){0};
}

/* Fills in random tokens: a step takes the same time whatever they are. */
static void fill_tokens(struct sw_contender *contender) {
    const struct sw_settings *settings = contender->spec.settings;
    const int64_t vocab = sw_model_get_config(contender->spec.model)->vocab;
    const uint64_t rank = (uint64_t)sw_ranks_rank(contender->spec.ranks);
    for (int64_t m = 0; m < sw_settings_micro_batches(settings); m++) {
        int32_t *tokens = sw_engine_tokens(contender->engine, m);
        for (int64_t t = 0; t < 2 * settings->micro_batch * settings->seq; t++)
            tokens[t] = (int32_t)(sw_rng(0, rank, contender->next_token++).word[0] % (uint64_t)vocab);
    }
}

/* Begins a step of a small learning rate without clipping, so that the training does not diverge and its time does not
 * depend on the random weights. */
static sw_status begin(struct sw_contender *contender) {
    const struct sw_step_input input = {
        .kind = SW_STEP_TRAIN,
        .step = ++contender->step,
        .adamw = {.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        .loss_tokens = contender->spec.settings->batch_tokens,
    };
    fill_tokens(contender);
    return sw_engine_begin(contender->engine, &input);
}

sw_status sw_contender_run(struct sw_contender *contender, int64_t steps, struct sw_step_times *times) {
    SW_TRY(begin(contender));
    for (int64_t i = 0; i <= steps; i++) {
        struct sw_step_result result;
        if (i < steps)
            SW_TRY(begin(contender));
        SW_TRY(sw_engine_wait(contender->engine, &result));
        if (i == 0)
            continue;
        assert(times->count < SW_CONTENDER_MAX_STEPS);
        times->seconds[times->count++] = result.seconds;
        times->last = result;
    }
    return SW_OK;
}
