/* Explains what a folder holds if it holds no model, and what to do about it. */
#ifndef SW_MODEL_HF_FOLDER_CONTENTS_H
#define SW_MODEL_HF_FOLDER_CONTENTS_H

#include "core/status.h"

#include <stdbool.h>

/* Fails with SW_ERR_ARG. The message says what the folder holds instead of `what` ("a config.json"): an adapter,
 * weights in another format with the command that converts them, folders that hold models, or nothing. */
sw_status sw_folder_fail_without(const char *folder, const char *what);
/* Tells whether the folder has safetensors, or their index, under the file names of Hugging Face. */
bool sw_folder_has_weights(const char *folder);
/* Returns SW_OK if the folder has safetensors, or their index, under the file names of Hugging Face. Otherwise fails as
 * sw_folder_fail_without does. */
sw_status sw_folder_check_weights(const char *folder);

#endif
