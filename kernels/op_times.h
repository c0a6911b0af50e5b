/* How long ops take on a device, by size: measured while a device runs them, and looked up for ops of other sizes. */
#ifndef SW_KERNELS_OP_TIMES_H
#define SW_KERNELS_OP_TIMES_H

#include "kernels/device.h"

/* Timed functions of a device that are not ops of ops.h. */
enum { SW_TIMED_PRODUCT = SW_DEVICE_OPS, SW_TIMED_COPY, SW_TIMED_ZERO, SW_TIMED_OPS };

/* An op of one size, in the compute type of its table. Sizes that an op does not have are 0. */
struct sw_op_size {
    int op;          /* an sw_device_op, or SW_TIMED_PRODUCT, _COPY, _ZERO */
    int64_t kind;    /* of a product: transpose_a, transpose_b, accumulate and out, packed by sw_op_size_of_product */
    int64_t m, n, k; /* sides of a product; attention: head_dim, seq and the window */
    double work;     /* flops of products and attention, bytes of all others; positive */
};
struct sw_op_size sw_op_size_of_product(const struct sw_gemm *shape);
struct sw_op_size sw_op_size_of(sw_device_op op, const void *args);

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

#endif
