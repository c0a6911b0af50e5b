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

/* y = (x - mean)·rstd·gamma + beta over rows of `cols`; mean and rstd (fp32, one a row) are written for the backward
 * pass. Statistics in fp32 with the variance from centred values. (torch.nn.LayerNorm) */
sw_status sw_layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                               const void *x, const void *gamma, const void *beta, void *y, float *mean, float *rstd);
/* dx (+)= gradient at x (added to what dx holds where add_to_dx: the residual path); gamma_acc and beta_acc += their
 * gradients, fp32, summed in row order whatever the threads. dx may not alias dy. */
sw_status sw_layernorm_backward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                const void *x, const void *gamma, const float *mean, const float *rstd, bool add_to_dx,
                                void *dx, float *gamma_acc, float *beta_acc);

/* Rows of a root-mean-square norm. `groups` of them lie side by side, such as the heads of a token: row r of x begins
 * at (r / groups)·x_stride + (r % groups)·cols, and of y likewise with y_stride. */
struct sw_rmsnorm {
    int64_t rows, cols;
    int64_t groups;
    int64_t x_stride, y_stride;
    float epsilon;
};
/* y = x·rstd·gamma with rstd = 1/sqrt(average(x²) + epsilon), fp32, one a row, kept for the backward pass.
 * (torch.nn.RMSNorm) */
sw_status sw_rmsnorm_forward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                             const void *gamma, void *y, float *rstd);
/* As sw_layernorm_backward; dy lies as y does, dx as x. */
sw_status sw_rmsnorm_backward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *dy,
                              const void *x, const void *gamma, const float *rstd, bool add_to_dx, void *dx,
                              float *gamma_acc);

/* sum = a + b as sw_add, and y is the norm of that: as sw_layernorm_forward, or as sw_rmsnorm_forward where beta and
 * mean are NULL. The bits are those of the two ops in turn, and memory is passed over once. sum may be a or b. */
sw_status sw_add_norm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                              const void *a, const void *b, void *sum, const void *gamma, const void *beta, void *y,
                              float *mean, float *rstd);

/* Rotary positions. Token t of sequence b is row b·seq+t of x, rows are `stride` elements apart, and each of its
 * `heads` side by side is turned in place: of the pair (x[i], x[i + head_dim/2]) the first becomes x[i]·c - x[i +
 * head_dim/2]·s and the second x[i + head_dim/2]·c + x[i]·s, with c = table[t][i] and s = table[t][i + head_dim/2],
 * fp32 [seq, head_dim]. `back` turns the other way, which takes gradients from the result to x. */
struct sw_rotation {
    int64_t batch, seq;
    int64_t heads, head_dim; /* the latter even */
    int64_t stride;
    bool back;
};
sw_status sw_rotate(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape, const float *table,
                    void *x);

/* Causal multi-head attention of `batch` sequences of `seq` tokens. Token t of sequence b is row b·seq+t of q, k, v, o,
 * whose rows are q_stride, k_stride, v_stride and o_stride elements apart; head h occupies columns [h·head_dim,
 * (h+1)·head_dim). Query head h uses key head h/(heads/kv_heads). softmax(scale·q·kᵀ)·v with fp32 sums, scale positive;
 * a device with matrix instructions may round probabilities and their gradients to `type` for them. A query sees itself
 * and the tokens before it, at most `window` in all where that is not 0, and none of another document: query t sees the
 * keys j <= t with j > t - window and j >= document_start[t]. log_sum_exp[batch, heads, seq] is kept for the backward
 * pass. Scores are never whole: memory is linear in seq.
 *
 * With `past`, forward only and without documents, the tokens are the last of longer sequences, whose keys and values
 * were computed before: a sequence of k and v has past + seq rows, and query t is at place past + t among them. */
enum { SW_ATTENTION_MAX_HEAD_DIM = 256 };
struct sw_attention {
    int64_t batch, seq;
    int64_t past; /* keys before the first query */
    int64_t heads, kv_heads, head_dim;
    int64_t q_stride, k_stride, v_stride, o_stride;
    int64_t window;
    float scale;
    const int32_t *document_start; /* [batch, seq], device memory: the first token of its sequence that a query may see;
                                      NULL: 0. Never decreases within a sequence, document_start[t] <= t */
};
/* Scratch of a forward or backward call, device memory. */
int64_t sw_attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type);
sw_status sw_attention_forward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape, const void *q,
                               const void *k, const void *v, void *o, float *log_sum_exp, void *scratch);
/* dq, dk, dv have the strides of q, k, v and are overwritten. (FlashAttention-2, algorithm 2) Where the device
 * multiplies the type itself, probabilities and the gradients of scores are rounded to it before the products that they
 * enter. */
sw_status sw_attention_backward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch);

typedef enum { SW_GELU_TANH = 0, SW_GELU_ERF = 1, SW_RELU = 2, SW_SILU = 3 } sw_activation;
sw_status sw_activation_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                const void *x, void *y);
/* dx = dy · f'(x). dx may be dy. Where `activated` is not NULL it receives f(x) in the same pass over memory, with the
 * bits of the forward op. */
sw_status sw_activation_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                 const void *x, const void *dy, void *dx, void *activated);

/* Gated: a row of x holds `cols` gates and then `cols` values, y[row][col] = f(gate)·value. */
sw_status sw_gated_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                           const void *x, void *y);
/* dx [rows, 2·cols] from dy [rows, cols], and `activated` [rows, cols] as above. */
sw_status sw_gated_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                            const void *x, const void *dy, void *dx, void *activated);

/* y = a + b; y may be a or b. */
sw_status sw_add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y);

/* acc[cols] += sum of the rows of dy, in row order within a fixed tiling that does not depend on threads. */
sw_status sw_bias_gradient(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                           float *acc);

/* out[b·seq+t] = table[tokens[b·seq+t]] + positions[t - document_start[b·seq+t]]: positions begin anew with each
 * document (document_start as in struct sw_attention, NULL: 0; positions may be NULL). */
sw_status sw_embedding_forward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                               const int32_t *tokens, const int32_t *document_start, const void *table,
                               const void *positions, void *out);
/* table_acc[tokens[i]] += d_out[i] in order of i; positions_acc likewise (NULL to leave out). Deterministic. */
sw_status sw_embedding_backward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                float *table_acc, float *positions_acc);

/* For each row: loss[row] = logsumexp(logits) - logits[target], or 0 where target < 0; and where d_logits is not NULL,
 * d_logits (of `type`) = scale·(softmax(logits) - onehot(target)), or 0 where target < 0. logits: fp32 [rows, vocab].
 */
sw_status sw_cross_entropy(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab, const float *logits,
                           const int32_t *targets, float scale, float *loss, void *d_logits);

/* The same in two passes over tiles of the vocabulary, so that logits are never whole. The tile at hand holds the
 * columns [first_col, first_col + tile_cols) of every row: logits is [rows, tile_cols].
 *
 * The first pass takes each tile into the running maximum, the sum of exp(logit - max) and the target's logit of every
 * row (0 until its column came). A tile with first_col 0 starts them; the others follow, in the order of columns.
 * A row without a target (< 0) keeps 0, 1 and 0. Tiles are taken in blocks of SW_SOFTMAX_BLOCK_COLUMNS (512), so on one
 * device every tiling by multiples of it gives the bits of sw_cross_entropy; "ref" sums whole tiles in fp64 instead. */
sw_status sw_softmax_partial(struct sw_stream *stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                             const float *logits, const int32_t *targets, float *max, float *sum, float *target_logit);
/* The second pass, with what the first has found, in any order of tiles: loss = log(sum) + max - target_logit where
 * first_col is 0 and loss is not NULL; d_logits (of `type`, [rows, tile_cols]; NULL to leave out, and then logits may
 * be NULL) = scale·(exp(logit - max)/sum - onehot(target)). Both are 0 where target < 0. */
sw_status sw_cross_entropy_tile(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t tile_cols,
                                int64_t first_col, const float *logits, const int32_t *targets, float scale,
                                const float *max, const float *sum, const float *target_logit, float *loss,
                                void *d_logits);

/* *total += the sum of `rows` losses in fp64, in an order that depends on `rows` only. */
sw_status sw_sum_losses(struct sw_stream *stream, int64_t rows, const float *losses, double *total);

/* Ends a gradient: grads (of type) = round(acc), and sums[g] = the sum of squares of grain g of the rounded values in
 * fp64. elems is a multiple of SW_GRAIN_ELEMS. The order of a grain's sum is part of the contract: 256 partial sums,
 * element i to partial i mod 256 by fused multiply-add in index order, then halves added pairwise (128, 64, ... 1). */
sw_status sw_finish_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                             double *sums);
/* The two halves of that, for gradients that are summed over ranks in between: the rounded values, with the bits of
 * sw_cast_from_f32, and the sums of squares of what `grads` holds. */
sw_status sw_round_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads);
sw_status sw_square_sums(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *grads, double *sums);

/* round(from) to type. */
sw_status sw_cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to);

/* AdamW as torch.optim.AdamW (decoupled weight decay, no amsgrad), fused with unscaling, clipping and rounding:
 *   g = grad·grad_scale;  p -= lr·decay·p;  m += (1-beta1)·(g-m);  v = beta2·v + (1-beta2)·g·g;
 *   p -= (lr/(1-beta1^t))·m / (sqrt(v)/sqrt(1-beta2^t) + eps)
 * in fp32 with the fused multiply-adds written out in ref/update.c, which every implementation reproduces bit by bit.
 */
struct sw_adamw {
    double lr, beta1, beta2, eps, weight_decay; /* doubles, as Python's: 1 - beta2 loses five digits in fp32 */
    float grad_scale;                           /* clip coefficient over loss scale */
    int64_t step;                               /* t, from 1 */
    bool skip;                                  /* a step that is skipped: state unchanged, weights rounded again */
};
/* A run of elements with or without weight decay; runs cover [0, elems) of a unit in order. */
struct sw_decay_run {
    int64_t end; /* first element after the run */
    bool decay;
};
/* Updates `grains` grains of a unit starting at element first_elem: records holds them as master|m|v each
 * (SW_RECORD_BYTES), grads and weights are of `type`, weights receives the rounded master. runs are the unit's. */
sw_status sw_update_adamw(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                          int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                          float *records, void *weights);

#endif
