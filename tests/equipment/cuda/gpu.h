/* The state of the emulated GPU, shared by the files of its runtime alone: tests use runtime.h. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_GPU_H
#define SW_TESTS_EQUIPMENT_CUDA_GPU_H

#include "tests/equipment/cuda/runtime.h"

#include <pthread.h>

enum {
    SW_EMULATED_ERROR_CHARS = 512,
    SW_EMULATED_RESERVED_BYTES = 1 << 10 /* shared memory that CUDA itself takes of each block */
};

/* A range of host memory that is registered with CUDA. */
struct sw_emulated_pinned {
    const char *base;
    size_t bytes;
    struct sw_emulated_pinned *next;
};

/* A range of addresses behind which the driver has mapped memory (virtual.c). device: -1 for the host's. */
struct sw_emulated_mapping {
    char *base;
    size_t bytes;
    int device;
    void *memory; /* the allocation */
    struct sw_emulated_mapping *next;
};

/* The state that the operating system and the driver would hold of a real GPU: one for the process. */
struct sw_emulated_machine {
    pthread_once_t once;
    pthread_mutex_t mutex; /* guards all members below but `key` and `blocking`, which never change */
    struct sw_emulation_gpu gpu;
    size_t used_bytes, most_used_bytes, pinned_bytes;
    struct sw_emulated_mapping *mappings;
    struct sw_emulated_pinned *pinned; /* list of all registered ranges */
    int key;                           /* protection key of the GPU's memory; -1: this processor has none */
    bool blocking;                     /* CUDA_LAUNCH_BLOCKING=1: a launch has ended when it returns */
    cudaError_t broken;                /* the error that ended the GPU's work; cudaSuccess: none */
    char error[SW_EMULATED_ERROR_CHARS];
    int64_t delay_ns; /* longest wait before a task; 0: none */
    bool hangs;       /* no task begins any more */
    uint64_t delay_seed, tasks;
    cudaStream_t default_stream; /* the stream named NULL; NULL until its first task */
};
extern struct sw_emulated_machine sw_emulated_machine;

/* The errors that CUDA keeps by thread. */
struct sw_emulated_thread {
    bool launch_failed; /* a launch ended with `launch_error` before it returned, which leaves the GPU usable */
    char launch_error[SW_EMULATED_ERROR_CHARS];
    bool said_not_ready; /* CUDA takes the answer to cudaEventQuery for its last error */
};
extern _Thread_local struct sw_emulated_thread sw_emulated_thread;

/* Prepares the machine at the first call of the process. */
void sw_emulated_start(void);
/* Returns the error that ended the GPU's work, or cudaSuccess. */
cudaError_t sw_emulated_state(void);
/* Allows or forbids this thread to touch the GPU's memory. Only the GPU's own threads may, and calls that stand for
 * the GPU while they run. */
void sw_emulated_open_memory(bool open);

/* Counts bytes as memory of the GPU that is used; false: there are not so many. */
bool sw_emulated_take(size_t bytes);
/* Tells whether a range lies within one region of the GPU's memory, or within what is mapped for the GPU. */
bool sw_emulated_owns(const void *at, size_t bytes);
/* Tells whether a copy that has not run yet reads or writes a range. */
bool sw_emulated_is_copied(const void *at, size_t bytes);
/* Returns the number of the GPU whose memory an address is in; -1: none. */
int sw_emulated_device_of(const void *at);
/* Returns the range that a kernel may use around an address, of the GPU's memory or of what is pinned of the host's;
 * false where there is none. */
bool sw_emulated_range(const void *at, const char **out_base, size_t *out_bytes);

/* Adds a task to a stream. Returns cudaErrorMemoryAllocation where there is no memory for it; any other error is the
 * GPU's state, and the task is there. */
cudaError_t sw_emulated_give(cudaStream_t stream, void (*run)(void *argument), void *argument);
/* Waits for the tasks that a stream has now. */
void sw_emulated_wait(cudaStream_t stream);
/* Returns the stream that NULL names, or NULL where there is no memory for it. */
cudaStream_t sw_emulated_default_stream(void);

#endif
