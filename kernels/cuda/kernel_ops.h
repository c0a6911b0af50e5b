/* The ops that kernels of our own compute, in a device's table. They serve the GPU and, in the tests, the emulation on
 * the host; each side defines two functions: where a stream's handle is, and whether a launch went well. */
#ifndef SW_KERNELS_CUDA_KERNEL_OPS_H
#define SW_KERNELS_CUDA_KERNEL_OPS_H

#include "kernels/cuda/launch.h"
#include "kernels/device_ops.h"

/* Fills the ops of a table: all but memory and matrix products. */
void sw_cuda_add_kernels(struct sw_device_ops *ops);

/* The Muon update of a GPU. */
sw_status sw_cuda_update_muon(struct sw_stream *stream, const struct sw_update_muon *op);

/* Returns the CUDA stream behind a stream of the device. */
cudaStream_t sw_cuda_stream_handle(const struct sw_stream *stream);
/* Returns the error of the launches since the last call; the message names `op`. */
sw_status sw_cuda_launched(struct sw_stream *stream, const char *op);

#endif
