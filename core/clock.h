/* Time. */
#ifndef SW_CORE_CLOCK_H
#define SW_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns the time of the monotonic clock in nanoseconds. */
static inline int64_t sw_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
