/* Sums over rows: bias gradients, embeddings and their gradients. Orders are fixed, so bits are compared. */
#include "tests/kernels/support.h"

#include <string.h>

static const int64_t row_counts[] = {1, 63, 64, 65, 330}, col_counts[] = {1, 15, 17, 127, 128, 129, 255, 257, 1031};

static void compare_bias(struct pair *pair, sw_dtype type, int64_t rows, int64_t cols) {
    struct buffer dy = buffer_random(type, rows * cols, 1, 1.0f), got = buffer_random(SW_F32, cols, 2, 1.0f);
    struct buffer want = buffer_copy(&got);
    assert_ok(sw_bias_gradient(pair->stream, type, rows, cols, dy.data, got.data));
    assert_ok(sw_bias_gradient(pair->ref, type, rows, cols, dy.data, want.data));
    assert_same_bits("a bias gradient", pair, got.bytes, got.data, want.data);
    double sum = 0.0;
    for (int64_t row = 0; row < rows; row++)
        sum += element(type, dy.data, row * cols + cols - 1);
    buffer_free(&want);
    want = buffer_random(SW_F32, cols, 2, 1.0f);
    assert_near("a column sum", cols - 1, ((float *)got.data)[cols - 1], sum + ((float *)want.data)[cols - 1], 1e-5);
    buffer_free(&dy);
    buffer_free(&got);
    buffer_free(&want);
}

static void compare_biases(struct pair *pair) {
    for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
        for (size_t c = 0; c < sizeof col_counts / sizeof col_counts[0]; c++) {
            for (int t = 0; t < TEST_TYPES; t++)
                compare_bias(pair, test_types[t], row_counts[r], col_counts[c]);
        }
    }
}

static void bias_gradient(void **state) {
    (void)state;
    for_each_device(compare_biases);
}

enum { BATCH = 3, SEQ = 41, VOCAB = 29 };

static struct buffer make_tokens(void) {
    struct buffer tokens = buffer_make(BATCH * SEQ * 4);
    for (int64_t i = 0; i < BATCH * SEQ; i++)
        ((int32_t *)tokens.data)[i] = (int32_t)(i * i % VOCAB); /* squares repeat, so rows collide */
    return tokens;
}

/* Documents of 1, 2, 3, ... tokens; the last goes on to the sequence's end. */
static struct buffer make_document_starts(void) {
    struct buffer starts = buffer_make(BATCH * SEQ * 4);
    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t t = 0, first = 0, next = 1; t < SEQ; t++) {
            if (t == next) {
                next += next - first + 1;
                first = t;
            }
            ((int32_t *)starts.data)[b * SEQ + t] = (int32_t)first;
        }
    }
    return starts;
}

static void compare_embedding(struct pair *pair, sw_dtype type, int64_t cols, bool with_positions,
                              const int32_t *starts, struct sw_table_part rows, struct sw_table_part places,
                              float scale) {
    struct buffer tokens = make_tokens(), table = buffer_random(type, VOCAB * cols, 1, 1.0f);
    struct buffer positions = buffer_random(type, SEQ * cols, 2, 1.0f);
    struct buffer got = buffer_make(BATCH * SEQ * cols * sw_dtype_bytes(type)), want = buffer_make(got.bytes);
    const void *position_table = with_positions ? positions.data : NULL;
    assert_ok(sw_embedding_forward(pair->stream, type, BATCH, SEQ, cols, tokens.data, starts, table.data,
                                   position_table, got.data, rows, places, scale));
    assert_ok(sw_embedding_forward(pair->ref, type, BATCH, SEQ, cols, tokens.data, starts, table.data, position_table,
                                   want.data, rows, places, scale));
    assert_same_bits("an embedding", pair, got.bytes, got.data, want.data);
    struct buffer d_out = buffer_random(type, BATCH * SEQ * cols, 3, 1.0f);
    struct buffer got_table = buffer_random(SW_F32, VOCAB * cols, 4, 1.0f), want_table = buffer_copy(&got_table);
    struct buffer got_positions = buffer_random(SW_F32, SEQ * cols, 5, 1.0f),
                  want_positions = buffer_copy(&got_positions);
    assert_ok(sw_embedding_backward(pair->stream, type, BATCH, SEQ, cols, tokens.data, starts, d_out.data,
                                    got_table.data, with_positions ? got_positions.data : NULL, rows, places, scale));
    assert_ok(sw_embedding_backward(pair->ref, type, BATCH, SEQ, cols, tokens.data, starts, d_out.data, want_table.data,
                                    with_positions ? want_positions.data : NULL, rows, places, scale));
    assert_same_bits("a table's gradient", pair, got_table.bytes, got_table.data, want_table.data);
    assert_same_bits("the positions' gradient", pair, got_positions.bytes, got_positions.data, want_positions.data);
    struct buffer *all[] = {&tokens, &table,     &positions,  &got,           &want,
                            &d_out,  &got_table, &want_table, &got_positions, &want_positions};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare_embeddings(struct pair *pair) {
    const struct sw_table_part whole = {0};
    struct buffer starts = make_document_starts();
    for (size_t c = 0; c < sizeof col_counts / sizeof col_counts[0]; c++) {
        for (int t = 0; t < TEST_TYPES; t++) {
            for (int cut = 0; cut < 2; cut++) {
                const struct sw_table_part rows = cut ? (struct sw_table_part){VOCAB / 3, VOCAB / 2} : whole;
                const struct sw_table_part places = cut ? (struct sw_table_part){1, SEQ / 2} : whole;
                compare_embedding(pair, test_types[t], col_counts[c], false, NULL, rows, places, 0.0f);
                compare_embedding(pair, test_types[t], col_counts[c], true, NULL, rows, places, 3.7f);
                compare_embedding(pair, test_types[t], col_counts[c], true, starts.data, rows, places, 0.0f);
            }
        }
    }
    buffer_free(&starts);
}

static void embedding(void **state) {
    (void)state;
    for_each_device(compare_embeddings);
}

/* More tokens than a GPU's block looks at in one go, of a table with more rows than there are buckets of them: runs of
 * one token, tokens that share a bucket, and tokens that come back. */
static void compare_long_embedding(struct pair *pair) {
    enum { TOKENS = 2500, ROWS = 1200, COLS = 12 };
    struct buffer tokens = buffer_make(TOKENS * 4), d_out = buffer_random(SW_F32, TOKENS * COLS, 3, 1.0f);
    struct buffer got = buffer_random(SW_F32, ROWS * COLS, 4, 1.0f), want = buffer_copy(&got);
    for (int64_t i = 0; i < TOKENS; i++)
        ((int32_t *)tokens.data)[i] = (int32_t)(i % 7 < 3 ? 5 + 512 * (i % 3) : i * i % ROWS);
    assert_ok(sw_embedding_backward(pair->stream, SW_F32, 1, TOKENS, COLS, tokens.data, NULL, d_out.data, got.data,
                                    NULL, .positions_part = {0}));
    assert_ok(sw_embedding_backward(pair->ref, SW_F32, 1, TOKENS, COLS, tokens.data, NULL, d_out.data, want.data, NULL,
                                    .positions_part = {0}));
    assert_same_bits("the gradient of many tokens", pair, got.bytes, got.data, want.data);
    struct buffer *all[] = {&tokens, &d_out, &got, &want};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void long_embedding(void **state) {
    (void)state;
    for_each_device(compare_long_embedding);
}

/* The parts of two tables add up to the whole: each row comes from where it is. */
static void parts_of_tables_add_up(void **state) {
    enum { ROWS = 2, COLS = 2, TOKENS = 4 };
    static const int32_t tokens[TOKENS] = {0, 3, 2, 1};
    static const float table[] = {1, 2, 3, 4, 5, 6, 7, 8}, positions[] = {10, 20, 30, 40, 50, 60, 70, 80};
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    (void)state;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    float whole[TOKENS * COLS], sum[TOKENS * COLS] = {0}, acc[2][ROWS * COLS] = {{0}};
    assert_ok(sw_embedding_forward(stream, SW_F32, 1, TOKENS, COLS, tokens, NULL, table, positions, whole,
                                   .positions_part = {0}));
    for (int64_t p = 0; p < 2; p++) {
        const struct sw_table_part part = {p * ROWS, ROWS};
        float out[TOKENS * COLS];
        assert_ok(sw_embedding_forward(stream, SW_F32, 1, TOKENS, COLS, tokens, NULL, table + p * ROWS * COLS,
                                       positions + p * ROWS * COLS, out, part, part, 1.0f));
        for (int i = 0; i < TOKENS * COLS; i++)
            sum[i] += out[i];
        assert_ok(sw_embedding_backward(stream, SW_F32, 1, TOKENS, COLS, tokens, NULL, whole, acc[p], NULL, part, part,
                                        1.0f));
    }
    assert_memory_equal(sum, whole, sizeof sum);
    assert_true(acc[0][0] == whole[0] && acc[0][2] == whole[6] && acc[1][0] == whole[4] && acc[1][2] == whole[2]);
    sw_stream_close(stream);
    sw_device_close(device);
}

/* Written out for one case, independent of the reference. */
static void embedding_by_hand(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    const int32_t tokens[4] = {2, 0, 2, 1};
    const float table[3][2] = {{1, 2}, {3, 4}, {5, 6}}, positions[2][2] = {{10, 20}, {30, 40}};
    const float d_out[4][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
    float out[4][2], table_acc[3][2] = {{0}}, positions_acc[2][2] = {{0}};
    assert_ok(
        sw_embedding_forward(stream, SW_F32, 2, 2, 2, tokens, NULL, table, positions, out, .positions_part = {0}));
    assert_ok(sw_embedding_backward(stream, SW_F32, 2, 2, 2, tokens, NULL, d_out, table_acc[0], positions_acc[0],
                                    .positions_part = {0}));
    static const float want_out[4][2] = {{15, 26}, {31, 42}, {15, 26}, {33, 44}};
    static const float want_table[3][2] = {{3, 4}, {7, 8}, {6, 8}}, want_positions[2][2] = {{6, 8}, {10, 12}};
    assert_memory_equal(out, want_out, sizeof out);
    assert_memory_equal(table_acc, want_table, sizeof table_acc);
    assert_memory_equal(positions_acc, want_positions, sizeof positions_acc);
    static const float want_scaled[2] = {20, 32}, want_doubled[2] = {6, 8};
    float scaled[4][2], scaled_acc[3][2] = {{0}};
    assert_ok(sw_embedding_forward(stream, SW_F32, 2, 2, 2, tokens, NULL, table, positions, scaled, .scale = 2.0f));
    assert_ok(sw_embedding_backward(stream, SW_F32, 2, 2, 2, tokens, NULL, d_out, scaled_acc[0], NULL, .scale = 2.0f));
    assert_memory_equal(scaled[0], want_scaled, sizeof want_scaled);
    assert_memory_equal(scaled_acc[0], want_doubled, sizeof want_doubled);
    /* The second sequence is two documents of one token. */
    const int32_t starts[4] = {0, 0, 0, 1};
    static const float want_last[2] = {13, 24}, want_restarted[2][2] = {{13, 16}, {3, 4}};
    memset(positions_acc, 0, sizeof positions_acc);
    assert_ok(
        sw_embedding_forward(stream, SW_F32, 2, 2, 2, tokens, starts, table, positions, out, .positions_part = {0}));
    assert_ok(sw_embedding_backward(stream, SW_F32, 2, 2, 2, tokens, starts, d_out, table_acc[0], positions_acc[0],
                                    .positions_part = {0}));
    assert_memory_equal(out, want_out, 3 * sizeof out[0]);
    assert_memory_equal(out[3], want_last, sizeof want_last);
    assert_memory_equal(positions_acc, want_restarted, sizeof positions_acc);
    sw_stream_close(stream);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(bias_gradient), cmocka_unit_test(embedding),
                                            cmocka_unit_test(long_embedding)};
    const struct CMUnitTest others[] = {cmocka_unit_test(embedding_by_hand), cmocka_unit_test(parts_of_tables_add_up)};
    return RUN_TESTS(on_devices, others);
}
