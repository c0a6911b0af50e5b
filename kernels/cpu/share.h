/* Work that the threads of a CPU device share. */
#ifndef SW_KERNELS_CPU_SHARE_H
#define SW_KERNELS_CPU_SHARE_H

#include "kernels/device_ops.h"

/* Does the items [first, end) of an op, whose arguments `context` is. thread: who does them, from 0 to the device's
 * threads, less 1. Several threads call it at once, for items of their own. */
typedef void (*sw_cpu_items)(const void *context, int64_t first, int64_t end, int thread);

/* Lets the stream's threads do `items` items in pieces, which they take in order as they become free: another program
 * may slow some of the threads down. Which thread does an item must not change what it computes. The calling thread
 * does all where there is not enough to share. */
void sw_cpu_share(struct sw_stream *stream, bool enough, int64_t items, sw_cpu_items run, const void *context);
/* Shares as sw_cpu_share, by single items, which are long. */
void sw_cpu_share_long(struct sw_stream *stream, int64_t items, sw_cpu_items run, const void *context);

/* Let a CPU device open streams, whose threads start at the first work that they share. */
void sw_cpu_add_streams(struct sw_device_ops *ops);

#endif
