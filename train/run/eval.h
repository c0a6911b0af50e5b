/* Loss on the validation part of data, by forward passes only. */
#ifndef SW_TRAIN_RUN_EVAL_H
#define SW_TRAIN_RUN_EVAL_H

#include "core/status.h"
#include "offload/engine/engine.h"
#include "train/data/data.h"
#include "train/devices/ranks.h"
#include "train/model/model.h"

#include <stdint.h>

struct sw_evaluation {
    struct sw_engine *engine; /* idle */
    const struct sw_model *model;
    struct sw_data *data;
    int64_t batch, seq, micro_batches; /* of the engine's plan */
    int64_t max_tokens;                /* that are predicted, from the first on; INT64_MAX: all */
    struct sw_ranks *ranks;            /* each evaluates its part, all of the data together; all get the result */
};

/* Mean loss in nats a predicted token, and how many there were. */
sw_status sw_evaluate(const struct sw_evaluation *evaluation, double *out_loss, int64_t *out_tokens);

#endif
