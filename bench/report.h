/* What the benches share: who was how fast in which round, the device, and the JSON at the end. */
#ifndef SW_BENCH_REPORT_H
#define SW_BENCH_REPORT_H

#include "core/status.h"
#include "train/devices/devices.h"

#include <jansson.h>
#include <stdint.h>

enum { SW_BENCH_MAX_ROUNDS = 99, SW_BENCH_MAX_CONTENDERS = 8 };

/* Rates of contenders that ran in turn, round by round. */
struct sw_bench_rounds {
    int rounds;
    double rate[SW_BENCH_MAX_CONTENDERS][SW_BENCH_MAX_ROUNDS];
};
double sw_bench_median(const struct sw_bench_rounds *rounds, int who);
/* The median of the ratios of the two within a round: what else the machine does hits both alike. */
double sw_bench_ratio(const struct sw_bench_rounds *rounds, int who, int to);

/* Where that median would lie in 19 of 20 repetitions, from drawing rounds of it again (a percentile bootstrap). */
struct sw_bench_interval {
    double low, high;
};
struct sw_bench_interval sw_bench_ratio_interval(const struct sw_bench_rounds *rounds, int who, int to);

/* which: of --device. threads may be SW_OPTION_AUTO. */
sw_status sw_bench_open_devices(int which, int64_t threads, struct sw_devices *out);

/* Adds the members of the second object to the first and returns it. Takes both over; NULL, in and out, is a lack of
 * memory. */
json_t *sw_bench_join(json_t *first, json_t *second);
/* Prints an object on standard output, and takes it over; NULL is a lack of memory. */
sw_status sw_bench_print_json(json_t *root);

#endif
