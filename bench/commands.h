/* The benches, each of which measures one thing beside the machine's own limit. */
#ifndef SW_BENCH_COMMANDS_H
#define SW_BENCH_COMMANDS_H

#include "core/status.h"

/* Runs `spillway bench NAME`: gets the arguments after `bench` and returns the exit status. */
int sw_command_bench(int argc, char **argv);

/* Benches of one process, with the flags of bench/options.h: each gets a struct sw_bench_options. */
sw_status sw_bench_attention(const void *given_options);
sw_status sw_bench_compute(const void *given_options);
sw_status sw_bench_copy(const void *given_options);
sw_status sw_bench_gemm(const void *given_options);
sw_status sw_bench_load(const void *given_options);
sw_status sw_bench_papers(const void *given_options);
sw_status sw_bench_update(const void *given_options);
/* Benches that parse their own arguments: those of several ranks, and those with flags of their own. */
int sw_bench_comm(int argc, char **argv);
int sw_bench_io(int argc, char **argv);
int sw_bench_step(int argc, char **argv);
int sw_bench_zero(int argc, char **argv);

#endif
