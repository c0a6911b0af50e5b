/* The machine that a run trains on, as run.json keeps it for reports. */
#ifndef SW_JOB_MACHINE_MACHINE_RECORD_H
#define SW_JOB_MACHINE_MACHINE_RECORD_H

#include "kernels/device.h"

#include <jansson.h>

/* Returns the object "machine" of run.json, which the caller owns; NULL: no memory. It names neither the machine nor
 * its user. places: the folders or block devices of this rank's store. */
json_t *sw_machine_record(const struct sw_device_info *device, const char *const *places, int place_count);

#endif
