/* The self-test: the emulated GPU and the CPU pass it, and mistakes in some ops are told by those ops' names
 * and no others. */
#include "kernels/device_ops.h"
#include "kernels/self_test.h"
#include "tests/kernels/support.h"

#include <string.h>

static struct sw_self_test_report report;

/* NULL: this machine has no such device. */
static struct sw_device *open_one(const char *name) {
    struct sw_device *device = NULL;
    if (sw_device_open(name, 0, &device) != SW_OK)
        sw_error_clear();
    return device;
}

static void passes(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "cuda"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct sw_device *device = open_one(names[i]);
        if (device == NULL)
            continue;
        assert_ok(sw_self_test_run(device, &report));
        sw_device_close(device);
        for (int op = 0; op < report.count; op++) {
            if (report.op[op].failed)
                fail_msg("%s: %s: %s", names[i], report.op[op].name, report.op[op].failure);
            assert_true(report.op[op].comparisons > 0);
        }
        assert_null(sw_self_test_failed(&report));
        assert_string_equal(report.attention, "attention");
    }
}

/* The ops of the GPU, each of which one test spoils. Its memory is its own: a mistake is made by other arguments. */
static struct sw_device_ops right;

static sw_status rotate_back(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape,
                             const float *table, void *x) {
    struct sw_rotation other = *shape;
    other.back = !shape->back;
    return right.rotate(stream, type, &other, table, x);
}

static sw_status one_too_many(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b,
                              void *y) {
    return right.add(stream, type, elems + 1, a, b, y);
}

static sw_status one_too_few(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                             const void *x, const void *gamma, const void *beta, void *y, float *mean, float *rstd) {
    return right.layernorm_forward(stream, type, rows - 1, cols, epsilon, x, gamma, beta, y, mean, rstd);
}

static sw_status no_window(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape, const void *q,
                           const void *k, const void *v, void *o, float *log_sum_exp, void *scratch) {
    struct sw_attention other = *shape;
    other.window = 0;
    return right.attention_forward(stream, type, &other, q, k, v, o, log_sum_exp, scratch);
}

static sw_status other_rate(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                            int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                            float *records, void *weights) {
    struct sw_adamw other = *adamw;
    other.lr *= 1.0 + 1e-6;
    return right.update_adamw(stream, type, &other, first_elem, grains, runs, run_count, grads, records, weights);
}

static void spoil_rotate(struct sw_device_ops *ops) {
    ops->rotate = rotate_back;
}
static void spoil_add(struct sw_device_ops *ops) {
    ops->add = one_too_many;
}
static void spoil_norm(struct sw_device_ops *ops) {
    ops->layernorm_forward = one_too_few;
}
static void spoil_attention(struct sw_device_ops *ops) {
    ops->attention_forward = no_window;
}
static void spoil_update(struct sw_device_ops *ops) {
    ops->update_adamw = other_rate;
}

/* One run tells five mistakes apart: each of these ops fails, with what says how, and no other does. */
static void names_the_ops(void **state) {
    (void)state;
    static const struct {
        void (*spoil)(struct sw_device_ops *ops);
        const char *op, *says;
    } cases[] = {{spoil_rotate, "rotary positions", "should be"},
                 {spoil_add, "addition", "not its output was written"},
                 {spoil_norm, "layer norm", "nan"},
                 {spoil_attention, "attention", "should be"},
                 {spoil_update, "update", "should be"}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    struct sw_device *device = open_one("cuda");
    if (device == NULL)
        return;
    right = device->ops;
    for (size_t i = 0; i < CASES; i++)
        cases[i].spoil(&device->ops);
    assert_ok(sw_self_test_run(device, &report));
    sw_device_close(device);
    assert_non_null(sw_self_test_failed(&report));
    size_t found = 0;
    for (int op = 0; op < report.count; op++) {
        size_t i = 0;
        while (i < CASES && strcmp(report.op[op].name, cases[i].op) != 0)
            i++;
        if (report.op[op].failed != (i < CASES) || (i < CASES && strstr(report.op[op].failure, cases[i].says) == NULL))
            fail_msg("%s: failed %d, '%s'", report.op[op].name, report.op[op].failed, report.op[op].failure);
        found += i < CASES;
    }
    assert_int_equal(found, CASES);
}

static void tf32_is_tested(void **state) {
    (void)state;
    struct sw_device *device = open_one("cuda");
    if (device == NULL)
        return;
    assert_ok(sw_device_use_tf32(device));
    report = (struct sw_self_test_report){0};
    assert_ok(sw_self_test_run_tf32(device, &report));
    sw_device_close(device);
    assert_true(report.count > 0 && report.op[0].worst > 0.0);
    assert_null(sw_self_test_failed(&report));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes), cmocka_unit_test(names_the_ops),
                                       cmocka_unit_test(tf32_is_tested)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
