/* A step's worth of windows at a time. */
#include "train/eval.h"

#include "core/size.h"

#include <assert.h>
#include <string.h>

/* One window's targets count up to the limit; -1 is a target that does not. */
static int64_t count_targets(int32_t *targets, int64_t seq, int64_t limit) {
    int64_t counted = 0;
    for (int64_t t = 0; t < seq; t++) {
        if (counted == limit)
            targets[t] = -1;
        counted += targets[t] >= 0;
    }
    return counted;
}

/* Fills the tokens of one pass; windows beyond the end count for nothing. Counts the tokens that count. */
static sw_status fill_pass(const struct sw_evaluation *e, int64_t first_window, int64_t limit, int64_t *out_tokens) {
    const int64_t windows = sw_data_validation_windows(e->data);
    *out_tokens = 0;
    for (int64_t m = 0; m < e->micro_batches; m++) {
        int32_t *inputs = sw_engine_tokens(e->engine, m), *targets = inputs + e->batch * e->seq;
        for (int64_t b = 0; b < e->batch; b++) {
            const int64_t window = first_window + m * e->batch + b;
            int32_t *window_inputs = inputs + b * e->seq, *window_targets = targets + b * e->seq;
            memset(window_inputs, 0, (size_t)e->seq * sizeof *window_inputs);
            memset(window_targets, -1, (size_t)e->seq * sizeof *window_targets);
            if (window < windows)
                SW_TRY(sw_data_validation_window(e->data, window, window_inputs, window_targets));
            *out_tokens += count_targets(window_targets, e->seq, limit - *out_tokens);
        }
    }
    return SW_OK;
}

sw_status sw_evaluate(const struct sw_evaluation *e, double *out_loss, int64_t *out_tokens) {
    assert(e->max_tokens > 0);
    const int64_t windows = sw_data_validation_windows(e->data);
    const int64_t per_pass = e->batch * e->micro_batches;
    double loss_sum = 0.0;
    int64_t tokens = 0;
    SW_TRY(sw_engine_settle(e->engine));
    for (int64_t first = 0; first < windows && tokens < e->max_tokens; first += per_pass) {
        int64_t pass_tokens;
        struct sw_step_result result;
        SW_TRY(fill_pass(e, first, e->max_tokens - tokens, &pass_tokens));
        const struct sw_step_input input = {.kind = SW_STEP_LOSS, .loss_tokens = sw_max_i64(1, pass_tokens)};
        SW_TRY(sw_engine_begin(e->engine, &input));
        SW_TRY(sw_engine_wait(e->engine, &result));
        loss_sum += result.loss_sum;
        tokens += pass_tokens;
    }
    *out_loss = loss_sum / (double)tokens;
    *out_tokens = tokens;
    return SW_OK;
}
