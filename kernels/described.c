/* The described device: memory that must not be accessed, and ops that only count. An op counts its bytes, with every
 * operand crossing memory once, and its arithmetic.
 *
 * The model's own code runs on this device, so a model is priced by the ops that it really calls; a formula per layer
 * would have to be kept equal to that code by hand. Where times of ops were measured they count, else a roofline. */
#include "kernels/described.h"

#include "core/size.h"
#include "kernels/ref/ref.h"
#include "kernels/tiling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct described {
    struct sw_device_description what;
    double counted_s; /* seconds of all ops so far */
};

/* Adds the time of an op: its arithmetic at a rate (0 flops at any), or its bytes. */
static sw_status count(struct sw_stream *stream, double flops, double flops_per_s, double bytes) {
    struct described *described = stream->device->backend;
    const double arithmetic_s = flops > 0.0 ? flops / flops_per_s : 0.0;
    described->counted_s += fmax(arithmetic_s, bytes / described->what.memory_bytes_per_s) + described->what.op_s;
    return SW_OK;
}

/* Adds the measured time of an op of this size. Returns false if nobody measured it. */
static bool count_measured(struct sw_stream *stream, const struct sw_op_size *size) {
    struct described *described = stream->device->backend;
    const double seconds = described->what.times == NULL ? 0.0 : sw_op_times_find(described->what.times, size);
    described->counted_s += seconds;
    return seconds > 0.0;
}

double sw_device_counted_s(const struct sw_device *device) {
    return ((const struct described *)device->backend)->counted_s;
}

/* The host side's memory is real. The device's has addresses, but must not be touched. */
static sw_status open_memory(struct sw_memory *memory) {
    const int protection = memory->side == SW_MEMORY_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    memory->base = mmap(NULL, (size_t)memory->bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory->base != MAP_FAILED)
        return SW_OK;
    memory->base = NULL;
    return sw_fail(SW_ERR_NOMEM, "%s: no addresses for %lld bytes: %s", memory->name, (long long)memory->bytes,
                   strerror(errno));
}

static void close_memory(struct sw_memory *memory) {
    munmap(memory->base, (size_t)memory->bytes);
}

/* Copies over the link are ops of lanes of their own, which the simulator prices. */
static sw_status cross_link(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    (void)stream;
    (void)to;
    (void)from;
    (void)bytes;
    return SW_OK;
}

static sw_status copy_on_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    (void)to;
    (void)from;
    if (count_measured(stream, &(struct sw_op_size){.op = SW_TIMED_COPY, .work = (double)bytes}))
        return SW_OK;
    return count(stream, 0.0, 1.0, 2.0 * (double)bytes);
}

static sw_status zero(struct sw_stream *stream, void *to, int64_t bytes) {
    (void)to;
    if (count_measured(stream, &(struct sw_op_size){.op = SW_TIMED_ZERO, .work = (double)bytes}))
        return SW_OK;
    return count(stream, 0.0, 1.0, (double)bytes);
}

static const struct sw_device_description *description_of(const struct sw_stream *stream) {
    return &((const struct described *)stream->device->backend)->what;
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    entry->scratch_bytes = SW_GPU_GEMM_SCRATCH_BYTES;
    return SW_OK;
}

static void use_tf32(struct sw_device *device) {
    struct described *described = device->backend;
    described->what.product_flops_per_s[SW_F32] = described->what.tf32_flops_per_s;
}

static sw_status check_fp8(struct sw_device *device) {
    const struct described *described = device->backend;
    if (described->what.fp8_flops_per_s > 0.0)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "--precision fp8 needs products in 8 bits, which GPUs have from compute capability 8.9 on, and the "
                   "description of %s has no fp8_flops_per_s; give --precision bf16",
                   described->what.name);
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    (void)entry;
}

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    (void)a, (void)b, (void)bias, (void)c, (void)scratch;
    const struct sw_gemm *s = &entry->shape;
    const struct sw_op_size size = sw_op_size_of_product(s);
    if (count_measured(stream, &size))
        return SW_OK;
    const double m = (double)s->m, n = (double)s->n, k = (double)s->k;
    const double out_passes = s->accumulate || addend != NULL ? 2.0 : 1.0;
    const struct sw_device_description *what = description_of(stream);
    const double in = (m * k + k * n) * (double)sw_dtype_bytes(s->in);
    double bytes = in + out_passes * m * n * (double)sw_dtype_bytes(s->out), rate = what->product_flops_per_s[s->in];
    if (s->a_as != SW_FP8_NONE) {
        /* The operands are read twice and their codes written before the product. */
        SW_TRY(count(stream, 0.0, 1.0, 2.0 * in + m * k + k * n));
        bytes += m * k + k * n - in;
        rate = what->fp8_flops_per_s;
    }
    return count(stream, 2.0 * m * n * k, rate, bytes);
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    (void)device, (void)type;
    return sw_attention_parted_bytes(shape);
}

/* Returns how many keys the queries of a sequence see in total, ignoring documents. */
static double pairs_of(const struct sw_attention *s) {
    const double seq = (double)s->seq, all = (double)(s->past + s->seq);
    const double causal = seq * (double)s->past + seq * (seq + 1.0) / 2.0;
    if (s->window == 0 || s->window >= s->past + s->seq)
        return causal;
    const double unseen = all - (double)s->window;
    const double before = s->past > s->window ? (double)(s->past - s->window) : 0.0;
    return causal - unseen * (unseen + 1.0) / 2.0 + before * (before + 1.0) / 2.0;
}

/* Returns the flops of `products` products of each query with the keys it sees. A tile of queries is multiplied by
 * whole tiles of keys, so the mask's edge costs half a tile per query. */
static double attention_flops(const struct sw_attention *s, double tile_rows, double products) {
    const double pairs = pairs_of(s) + (double)s->seq * tile_rows / 2.0;
    return products * 2.0 * (double)(s->batch * s->heads * s->head_dim) * pairs;
}

static sw_status run(struct sw_stream *stream, sw_device_op op, const void *args) {
    const struct sw_device_description *what = description_of(stream);
    const struct sw_op_size size = sw_op_size_of(op, args);
    if (count_measured(stream, &size))
        return SW_OK;
    const double bytes = sw_device_op_row(op)->check(args), tile_rows = (double)what->attention_tile_rows;
    if (op == SW_DEVICE_ATTENTION_FORWARD) {
        const struct sw_attention_forward *forward = args;
        const double rate = fmin(what->product_flops_per_s[forward->type], what->attention_forward_flops_per_s);
        return count(stream, attention_flops(forward->shape, tile_rows, 2.0), rate, bytes);
    }
    if (op == SW_DEVICE_ATTENTION_BACKWARD) {
        const struct sw_attention_backward *backward = args;
        const double rate = fmin(what->product_flops_per_s[backward->type], what->attention_backward_flops_per_s);
        return count(stream, attention_flops(backward->shape, tile_rows, 5.0), rate, bytes);
    }
    return count(stream, 0.0, 1.0, bytes);
}

static void close_described(struct sw_device *device) {
    free(device->backend);
}

static void fill_table(struct sw_device_ops *ops) {
    sw_ref_add_memory(ops);
    ops->close = close_described;
    ops->open_memory = open_memory;
    ops->close_memory = close_memory;
    ops->copy_to_device = cross_link;
    ops->copy_to_host = cross_link;
    ops->copy_on_device = copy_on_device;
    ops->zero = zero;
    ops->use_tf32 = use_tf32;
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm;
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->run = run;
}

sw_status sw_device_open_described(const struct sw_device_description *description, struct sw_device **out) {
    struct sw_device *device = calloc(1, sizeof *device);
    struct described *described = calloc(1, sizeof *described);
    *out = NULL;
    if (device == NULL || described == NULL) {
        free(device);
        free(described);
        return sw_fail(SW_ERR_NOMEM, "no memory for the described device");
    }
    described->what = *description;
    device->backend = described;
    fill_table(&device->ops);
    if (!description->host_memory) /* a CPU multiplies the values of the codes */
        device->ops.check_fp8 = check_fp8;
    device->info = (struct sw_device_info){.name = "described",
                                           .isa = "",
                                           .model = described->what.name,
                                           .bf16_fast = true,
                                           .described = true,
                                           .asynchronous = true,
                                           .host_memory = description->host_memory,
                                           .memory_bytes = description->memory_bytes};
    *out = device;
    return SW_OK;
}
