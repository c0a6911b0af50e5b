/* A device that this machine lacks and that only a description stands for. It computes nothing, and counts how long the
 * described device would take, so that a model's code prices its own ops. Its memory has addresses but no contents. */
#ifndef SW_KERNELS_DESCRIBED_H
#define SW_KERNELS_DESCRIBED_H

#include "kernels/device.h"

/* How long ops take on a device, by size: measured while a device runs them, and looked up for ops of other sizes. */

/* Timed functions of a device that are not ops of ops.h. */
enum { SW_TIMED_PRODUCT = SW_DEVICE_OPS, SW_TIMED_COPY, SW_TIMED_ZERO, SW_TIMED_OPS };

/* An op of one size, in the compute type of its table. Sizes that an op does not have are 0. */
struct sw_op_size {
    int op;          /* an sw_device_op, or SW_TIMED_PRODUCT, _COPY, _ZERO */
    int64_t kind;    /* of a product: transpose_a, transpose_b, accumulate and out, packed by sw_op_size_of_product */
    int64_t m, n, k; /* sides of a product, m per expert if it is grouped; attention: head_dim, seq and the window */
    double work;     /* flops of products and attention, bytes of all others; positive */
};
struct sw_op_size sw_op_size_of_product(const struct sw_gemm *shape);

/* A row of the table. */
struct sw_op_time {
    struct sw_op_size size;
    double seconds; /* median of the samples */
};

/* Returns "layernorm_forward", "product", "copy", ...; and the op of a name, or -1. */
const char *sw_timed_op_name(int op);
int sw_timed_op_named(const char *name);

struct sw_op_times;
sw_status sw_op_times_create(struct sw_op_times **out);
void sw_op_times_destroy(struct sw_op_times *times);

/* Adds a sample. Samples of one size are kept together; beyond some hundred they are dropped. */
sw_status sw_op_times_add(struct sw_op_times *times, const struct sw_op_size *size, double seconds);

/* Rows in the order in which they came. The pointer is valid until the next sample. */
int64_t sw_op_times_count(const struct sw_op_times *times);
const struct sw_op_time *sw_op_times_at(struct sw_op_times *times, int64_t row);

/* Returns the seconds of an op: those of its size if the table has it, else interpolated from the rates of the nearest
 * sizes, by the logarithms of their sides. 0: the table lacks the op. */
double sw_op_times_find(struct sw_op_times *times, const struct sw_op_size *size);

/* Returns the best rate of an op, in its work per second; 0: the table lacks the op. */
double sw_op_times_best_rate(struct sw_op_times *times, int op);

/* Times every op that the device runs from now on, waiting for each to end; NULL stops it. The caller keeps the table
 * until then. Meanwhile only one thread may use the device. */
void sw_device_time_ops(struct sw_device *device, struct sw_op_times *times);

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
