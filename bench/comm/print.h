/* What `bench comm` says, by rank 0. */
#ifndef SW_BENCH_COMM_PRINT_H
#define SW_BENCH_COMM_PRINT_H

#include "bench/report.h"
#include "core/ranks/comm.h"

#include <assert.h>

/* Rates of bytes that a rank gives to the others, but of the last, which every rank copies at once. */
enum { SW_COMM_GATHER, SW_COMM_REDUCE, SW_COMM_LIBRARY, SW_COMM_PLAIN, SW_COMM_MEMCPY, SW_COMM_CONTENDERS };
static_assert((int)SW_COMM_CONTENDERS <= (int)SW_BENCH_MAX_CONTENDERS, "each has its place among the rates");

struct sw_comm_report {
    const struct sw_comm *comm;
    const char *device, *precision;
    int rounds;
    bool plain; /* plain sends were measured */
    double latency_s;
};

void sw_comm_print_head(const struct sw_comm_report *report);
void sw_comm_print_line(const struct sw_comm_report *report, int64_t bytes, const struct sw_bench_rounds *rounds);
json_t *sw_comm_size_json(const struct sw_comm_report *report, int64_t bytes, const struct sw_bench_rounds *rounds);
json_t *sw_comm_report_json(const struct sw_comm_report *report, json_t *sizes);

#endif
