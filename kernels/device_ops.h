/* The private side of the device interface: the table of ops, and the objects that the wrappers in device.c fill.
 * Arguments are checked by the wrappers, so an op may rely on the contract of device.h. */
#ifndef SW_KERNELS_DEVICE_OPS_H
#define SW_KERNELS_DEVICE_OPS_H

#include "kernels/device.h"
#include "kernels/gemm_cache.h"

struct sw_comm_sum;
struct sw_gemm_algorithm;
struct sw_gemm_algorithms;

struct sw_device_ops {
    void (*close)(struct sw_device *device);
    /* Makes it the calling thread's GPU, for a library that calls CUDA by itself. NULL on a CPU. */
    sw_status (*use)(const struct sw_device *device);

    /* Fills base and backend of a memory, a stream, an event whose other fields are there. */
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

    /* Says why products of warpgroups cannot be had, or SW_OK. NULL where the device never has them. */
    sw_status (*check_warpgroups)(const struct sw_device *device);
    /* NULL where the device has no TF32. */
    void (*use_tf32)(struct sw_device *device);
    /* A device may keep what it prepared for a shape in entry->prepared; release_gemm frees it. */
    sw_status (*prepare_gemm)(struct sw_device *device, struct sw_gemm_entry *entry);
    void (*release_gemm)(struct sw_device *device, struct sw_gemm_entry *entry);
    sw_status (*gemm)(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch);

    /* As algorithms.h says of them; NULL where the device has no choice of algorithms. */
    sw_status (*use_algorithms)(struct sw_device *device, const struct sw_gemm_algorithms *list, bool measure);
    void (*algorithm)(const struct sw_gemm_entry *entry, struct sw_gemm_algorithm *out, bool *out_refused);

    sw_status (*layernorm_forward)(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *x, const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd);
    sw_status (*layernorm_backward)(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                    const void *x, const void *gamma, const float *mean, const float *rstd,
                                    bool add_to_dx, void *dx, float *gamma_acc, float *beta_acc);

    sw_status (*rmsnorm_forward)(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                                 const void *gamma, void *y, float *rstd);
    sw_status (*rmsnorm_backward)(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape,
                                  const void *dy, const void *x, const void *gamma, const float *rstd, bool add_to_dx,
                                  void *dx, float *gamma_acc);
    sw_status (*add_norm_forward)(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                  const void *a, const void *b, void *sum, const void *gamma, const void *beta, void *y,
                                  float *mean, float *rstd);
    sw_status (*rotate)(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape, const float *table,
                        void *x);

    int64_t (*attention_scratch_bytes)(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type);
    sw_status (*attention_forward)(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                   const void *q, const void *k, const void *v, void *o, float *log_sum_exp,
                                   void *scratch);
    sw_status (*attention_backward)(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                    const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                    const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch);

    sw_status (*activation_forward)(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                    const void *x, void *y);
    sw_status (*activation_backward)(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                     const void *x, const void *dy, void *dx, void *activated);
    sw_status (*gated_forward)(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                               const void *x, void *y);
    sw_status (*gated_backward)(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows,
                                int64_t cols, const void *x, const void *dy, void *dx, void *activated);
    sw_status (*add)(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y);
    sw_status (*bias_gradient)(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                               float *acc);
    sw_status (*embedding_forward)(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                   const int32_t *tokens, const int32_t *document_start, const void *table,
                                   const void *positions, void *out);
    sw_status (*embedding_backward)(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                    const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                    float *table_acc, float *positions_acc);
    sw_status (*cross_entropy)(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab,
                               const float *logits, const int32_t *targets, float scale, float *loss, void *d_logits);
    sw_status (*softmax_partial)(struct sw_stream *stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                                 const float *logits, const int32_t *targets, float *max, float *sum,
                                 float *target_logit);
    sw_status (*cross_entropy_tile)(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t tile_cols,
                                    int64_t first_col, const float *logits, const int32_t *targets, float scale,
                                    const float *max, const float *sum, const float *target_logit, float *loss,
                                    void *d_logits);

    sw_status (*sum_losses)(struct sw_stream *stream, int64_t rows, const float *losses, double *total);
    sw_status (*finish_gradient)(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                                 double *sums);
    sw_status (*square_sums)(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *grads, double *sums);
    sw_status (*cast_from_f32)(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to);
    /* For ops that are made from others; the interface has no need of it. */
    sw_status (*cast_to_f32)(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *from, float *to);
    int64_t (*row_product_scratch_bytes)(const struct sw_gemm *shape);
    sw_status (*row_product)(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                             const void *bias, void *c, float *scratch);
    sw_status (*update_adamw)(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                              int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                              float *records, void *weights);
    /* As core/ranks/comm.h says of it. NULL where the memory is the host's. */
    sw_status (*rank_sum)(struct sw_stream *stream, const struct sw_comm_sum *sum);
};

struct sw_device {
    struct sw_device_ops ops;
    struct sw_device_info info;
    struct sw_gemm_cache gemms;
    void *backend; /* the device's own data; its close frees it */
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
    const char *name; /* a literal */
    sw_memory_side side;
    int64_t bytes;
    void *base, *backend;
};

/* Each fills ops, info and backend of a zeroed device. */
sw_status sw_ref_device_init(struct sw_device *device);
sw_status sw_cpu_device_init(struct sw_device *device, const char *isa, int threads);
/* number: of the GPU, NULL for the first. SW_ERR_UNSUPPORTED says why this build or machine has none. */
sw_status sw_cuda_device_init(struct sw_device *device, const char *number);

#endif
