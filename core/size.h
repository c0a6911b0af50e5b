/* Sizes in bytes as people write them, and the rounding that alignment needs. */
#ifndef SW_CORE_SIZE_H
#define SW_CORE_SIZE_H

#include "core/status.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define SW_KIB (INT64_C(1) << 10)
#define SW_MIB (INT64_C(1) << 20)
#define SW_GIB (INT64_C(1) << 30)

enum {
    SW_GRAIN_ELEMS = 16384,       /* elements of a grain; part of the on-disk format */
    SW_TENSOR_ALIGN_ELEMS = 64,   /* 128 bytes in the narrowest compute type */
    SW_BUFFER_ALIGN_BYTES = 4096, /* suits O_DIRECT, pages and vector loads alike */
    SW_OPTIMIZER_VECTORS = 3,     /* master, m, v */
};

/* A grain's optimizer record: master|m|v, each SW_GRAIN_ELEMS floats. */
#define SW_OPTIMIZER_GRAIN_BYTES ((int64_t)SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS * (int64_t)sizeof(float))
static_assert(SW_GRAIN_ELEMS % SW_TENSOR_ALIGN_ELEMS == 0, "tensors must not straddle alignment within a grain");
static_assert((SW_GRAIN_ELEMS * 2) % SW_BUFFER_ALIGN_BYTES == 0, "a grain of the narrowest type must allow direct I/O");

static inline int64_t sw_round_up(int64_t value, int64_t multiple) {
    assert(value >= 0 && multiple > 0 && value <= INT64_MAX - multiple);
    return (value + multiple - 1) / multiple * multiple;
}

static inline int64_t sw_div_up(int64_t value, int64_t divisor) {
    assert(value >= 0 && divisor > 0);
    return value / divisor + (value % divisor != 0);
}

static inline int64_t sw_min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t sw_max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Multiply or add sizes from outside. Return false on overflow or a negative operand. */
bool sw_mul_i64(int64_t a, int64_t b, int64_t *out);
bool sw_add_i64(int64_t a, int64_t b, int64_t *out);

/* Parses a number of bytes: "4096", "512MiB", "1.5GiB"; K, M, G and T by themselves mean KiB to TiB; kB, MB, GB and TB
 * are powers of 1000. Ignores the case of the unit. SW_ERR_ARG: any other text. */
sw_status sw_parse_size(const char *text, int64_t *out_bytes);

enum { SW_SIZE_CHARS = 32 };

/* Writes "1.50 GiB" into buffer (SW_SIZE_CHARS) and returns it. */
const char *sw_format_size(int64_t bytes, char buffer[SW_SIZE_CHARS]);

/* Counts, rates and times for people: three significant digits and a unit. All functions return the buffer. */
enum { SW_COUNT_CHARS = 64, SW_TIME_TEXT_CHARS = 32 };
/* Writes "1 step" or "2 steps"; `noun` is the singular. */
const char *sw_format_count(int64_t count, const char *noun, char buffer[SW_COUNT_CHARS]);
/* Does the same in a buffer that lives until the end of the enclosing block. */
#define SW_COUNT(count, noun) sw_format_count((count), (noun), (char[SW_COUNT_CHARS]){0})
/* Writes "7.16 billion", "124 million", "121 thousand" or "512". */
const char *sw_format_large(int64_t count, char buffer[SW_COUNT_CHARS]);
/* Writes a rate, to which the caller adds the unit: "1067", "45.0" or "0.984". */
const char *sw_format_rate(double per_s, char buffer[SW_COUNT_CHARS]);
/* Writes a time to wait, rounded up: "15 s", "2 min 5 s", "3 h 20 min" or "12 d 4 h". */
const char *sw_format_duration(double seconds, char buffer[SW_TIME_TEXT_CHARS]);
/* Writes a measured or predicted time: "235 us", "16.3 ms", "2.35 s", "312 s"; from ten minutes on, a duration. */
const char *sw_format_seconds(double seconds, char buffer[SW_TIME_TEXT_CHARS]);

#endif
