/* How long one pass over --data is, for a plan. */
#ifndef SW_JOB_DATA_PASS_H
#define SW_JOB_DATA_PASS_H

#include "job/settings/settings.h"

struct sw_data_pass {
    int64_t tokens;       /* of the training part; 0: no data are given */
    int64_t windows;      /* of --seq tokens, as training counts them */
    int64_t sample_bytes; /* the first bytes of the text, from which both are estimated; 0: both are counted */
};

/* Measures one pass over the data of settings whose --seq is resolved. A function of this kind is handed to a job,
 * which reads no data itself: sw_data_pass_measure of run/data. */
typedef sw_status sw_data_pass_measured(const struct sw_settings *settings, int64_t vocab, struct sw_data_pass *out);

/* Returns the passes that the steps of the settings are. Data are given. */
static inline double sw_data_pass_epochs(const struct sw_data_pass *pass, const struct sw_settings *settings) {
    return (double)settings->steps * (double)(settings->batch_tokens / settings->seq) / (double)pass->windows;
}

#endif
