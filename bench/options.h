/* The benches, each of which measures one thing against the machine's own limit, and the flags of all except `io` and
 * `step`, which have tables of their own. */
#ifndef SW_BENCH_OPTIONS_H
#define SW_BENCH_OPTIONS_H

#include "bench/report.h"
#include "job/settings/options.h"
#include "job/settings/settings.h"

/* A bit for each bench, for `commands` of the table's rows. */
enum {
    SW_BENCH_COPY = 1,
    SW_BENCH_COMM = 2,
    SW_BENCH_UPDATE = 4,
    SW_BENCH_GEMM = 8,
    SW_BENCH_ATTENTION = 16,
    SW_BENCH_COMPUTE = 32,
    SW_BENCH_LOAD = 64,
    SW_BENCH_ZERO = 128,
    SW_BENCH_EXPERTS = 256,
    SW_BENCH_MUON = 512,
};

struct sw_bench_options {
    struct sw_settings settings; /* flags that train has too: the model and its shape, the device, --json */
    struct sw_option_list sizes, nvme;
    int64_t rounds, chunk_grains;
    int64_t experts, chosen, hidden, inner, tokens;
};

enum { SW_BENCH_MOST_CHUNK_GRAINS = 384, SW_BENCH_MAX_SIZES = 6 };
#define SW_BENCH_MADE_MODEL "made" /* the model that `zero` makes */

extern const struct sw_command_line sw_bench_attention_line, sw_bench_comm_line, sw_bench_compute_line,
    sw_bench_copy_line, sw_bench_experts_line, sw_bench_gemm_line, sw_bench_load_line, sw_bench_muon_line,
    sw_bench_update_line, sw_bench_zero_line;

/* The values of --size that a bench takes, and those that it measures without the flag. */
struct sw_bench_sizes {
    const char *allowed; /* "from 4KiB to 256MiB" */
    int64_t least_bytes, most_bytes, multiple_bytes;
    int usual_count;
    int64_t usual_bytes[SW_BENCH_MAX_SIZES];
};
extern const struct sw_bench_sizes sw_bench_copy_sizes, sw_bench_comm_sizes;

/* The rates of one size. */
struct sw_bench_size_row {
    int64_t bytes;
    struct sw_bench_rounds rounds;
};
/* Makes a row for each size to measure, without rates. The caller frees the rows. */
sw_status sw_bench_size_rows(const struct sw_bench_options *given, const struct sw_bench_sizes *sizes,
                             struct sw_bench_size_row **out, int *out_count);

/* Runs `spillway bench NAME`: gets the arguments after `bench` and returns the exit status. */
int sw_command_bench(int argc, char **argv);

/* Benches of one process, with the flags above: each gets a struct sw_bench_options. */
sw_status sw_bench_attention(const void *given_options);
sw_status sw_bench_compute(const void *given_options);
sw_status sw_bench_copy(const void *given_options);
sw_status sw_bench_experts(const void *given_options);
sw_status sw_bench_gemm(const void *given_options);
sw_status sw_bench_load(const void *given_options);
sw_status sw_bench_muon(const void *given_options);
sw_status sw_bench_update(const void *given_options);
/* Benches that parse their own arguments: those of several ranks, and those with flags of their own. */
int sw_bench_comm(int argc, char **argv);
int sw_bench_io(int argc, char **argv);
int sw_bench_step(int argc, char **argv);
int sw_bench_zero(int argc, char **argv);

#endif
