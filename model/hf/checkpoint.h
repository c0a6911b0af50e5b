/* Reads weights from Hugging Face folders, and writes such folders. */
#ifndef SW_MODEL_HF_CHECKPOINT_H
#define SW_MODEL_HF_CHECKPOINT_H

#include "core/dtype.h"
#include "core/status.h"
#include "model/hf/config.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

#include <stdint.h>

/* The token that ends a turn, for exports of models that learnt chats: other programs stop at the token that these
 * files name. */
struct sw_turn_end {
    int32_t id;
    char *token; /* its spelling, owned by whoever fills the struct; NULL: keep the end of text of the model's own files
                  */
};

/* Makes the token the end of text of a folder. It becomes eos_token_id of config.json, the first eos_token_id of
 * generation_config.json (the model's own follow), and eos_token of tokenizer_config.json and special_tokens_map.json.
 * Creates the first three files where they are missing. */
sw_status sw_turn_end_write(const char *folder, const struct sw_turn_end *end);

struct sw_checkpoint;

/* Opens a folder's safetensors and matches them with the model's tensors. Fails if a tensor is missing, unknown or of
 * another shape. Tensors that training added to the model are not looked for, and are filled with zeros. Names may lack
 * the family's prefix ("model.") or carry a wrapper's (checkpoint.c); causal-mask buffers and a tied lm_head are
 * ignored. Fails where the units have a base in a format that only checkpoints have, and a tensor of it has another. */
sw_status sw_checkpoint_open(const char *folder, const struct sw_units *units, struct sw_checkpoint **out);
/* Opens the folder for the frozen tensors of the units alone, which it must have, and of which no other may be read. */
sw_status sw_checkpoint_open_frozen(const char *folder, const struct sw_units *units, struct sw_checkpoint **out);
/* Does the same and logs nothing, for a folder that is also opened otherwise. */
sw_status sw_checkpoint_open_quietly(const char *folder, const struct sw_units *units, struct sw_checkpoint **out);
void sw_checkpoint_close(struct sw_checkpoint *checkpoint);

/* Reads elements of a unit. Refuses values that are not finite, and names the tensor. A sw_fill_function whose context
 * is a struct sw_checkpoint. */
sw_status sw_checkpoint_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out);
/* Reads ahead; call it in the order of the units. The sw_fill_prepare of sw_checkpoint_fill. */
sw_status sw_checkpoint_prepare(void *context, int64_t unit, int64_t first, int64_t count);
/* Takes the record of a grain of a unit's base. The units have a base in a format that only checkpoints have, and the
 * folder was opened for them. The sw_fill_record of sw_checkpoint_fill. */
sw_status sw_checkpoint_record(void *context, int64_t unit, int64_t grain, void *record);
int64_t sw_checkpoint_bytes(const struct sw_checkpoint *checkpoint);      /* bytes of all tensors */
int64_t sw_checkpoint_bytes_read(const struct sw_checkpoint *checkpoint); /* bytes read ahead so far */

/* Where an element of a unit is in the folder. */
struct sw_checkpoint_place {
    const char *tensor, *path; /* name and file of its tensor, valid as long as the checkpoint */
    int64_t offset_bytes;      /* of the element in that file */
    bool is_number;            /* the file has its value as a number, not as a code with a scale */
    sw_dtype type;             /* of the number */
};
/* Finds element `whole` of a tensor (sw_unit_walk) of a unit. */
struct sw_checkpoint_place sw_checkpoint_find(const struct sw_checkpoint *checkpoint, int64_t unit, int64_t tensor,
                                              int64_t whole);

struct sw_checkpoint_format {
    sw_dtype type;
    int64_t shard_bytes; /* largest file; more weights are cut between tensors into several files with an index */
    struct sw_turn_end turn_end; /* the end of text that the files shall name; without a token: unchanged. Borrowed */
};
/* Refuses values that a type cannot represent, and names their tensor. */
sw_status sw_checkpoint_check_values(const char *tensor, sw_dtype type, const float *values, int64_t count);

#define SW_CHECKPOINT_SHARD_BYTES (INT64_C(5) << 30)

/* Writes config.json and the weights. `carry` (NULL: none) is the folder that the model came from: its tokenizer and
 * generation files are copied, and so is its config.json if that still describes the model. The folder must be new or
 * empty (export_folder.h), and the units without adapters. */
sw_status sw_checkpoint_write(const char *folder, const struct sw_model_config *config, const struct sw_units *units,
                              const struct sw_checkpoint_format *format, const struct sw_load *from, const char *carry);

#endif
