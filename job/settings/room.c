#include "job/settings/room.h"

#include "core/log.h"
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

/* The memory that the plans of all ranks of this machine take, and the memory that is available to them. */
struct room {
    int64_t need_bytes;
    int64_t available_bytes; /* MemAvailable of the system */
    int64_t limit_bytes;     /* limit of memory cgroups, beyond which the process is killed; INT64_MAX: none */
    bool named;              /* the user named a budget of this machine's memory */
};

static sw_status look(const struct sw_plan *plan, const struct sw_device_info *device,
                      const struct sw_settings *settings, struct room *out) {
    struct sw_machine machine;
    SW_TRY(sw_machine_read(&machine));
    const int64_t rank_bytes = plan->tier_bytes[SW_HOST] + (device->host_memory ? plan->tier_bytes[SW_DEVICE] : 0);
    *out = (struct room){.need_bytes = rank_bytes * sw_max_i64(1, settings->local_ranks),
                         .available_bytes = machine.available_bytes,
                         .limit_bytes = machine.limit.room_bytes,
                         .named = settings->memory_named[SW_HOST] ||
                                  (device->host_memory && settings->memory_named[SW_DEVICE])};
    return SW_OK;
}

sw_status sw_room_check(const struct sw_plan *plan, const struct sw_device_info *device,
                        const struct sw_settings *settings) {
    struct room room;
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    SW_TRY(check_gpu_memory(plan, device));
    SW_TRY(look(plan, device, settings, &room));
    if (room.need_bytes <= (room.named ? room.limit_bytes : room.available_bytes))
        return SW_OK;
    sw_format_size(room.need_bytes, need);
    if (room.named)
        return sw_fail(SW_ERR_BUDGET,
                       "the plan takes %s of memory on this machine and its memory cgroup leaves %s; lower "
                       "--device-memory and --host-memory to that, or raise the cgroup's limit",
                       need, sw_format_size(room.limit_bytes, have));
    sw_format_size(room.available_bytes, have);
    if (settings->local_ranks > 1)
        return sw_fail(SW_ERR_BUDGET,
                       "the plans of the %lld ranks on this machine take %s of memory and it has %s available; lower "
                       "--device-memory and --host-memory, which are those of each rank, or --micro-batch",
                       (long long)settings->local_ranks, need, have);
    return sw_fail(SW_ERR_BUDGET,
                   "the plan takes %s of memory and this machine has %s available; lower --device-memory and "
                   "--host-memory to that, or --micro-batch; a budget that is named is taken all the same",
                   need, have);
}

sw_status sw_room_say(const struct sw_plan *plan, const struct sw_device_info *device,
                      const struct sw_settings *settings) {
    struct room room;
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    SW_TRY(look(plan, device, settings, &room));
    if (room.named && room.need_bytes > room.available_bytes)
        sw_log_info("taking %s of memory, as the named budgets allow, where the system calls %s available",
                    sw_format_size(room.need_bytes, need), sw_format_size(room.available_bytes, have));
    return SW_OK;
}
