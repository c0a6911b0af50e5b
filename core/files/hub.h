/* Names of models and data on the Hugging Face Hub, which people give where a folder is wanted. */
#ifndef SW_CORE_FILES_HUB_H
#define SW_CORE_FILES_HUB_H

#include "core/status.h"

/* Fails with the command that downloads a model if its name is "OWNER/NAME", or the address of its page; else returns
 * SW_OK. Call it for paths that do not exist. */
sw_status sw_hub_refuse_name(const char *model);
/* Does the same for a data set. */
sw_status sw_hub_refuse_data(const char *data);

#endif
