/* Memory of this machine that a plan may take: what is available, or where a budget is named what a cgroup leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/machine.h"
#include "core/size.h"
#include "job/settings/room.h"

static const struct sw_device_info cpu = {.name = "cpu", .host_memory = true};
static const struct sw_device_info gpu = {.name = "cuda", .model = "a GPU", .memory_bytes = SW_GIB};

static void must_refuse(const struct sw_plan *plan, const struct sw_device_info *device,
                        const struct sw_settings *settings, const char *word) {
    sw_error_clear();
    assert_int_equal(sw_room_check(plan, device, settings), SW_ERR_BUDGET);
    if (strstr(sw_error_message(SW_ERR_BUDGET), word) == NULL)
        fail_msg("'%s' is not in: %s", word, sw_error_message(SW_ERR_BUDGET));
    sw_error_clear();
}

static int64_t more_than_available(void) {
    struct sw_machine machine;
    assert_int_equal(sw_machine_read(&machine), SW_OK);
    return sw_max_i64(machine.available_bytes, machine.physical_bytes) + SW_GIB;
}

/* A limit by a cgroup decides what a test can expect. */
static bool cgroup_leaves(int64_t bytes) {
    struct sw_machine machine;
    assert_int_equal(sw_machine_read(&machine), SW_OK);
    return machine.limit.room_bytes >= bytes;
}

static void only_named_budgets_are_believed(void **state) {
    (void)state;
    const int64_t bytes = more_than_available();
    const struct sw_plan plan = {.tier_bytes = {[SW_HOST] = bytes}};
    const struct sw_settings open = {0}, named = {.memory_named = {[SW_HOST] = true}};
    must_refuse(&plan, &gpu, &open, "--host-memory");
    must_refuse(&plan, &cpu, &open, "taken all the same");
    if (!cgroup_leaves(bytes)) {
        must_refuse(&plan, &gpu, &named, "cgroup");
        return;
    }
    assert_int_equal(sw_room_check(&plan, &gpu, &named), SW_OK);
    assert_int_equal(sw_room_check(&plan, &cpu, &named), SW_OK);
}

/* The device tier of a CPU is this machine's memory, and that of a GPU is not. */
static void the_tiers_of_a_device_count(void **state) {
    (void)state;
    const int64_t bytes = more_than_available();
    const struct sw_plan both = {.tier_bytes = {[SW_DEVICE] = bytes / 2, [SW_HOST] = bytes / 2 + 1}};
    const struct sw_plan host = {.tier_bytes = {[SW_HOST] = bytes}};
    const struct sw_settings named = {.memory_named = {[SW_DEVICE] = true}};
    if (cgroup_leaves(bytes + 1))
        assert_int_equal(sw_room_check(&both, &cpu, &named), SW_OK);
    must_refuse(&host, &gpu, &named, "--host-memory");
}

/* The text that sw_room_say prints on standard error. */
static void said(const struct sw_plan *plan, const struct sw_settings *settings, char *text, size_t chars) {
    FILE *file = tmpfile();
    assert_non_null(file);
    const int before = dup(STDERR_FILENO);
    assert_true(before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    assert_int_equal(sw_room_say(plan, &gpu, settings), SW_OK);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(file);
    text[fread(text, 1, chars - 1, file)] = '\0';
    fclose(file);
}

static void more_than_available_is_said(void **state) {
    (void)state;
    char text[512];
    const struct sw_settings named = {.memory_named = {[SW_HOST] = true}};
    struct sw_plan plan = {.tier_bytes = {[SW_HOST] = more_than_available()}};
    said(&plan, &named, text, sizeof text);
    if (strstr(text, "named budgets") == NULL || strchr(text, '\n') != text + strlen(text) - 1)
        fail_msg("not one line that says so: %s", text);
    plan.tier_bytes[SW_HOST] = SW_KIB;
    said(&plan, &named, text, sizeof text);
    assert_string_equal(text, "");
}

static void ranks_take_as_much_each(void **state) {
    (void)state;
    const struct sw_plan plan = {.tier_bytes = {[SW_HOST] = more_than_available() / 2}};
    const struct sw_settings two = {.local_ranks = 2};
    must_refuse(&plan, &gpu, &two, "the 2 ranks");
}

static void a_gpu_is_not_larger_than_it_is(void **state) {
    (void)state;
    const struct sw_plan plan = {.tier_bytes = {[SW_DEVICE] = 2 * SW_GIB}};
    const struct sw_settings named = {.memory_named = {[SW_DEVICE] = true, [SW_HOST] = true}};
    must_refuse(&plan, &gpu, &named, "a GPU has 1.00 GiB free");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_named_budgets_are_believed), cmocka_unit_test(the_tiers_of_a_device_count),
        cmocka_unit_test(more_than_available_is_said),     cmocka_unit_test(ranks_take_as_much_each),
        cmocka_unit_test(a_gpu_is_not_larger_than_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
