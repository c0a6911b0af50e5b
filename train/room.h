/* Whether a plan's memory is there. */
#ifndef SW_TRAIN_ROOM_H
#define SW_TRAIN_ROOM_H

#include "kernels/device.h"
#include "offload/plan.h"

/* The host tier, and a CPU's device tier too, are this machine's memory, which may be less than the budgets allow; a
 * GPU's is what others have left of it. So many ranks of this machine take as much. */
sw_status sw_room_check(const struct sw_plan *plan, const struct sw_device_info *device, int local_ranks);

#endif
