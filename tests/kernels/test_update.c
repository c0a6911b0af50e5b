/* The AdamW update: bits equal to the reference for every instruction set and thread count, the reference near a plain
 * evaluation in double, and calls by any chunks equal. */
#include "tests/kernels/support.h"

#include "core/size.h"
#include "kernels/adamw_scalars.h"

#include <math.h>
#include <string.h>

enum { GRAINS = 4, ELEMS = GRAINS * SW_GRAIN_ELEMS };

/* Runs that begin and end inside grains and tiles, and leave a tail after the last. */
static const struct sw_decay_run runs[] = {{.end = 100, .decay = true},
                                           {.end = 101, .decay = false},
                                           {.end = 5000, .decay = true, .lr_scale = 0.1},
                                           {.end = SW_GRAIN_ELEMS + 513, .decay = false},
                                           {.end = 3 * SW_GRAIN_ELEMS, .decay = true},
                                           {.end = ELEMS - 1000, .decay = false, .lr_scale = 2.5},
                                           {.end = ELEMS - 7, .decay = true}};
enum { RUNS = sizeof runs / sizeof runs[0] };

static const struct sw_adamw SETTINGS = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0f, .step = 1};

/* Records with v >= 0, as the update leaves them. */
static struct buffer make_records(int64_t grains, float moments) {
    struct buffer records = buffer_make(grains * SW_OPTIMIZER_GRAIN_BYTES);
    struct buffer values = buffer_random(SW_F32, grains * SW_GRAIN_ELEMS * SW_OPTIMIZER_VECTORS, 1, 1.0f);
    for (int64_t i = 0; i < grains * SW_GRAIN_ELEMS * SW_OPTIMIZER_VECTORS; i++) {
        const int64_t stream = i / SW_GRAIN_ELEMS % SW_OPTIMIZER_VECTORS;
        const float value = ((float *)values.data)[i];
        ((float *)records.data)[i] = stream == 0 ? value : stream == 1 ? moments * value : moments * value * value;
    }
    buffer_free(&values);
    return records;
}

static struct buffer make_grads(sw_dtype type, uint64_t stream) {
    struct buffer grads = buffer_random(type, ELEMS, stream, 0.5f);
    static const float special[] = {0.0f, -0.0f, 1e-38f, 1e-20f, 1e18f, -1e10f};
    const float largest = type == SW_F16 ? 65504.0f : 1e18f;
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        set_element(type, grads.data, (int64_t)i * 1009, fmaxf(-largest, fminf(special[i], largest)));
    return grads;
}

static void compare(struct pair *pair, sw_dtype type, float grad_scale) {
    struct buffer got = make_records(GRAINS, 1e-3f), want = buffer_copy(&got);
    struct buffer got_weights = buffer_make(ELEMS * sw_dtype_bytes(type)),
                  want_weights = buffer_make(got_weights.bytes);
    struct sw_adamw adamw = SETTINGS;
    adamw.grad_scale = grad_scale;
    for (adamw.step = 1; adamw.step <= 3; adamw.step++) {
        struct buffer grads = make_grads(type, 10 + (uint64_t)adamw.step);
        assert_ok(
            sw_update_adamw(pair->stream, type, &adamw, 0, GRAINS, runs, RUNS, grads.data, got.data, got_weights.data));
        assert_ok(
            sw_update_adamw(pair->ref, type, &adamw, 0, GRAINS, runs, RUNS, grads.data, want.data, want_weights.data));
        assert_same_bits("records", pair, got.bytes, got.data, want.data);
        assert_same_bits("weights", pair, got_weights.bytes, got_weights.data, want_weights.data);
        buffer_free(&grads);
    }
    buffer_free(&got);
    buffer_free(&want);
    buffer_free(&got_weights);
    buffer_free(&want_weights);
}

static void compare_all(struct pair *pair) {
    compare(pair, SW_F32, 1.0f);
    compare(pair, SW_BF16, 1.0f);
    compare(pair, SW_BF16, 0.337f);
    compare(pair, SW_F16, 1.0f / 65536.0f);
}

static void same_bits_as_reference(void **state) {
    (void)state;
    for_each_device(compare_all);
}

/* More runs than a device may take at once, most of a few elements, and a long one last. */
static void many_runs(struct pair *pair) {
    enum { MANY = 300 };
    struct sw_decay_run many[MANY];
    for (int i = 0; i < MANY; i++)
        many[i] = (struct sw_decay_run){
            .end = 5 + (i + 1) * 53 - i % 7, .decay = i % 3 != 1, .lr_scale = i % 4 == 2 ? 0.5 : 0.0};
    many[MANY - 1].end = ELEMS - 3;
    for (int t = 0; t < TEST_TYPES; t++) {
        const sw_dtype type = test_types[t];
        struct buffer got = make_records(GRAINS, 1e-3f), want = buffer_copy(&got), grads = make_grads(type, 20);
        struct buffer got_weights = buffer_make(ELEMS * sw_dtype_bytes(type)),
                      want_weights = buffer_make(got_weights.bytes);
        assert_ok(sw_update_adamw(pair->stream, type, &SETTINGS, 0, GRAINS, many, MANY, grads.data, got.data,
                                  got_weights.data));
        assert_ok(sw_update_adamw(pair->ref, type, &SETTINGS, 0, GRAINS, many, MANY, grads.data, want.data,
                                  want_weights.data));
        assert_same_bits("records of many runs", pair, got.bytes, got.data, want.data);
        assert_same_bits("weights of many runs", pair, got_weights.bytes, got_weights.data, want_weights.data);
        struct buffer *all[] = {&got, &want, &grads, &got_weights, &want_weights};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            buffer_free(all[i]);
    }
}

static void runs_of_few_elements(void **state) {
    (void)state;
    for_each_device(many_runs);
}

/* A run with a scale is updated as by a step of the scaled learning rate, and the runs beside it as without. */
static void scaled(struct pair *pair) {
    const double scale = 0.1;
    const struct sw_decay_run plain[] = {{.end = ELEMS, .decay = true}};
    const struct sw_decay_run three[] = {{.end = 1001, .decay = true},
                                         {.end = SW_GRAIN_ELEMS + 77, .decay = true, .lr_scale = scale},
                                         {.end = ELEMS, .decay = true, .lr_scale = 1.0}};
    struct sw_adamw slow = SETTINGS;
    slow.lr *= scale;
    struct buffer got = make_records(GRAINS, 1e-3f), fast = buffer_copy(&got), slowed = buffer_copy(&got);
    struct buffer weights = buffer_make(ELEMS * 2), grads = make_grads(SW_BF16, 2);
    assert_ok(
        sw_update_adamw(pair->stream, SW_BF16, &SETTINGS, 0, GRAINS, three, 3, grads.data, got.data, weights.data));
    assert_ok(
        sw_update_adamw(pair->stream, SW_BF16, &SETTINGS, 0, GRAINS, plain, 1, grads.data, fast.data, weights.data));
    assert_ok(
        sw_update_adamw(pair->stream, SW_BF16, &slow, 0, GRAINS, plain, 1, grads.data, slowed.data, weights.data));
    for (int64_t elem = 0; elem < ELEMS; elem++) {
        const bool in_run = elem >= three[0].end && elem < three[1].end;
        const int64_t at = elem + elem / SW_GRAIN_ELEMS * (SW_OPTIMIZER_VECTORS - 1) * SW_GRAIN_ELEMS;
        assert_memory_equal((float *)got.data + at, (float *)(in_run ? slowed : fast).data + at, sizeof(float));
    }
    struct buffer *all[] = {&got, &fast, &slowed, &weights, &grads};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void learning_rates_of_runs(void **state) {
    (void)state;
    for_each_device(scaled);
}

/* One call, or one for each grain: the address in the unit decides decay, not the call. */
static void chunked(struct pair *pair) {
    struct buffer whole = make_records(GRAINS, 1e-3f), parts = buffer_copy(&whole), grads = make_grads(SW_BF16, 2);
    struct buffer whole_weights = buffer_make(ELEMS * 2), parts_weights = buffer_make(ELEMS * 2);
    assert_ok(sw_update_adamw(pair->stream, SW_BF16, &SETTINGS, 0, GRAINS, runs, RUNS, grads.data, whole.data,
                              whole_weights.data));
    for (int64_t grain = 0; grain < GRAINS; grain++) {
        const int64_t at = grain * SW_GRAIN_ELEMS;
        assert_ok(sw_update_adamw(pair->stream, SW_BF16, &SETTINGS, at, 1, runs, RUNS, (sw_bf16 *)grads.data + at,
                                  (float *)parts.data + SW_OPTIMIZER_VECTORS * at, (sw_bf16 *)parts_weights.data + at));
    }
    assert_same_bits("records by grain", pair, whole.bytes, parts.data, whole.data);
    assert_same_bits("weights by grain", pair, whole_weights.bytes, parts_weights.data, whole_weights.data);
    struct buffer *all[] = {&whole, &parts, &grads, &whole_weights, &parts_weights};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void any_chunks(void **state) {
    (void)state;
    for_each_device(chunked);
}

/* A skipped step leaves records, does not read gradients, and rounds the weights again. */
static void skipped(struct pair *pair) {
    struct buffer records = make_records(GRAINS, 1e-3f), before = buffer_copy(&records);
    struct buffer weights = buffer_make(ELEMS * 2);
    struct sw_adamw adamw = SETTINGS;
    adamw.skip = true;
    assert_ok(sw_update_adamw(pair->stream, SW_BF16, &adamw, 0, GRAINS, runs, RUNS, NULL, records.data, weights.data));
    assert_same_bits("records of a skipped step", pair, records.bytes, records.data, before.data);
    for (int64_t i = 0; i < ELEMS; i++) {
        const float master =
            ((float *)records.data)[i / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS * SW_OPTIMIZER_VECTORS + i % SW_GRAIN_ELEMS];
        assert_int_equal(((sw_bf16 *)weights.data)[i], sw_f32_to_bf16(master));
    }
    buffer_free(&records);
    buffer_free(&before);
    buffer_free(&weights);
}

static void skipped_step(void **state) {
    (void)state;
    for_each_device(skipped);
}

/* A long run of one element in double, with the textbook's bias-corrected moments. */
static void reference_follows_textbook(void **state) {
    (void)state;
    enum { STEPS = 300 };
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    const struct sw_decay_run all = {.end = SW_GRAIN_ELEMS, .decay = true};
    struct buffer records = buffer_zeros(SW_OPTIMIZER_GRAIN_BYTES), weights = buffer_make(SW_GRAIN_ELEMS * 4);
    struct buffer grads = buffer_zeros(SW_GRAIN_ELEMS * 4), draws = buffer_random(SW_F32, STEPS, 3, 1.0f);
    double p = 1.0, m = 0.0, v = 0.0;
    ((float *)records.data)[7] = 1.0f;
    struct sw_adamw adamw = SETTINGS;
    for (int t = 1; t <= STEPS; t++) {
        const double g = ((float *)draws.data)[t - 1];
        ((float *)grads.data)[7] = (float)g;
        adamw.step = t;
        assert_ok(sw_update_adamw(stream, SW_F32, &adamw, 0, 1, &all, 1, grads.data, records.data, weights.data));
        p -= adamw.lr * adamw.weight_decay * p;
        m = adamw.beta1 * m + (1.0 - adamw.beta1) * g;
        v = adamw.beta2 * v + (1.0 - adamw.beta2) * g * g;
        p -= adamw.lr * (m / (1.0 - pow(adamw.beta1, t))) / (sqrt(v / (1.0 - pow(adamw.beta2, t))) + adamw.eps);
        const float *record = records.data;
        assert_true(fabs(record[7] - p) <= 1e-5 * fabs(p) + 1e-6);
        assert_true(fabs(record[SW_GRAIN_ELEMS + 7] - m) <= 1e-5 * fabs(m) + 1e-7);
        assert_true(fabs(record[2 * SW_GRAIN_ELEMS + 7] - v) <= 1e-5 * fabs(v) + 1e-9);
        assert_true(((float *)weights.data)[7] == record[7]);
    }
    for (int64_t i = 8; i < SW_GRAIN_ELEMS; i++)
        assert_true(((float *)records.data)[i] == 0.0f); /* zeros stay zeros: padding is inert */
    struct buffer *buffers[] = {&records, &weights, &grads, &draws};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void assert_scalar(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 0x1p-24 * fabs(want)))
        fail_msg("%s is %.12g and should be %.12g rounded once", what, got, want);
}

/* Each scalar is the decimal's own value rounded to fp32 once: 1 - (float)0.999 would be off by 1.3e-5. */
static void scalars_keep_their_digits(void **state) {
    (void)state;
    const struct sw_adamw_scalars s = sw_adamw_scalars(&SETTINGS);
    assert_scalar("1 - lr·decay", s.decay_factor, 0.999);
    assert_scalar("1 - beta1", s.one_minus_beta1, 0.1);
    assert_scalar("beta2", s.beta2, 0.999);
    assert_scalar("1 - beta2", s.one_minus_beta2, 0.001);
    assert_scalar("sqrt(1 - beta2)", s.correction2_sqrt, 0.03162277660168379);
    assert_scalar("-lr/(1 - beta1)", s.minus_step_size, -0.1);
    assert_scalar("eps", s.eps, 1e-8);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(same_bits_as_reference), cmocka_unit_test(any_chunks),
                                            cmocka_unit_test(learning_rates_of_runs),
                                            cmocka_unit_test(runs_of_few_elements), cmocka_unit_test(skipped_step)};
    const struct CMUnitTest others[] = {cmocka_unit_test(reference_follows_textbook),
                                        cmocka_unit_test(scalars_keep_their_digits)};
    return RUN_TESTS(on_devices, others);
}
