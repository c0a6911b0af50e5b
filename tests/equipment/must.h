/* Calls that a test expects to succeed: it ends with the error's message if they do not. */
#ifndef SW_TESTS_EQUIPMENT_MUST_H
#define SW_TESTS_EQUIPMENT_MUST_H

#include "core/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline void must(sw_status status) {
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
}

/* Names the seed of a random case, too. */
static inline void must_seeded(sw_status status, uint64_t seed) {
    if (status != SW_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, sw_error_message(status));
}

#endif
