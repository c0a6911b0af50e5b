#include "run/data/data_pass.h"

#include "core/size.h"
#include "run/data/data.h"
#include "run/data/text_data.h"

/* Takes off the last sequences of the text, which become the validation part, as divide() in data.c does for packed
 * tokens. */
static sw_status take_estimate(const struct sw_settings *settings, double percent,
                               const struct sw_token_estimate *estimate, struct sw_data_pass *out) {
    const int64_t part = (int64_t)((double)estimate->tokens * percent / 100.0);
    const int64_t sequences = percent > 0.0 ? sw_max_i64(1, part / settings->seq) : 0;
    const int64_t tokens = estimate->tokens - sequences * settings->seq;
    if (tokens < settings->seq + 1)
        return sw_fail(SW_ERR_ARG,
                       "the training data holds about %s, but a sequence of %lld needs %lld; give more data "
                       "or a shorter sequence",
                       SW_COUNT(tokens, "token"), (long long)settings->seq, (long long)settings->seq + 1);
    *out = (struct sw_data_pass){.tokens = tokens, .sample_bytes = estimate->read_bytes};
    return SW_OK;
}

static sw_status count_tokens(const struct sw_settings *settings, double percent, int64_t vocab,
                              struct sw_data_pass *out) {
    const struct sw_data_spec spec = {.files = (const char *const *)settings->data.items,
                                      .file_count = settings->data.count,
                                      .format = {.type = settings->tokens, .flag = "--tokens"},
                                      .vocab = vocab,
                                      .seq = settings->seq,
                                      .validation_percent = percent};
    *out = (struct sw_data_pass){0};
    return sw_data_count_train_tokens(&spec, &out->tokens);
}

static sw_status measure(const struct sw_settings *settings, int64_t vocab, struct sw_data_pass *out) {
    struct sw_token_estimate estimate;
    double percent;
    const char *validation_file;
    SW_TRY(sw_settings_validation(settings, &percent, &validation_file));
    SW_TRY(sw_text_data_check(settings, vocab));
    SW_TRY(sw_text_data_estimate(settings, vocab, &estimate));
    SW_TRY(estimate.tokens > 0 ? take_estimate(settings, percent, &estimate, out)
                               : count_tokens(settings, percent, vocab, out));
    out->windows = (out->tokens - 1) / settings->seq;
    return SW_OK;
}

static sw_status measure_and_resolve(struct sw_job *job) {
    if (job->settings->data.count > 0)
        SW_TRY(measure(job->settings, job->config.vocab, &job->data));
    return sw_settings_resolve_steps(job->settings, job->data.windows);
}

sw_status sw_data_pass_measure(void *context, struct sw_job *job) {
    (void)context;
    return sw_ranks_agree_on_error(job->ranks, measure_and_resolve(job));
}
