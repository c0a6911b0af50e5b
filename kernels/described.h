/* A device that this machine lacks and that only a description stands for. It computes nothing, and counts how long the
 * described device would take, so that the code of a model prices its own ops. Its memory has addresses and no
 * contents.
 */
#ifndef SW_KERNELS_DESCRIBED_H
#define SW_KERNELS_DESCRIBED_H

#include "kernels/device.h"
#include "kernels/op_times.h"

/* An op takes its arithmetic or its least bytes (every operand once), whichever lasts longer, and op_s besides: a
 * roofline (Williams et al., 2009) whose ceilings are what the device's kernels reach, rather than its data sheet. */
struct sw_device_description {
    char name[64];
    int64_t memory_bytes;
    double memory_bytes_per_s;             /* Rate of kernels that only move memory, which is below that of a copy. */
    double product_flops_per_s[SW_DTYPES]; /* Rate of matrix products, by the type of their operands. */
    double tf32_flops_per_s;               /* Rate of products of fp32 operands that are rounded to TF32. */
    double fp8_flops_per_s;                /* Rate of products in 8 bits; 0: it has none, as GPUs before 8.9. */
    /* Rates of attention, counted as its papers count: two products forward and five backward over the pairs that
     * whole tiles hold. Products that a kernel makes twice lower the rate and do not raise the count. */
    double attention_forward_flops_per_s, attention_backward_flops_per_s;
    int64_t attention_tile_rows; /* Queries a tile, half of which the causal mask hides on the diagonal; 0: none. */
    double op_s;                 /* Seconds between the ends of two ops, where neither arithmetic nor bytes matter. */
    bool host_memory;            /* Its memory is the host's, as a CPU's is. */
    struct sw_op_times *times; /* Borrowed; what ops took on such a device, which then counts. NULL: the rates above. */
};

/* Copies the description. The caller closes it with sw_device_close. */
sw_status sw_device_open_described(const struct sw_device_description *description, struct sw_device **out);

/* Returns the seconds that all ops since the opening would have taken, on all streams together. Not thread-safe. */
double sw_device_counted_s(const struct sw_device *device);

#endif
