/* NUMA nodes, on a machine that hwloc is told of in the environment (tests/core/meson.build): two nodes of a core. */
#include "core/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>

static void processes_are_spread_evenly(void **state) {
    (void)state;
    for (int shares = 2; shares <= 8; shares += 2)
        for (int number = 0; number < shares; number++)
            assert_int_equal(sw_machine_node_of_share(number, shares), number >= shares / 2);
    assert_int_equal(sw_machine_node_of_share(0, 1), -1);
}

static void *count_cores(void *out) {
    cpu_set_t own;
    CPU_ZERO(&own);
    *(int *)out = sched_getaffinity(0, sizeof own, &own) == 0 && CPU_ISSET(1, &own) ? CPU_COUNT(&own) : 0;
    return NULL;
}

static void threads_stay_near_their_node(void **state) {
    (void)state;
    cpu_set_t both, before;
    pthread_t thread;
    int found = 0;
    CPU_ZERO(&both);
    CPU_SET(0, &both);
    CPU_SET(1, &both);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (sched_setaffinity(0, sizeof both, &both) != 0 || sw_machine_cores() < 2) {
        print_message("one core: there is nothing to choose from\n");
        skip();
    }
    sw_machine_keep_to_node(7);
    assert_int_equal(sw_machine_cores(), 2);
    sw_machine_keep_to_node(1);
    assert_int_equal(pthread_create(&thread, NULL, count_cores, &found), 0);
    pthread_join(thread, NULL);
    assert_int_equal(found, 1);
    /* Near one node already, as a launcher leaves it. */
    sw_machine_keep_to_node(0);
    count_cores(&found);
    assert_int_equal(found, 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void places_on_the_bus_may_be_unknown(void **state) {
    (void)state;
    assert_int_equal(sw_machine_node_of_bus(NULL), -1);
    assert_int_equal(sw_machine_node_of_bus(""), -1);
    assert_int_equal(sw_machine_node_of_bus("ffff:ff:1f.7"), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(processes_are_spread_evenly),
                                       cmocka_unit_test(threads_stay_near_their_node),
                                       cmocka_unit_test(places_on_the_bus_may_be_unknown)};
    return cmocka_run_group_tests_name("core nodes", tests, NULL, NULL);
}
