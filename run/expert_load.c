#include "run/expert_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fills in the summary of a step. */
static void summarise(const struct sw_model_tally *tally, struct sw_step_record *record) {
    for (int64_t layer = 0; layer < tally->layers; layer++) {
        const double *routed = tally->routed + layer * tally->experts;
        double sum = 0.0, most = 0.0;
        for (int64_t e = 0; e < tally->experts; e++) {
            sum += routed[e];
            most = fmax(most, routed[e]);
            record->experts.idle += routed[e] == 0.0;
        }
        if (sum > 0.0)
            record->experts.load = fmax(record->experts.load, most * (double)tally->experts / sum);
    }
}

static sw_status add_counts(struct sw_load_counts *counts, const struct sw_model_tally *tally) {
    const int64_t count = tally->layers * tally->experts;
    if (counts->tokens == NULL) {
        *counts = (struct sw_load_counts){.layers = tally->layers, .experts = tally->experts};
        counts->tokens = calloc((size_t)count, sizeof *counts->tokens);
    }
    if (counts->tokens == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the tokens of experts");
    for (int64_t i = 0; i < count; i++)
        counts->tokens[i] += tally->routed[i];
    counts->steps++;
    return SW_OK;
}

sw_status sw_load_add(struct sw_load_counts *counts, const struct sw_trainer *trainer, struct sw_step_record *record) {
    const struct sw_settings *settings = &trainer->run.settings;
    record->experts.aux_loss = record->experts.z_loss = NAN;
    if (trainer->job.plan->spec.tally == 0)
        return SW_OK;
    const struct sw_model_tally tally = sw_model_tally(trainer->job.model, sw_engine_tally(trainer->engine));
    const double micros = (double)(sw_settings_micro_batches(settings) * sw_settings_data_ranks(settings));
    summarise(&tally, record);
    if (settings->router_aux_loss != 0.0 || settings->router_z_loss != 0.0) {
        record->experts.aux_loss = tally.aux_loss / micros;
        record->experts.z_loss = tally.z_loss / micros;
    }
    return add_counts(counts, &tally);
}

sw_status sw_load_write(struct sw_load_counts *counts, struct sw_steplog *log, int64_t step, bool all) {
    if (counts->steps == 0 || (!all && step % SW_LOAD_STEPS != 0))
        return SW_OK;
    SW_TRY(sw_steplog_expert_tokens(log, step, counts->steps, counts->layers, counts->experts, counts->tokens));
    memset(counts->tokens, 0, (size_t)(counts->layers * counts->experts) * sizeof *counts->tokens);
    counts->steps = 0;
    return SW_OK;
}

void sw_load_release(struct sw_load_counts *counts) {
    free(counts->tokens);
    *counts = (struct sw_load_counts){0};
}
