/* The private side of the device interface: a device's functions, the table of ops, and the objects that the wrappers
 * in device.c and streams.c fill. Arguments are checked before a function gets them, so it may rely on the contract. */
#ifndef SW_KERNELS_DEVICE_OPS_H
#define SW_KERNELS_DEVICE_OPS_H

#include "kernels/device.h"
#include "kernels/products.h"

#include <stddef.h>

struct sw_pack;
struct sw_update_muon;

/* A row of the table of ops (ops.c). */
struct sw_device_op_row {
    const char *name; /* "layernorm_forward" */
    /* Asserts the contract of the arguments. Returns the bytes of memory that the op moves if each operand crosses it
     * once. */
    double (*check)(const void *args);
    size_t args_bytes;
    size_t operands_at; /* offset in args of the first pointer to device memory; the others follow */
    size_t operands;    /* number of these pointers, some of which may be NULL */
};
const struct sw_device_op_row *sw_device_op_row(sw_device_op op);

/* Return the first row of a run and the one behind its last, of `rows` rows. They read device memory, so only ops that
 * run on the host may call them. */
static inline int64_t sw_first_row(const struct sw_row_run *run) {
    return run->first == NULL ? 0 : *run->first;
}

static inline int64_t sw_end_row(const struct sw_row_run *run, int64_t rows) {
    return run->first == NULL ? rows : *run->end;
}

struct sw_device_ops {
    void (*close)(struct sw_device *device);
    /* Makes the device the calling thread's GPU, for a library that calls CUDA itself. NULL on a CPU. */
    sw_status (*use)(const struct sw_device *device);

    /* The open functions fill `base` and `backend`; the caller has filled all other fields. */
    sw_status (*open_memory)(struct sw_memory *memory);
    void (*close_memory)(struct sw_memory *memory);
    sw_status (*open_stream)(struct sw_stream *stream);
    void (*close_stream)(struct sw_stream *stream);
    sw_status (*open_event)(struct sw_event *event);
    void (*close_event)(struct sw_event *event);
    sw_status (*record_event)(struct sw_event *event, struct sw_stream *stream);
    sw_status (*wait_event)(struct sw_event *event);
    sw_status (*event_reached)(struct sw_event *event, bool *out_reached);
    sw_status (*stream_wait)(struct sw_stream *stream, struct sw_event *event);
    sw_status (*elapsed_ns)(const struct sw_event *from, const struct sw_event *to, int64_t *out_ns);

    sw_status (*copy_to_device)(struct sw_stream *stream, void *device_to, const void *host_from, int64_t bytes);
    sw_status (*copy_to_host)(struct sw_stream *stream, void *host_to, const void *device_from, int64_t bytes);
    sw_status (*copy_on_device)(struct sw_stream *stream, void *to, const void *from, int64_t bytes);
    sw_status (*zero)(struct sw_stream *stream, void *to, int64_t bytes);
    sw_status (*synchronize)(struct sw_stream *stream);

    /* Returns SW_OK, or says why there are no products of warpgroups. NULL: the device never has them. */
    sw_status (*check_warpgroups)(const struct sw_device *device);
    /* NULL: the device has no TF32. */
    void (*use_tf32)(struct sw_device *device);
    /* Says whether the device itself multiplies in 8 bits, in products that it is asked to prepare. NULL: operands are
     * rounded to 8 bits, and their values are multiplied (products.h). */
    sw_status (*check_fp8)(struct sw_device *device);
    /* prepare_gemm fills entry->scratch_bytes and may keep data in entry->prepared, which release_gemm frees. */
    sw_status (*prepare_gemm)(struct sw_device *device, struct sw_gemm_entry *entry);
    void (*release_gemm)(struct sw_device *device, struct sw_gemm_entry *entry);
    sw_status (*gemm)(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch);

    /* Prepares grouped products of a shape, or refuses them. */
    sw_status (*prepare_grouped_gemm)(struct sw_device *device, const struct sw_grouped_gemm *shape,
                                      int64_t *out_scratch_bytes);

    /* The device's side of products.h; NULL: the device has no choice of algorithms. */
    sw_status (*use_algorithms)(struct sw_device *device, const struct sw_gemm_algorithms *list, bool measure);
    void (*algorithm)(const struct sw_gemm_entry *entry, struct sw_gemm_algorithm *out, bool *out_refused);

    int64_t (*attention_scratch_bytes)(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type);
    /* The product of one row and a matrix, on the CPU device; NULL on all others. */
    int64_t (*row_product_scratch_bytes)(const struct sw_gemm *shape);
    sw_status (*row_product)(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                             const void *bias, void *c, float *scratch);
    /* A product in fp32 of any types by blocks (cpu/block_product.c), on the CPU device; NULL on all others. */
    int64_t (*block_product_scratch_bytes)(const struct sw_gemm *shape, int threads);
    void (*block_product)(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                          const void *bias, void *c, void *scratch);
    /* The Muon update (muon.h); NULL on a described device. */
    sw_status (*update_muon)(struct sw_stream *stream, const struct sw_update_muon *args);
    /* Packs a panel of B (cpu/pack.h) on a CPU that multiplies pairs of bf16; NULL on all others. Threads may pack
     * different panels at once. */
    void (*pack_panel)(const struct sw_pack *pack, int64_t panel);

    /* Runs an op. `args` is the op's struct in ops.h, already checked. */
    sw_status (*run)(struct sw_stream *stream, sw_device_op op, const void *args);
    /* The ops of a host device, which its `run` calls; NULL: no such op. GPUs leave it empty. */
    sw_status (*op[SW_DEVICE_OPS])(struct sw_stream *stream, const void *args);
};

/* Returns rows without gaps, as a LayerNorm's are. */
static inline struct sw_rmsnorm sw_plain_rows(int64_t rows, int64_t cols, float epsilon) {
    return (struct sw_rmsnorm){
        .rows = rows, .cols = cols, .groups = 1, .x_stride = cols, .y_stride = cols, .epsilon = epsilon};
}

struct sw_device {
    struct sw_device_ops ops;
    struct sw_device_info info;
    struct sw_gemm_cache gemms;
    void *backend;                /* the device's own data; its close frees it */
    struct sw_op_times *times;    /* borrowed: where ops are timed (described.h); NULL: they are not */
    struct sw_device_ops untimed; /* the device's own functions while ops are timed */
};

struct sw_stream {
    struct sw_device *device;
    sw_status first_error;
    void *backend;
};

struct sw_event {
    struct sw_device *device;
    void *backend;
};

struct sw_memory {
    struct sw_device *device;
    const char *name; /* a literal: the tier's name for messages */
    sw_memory_side side;
    int64_t bytes;
    void *base, *backend;
};

/* Each of these fills ops, info and backend of a zeroed device. */
sw_status sw_ref_device_init(struct sw_device *device);
sw_status sw_cpu_device_init(struct sw_device *device, const char *isa, int threads);
/* number: of the GPU, as text; NULL: the first. SW_ERR_UNSUPPORTED: the message says why this build or machine has
 * none. */
sw_status sw_cuda_device_init(struct sw_device *device, const char *number);

#endif
