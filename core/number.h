/* Counts, rates and times as people read them: with three significant digits and a unit. All functions return the
 * buffer. */
#ifndef SW_CORE_NUMBER_H
#define SW_CORE_NUMBER_H

#include <stdint.h>

enum { SW_COUNT_CHARS = 64, SW_TIME_TEXT_CHARS = 32 };
/* Writes "1 step" or "2 steps"; `noun` is the singular. */
const char *sw_format_count(int64_t count, const char *noun, char buffer[SW_COUNT_CHARS]);
/* Does the same in memory that lasts until the end of the enclosing block. */
#define SW_COUNT(count, noun) sw_format_count((count), (noun), (char[SW_COUNT_CHARS]){0})
/* Writes "7.16 billion", "124 million", "121 thousand" or "512". */
const char *sw_format_large(int64_t count, char buffer[SW_COUNT_CHARS]);
/* Writes a rate, whose unit the caller adds: "1067", "45.0" or "0.984". */
const char *sw_format_rate(double per_s, char buffer[SW_COUNT_CHARS]);
/* Writes a time to wait for, rounded up: "15 s", "2 min 5 s", "3 h 20 min" or "12 d 4 h". */
const char *sw_format_duration(double seconds, char buffer[SW_TIME_TEXT_CHARS]);
/* Writes a measured or predicted time: "235 us", "16.3 ms", "2.35 s", "312 s", and from ten minutes on a duration. */
const char *sw_format_seconds(double seconds, char buffer[SW_TIME_TEXT_CHARS]);

#endif
