/* Reads weights from Hugging Face folders, and writes such folders. */
#ifndef SW_MODEL_HF_CHECKPOINT_H
#define SW_MODEL_HF_CHECKPOINT_H

#include "core/dtype.h"
#include "core/status.h"
#include "model/hf/config.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

#include <stdint.h>

/* The token that ends a turn in the files of an export, for models that learnt chats: other programs stop where these
 * files say. */
struct sw_turn_end {
    int32_t id;
    char *token; /* its spelling; owned by the user. NULL: texts end as the model's files say */
};

/* Makes the token the eos_token of a folder: eos_token_id of config.json, the first of generation_config.json's, where
 * those that the model had follow, and eos_token of tokenizer_config.json and of special_tokens_map.json. Files that
 * the first three name and that are not there are made. */
sw_status sw_turn_end_write(const char *folder, const struct sw_turn_end *end);

struct sw_checkpoint;

/* Opens a folder's safetensors and matches them with the model's tensors. Fails if a tensor is missing, unknown or of
 * another shape. Names may lack the family's prefix ("model.") or have those of wrappers (checkpoint.h);
 * causal-mask buffers and a tied lm_head are ignored. */
sw_status sw_checkpoint_open(const char *folder, const struct sw_units *units, struct sw_checkpoint **out);
void sw_checkpoint_close(struct sw_checkpoint *checkpoint);

/* Reads elements of a unit. Refuses weights that are not finite, and names the tensor. A sw_fill_function whose context
 * is a struct sw_checkpoint. */
sw_status sw_checkpoint_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out);
/* Reads ahead. Elements must be asked for in the order of the units. The sw_fill_prepare of sw_checkpoint_fill. */
sw_status sw_checkpoint_prepare(void *context, int64_t unit, int64_t first, int64_t count);
int64_t sw_checkpoint_bytes(const struct sw_checkpoint *checkpoint);      /* bytes of all tensors */
int64_t sw_checkpoint_bytes_read(const struct sw_checkpoint *checkpoint); /* bytes that were read ahead so far */

struct sw_checkpoint_format {
    sw_dtype type;
    int64_t shard_bytes; /* most bytes of one file; more weights are cut between tensors into files with an index */
    struct sw_turn_end turn_end; /* what the files name as the end of a text, if it is set; borrowed */
};
#define SW_CHECKPOINT_SHARD_BYTES (INT64_C(5) << 30)

/* Writes config.json and the weights. `carry` (NULL: none) is the folder that the model came from: its tokenizer and
 * generation files are copied, and its config.json, if that still describes the model. The folder must be new or empty,
 * and ends up complete or absent. It is made as FOLDER.partial, which holds a file spillway.partial as its mark and
 * lock: the rest of an unfinished export there is removed, and anything else is refused. */
sw_status sw_checkpoint_write(const char *folder, const struct sw_model_config *config, const struct sw_units *units,
                              const struct sw_checkpoint_format *format, const struct sw_load *from, const char *carry);

#endif
