/* The described device's parts. */
#ifndef SW_KERNELS_DESCRIBED_PRIVATE_H
#define SW_KERNELS_DESCRIBED_PRIVATE_H

#include "kernels/described.h"
#include "kernels/device_ops.h"

struct sw_described {
    struct sw_device_description what;
    double counted_s;
};

/* Counts an op: its arithmetic at a rate (0 flops at any), or its bytes. */
sw_status sw_described_count(struct sw_stream *stream, double flops, double flops_per_s, double bytes);

void sw_described_add_memory(struct sw_device_ops *ops);
void sw_described_add_ops(struct sw_device_ops *ops);

#endif
