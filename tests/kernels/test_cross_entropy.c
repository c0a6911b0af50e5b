/* Cross-entropy against the reference, and the reference against difference quotients. */
#include "core/size.h"
#include "tests/kernels/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A GPU reads and writes vocabularies of 16, 1,024 and 5,008 by vectors, the last ones by several at once. */
static const int64_t row_counts[] = {1, 7, 33}, vocabs[] = {1, 2, 15, 16, 17, 257, 511, 513, 1024, 5003, 5008};

static struct buffer make_targets(int64_t rows, int64_t vocab) {
    struct buffer targets = buffer_make(rows * 4);
    for (int64_t row = 0; row < rows; row++)
        ((int32_t *)targets.data)[row] = row % 5 == 3 ? -1 : (int32_t)((row * 7919 + vocab - 1) % vocab);
    return targets;
}

/* The gaps between rows: none, up to the multiple of a GPU's rows of logits, and one that aligns nothing. */
enum { GAPS = 3, ROW_MULTIPLE = 64 };
static int64_t stride_of(int64_t cols, size_t gap) {
    static const int64_t multiples[GAPS] = {1, ROW_MULTIPLE, 1}, added[GAPS] = {0, 0, 3};
    return sw_round_up(cols, multiples[gap % GAPS]) + added[gap % GAPS];
}

/* Copies rows of `cols` elements, each of `size` bytes, to where they are to_stride apart. */
static void copy_rows(int64_t rows, int64_t cols, int64_t size, const void *from, int64_t from_stride, void *to,
                      int64_t to_stride) {
    for (int64_t row = 0; row < rows; row++)
        memcpy((char *)to + row * to_stride * size, (const char *)from + row * from_stride * size,
               (size_t)(cols * size));
}

/* Returns dense rows as rows that are a stride apart, with NaN between them. */
static struct buffer spread(int64_t rows, int64_t cols, int64_t stride, const struct buffer *dense) {
    struct buffer spread = buffer_make(rows * stride * 4);
    copy_rows(rows, cols, 4, dense->data, cols, spread.data, stride);
    return spread;
}

/* Checks that nothing was written between the rows, which buffer_make has filled with NaN. */
static void assert_gaps_hold(const struct pair *pair, int64_t rows, int64_t cols, int64_t stride, int64_t size,
                             const void *data) {
    const unsigned char *bytes = data;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = cols * size; i < stride * size; i++)
            if (bytes[row * stride * size + i] != 0xff)
                fail_msg("%s: byte %lld behind row %lld of %lld elements was written", pair->label,
                         (long long)(i - cols * size), (long long)row, (long long)cols);
}

static void compare(struct pair *pair, sw_dtype type, int64_t rows, int64_t vocab, int64_t stride, bool gradient) {
    struct buffer dense = buffer_random(SW_F32, rows * vocab, 1, 4.0f), targets = make_targets(rows, vocab);
    struct buffer logits = spread(rows, vocab, stride, &dense);
    const int64_t bytes = rows * stride * sw_dtype_bytes(type);
    struct buffer got = buffer_make(bytes), want = buffer_make(bytes);
    struct buffer got_loss = buffer_make(rows * 4), want_loss = buffer_make(rows * 4);
    const float scale = 0.37f;
    assert_ok(sw_cross_entropy(pair->stream, type, rows, vocab, stride, scale, logits.data, targets.data, got_loss.data,
                               gradient ? got.data : NULL, NULL));
    assert_ok(sw_cross_entropy(pair->ref, type, rows, vocab, stride, scale, logits.data, targets.data, want_loss.data,
                               gradient ? want.data : NULL, NULL));
    assert_close("loss", pair, SW_F32, rows, got_loss.data, want_loss.data, 1e-6f, 3e-6f);
    assert_gaps_hold(pair, rows, vocab, stride, sw_dtype_bytes(type), got.data);
    for (int64_t row = 0; gradient && row < rows; row++) {
        const int64_t at = row * stride * sw_dtype_bytes(type);
        assert_close("d_logits", pair, type, vocab, (char *)got.data + at, (char *)want.data + at, 3e-6f, 3e-7f);
    }
    struct buffer *all[] = {&dense, &logits, &targets, &got, &want, &got_loss, &want_loss};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare_all(struct pair *pair) {
    for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
        for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++) {
            for (size_t i = 0; i < 2 * TEST_TYPES; i++)
                compare(pair, test_types[i % TEST_TYPES], row_counts[r], vocabs[v], stride_of(vocabs[v], r + v + i),
                        i >= TEST_TYPES);
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
    assert_ok(sw_cross_entropy(stream, SW_F32, 1, VOCAB, VOCAB, 1.0f, logits.data, &target, &loss, d_logits, NULL));
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

/* One call's results, whole or in tiles. */
struct results {
    struct buffer loss, d_logits;
};

static struct results make_results(sw_dtype type, int64_t rows, int64_t vocab) {
    return (struct results){.loss = buffer_make(rows * 4),
                            .d_logits = buffer_make(rows * vocab * sw_dtype_bytes(type))};
}

static void free_results(struct results *results) {
    buffer_free(&results->loss);
    buffer_free(&results->d_logits);
}

static struct results in_tiles(const struct pair *pair, struct sw_stream *stream, sw_dtype type, int64_t rows,
                               int64_t vocab, int64_t width, const struct buffer *logits, const struct buffer *targets,
                               float scale) {
    struct results results = make_results(type, rows, vocab);
    struct buffer max = buffer_make(rows * 4), sum = buffer_make(rows * 4), target_logit = buffer_make(rows * 4);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t first = 0; first < vocab; first += width) {
            const int64_t cols = vocab - first < width ? vocab - first : width, size = sw_dtype_bytes(type);
            const int64_t stride = stride_of(cols, (size_t)(first / width + pass));
            struct buffer tile = buffer_make(rows * stride * 4), gradient = buffer_make(rows * stride * size);
            copy_rows(rows, cols, 4, (float *)logits->data + first, vocab, tile.data, stride);
            if (pass == 0)
                assert_ok(sw_softmax_partial(stream, rows, cols, stride, first, tile.data, targets->data, max.data,
                                             sum.data, target_logit.data, .begin_col = 0));
            else
                assert_ok(sw_cross_entropy_tile(stream, type, rows, cols, stride, first, scale, tile.data,
                                                targets->data, max.data, sum.data, target_logit.data, results.loss.data,
                                                gradient.data, NULL));
            assert_gaps_hold(pair, rows, cols, stride, size, gradient.data);
            if (pass == 1)
                copy_rows(rows, cols, size, gradient.data, stride, (char *)results.d_logits.data + first * size, vocab);
            buffer_free(&tile);
            buffer_free(&gradient);
        }
    }
    buffer_free(&max);
    buffer_free(&sum);
    buffer_free(&target_logit);
    return results;
}

enum { SOFTMAX_BLOCK = 512 };

/* Tiles of any width, with gaps between their rows or without, against the whole rows of the same device, and of the
 * reference; the same bits where the contract says so. */
static void compare_tiles(struct pair *pair, sw_dtype type, int64_t rows, int64_t vocab, int64_t width) {
    const float scale = 0.37f;
    struct buffer logits = buffer_random(SW_F32, rows * vocab, 1, 4.0f), targets = make_targets(rows, vocab);
    struct results whole = make_results(type, rows, vocab);
    assert_ok(sw_cross_entropy(pair->stream, type, rows, vocab, vocab, scale, logits.data, targets.data,
                               whole.loss.data, whole.d_logits.data, NULL));
    struct results got = in_tiles(pair, pair->stream, type, rows, vocab, width, &logits, &targets, scale);
    struct results want = in_tiles(pair, pair->ref, type, rows, vocab, width, &logits, &targets, scale);
    assert_close("loss in tiles", pair, SW_F32, rows, got.loss.data, whole.loss.data, 1e-6f, 3e-6f);
    assert_close("d_logits in tiles", pair, type, rows * vocab, got.d_logits.data, whole.d_logits.data, 3e-6f, 3e-7f);
    assert_close("loss in tiles by ref", pair, SW_F32, rows, want.loss.data, whole.loss.data, 1e-6f, 3e-6f);
    assert_close("d_logits in tiles by ref", pair, type, rows * vocab, want.d_logits.data, whole.d_logits.data, 3e-6f,
                 3e-7f);
    if (width % SOFTMAX_BLOCK == 0 || width >= vocab) {
        assert_same_bits("loss in whole blocks", pair, got.loss.bytes, got.loss.data, whole.loss.data);
        assert_same_bits("d_logits in whole blocks", pair, got.d_logits.bytes, got.d_logits.data, whole.d_logits.data);
    }
    free_results(&whole);
    free_results(&got);
    free_results(&want);
    buffer_free(&logits);
    buffer_free(&targets);
}

/* The ranks of a tensor group: each takes its part of the vocabulary in, and the combined parts say what the whole
 * says.
 */
static void compare_parts(struct pair *pair, int64_t rows, int64_t vocab, int64_t parts) {
    enum { WIDTH = 512 };
    const int64_t most = (vocab + parts - 1) / parts, record = 3 * rows;
    struct buffer logits = buffer_random(SW_F32, rows * vocab, 1, 4.0f), targets = make_targets(rows, vocab);
    struct buffer records = buffer_make(parts * record * 4), all = buffer_make(record * 4);
    struct buffer tile = buffer_make(rows * most * 4);
    struct results whole = make_results(SW_F32, rows, vocab), got = make_results(SW_F32, rows, vocab);
    float *max = all.data, *sum = max + rows, *target_logit = sum + rows;
    for (int64_t begin = 0; begin < vocab; begin += most) {
        const int64_t end = vocab - begin < most ? vocab : begin + most;
        float *at = (float *)records.data + begin / most * record;
        for (int64_t first = begin; first < end; first += WIDTH) {
            const int64_t cols = end - first < WIDTH ? end - first : WIDTH;
            copy_rows(rows, cols, 4, (float *)logits.data + first, vocab, tile.data, cols);
            assert_ok(sw_softmax_partial(pair->stream, rows, cols, cols, first, tile.data, targets.data, at, at + rows,
                                         at + 2 * rows, .begin_col = begin));
        }
    }
    assert_ok(sw_softmax_combine(pair->stream, rows, parts, record, rows, records.data, .max = max, .sum = sum,
                                 .target_logit = target_logit));
    assert_ok(sw_cross_entropy_tile(pair->stream, SW_F32, rows, vocab, vocab, 0, 0.37f, logits.data, targets.data, max,
                                    sum, target_logit, got.loss.data, got.d_logits.data, NULL));
    assert_ok(sw_cross_entropy(pair->stream, SW_F32, rows, vocab, vocab, 0.37f, logits.data, targets.data,
                               whole.loss.data, whole.d_logits.data, NULL));
    assert_close("loss of parts", pair, SW_F32, rows, got.loss.data, whole.loss.data, 1e-6f, 3e-6f);
    assert_close("d_logits of parts", pair, SW_F32, rows * vocab, got.d_logits.data, whole.d_logits.data, 3e-6f, 3e-7f);
    free_results(&whole);
    free_results(&got);
    struct buffer *buffers[] = {&logits, &targets, &records, &all, &tile};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
}

static void compare_all_parts(struct pair *pair) {
    compare_parts(pair, 33, 17, 1);
    compare_parts(pair, 33, 17, 4);
    compare_parts(pair, 7, 2053, 2);
    compare_parts(pair, 300, 600, 8);
}

static void parts(void **state) {
    (void)state;
    for_each_device(compare_all_parts);
}

static void compare_all_tiles(struct pair *pair) {
    /* Narrow tiles are so many that they go just beyond a block. */
    static const struct {
        int64_t width, vocab;
    } sizes[] = {{1, 515}, {7, 1030}, {16, 1030}, {511, 2053}, {512, 2053}, {513, 2053}, {1024, 2053}, {5003, 2053}};
    for (int t = 0; t < TEST_TYPES; t++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            compare_tiles(pair, test_types[t], 7, sizes[s].vocab, sizes[s].width);
            compare_tiles(pair, test_types[t], 33, 17, sizes[s].width);
        }
        compare_tiles(pair, test_types[t], 3, 5008, 2504); /* read and written by vectors, several at once */
    }
}

static void tiles(void **state) {
    (void)state;
    for_each_device(compare_all_tiles);
}

/* A first tile of minus infinities, a maximum that grows by thousands, NaN, a loss alone, a row without a target. */
static void extreme_tiles(struct pair *pair) {
    enum { ROWS = 4, COLS = 2 };
    static const float first_values[ROWS][COLS] = {{-INFINITY, -INFINITY}, {-2e4f, 1e4f}, {NAN, 0.0f}, {NAN, INFINITY}};
    static const float second_values[ROWS][COLS] = {{1.0f, 1.0f}, {3e4f, 3e4f}, {1.0f, 2.0f}, {0.0f, 0.0f}};
    static const int32_t target_values[ROWS] = {2, 3, 1, -1};
    struct buffer first = buffer_of(first_values, sizeof first_values),
                  second = buffer_of(second_values, sizeof second_values),
                  targets = buffer_of(target_values, sizeof target_values);
    struct buffer max = buffer_make(ROWS * 4), sum = buffer_make(ROWS * 4), target_logit = buffer_make(ROWS * 4);
    struct results results = make_results(SW_F32, ROWS, COLS);
    const float *loss = results.loss.data, *d_logits = results.d_logits.data;
    assert_ok(sw_softmax_partial(pair->stream, ROWS, COLS, COLS, 0, first.data, targets.data, max.data, sum.data,
                                 target_logit.data, .begin_col = 0));
    assert_ok(sw_softmax_partial(pair->stream, ROWS, COLS, COLS, COLS, second.data, targets.data, max.data, sum.data,
                                 target_logit.data, .begin_col = 0));
    assert_ok(sw_cross_entropy_tile(pair->stream, SW_F32, ROWS, COLS, COLS, 0, 1.0f, NULL, targets.data, max.data,
                                    sum.data, target_logit.data, results.loss.data, NULL, NULL));
    assert_near("loss after minus infinity", 0, loss[0], log(2.0), 1e-6);
    assert_near("loss of growing giants", 1, loss[1], log(2.0), 1e-6);
    assert_true(isnan(loss[2]) && loss[3] == 0.0f);
    assert_ok(sw_cross_entropy_tile(pair->stream, SW_F32, ROWS, COLS, COLS, 0, 1.0f, first.data, targets.data, max.data,
                                    sum.data, target_logit.data, NULL, results.d_logits.data, NULL));
    assert_true(d_logits[0] == 0.0f && d_logits[COLS + 1] == 0.0f && isnan(d_logits[2 * COLS + 1]));
    assert_true(d_logits[3 * COLS] == 0.0f && d_logits[3 * COLS + 1] == 0.0f);
    assert_ok(sw_cross_entropy_tile(pair->stream, SW_F32, ROWS, COLS, COLS, COLS, 1.0f, second.data, targets.data,
                                    max.data, sum.data, target_logit.data, NULL, results.d_logits.data, NULL));
    assert_near("gradient of a late target", 0, d_logits[0], -0.5, 1e-6);
    assert_near("gradient beside it", 0, d_logits[1], 0.5, 1e-6);
    free_results(&results);
    struct buffer *all[] = {&first, &second, &targets, &max, &sum, &target_logit};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void tile_extremes(void **state) {
    (void)state;
    for_each_device(extreme_tiles);
}

/* Probabilities down to the least normal numbers keep their digits: two logits, the second far below the first. */
static void small_probabilities(struct pair *pair) {
    enum { ROWS = 850, COLS = 2 };
    struct buffer logits = buffer_zeros(ROWS * COLS * 4), targets = buffer_zeros(ROWS * 4);
    struct results results = make_results(SW_F32, ROWS, COLS);
    float *second = (float *)logits.data + 1;
    for (int64_t i = 0; i < ROWS; i++)
        second[COLS * i] = -0.1f * (float)i;
    assert_ok(sw_cross_entropy(pair->stream, SW_F32, ROWS, COLS, COLS, 1.0f, logits.data, targets.data,
                               results.loss.data, results.d_logits.data, NULL));
    for (int64_t i = 0; i < ROWS; i++) {
        const double found = ((float *)results.d_logits.data)[COLS * i + 1];
        const double power = exp((double)second[COLS * i]), want = power / (1.0 + power);
        if (!(fabs(found - want) <= 6e-7 * want))
            fail_msg("the probability of a logit %g below is %.9g on %s, and should be %.9g", (double)-second[COLS * i],
                     found, pair->label, want);
    }
    free_results(&results);
    buffer_free(&logits);
    buffer_free(&targets);
}

static void small(void **state) {
    (void)state;
    for_each_device(small_probabilities);
}

static void extreme_logits(struct pair *pair) {
    enum { ROWS = 3, COLS = 4 };
    static const float values[ROWS][COLS] = {
        {1e4f, -1e4f, 0.0f, 1e4f}, {-INFINITY, 0.0f, 0.0f, 0.0f}, {NAN, 0.0f, 1.0f, 2.0f}};
    static const int32_t target_values[ROWS] = {0, 1, 1};
    struct buffer logits = buffer_of(values, sizeof values), targets = buffer_of(target_values, sizeof target_values);
    struct results results = make_results(SW_F32, ROWS, COLS);
    const float *loss = results.loss.data, *d_logits = results.d_logits.data;
    assert_ok(sw_cross_entropy(pair->stream, SW_F32, ROWS, COLS, COLS, 1.0f, logits.data, targets.data,
                               results.loss.data, results.d_logits.data, NULL));
    assert_near("loss of equal giants", 0, loss[0], log(2.0), 1e-6);
    assert_near("its gradient", 0, d_logits[0], -0.5, 1e-6);
    assert_near("loss beside minus infinity", 1, loss[1], log(3.0), 1e-6);
    assert_true(d_logits[COLS] == 0.0f);
    assert_true(isnan(loss[2]));
    free_results(&results);
    buffer_free(&logits);
    buffer_free(&targets);
}

static void extremes(void **state) {
    (void)state;
    for_each_device(extreme_logits);
}

/* Each row's gradient has a factor of its own, whole and in tiles; a factor of 0 leaves none. */
static void scaled_rows(struct pair *pair) {
    enum { ROWS = 7, VOCAB = 513 };
    const float scale = 0.37f;
    struct buffer logits = buffer_random(SW_F32, ROWS * VOCAB, 1, 4.0f), targets = make_targets(ROWS, VOCAB);
    struct buffer factors = buffer_random(SW_F32, ROWS, 2, 1.0f);
    struct results got = make_results(SW_F32, ROWS, VOCAB), want = make_results(SW_F32, ROWS, VOCAB);
    struct buffer max = buffer_make(ROWS * 4), sum = buffer_make(ROWS * 4), target_logit = buffer_make(ROWS * 4);
    float *factor = factors.data, *gradient = want.d_logits.data;
    factor[4] = 0.0f;
    assert_ok(sw_cross_entropy(pair->ref, SW_F32, ROWS, VOCAB, VOCAB, scale, logits.data, targets.data, want.loss.data,
                               gradient, NULL));
    for (int64_t i = 0; i < (int64_t)ROWS * VOCAB; i++)
        gradient[i] *= factor[i / VOCAB];
    assert_ok(sw_cross_entropy(pair->stream, SW_F32, ROWS, VOCAB, VOCAB, scale, logits.data, targets.data,
                               got.loss.data, got.d_logits.data, factor));
    assert_close("scaled d_logits", pair, SW_F32, (int64_t)ROWS * VOCAB, got.d_logits.data, gradient, 4e-6f, 3e-7f);
    assert_ok(sw_softmax_partial(pair->stream, ROWS, VOCAB, VOCAB, 0, logits.data, targets.data, max.data, sum.data,
                                 target_logit.data, .begin_col = 0));
    assert_ok(sw_cross_entropy_tile(pair->stream, SW_F32, ROWS, VOCAB, VOCAB, 0, scale, logits.data, targets.data,
                                    max.data, sum.data, target_logit.data, NULL, got.d_logits.data, factor));
    assert_close("scaled d_logits of a tile", pair, SW_F32, (int64_t)ROWS * VOCAB, got.d_logits.data, gradient, 4e-6f,
                 3e-7f);
    free_results(&got);
    free_results(&want);
    struct buffer *all[] = {&logits, &targets, &factors, &max, &sum, &target_logit};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void row_scales(void **state) {
    (void)state;
    for_each_device(scaled_rows);
}

/* The loss of a pair of sequences by the paper's formula. */
static double pair_loss(double beta, const double sums[2], const double reference[2]) {
    const double margin = (-sums[0] - reference[0]) - (-sums[1] - reference[1]);
    return log1p(exp(-beta * margin));
}

static void check_pair(struct pair *pair, double beta, int64_t seq, const float *losses, const double *reference,
                       const double *got_sums, const float *row_scale) {
    double sums[2] = {0.0, 0.0};
    for (int64_t i = 0; i < 2 * seq; i++)
        sums[i / seq] += (double)losses[i];
    for (int s = 0; s < 2; s++) {
        const double step = 1e-4;
        double above[2] = {sums[0], sums[1]}, below[2] = {sums[0], sums[1]};
        above[s] += step;
        below[s] -= step;
        const double slope = (pair_loss(beta, above, reference) - pair_loss(beta, below, reference)) / (2.0 * step);
        assert_near("sum of a sequence", s, got_sums[s], sums[s], 1e-9);
        for (int64_t i = 0; i < seq; i++)
            if (!(fabs((double)row_scale[s * seq + i] - (isnan(reference[0]) ? 0.0 : slope)) <= 2e-6))
                fail_msg("%s: the factor of row %lld of sequence %d is %g, and should be %g", pair->label, (long long)i,
                         s, (double)row_scale[s * seq + i], slope);
    }
}

static void compare_preference(struct pair *pair, int64_t pairs, int64_t seq, double beta) {
    struct buffer losses = buffer_random(SW_F32, 2 * pairs * seq, 3, 2.0f), reference = buffer_zeros(2 * pairs * 8);
    struct buffer sums = buffer_make(2 * pairs * 8), row_scale = buffer_make(2 * pairs * seq * 4);
    struct buffer alone = buffer_make(2 * pairs * 8);
    double *expected = reference.data;
    for (int64_t i = 0; i < 2 * pairs; i++)
        expected[i] = i == 2 ? (double)NAN : -0.5 * (double)(i % 5);
    assert_ok(sw_preference(pair->stream, pairs, seq, beta, losses.data, reference.data, sums.data, row_scale.data));
    assert_ok(sw_preference(pair->stream, pairs, seq, beta, losses.data, reference.data, alone.data, NULL));
    assert_same_bits("sums alone", pair, sums.bytes, alone.data, sums.data);
    for (int64_t p = 0; p < pairs; p++)
        check_pair(pair, beta, seq, (float *)losses.data + 2 * p * seq, expected + 2 * p, (double *)sums.data + 2 * p,
                   (float *)row_scale.data + 2 * p * seq);
    struct buffer *all[] = {&losses, &reference, &sums, &row_scale, &alone};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare_preferences(struct pair *pair) {
    compare_preference(pair, 1, 1, 0.1);
    compare_preference(pair, 3, 37, 0.5);
    compare_preference(pair, 2, 1000, 0.1);
}

static void preferences(void **state) {
    (void)state;
    for_each_device(compare_preferences);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(against_reference),
                                            cmocka_unit_test(small),
                                            cmocka_unit_test(extremes),
                                            cmocka_unit_test(tiles),
                                            cmocka_unit_test(parts),
                                            cmocka_unit_test(tile_extremes),
                                            cmocka_unit_test(row_scales),
                                            cmocka_unit_test(preferences)};
    const struct CMUnitTest others[] = {cmocka_unit_test(gradient_of_reference)};
    return RUN_TESTS(on_devices, others);
}
