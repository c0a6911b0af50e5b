/* A device that this machine lacks and that only a description stands for. It computes nothing, and counts how long the
 * described device would take, so that a model's code prices its own ops. Its memory has addresses but no contents. */
#ifndef SW_KERNELS_DESCRIBED_H
#define SW_KERNELS_DESCRIBED_H

#include "kernels/device.h"
#include "kernels/op_times.h"

/* An op takes its arithmetic or its bytes (every operand once), whichever lasts longer, plus op_s: a roofline (Williams
 * et al., 2009) whose ceilings are what the device's kernels reach, not its data sheet. */
struct sw_device_description {
    char name[64];
    int64_t memory_bytes;
    double memory_bytes_per_s;             /* Rate of kernels that only move memory, which is below that of a copy. */
    double product_flops_per_s[SW_DTYPES]; /* Rate of matrix products, by the type of their operands. */
    double tf32_flops_per_s;               /* Rate of products of fp32 operands that are rounded to TF32. */
    double fp8_flops_per_s;                /* Rate of products in 8 bits; 0: none, as on GPUs before 8.9. */
    /* Rates of attention, counted as its papers do: two products forward and five backward over the pairs that whole
     * tiles hold. Products that a kernel repeats lower the rate instead of raising the count. */
    double attention_forward_flops_per_s, attention_backward_flops_per_s;
    int64_t attention_tile_rows; /* Queries per tile, half of which the causal mask hides on the diagonal; 0: none. */
    double op_s;                 /* Seconds between the ends of two ops if neither arithmetic nor bytes matter. */
    bool host_memory;            /* Its memory is the host's, as a CPU's is. */
    /* Borrowed: measured times of ops on such a device, which then count. NULL: the rates above count. */
    struct sw_op_times *times;
};

/* Copies the description. The caller closes it with sw_device_close. */
sw_status sw_device_open_described(const struct sw_device_description *description, struct sw_device **out);

/* Returns the seconds that all ops since the opening would have taken, summed over all streams. Not thread-safe. */
double sw_device_counted_s(const struct sw_device *device);

#endif
