/* Attention over many keys behind a first one that has most of the weight, as models learn to have, against sums in
 * double. What a tile of keys adds is small beside the sums before it, so that an error in each tile's rescaling
 * remains. */
#include "tests/kernels/support.h"

#include <math.h>
#include <stdlib.h>

enum { DIM = 16, SINK_SCORE = 30 };

struct tensors {
    struct buffer q, k, v, o, d_o, lse, dq, dk, dv, scratch;
};

/* Attention and its gradients in double; lse by query. */
struct exact {
    double *o, *lse, *dq, *dk, *dv;
};

static struct sw_attention attention_of(int64_t past, int64_t seq) {
    return (struct sw_attention){.batch = 1,
                                 .seq = seq,
                                 .past = past,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_dim = DIM,
                                 .q_stride = DIM,
                                 .k_stride = DIM,
                                 .v_stride = DIM,
                                 .o_stride = DIM,
                                 .scale = 1.0f / sqrtf(DIM)};
}

static struct tensors make_tensors(const struct sw_device *device, const struct sw_attention *a) {
    const int64_t keys = a->past + a->seq, q_bytes = a->seq * DIM * (int64_t)sizeof(float),
                  k_bytes = keys * DIM * (int64_t)sizeof(float);
    const struct tensors t = {.q = buffer_random(SW_F32, a->seq * DIM, 1, 0.3f),
                              .k = buffer_random(SW_F32, keys * DIM, 2, 1.0f),
                              .v = buffer_random(SW_F32, keys * DIM, 3, 1.0f),
                              .d_o = buffer_random(SW_F32, a->seq * DIM, 4, 1.0f),
                              .o = buffer_make(q_bytes),
                              .dq = buffer_make(q_bytes),
                              .dk = buffer_make(k_bytes),
                              .dv = buffer_make(k_bytes),
                              .lse = buffer_make(a->seq * (int64_t)sizeof(float)),
                              .scratch = buffer_make(sw_attention_scratch_bytes(device, a, SW_F32))};
    /* The first key's scores come from one element, which no other key has, so that they are rounded once. */
    for (int i = 1; i < DIM; i++)
        set_element(SW_F32, t.k.data, i, 0.0f);
    for (int64_t key = 0; key < keys; key++)
        set_element(SW_F32, t.k.data, key * DIM, key == 0 ? SINK_SCORE / a->scale : 0.0f);
    for (int64_t row = 0; row < a->seq; row++)
        set_element(SW_F32, t.q.data, row * DIM, 1.0f + 0.01f * (float)(row % 7));
    return t;
}

static void free_tensors(struct tensors *t) {
    struct buffer *all[] = {&t->q, &t->k, &t->v, &t->o, &t->d_o, &t->lse, &t->dq, &t->dk, &t->dv, &t->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static double product(const float *a, const float *b) {
    double sum = 0.0;
    for (int i = 0; i < DIM; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* The row of one query: its probabilities come to p. */
static void forward_in_double(const struct sw_attention *a, const struct tensors *t, int64_t row, double *p,
                              const struct exact *out) {
    const int64_t keys = a->past + row + 1;
    const float *q = (const float *)t->q.data + row * DIM, *k = t->k.data, *v = t->v.data;
    double largest = -INFINITY, sum = 0.0;
    for (int64_t key = 0; key < keys; key++) {
        p[key] = a->scale * product(q, k + key * DIM);
        largest = fmax(largest, p[key]);
    }
    for (int64_t key = 0; key < keys; key++)
        sum += p[key] = exp(p[key] - largest);
    for (int64_t key = 0; key < keys; key++) {
        p[key] /= sum;
        for (int i = 0; i < DIM; i++)
            out->o[row * DIM + i] += p[key] * v[key * DIM + i];
    }
    out->lse[row] = largest + log(sum);
}

static void backward_in_double(const struct sw_attention *a, const struct tensors *t, int64_t row, const double *p,
                               const struct exact *out) {
    const float *q = (const float *)t->q.data + row * DIM, *d_o = (const float *)t->d_o.data + row * DIM;
    const float *k = t->k.data, *v = t->v.data;
    double delta = 0.0;
    for (int i = 0; i < DIM; i++)
        delta += out->o[row * DIM + i] * d_o[i];
    for (int64_t key = 0; key <= row; key++) {
        const double d_score = a->scale * p[key] * (product(d_o, v + key * DIM) - delta);
        for (int i = 0; i < DIM; i++) {
            out->dq[row * DIM + i] += d_score * k[key * DIM + i];
            out->dk[key * DIM + i] += d_score * q[i];
            out->dv[key * DIM + i] += p[key] * d_o[i];
        }
    }
}

static void assert_exact(const char *what, const struct pair *pair, int64_t elems, const struct buffer *got,
                         const double *want, double tolerance) {
    for (int64_t i = 0; i < elems; i++) {
        const double x = ((const float *)got->data)[i];
        if (!(fabs(x - want[i]) <= tolerance * (1.0 + fabs(want[i]))))
            fail_msg("%s on %s, element %lld of %lld: %.9g instead of %.9g (seed %llu)", what, pair->label,
                     (long long)i, (long long)elems, x, want[i], (unsigned long long)test_seed());
    }
}

static void compare(struct pair *pair, int64_t past, int64_t seq) {
    const struct sw_attention a = attention_of(past, seq);
    const int64_t keys = past + seq;
    struct tensors t = make_tensors(pair->device, &a);
    double *room = calloc((size_t)((2 * seq + 2 * keys) * DIM + seq + keys), sizeof *room);
    assert_non_null(room);
    double *const lse = room + seq * DIM, *const dq = lse + seq, *const dk = dq + seq * DIM,
                  *const dv = dk + keys * DIM;
    const struct exact want = {.o = room, .lse = lse, .dq = dq, .dk = dk, .dv = dv};
    double *p = dv + keys * DIM; /* the probabilities of one query */
    assert_ok(sw_attention_forward(pair->stream, SW_F32, &a, t.q.data, t.k.data, t.v.data, t.o.data, t.lse.data,
                                   t.scratch.data));
    if (past == 0)
        assert_ok(sw_attention_backward(pair->stream, SW_F32, &a, t.q.data, t.k.data, t.v.data, t.o.data, t.d_o.data,
                                        t.lse.data, t.dq.data, t.dk.data, t.dv.data, t.scratch.data));
    for (int64_t row = 0; row < seq; row++) {
        forward_in_double(&a, &t, row, p, &want);
        if (past == 0)
            backward_in_double(&a, &t, row, p, &want);
    }
    assert_exact("log-sum-exp", pair, seq, &t.lse, want.lse, 3e-7);
    assert_exact("o", pair, seq * DIM, &t.o, want.o, 1e-5);
    if (past == 0) {
        /* The first key is 120, and all queries add to its gradients. */
        assert_exact("dq", pair, seq * DIM, &t.dq, want.dq, 3e-4);
        assert_exact("dk", pair, keys * DIM, &t.dk, want.dk, 3e-4);
        assert_exact("dv", pair, keys * DIM, &t.dv, want.dv, 3e-4);
    }
    free(room);
    free_tensors(&t);
}

static void few_queries(struct pair *pair) {
    compare(pair, 8192, 3);
}

static void whole_sequence(struct pair *pair) {
    compare(pair, 0, 1500);
}

static void behind_8192_keys(void **state) {
    (void)state;
    for_each_attention(few_queries);
}

static void forward_and_backward(void **state) {
    (void)state;
    for_each_attention(whole_sequence);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(behind_8192_keys), cmocka_unit_test(forward_and_backward)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
