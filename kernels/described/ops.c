/* Counts the cost of each op: its bytes when every operand crosses memory once, and its products. */
#include "core/size.h"
#include "kernels/described/described.h"
#include "kernels/tiling.h"

#include <math.h>

static const struct sw_device_description *description_of(const struct sw_stream *stream) {
    return &((const struct sw_described *)stream->device->backend)->what;
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    entry->scratch_bytes = SW_GPU_GEMM_SCRATCH_BYTES;
    return SW_OK;
}

static void use_tf32(struct sw_device *device) {
    struct sw_described *described = device->backend;
    described->what.product_flops_per_s[SW_F32] = described->what.tf32_flops_per_s;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    (void)entry;
}

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    (void)a, (void)b, (void)bias, (void)c, (void)scratch;
    const struct sw_gemm *s = &entry->shape;
    const double m = (double)s->m, n = (double)s->n, k = (double)s->k;
    const double out_passes = s->accumulate || addend != NULL ? 2.0 : 1.0;
    const double bytes =
        (m * k + k * n) * (double)sw_dtype_bytes(s->in) + out_passes * m * n * (double)sw_dtype_bytes(s->out);
    return sw_described_count(stream, 2.0 * m * n * k, description_of(stream)->product_flops_per_s[s->in], bytes);
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    (void)device, (void)type;
    return sw_attention_parted_bytes(shape);
}

/* Keys that the queries of a sequence see together, documents apart. */
static double pairs_of(const struct sw_attention *s) {
    const double seq = (double)s->seq, all = (double)(s->past + s->seq);
    const double causal = seq * (double)s->past + seq * (seq + 1.0) / 2.0;
    if (s->window == 0 || s->window >= s->past + s->seq)
        return causal;
    const double unseen = all - (double)s->window;
    const double before = s->past > s->window ? (double)(s->past - s->window) : 0.0;
    return causal - unseen * (unseen + 1.0) / 2.0 + before * (before + 1.0) / 2.0;
}

/* Returns the flops of `products` products of each query with the keys that it sees. A tile of queries is multiplied by
 * whole tiles of keys, so that the mask's edge costs half a tile for each query. */
static double attention_flops(const struct sw_attention *s, double tile_rows, double products) {
    const double pairs = pairs_of(s) + (double)s->seq * tile_rows / 2.0;
    return products * 2.0 * (double)(s->batch * s->heads * s->head_dim) * pairs;
}

static sw_status run(struct sw_stream *stream, sw_device_op op, const void *args) {
    const struct sw_device_description *what = description_of(stream);
    const double bytes = sw_device_op_row(op)->check(args), tile_rows = (double)what->attention_tile_rows;
    if (op == SW_DEVICE_ATTENTION_FORWARD) {
        const struct sw_attention_forward *forward = args;
        const double rate = fmin(what->product_flops_per_s[forward->type], what->attention_forward_flops_per_s);
        return sw_described_count(stream, attention_flops(forward->shape, tile_rows, 2.0), rate, bytes);
    }
    if (op == SW_DEVICE_ATTENTION_BACKWARD) {
        const struct sw_attention_backward *backward = args;
        const double rate = fmin(what->product_flops_per_s[backward->type], what->attention_backward_flops_per_s);
        return sw_described_count(stream, attention_flops(backward->shape, tile_rows, 5.0), rate, bytes);
    }
    return sw_described_count(stream, 0.0, 1.0, bytes);
}

void sw_described_add_ops(struct sw_device_ops *ops) {
    ops->use_tf32 = use_tf32;
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm;
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->run = run;
}
