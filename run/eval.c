/* Evaluates as many windows at a time as a training step has sequences. */
#include "run/eval.h"

#include "core/log.h"
#include "core/size.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Returns how many targets of a window count, at most `limit`, and sets the ones beyond it to -1, so that they do not
 * count. */
static int64_t count_targets(int32_t *targets, int64_t seq, int64_t limit) {
    int64_t counted = 0;
    for (int64_t t = 0; t < seq; t++) {
        if (counted == limit)
            targets[t] = -1;
        counted += targets[t] >= 0;
    }
    return counted;
}

static void clear_window(struct sw_tokens window, int64_t seq) {
    memset(window.inputs, 0, (size_t)seq * sizeof *window.inputs);
    memset(window.targets, -1, (size_t)seq * sizeof *window.targets);
    if (window.document_start != NULL)
        memset(window.document_start, 0, (size_t)seq * sizeof *window.document_start);
}

/* Fills the tokens of one pass. Windows beyond the end get no targets. Returns in *out_tokens the number of targets
 * that count. */
static sw_status fill_pass(const struct sw_evaluation *e, int64_t first_window, int64_t limit, int64_t *out_tokens) {
    const int64_t windows = sw_data_validation_windows(e->data);
    *out_tokens = 0;
    for (int64_t m = 0; m < e->micro_batches; m++) {
        const struct sw_tokens tokens = sw_model_tokens(e->model, sw_engine_tokens(e->engine, m));
        for (int64_t b = 0; b < e->batch; b++) {
            const int64_t window = first_window + m * e->batch + b;
            const struct sw_tokens at = sw_tokens_from(tokens, b * e->seq);
            if (window < windows)
                SW_TRY(sw_data_validation_window(e->data, window, at));
            else
                clear_window(at, e->seq);
            *out_tokens += count_targets(at.targets, e->seq, limit - *out_tokens);
        }
    }
    return SW_OK;
}

sw_status sw_evaluate(const struct sw_evaluation *e, double *out_loss, int64_t *out_tokens) {
    assert(e->max_tokens > 0);
    const int64_t windows = sw_data_validation_windows(e->data), tensor_ranks = sw_max_i64(1, e->tensor_ranks);
    const int64_t ranks = sw_ranks_count(e->ranks) / tensor_ranks;
    const int64_t per_rank = e->batch * e->micro_batches, own = per_rank * (sw_ranks_rank(e->ranks) / tensor_ranks);
    /* Counts all tokens that are read, unless tokens with a loss have a limit: then it counts those. */
    const bool limited = e->max_tokens < INT64_MAX;
    struct sw_long_work progress = sw_long_work_begin("evaluating", sw_min_i64(e->max_tokens, windows * e->seq));
    double loss_sum = 0.0;
    int64_t tokens = 0;
    progress.unit = "tokens";
    assert(ranks == 1 || e->max_tokens == INT64_MAX);
    SW_TRY(sw_engine_settle(e->engine));
    for (int64_t first = 0; first < windows && tokens < e->max_tokens; first += per_rank * ranks) {
        int64_t pass_tokens;
        struct sw_step_result result;
        /* Either all ranks run the pass or none does. */
        SW_TRY(sw_ranks_agree_on_error(e->ranks, fill_pass(e, first + own, e->max_tokens - tokens, &pass_tokens)));
        const struct sw_step_input input = {.kind = SW_STEP_LOSS, .loss_tokens = pass_tokens};
        SW_TRY(sw_engine_begin(e->engine, &input));
        SW_TRY(sw_engine_wait(e->engine, &result));
        loss_sum += result.loss_sum;
        tokens += pass_tokens;
        const int64_t read = sw_min_i64(windows, first + per_rank * ranks) * e->seq;
        SW_TRY(sw_long_work_at(&progress, limited ? tokens * ranks : read));
    }
    sw_long_work_end(&progress);
    SW_TRY(sw_ranks_sum(e->ranks, &tokens));
    tokens /= tensor_ranks;
    *out_loss = tokens > 0 ? loss_sum / (double)tokens : (double)NAN;
    *out_tokens = tokens;
    return SW_OK;
}
