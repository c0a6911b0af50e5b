/* The ops of gpt-oss: attention sinks, clamped gates, and biases of experts. Each device against the reference, and the
 * reference against the definition and its differences. */
#include "tests/kernels/support.h"

#include "core/rng.h"
#include "core/size.h"

#include <math.h>
#include <string.h>

static void free_all(struct buffer *const *all, size_t count) {
    for (size_t i = 0; i < count; i++)
        buffer_free(all[i]);
}
#define FREE_ALL(all) free_all(all, sizeof(all) / sizeof(all)[0])

static const struct {
    int64_t batch, seq, heads, kv_heads, head_dim, gap;
} attentions[] = {
    {1, 1, 1, 1, 2, 0}, {2, 3, 4, 2, 10, 0}, {1, 70, 3, 1, 64, 5}, {3, 17, 8, 8, 33, 16}, {2, 40, 2, 1, 130, 0}};

static struct sw_attention attention_of(size_t size) {
    const int64_t head_dim = attentions[size].head_dim, heads = attentions[size].heads;
    const int64_t q = heads * head_dim + attentions[size].gap, kv = attentions[size].kv_heads * head_dim;
    return (struct sw_attention){.batch = attentions[size].batch,
                                 .seq = attentions[size].seq,
                                 .heads = heads,
                                 .kv_heads = attentions[size].kv_heads,
                                 .head_dim = head_dim,
                                 .q_stride = q,
                                 .k_stride = kv,
                                 .v_stride = kv,
                                 .o_stride = q,
                                 .scale = 0.3f};
}

/* Sinks of all sizes: no weight, the same as a key's, nearly all the weight. */
static struct buffer sinks_of(sw_dtype type, int64_t heads) {
    static const float values[] = {0.5f, -INFINITY, 3.0f, -2.0f, 30.0f, -40.0f, 1.0f, 0.0f};
    struct buffer sinks = buffer_make(heads * sw_dtype_bytes(type));
    for (int64_t head = 0; head < heads; head++)
        set_element(type, sinks.data, head, values[head % 8]);
    return sinks;
}

static void compare_sinks(struct pair *pair, sw_dtype type, size_t size) {
    const struct sw_attention s = attention_of(size);
    const int64_t rows = s.batch * s.seq, lse_bytes = rows * s.heads * 4;
    struct buffer sinks = sinks_of(type, s.heads), o = buffer_random(type, rows * s.o_stride, 1, 1.0f);
    struct buffer lse = buffer_random(SW_F32, rows * s.heads, 2, 2.0f),
                  d_o = buffer_random(type, rows * s.o_stride, 3, 1.0f);
    struct buffer o_ref = buffer_copy(&o), lse_ref = buffer_copy(&lse);
    struct buffer acc = buffer_random(SW_F32, s.heads, 4, 1.0f), acc_ref = buffer_copy(&acc);
    assert_ok(sw_sink_forward(pair->stream, type, &s, sinks.data, o.data, lse.data));
    assert_ok(sw_sink_forward(pair->ref, type, &s, sinks.data, o_ref.data, lse_ref.data));
    assert_close("the result with sinks", pair, type, rows * s.o_stride, o.data, o_ref.data, 4e-6f, 1e-7f);
    assert_close("log-sum-exp with sinks", pair, SW_F32, rows * s.heads, lse.data, lse_ref.data, 1e-6f, 1e-6f);
    assert_ok(sw_sink_backward(pair->stream, type, &s, sinks.data, o_ref.data, d_o.data, lse_ref.data, acc.data));
    assert_ok(sw_sink_backward(pair->ref, type, &s, sinks.data, o_ref.data, d_o.data, lse_ref.data, acc_ref.data));
    assert_close("the sinks' gradient", pair, SW_F32, s.heads, acc.data, acc_ref.data, 1e-5f,
                 1e-5f * sqrtf((float)rows));
    assert_int_equal(lse.bytes, lse_bytes);
    struct buffer *const all[] = {&sinks, &o, &lse, &d_o, &o_ref, &lse_ref, &acc, &acc_ref};
    FREE_ALL(all);
}

static void sink_sizes(struct pair *pair) {
    for (size_t size = 0; size < sizeof attentions / sizeof attentions[0]; size++)
        for (int t = 0; t < TEST_TYPES; t++)
            compare_sinks(pair, test_types[t], size);
}

static void sinks_against_reference(void **state) {
    (void)state;
    for_each_device(sink_sizes);
}

/* A reference device with a stream. */
struct reference {
    struct sw_device *device;
    struct sw_stream *stream;
};

static struct reference open_reference(void) {
    struct reference ref;
    assert_ok(sw_device_open("ref", 1, &ref.device));
    assert_ok(sw_stream_open(ref.device, &ref.stream));
    return ref;
}

static void close_reference(struct reference *ref) {
    sw_stream_close(ref->stream);
    sw_device_close(ref->device);
}

/* Attention of one head with a sink, and the sum of its results weighted by d_o. */
enum { TOKENS = 5, DIM = 4 };
struct example {
    float q[TOKENS * DIM], k[TOKENS * DIM], v[TOKENS * DIM], d_o[TOKENS * DIM], sink;
};

static double value_of(const struct example *e) {
    double total = 0.0;
    for (int t = 0; t < TOKENS; t++) {
        double score[TOKENS], sum = exp((double)e->sink);
        for (int key = 0; key <= t; key++) {
            double dot = 0.0;
            for (int i = 0; i < DIM; i++)
                dot += (double)e->q[t * DIM + i] * e->k[key * DIM + i];
            score[key] = exp(0.5 * dot);
            sum += score[key];
        }
        for (int key = 0; key <= t; key++)
            for (int i = 0; i < DIM; i++)
                total += score[key] / sum * e->v[key * DIM + i] * e->d_o[t * DIM + i];
    }
    return total;
}

static double difference(struct example *e, float *at) {
    const double step = 0x1p-10;
    const float before = *at;
    *at = (float)(before + step);
    const double above = value_of(e);
    *at = (float)(before - step);
    const double below = value_of(e);
    *at = before;
    return (above - below) / (2.0 * step);
}

/* The ops in turn give attention with one more key of a value of 0, and its derivatives. */
static void reference_sinks_are_a_key(void **state) {
    struct reference ref = open_reference();
    const struct sw_attention s = {.batch = 1,
                                   .seq = TOKENS,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = DIM,
                                   .q_stride = DIM,
                                   .k_stride = DIM,
                                   .v_stride = DIM,
                                   .o_stride = DIM,
                                   .scale = 0.5f};
    struct example e = {.sink = 0.75f};
    float o[TOKENS * DIM], lse[TOKENS], dq[TOKENS * DIM], dk[TOKENS * DIM], dv[TOKENS * DIM], d_sink = 0.0f;
    double scratch[2 * TOKENS * DIM], total = 0.0;
    (void)state;
    sw_rng_normals(test_seed(), 81, 0, 4 * TOKENS * DIM, e.q);
    assert_ok(sw_attention_forward(ref.stream, SW_F32, &s, e.q, e.k, e.v, o, lse, scratch));
    assert_ok(sw_sink_forward(ref.stream, SW_F32, &s, &e.sink, o, lse));
    for (int i = 0; i < TOKENS * DIM; i++)
        total += (double)o[i] * e.d_o[i];
    assert_near("a sum of results", 0, total, value_of(&e), 1e-6);
    assert_ok(sw_attention_backward(ref.stream, SW_F32, &s, e.q, e.k, e.v, o, e.d_o, lse, dq, dk, dv, scratch));
    assert_ok(sw_sink_backward(ref.stream, SW_F32, &s, &e.sink, o, e.d_o, lse, &d_sink));
    assert_near("the sink's gradient", 0, d_sink, difference(&e, &e.sink), 1e-5);
    for (int i = 0; i < TOKENS * DIM; i++) {
        assert_near("dq", i, dq[i], difference(&e, &e.q[i]), 1e-5);
        assert_near("dk", i, dk[i], difference(&e, &e.k[i]), 1e-5);
        assert_near("dv", i, dv[i], difference(&e, &e.v[i]), 1e-5);
    }
    close_reference(&ref);
}

/* Gates and values on both sides of the bounds. */
static void compare_clamped(struct pair *pair, sw_dtype type, int64_t rows, int64_t cols, bool in_run) {
    struct buffer x = buffer_random(type, 2 * rows * cols, 5, 4.0f), dy = buffer_random(type, rows * cols, 6, 1.0f);
    const int32_t bounds[] = {2, (int32_t)(rows - 1)};
    struct buffer of_run = buffer_of(bounds, sizeof bounds);
    const struct sw_row_run run = {(const int32_t *)of_run.data, (const int32_t *)of_run.data + 1, 0};
    const struct sw_row_run rows_of = in_run ? run : SW_ALL_ROWS;
    struct buffer y = buffer_zeros(dy.bytes), y_ref = buffer_zeros(dy.bytes), dx = buffer_zeros(x.bytes),
                  dx_ref = buffer_zeros(x.bytes);
    assert_ok(sw_clamped_forward(pair->stream, type, rows, cols, x.data, y.data, rows_of));
    assert_ok(sw_clamped_forward(pair->ref, type, rows, cols, x.data, y_ref.data, rows_of));
    assert_close("clamped gates", pair, type, rows * cols, y.data, y_ref.data, 4e-6f, 4e-6f);
    assert_ok(sw_clamped_backward(pair->stream, type, rows, cols, x.data, dy.data, dx.data, rows_of));
    assert_ok(sw_clamped_backward(pair->ref, type, rows, cols, x.data, dy.data, dx_ref.data, rows_of));
    assert_close("their gradient", pair, type, 2 * rows * cols, dx.data, dx_ref.data, 4e-6f, 2e-5f);
    struct buffer *const all[] = {&x, &dy, &of_run, &y, &y_ref, &dx, &dx_ref};
    FREE_ALL(all);
}

static void clamped_sizes(struct pair *pair) {
    static const int64_t cols[] = {1, 7, 8, 33, 256, 1100};
    for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++)
        for (int t = 0; t < 2 * TEST_TYPES; t++)
            compare_clamped(pair, test_types[t % TEST_TYPES], 9, cols[c], t >= TEST_TYPES);
}

static void clamped_against_reference(void **state) {
    (void)state;
    for_each_device(clamped_sizes);
}

static double clamped_textbook(double gate, double value) {
    const double g = fmin(gate, 7.0), v = fmax(fmin(value, 7.0), -7.0);
    return g / (1.0 + exp(-1.702 * g)) * (v + 1.0);
}

static void reference_clamps(void **state) {
    struct reference ref = open_reference();
    (void)state;
    for (int i = 0; i < 400; i++) {
        const float x[2] = {-9.05f + 0.045f * (float)i, 9.02f - 0.0471f * (float)((i * 7) % 400)}, dy = 0.7f;
        const double step = 1e-6;
        float y = NAN, dx[2];
        assert_ok(sw_clamped_forward(ref.stream, SW_F32, 1, 1, x, &y, SW_ALL_ROWS));
        assert_ok(sw_clamped_backward(ref.stream, SW_F32, 1, 1, x, &dy, dx, SW_ALL_ROWS));
        const double by_gate =
            (clamped_textbook(x[0] + step, x[1]) - clamped_textbook(x[0] - step, x[1])) / (2.0 * step);
        const double by_value =
            (clamped_textbook(x[0], x[1] + step) - clamped_textbook(x[0], x[1] - step)) / (2.0 * step);
        assert_near("a clamped gate", i, y, clamped_textbook(x[0], x[1]), 1e-6);
        assert_near("a gate's gradient", i, dx[0], dy * by_gate, 1e-5);
        assert_near("a value's gradient", i, dx[1], dy * by_value, 1e-5);
    }
    close_reference(&ref);
}

static void nan_spreads(struct pair *pair) {
    const float values[] = {NAN, 1.0f, 1.0f, NAN, 2.0f, 3.0f};
    struct buffer x = buffer_of(values, sizeof values), y = buffer_make(3 * 4);
    assert_ok(sw_clamped_forward(pair->stream, SW_F32, 1, 3, x.data, y.data, SW_ALL_ROWS));
    const float *results = y.data;
    assert_true(isnan(results[0]) && isnan(results[1]) && !isnan(results[2]));
    buffer_free(&x);
    buffer_free(&y);
}

static void nan_is_kept(void **state) {
    (void)state;
    for_each_device(nan_spreads);
}

/* Pairs of a few experts, of which the first ones and the last may have no rows. */
enum { EXPERTS = 6 };
struct rows {
    int64_t pairs, cols, stride;
    struct buffer offset, source, weight, bias, dy;
};

static struct rows rows_of(sw_dtype type, int64_t pairs, int64_t cols, int64_t stride) {
    struct rows r = {.pairs = pairs,
                     .cols = cols,
                     .stride = stride,
                     .offset = buffer_make((EXPERTS + 1) * 4),
                     .source = buffer_make(pairs * 4),
                     .weight = buffer_random(SW_F32, pairs, 7, 1.0f),
                     .bias = buffer_random(type, EXPERTS * stride, 8, 1.0f),
                     .dy = buffer_random(type, pairs * cols, 9, 1.0f)};
    int32_t *offset = r.offset.data, *source = r.source.data;
    const int64_t ends[EXPERTS + 1] = {0, 0, pairs / 3, pairs / 3, pairs - pairs / 5, pairs, pairs};
    for (int e = 0; e <= EXPERTS; e++)
        offset[e] = (int32_t)ends[e];
    for (int64_t i = 0; i < pairs; i++)
        source[i] = (int32_t)((i * 7 + 3) % pairs);
    return r;
}

static void add_biases(struct sw_stream *stream, sw_dtype type, const struct rows *r, int64_t first, int64_t experts,
                       void *y) {
    assert_ok(sw_expert_bias_forward(stream, .type = type, .experts = experts, .rows = r->pairs, .cols = r->cols,
                                     .bias_stride = r->stride, .offset = (const int32_t *)r->offset.data + first,
                                     .source = r->source.data, .weight = r->weight.data,
                                     .bias = (char *)r->bias.data + first * r->stride * sw_dtype_bytes(type), .y = y));
}

static void find_gradients(struct sw_stream *stream, sw_dtype type, const struct rows *r, bool weighted, void *acc,
                           void *d_weight) {
    assert_ok(sw_expert_bias_backward(stream, .type = type, .experts = EXPERTS, .rows = r->pairs, .cols = r->cols,
                                      .bias_stride = r->stride, .offset = r->offset.data, .source = r->source.data,
                                      .weight = weighted ? r->weight.data : NULL, .bias = r->bias.data,
                                      .dy = r->dy.data, .acc = acc, .d_weight = d_weight));
}

static void compare_biases(struct pair *pair, sw_dtype type, int64_t pairs, int64_t cols, bool weighted) {
    struct rows r = rows_of(type, pairs, cols, cols + (weighted ? 8 : 0));
    struct buffer y = buffer_random(type, pairs * cols, 10, 1.0f), y_ref = buffer_copy(&y);
    struct buffer acc = buffer_random(SW_F32, EXPERTS * r.stride, 11, 1.0f), acc_ref = buffer_copy(&acc);
    struct buffer d_weight = buffer_random(SW_F32, pairs, 12, 1.0f), d_ref = buffer_copy(&d_weight);
    /* Two calls for a run of experts each have the bits of one. */
    add_biases(pair->stream, type, &r, 0, 4, y.data);
    add_biases(pair->stream, type, &r, 4, EXPERTS - 4, y.data);
    add_biases(pair->ref, type, &r, 0, EXPERTS, y_ref.data);
    assert_close("rows with biases", pair, type, pairs * cols, y.data, y_ref.data, 1e-6f, 1e-6f);
    find_gradients(pair->stream, type, &r, weighted, acc.data, NULL);
    find_gradients(pair->stream, type, &r, weighted, NULL, d_weight.data);
    find_gradients(pair->ref, type, &r, weighted, acc_ref.data, d_ref.data);
    assert_close("the biases' gradient", pair, SW_F32, EXPERTS * r.stride, acc.data, acc_ref.data, 1e-5f,
                 2e-6f * sqrtf((float)pairs));
    assert_close("the weights' gradient", pair, SW_F32, pairs, d_weight.data, d_ref.data, 1e-5f,
                 2e-6f * sqrtf((float)cols));
    struct buffer *const all[] = {&r.offset, &r.source, &r.weight, &r.bias,   &r.dy, &y,
                                  &y_ref,    &acc,      &acc_ref,  &d_weight, &d_ref};
    FREE_ALL(all);
}

static void bias_sizes(struct pair *pair) {
    static const int64_t sizes[][2] = {{1, 1}, {5, 7}, {40, 24}, {130, 520}, {33, 1160}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int t = 0; t < 2 * TEST_TYPES; t++)
            compare_biases(pair, test_types[t % TEST_TYPES], sizes[s][0], sizes[s][1], t >= TEST_TYPES);
}

static void biases_against_reference(void **state) {
    (void)state;
    for_each_device(bias_sizes);
}

/* The reference by loops over experts, rows and columns. */
static void reference_biases(void **state) {
    struct reference ref = open_reference();
    struct rows r = rows_of(SW_F32, 20, 5, 6);
    const int32_t *offset = r.offset.data, *source = r.source.data;
    const float *weight = r.weight.data, *bias = r.bias.data, *dy = r.dy.data;
    struct buffer y = buffer_zeros(20 * 5 * 4), acc = buffer_zeros(EXPERTS * 6 * 4), d_weight = buffer_zeros(20 * 4);
    (void)state;
    add_biases(ref.stream, SW_F32, &r, 0, EXPERTS, y.data);
    find_gradients(ref.stream, SW_F32, &r, true, acc.data, d_weight.data);
    for (int e = 0; e < EXPERTS; e++)
        for (int col = 0; col < 5; col++) {
            double sum = 0.0;
            for (int row = offset[e]; row < offset[e + 1]; row++) {
                assert_near("a row with its bias", row, ((float *)y.data)[row * 5 + col],
                            (double)weight[source[row]] * bias[e * 6 + col], 1e-6);
                sum += (double)weight[source[row]] * dy[row * 5 + col];
            }
            assert_near("a bias's gradient", e, ((float *)acc.data)[e * 6 + col], sum, 1e-6);
        }
    for (int e = 0; e < EXPERTS; e++)
        for (int row = offset[e]; row < offset[e + 1]; row++) {
            double sum = 0.0;
            for (int col = 0; col < 5; col++)
                sum += (double)dy[row * 5 + col] * bias[e * 6 + col];
            assert_near("a weight's gradient", row, ((float *)d_weight.data)[source[row]], sum, 1e-6);
        }
    struct buffer *const all[] = {&r.offset, &r.source, &r.weight, &r.bias, &r.dy, &y, &acc, &d_weight};
    FREE_ALL(all);
    close_reference(&ref);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(sinks_against_reference),
                                            cmocka_unit_test(clamped_against_reference), cmocka_unit_test(nan_is_kept),
                                            cmocka_unit_test(biases_against_reference)};
    const struct CMUnitTest others[] = {cmocka_unit_test(reference_sinks_are_a_key), cmocka_unit_test(reference_clamps),
                                        cmocka_unit_test(reference_biases)};
    return RUN_TESTS(on_devices, others);
}
