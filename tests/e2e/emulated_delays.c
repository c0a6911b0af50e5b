/* Linked to tests of whole trainings on the emulated GPU: its streams run late by chance, so that what the host or
 * another stream should have waited for, and did not, is not there yet. As it is slow, SW_TEST_FILTER names the tests
 * of a program that are run there (a pattern of cmocka's). */
#include "tests/equipment/cuda/runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

enum { MOST_DELAY_NS = 20000, SEED = 20261121 };

__attribute__((constructor)) static void delay_streams(void) {
    const char *seed = getenv("SW_TEST_SEED"), *filter = getenv("SW_TEST_FILTER");
    if (filter != NULL)
        cmocka_set_test_filter(filter);
    sw_emulation_set_delays(MOST_DELAY_NS, seed != NULL ? strtoull(seed, NULL, 10) : SEED);
}
