/* Loss on the validation part: forward passes only, a step's worth of windows at a time. */
#include "core/size.h"
#include "train/trainer.h"

#include <string.h>

/* Fills the tokens of one pass; windows beyond the end count for nothing. Counts the tokens that count. */
static sw_status fill_pass(struct sw_trainer *trainer, int64_t first_window, int64_t *out_tokens) {
    const struct sw_settings *settings = &trainer->run.settings;
    const int64_t windows = sw_data_validation_windows(trainer->data);
    const int64_t batch = settings->micro_batch, seq = settings->seq;
    *out_tokens = 0;
    for (int64_t m = 0; m < sw_settings_micro_batches(settings); m++) {
        int32_t *inputs = sw_engine_tokens(trainer->engine, m), *targets = inputs + batch * seq;
        for (int64_t b = 0; b < batch; b++) {
            const int64_t window = first_window + m * batch + b;
            int32_t *window_inputs = inputs + b * seq, *window_targets = targets + b * seq;
            memset(window_inputs, 0, (size_t)seq * sizeof *window_inputs);
            memset(window_targets, -1, (size_t)seq * sizeof *window_targets);
            if (window < windows)
                SW_TRY(sw_data_validation_window(trainer->data, window, window_inputs, window_targets));
            for (int64_t t = 0; t < seq; t++)
                *out_tokens += window_targets[t] >= 0;
        }
    }
    return SW_OK;
}

sw_status sw_trainer_evaluate(struct sw_trainer *trainer, double *out_loss, int64_t *out_tokens) {
    const struct sw_settings *settings = &trainer->run.settings;
    const int64_t windows = sw_data_validation_windows(trainer->data);
    const int64_t per_pass = settings->micro_batch * sw_settings_micro_batches(settings);
    double loss_sum = 0.0;
    int64_t tokens = 0;
    SW_TRY(sw_engine_settle(trainer->engine));
    for (int64_t first = 0; first < windows; first += per_pass) {
        int64_t pass_tokens;
        struct sw_step_result result;
        SW_TRY(fill_pass(trainer, first, &pass_tokens));
        const struct sw_step_input input = {.kind = SW_STEP_LOSS, .loss_tokens = sw_max_i64(1, pass_tokens)};
        SW_TRY(sw_engine_begin(trainer->engine, &input));
        SW_TRY(sw_engine_wait(trainer->engine, &result));
        loss_sum += result.loss_sum;
        tokens += pass_tokens;
    }
    *out_loss = loss_sum / (double)tokens;
    *out_tokens = tokens;
    return SW_OK;
}
