#include "tests/kernels/mirror.h"

#include "core/ranks/comm.h"
#include "core/size.h"
#include "kernels/device_ops.h"
#include "tests/kernels/support.h"

/* Of one call. The largest are the operands and the workspace of a matrix product. */
#define MIRROR_BYTES (96 * SW_MIB)
enum { MOST_BUFFERS = 16 };

static struct {
    struct sw_device_ops real;
    struct sw_memory *memory;
    int64_t used_bytes;
    int count;
    struct {
        char *host, *device;
        int64_t bytes;
    } brought[MOST_BUFFERS];
} mirror;

static int find(const char *host) {
    int i = 0;
    while (i < mirror.count && mirror.brought[i].host != host)
        i++;
    return i;
}

/* Where the device has what `at` points to. A buffer that a call names twice is brought once. */
static void *bring(struct sw_stream *stream, const void *at) {
    char *base = NULL;
    int64_t bytes = 0;
    if (at == NULL)
        return NULL;
    if (!buffer_region(at, &base, &bytes))
        fail_msg("an op was given memory that is in no buffer of the test");
    const int i = find(base);
    if (i == mirror.count) {
        assert_true(mirror.count < MOST_BUFFERS && mirror.used_bytes + bytes <= MIRROR_BYTES);
        mirror.brought[i].host = base;
        mirror.brought[i].device = (char *)sw_memory_base(mirror.memory) + mirror.used_bytes;
        mirror.brought[i].bytes = bytes;
        mirror.used_bytes += sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
        mirror.count++;
        assert_ok(sw_copy_to_device(stream, mirror.brought[i].device, base, bytes));
    }
    return mirror.brought[i].device + ((const char *)at - base);
}

/* Ends a call, which said `status`. */
static sw_status take_back(struct sw_stream *stream, sw_status status) {
    for (int i = 0; i < mirror.count; i++)
        assert_ok(sw_copy_to_host(stream, mirror.brought[i].host, mirror.brought[i].device, mirror.brought[i].bytes));
    mirror.count = 0;
    mirror.used_bytes = 0;
    const sw_status ended = stream->device->ops.synchronize(stream);
    return status != SW_OK ? status : ended;
}

#define ON(at) bring(stream, at)
#define RUN(op, ...) take_back(stream, mirror.real.op(stream, __VA_ARGS__))

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    return RUN(gemm, entry, ON(a), ON(b), ON(bias), ON(addend), ON(c), ON(scratch));
}

static sw_status layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *x, const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd) {
    return RUN(layernorm_forward, type, rows, cols, epsilon, ON(x), ON(gamma), ON(beta), ON(y), ON(mean), ON(rstd));
}

static sw_status layernorm_backward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                    const void *x, const void *gamma, const float *mean, const float *rstd,
                                    bool add_to_dx, void *dx, float *gamma_acc, float *beta_acc) {
    return RUN(layernorm_backward, type, rows, cols, ON(dy), ON(x), ON(gamma), ON(mean), ON(rstd), add_to_dx, ON(dx),
               ON(gamma_acc), ON(beta_acc));
}

static sw_status rmsnorm_forward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                                 const void *gamma, void *y, float *rstd) {
    return RUN(rmsnorm_forward, type, shape, ON(x), ON(gamma), ON(y), ON(rstd));
}

static sw_status rmsnorm_backward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape,
                                  const void *dy, const void *x, const void *gamma, const float *rstd, bool add_to_dx,
                                  void *dx, float *gamma_acc) {
    return RUN(rmsnorm_backward, type, shape, ON(dy), ON(x), ON(gamma), ON(rstd), add_to_dx, ON(dx), ON(gamma_acc));
}

static sw_status add_norm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                  const void *a, const void *b, void *sum, const void *gamma, const void *beta, void *y,
                                  float *mean, float *rstd) {
    return RUN(add_norm_forward, type, rows, cols, epsilon, ON(a), ON(b), ON(sum), ON(gamma), ON(beta), ON(y), ON(mean),
               ON(rstd));
}

static sw_status rotate(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape, const float *table,
                        void *x) {
    return RUN(rotate, type, shape, ON(table), ON(x));
}

static struct sw_attention attention_there(struct sw_stream *stream, const struct sw_attention *shape) {
    struct sw_attention there = *shape;
    there.document_start = ON(shape->document_start);
    return there;
}

static sw_status attention_forward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                   const void *q, const void *k, const void *v, void *o, float *log_sum_exp,
                                   void *scratch) {
    const struct sw_attention there = attention_there(stream, shape);
    return RUN(attention_forward, type, &there, ON(q), ON(k), ON(v), ON(o), ON(log_sum_exp), ON(scratch));
}

static sw_status attention_backward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                    const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                    const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch) {
    const struct sw_attention there = attention_there(stream, shape);
    return RUN(attention_backward, type, &there, ON(q), ON(k), ON(v), ON(o), ON(d_o), ON(log_sum_exp), ON(dq), ON(dk),
               ON(dv), ON(scratch));
}

static sw_status activation_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                    const void *x, void *y) {
    return RUN(activation_forward, type, which, elems, ON(x), ON(y));
}

static sw_status activation_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                     const void *x, const void *dy, void *dx, void *activated) {
    return RUN(activation_backward, type, which, elems, ON(x), ON(dy), ON(dx), ON(activated));
}

static sw_status gated_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                               const void *x, void *y) {
    return RUN(gated_forward, type, which, rows, cols, ON(x), ON(y));
}

static sw_status gated_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows,
                                int64_t cols, const void *x, const void *dy, void *dx, void *activated) {
    return RUN(gated_backward, type, which, rows, cols, ON(x), ON(dy), ON(dx), ON(activated));
}

static sw_status add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    return RUN(add, type, elems, ON(a), ON(b), ON(y));
}

static sw_status bias_gradient(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                               float *acc) {
    return RUN(bias_gradient, type, rows, cols, ON(dy), ON(acc));
}

static sw_status embedding_forward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                   const int32_t *tokens, const int32_t *document_start, const void *table,
                                   const void *positions, void *out) {
    return RUN(embedding_forward, type, batch, seq, cols, ON(tokens), ON(document_start), ON(table), ON(positions),
               ON(out));
}

static sw_status embedding_backward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                    const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                    float *table_acc, float *positions_acc) {
    return RUN(embedding_backward, type, batch, seq, cols, ON(tokens), ON(document_start), ON(d_out), ON(table_acc),
               ON(positions_acc));
}

static sw_status cross_entropy(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab,
                               const float *logits, const int32_t *targets, float scale, float *loss, void *d_logits) {
    return RUN(cross_entropy, type, rows, vocab, ON(logits), ON(targets), scale, ON(loss), ON(d_logits));
}

static sw_status softmax_partial(struct sw_stream *stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                                 const float *logits, const int32_t *targets, float *max, float *sum,
                                 float *target_logit) {
    return RUN(softmax_partial, rows, tile_cols, first_col, ON(logits), ON(targets), ON(max), ON(sum),
               ON(target_logit));
}

static sw_status cross_entropy_tile(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t tile_cols,
                                    int64_t first_col, const float *logits, const int32_t *targets, float scale,
                                    const float *max, const float *sum, const float *target_logit, float *loss,
                                    void *d_logits) {
    return RUN(cross_entropy_tile, type, rows, tile_cols, first_col, ON(logits), ON(targets), scale, ON(max), ON(sum),
               ON(target_logit), ON(loss), ON(d_logits));
}

static sw_status sum_losses(struct sw_stream *stream, int64_t rows, const float *losses, double *total) {
    return RUN(sum_losses, rows, ON(losses), ON(total));
}

static sw_status finish_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                                 double *sums) {
    return RUN(finish_gradient, type, elems, ON(acc), ON(grads), ON(sums));
}

static sw_status square_sums(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *grads, double *sums) {
    return RUN(square_sums, type, elems, ON(grads), ON(sums));
}

static sw_status cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    return RUN(cast_from_f32, type, elems, ON(from), ON(to));
}

static sw_status cast_to_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *from, float *to) {
    return RUN(cast_to_f32, type, elems, ON(from), ON(to));
}

static sw_status update_adamw(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                              int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                              float *records, void *weights) {
    return RUN(update_adamw, type, adamw, first_elem, grains, runs, run_count, ON(grads), ON(records), ON(weights));
}

static struct sw_comm_sum sum_there(struct sw_stream *stream, const struct sw_comm_sum *sum) {
    struct sw_comm_sum there = *sum;
    there.own = ON(sum->own);
    there.others = ON(sum->others);
    there.to = ON(sum->to);
    return there;
}

static sw_status rank_sum(struct sw_stream *stream, const struct sw_comm_sum *sum) {
    const struct sw_comm_sum there = sum_there(stream, sum);
    return RUN(rank_sum, &there);
}

/* An op that is not here would be given host memory: a test of it ends at once. */
static struct sw_device_ops mirrored(const struct sw_device_ops *real) {
    return (struct sw_device_ops){
        .close = real->close,
        .open_memory = real->open_memory,
        .close_memory = real->close_memory,
        .open_stream = real->open_stream,
        .close_stream = real->close_stream,
        .open_event = real->open_event,
        .close_event = real->close_event,
        .record_event = real->record_event,
        .wait_event = real->wait_event,
        .event_reached = real->event_reached,
        .stream_wait = real->stream_wait,
        .elapsed_ns = real->elapsed_ns,
        .copy_to_device = real->copy_to_device,
        .copy_to_host = real->copy_to_host,
        .copy_on_device = real->copy_on_device,
        .zero = real->zero,
        .synchronize = real->synchronize,
        .prepare_gemm = real->prepare_gemm,
        .release_gemm = real->release_gemm,
        .attention_scratch_bytes = real->attention_scratch_bytes,
        .gemm = gemm,
        .layernorm_forward = layernorm_forward,
        .layernorm_backward = layernorm_backward,
        .rmsnorm_forward = rmsnorm_forward,
        .rmsnorm_backward = rmsnorm_backward,
        .add_norm_forward = add_norm_forward,
        .rotate = rotate,
        .attention_forward = attention_forward,
        .attention_backward = attention_backward,
        .activation_forward = activation_forward,
        .activation_backward = activation_backward,
        .gated_forward = gated_forward,
        .gated_backward = gated_backward,
        .add = add,
        .bias_gradient = bias_gradient,
        .embedding_forward = embedding_forward,
        .embedding_backward = embedding_backward,
        .cross_entropy = cross_entropy,
        .softmax_partial = softmax_partial,
        .cross_entropy_tile = cross_entropy_tile,
        .sum_losses = sum_losses,
        .finish_gradient = finish_gradient,
        .square_sums = square_sums,
        .cast_from_f32 = cast_from_f32,
        .cast_to_f32 = cast_to_f32,
        .update_adamw = update_adamw,
        .rank_sum = rank_sum,
    };
}

void mirror_begin(struct sw_device *device) {
    mirror.real = device->ops;
    assert_ok(sw_memory_open(device, "mirror", SW_MEMORY_DEVICE, MIRROR_BYTES, &mirror.memory));
    device->ops = mirrored(&mirror.real);
}

void mirror_end(struct sw_device *device) {
    device->ops = mirror.real;
    sw_memory_close(mirror.memory);
    mirror.memory = NULL;
}
