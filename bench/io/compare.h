/* Ours and fio in turn: the cells of a way some times over, and the best settings round by round. */
#ifndef SW_BENCH_IO_COMPARE_H
#define SW_BENCH_IO_COMPARE_H

#include "bench/io/sweep.h"

/* The most rounds of sw_io_measure_cells. */
enum { SW_IO_MAX_MEASURED_ROUNDS = 5 };

/* Measures the cells `rounds` times, each for so many seconds and in ever another order, first by ours and then by fio
 * or the other way round. Each result gets the round of its median rate. */
sw_status sw_io_measure_cells(struct sw_io_report *report, struct sw_io_bench *bench,
                              struct sw_io_result *const *results, int count, int rounds, double seconds);

/* How long a pass of the comparison takes, where a cell takes so many seconds. */
double sw_io_compared_seconds(double seconds, sw_io_way way);

/* Compares the best settings of a way, which were chosen; every pass moves the same number of bytes. */
sw_status sw_io_compare(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way);

#endif
