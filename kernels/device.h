/* The device interface: memory-agnostic arithmetic and copies, behind one table of functions.
 *
 * Pointers are plain pointers into the device's memory (for the CPU device, the host's), rows are contiguous unless
 * a stride says otherwise, sizes are 64-bit and in elements unless they end in `_bytes`. Buffers are aligned to at
 * least 64 bytes, inputs and outputs do not overlap unless a comment says so. Work is ordered within a stream; the
 * CPU device has finished when the call returns. A stream is used by one thread at a time, different streams by
 * different threads at once. Calls allocate nothing once sw_device_prepare_gemm has seen every shape.
 * "type" is the compute type of the activations and weights: SW_F32, SW_BF16 or SW_F16. It is how they are stored;
 * arithmetic, accumulators, statistics, logits and losses are fp32 whatever the type. A value that rounds past the
 * greatest fp16 becomes infinity, which sw_finish_gradient's sums show. */
#ifndef SW_KERNELS_DEVICE_H
#define SW_KERNELS_DEVICE_H

#include "core/dtype.h"
#include "core/fp8.h"
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
/* Returns how many GPUs this process may use; they are numbered from 0. */
int sw_device_gpus(void);

struct sw_device_info {
    const char *name;  /* "cpu", "cuda", "ref" */
    const char *isa;   /* "avx512_bf16", "sm_90", ... what the arithmetic uses */
    const char *model; /* the GPU's name, owned by the device; NULL on a CPU */
    const char *bus;   /* the GPU's address on the PCI bus, in small letters, owned by the device; NULL on a CPU */
    /* Version and file of the library that multiplies matrices, owned by the device; NULL: it is part of the program.
     */
    const char *library_name;
    int threads;         /* OpenMP threads that an op may use */
    int number;          /* the GPU's number, as in "cuda:N"; 0 on a CPU */
    int multiprocessors; /* the GPU's multiprocessors; 0 on a CPU */
    int driver;          /* the CUDA version of the GPU's driver, 13000 for 13.0; 0 on a CPU */
    int64_t library;     /* the version of a GPU's library of matrix products, as it counts; 0 on a CPU */
    bool warpgroups;     /* sw_device_use_warpgroups is on */
    bool bf16_fast;      /* the device has bf16 matrix instructions */
    bool fp32_in_blocks; /* a CPU device multiplies fp32 by its own blocks (cpu/block_product.c) and not by oneDNN */
    /* By compute type: its matrix products have the same bits for every number of threads. */
    bool threads_keep_bits[SW_DTYPES];
    bool host_memory;     /* its memory is the host's memory */
    bool asynchronous;    /* calls return before the work is done */
    bool described;       /* it computes nothing and only counts (described.h) */
    int64_t memory_bytes; /* free bytes of the device's own memory; 0: its memory is the host's */
};
struct sw_device_info sw_device_info(const struct sw_device *device);

/* Rounds fp32 operands of matrix products to TF32, 10 bits of mantissa, from now on, for tensor cores. Called before
 * any product is prepared. SW_ERR_UNSUPPORTED: the device has no such products. */
sw_status sw_device_use_tf32(struct sw_device *device);

/* Makes products in 8 bits possible, as sw_gemm's a_as and b_as ask for them. Called before any product is prepared.
 * SW_ERR_UNSUPPORTED: the device has no such products; the message names it. */
sw_status sw_device_use_fp8(struct sw_device *device);

/* Sets whether attention of 16-bit types is computed by products of warpgroups from now on, where shape and alignment
 * allow it; a device begins without. Called between ops only: scratch that was asked for before may be too small
 * afterwards. SW_ERR_UNSUPPORTED: the device or this build has no such products; turning them off always works. */
sw_status sw_device_use_warpgroups(struct sw_device *device, bool on);

/* One region of memory, zeroed, aligned to SW_BUFFER_ALIGN_BYTES: of the device, or of the host for copies to and from
 * the device. Host memory is locked, and as near to the device as the machine allows. A CPU device's host memory is
 * locked only if the limits allow it; a GPU's is refused if it cannot be pinned. The caller closes it, when no stream
 * works on it any more. */
typedef enum { SW_MEMORY_DEVICE, SW_MEMORY_HOST } sw_memory_side;
sw_status sw_memory_open(struct sw_device *device, const char *name, sw_memory_side side, int64_t bytes,
                         struct sw_memory **out);
void *sw_memory_base(const struct sw_memory *memory);
int64_t sw_memory_bytes(const struct sw_memory *memory);
void sw_memory_close(struct sw_memory *memory);

sw_status sw_stream_open(struct sw_device *device, struct sw_stream **out);
/* Waits for the stream's work, then closes it. NULL is allowed. */
void sw_stream_close(struct sw_stream *stream);
/* Waits for all work of the stream and returns its first error. */
sw_status sw_stream_synchronize(struct sw_stream *stream);

/* A point in a stream's work, which the host or another stream can wait for, and the time when it was reached. One
 * thread at a time records it; any may wait. */
sw_status sw_event_open(struct sw_device *device, struct sw_event **out);
void sw_event_close(struct sw_event *event);
sw_status sw_event_record(struct sw_event *event, struct sw_stream *stream);
/* Waits on the host, without using a core, and returns the first error of the device's work. */
sw_status sw_event_wait(struct sw_event *event);
/* Says whether the event was reached, without waiting. */
sw_status sw_event_reached(struct sw_event *event, bool *out_reached);
/* Makes later work of the stream begin after the event, as it was last recorded. The host does not wait. */
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
/* Copies within the device. */
sw_status sw_copy_on_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes);
/* Sets `bytes` bytes of the device's memory to 0. */
sw_status sw_zero(struct sw_stream *stream, void *to, int64_t bytes);

/* C[m,n] = op(A)·op(B) (+ bias[n]) (+ C where accumulate) (+ addend[m,n]), row-major. op(A) is [m,k]: A is stored
 * [m,k], or [k,m] with transpose_a; op(B) is [k,n]: B is stored [k,n], or [n,k] with transpose_b. A, B and bias have
 * type `in`, C and addend type `out` (equal to in, or SW_F32). Products are summed in fp32; a device may round the
 * product to `out` before it adds an addend, and after. A bias needs equal types, and accumulate excludes bias and
 * addend. a_stride and c_stride are the elements from one stored row of A, and of C, to the next; 0: rows follow each
 * other without a gap, as those of B and of an addend do. Gaps are neither read nor written. An addend
 * needs a C without gaps. a_as and b_as: A and B are rounded to these types of 8 bits, each with a scale of its own
 * values (core/fp8.h), before they are multiplied; both or neither, from operands of 16 bits without gaps. */
struct sw_gemm {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    bool bias;
    bool accumulate;
    bool addend;
    sw_dtype in, out;
    int64_t a_stride, c_stride;
    sw_fp8 a_as, b_as;
};

/* Return the columns of the stored A, and the elements from one stored row of A, and of C, to the next. */
static inline int64_t sw_gemm_a_cols(const struct sw_gemm *shape) {
    return shape->transpose_a ? shape->m : shape->k;
}

static inline int64_t sw_gemm_a_stride(const struct sw_gemm *shape) {
    return shape->a_stride > 0 ? shape->a_stride : sw_gemm_a_cols(shape);
}

static inline int64_t sw_gemm_c_stride(const struct sw_gemm *shape) {
    return shape->c_stride > 0 ? shape->c_stride : shape->n;
}

/* Return the number of elements of A and of C, gaps included. */
static inline int64_t sw_gemm_a_elems(const struct sw_gemm *shape) {
    return (shape->transpose_a ? shape->k : shape->m) * sw_gemm_a_stride(shape);
}

static inline int64_t sw_gemm_c_elems(const struct sw_gemm *shape) {
    return shape->m * sw_gemm_c_stride(shape);
}

/* No operand has more rows or columns than this. */
#define SW_GEMM_MOST_SIDE ((int64_t)INT32_MAX)

/* Prepares a shape before the first step, or refuses one that is too large. *out_scratch_bytes: the scratch that a call
 * needs, device memory aligned to SW_BUFFER_ALIGN_BYTES. Not thread-safe. */
sw_status sw_device_prepare_gemm(struct sw_device *device, const struct sw_gemm *shape, int64_t *out_scratch_bytes);
/* Multiplies. bias NULL: the shape has none. SW_ERR_INTERNAL: the shape was not prepared. */
sw_status sw_gemm(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b, const void *bias,
                  void *c, void *scratch);
/* Multiplies and adds an addend; NULL: the shape has none. */
sw_status sw_gemm_add(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch);

#include "kernels/ops.h"

#endif
