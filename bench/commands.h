/* `spillway bench NAME`: each measures one thing beside the machine's own limit. Gets the arguments after `bench` and
 * returns the exit status. */
#ifndef SW_BENCH_COMMANDS_H
#define SW_BENCH_COMMANDS_H

int sw_command_bench(int argc, char **argv);

/* The benches; each gets the arguments after its name. */
int sw_bench_comm(int argc, char **argv);
int sw_bench_copy(int argc, char **argv);
int sw_bench_update(int argc, char **argv);
int sw_bench_gemm(int argc, char **argv);
int sw_bench_attention(int argc, char **argv);
int sw_bench_compute(int argc, char **argv);
int sw_bench_io(int argc, char **argv);
int sw_bench_load(int argc, char **argv);
int sw_bench_step(int argc, char **argv);
int sw_bench_zero(int argc, char **argv);

#endif
