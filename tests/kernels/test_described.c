/* The device that only counts: what ops cost is compared with sums over the pairs and elements that they concern. */
#include "kernels/described.h"
#include "tests/kernels/support.h"

#include "kernels/device_ops.h"

#include <math.h>

enum { SEQ = 13, HEADS = 6, KV_HEADS = 2, HEAD_DIM = 8, BATCH = 3 };
#define PRODUCT_RATE 1e9
#define ATTENTION_RATE 5e8
#define MEMORY_RATE 1e7

static struct sw_device_description description(void) {
    return (struct sw_device_description){.name = "made up",
                                          .memory_bytes = INT64_C(1) << 40,
                                          .memory_bytes_per_s = MEMORY_RATE,
                                          .product_flops_per_s = {PRODUCT_RATE, PRODUCT_RATE, PRODUCT_RATE},
                                          .attention_forward_flops_per_s = ATTENTION_RATE,
                                          .attention_backward_flops_per_s = ATTENTION_RATE / 2.0};
}

struct fixture {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *memory;
};

static struct fixture open_fixture(const struct sw_device_description *what) {
    struct fixture f;
    assert_ok(sw_device_open_described(what, &f.device));
    assert_ok(sw_stream_open(f.device, &f.stream));
    assert_ok(sw_memory_open(f.device, "test", SW_MEMORY_DEVICE, INT64_C(1) << 38, &f.memory));
    return f;
}

static void close_fixture(struct fixture *f) {
    sw_memory_close(f->memory);
    sw_stream_close(f->stream);
    sw_device_close(f->device);
}

static void assert_same(double found, double expected) {
    if (fabs(found - expected) > 1e-9 * expected)
        fail_msg("%.12g instead of %.12g", found, expected);
}

static void products_take_arithmetic_or_bytes(void **state) {
    (void)state;
    struct sw_device_description what = description();
    what.op_s = 0.25;
    struct fixture f = open_fixture(&what);
    char *base = sw_memory_base(f.memory);
    const struct sw_gemm wide = {.m = 1000, .n = 2000, .k = 3000, .in = SW_BF16, .out = SW_BF16};
    const struct sw_gemm thin = {.m = 1, .n = 2000, .k = 3000, .in = SW_BF16, .out = SW_F32, .accumulate = true};
    int64_t scratch_bytes;
    assert_ok(sw_device_prepare_gemm(f.device, &wide, &scratch_bytes));
    assert_ok(sw_device_prepare_gemm(f.device, &thin, &scratch_bytes));
    assert_ok(sw_gemm(f.stream, &wide, base, base + 4096, NULL, base + 8192, base + 16384));
    assert_same(sw_device_counted_s(f.device), 2.0 * 1000 * 2000 * 3000 / PRODUCT_RATE + 0.25);
    assert_ok(sw_gemm(f.stream, &thin, base, base + 4096, NULL, base + 8192, base + 16384));
    const double bytes = 2.0 * (3000 + 2000 * 3000) + 2 * 4.0 * 2000;
    const double two_s = 2.0 * 1000 * 2000 * 3000 / PRODUCT_RATE + 0.25 + bytes / MEMORY_RATE + 0.25;
    assert_same(sw_device_counted_s(f.device), two_s);
    /* An addend is read as what a product accumulates in is. */
    const struct sw_gemm added = {.m = 1, .n = 2000, .k = 3000, .in = SW_BF16, .out = SW_F32, .addend = true};
    assert_ok(sw_device_prepare_gemm(f.device, &added, &scratch_bytes));
    assert_ok(sw_gemm_add(f.stream, &added, base, base + 4096, NULL, base + 32768, base + 8192, base + 16384));
    assert_same(sw_device_counted_s(f.device), two_s + bytes / MEMORY_RATE + 0.25);
    close_fixture(&f);
}

/* The pairs of a query and a key that it sees, counted one by one. */
static int64_t count_pairs(const struct sw_attention *shape) {
    int64_t pairs = 0;
    for (int64_t t = 0; t < shape->seq; t++)
        for (int64_t key = 0; key <= shape->past + t; key++)
            pairs += shape->window == 0 || key > shape->past + t - shape->window;
    return pairs;
}

static void attention_takes_the_pairs_that_are_seen(void **state) {
    (void)state;
    struct sw_device_description what = description();
    what.memory_bytes_per_s = 1e30;
    struct fixture f = open_fixture(&what);
    char *base = sw_memory_base(f.memory);
    struct sw_attention shape = {.batch = BATCH,
                                 .seq = SEQ,
                                 .heads = HEADS,
                                 .kv_heads = KV_HEADS,
                                 .head_dim = HEAD_DIM,
                                 .q_stride = HEADS * HEAD_DIM,
                                 .k_stride = KV_HEADS * HEAD_DIM,
                                 .v_stride = KV_HEADS * HEAD_DIM,
                                 .o_stride = HEADS * HEAD_DIM,
                                 .scale = 1.0f};
    for (shape.past = 0; shape.past < 2 * SEQ; shape.past += 5)
        for (shape.window = 0; shape.window < 3 * SEQ; shape.window++) {
            const double before_s = sw_device_counted_s(f.device);
            assert_ok(sw_attention_forward(f.stream, SW_BF16, &shape, base, base + 64, base + 128, base + 192,
                                           (float *)(void *)(base + 256), base + 320));
            const double flops = 2.0 * 2.0 * HEAD_DIM * BATCH * HEADS * (double)count_pairs(&shape);
            if (fabs(sw_device_counted_s(f.device) - before_s - flops / ATTENTION_RATE) > 1e-9 * flops / ATTENTION_RATE)
                fail_msg("past %lld, window %lld", (long long)shape.past, (long long)shape.window);
        }
    close_fixture(&f);
}

/* Backward has five products, and each query meets half a tile of keys that the mask hides. */
static void attention_backward_takes_whole_tiles(void **state) {
    (void)state;
    enum { TILE_ROWS = 4 };
    struct sw_device_description what = description();
    what.memory_bytes_per_s = 1e30;
    what.attention_tile_rows = TILE_ROWS;
    struct fixture f = open_fixture(&what);
    char *base = sw_memory_base(f.memory);
    const struct sw_attention shape = {.batch = BATCH,
                                       .seq = SEQ,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_dim = HEAD_DIM,
                                       .q_stride = HEADS * HEAD_DIM,
                                       .k_stride = KV_HEADS * HEAD_DIM,
                                       .v_stride = KV_HEADS * HEAD_DIM,
                                       .o_stride = HEADS * HEAD_DIM,
                                       .scale = 1.0f};
    float *const sums = (float *)(void *)(base + 256);
    assert_ok(sw_attention_backward(f.stream, SW_BF16, &shape, base, base + 64, base + 128, base + 192, base + 320,
                                    sums, base + 384, base + 448, base + 512, base + 576));
    const double pairs = (double)count_pairs(&shape) + SEQ * TILE_ROWS / 2.0;
    assert_same(sw_device_counted_s(f.device), 5.0 * 2.0 * HEAD_DIM * BATCH * HEADS * pairs / (ATTENTION_RATE / 2.0));
    close_fixture(&f);
}

/* Activated values cost the one pass that writes them where a backward pass makes them. */
static void activated_values_take_one_pass_more(void **state) {
    (void)state;
    const struct sw_device_description what = description();
    struct fixture f = open_fixture(&what);
    char *base = sw_memory_base(f.memory);
    const int64_t rows = 1000, cols = 3000;
    const double pass_s = 2.0 * (double)(rows * cols) / MEMORY_RATE;
    const struct {
        bool gated;
        void *activated;
        double passes;
    } cases[] = {{false, NULL, 3.0}, {false, base + 4096, 4.0}, {true, NULL, 5.0}, {true, base + 4096, 6.0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double before_s = sw_device_counted_s(f.device);
        assert_ok(cases[i].gated ? sw_gated_backward(f.stream, SW_BF16, SW_SILU, rows, cols, base, base + 1024,
                                                     base + 2048, cases[i].activated, SW_ALL_ROWS)
                                 : sw_activation_backward(f.stream, SW_BF16, SW_SILU, rows * cols, base, base + 1024,
                                                          base + 2048, cases[i].activated));
        assert_same(sw_device_counted_s(f.device) - before_s, cases[i].passes * pass_s);
    }
    close_fixture(&f);
}

/* A grouped product takes the arithmetic of its most rows, or the bytes of these and of every expert's matrix. */
static void grouped_products_take_their_most_rows(void **state) {
    (void)state;
    const struct sw_device_description what = description();
    struct fixture f = open_fixture(&what);
    char *base = sw_memory_base(f.memory);
    const struct sw_grouped_gemm shape = {.experts = 4,
                                          .rows = 1000,
                                          .n = 2000,
                                          .k = 3000,
                                          .transpose_b = true,
                                          .in = SW_BF16,
                                          .out = SW_BF16,
                                          .matrix_stride = 2000 * 3000};
    struct sw_grouped_gemm few = shape;
    int64_t scratch_bytes;
    assert_ok(sw_device_prepare_grouped_gemm(f.device, &shape, &scratch_bytes));
    assert_ok(
        sw_grouped_gemm(f.stream, &shape, (int32_t *)(void *)base, base + 64, base + 128, NULL, base + 192, base));
    const double flops_s = 2.0 * 1000 * 2000 * 3000 / PRODUCT_RATE;
    assert_same(sw_device_counted_s(f.device), flops_s);
    few.rows = 1;
    few.weight_gradient = true;
    few.transpose_b = false;
    few.out = SW_F32;
    assert_ok(sw_grouped_gemm(f.stream, &few, (int32_t *)(void *)base, base + 64, base + 128, NULL, base + 192, base));
    const double bytes = 2.0 * (2000 + 3000) + 2.0 * 4.0 * 4 * 2000 * 3000;
    assert_same(sw_device_counted_s(f.device), flops_s + bytes / MEMORY_RATE);
    close_fixture(&f);
}

static void nothing_of_its_memory_is_touched(void **state) {
    (void)state;
    const struct sw_device_description what = description();
    struct fixture f = open_fixture(&what);
    char *base = sw_memory_base(f.memory);
    const int64_t elems = INT64_C(1) << 36;
    assert_ok(sw_zero(f.stream, base, sw_memory_bytes(f.memory)));
    assert_ok(sw_add(f.stream, SW_BF16, elems, base, base, base));
    assert_same(sw_device_counted_s(f.device),
                (double)sw_memory_bytes(f.memory) / MEMORY_RATE + 6.0 * (double)elems / MEMORY_RATE);
    const struct sw_device_info info = sw_device_info(f.device);
    assert_true(info.described && info.asynchronous && !info.host_memory && info.memory_bytes == INT64_C(1) << 40);
    close_fixture(&f);
}

/* A model finds every function that it can call. The device has no ops of the host, which end the table. */
static void every_function_is_there(void **state) {
    (void)state;
    const struct sw_device_description what = description();
    struct fixture f = open_fixture(&what);
    const size_t left_out[] = {offsetof(struct sw_device_ops, use),
                               offsetof(struct sw_device_ops, check_warpgroups),
                               offsetof(struct sw_device_ops, update_muon), /* it is priced by its operations */
                               offsetof(struct sw_device_ops, use_algorithms),
                               offsetof(struct sw_device_ops, algorithm),
                               offsetof(struct sw_device_ops, row_product_scratch_bytes),
                               offsetof(struct sw_device_ops, row_product),
                               offsetof(struct sw_device_ops, block_product_scratch_bytes),
                               offsetof(struct sw_device_ops, block_product),
                               offsetof(struct sw_device_ops, pack_panel)};
    for (size_t at = 0; at < offsetof(struct sw_device_ops, op); at += sizeof(void (*)(void))) {
        void (*function)(void);
        bool may_lack = false;
        for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++)
            may_lack |= left_out[i] == at;
        memcpy(&function, (const char *)&f.device->ops + at, sizeof function);
        if (function == NULL && !may_lack)
            fail_msg("the function at byte %zu of the table is missing", at);
    }
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_take_arithmetic_or_bytes),
        cmocka_unit_test(attention_takes_the_pairs_that_are_seen),
        cmocka_unit_test(attention_backward_takes_whole_tiles),
        cmocka_unit_test(activated_values_take_one_pass_more),
        cmocka_unit_test(grouped_products_take_their_most_rows),
        cmocka_unit_test(nothing_of_its_memory_is_touched),
        cmocka_unit_test(every_function_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
