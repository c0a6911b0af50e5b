/* Grouped products: every device, and the reference, against a loop over the rows of each expert; and the bits of runs
 * of experts and of threads. */
#include "tests/kernels/support.h"

#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The experts that have rows. BEHIND: the rows begin behind others, as those of a later run of experts. */
enum spread { ANY, ONE, SOME, NONE, BEHIND, SPREADS };
enum { FIRST_ROW = 3, GAP = 5 };

static const struct {
    int64_t experts, rows, n, k;
} sizes[] = {{1, 1, 1, 1},      {3, 5, 17, 9},     {8, 67, 64, 32},    {5, 40, 65, 130},
             {2, 31, 128, 600}, {4, 400, 40, 33},  {128, 200, 24, 64}, {2, 300, 130, 64},
             {3, 70, 33, 288},  {2, 20, 40, 1100}, {2, 30, 33, 2051},  {2, 1300, 21, 24}};

struct shape {
    struct sw_grouped_gemm s;
    int64_t all_rows; /* rows of a and c, with those that no expert has */
};

static struct shape shape_of(size_t size, sw_dtype type, int kind) {
    struct shape shape = {.s = {.experts = sizes[size].experts,
                                .rows = sizes[size].rows,
                                .n = sizes[size].n,
                                .k = sizes[size].k,
                                .weight_gradient = kind == 4,
                                .transpose_b = kind == 1 || kind == 3,
                                .bias = kind == 2 || kind == 3,
                                .in = type,
                                .out = kind == 0 || kind == 4 || kind == 7 ? SW_F32 : type}};
    if (kind >= 5) { /* with gaps, as products of pieces of rows have them */
        shape.s.weight_gradient = kind == 7;
        shape.s.transpose_b = kind == 5;
        shape.s.accumulate = kind != 7;
        shape.s.a_stride = (kind == 7 ? shape.s.n : shape.s.k) + GAP;
        shape.s.c_stride = kind == 5 ? shape.s.n + GAP : 0;
    }
    shape.s.matrix_stride = shape.s.n * shape.s.k + GAP;
    shape.s.bias_stride = shape.s.n + 2;
    shape.all_rows = shape.s.rows + 2 * FIRST_ROW;
    return shape;
}
enum { KINDS = 8 };

static struct buffer offsets_of(const struct shape *shape, enum spread spread) {
    const int64_t experts = shape->s.experts;
    struct buffer offset = buffer_zeros((experts + 1) * 4);
    int32_t *at = offset.data;
    const int64_t rows = spread == NONE ? 0 : shape->s.rows;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t drawn = (int64_t)(sw_rng_uniform(test_seed(), 61, (uint64_t)row) * (double)experts);
        at[1 + (spread == ONE ? experts / 2 : spread == SOME ? drawn / 3 * 3 : drawn)]++;
    }
    at[0] = spread == BEHIND ? FIRST_ROW : 0;
    for (int64_t e = 0; e < experts; e++)
        at[e + 1] += at[e];
    return offset;
}

struct operands {
    struct buffer offset, a, b, bias, c;
};

static int64_t matrices_elems(const struct sw_grouped_gemm *s) {
    return s->experts * s->matrix_stride;
}

static struct operands operands_of(const struct shape *shape, enum spread spread) {
    const struct sw_grouped_gemm *s = &shape->s;
    const int64_t b_elems = s->weight_gradient ? shape->all_rows * s->k : matrices_elems(s);
    const int64_t c_elems = s->weight_gradient ? matrices_elems(s) : shape->all_rows * sw_grouped_c_stride(s);
    return (struct operands){.offset = offsets_of(shape, spread),
                             .a = buffer_random(s->in, shape->all_rows * sw_grouped_a_stride(s), 71, 1.0f),
                             .b = buffer_random(s->in, b_elems, 72, 1.0f),
                             .bias = buffer_random(s->in, s->experts * s->bias_stride, 73, 1.0f),
                             .c = buffer_random(s->out, c_elems, 74, 1.0f)};
}

static void free_operands(struct operands *of) {
    struct buffer *all[] = {&of->offset, &of->a, &of->b, &of->bias, &of->c};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void multiply(struct sw_stream *stream, struct sw_device *device, const struct sw_grouped_gemm *s,
                     const struct operands *of) {
    int64_t scratch_bytes;
    assert_ok(sw_device_prepare_grouped_gemm(device, s, &scratch_bytes));
    struct buffer scratch = buffer_make(scratch_bytes);
    assert_ok(sw_grouped_gemm(stream, s, of->offset.data, of->a.data, of->b.data, s->bias ? of->bias.data : NULL,
                              of->c.data, scratch.data));
    assert_ok(sw_stream_synchronize(stream));
    buffer_free(&scratch);
}

/* Widened elements, so that the sums below take little time. */
static double *widened(sw_dtype type, const struct buffer *from) {
    const int64_t elems = from->bytes / sw_dtype_bytes(type);
    double *to = malloc((size_t)elems * sizeof *to + 1);
    assert_non_null(to);
    for (int64_t i = 0; i < elems; i++)
        to[i] = element(type, from->data, i);
    return to;
}

static int64_t expert_of(const int32_t *offset, int64_t row) {
    int64_t e = 0;
    while (row >= offset[e + 1])
        e++;
    return e;
}

/* Adds each row's products to c, an array that holds the values before. */
static void add_rows(const struct sw_grouped_gemm *s, const int32_t *offset, const double *a, const double *b,
                     const double *bias, double *c) {
    for (int64_t row = offset[0]; row < offset[s->experts]; row++) {
        const int64_t e = expert_of(offset, row), matrix = e * s->matrix_stride;
        const double *a_row = a + row * sw_grouped_a_stride(s);
        double *c_row = c + row * sw_grouped_c_stride(s);
        for (int64_t i = 0; s->weight_gradient && i < s->n; i++)
            for (int64_t j = 0; j < s->k; j++)
                c[matrix + i * s->k + j] += a_row[i] * b[row * s->k + j];
        const int64_t of_i = s->transpose_b ? s->k : 1, of_j = s->transpose_b ? 1 : s->n;
        for (int64_t i = 0; !s->weight_gradient && i < s->n; i++) {
            const double begin = s->bias ? bias[e * s->bias_stride + i] : 0.0;
            double sum = s->accumulate ? c_row[i] : begin;
            for (int64_t j = 0; j < s->k; j++)
                sum += a_row[j] * b[matrix + i * of_i + j * of_j];
            c_row[i] = sum;
        }
    }
}

/* Compares all of C: what the products do not write must keep its bits. */
static void check(struct pair *pair, struct sw_stream *stream, struct sw_device *device, const struct shape *shape,
                  enum spread spread) {
    const struct sw_grouped_gemm *s = &shape->s;
    struct operands of = operands_of(shape, spread);
    double *a = widened(s->in, &of.a), *b = widened(s->in, &of.b), *bias = widened(s->in, &of.bias),
           *c = widened(s->out, &of.c);
    struct buffer want = buffer_copy(&of.c);
    add_rows(s, of.offset.data, a, b, bias, c);
    const int64_t elems = want.bytes / sw_dtype_bytes(s->out);
    for (int64_t i = 0; i < elems; i++)
        set_element(s->out, want.data, i, (float)c[i]);
    multiply(stream, device, s, &of);
    const int64_t terms = s->weight_gradient ? s->rows : s->k, stride = sw_grouped_c_stride(s);
    assert_close("a grouped product", pair, s->out, elems, of.c.data, want.data, 1e-5f, 4e-6f * sqrtf((float)terms));
    for (int64_t i = 0; i < elems; i++) {
        const bool is_gap = s->weight_gradient ? i % s->matrix_stride >= s->n * s->k
                                               : i / stride < ((int32_t *)of.offset.data)[0] || i % stride >= s->n ||
                                                     i / stride >= ((int32_t *)of.offset.data)[s->experts];
        if (is_gap && element(s->out, of.c.data, i) != element(s->out, want.data, i))
            fail_msg("element %lld between the results on %s was written", (long long)i, pair->label);
    }
    free(a);
    free(b);
    free(bias);
    free(c);
    buffer_free(&want);
    free_operands(&of);
}

static void check_all(struct pair *pair) {
    const size_t every = device_is_emulated(pair->device) ? 6 : 3;
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++)
        for (int kind = 0; kind < KINDS * TEST_TYPES; kind++) {
            const struct shape shape = shape_of(size, test_types[kind % TEST_TYPES], kind / TEST_TYPES);
            for (int spread = 0; spread < SPREADS; spread++)
                if ((size + (size_t)kind + (size_t)spread) % every == 0)
                    check(pair, pair->stream, pair->device, &shape, (enum spread)spread);
        }
}

static void products_as_defined(void **state) {
    (void)state;
    for_each_device(check_all);
}

static void reference_as_defined(void **state) {
    (void)state;
    struct pair pair = {.label = "the reference"};
    assert_ok(sw_device_open("ref", 1, &pair.device));
    assert_ok(sw_stream_open(pair.device, &pair.stream));
    check_all(&pair);
    sw_stream_close(pair.stream);
    sw_device_close(pair.device);
}

/* Three calls of some experts each give the bits of one call. */
static void check_runs(struct pair *pair) {
    for (int kind = 0; kind < KINDS * TEST_TYPES; kind++)
        for (size_t size = 2; size < 6; size += 3) {
            const struct shape shape = shape_of(size, test_types[kind % TEST_TYPES], kind / TEST_TYPES);
            struct operands whole = operands_of(&shape, BEHIND), parts = operands_of(&shape, BEHIND);
            const struct sw_grouped_gemm *s = &shape.s;
            multiply(pair->stream, pair->device, s, &whole);
            for (int64_t first = 0; first < s->experts; first += 2) {
                struct sw_grouped_gemm run = *s;
                const int64_t in_bytes = sw_dtype_bytes(s->in), matrix = first * s->matrix_stride;
                struct operands of = parts;
                run.experts = s->experts - first < 2 ? 1 : 2;
                of.offset.data = (int32_t *)of.offset.data + first;
                of.bias.data = (char *)of.bias.data + first * s->bias_stride * in_bytes;
                if (s->weight_gradient)
                    of.c.data = (float *)of.c.data + matrix;
                else
                    of.b.data = (char *)of.b.data + matrix * in_bytes;
                multiply(pair->stream, pair->device, &run, &of);
            }
            assert_same_bits("products of runs of experts", pair, whole.c.bytes, parts.c.data, whole.c.data);
            free_operands(&whole);
            free_operands(&parts);
        }
}

static void runs_of_experts_have_the_same_bits(void **state) {
    (void)state;
    for_each_device(check_runs);
}

static struct operands multiplied_by(int threads, const struct shape *shape) {
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    struct operands of = operands_of(shape, ANY);
    assert_ok(sw_device_open("cpu", threads, &device));
    assert_ok(sw_stream_open(device, &stream));
    multiply(stream, device, &shape->s, &of);
    sw_stream_close(stream);
    sw_device_close(device);
    return of;
}

static void threads_have_the_same_bits(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS * TEST_TYPES; kind++)
        for (size_t size = 4; size < sizeof sizes / sizeof sizes[0]; size++) {
            const struct shape shape = shape_of(size, test_types[kind % TEST_TYPES], kind / TEST_TYPES);
            struct operands one = multiplied_by(1, &shape), four = multiplied_by(4, &shape);
            assert_memory_equal(one.c.data, four.c.data, (size_t)one.c.bytes);
            free_operands(&one);
            free_operands(&four);
        }
}

static void too_large_sides_are_refused(void **state) {
    (void)state;
    const int64_t large = SW_GEMM_MOST_SIDE + 1;
    const struct sw_grouped_gemm shape = {.experts = 1, .rows = large, .n = 8, .k = 8, .in = SW_F32, .out = SW_F32};
    struct sw_device *device = NULL;
    int64_t scratch_bytes;
    assert_ok(sw_device_open("cpu", 1, &device));
    assert_int_equal(sw_device_prepare_grouped_gemm(device, &shape, &scratch_bytes), SW_ERR_UNSUPPORTED);
    assert_non_null(strstr(sw_error_message(SW_ERR_UNSUPPORTED), "2147483648 x 8 x 8 is too large"));
    sw_error_clear();
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(products_as_defined),
                                            cmocka_unit_test(runs_of_experts_have_the_same_bits)};
    const struct CMUnitTest others[] = {cmocka_unit_test(reference_as_defined),
                                        cmocka_unit_test(threads_have_the_same_bits),
                                        cmocka_unit_test(too_large_sides_are_refused)};
    return RUN_TESTS(on_devices, others);
}
