/* Computes the loss on the validation part of the data, by forward passes only. */
#ifndef SW_RUN_EVAL_H
#define SW_RUN_EVAL_H

#include "core/status.h"
#include "job/machine/ranks.h"
#include "model/model.h"
#include "offload/engine/engine.h"
#include "run/data/data.h"

#include <stdint.h>

struct sw_evaluation {
    struct sw_engine *engine; /* idle */
    const struct sw_model *model;
    struct sw_data *data;
    int64_t batch, seq, micro_batches; /* shape of the engine's plan; batch: sequences of a micro-batch */
    int64_t max_tokens;                /* stop after this many predicted tokens; INT64_MAX: predict all */
    struct sw_ranks *ranks;            /* each data rank evaluates its share of the data; all get the result */
    int64_t tensor_ranks;              /* neighbouring ranks that form one data rank; 0 or 1: each rank is one */
};

/* Returns the mean loss in nats per predicted token (NaN: there is none), and the number of predicted tokens. */
sw_status sw_evaluate(const struct sw_evaluation *evaluation, double *out_loss, int64_t *out_tokens);

#endif
