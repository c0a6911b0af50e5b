/* The device interface: memory-agnostic arithmetic and copies, behind one table of functions.
 *
 * Pointers are plain pointers into the device's memory (for the CPU device, the host's), rows are contiguous unless
 * a stride says otherwise, sizes are 64-bit and in elements unless they end in `_bytes`. Buffers are aligned to at
 * least 64 bytes, inputs and outputs do not overlap unless a comment says so. Work is ordered within a stream; the
 * CPU device has finished when the call returns. A stream is used by one thread at a time, different streams by
 * different threads at once. Calls allocate nothing once sw_device_prepare_gemm has seen every shape.
 * "type" is the compute type of the activations and weights: SW_F32, SW_BF16 or SW_F16. It is how they are stored;
 * arithmetic, accumulators, statistics, logits and losses are fp32 whatever the type. What rounds past the greatest
 * fp16 becomes infinity, which sw_finish_gradient's sums show. */
#ifndef SW_KERNELS_DEVICE_H
#define SW_KERNELS_DEVICE_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_device;
struct sw_stream;
struct sw_event;
struct sw_memory;

/* Opens a device by name: "cpu", "cuda", or "ref" (the plain C reference, single-threaded, for tests). "cpu:ISA" limits
 * the CPU device to an instruction set: baseline, avx2, avx512 or avx512_bf16; "cuda:N" is the GPU of that number.
 * threads: OpenMP threads an op may use, 0 for all cores. The caller closes it, after its streams, events and memory.
 */
sw_status sw_device_open(const char *name, int threads, struct sw_device **out);
void sw_device_close(struct sw_device *device);
/* Returns whether this build has the CUDA device. Opening the device says why it cannot be used on this machine. */
bool sw_device_has_cuda(void);
/* GPUs that this process may use, numbered from 0. */
int sw_device_gpus(void);

struct sw_device_info {
    const char *name;  /* "cpu" */
    const char *isa;   /* "avx512_bf16", "sm_90", ... what the arithmetic uses */
    const char *model; /* the GPU's name; NULL on a CPU. Valid as long as the device, as the next */
    const char *bus;   /* its place on this machine's PCI bus, in small letters; NULL on a CPU */
    const char
        *library_name; /* version and file of what multiplies matrices; NULL: part of the program. Valid likewise */
    int threads;
    int number;           /* of the GPU, as in "cuda:N"; 0 on a CPU */
    int multiprocessors;  /* of the GPU; 0 on a CPU */
    int driver;           /* the CUDA that the GPU's driver is for, as CUDA writes it: 13000 is 13.0; 0 on a CPU */
    int64_t library;      /* version of the library of matrix products on a GPU, as that writes it; 0 on a CPU */
    bool warpgroups;      /* sw_device_use_warpgroups is on */
    bool bf16_fast;       /* the device has bf16 matrix instructions */
    bool host_memory;     /* its memory is the host's memory */
    bool asynchronous;    /* calls return before the work is done */
    bool described;       /* it computes nothing and only counts (described.h) */
    int64_t memory_bytes; /* of its own that is free now; 0 where its memory is the host's */
};
struct sw_device_info sw_device_info(const struct sw_device *device);

/* From now on fp32 operands of matrix products are rounded to TF32, 10 bits of mantissa, for tensor cores. Before any
 * product is prepared. SW_ERR_UNSUPPORTED where the device has no such products. */
sw_status sw_device_use_tf32(struct sw_device *device);

/* Says whether attention of 16-bit types is computed by products of warpgroups from now on, where shape and alignment
 * allow it; a device begins without. Between ops only: scratch that was asked for before may be too small afterwards.
 * SW_ERR_UNSUPPORTED where the device or this build has no such products; turning them off always works. */
sw_status sw_device_use_warpgroups(struct sw_device *device, bool on);

/* One region of memory, zeroed, aligned to SW_BUFFER_ALIGN_BYTES: of the device, or of the host for copies to and from
 * the device, which is then as near to the device as the machine has it, and locked. A CPU device's host memory is
 * locked only where the limits allow it; a GPU's is refused where it cannot be pinned. The caller closes it, when no
 * stream works on it any more. */
typedef enum { SW_MEMORY_DEVICE, SW_MEMORY_HOST } sw_memory_side;
sw_status sw_memory_open(struct sw_device *device, const char *name, sw_memory_side side, int64_t bytes,
                         struct sw_memory **out);
void *sw_memory_base(const struct sw_memory *memory);
int64_t sw_memory_bytes(const struct sw_memory *memory);
void sw_memory_close(struct sw_memory *memory);

sw_status sw_stream_open(struct sw_device *device, struct sw_stream **out);
/* Waits for its work first. */
void sw_stream_close(struct sw_stream *stream);
/* Waits for all work of the stream and returns its first error. */
sw_status sw_stream_synchronize(struct sw_stream *stream);

/* A point in a stream's work, which the host or another stream can wait for, and the time when it was reached. One
 * thread at a time records it; any may wait. */
sw_status sw_event_open(struct sw_device *device, struct sw_event **out);
void sw_event_close(struct sw_event *event);
sw_status sw_event_record(struct sw_event *event, struct sw_stream *stream);
/* The host waits, without using a core, and gets the first error of the device's work. */
sw_status sw_event_wait(struct sw_event *event);
/* The host only asks whether it was reached. */
sw_status sw_event_reached(struct sw_event *event, bool *out_reached);
/* Work given to the stream from now on begins after the event, as it was last recorded. The host does not wait. */
sw_status sw_stream_wait(struct sw_stream *stream, struct sw_event *event);
/* Measures the time from one event to another. Both must have been reached. */
sw_status sw_event_elapsed_ns(const struct sw_event *from, const struct sw_event *to, int64_t *out_ns);

/* Fills in the functions with which sw_comm_use_nccl exchanges a GPU's memory: sums, copies and marks on the stream.
 * The comm owns the use of the stream from then on, and the GPU becomes the calling thread's current one. A CPU device
 * needs no such functions, because its memory is the host's. Close it after the comm and before the stream. */
struct sw_comm_device;
sw_status sw_device_comm_open(struct sw_stream *stream, struct sw_comm_device *out);
void sw_device_comm_close(struct sw_comm_device *device);

/* Copies between host memory and device memory. Host memory that is not an sw_memory may be read or written before the
 * call returns, and slows the copy down. */
sw_status sw_copy_to_device(struct sw_stream *stream, void *device_to, const void *host_from, int64_t bytes);
sw_status sw_copy_to_host(struct sw_stream *stream, void *host_to, const void *device_from, int64_t bytes);
/* Within the device. */
sw_status sw_copy_on_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes);
sw_status sw_zero(struct sw_stream *stream, void *to, int64_t bytes);

/* C[m,n] = op(A)·op(B) (+ bias[n]) (+ C where accumulate) (+ addend[m,n]), row-major and dense. op(A) is [m,k]: A is
 * stored [m,k], or [k,m] with transpose_a; op(B) is [k,n]: B is stored [k,n], or [n,k] with transpose_b. A, B and bias
 * have type `in`, C and addend type `out` (equal to in, or SW_F32). Products are summed in fp32; a device may round the
 * product to `out` before it adds an addend, and after. A bias needs equal types, and accumulate excludes bias and
 * addend. */
struct sw_gemm {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    bool bias;
    bool accumulate;
    bool addend;
    sw_dtype in, out;
};

/* The most rows or columns of an operand. */
#define SW_GEMM_MOST_SIDE ((int64_t)INT32_MAX)

/* Makes the shape ready, or refuses one that is too large, and returns the scratch memory (device memory,
 * SW_BUFFER_ALIGN_BYTES aligned) that a call needs. Not thread-safe; before the first step. */
sw_status sw_device_prepare_gemm(struct sw_device *device, const struct sw_gemm *shape, int64_t *out_scratch_bytes);
/* SW_ERR_INTERNAL for a shape that was not prepared. */
sw_status sw_gemm(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b, const void *bias,
                  void *c, void *scratch);
/* With an addend, where the shape has one. */
sw_status sw_gemm_add(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch);

#include "kernels/ops.h"

#endif
