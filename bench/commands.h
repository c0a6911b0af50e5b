/* The benches, each of which measures one thing beside the machine's own limit. */
#ifndef SW_BENCH_COMMANDS_H
#define SW_BENCH_COMMANDS_H

#include "core/status.h"

/* Runs `spillway bench NAME`: gets the arguments after `bench` and returns the exit status. */
int sw_command_bench(int argc, char **argv);

struct sw_command_line;

/* Benches of one process, with the flags of bench/options.h: each gets a struct sw_bench_options. */
sw_status sw_bench_attention(const void *given_options);
sw_status sw_bench_compute(const void *given_options);
sw_status sw_bench_copy(const void *given_options);
sw_status sw_bench_gemm(const void *given_options);
sw_status sw_bench_load(const void *given_options);
sw_status sw_bench_update(const void *given_options);
/* Benches of several ranks, with the same flags. */
int sw_bench_comm(const struct sw_command_line *line, int argc, char **argv);
int sw_bench_zero(const struct sw_command_line *line, int argc, char **argv);
/* Benches with flags of their own. */
int sw_bench_io(int argc, char **argv);
int sw_bench_step(int argc, char **argv);

#endif
