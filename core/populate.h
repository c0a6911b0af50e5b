/* Takes the pages of mapped memory. */
#ifndef SW_CORE_POPULATE_H
#define SW_CORE_POPULATE_H

#include "core/status.h"

#include <stdint.h>

/* Touches every page of the mapped bytes by all cores, for one core clears only some gigabytes a second. Unlike
 * MAP_POPULATE it reports what the system cannot give. `name` names the tier in messages. The bytes stay mapped where
 * it fails. */
sw_status sw_populate(const char *name, void *base, int64_t bytes);

#endif
