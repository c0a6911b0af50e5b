/* Attention with biases by distance (ALiBi), whose queries, keys and values lie in one row, head by head: the reference
 * against sums in double, and every device against the reference. */
#include "tests/kernels/support.h"

#include "core/size.h"

#include <math.h>
#include <string.h>

/* Batch, keys before, queries, heads, head dimension; heads of the model, and the first of these that the call has;
 * tokens of each document, 0: no documents. */
struct shape {
    int64_t batch, past, seq, heads, dim, all_heads, first_head, document;
};
static const struct shape shapes[] = {
    {1, 0, 1, 1, 8, 1, 0, 0},        {2, 0, 150, 4, 64, 4, 0, 0},  {1, 0, 70, 3, 15, 12, 7, 0},
    {1, 0, 130, 2, 128, 112, 62, 0}, {2, 0, 200, 2, 24, 6, 3, 60}, {1, 0, 40, 2, 200, 32, 30, 0},
    {1, 100, 1, 3, 17, 3, 0, 0},     {1, 65, 70, 2, 64, 8, 2, 0},  {2, 300, 1, 4, 64, 16, 12, 0}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], PARTS = 3 };

static struct sw_attention attention_of(const struct shape *s) {
    const int64_t row = PARTS * s->heads * s->dim;
    return (struct sw_attention){.batch = s->batch,
                                 .seq = s->seq,
                                 .past = s->past,
                                 .heads = s->heads,
                                 .kv_heads = s->heads,
                                 .head_dim = s->dim,
                                 .q_stride = row,
                                 .k_stride = row,
                                 .v_stride = row,
                                 .o_stride = s->heads * s->dim,
                                 .head_stride = PARTS * s->dim,
                                 .alibi_heads = s->all_heads,
                                 .alibi_first = s->first_head,
                                 .scale = 1.0f / sqrtf((float)s->dim)};
}

/* Rows of queries, keys and values, as many as there are keys; the queries are those of the last rows of a sequence. */
struct tensors {
    struct buffer qkv, o, d_o, lse, d_qkv, scratch, starts, queries;
};

static struct buffer document_starts(const struct shape *s) {
    struct buffer starts = buffer_make(s->batch * s->seq * 4);
    for (int64_t i = 0; s->document > 0 && i < s->batch * s->seq; i++)
        ((int32_t *)starts.data)[i] = (int32_t)(i % s->seq / s->document * s->document);
    return starts;
}

static struct tensors make_tensors(const struct sw_device *device, const struct shape *s, sw_dtype type) {
    const struct sw_attention a = attention_of(s);
    const int64_t size = sw_dtype_bytes(type), rows = s->batch * s->seq, keys = s->batch * (s->past + s->seq);
    struct tensors t = {.qkv = buffer_random(type, keys * a.q_stride, 1, 1.5f),
                        .d_o = buffer_random(type, rows * a.o_stride, 2, 1.0f),
                        .o = buffer_make(rows * a.o_stride * size),
                        .lse = buffer_make(rows * s->heads * 4),
                        .d_qkv = buffer_make(rows * a.q_stride * size),
                        .scratch = buffer_make(sw_attention_scratch_bytes(device, &a, type)),
                        .starts = document_starts(s),
                        .queries = buffer_make(rows * a.q_stride * size)};
    for (int64_t b = 0; b < s->batch; b++)
        memcpy((char *)t.queries.data + b * s->seq * a.q_stride * size,
               (char *)t.qkv.data + (b * (s->past + s->seq) + s->past) * a.q_stride * size,
               (size_t)(s->seq * a.q_stride * size));
    return t;
}

static void free_tensors(struct tensors *t) {
    struct buffer *all[] = {&t->qkv, &t->o, &t->d_o, &t->lse, &t->d_qkv, &t->scratch, &t->starts, &t->queries};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void run(struct sw_stream *stream, const struct shape *s, sw_dtype type, struct tensors *t) {
    struct sw_attention a = attention_of(s);
    const int64_t part = s->dim * sw_dtype_bytes(type);
    char *qkv = t->qkv.data, *d_qkv = t->d_qkv.data;
    if (s->document > 0)
        a.document_start = t->starts.data;
    assert_ok(sw_attention_forward(stream, type, &a, t->queries.data, qkv + part, qkv + 2 * part, t->o.data,
                                   t->lse.data, t->scratch.data));
    if (s->past == 0)
        assert_ok(sw_attention_backward(stream, type, &a, qkv, qkv + part, qkv + 2 * part, t->o.data, t->d_o.data,
                                        t->lse.data, d_qkv, d_qkv + part, d_qkv + 2 * part, t->scratch.data));
}

static void compare(struct pair *pair, const struct shape *s, sw_dtype type) {
    struct tensors got = make_tensors(pair->device, s, type), want = make_tensors(pair->ref_device, s, type);
    const float tolerance = type == SW_F32 ? 3e-5f : type == SW_BF16 ? 3e-2f : 4e-3f;
    const int64_t rows = s->batch * s->seq, wide = s->heads * s->dim;
    run(pair->stream, s, type, &got);
    run(pair->ref, s, type, &want);
    assert_close("log-sum-exp", pair, SW_F32, rows * s->heads, got.lse.data, want.lse.data, 1e-5f, 1e-5f);
    assert_close("o", pair, type, rows * wide, got.o.data, want.o.data, tolerance, tolerance);
    if (s->past == 0)
        assert_close("gradients", pair, type, rows * PARTS * wide, got.d_qkv.data, want.d_qkv.data, tolerance,
                     tolerance);
    free_tensors(&got);
    free_tensors(&want);
}

static void compare_all(struct pair *pair) {
    const bool emulated = device_is_emulated(pair->device);
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < TEST_TYPES; t++)
            if (!emulated || t == s % TEST_TYPES)
                compare(pair, &shapes[s], test_types[t]);
}

static void against_reference(void **state) {
    (void)state;
    for_each_attention(compare_all);
}

/* The slopes that the paper names for 8 heads, and those of 12: all of 8, and every second of 16. */
static void slopes(void **state) {
    (void)state;
    for (int head = 0; head < 8; head++)
        assert_true(sw_alibi_slope(8, head) == ldexpf(1.0f, -1 - head));
    for (int head = 0; head < 12; head++)
        assert_true(sw_alibi_slope(12, head) ==
                    (head < 8 ? sw_alibi_slope(8, head) : sw_alibi_slope(16, 2 * (head - 8))));
    assert_true(sw_alibi_slope(1, 0) == 1.0f / 256.0f);
}

/* Small enough for difference quotients, in double and with whole scores; three heads, so that one has a slope of the
 * second kind. */
enum { SEQ = 6, HEADS = 3, DIM = 2, ROW = PARTS * HEADS * DIM };
static const double SLOPES[HEADS] = {1.0 / 16.0, 1.0 / 256.0, 1.0 / 4.0};

static double weighted(const double *qkv, const double *w) {
    double total = 0.0;
    for (int t = 0; t < SEQ; t++)
        for (int h = 0; h < HEADS; h++) {
            const double *q = qkv + t * ROW + h * PARTS * DIM;
            double sum = 0.0, value = 0.0;
            for (int j = 0; j <= t; j++) {
                const double *k = qkv + j * ROW + (h * PARTS + 1) * DIM, *v = k + DIM;
                const double p = exp((q[0] * k[0] + q[1] * k[1]) / sqrt(DIM) - SLOPES[h] * (t - j));
                sum += p;
                value += p * (v[0] * w[(t * HEADS + h) * DIM] + v[1] * w[(t * HEADS + h) * DIM + 1]);
            }
            total += value / sum;
        }
    return total;
}

static void gradients_of_reference(void **state) {
    (void)state;
    const struct shape shape = {1, 0, SEQ, HEADS, DIM, HEADS, 0, 0};
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct tensors t = make_tensors(device, &shape, SW_F32);
    double qkv[SEQ * ROW], w[SEQ * HEADS * DIM], sum = 0.0;
    const double step = 1e-5;
    run(stream, &shape, SW_F32, &t);
    for (int i = 0; i < SEQ * ROW; i++)
        qkv[i] = ((float *)t.qkv.data)[i];
    for (int i = 0; i < SEQ * HEADS * DIM; i++) {
        w[i] = ((float *)t.d_o.data)[i];
        sum += w[i] * ((float *)t.o.data)[i];
    }
    assert_near("o", 0, sum, weighted(qkv, w), 1e-5);
    for (int i = 0; i < SEQ * ROW; i++) {
        const double middle = qkv[i];
        qkv[i] = middle + step;
        const double above = weighted(qkv, w);
        qkv[i] = middle - step;
        const double below = weighted(qkv, w);
        qkv[i] = middle;
        assert_near("gradient", i, ((float *)t.d_qkv.data)[i], (above - below) / (2.0 * step), 1e-5);
    }
    free_tensors(&t);
    sw_stream_close(stream);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(slopes), cmocka_unit_test(gradients_of_reference),
                                       cmocka_unit_test(against_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
