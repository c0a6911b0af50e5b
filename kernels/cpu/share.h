/* Divides work among the threads of a CPU device. */
#ifndef SW_KERNELS_CPU_SHARE_H
#define SW_KERNELS_CPU_SHARE_H

#include "kernels/device_ops.h"

/* A function that does the items [first, end) of an op with the arguments `context`. thread: from 0 to the device's
 * threads - 1. Several threads call it at once, for different items. */
typedef void (*sw_cpu_items)(const void *context, int64_t first, int64_t end, int thread);

/* Divides `items` items into pieces, which the stream's threads take in order as they become free: another program may
 * slow some of them down. Which thread does an item must not change its result. If there is not `enough` to divide, the
 * calling thread does all. */
void sw_cpu_share(struct sw_stream *stream, bool enough, int64_t items, sw_cpu_items run, const void *context);
/* Divides like sw_cpu_share, but by single items, which are long. */
void sw_cpu_share_long(struct sw_stream *stream, int64_t items, sw_cpu_items run, const void *context);

/* Let a CPU device open streams. Their threads start with the first divided work. */
void sw_cpu_add_streams(struct sw_device_ops *ops);

#endif
