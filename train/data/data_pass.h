/* How long one pass over --data is, for a plan: nothing is written, and few bytes are read. */
#ifndef SW_TRAIN_DATA_DATA_PASS_H
#define SW_TRAIN_DATA_DATA_PASS_H

#include "train/settings/settings.h"

struct sw_data_pass {
    int64_t tokens;       /* of the training part; 0: no data are given */
    int64_t windows;      /* of --seq tokens, as training counts them */
    int64_t sample_bytes; /* the first bytes of the text, from which both are estimated; 0: both are counted */
};

/* Counts token files, and estimates text that becomes tokens. --seq is resolved. */
sw_status sw_data_pass_measure(const struct sw_settings *settings, int64_t vocab, struct sw_data_pass *out);
/* Returns the passes that the steps of the settings are. Data are given. */
double sw_data_pass_epochs(const struct sw_data_pass *pass, const struct sw_settings *settings);

#endif
