/* The parts of a report that all benches share: rates of contenders by round, the device, the JSON object. */
#ifndef SW_BENCH_REPORT_H
#define SW_BENCH_REPORT_H

#include "core/status.h"
#include "job/machine/devices.h"

#include <jansson.h>
#include <stdint.h>

enum { SW_BENCH_MAX_ROUNDS = 99, SW_BENCH_MAX_CONTENDERS = 8 };

/* Rates of contenders that ran in turn, by contender and round. */
struct sw_bench_rounds {
    int rounds;
    double rate[SW_BENCH_MAX_CONTENDERS][SW_BENCH_MAX_ROUNDS];
};
double sw_bench_median(const struct sw_bench_rounds *rounds, int who);
/* Returns the median of the rounds' own ratios of `who` to `to`: other load of the machine hits both alike. */
double sw_bench_ratio(const struct sw_bench_rounds *rounds, int who, int to);

/* The 95% interval of that median: it contains the median of 19 of 20 repetitions (a percentile bootstrap over the
 * rounds). */
struct sw_bench_interval {
    double low, high;
};
struct sw_bench_interval sw_bench_ratio_interval(const struct sw_bench_rounds *rounds, int who, int to);

/* Opens the device that --device and --threads name. threads may be SW_OPTION_AUTO. */
sw_status sw_bench_open_devices(int which, int64_t threads, struct sw_devices *out);

/* Adds the members of the second object to the first and returns it. Takes both over; NULL, in and out, is a lack of
 * memory. */
json_t *sw_bench_join(json_t *first, json_t *second);
/* Prints an object on standard output, and takes it over; NULL is a lack of memory. */
sw_status sw_bench_print_json(json_t *root);

#endif
