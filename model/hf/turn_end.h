/* The token that ends a turn in the files of an export, for models that learnt chats: other programs stop where these
 * files say. */
#ifndef SW_MODEL_HF_TURN_END_H
#define SW_MODEL_HF_TURN_END_H

#include "core/status.h"

#include <stdint.h>

struct sw_turn_end {
    int32_t id;
    char *token; /* its spelling; owned by the user. NULL: texts end as the model's files say */
};

/* Makes the token the eos_token of a folder: eos_token_id of config.json, the first of generation_config.json's, where
 * those that the model had follow, and eos_token of tokenizer_config.json and of special_tokens_map.json. Files that
 * the first three name and that are not there are made. */
sw_status sw_turn_end_write(const char *folder, const struct sw_turn_end *end);

#endif
