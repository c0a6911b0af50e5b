/* Hugging Face folders as a source of weights, and as what export writes. */
#ifndef SW_TRAIN_HF_CHECKPOINT_H
#define SW_TRAIN_HF_CHECKPOINT_H

#include "core/dtype.h"
#include "core/status.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"
#include "train/hf/config.h"

struct sw_checkpoint;

/* Opens a folder's safetensors and matches them with the model's tensors: every one is there with its shape, none is
 * unknown. Names may have the prefix "transformer." or not; causal-mask buffers and a tied lm_head are passed over. */
sw_status sw_checkpoint_open(const char *folder, const struct sw_units *units, struct sw_checkpoint **out);
void sw_checkpoint_close(struct sw_checkpoint *checkpoint);

/* A sw_fill_function; context is a struct sw_checkpoint. Refuses weights that are not finite, naming the tensor. */
sw_status sw_checkpoint_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out);
/* A sw_fill_prepare of it, for elements that are asked for in the order of the units. */
sw_status sw_checkpoint_prepare(void *context, int64_t unit, int64_t first, int64_t count);
int64_t sw_checkpoint_bytes(const struct sw_checkpoint *checkpoint);      /* of all its tensors */
int64_t sw_checkpoint_bytes_read(const struct sw_checkpoint *checkpoint); /* of prepared elements */

struct sw_checkpoint_format {
    sw_dtype type;
    int64_t shard_bytes; /* of one file: what is larger is cut between tensors, and gets an index */
};
#define SW_CHECKPOINT_SHARD_BYTES (INT64_C(5) << 30)

/* Writes config.json, the weights and, where `carry` names the folder that the model came from, its tokenizer and
 * generation files; its config.json too, if that still describes this model. The folder must not exist, or be empty; it
 * is complete or not there. It is made as FOLDER.partial, with a file spillway.partial as its mark and lock: what else
 * has that name is refused, and what an unfinished export has left there goes. */
sw_status sw_checkpoint_write(const char *folder, const struct sw_model_config *config, const struct sw_units *units,
                              const struct sw_checkpoint_format *format, const struct sw_load *from, const char *carry);

#endif
