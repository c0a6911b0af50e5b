/* Tells whether a plan's memory is there. */
#ifndef SW_TRAIN_SETTINGS_ROOM_H
#define SW_TRAIN_SETTINGS_ROOM_H

#include "kernels/device.h"
#include "offload/plan/plan.h"
#include "train/settings/settings.h"

/* Checks the host tier, and a CPU's device tier too, against this machine's memory, and a GPU's tier against what
 * others have left of it. All ranks of the machine take as much. Beyond what the system calls available a budget is
 * believed that the user has named, since a virtual machine's memory may grow as it is used; memory cgroups limit it
 * for certain.
 */
sw_status sw_room_check(const struct sw_plan *plan, const struct sw_device_info *device,
                        const struct sw_settings *settings);
/* Prints a line where the plan takes more than the system calls available. */
sw_status sw_room_say(const struct sw_plan *plan, const struct sw_device_info *device,
                      const struct sw_settings *settings);

#endif
