/* Logits of which the ranks of a tensor group have parts. */
#ifndef SW_RUN_INFERENCE_LOGITS_H
#define SW_RUN_INFERENCE_LOGITS_H

#include "job/machine/ranks.h"

/* Gives every rank the logits of one row, [vocab], of which each rank of a tensor group has its part of the vocabulary;
 * where there are several groups, those of the first. All ranks call it together. */
sw_status sw_logits_share(struct sw_ranks *ranks, int tensor_ranks, int64_t vocab, float *logits);

#endif
