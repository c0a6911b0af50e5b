#include "train/room.h"

#include "core/machine.h"
#include "core/size.h"

static sw_status check_gpu_memory(const struct sw_plan *plan, const struct sw_device_info *gpu) {
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    if (gpu->host_memory || plan->tier_bytes[SW_DEVICE] <= gpu->memory_bytes)
        return SW_OK;
    return sw_fail(
        SW_ERR_BUDGET,
        "the plan takes %s of the GPU's memory and %s has %s free; lower --device-memory to that, or end what "
        "else uses this GPU (`nvidia-smi` lists it)",
        sw_format_size(plan->tier_bytes[SW_DEVICE], need), gpu->model, sw_format_size(gpu->memory_bytes, have));
}

sw_status sw_room_check(const struct sw_plan *plan, const struct sw_device_info *device, int local_ranks) {
    struct sw_machine machine;
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    const int64_t rank_bytes = plan->tier_bytes[SW_HOST] + (device->host_memory ? plan->tier_bytes[SW_DEVICE] : 0);
    const int64_t need_bytes = rank_bytes * local_ranks;
    SW_TRY(check_gpu_memory(plan, device));
    SW_TRY(sw_machine_read(&machine));
    if (need_bytes <= machine.available_bytes)
        return SW_OK;
    if (local_ranks > 1)
        return sw_fail(SW_ERR_BUDGET,
                       "the plans of the %d ranks on this machine take %s of memory and it has %s available; lower "
                       "--device-memory and --host-memory, which are those of each rank, or --micro-batch",
                       local_ranks, sw_format_size(need_bytes, need), sw_format_size(machine.available_bytes, have));
    return sw_fail(SW_ERR_BUDGET,
                   "the plan takes %s of memory and this machine has %s available; lower --device-memory and "
                   "--host-memory to that, or --micro-batch",
                   sw_format_size(need_bytes, need), sw_format_size(machine.available_bytes, have));
}
