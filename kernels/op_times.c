/* The table of measured op times, and the functions that a device runs instead of its own while its ops are timed. */
#include "kernels/op_times.h"

#include "core/clock.h"
#include "core/size.h"
#include "kernels/device_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
static double attention_flops(const struct sw_attention *shape, double products) {
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
                               .work = attention_flops(shape, products)};
}

struct sw_op_size sw_op_size_of(sw_device_op op, const void *args) {
    const struct sw_attention_forward *forward = args;
    const struct sw_attention_backward *backward = args;
    if (op == SW_DEVICE_ATTENTION_FORWARD)
        return size_of_attention(op, forward->shape, 2.0);
    if (op == SW_DEVICE_ATTENTION_BACKWARD)
        return size_of_attention(op, backward->shape, 5.0);
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
    const struct sw_op_size size = sw_op_size_of(op, args);
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
