/* The described device: memory that must not be accessed, and ops that only count. An op counts its bytes, with every
 * operand crossing memory once, and its arithmetic.
 *
 * The model's own code runs on this device, so a model is priced by the ops that it really calls; a formula per layer
 * would have to be kept equal to that code by hand. Where times of ops were measured they count, else a roofline. */
#include "kernels/described.h"

#include "core/clock.h"
#include "core/size.h"
#include "kernels/device_ops.h"
#include "kernels/ref/ref.h"
#include "kernels/tiling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The table of measured op times, and the functions that a device runs instead of its own while its ops are timed. */

enum { FIRST_ROWS = 64, MOST_SAMPLES = 60, NEAREST = 4 };

/* The distance between products whose operands are stored differently, in logarithms of a side. */
#define OTHER_KIND 2.0

struct row {
    struct sw_op_time time;
    double sample[MOST_SAMPLES];
    int samples;
    bool settled; /* time.seconds is the median of the samples */
};

struct sw_op_times {
    struct row *row;
    int64_t count, capacity;
};

const char *sw_timed_op_name(int op) {
    static const char *const others[] = {"product", "copy", "zero"};
    return op < SW_DEVICE_OPS ? sw_device_op_row((sw_device_op)op)->name : others[op - SW_DEVICE_OPS];
}

int sw_timed_op_named(const char *name) {
    for (int op = 0; name != NULL && op < SW_TIMED_OPS; op++)
        if (strcmp(sw_timed_op_name(op), name) == 0)
            return op;
    return -1;
}

struct sw_op_size sw_op_size_of_product(const struct sw_gemm *shape) {
    return (struct sw_op_size){.op = SW_TIMED_PRODUCT,
                               .kind = shape->transpose_a | shape->transpose_b << 1 | shape->accumulate << 2 |
                                       (shape->out != shape->in) << 3,
                               .m = shape->m,
                               .n = shape->n,
                               .k = shape->k,
                               .work = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k};
}

/* Returns the flops of attention over the pairs that the causal mask and the window leave. */
static double attention_work(const struct sw_attention *shape, double products) {
    const double seq = (double)shape->seq, past = (double)shape->past;
    const double window = shape->window > 0 ? (double)shape->window : seq + past;
    const double pairs = fmin(seq * past + seq * (seq + 1.0) / 2.0, seq * window);
    return products * 2.0 * (double)(shape->batch * shape->heads * shape->head_dim) * pairs;
}

static struct sw_op_size size_of_attention(sw_device_op op, const struct sw_attention *shape, double products) {
    return (struct sw_op_size){.op = (int)op,
                               .m = shape->head_dim,
                               .n = shape->past + shape->seq,
                               .k = shape->window,
                               .work = attention_work(shape, products)};
}

/* Returns the flops of a grouped product with as many rows as it is priced for. */
static double grouped_flops(const struct sw_grouped_gemm *shape) {
    return 2.0 * (double)sw_priced_rows(shape) * (double)shape->n * (double)shape->k;
}

/* Its speed depends on the rows of an expert, so these are its first side. */
static struct sw_op_size size_of_grouped(const struct sw_grouped_gemm *shape) {
    return (struct sw_op_size){.op = SW_DEVICE_GROUPED_GEMM,
                               .kind = shape->weight_gradient | shape->transpose_b << 1 | shape->accumulate << 2 |
                                       (shape->out != shape->in) << 3,
                               .m = sw_div_up(sw_priced_rows(shape), shape->experts),
                               .n = shape->n,
                               .k = shape->k,
                               .work = fmax(1.0, grouped_flops(shape))};
}

static struct sw_op_size op_size_of(sw_device_op op, const void *args) {
    const struct sw_attention_forward *forward = args;
    const struct sw_attention_backward *backward = args;
    if (op == SW_DEVICE_ATTENTION_FORWARD)
        return size_of_attention(op, forward->shape, 2.0);
    if (op == SW_DEVICE_ATTENTION_BACKWARD)
        return size_of_attention(op, backward->shape, 5.0);
    if (op == SW_DEVICE_GROUPED_GEMM)
        return size_of_grouped(((const struct sw_grouped_product *)args)->shape);
    return (struct sw_op_size){.op = (int)op, .work = fmax(1.0, sw_device_op_row(op)->check(args))};
}

sw_status sw_op_times_create(struct sw_op_times **out) {
    *out = calloc(1, sizeof **out);
    return *out == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for the times of ops") : SW_OK;
}

void sw_op_times_destroy(struct sw_op_times *times) {
    if (times != NULL)
        free(times->row);
    free(times);
}

static bool same_size(const struct sw_op_size *a, const struct sw_op_size *b) {
    return a->op == b->op && a->kind == b->kind && a->m == b->m && a->n == b->n && a->k == b->k && a->work == b->work;
}

static struct row *find_row(const struct sw_op_times *times, const struct sw_op_size *size) {
    for (int64_t i = 0; i < times->count; i++)
        if (same_size(&times->row[i].time.size, size))
            return &times->row[i];
    return NULL;
}

static sw_status add_row(struct sw_op_times *times, const struct sw_op_size *size, struct row **out) {
    if (times->count == times->capacity) {
        const int64_t capacity = times->capacity == 0 ? FIRST_ROWS : 2 * times->capacity;
        struct row *grown = realloc(times->row, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the times of ops");
        times->row = grown;
        times->capacity = capacity;
    }
    *out = &times->row[times->count++];
    **out = (struct row){.time.size = *size};
    return SW_OK;
}

sw_status sw_op_times_add(struct sw_op_times *times, const struct sw_op_size *size, double seconds) {
    struct row *row = find_row(times, size);
    if (row == NULL)
        SW_TRY(add_row(times, size, &row));
    if (row->samples < MOST_SAMPLES)
        row->sample[row->samples++] = seconds;
    row->settled = false;
    return SW_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const struct sw_op_time *settle(struct row *row) {
    if (!row->settled) {
        qsort(row->sample, (size_t)row->samples, sizeof row->sample[0], by_value);
        row->time.seconds = row->sample[(row->samples - 1) / 2];
        row->settled = true;
    }
    return &row->time;
}

int64_t sw_op_times_count(const struct sw_op_times *times) {
    return times->count;
}

const struct sw_op_time *sw_op_times_at(struct sw_op_times *times, int64_t row) {
    return settle(&times->row[row]);
}

/* Returns the difference of two sides' logarithms. Both sides are 0 if an op has none. */
static double side_distance(int64_t a, int64_t b) {
    return a == b ? 0.0 : fabs(log((double)(a > 0 ? a : 1) / (double)(b > 0 ? b : 1)));
}

static double distance(const struct sw_op_size *a, const struct sw_op_size *b) {
    const double sides = side_distance(a->m, b->m) + side_distance(a->n, b->n) + side_distance(a->k, b->k);
    return sides + fabs(log(a->work / b->work)) + (a->kind == b->kind ? 0.0 : OTHER_KIND);
}

/* Keeps the nearest rows, nearest first. */
struct near {
    const struct row *row[NEAREST];
    double distance[NEAREST];
    int count;
};

static void keep_near(struct near *near, const struct row *row, double distance) {
    int at = near->count < NEAREST ? near->count++ : NEAREST;
    for (; at > 0 && near->distance[at - 1] > distance; at--)
        if (at < NEAREST) {
            near->row[at] = near->row[at - 1];
            near->distance[at] = near->distance[at - 1];
        }
    if (at < NEAREST) {
        near->row[at] = row;
        near->distance[at] = distance;
    }
}

/* The mean of the nearest rates' logarithms, weighted by the inverse fourth powers of their distances (Shepard, 1968).
 */
static double rate_near(const struct near *near) {
    double weights = 0.0, sum = 0.0;
    for (int i = 0; i < near->count; i++) {
        const struct sw_op_time *time = &near->row[i]->time;
        const double weight = pow(fmax(1e-6, near->distance[i]), -4.0);
        weights += weight;
        sum += weight * log(time->size.work / time->seconds);
    }
    return exp(sum / weights);
}

double sw_op_times_find(struct sw_op_times *times, const struct sw_op_size *size) {
    struct near near = {.count = 0};
    for (int64_t i = 0; i < times->count; i++) {
        struct row *row = &times->row[i];
        if (row->time.size.op != size->op)
            continue;
        if (settle(row)->seconds > 0.0)
            keep_near(&near, row, distance(&row->time.size, size));
    }
    return near.count == 0 ? 0.0 : size->work / rate_near(&near);
}

double sw_op_times_best_rate(struct sw_op_times *times, int op) {
    double best = 0.0;
    for (int64_t i = 0; i < times->count; i++) {
        const struct sw_op_time *time = settle(&times->row[i]);
        if (time->size.op == op && time->seconds > 0.0)
            best = fmax(best, time->size.work / time->seconds);
    }
    return best;
}

/* Ends the timing of one op, which began at start_ns. */
static sw_status end_op(struct sw_stream *stream, const struct sw_op_size *size, int64_t start_ns, sw_status status) {
    SW_TRY(status);
    SW_TRY(stream->device->untimed.synchronize(stream));
    return sw_op_times_add(stream->device->times, size, (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9);
}

static sw_status timed_run(struct sw_stream *stream, sw_device_op op, const void *args) {
    const struct sw_op_size size = op_size_of(op, args);
    const int64_t start_ns = sw_now_ns();
    return end_op(stream, &size, start_ns, stream->device->untimed.run(stream, op, args));
}

static sw_status timed_gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                            const void *bias, const void *addend, void *c, void *scratch) {
    const struct sw_op_size size = sw_op_size_of_product(&entry->shape);
    const int64_t start_ns = sw_now_ns();
    return end_op(stream, &size, start_ns, stream->device->untimed.gemm(stream, entry, a, b, bias, addend, c, scratch));
}

static sw_status timed_copy(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    const struct sw_op_size size = {.op = SW_TIMED_COPY, .work = (double)bytes};
    const int64_t start_ns = sw_now_ns();
    return end_op(stream, &size, start_ns, stream->device->untimed.copy_on_device(stream, to, from, bytes));
}

static sw_status timed_zero(struct sw_stream *stream, void *to, int64_t bytes) {
    const struct sw_op_size size = {.op = SW_TIMED_ZERO, .work = (double)bytes};
    const int64_t start_ns = sw_now_ns();
    return end_op(stream, &size, start_ns, stream->device->untimed.zero(stream, to, bytes));
}

void sw_device_time_ops(struct sw_device *device, struct sw_op_times *times) {
    if (device->times != NULL)
        device->ops = device->untimed;
    device->times = times;
    if (times == NULL)
        return;
    device->untimed = device->ops;
    device->ops.run = timed_run;
    device->ops.gemm = timed_gemm;
    device->ops.copy_on_device = timed_copy;
    device->ops.zero = timed_zero;
}

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

static sw_status prepare_grouped_gemm(struct sw_device *device, const struct sw_grouped_gemm *shape,
                                      int64_t *out_scratch_bytes) {
    (void)device, (void)shape;
    *out_scratch_bytes = 0;
    return SW_OK;
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
    const struct sw_op_size size = op_size_of(op, args);
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
    if (op == SW_DEVICE_GROUPED_GEMM) {
        const struct sw_grouped_gemm *shape = ((const struct sw_grouped_product *)args)->shape;
        return count(stream, grouped_flops(shape), what->product_flops_per_s[shape->in], bytes);
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
    ops->prepare_grouped_gemm = prepare_grouped_gemm;
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
