/* The results of the sweep and of the comparison with fio, for those who print them. */
#ifndef SW_BENCH_IO_SWEEP_H
#define SW_BENCH_IO_SWEEP_H

#include "bench/io/compare.h"

#include <assert.h>

/* Contenders of a round: ours and fio at the setting that was best for ours; fio there once more, to show how far
 * chance alone moves a ratio; fio at its own best. The sweep has the first two. */
enum { SW_IO_OURS, SW_IO_FIO, SW_IO_FIO_AGAIN, SW_IO_FIO_BEST, SW_IO_CONTENDERS };
enum { SW_IO_RUNNERS = SW_IO_FIO + 1 };
static_assert((int)SW_IO_CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

struct sw_io_result {
    struct sw_io_cell cell;
    bool fits; /* into the files; else nothing was measured */
    struct sw_io_rate rate[SW_IO_RUNNERS];
};

/* One way at the best settings of ours and of fio. Without fio only ours are there. */
struct sw_io_best {
    const char *way;
    struct sw_io_result result[SW_IO_RUNNERS];
    struct sw_bench_rounds rates, cores;
    double core_s_per_gb[SW_IO_RUNNERS]; /* by the medians */
};

struct sw_io_report {
    struct sw_io_bench *bench;
    struct sw_fio fio;
    int runners;                                              /* SW_IO_RUNNERS, or 1 without fio */
    struct sw_io_result results[SW_IO_WAYS][SW_IO_MAX_CELLS]; /* by block size, then depth */
    struct sw_io_best best[SW_IO_WAYS];
};

/* Measures all cells of a way that fit, and chooses the best of ours and of fio. */
sw_status sw_io_sweep_way(struct sw_io_report *report, sw_io_way way);
/* Measures the best settings of a way in turn. */
sw_status sw_io_compare(struct sw_io_report *report, sw_io_way way);
/* Returns the time of a pass of the comparison. */
double sw_io_compared_seconds(const struct sw_io_bench *bench, sw_io_way way);

/* Prints what people read: a sentence that answers, the best settings, then all cells. */
void sw_io_print(const struct sw_io_report *report);
sw_status sw_io_print_json(const struct sw_io_report *report);

#endif
