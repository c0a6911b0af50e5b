/* Matrix products: every transposition, type, bias, accumulation and addend, against sums in double. */
#include "core/size.h"
#include "tests/kernels/support.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct shape {
    int64_t m, n, k;
};
static const struct shape shapes[] = {{1, 1, 1},    {1, 17, 65}, {15, 16, 17},    {64, 64, 64},  {63, 65, 31},
                                      {97, 3, 128}, {5, 257, 9}, {128, 48, 1009}, {1, 4501, 37}, {1, 70, 1009}};

static const sw_dtype types[][2] = {
    {SW_F32, SW_F32}, {SW_BF16, SW_BF16}, {SW_BF16, SW_F32}, {SW_F16, SW_F16}, {SW_F16, SW_F32}};
enum { TYPES = sizeof types / sizeof types[0], SHAPES = sizeof shapes / sizeof shapes[0] };

/* fp32 sums of k products of deviation 1 lose a few units times the square root of k. Tensor cores cut sums off instead
 * of rounding them. */
static float lost_in_sums(const struct pair *pair, const struct sw_gemm *shape) {
    const bool cut_off = !sw_device_info(pair->device).host_memory && shape->in != SW_F32;
    return (cut_off ? 2e-5f : 5e-6f) * sqrtf((float)shape->k);
}

/* `want` keeps the reference's result, which the first device computes for all. */
static void compare_products(struct pair *pair, const struct sw_gemm *shape, struct buffer *want) {
    struct buffer a = buffer_random(shape->in, shape->m * shape->k, 1, 1.0f);
    struct buffer b = buffer_random(shape->in, shape->k * shape->n, 2, 1.0f);
    struct buffer bias = buffer_random(shape->in, shape->n, 3, 1.0f);
    struct buffer before = buffer_random(shape->out, shape->m * shape->n, 4, 1.0f);
    struct buffer got = shape->accumulate ? buffer_copy(&before) : buffer_make(before.bytes);
    int64_t scratch_bytes = 0, ref_scratch_bytes = 0;
    assert_ok(sw_device_prepare_gemm(pair->device, shape, &scratch_bytes));
    struct buffer scratch = buffer_make(scratch_bytes);
    const void *bias_or_null = shape->bias ? bias.data : NULL;
    assert_ok(sw_gemm(pair->stream, shape, a.data, b.data, bias_or_null, got.data, scratch.data));
    if (want->data == NULL) {
        *want = shape->accumulate ? buffer_copy(&before) : buffer_make(before.bytes);
        assert_ok(sw_device_prepare_gemm(pair->ref_device, shape, &ref_scratch_bytes));
        assert_ok(sw_gemm(pair->ref, shape, a.data, b.data, bias_or_null, want->data, NULL));
    }
    char what[128];
    snprintf(what, sizeof what, "%lldx%lldx%lld %c%c%s%s", (long long)shape->m, (long long)shape->n,
             (long long)shape->k, shape->transpose_a ? 'T' : 'N', shape->transpose_b ? 'T' : 'N',
             shape->bias ? " with bias" : "", shape->accumulate ? " accumulated" : "");
    assert_close(what, pair, shape->out, shape->m * shape->n, got.data, want->data, 1e-5f, lost_in_sums(pair, shape));
    struct buffer *all[] = {&a, &b, &bias, &before, &got, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void free_wanted(struct buffer *wanted, int count) {
    for (int i = 0; i < count; i++)
        if (wanted[i].data != NULL)
            buffer_free(&wanted[i]);
}

enum { TRANSPOSITIONS = 4, PLAIN_BIAS_ACCUMULATE = 3, WAYS = TRANSPOSITIONS * PLAIN_BIAS_ACCUMULATE };
static struct buffer wanted_products[SHAPES][TYPES][WAYS];

static void all_products(struct pair *pair) {
    for (int s = 0; s < SHAPES; s++) {
        for (int t = 0; t < TYPES; t++) {
            for (int i = 0; i < WAYS; i++) {
                const int transposition = i % TRANSPOSITIONS, mode = i / TRANSPOSITIONS;
                if (mode == 1 && types[t][0] != types[t][1])
                    continue;
                const struct sw_gemm shape = {.m = shapes[s].m,
                                              .n = shapes[s].n,
                                              .k = shapes[s].k,
                                              .transpose_a = transposition & 1,
                                              .transpose_b = transposition & 2,
                                              .bias = mode == 1,
                                              .accumulate = mode == 2,
                                              .in = types[t][0],
                                              .out = types[t][1]};
                compare_products(pair, &shape, &wanted_products[s][t][i]);
            }
        }
    }
}

/* On a CPU, threads take pieces of a large product. The pieces of the last row and column are smaller. */
static void products_of_shape(struct pair *pair, const struct shape *size,
                              struct buffer wanted[TYPES][TRANSPOSITIONS]) {
    enum { MODES = 3 };
    for (int t = 0; t < TYPES; t++)
        for (int transposition = 0; transposition < TRANSPOSITIONS; transposition++) {
            const int mode = types[t][0] != types[t][1] ? 2 : transposition % MODES;
            const struct sw_gemm shape = {.m = size->m,
                                          .n = size->n,
                                          .k = size->k,
                                          .transpose_a = transposition & 1,
                                          .transpose_b = transposition & 2,
                                          .bias = mode == 1,
                                          .accumulate = mode == 2,
                                          .in = types[t][0],
                                          .out = types[t][1]};
            compare_products(pair, &shape, &wanted[t][transposition]);
        }
}

/* The second shape is packed where the CPU multiplies pairs of bf16. */
static const struct shape large_shapes[] = {{801, 1703, 5}, {1100, 192, 96}};
enum { LARGE_SHAPES = sizeof large_shapes / sizeof large_shapes[0] };
static struct buffer wanted_pieces[LARGE_SHAPES][TYPES][TRANSPOSITIONS];

static void products_in_pieces(struct pair *pair) {
    for (int i = 0; sw_device_info(pair->device).host_memory && i < LARGE_SHAPES; i++)
        products_of_shape(pair, &large_shapes[i], wanted_pieces[i]);
}

static void pieces(void **state) {
    (void)state;
    for_each_device(products_in_pieces);
    free_wanted(wanted_pieces[0][0], LARGE_SHAPES * TYPES * TRANSPOSITIONS);
}

/* Small whole numbers, whose sums are the same in any order and type. */
static struct buffer whole_numbers(sw_dtype type, int64_t elems, uint64_t stream, float most) {
    struct buffer buffer = buffer_random(type, elems, stream, most / 2.0f);
    for (int64_t i = 0; i < elems; i++)
        set_element(type, buffer.data, i, fmaxf(-most, fminf(most, rintf(element(type, buffer.data, i)))));
    return buffer;
}

static struct buffer multiply(struct pair *pair, struct sw_stream *stream, struct sw_device *device,
                              const struct sw_gemm *shape, const struct buffer in[4]) {
    int64_t scratch_bytes = 0;
    assert_ok(sw_device_prepare_gemm(device, shape, &scratch_bytes));
    struct buffer c = buffer_make(in[3].bytes), scratch = buffer_make(scratch_bytes), addend = buffer_copy(&in[3]);
    assert_ok(sw_gemm_add(stream, shape, in[0].data, in[1].data, shape->bias ? in[2].data : NULL,
                          shape->addend ? addend.data : NULL, c.data, scratch.data));
    assert_same_bits("an addend after its product", pair, addend.bytes, addend.data, in[3].data);
    buffer_free(&scratch);
    buffer_free(&addend);
    return c;
}

/* Whole numbers give the reference's bits; of others, on the host, those of the product and the sum as two ops. */
static void compare_addend(struct pair *pair, const struct sw_gemm *shape, bool whole) {
    struct buffer in[4];
    const int64_t elems[4] = {shape->m * shape->k, shape->k * shape->n, shape->n, shape->m * shape->n};
    for (int i = 0; i < 4; i++) {
        const sw_dtype type = i == 3 ? shape->out : shape->in;
        in[i] = whole ? whole_numbers(type, elems[i], 5 + (uint64_t)i, i < 2 ? 1.0f : 8.0f)
                      : buffer_random(type, elems[i], 5 + (uint64_t)i, 1.0f);
    }
    struct sw_gemm plain = *shape;
    plain.addend = false;
    /* A shape without the addend is another one. */
    int64_t scratch_bytes = 0;
    assert_ok(sw_device_prepare_gemm(pair->device, &plain, &scratch_bytes));
    struct buffer got = multiply(pair, pair->stream, pair->device, shape, in);
    struct buffer want = whole ? multiply(pair, pair->ref, pair->ref_device, shape, in)
                               : multiply(pair, pair->stream, pair->device, &plain, in);
    if (!whole)
        assert_ok(sw_add(pair->stream, shape->out, elems[3], in[3].data, want.data, want.data));
    assert_same_bits(whole ? "a product and its addend" : "a product and its addend in one", pair, got.bytes, got.data,
                     want.data);
    for (int i = 0; i < 4; i++)
        buffer_free(&in[i]);
    buffer_free(&got);
    buffer_free(&want);
}

static void all_addends(struct pair *pair) {
    enum { MOST_TERMS = 33 };
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < TYPES; t++)
            for (int bias = 0; bias < (types[t][0] == types[t][1] ? 2 : 1); bias++) {
                const struct sw_gemm shape = {.m = shapes[s].m,
                                              .n = shapes[s].n,
                                              .k = sw_min_i64(shapes[s].k, MOST_TERMS),
                                              .transpose_a = s % 3 == 1,
                                              .transpose_b = s % 2 == 1,
                                              .bias = bias == 1,
                                              .addend = true,
                                              .in = types[t][0],
                                              .out = types[t][1]};
                compare_addend(pair, &shape, true);
                if (sw_device_info(pair->device).host_memory)
                    compare_addend(pair, &shape, false);
            }
}

static void addends(void **state) {
    (void)state;
    for_each_device(all_addends);
}

static void products(void **state) {
    (void)state;
    for_each_device(all_products);
    free_wanted(wanted_products[0][0], SHAPES * TYPES * WAYS);
}

/* A product by the CPU device, whose scratch of *out_scratch_bytes is not written beyond. */
static struct buffer product_by(const char *name, int threads, const struct sw_gemm *shape, const struct buffer in[4],
                                int64_t *out_scratch_bytes) {
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open(name, threads, &device));
    assert_ok(sw_stream_open(device, &stream));
    assert_ok(sw_device_prepare_gemm(device, shape, out_scratch_bytes));
    struct buffer scratch = buffer_make(*out_scratch_bytes), c = buffer_copy(&in[3]);
    assert_ok(sw_gemm(stream, shape, in[0].data, in[1].data, shape->bias ? in[2].data : NULL, c.data, scratch.data));
    sw_stream_close(stream);
    sw_device_close(device);
    buffer_free(&scratch);
    return c;
}

static void make_operands(const struct sw_gemm *shape, struct buffer out[4]) {
    const int64_t elems[4] = {shape->m * shape->k, shape->k * shape->n, shape->n, shape->m * shape->n};
    for (int i = 0; i < 4; i++)
        out[i] = buffer_random(i == 3 ? shape->out : shape->in, elems[i], 11 + (uint64_t)i, 1.0f);
}

static void free_operands(struct buffer operands[4]) {
    for (int i = 0; i < 4; i++)
        buffer_free(&operands[i]);
}

/* Returns whether the machine has this device and threads keep the bits of the type. */
static bool keeps_bits(const char *name, sw_dtype type) {
    struct sw_device *device = NULL;
    const sw_status status = sw_device_open(name, 1, &device);
    const bool keeps = status == SW_OK && sw_device_info(device).threads_keep_bits[type];
    if (status == SW_ERR_UNSUPPORTED)
        sw_error_clear();
    else
        assert_ok(status);
    sw_device_close(device);
    return keeps;
}

/* Threads decide who computes, never what, in products of one row and in those whose operands are packed in blocks. */
static void expect_same_bits(const char *name, const struct sw_gemm *shape) {
    struct buffer in[4];
    int64_t scratch_bytes;
    make_operands(shape, in);
    struct buffer one = product_by(name, 1, shape, in, &scratch_bytes);
    for (int threads = 2; threads <= 5; threads++) {
        struct buffer many = product_by(name, threads, shape, in, &scratch_bytes);
        if (memcmp(one.data, many.data, (size_t)one.bytes) != 0)
            fail_msg("%s, %s to %s, %lld x %lld x %lld %c%c: %d threads change the bits", name,
                     sw_dtype_name(shape->in), sw_dtype_name(shape->out), (long long)shape->m, (long long)shape->n,
                     (long long)shape->k, shape->transpose_a ? 'T' : 'N', shape->transpose_b ? 'T' : 'N', threads);
        buffer_free(&many);
    }
    buffer_free(&one);
    free_operands(in);
}

static const char *const cpus[] = {"cpu:baseline", "cpu:avx2", "cpu:avx512", "cpu"};
enum { CPUS = sizeof cpus / sizeof cpus[0] };

static void same_bits_for_any_threads(void **state) {
    (void)state;
    static const struct shape sizes[] = {
        {1, 3001, 301}, {203, 405, 523}, {7, 1303, 257}, {801, 67, 64}, {395, 1, 9001}};
    for (int cpu = 0; cpu < CPUS; cpu++)
        for (int t = 0; t < TYPES; t++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                const bool same_type = types[t][0] == types[t][1];
                const struct sw_gemm shape = {.m = sizes[s].m,
                                              .n = sizes[s].n,
                                              .k = sizes[s].k,
                                              .transpose_a = (s + (size_t)t) % 2 == 1,
                                              .transpose_b = (s + (size_t)t) / 2 % 2 == 1,
                                              .bias = same_type && s % 2 == 0,
                                              .accumulate = !same_type || s == 3,
                                              .in = types[t][0],
                                              .out = types[t][1]};
                /* A row that is added to what is there is oneDNN's where the processor has the type. */
                const bool row_of_best = shape.m == 1 && !shape.accumulate && strcmp(cpus[cpu], "cpu") == 0;
                if (row_of_best || keeps_bits(cpus[cpu], shape.in))
                    expect_same_bits(cpus[cpu], &shape);
            }
}

/* A processor without products of a 16-bit type has the bits of the widened operands' product, rounded once. */
static void expect_rounded_once(const char *name, const struct sw_gemm *shape) {
    struct buffer in[4], wide[4];
    int64_t scratch_bytes;
    struct sw_gemm widened = *shape;
    widened.in = widened.out = SW_F32;
    make_operands(shape, in);
    for (int i = 0; i < 4; i++) {
        const int64_t elems = in[i].bytes / sw_dtype_bytes(shape->in);
        wide[i] = buffer_make(elems * (int64_t)sizeof(float));
        sw_dtype_widen(shape->in, in[i].data, elems, wide[i].data);
    }
    struct buffer got = product_by(name, 3, shape, in, &scratch_bytes);
    struct buffer sums = product_by(name, 2, &widened, wide, &scratch_bytes), want = buffer_make(got.bytes);
    sw_dtype_round(shape->out, sums.data, shape->m * shape->n, want.data);
    if (memcmp(got.data, want.data, (size_t)got.bytes) != 0)
        fail_msg("%s: %s is not fp32 rounded once", name, sw_dtype_name(shape->in));
    buffer_free(&got);
    buffer_free(&sums);
    buffer_free(&want);
    free_operands(in);
    free_operands(wide);
}

static void narrow_types_are_fp32_rounded_once(void **state) {
    (void)state;
    for (int cpu = 0; cpu < CPUS; cpu++)
        for (int i = 0; i < 8; i++) {
            const sw_dtype type = i & 1 ? SW_BF16 : SW_F16;
            const struct sw_gemm shape = {.m = 67,
                                          .n = 301,
                                          .k = 777,
                                          .transpose_a = i & 2,
                                          .transpose_b = i & 4,
                                          .bias = i >= 4,
                                          .accumulate = i < 4,
                                          .in = type,
                                          .out = type};
            if (keeps_bits(cpus[cpu], SW_F32) && keeps_bits(cpus[cpu], type))
                expect_rounded_once(cpus[cpu], &shape);
        }
}

/* The scratch of products in blocks has a bound for each thread, however large the operands are. */
static void scratch_is_bounded(void **state) {
    (void)state;
    enum { MOST_BYTES_OF_THREAD = 3 << 20 };
    static const struct shape sizes[] = {
        {8192, 10000000, 4096}, {10000000, 4096, 8192}, {4096, 4096, 10000000}, {50257, 768, 1024}, {3, 5, 2000000}};
    for (int cpu = 0; cpu < CPUS; cpu++)
        for (int t = 0; t < TYPES; t++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
                for (int threads = 1; threads <= 64; threads *= 8) {
                    const struct sw_gemm shape = {.m = sizes[s].m,
                                                  .n = sizes[s].n,
                                                  .k = sizes[s].k,
                                                  .transpose_a = s % 2,
                                                  .in = types[t][0],
                                                  .out = types[t][1]};
                    struct sw_device *device = NULL;
                    int64_t scratch_bytes = 0;
                    if (!keeps_bits(cpus[cpu], shape.in))
                        continue;
                    assert_ok(sw_device_open(cpus[cpu], threads, &device));
                    assert_ok(sw_device_prepare_gemm(device, &shape, &scratch_bytes));
                    assert_in_range(scratch_bytes, 1, (int64_t)threads * MOST_BYTES_OF_THREAD);
                    sw_device_close(device);
                }
}

static void unprepared_shape(struct pair *pair) {
    float a[4] = {1, 2, 3, 4}, c[4];
    struct sw_gemm shape = {.m = 2, .n = 2, .k = 2};
    int64_t scratch_bytes = 0;
    assert_ok(sw_device_prepare_gemm(pair->device, &shape, &scratch_bytes));
    shape.k = 1;
    assert_int_equal(sw_gemm(pair->stream, &shape, a, a, NULL, c, NULL), SW_ERR_INTERNAL);
    sw_error_clear();
}

static void unprepared(void **state) {
    (void)state;
    for_each_device(unprepared_shape);
}

/* Sides beyond what libraries count are refused; up to there, a shape is made ready (the memory to run it is the
 * caller's matter), or refused by the library of a GPU. */
static void refuse_large_sides(struct pair *pair) {
    for (int side = 0; side < 3; side++) {
        for (int64_t over = 0; over < 3; over++) {
            static const int64_t sizes[] = {SW_GEMM_MOST_SIDE, SW_GEMM_MOST_SIDE + 1, INT64_C(1) << 34};
            struct sw_gemm shape = {.m = 64, .n = 64, .k = 64};
            int64_t scratch_bytes = 0;
            *(side == 0 ? &shape.m : side == 1 ? &shape.n : &shape.k) = sizes[over];
            const sw_status status = sw_device_prepare_gemm(pair->device, &shape, &scratch_bytes);
            const bool may_refuse = over == 0 && !sw_device_info(pair->device).host_memory;
            if (!may_refuse || status != SW_ERR_UNSUPPORTED)
                assert_int_equal(status, over == 0 ? SW_OK : SW_ERR_UNSUPPORTED);
            sw_error_clear();
        }
    }
}

static void large_sides(void **state) {
    (void)state;
    for_each_device(refuse_large_sides);
}

/* Two threads, one shape, two streams at once. The product is small, so that most of a call is the part where threads
 * could take each other's operands. */
enum { ROUNDS = 20000, NAN_BYTE = 0xff };
struct user {
    struct sw_device *device;
    const struct sw_gemm *shape;
    int64_t scratch_bytes;
    const float *a, *b, *want;
    bool failed;
};

static void *multiply_often(void *argument) {
    struct user *user = argument;
    const int64_t elems = user->shape->m * user->shape->n;
    struct sw_stream *stream = NULL;
    struct buffer c = buffer_make(elems * 4), scratch = buffer_make(user->scratch_bytes);
    user->failed = sw_stream_open(user->device, &stream) != SW_OK;
    for (int round = 0; round < ROUNDS && !user->failed; round++) {
        memset(c.data, NAN_BYTE, (size_t)c.bytes);
        user->failed = sw_gemm(stream, user->shape, user->a, user->b, NULL, c.data, scratch.data) != SW_OK;
        for (int64_t i = 0; i < elems; i++)
            user->failed = user->failed || !(fabsf(((float *)c.data)[i] - user->want[i]) < 1e-3f);
    }
    sw_stream_close(stream);
    buffer_free(&c);
    buffer_free(&scratch);
    return NULL;
}

static void two_streams(void **state) {
    (void)state;
    const struct sw_gemm shape = {.m = 7, .n = 5, .k = 3};
    struct sw_device *device = NULL, *ref = NULL;
    struct sw_stream *ref_stream = NULL;
    int64_t scratch_bytes = 0, ref_scratch_bytes = 0;
    assert_ok(sw_device_open("cpu", 1, &device));
    assert_ok(sw_device_open("ref", 1, &ref));
    assert_ok(sw_stream_open(ref, &ref_stream));
    assert_ok(sw_device_prepare_gemm(device, &shape, &scratch_bytes));
    assert_ok(sw_device_prepare_gemm(ref, &shape, &ref_scratch_bytes));
    struct buffer inputs[2][3];
    struct user users[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        inputs[i][0] = buffer_random(SW_F32, shape.m * shape.k, 10 + (uint64_t)i, 1.0f);
        inputs[i][1] = buffer_random(SW_F32, shape.k * shape.n, 20 + (uint64_t)i, 1.0f);
        inputs[i][2] = buffer_make(shape.m * shape.n * 4);
        assert_ok(sw_gemm(ref_stream, &shape, inputs[i][0].data, inputs[i][1].data, NULL, inputs[i][2].data, NULL));
        users[i] = (struct user){.device = device,
                                 .shape = &shape,
                                 .scratch_bytes = scratch_bytes,
                                 .a = inputs[i][0].data,
                                 .b = inputs[i][1].data,
                                 .want = inputs[i][2].data};
        assert_int_equal(pthread_create(&threads[i], NULL, multiply_often, &users[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_false(users[i].failed);
        for (int j = 0; j < 3; j++)
            buffer_free(&inputs[i][j]);
    }
    sw_stream_close(ref_stream);
    sw_device_close(ref);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(products), cmocka_unit_test(pieces),
                                            cmocka_unit_test(addends), cmocka_unit_test(unprepared),
                                            cmocka_unit_test(large_sides)};
    const struct CMUnitTest others[] = {cmocka_unit_test(same_bits_for_any_threads),
                                        cmocka_unit_test(narrow_types_are_fp32_rounded_once),
                                        cmocka_unit_test(scratch_is_bounded), cmocka_unit_test(two_streams)};
    return RUN_TESTS(on_devices, others);
}
