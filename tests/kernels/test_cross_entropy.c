/* Cross-entropy against the reference, and the reference against difference quotients. */
#include "tests/kernels/support.h"

#include <math.h>
#include <stdlib.h>

static const int64_t row_counts[] = {1, 7, 33}, vocabs[] = {1, 2, 15, 16, 17, 257, 511, 513, 5003};

static struct buffer make_targets(int64_t rows, int64_t vocab) {
    struct buffer targets = buffer_make(rows * 4);
    for (int64_t row = 0; row < rows; row++)
        ((int32_t *)targets.data)[row] = row % 5 == 3 ? -1 : (int32_t)((row * 7919 + vocab - 1) % vocab);
    return targets;
}

static void compare(struct pair *pair, sw_dtype type, int64_t rows, int64_t vocab, bool gradient) {
    struct buffer logits = buffer_random(SW_F32, rows * vocab, 1, 4.0f), targets = make_targets(rows, vocab);
    const int64_t bytes = rows * vocab * sw_dtype_bytes(type);
    struct buffer got = buffer_make(bytes), want = buffer_make(bytes);
    struct buffer got_loss = buffer_make(rows * 4), want_loss = buffer_make(rows * 4);
    const float scale = 0.37f;
    assert_ok(sw_cross_entropy(pair->stream, type, rows, vocab, logits.data, targets.data, scale, got_loss.data,
                               gradient ? got.data : NULL));
    assert_ok(sw_cross_entropy(pair->ref, type, rows, vocab, logits.data, targets.data, scale, want_loss.data,
                               gradient ? want.data : NULL));
    assert_close("loss", pair, SW_F32, rows, got_loss.data, want_loss.data, 1e-6f, 3e-6f);
    if (gradient)
        assert_close("d_logits", pair, type, rows * vocab, got.data, want.data, 3e-6f, 3e-7f);
    struct buffer *all[] = {&logits, &targets, &got, &want, &got_loss, &want_loss};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare_all(struct pair *pair) {
    for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
        for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++) {
            for (int i = 0; i < 4; i++)
                compare(pair, i % 2 == 0 ? SW_F32 : SW_BF16, row_counts[r], vocabs[v], i >= 2);
        }
    }
}

static void against_reference(void **state) {
    (void)state;
    for_each_device(compare_all);
}

static double loss_of(int vocab, const double *logits, int target) {
    double sum = 0.0;
    for (int i = 0; i < vocab; i++)
        sum += exp(logits[i]);
    return log(sum) - logits[target];
}

static void gradient_of_reference(void **state) {
    (void)state;
    enum { VOCAB = 19, TARGET = 6 };
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct buffer logits = buffer_random(SW_F32, VOCAB, 2, 2.0f);
    const int32_t target = TARGET;
    float loss = NAN, d_logits[VOCAB];
    assert_ok(sw_cross_entropy(stream, SW_F32, 1, VOCAB, logits.data, &target, 1.0f, &loss, d_logits));
    double x[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        x[i] = ((float *)logits.data)[i];
    assert_near("loss", 0, loss, loss_of(VOCAB, x, TARGET), 1e-6);
    for (int i = 0; i < VOCAB; i++) {
        const double step = 1e-5, middle = x[i];
        x[i] = middle + step;
        const double above = loss_of(VOCAB, x, TARGET);
        x[i] = middle - step;
        const double below = loss_of(VOCAB, x, TARGET);
        x[i] = middle;
        assert_near("d_logits", i, d_logits[i], (above - below) / (2.0 * step), 1e-6);
    }
    buffer_free(&logits);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void extreme_logits(struct pair *pair) {
    const float logits[3][4] = {{1e4f, -1e4f, 0.0f, 1e4f}, {-INFINITY, 0.0f, 0.0f, 0.0f}, {NAN, 0.0f, 1.0f, 2.0f}};
    const int32_t targets[3] = {0, 1, 1};
    float loss[3], d_logits[3][4];
    assert_ok(sw_cross_entropy(pair->stream, SW_F32, 3, 4, logits[0], targets, 1.0f, loss, d_logits[0]));
    assert_near("loss of equal giants", 0, loss[0], log(2.0), 1e-6);
    assert_near("its gradient", 0, d_logits[0][0], -0.5, 1e-6);
    assert_near("loss beside minus infinity", 1, loss[1], log(3.0), 1e-6);
    assert_true(d_logits[1][0] == 0.0f);
    assert_true(isnan(loss[2]));
}

static void extremes(void **state) {
    (void)state;
    for_each_device(extreme_logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(against_reference), cmocka_unit_test(gradient_of_reference),
                                       cmocka_unit_test(extremes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
