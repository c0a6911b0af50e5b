/* The self-test: the emulated GPU and the CPU pass it, and mistakes in some ops are told by those ops' names
 * and no others. */
#include "kernels/device_ops.h"
#include "kernels/self_test.h"
#include "tests/kernels/support.h"

#include <stdlib.h>
#include <string.h>

static struct sw_self_test_report report;

/* NULL: this machine has no such device, or SW_TEST_DEVICE names another. */
static struct sw_device *open_one(const char *name) {
    struct sw_device *device = NULL;
    const char *only = getenv("SW_TEST_DEVICE");
    if (only != NULL && strcmp(only, name) != 0)
        return NULL;
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
        const bool is_large = sw_device_info(device).multiprocessors > 1;
        sw_device_close(device);
        for (int op = 0; op < report.count; op++) {
            if (report.op[op].failed)
                fail_msg("%s: %s: %s", names[i], report.op[op].name, report.op[op].failure);
            assert_true(report.op[op].comparisons > 0);
        }
        assert_null(sw_self_test_failed(&report));
        assert_string_equal(report.attention, is_large ? "attention by warpgroups" : "attention");
    }
}

/* The functions of the GPU, whose ops a test spoils. The GPU's memory is its own: a mistake is made by other arguments.
 */
static struct sw_device_ops right;

static sw_status rotate_back(struct sw_stream *stream, const struct sw_rotate *op) {
    struct sw_rotation shape = *op->shape;
    struct sw_rotate other = *op;
    shape.back = !shape.back;
    other.shape = &shape;
    return right.run(stream, SW_DEVICE_ROTATE, &other);
}

static sw_status one_too_many(struct sw_stream *stream, const struct sw_add *op) {
    struct sw_add other = *op;
    other.elems++;
    return right.run(stream, SW_DEVICE_ADD, &other);
}

static sw_status one_too_few(struct sw_stream *stream, const struct sw_layernorm_forward *op) {
    struct sw_layernorm_forward other = *op;
    other.rows--;
    return right.run(stream, SW_DEVICE_LAYERNORM_FORWARD, &other);
}

static sw_status no_window(struct sw_stream *stream, const struct sw_attention_forward *op) {
    struct sw_attention shape = *op->shape;
    struct sw_attention_forward other = *op;
    shape.window = 0;
    other.shape = &shape;
    return right.run(stream, SW_DEVICE_ATTENTION_FORWARD, &other);
}

static sw_status other_rate(struct sw_stream *stream, const struct sw_update_adamw *op) {
    struct sw_adamw adamw = *op->adamw;
    struct sw_update_adamw other = *op;
    adamw.lr *= 1.0 + 1e-6;
    other.adamw = &adamw;
    return right.run(stream, SW_DEVICE_UPDATE_ADAMW, &other);
}

static sw_status run_spoiled(struct sw_stream *stream, sw_device_op op, const void *args) {
    switch (op) {
    case SW_DEVICE_ROTATE: return rotate_back(stream, args);
    case SW_DEVICE_ADD: return one_too_many(stream, args);
    case SW_DEVICE_LAYERNORM_FORWARD: return one_too_few(stream, args);
    case SW_DEVICE_ATTENTION_FORWARD: return no_window(stream, args);
    case SW_DEVICE_UPDATE_ADAMW: return other_rate(stream, args);
    default: return right.run(stream, op, args);
    }
}

/* One run tells five mistakes apart: each of these ops fails, with what says how, and no other does. */
static void names_the_ops(void **state) {
    (void)state;
    static const struct {
        const char *op, *says;
    } cases[] = {{"rotary positions", "should be"},
                 {"addition", "not its output was written"},
                 {"layer norm", "nan"},
                 {"attention", "should be"},
                 {"update", "should be"}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    struct sw_device *device = open_one("cuda");
    if (device == NULL)
        return;
    right = device->ops;
    device->ops.run = run_spoiled;
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
