/* The way by which work comes to an emulated stream. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_STREAM_H
#define SW_TESTS_EQUIPMENT_CUDA_STREAM_H

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's own declaration, repeated. */
typedef struct CUstream_st *cudaStream_t;

/* Gives a stream a task, which frees its argument if that is needed. Without a stream it runs at once, on the caller's
 * thread. */
void sw_emulation_give(cudaStream_t stream, void (*run)(void *argument), void *argument);

/* Returns the GPU's error, a cudaError_t, of kernels that were compiled for another GPU. */
int sw_emulation_kernel_error(void);

#ifdef __cplusplus
}
#endif
#endif
