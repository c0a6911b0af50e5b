/* Opening devices, and refusing; the table of ops. */
#include "core/machine.h"
#include "kernels/device_ops.h"
#include "tests/kernels/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void names(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    assert_ok(sw_device_open("cpu", 2, &device));
    const struct sw_device_info info = sw_device_info(device);
    assert_string_equal(info.name, "cpu");
    assert_int_equal(info.threads, 2);
    assert_true(info.host_memory);
    sw_device_close(device);
    assert_ok(sw_device_open("cpu", 0, &device));
    assert_true(sw_device_info(device).threads >= 1);
    sw_device_close(device);
    static const char *const unknown[] = {"gpu", "", "cpu:", "cpu:avx9000", "CPU"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_int_equal(sw_device_open(unknown[i], 0, &device), SW_ERR_UNSUPPORTED);
        assert_null(device);
        sw_error_clear();
    }
    assert_int_equal(sw_device_open("cpu", -1, &device), SW_ERR_ARG);
    sw_error_clear();
}

/* Expects 'cpu' to use `used` while SW_CPU_ISA is `value`; NULL: to be refused with `status`. */
static void expect_isa(const char *value, const char *used, sw_status status) {
    struct sw_device *device = NULL;
    setenv(SW_ISA_VARIABLE, value, 1);
    if (used != NULL) {
        assert_ok(sw_device_open("cpu", 1, &device));
        assert_string_equal(sw_device_info(device).isa, used);
        sw_device_close(device);
    } else {
        assert_int_equal(sw_device_open("cpu", 1, &device), status);
        assert_non_null(strstr(sw_error_message(status), value));
        sw_error_clear();
    }
}

/* The environment lowers the instruction set, never raises it, and "cpu:ISA" stays within it. */
static void the_environment_holds_the_instruction_set(void **state) {
    (void)state;
    const char *given = getenv(SW_ISA_VARIABLE);
    char *before = given != NULL ? strdup(given) : NULL;
    const sw_isa best = sw_machine_isa();
    struct sw_device *device = NULL;
    for (int isa = best; isa < SW_ISA_COUNT; isa++) {
        const char *name = sw_isa_name((sw_isa)isa);
        /* oneDNN may have been held to less by its own variable, or have no products of bf16. */
        if (isa > (int)best)
            expect_isa(name, NULL, SW_ERR_UNSUPPORTED);
        else if (isa != SW_ISA_AVX512_BF16)
            expect_isa(name, name, SW_OK);
    }
    expect_isa("avx9000", NULL, SW_ERR_ARG);
    expect_isa("baseline", "baseline", SW_OK);
    assert_ok(sw_device_open("cpu:baseline", 1, &device));
    sw_device_close(device);
    for (int isa = SW_ISA_AVX2; isa < SW_ISA_COUNT; isa++) {
        char name[32];
        snprintf(name, sizeof name, "cpu:%s", sw_isa_name((sw_isa)isa));
        assert_int_equal(sw_device_open(name, 1, &device), SW_ERR_UNSUPPORTED);
        sw_error_clear();
    }
    if (before == NULL)
        unsetenv(SW_ISA_VARIABLE);
    else
        setenv(SW_ISA_VARIABLE, before, 1);
    free(before);
}

/* Every op has a row, whose operands end within its arguments, and the devices of the host have an implementation. */
static void every_op_has_a_row(void **state) {
    (void)state;
    static const char *const hosts[] = {"ref", "cpu"};
    for (int op = 0; op < SW_DEVICE_OPS; op++) {
        const struct sw_device_op_row *row = sw_device_op_row((sw_device_op)op);
        if (row->name == NULL || row->check == NULL)
            fail_msg("op %d has no row", op);
        if (row->operands < 2 || row->operands_at + row->operands * sizeof(void *) > row->args_bytes)
            fail_msg("%s: operands end behind the arguments", row->name);
        for (int other = 0; other < op; other++)
            assert_string_not_equal(row->name, sw_device_op_row((sw_device_op)other)->name);
        for (int i = 0; i < 2; i++) {
            struct sw_device *device = NULL;
            assert_ok(sw_device_open(hosts[i], 1, &device));
            if ((device->ops.op[op] != NULL) != (op != SW_DEVICE_RANK_SUM))
                fail_msg("%s of %s", row->name, hosts[i]);
            sw_device_close(device);
        }
    }
}

/* Arguments against the contract end the program, whatever the device. */
static void wrong_arguments_abort(void **state) {
    (void)state;
    float x[8] = {0};
    const struct rlimit no_core = {0};
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    for (int wrong = 0; wrong < 3; wrong++) {
        int status = 0;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            setrlimit(RLIMIT_CORE, &no_core);
            fclose(stderr);
            sw_add(stream, .type = SW_F32, .elems = wrong == 1 ? -1 : 8, .a = x, .b = wrong == 2 ? NULL : x, .y = x);
            _exit(0);
        }
        assert_true(waitpid(child, &status, 0) == child);
        assert_true(wrong == 0 ? WIFEXITED(status) : WIFSIGNALED(status));
    }
    sw_stream_close(stream);
    sw_device_close(device);
}

int main(void) {
    /* oneDNN can be held to less only before it is first asked what the processor has. */
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_environment_holds_the_instruction_set),
                                       cmocka_unit_test(names), cmocka_unit_test(every_op_has_a_row),
                                       cmocka_unit_test(wrong_arguments_abort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
