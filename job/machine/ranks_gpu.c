/* Makes NCCL the transport of ranks whose devices are GPUs. */
#include "job/machine/ranks.h"

static sw_status open_stream(struct sw_ranks_gpu *gpu, const struct sw_devices *devices) {
    SW_TRY(sw_stream_open(devices->compute, &gpu->stream));
    const sw_status status = sw_device_comm_open(gpu->stream, &gpu->comm);
    gpu->used = status == SW_OK;
    return status;
}

sw_status sw_ranks_use_gpu(struct sw_ranks *ranks, const struct sw_devices *devices) {
    if (sw_ranks_count(ranks) == 1 || sw_device_info(devices->compute).host_memory)
        return SW_OK;
    ranks->gpu.devices = *devices;
    SW_TRY(sw_ranks_agree_on_error(ranks, open_stream(&ranks->gpu, devices)));
    SW_TRY(sw_comm_use_nccl(ranks->comm, &ranks->gpu.comm));
    return sw_ranks_check_gpu(ranks, devices);
}

struct sw_stream *sw_ranks_stream(const struct sw_ranks *ranks) {
    return ranks != NULL ? ranks->gpu.stream : NULL;
}

bool sw_ranks_hold(const struct sw_ranks *ranks, const struct sw_devices *devices) {
    return ranks != NULL && devices->compute != NULL && ranks->gpu.devices.compute == devices->compute;
}

void sw_ranks_release_gpu(struct sw_ranks *ranks) {
    if (ranks->gpu.used)
        sw_device_comm_close(&ranks->gpu.comm);
    if (ranks->gpu.stream != NULL)
        sw_stream_close(ranks->gpu.stream);
    sw_devices_close(&ranks->gpu.devices);
    ranks->gpu = (struct sw_ranks_gpu){0};
}
