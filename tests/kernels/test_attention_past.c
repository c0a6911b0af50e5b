/* Attention of the last tokens of sequences, whose earlier keys and values are there already: the rows that attention
 * of the whole sequences by the reference has at the end. */
#include "tests/kernels/support.h"

#include "core/size.h"

#include <math.h>
#include <string.h>

/* Batch, keys before, queries, heads, key heads, head dimension; `gap` extra columns between rows; window. */
struct shape {
    int64_t batch, past, seq, heads, kv_heads, dim, gap, window;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 0, 0},       {2, 63, 1, 4, 2, 64, 0, 0},    {1, 64, 1, 6, 2, 65, 5, 0},
    {3, 65, 1, 2, 1, 17, 0, 0},     {1, 190, 1, 2, 2, 128, 3, 0},  {1, 70, 1, 4, 1, 256, 0, 0},
    {1, 150, 1, 2, 1, 24, 0, 1},    {2, 100, 1, 4, 2, 40, 3, 64},  {1, 150, 1, 2, 2, 16, 0, 130},
    {1, 3, 2, 1, 1, 8, 0, 0},       {2, 1, 70, 3, 3, 16, 4, 0},    {1, 64, 64, 4, 2, 33, 0, 0},
    {1, 128, 30, 2, 1, 64, 0, 0},   {1, 100, 70, 2, 2, 48, 0, 0},  {1, 63, 129, 2, 1, 20, 2, 0},
    {1, 90, 5, 2, 1, 16, 0, 7},     {1, 130, 70, 4, 2, 32, 1, 64}, {1, 77, 130, 1, 1, 16, 0, 100},
    {1, 130, 140, 3, 1, 128, 0, 0}, {2, 200, 1, 7, 1, 96, 8, 0},   {1, 260, 40, 2, 2, 64, 0, 150}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* A device may round what it multiplies the values with. */
static float tolerance_of(sw_dtype type) {
    return type == SW_F32 ? 3e-5f : type == SW_BF16 ? 3e-2f : 4e-3f;
}

static struct sw_attention attention_of(const struct shape *s, int64_t past, int64_t seq) {
    return (struct sw_attention){.batch = s->batch,
                                 .seq = seq,
                                 .past = past,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->dim,
                                 .q_stride = s->heads * s->dim + s->gap,
                                 .k_stride = s->kv_heads * s->dim + 2 * s->gap,
                                 .v_stride = s->kv_heads * s->dim + 3 * s->gap,
                                 .window = s->window,
                                 .o_stride = s->heads * s->dim + 4 * s->gap,
                                 .scale = 1.0f / sqrtf((float)s->dim)};
}

/* The tensors of one call; rows are whole strides. */
struct tensors {
    struct buffer q, o, lse, scratch;
};

static struct tensors outputs(const struct sw_device *device, const struct sw_attention *a, sw_dtype type) {
    return (struct tensors){.o = buffer_make(a->batch * a->seq * a->o_stride * sw_dtype_bytes(type)),
                            .lse = buffer_make(a->batch * a->heads * a->seq * (int64_t)sizeof(float)),
                            .scratch = buffer_make(sw_attention_scratch_bytes(device, a, type))};
}

static void free_tensors(struct tensors *t) {
    buffer_free(&t->q);
    buffer_free(&t->o);
    buffer_free(&t->lse);
    buffer_free(&t->scratch);
}

/* The queries of the last tokens, from those of all. */
static struct buffer last_queries(const struct buffer *all, const struct sw_attention *a, sw_dtype type) {
    const int64_t row_bytes = a->q_stride * sw_dtype_bytes(type), length = a->past + a->seq;
    const struct buffer last = buffer_make(a->batch * a->seq * row_bytes);
    for (int64_t b = 0; b < a->batch; b++)
        memcpy((char *)last.data + b * a->seq * row_bytes, (char *)all->data + (b * length + a->past) * row_bytes,
               (size_t)(a->seq * row_bytes));
    return last;
}

static void compare_rows(const struct pair *pair, sw_dtype type, const struct sw_attention *a,
                         const struct tensors *got, const struct tensors *whole) {
    const int64_t row_bytes = a->o_stride * sw_dtype_bytes(type), length = a->past + a->seq;
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t t = 0; t < a->seq; t++) {
            const char *row = (char *)got->o.data + (b * a->seq + t) * row_bytes;
            const char *want = (char *)whole->o.data + (b * length + a->past + t) * row_bytes;
            assert_close("o", pair, type, a->heads * a->head_dim, row, want, tolerance_of(type), tolerance_of(type));
            for (int64_t i = a->heads * a->head_dim; i < a->o_stride; i++)
                assert_true(isnan(element(type, row, i)));
        }
        for (int64_t h = 0; h < a->heads; h++)
            assert_close("log-sum-exp", pair, SW_F32, a->seq, (float *)got->lse.data + (b * a->heads + h) * a->seq,
                         (float *)whole->lse.data + (b * a->heads + h) * length + a->past, 1e-5f, 1e-5f);
    }
}

/* Attention of whole sequences by the reference, which computes each shape and type once, for all devices. */
struct reference {
    struct buffer k, v;
    struct tensors whole;
};
static struct reference references[SHAPES][TEST_TYPES];

/* Attention of the last tokens on one device against that of the whole sequences. */
static void compare_end(const struct pair *pair, struct sw_device *device, struct sw_stream *stream,
                        const struct shape *s, sw_dtype type, const struct reference *reference) {
    const struct sw_attention a = attention_of(s, s->past, s->seq);
    struct tensors got = outputs(device, &a, type);
    got.q = last_queries(&reference->whole.q, &a, type);
    assert_ok(sw_attention_forward(stream, type, &a, got.q.data, reference->k.data, reference->v.data, got.o.data,
                                   got.lse.data, got.scratch.data));
    compare_rows(pair, type, &a, &got, &reference->whole);
    free_tensors(&got);
}

static void make_reference(struct pair *pair, const struct shape *s, sw_dtype type, struct reference *out) {
    const struct sw_attention all = attention_of(s, 0, s->past + s->seq);
    const int64_t rows = s->batch * all.seq;
    struct tensors *whole = &out->whole;
    *out = (struct reference){.k = buffer_random(type, rows * all.k_stride, 1, 1.5f),
                              .v = buffer_random(type, rows * all.v_stride, 2, 1.0f),
                              .whole = outputs(pair->ref_device, &all, type)};
    whole->q = buffer_random(type, rows * all.q_stride, 3, 1.5f);
    assert_ok(sw_attention_forward(pair->ref, type, &all, whole->q.data, out->k.data, out->v.data, whole->o.data,
                                   whole->lse.data, whole->scratch.data));
    compare_end(pair, pair->ref_device, pair->ref, s, type, out);
}

static void compare_all(struct pair *pair) {
    for (size_t s = 0; s < SHAPES; s++)
        for (int t = 0; t < TEST_TYPES; t++) {
            if (references[s][t].k.data == NULL)
                make_reference(pair, &shapes[s], test_types[t], &references[s][t]);
            compare_end(pair, pair->device, pair->stream, &shapes[s], test_types[t], &references[s][t]);
        }
}

static void free_references(void) {
    for (size_t s = 0; s < SHAPES; s++)
        for (int t = 0; t < TEST_TYPES; t++)
            if (references[s][t].k.data != NULL) {
                buffer_free(&references[s][t].k);
                buffer_free(&references[s][t].v);
                free_tensors(&references[s][t].whole);
            }
}

static void the_end_of_whole_sequences(void **state) {
    (void)state;
    for_each_attention(compare_all);
    free_references();
}

/* Scores of some thousands, for one query: exponentials must not overflow, and one key takes all. */
static void large_scores(struct pair *pair) {
    const struct shape shape = {1, 150, 1, 1, 1, 8, 0, 0};
    struct sw_attention a = attention_of(&shape, shape.past, shape.seq);
    a.scale = 300.0f;
    struct tensors t = outputs(pair->device, &a, SW_F32), want = outputs(pair->ref_device, &a, SW_F32);
    struct buffer k = buffer_random(SW_F32, 151 * 8, 1, 1.5f), v = buffer_random(SW_F32, 151 * 8, 2, 1.0f);
    t.q = buffer_random(SW_F32, 8, 3, 1.5f);
    want.q = buffer_copy(&t.q);
    assert_ok(
        sw_attention_forward(pair->stream, SW_F32, &a, t.q.data, k.data, v.data, t.o.data, t.lse.data, t.scratch.data));
    assert_ok(sw_attention_forward(pair->ref, SW_F32, &a, want.q.data, k.data, v.data, want.o.data, want.lse.data,
                                   want.scratch.data));
    assert_close("o", pair, SW_F32, 8, t.o.data, want.o.data, 2e-2f, 2e-2f);
    free_tensors(&t);
    free_tensors(&want);
    buffer_free(&k);
    buffer_free(&v);
}

static void large(void **state) {
    (void)state;
    for_each_device(large_scores);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_end_of_whole_sequences), cmocka_unit_test(large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
