/* Checks that this machine has the memory that a plan takes. */
#ifndef SW_JOB_SETTINGS_ROOM_H
#define SW_JOB_SETTINGS_ROOM_H

#include "job/settings/settings.h"
#include "kernels/device.h"
#include "offload/plan/plan.h"

/* Checks the host tier (with a CPU device also the device tier) against this machine's memory, and a GPU's tier against
 * what other processes have left of its memory. Counts the plans of all ranks of the machine, which take the same
 * amount. A budget that the user named may exceed the available memory, because the memory of a virtual machine may
 * grow in use. It may not exceed the limit of the memory cgroups, beyond which the process would be killed. */
sw_status sw_room_check(const struct sw_plan *plan, const struct sw_device_info *device,
                        const struct sw_settings *settings);
/* Logs a line if the plan takes more memory than the system calls available. */
sw_status sw_room_say(const struct sw_plan *plan, const struct sw_device_info *device,
                      const struct sw_settings *settings);

#endif
