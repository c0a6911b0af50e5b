#include "core/files/checksum.h"

#include <stddef.h>
#include <xxhash.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
/* Redirects XXH3_64bits to a version chosen at run time, about twice as fast as the baseline's SSE2. */
#include <xxh_x86dispatch.h>
#endif

uint64_t sw_checksum(const void *data, int64_t bytes) {
    const uint64_t sum = XXH3_64bits(data, (size_t)bytes);
    return sum == SW_CHECKSUM_UNKNOWN ? 1 : sum;
}
