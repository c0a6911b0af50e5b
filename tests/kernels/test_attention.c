/* Attention against the reference, the reference against difference quotients, and bits against the threads. */
#include "core/rng.h"
#include "kernels/tiling.h"
#include "tests/kernels/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Batch, sequence, heads, key heads, head dimension; `gap` extra columns between rows; window; documents of up to
 * `document` tokens, 0: none. */
struct shape {
    int64_t batch, seq, heads, kv_heads, dim, gap, window, document;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 0, 0, 0},        {2, 17, 3, 3, 16, 0, 0, 0},    {1, 63, 2, 1, 15, 5, 0, 0},
    {1, 64, 4, 2, 17, 0, 0, 0},      {1, 65, 2, 2, 63, 3, 0, 0},    {1, 129, 2, 2, 64, 64, 0, 0},
    {2, 80, 6, 2, 65, 0, 0, 0},      {1, 200, 2, 1, 128, 0, 0, 0},  {1, 70, 1, 1, 256, 0, 0, 0},
    {2, 150, 2, 1, 16, 3, 1, 0},     {1, 200, 4, 2, 24, 0, 64, 0},  {1, 230, 2, 2, 32, 0, 65, 0},
    {1, 300, 2, 1, 16, 5, 100, 0},   {1, 70, 2, 1, 8, 0, 70, 0},    {2, 70, 2, 1, 16, 0, 0, 1},
    {3, 150, 4, 2, 24, 3, 0, 20},    {2, 400, 2, 2, 16, 0, 0, 300}, {2, 300, 2, 1, 16, 5, 40, 150},
    {1, 260, 7, 1, 80, 8, 0, 0},     {2, 140, 6, 2, 96, 0, 130, 0}, {1, 390, 1, 1, 128, 0, 0, 150},
    {1, 270, 4, 2, 128, 8, 100, 90}, {3, 129, 3, 1, 64, 0, 0, 0},   {1, 128, 5, 5, 72, 0, 128, 0},
    {256, 2, 3, 1, 3, 1, 0, 0},      {512, 2, 2, 1, 8, 0, 0, 0}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Returns the first token of the document of each token; each sequence has its own documents. */
static struct buffer document_starts(const struct shape *s) {
    struct buffer starts = buffer_make(s->batch * s->seq * 4);
    int32_t *start = starts.data;
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t t = 0, end = 0, first = 0; t < s->seq; t++) {
            if (t == end) {
                first = t;
                end += 1 + sw_rng(test_seed(), 9, (uint64_t)(b * s->seq + t)).word[0] % s->document;
            }
            start[b * s->seq + t] = (int32_t)first;
        }
    }
    return starts;
}

static struct sw_attention attention_of(const struct shape *s) {
    return (struct sw_attention){.batch = s->batch,
                                 .seq = s->seq,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->dim,
                                 .q_stride = s->heads * s->dim + s->gap,
                                 .k_stride = s->kv_heads * s->dim + 2 * s->gap,
                                 .v_stride = s->kv_heads * s->dim + 5 * s->gap,
                                 .window = s->window,
                                 .o_stride = s->heads * s->dim + 3 * s->gap,
                                 .scale = 1.0f / sqrtf((float)s->dim)};
}

/* The tensors of one device; rows are exactly as long as strides say, so guards see the last row's end. */
struct tensors {
    struct buffer q, k, v, o, d_o, lse, dq, dk, dv, scratch;
};

static int64_t elems(const struct sw_attention *a, int64_t stride, int64_t width) {
    return (a->batch * a->seq - 1) * stride + width;
}

static struct tensors make_tensors(const struct sw_device *device, const struct sw_attention *a, sw_dtype type) {
    const int64_t size = sw_dtype_bytes(type), wide = a->heads * a->head_dim, narrow = a->kv_heads * a->head_dim;
    const int64_t q = elems(a, a->q_stride, wide), o = elems(a, a->o_stride, wide);
    const int64_t k = elems(a, a->k_stride, narrow), v = elems(a, a->v_stride, narrow);
    return (struct tensors){.q = buffer_random(type, q, 1, 1.5f),
                            .k = buffer_random(type, k, 2, 1.5f),
                            .v = buffer_random(type, v, 3, 1.0f),
                            .d_o = buffer_random(type, o, 4, 1.0f),
                            .o = buffer_make(o * size),
                            .dq = buffer_make(q * size),
                            .dk = buffer_make(k * size),
                            .dv = buffer_make(v * size),
                            .lse = buffer_make(a->batch * a->heads * a->seq * 4),
                            .scratch = buffer_make(sw_attention_scratch_bytes(device, a, type))};
}

static void free_tensors(struct tensors *t) {
    struct buffer *all[] = {&t->q, &t->k, &t->v, &t->o, &t->d_o, &t->lse, &t->dq, &t->dk, &t->dv, &t->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void run(struct sw_stream *stream, const struct sw_attention *a, sw_dtype type, struct tensors *t) {
    assert_ok(sw_attention_forward(stream, type, a, t->q.data, t->k.data, t->v.data, t->o.data, t->lse.data,
                                   t->scratch.data));
    assert_ok(sw_attention_backward(stream, type, a, t->q.data, t->k.data, t->v.data, t->o.data, t->d_o.data,
                                    t->lse.data, t->dq.data, t->dk.data, t->dv.data, t->scratch.data));
}

/* Rows only; what lies between them must still be the NaN that was there. */
static void close_rows(const char *what, const struct pair *pair, sw_dtype type, const struct sw_attention *a,
                       int64_t stride, int64_t width, const struct buffer *got, const struct buffer *want,
                       float tolerance) {
    const int64_t size = sw_dtype_bytes(type);
    for (int64_t row = 0; row < a->batch * a->seq; row++) {
        const char *x = (const char *)got->data + row * stride * size,
                   *y = (const char *)want->data + row * stride * size;
        assert_close(what, pair, type, width, x, y, tolerance, tolerance);
        for (int64_t i = width; i < stride && row + 1 < a->batch * a->seq; i++)
            assert_true(isnan(element(type, x, i)));
    }
}

/* CUDA's matrix instructions take probabilities in the tensors' type. */
static float rounding_of_probabilities(const struct pair *pair, sw_dtype type) {
    const bool rounds = strncmp(sw_device_info(pair->device).name, "cuda", 4) == 0;
    return !rounds || type == SW_F32 ? 3e-5f : type == SW_BF16 ? 0x1p-8f : 0x1p-11f;
}

/* The tensors of the reference, which computes each shape and type once, for all devices. */
static struct tensors references[SHAPES][TEST_TYPES];

static const struct tensors *reference_of(struct pair *pair, size_t s, int t, const struct sw_attention *a) {
    struct tensors *reference = &references[s][t];
    if (reference->q.data == NULL) {
        *reference = make_tensors(pair->ref_device, a, test_types[t]);
        run(pair->ref, a, test_types[t], reference);
    }
    return reference;
}

static void free_references(void) {
    for (size_t s = 0; s < SHAPES; s++)
        for (int t = 0; t < TEST_TYPES; t++)
            if (references[s][t].q.data != NULL)
                free_tensors(&references[s][t]);
}

static void compare(struct pair *pair, size_t s, int t) {
    const struct shape *shape = &shapes[s];
    const sw_dtype type = test_types[t];
    struct sw_attention a = attention_of(shape);
    struct buffer starts = shape->document > 0 ? document_starts(shape) : buffer_make(0);
    if (shape->document > 0)
        a.document_start = starts.data;
    struct tensors got = make_tensors(pair->device, &a, type);
    const struct tensors *want = reference_of(pair, s, t, &a);
    run(pair->stream, &a, type, &got);
    /* In 16 bits o is rounded before the backward pass reads it, so o·d_o differs by roundings of o. */
    const float tolerance = type == SW_F32 ? 3e-5f : type == SW_BF16 ? 3e-2f : 4e-3f;
    const int64_t wide = a.heads * a.head_dim, narrow = a.kv_heads * a.head_dim;
    assert_close("log-sum-exp", pair, SW_F32, a.batch * a.heads * a.seq, got.lse.data, want->lse.data, 1e-5f, 1e-5f);
    close_rows("o", pair, type, &a, a.o_stride, wide, &got.o, &want->o, rounding_of_probabilities(pair, type));
    close_rows("dq", pair, type, &a, a.q_stride, wide, &got.dq, &want->dq, tolerance);
    close_rows("dk", pair, type, &a, a.k_stride, narrow, &got.dk, &want->dk, tolerance);
    close_rows("dv", pair, type, &a, a.v_stride, narrow, &got.dv, &want->dv, tolerance);
    free_tensors(&got);
    buffer_free(&starts);
}

/* An emulated GPU takes minutes for all: there each shape has one of the types in turn, which reach each kernel many
 * times, since types differ in how an element is read and written alone. */
static void compare_all(struct pair *pair) {
    const bool emulated = device_is_emulated(pair->device);
    for (size_t s = 0; s < SHAPES; s++)
        for (int t = 0; t < TEST_TYPES; t++)
            if (!emulated || t == (int)s % TEST_TYPES)
                compare(pair, s, t);
}

static void against_reference(void **state) {
    (void)state;
    for_each_attention(compare_all);
    free_references();
}

/* Small enough for difference quotients, in double and with whole scores. */
enum { SEQ = 5, HEADS = 2, DIM = 3, WINDOW = 3, Q_ELEMS = SEQ * HEADS * DIM, KV_ELEMS = SEQ * DIM };
static const double SCALE = 0.6;

/* With documents, the second begins at the token 1, so that what a query sees is cut by it or by the window. */
static const int32_t TWO_DOCUMENTS[SEQ] = {0, 1, 1, 1, 1};

static int first_seen(const int32_t *documents, int t) {
    const int in_window = t < WINDOW ? 0 : t - WINDOW + 1, in_document = documents == NULL ? 0 : documents[t];
    return in_window > in_document ? in_window : in_document;
}

struct inputs {
    double q[Q_ELEMS], k[KV_ELEMS], v[KV_ELEMS], w[Q_ELEMS];
    const int32_t *documents;
};

static double weighted(const struct inputs *in) {
    const double *q = in->q, *k = in->k, *v = in->v, *w = in->w;
    double total = 0.0;
    for (int t = 0; t < SEQ; t++) {
        for (int h = 0; h < HEADS; h++) {
            const int first = first_seen(in->documents, t);
            double p[SEQ], sum = 0.0;
            for (int s = first; s <= t; s++) {
                double score = 0.0;
                for (int i = 0; i < DIM; i++)
                    score += q[(t * HEADS + h) * DIM + i] * k[s * DIM + i];
                p[s] = exp(SCALE * score);
                sum += p[s];
            }
            for (int s = first; s <= t; s++) {
                for (int i = 0; i < DIM; i++)
                    total += p[s] / sum * v[s * DIM + i] * w[(t * HEADS + h) * DIM + i];
            }
        }
    }
    return total;
}

static double quotient(const struct inputs *in, double *at) {
    const double step = 1e-5, middle = *at;
    *at = middle + step;
    const double above = weighted(in);
    *at = middle - step;
    const double below = weighted(in);
    *at = middle;
    return (above - below) / (2.0 * step);
}

static void to_double(int64_t count, const struct buffer *from, double *to) {
    for (int64_t i = 0; i < count; i++)
        to[i] = ((float *)from->data)[i];
}

static void gradients_with(const int32_t *documents) {
    const struct sw_attention a = {.batch = 1,
                                   .seq = SEQ,
                                   .heads = HEADS,
                                   .kv_heads = 1,
                                   .head_dim = DIM,
                                   .q_stride = HEADS * DIM,
                                   .k_stride = DIM,
                                   .v_stride = DIM,
                                   .window = WINDOW,
                                   .o_stride = HEADS * DIM,
                                   .scale = (float)SCALE,
                                   .document_start = documents};
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct tensors t = make_tensors(device, &a, SW_F32);
    run(stream, &a, SW_F32, &t);
    struct inputs in = {.documents = documents};
    double o_w = 0.0;
    to_double(Q_ELEMS, &t.q, in.q);
    to_double(KV_ELEMS, &t.k, in.k);
    to_double(KV_ELEMS, &t.v, in.v);
    to_double(Q_ELEMS, &t.d_o, in.w);
    for (int i = 0; i < Q_ELEMS; i++)
        o_w += in.w[i] * ((float *)t.o.data)[i];
    assert_near("o", 0, o_w, weighted(&in), 1e-5);
    for (int i = 0; i < Q_ELEMS; i++)
        assert_near("dq", i, ((float *)t.dq.data)[i], quotient(&in, &in.q[i]), 1e-5);
    for (int i = 0; i < KV_ELEMS; i++) {
        assert_near("dk", i, ((float *)t.dk.data)[i], quotient(&in, &in.k[i]), 1e-5);
        assert_near("dv", i, ((float *)t.dv.data)[i], quotient(&in, &in.v[i]), 1e-5);
    }
    free_tensors(&t);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void gradients_of_reference(void **state) {
    (void)state;
    gradients_with(NULL);
    gradients_with(TWO_DOCUMENTS);
}

static void run_on(int threads, const struct sw_attention *a, sw_dtype type, struct tensors *t) {
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("cpu", threads, &device));
    assert_ok(sw_stream_open(device, &stream));
    *t = make_tensors(device, a, type);
    run(stream, a, type, t);
    sw_stream_close(stream);
    sw_device_close(device);
}

/* Threads decide who computes, never what: one key head for several threads, in strips of keys that the last block does
 * not fill, and as many as threads. */
static void same_bits_of(const struct shape *shape, sw_dtype type) {
    struct sw_attention a = attention_of(shape);
    struct buffer starts = shape->document > 0 ? document_starts(shape) : buffer_make(0);
    a.document_start = shape->document > 0 ? starts.data : NULL;
    struct tensors one, many;
    run_on(1, &a, type, &one);
    for (int threads = 2; threads <= 4; threads++) {
        run_on(threads, &a, type, &many);
        assert_memory_equal(one.o.data, many.o.data, (size_t)one.o.bytes);
        assert_memory_equal(one.dq.data, many.dq.data, (size_t)one.dq.bytes);
        assert_memory_equal(one.dk.data, many.dk.data, (size_t)one.dk.bytes);
        assert_memory_equal(one.dv.data, many.dv.data, (size_t)one.dv.bytes);
        free_tensors(&many);
    }
    free_tensors(&one);
    buffer_free(&starts);
}

static void same_bits_for_any_threads(void **state) {
    (void)state;
    const struct shape threaded[] = {
        {2, 150, 4, 2, 40, 0, 90, 70}, {1, 600, 4, 1, 24, 0, 0, 0}, {1, 600, 2, 1, 16, 8, 300, 0}};
    for (size_t s = 0; s < sizeof threaded / sizeof threaded[0]; s++) {
        for (int t = 0; t < TEST_TYPES; t++)
            same_bits_of(&threaded[s], test_types[t]);
    }
}

/* The rows [first, first + count) of a tensor, of the same strides. */
static void copy_rows(const struct buffer *from, int64_t first, int64_t count, int64_t width, struct buffer *to) {
    const int64_t bytes = width * (int64_t)sizeof(float);
    memcpy(to->data, (const char *)from->data + first * bytes, (size_t)(count * bytes));
}

/* A document in a sequence of others has the output and the gradients that it has alone. */
static void document_alone(struct pair *pair, const struct sw_attention *packed, const struct tensors *all,
                           int64_t first, int64_t count) {
    struct sw_attention a = *packed;
    a.seq = count;
    a.document_start = NULL;
    struct tensors t = make_tensors(pair->device, &a, SW_F32);
    copy_rows(&all->q, first, count, a.q_stride, &t.q);
    copy_rows(&all->k, first, count, a.k_stride, &t.k);
    copy_rows(&all->v, first, count, a.v_stride, &t.v);
    copy_rows(&all->d_o, first, count, a.o_stride, &t.d_o);
    run(pair->stream, &a, SW_F32, &t);
    const struct {
        const char *name;
        const struct buffer *got, *want;
        int64_t width;
    } same[] = {{"o", &all->o, &t.o, a.o_stride},
                {"dq", &all->dq, &t.dq, a.q_stride},
                {"dk", &all->dk, &t.dk, a.k_stride},
                {"dv", &all->dv, &t.dv, a.v_stride}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        assert_close(same[i].name, pair, SW_F32, count * same[i].width,
                     (const float *)same[i].got->data + first * same[i].width, same[i].want->data, 1e-5f, 1e-5f);
    free_tensors(&t);
}

static void documents_alone(struct pair *pair) {
    const struct shape shape = {1, 333, 2, 1, 16, 0, 90, 130};
    struct buffer starts = document_starts(&shape);
    struct sw_attention a = attention_of(&shape);
    a.document_start = starts.data;
    struct tensors all = make_tensors(pair->device, &a, SW_F32);
    run(pair->stream, &a, SW_F32, &all);
    for (int64_t first = 0, t = 1; t <= shape.seq; t++) {
        if (t == shape.seq || a.document_start[t] == t) {
            document_alone(pair, &a, &all, first, t - first);
            first = t;
        }
    }
    free_tensors(&all);
    buffer_free(&starts);
}

static void documents(void **state) {
    (void)state;
    for_each_device(documents_alone);
}

/* The b-th sequence of tensors that hold several. */
static void run_sequence(struct sw_stream *stream, const struct sw_attention *all, int64_t b, sw_dtype type,
                         struct tensors *t) {
    struct sw_attention a = *all;
    const int64_t size = sw_dtype_bytes(type) * b * a.seq, q = size * a.q_stride, o = size * a.o_stride;
    const int64_t k = size * a.k_stride, v = size * a.v_stride;
    float *lse = (float *)t->lse.data + b * a.heads * a.seq;
    a.batch = 1;
    assert_ok(sw_attention_forward(stream, type, &a, (char *)t->q.data + q, (char *)t->k.data + k,
                                   (char *)t->v.data + v, (char *)t->o.data + o, lse, t->scratch.data));
    assert_ok(sw_attention_backward(stream, type, &a, (char *)t->q.data + q, (char *)t->k.data + k,
                                    (char *)t->v.data + v, (char *)t->o.data + o, (char *)t->d_o.data + o, lse,
                                    (char *)t->dq.data + q, (char *)t->dk.data + k, (char *)t->dv.data + v,
                                    t->scratch.data));
}

/* A sequence has the same bits in every run and in whatever batch it comes. */
static void sequences_alone(struct pair *pair) {
    const struct shape shape = {3, 150, 2, 1, 64, 0, 0, 0};
    const struct sw_attention a = attention_of(&shape);
    struct tensors once = make_tensors(pair->device, &a, SW_BF16), again = make_tensors(pair->device, &a, SW_BF16);
    run(pair->stream, &a, SW_BF16, &once);
    for (int64_t b = 0; b < a.batch; b++)
        run_sequence(pair->stream, &a, b, SW_BF16, &again);
    assert_same_bits("log-sum-exp", pair, once.lse.bytes, again.lse.data, once.lse.data);
    assert_same_bits("o", pair, once.o.bytes, again.o.data, once.o.data);
    assert_same_bits("dq", pair, once.dq.bytes, again.dq.data, once.dq.data);
    assert_same_bits("dk", pair, once.dk.bytes, again.dk.data, once.dk.data);
    assert_same_bits("dv", pair, once.dv.bytes, again.dv.data, once.dv.data);
    free_tensors(&once);
    free_tensors(&again);
}

static void sequences(void **state) {
    (void)state;
    for_each_attention(sequences_alone);
}

/* Scores of some thousands: exponentials must not overflow, and one key takes all. */
static void large_scores(struct pair *pair) {
    const struct shape shape = {1, 70, 1, 1, 8, 0, 0, 0};
    struct sw_attention a = attention_of(&shape);
    a.scale = 300.0f;
    struct tensors got = make_tensors(pair->device, &a, SW_F32), want = make_tensors(pair->ref_device, &a, SW_F32);
    run(pair->stream, &a, SW_F32, &got);
    run(pair->ref, &a, SW_F32, &want);
    close_rows("o", pair, SW_F32, &a, a.o_stride, a.head_dim, &got.o, &want.o, 2e-2f);
    for (int64_t i = 0; i < a.seq * a.head_dim; i++)
        assert_true(isfinite(((float *)got.dq.data)[i]) && isfinite(((float *)got.dk.data)[i]));
    free_tensors(&got);
    free_tensors(&want);
}

static void large(void **state) {
    (void)state;
    for_each_device(large_scores);
}

/* Few parts where blocks are few, none where they are many; the scratch never depends on what a call hides. */
static void parts_of_shapes(void **state) {
    (void)state;
    struct sw_attention a = {.batch = 4, .seq = 1024, .heads = 28, .kv_heads = 4, .head_dim = 128};
    assert_int_equal(sw_attention_parts(&a), 2);
    const int64_t bytes = sw_attention_parted_bytes(&a);
    a.window = 100;
    a.past = 5;
    assert_int_equal(sw_attention_parted_bytes(&a), bytes);
    a.seq = 8192;
    assert_int_equal(sw_attention_parts(&a), 1);
    a.seq = 1;
    assert_int_equal(sw_attention_parts(&a), 7);
    a.kv_heads = a.heads;
    assert_int_equal(sw_attention_parts(&a), 1);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(against_reference), cmocka_unit_test(documents),
                                            cmocka_unit_test(sequences), cmocka_unit_test(large)};
    const struct CMUnitTest others[] = {cmocka_unit_test(gradients_of_reference), cmocka_unit_test(parts_of_shapes),
                                        cmocka_unit_test(same_bits_for_any_threads)};
    return RUN_TESTS(on_devices, others);
}
