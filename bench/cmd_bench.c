#include "bench/options.h"
#include "cli/commands.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

/* Each bench has either `command`, or `line` and `run`. */
static const struct bench {
    const char *name, *what; /* what: its description in `bench --help` */
    const struct sw_command_line *line;
    sw_status (*run)(const void *given); /* gets a struct sw_bench_options */
    int (*command)(int argc, char **argv);
    bool for_ranks; /* several processes may run it together */
} benches[] = {
    {.name = "io", .what = "a drive through the store's I/O queue, against fio if installed", .command = sw_bench_io},
    {.name = "copy",
     .what = "copies between device and host, against plain memory copies",
     .line = &sw_bench_copy_line,
     .run = sw_bench_copy},
    {.name = "comm",
     .what = "collectives of ranks, against plain sends; start it with mpirun",
     .command = sw_bench_comm,
     .for_ranks = true},
    {.name = "update",
     .what = "the fused optimizer update, against its memory traffic alone",
     .line = &sw_bench_update_line,
     .run = sw_bench_update},
    {.name = "gemm",
     .what = "a model's matrix products, against oneDNN",
     .line = &sw_bench_gemm_line,
     .run = sw_bench_gemm},
    {.name = "muon",
     .what = "Muon's update of a model's matrices, against matrix products",
     .line = &sw_bench_muon_line,
     .run = sw_bench_muon},
    {.name = "experts",
     .what = "grouped products of experts, against products by one matrix",
     .line = &sw_bench_experts_line,
     .run = sw_bench_experts},
    {.name = "attention",
     .what = "attention of a micro-batch, against its matrix products alone",
     .line = &sw_bench_attention_line,
     .run = sw_bench_attention},
    {.name = "compute",
     .what = "a micro-batch, against its matrix products alone",
     .line = &sw_bench_compute_line,
     .run = sw_bench_compute},
    {.name = "load",
     .what = "a checkpoint loaded into a new store, against the drive alone",
     .line = &sw_bench_load_line,
     .run = sw_bench_load},
    {.name = "step",
     .what = "a training step as placed, against a resident one and its own I/O",
     .command = sw_bench_step,
     .for_ranks = true},
    {.name = "zero",
     .what = "memory and traffic of ZeRO stages, against formulas; needs mpirun",
     .command = sw_bench_zero,
     .for_ranks = true},
};
enum { BENCH_COUNT = sizeof benches / sizeof benches[0] };

static void print_help(FILE *to) {
    fprintf(to, "usage: spillway bench NAME [flags]; spillway bench NAME --help explains each\n\n");
    for (int i = 0; i < BENCH_COUNT; i++)
        fprintf(to, "  %-9s %s\n", benches[i].name, benches[i].what);
}

static int run(const struct bench *bench, int argc, char **argv) {
    struct sw_bench_options given = {0};
    int code;
    if (!bench->for_ranks && !sw_command_is_alone("bench", &code))
        return code;
    if (bench->command != NULL)
        return bench->command(argc, argv);
    return sw_command_run(bench->line, argc, argv, &given, bench->run);
}

int sw_command_bench(int argc, char **argv) {
    if (argc < 1) {
        print_help(stderr);
        return SW_EXIT_USAGE;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        print_help(stdout);
        return SW_EXIT_DONE;
    }
    for (int i = 0; i < BENCH_COUNT; i++)
        if (strcmp(argv[0], benches[i].name) == 0)
            return run(&benches[i], argc - 1, argv + 1);
    sw_log_error("spillway bench: there is no bench '%s'; spillway bench --help lists them", argv[0]);
    return SW_EXIT_USAGE;
}
