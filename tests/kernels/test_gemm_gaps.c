/* Matrix products whose rows of A and of C have gaps between them, against the same products without: the head's of an
 * odd vocabulary, whose rows a GPU keeps at multiples of 64 elements, and gaps that align nothing. */
#include "core/size.h"
#include "tests/kernels/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROW_MULTIPLE = 64 };

/* The operands of a product: A, B and what C has before. */
struct operands {
    struct buffer a, b, c;
};

/* Returns dense rows as rows that are a stride apart, with NaN between them. */
static struct buffer spread(const struct buffer *dense, int64_t row_bytes, int64_t stride_bytes) {
    const int64_t rows = dense->bytes / row_bytes;
    struct buffer spread = buffer_make(rows * stride_bytes);
    for (int64_t row = 0; row < rows; row++)
        memcpy((char *)spread.data + row * stride_bytes, (const char *)dense->data + row * row_bytes,
               (size_t)row_bytes);
    return spread;
}

static struct operands make_operands(const struct sw_gemm *dense) {
    return (struct operands){.a = buffer_random(dense->in, sw_gemm_a_elems(dense), 1, 1.0f),
                             .b = buffer_random(dense->in, dense->k * dense->n, 2, 1.0f),
                             .c = buffer_random(dense->out, sw_gemm_c_elems(dense), 3, 1.0f)};
}

static struct operands spread_operands(const struct sw_gemm *wide, const struct operands *dense) {
    const int64_t in = sw_dtype_bytes(wide->in), out = sw_dtype_bytes(wide->out);
    return (struct operands){.a = spread(&dense->a, sw_gemm_a_cols(wide) * in, sw_gemm_a_stride(wide) * in),
                             .b = buffer_copy(&dense->b),
                             .c = spread(&dense->c, wide->n * out, sw_gemm_c_stride(wide) * out)};
}

static void free_operands(struct operands *of) {
    buffer_free(&of->a);
    buffer_free(&of->b);
    buffer_free(&of->c);
}

static void multiply(struct sw_device *device, struct sw_stream *stream, const struct sw_gemm *shape,
                     struct operands *of) {
    int64_t scratch_bytes = 0;
    assert_ok(sw_device_prepare_gemm(device, shape, &scratch_bytes));
    struct buffer scratch = buffer_make(scratch_bytes);
    assert_ok(sw_gemm(stream, shape, of->a.data, of->b.data, NULL, of->c.data, scratch.data));
    buffer_free(&scratch);
}

/* Gaps change where operands lie. They change no bits where the device has none that depend on its threads; a library
 * may choose another way for them. Nothing is written into a gap, which still has spread's NaN. */
static void compare(struct pair *pair, struct sw_device *device, struct sw_stream *stream, const struct sw_gemm *wide) {
    const struct sw_device_info info = sw_device_info(device);
    struct sw_gemm dense = *wide;
    dense.a_stride = dense.c_stride = 0;
    struct operands want = make_operands(&dense), got = spread_operands(wide, &want);
    multiply(device, stream, &dense, &want);
    multiply(device, stream, wide, &got);
    const int64_t size = sw_dtype_bytes(wide->out), row_bytes = wide->n * size,
                  stride_bytes = sw_gemm_c_stride(wide) * size;
    struct buffer expected = spread(&want.c, row_bytes, stride_bytes);
    char what[128];
    snprintf(what, sizeof what, "%lldx%lldx%lld %c%c in rows of %lld and %lld", (long long)wide->m, (long long)wide->n,
             (long long)wide->k, wide->transpose_a ? 'T' : 'N', wide->transpose_b ? 'T' : 'N',
             (long long)wide->a_stride, (long long)wide->c_stride);
    for (int64_t row = 0; row < wide->m; row++) {
        char *row_got = (char *)got.c.data + row * stride_bytes, *row_want = (char *)expected.data + row * stride_bytes;
        const bool bits = info.host_memory && info.threads_keep_bits[wide->in];
        if (bits)
            assert_same_bits(what, pair, row_bytes, row_got, row_want);
        else
            assert_close(what, pair, wide->out, wide->n, row_got, row_want, 1e-5f, 2e-5f * sqrtf((float)wide->k));
        assert_same_bits("what lies between the rows of a product", pair, stride_bytes - row_bytes, row_got + row_bytes,
                         row_want + row_bytes);
    }
    free_operands(&want);
    free_operands(&got);
    buffer_free(&expected);
}

static const sw_dtype types[][2] = {
    {SW_F32, SW_F32}, {SW_BF16, SW_BF16}, {SW_BF16, SW_F32}, {SW_F16, SW_F16}, {SW_F16, SW_F32}};
enum { TYPES = sizeof types / sizeof types[0] };

/* A stored column of one row; tiles, blocks of terms and pieces that no size of them divides. */
static void all_products(struct pair *pair, struct sw_device *device, struct sw_stream *stream) {
    static const int64_t sizes[][3] = {{1, 257, 16}, {5, 1001, 9}, {64, 17, 301}, {97, 65, 3}, {203, 1303, 17}};
    enum { TRANSPOSITIONS = 4 };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int i = 0; i < TYPES * TRANSPOSITIONS; i++) {
            struct sw_gemm shape = {.m = sizes[s][0],
                                    .n = sizes[s][1],
                                    .k = sizes[s][2],
                                    .transpose_a = i & 1,
                                    .transpose_b = i & 2,
                                    .accumulate = i % 3 == 0,
                                    .in = types[i / TRANSPOSITIONS][0],
                                    .out = types[i / TRANSPOSITIONS][1]};
            const bool aligns = i % 5 > 0;
            shape.a_stride = aligns ? sw_round_up(sw_gemm_a_cols(&shape), ROW_MULTIPLE) : sw_gemm_a_cols(&shape) + 5;
            shape.c_stride = aligns ? sw_round_up(shape.n, ROW_MULTIPLE) : shape.n + 3;
            compare(pair, device, stream, &shape);
        }
}

static void products_of_device(struct pair *pair) {
    all_products(pair, pair->device, pair->stream);
}

static void products(void **state) {
    (void)state;
    for_each_device(products_of_device);
}

static void products_of_reference(void **state) {
    (void)state;
    struct pair pair = {.label = "ref"};
    assert_ok(sw_device_open("ref", 1, &pair.device));
    assert_ok(sw_stream_open(pair.device, &pair.stream));
    all_products(&pair, pair.device, pair.stream);
    sw_stream_close(pair.stream);
    sw_device_close(pair.device);
}

/* Many rows, which a CPU with products of bf16 packs where there are no gaps. */
static void products_in_pieces(struct pair *pair) {
    for (int t = 0; sw_device_info(pair->device).host_memory && t < TYPES; t++) {
        const struct sw_gemm shape = {.m = 1100,
                                      .n = 192,
                                      .k = 96,
                                      .in = types[t][0],
                                      .out = types[t][1],
                                      .a_stride = t % 2 == 0 ? 128 : 0,
                                      .c_stride = t % 2 == 0 ? 0 : 256};
        compare(pair, pair->device, pair->stream, &shape);
    }
}

static void pieces(void **state) {
    (void)state;
    for_each_device(products_in_pieces);
}

/* A stride without gaps is the shape that has none. */
static void equal_shapes(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    struct sw_gemm shape = {.m = 3, .n = 5, .k = 7};
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct operands of = make_operands(&shape);
    multiply(device, stream, &shape, &of);
    shape.a_stride = shape.k;
    shape.c_stride = shape.n;
    assert_ok(sw_gemm(stream, &shape, of.a.data, of.b.data, NULL, of.c.data, NULL));
    shape.c_stride = shape.n + 1;
    assert_int_equal(sw_gemm(stream, &shape, of.a.data, of.b.data, NULL, of.c.data, NULL), SW_ERR_INTERNAL);
    sw_error_clear();
    free_operands(&of);
    sw_stream_close(stream);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(products), cmocka_unit_test(pieces)};
    const struct CMUnitTest others[] = {cmocka_unit_test(products_of_reference), cmocka_unit_test(equal_shapes)};
    return RUN_TESTS(on_devices, others);
}
