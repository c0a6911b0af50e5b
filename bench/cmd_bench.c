#include "bench/commands.h"
#include "bench/options.h"
#include "train/cli/cmd_ranks.h"

#include <stdio.h>
#include <string.h>

/* Each bench has one of three entries. */
static const struct bench {
    const char *name, *summary;
    int flags; /* its bit in bench/options.h; 0: it has flags of its own */
    sw_status (*run)(const void *given);
    int (*by_ranks)(const struct sw_command_line *line, int argc, char **argv);
    int (*command)(int argc, char **argv);
    bool for_ranks; /* several processes may run it together */
} benches[] = {
    {.name = "io",
     .summary = "reads and writes a drive through the store's I/O queue, beside fio where it is installed",
     .command = sw_bench_io},
    {.name = "copy",
     .summary = "copies between device and host, beside plain memory copies",
     .flags = SW_BENCH_COPY,
     .run = sw_bench_copy},
    {.name = "comm",
     .summary = "what ranks exchange, beside plain sends of the same bytes; start it with mpirun",
     .flags = SW_BENCH_COMM,
     .by_ranks = sw_bench_comm,
     .for_ranks = true},
    {.name = "update",
     .summary = "the fused optimizer update, beside the same memory traffic without arithmetic",
     .flags = SW_BENCH_UPDATE,
     .run = sw_bench_update},
    {.name = "gemm",
     .summary = "the matrix products of a model; of the CPU beside oneDNN called directly",
     .flags = SW_BENCH_GEMM,
     .run = sw_bench_gemm},
    {.name = "attention",
     .summary = "attention of a micro-batch forward and backward, beside the matrix products of a head alone",
     .flags = SW_BENCH_ATTENTION,
     .run = sw_bench_attention},
    {.name = "compute",
     .summary = "a micro-batch forward and backward, beside its matrix products alone by the vendor's library",
     .flags = SW_BENCH_COMPUTE,
     .run = sw_bench_compute},
    {.name = "load",
     .summary = "loads a checkpoint into a new store, beside the drive read and written at once",
     .flags = SW_BENCH_LOAD,
     .run = sw_bench_load},
    {.name = "step",
     .summary = "a training step as placed, beside one that is resident, its own I/O, and the least bytes",
     .command = sw_bench_step,
     .for_ranks = true},
    {.name = "zero",
     .summary = "what a rank holds and sends at each stage of ZeRO, beside the formulas; start it with mpirun",
     .flags = SW_BENCH_ZERO,
     .by_ranks = sw_bench_zero,
     .for_ranks = true},
};
enum { BENCH_COUNT = sizeof benches / sizeof benches[0], COMMAND_CHARS = 32 };

static void print_help(FILE *to) {
    fprintf(to, "usage: spillway bench NAME [flags]; spillway bench NAME --help explains each\n\n");
    for (int i = 0; i < BENCH_COUNT; i++)
        fprintf(to, "  %-9s %s\n", benches[i].name, benches[i].summary);
}

static int run(const struct bench *bench, int argc, char **argv) {
    char command[COMMAND_CHARS];
    struct sw_bench_options given = {0};
    struct sw_bench_line line;
    int code;
    if (!bench->for_ranks && !sw_command_is_alone("bench", &code))
        return code;
    if (bench->command != NULL)
        return bench->command(argc, argv);
    snprintf(command, sizeof command, "bench %s", bench->name);
    sw_bench_line(bench->flags, command, bench->summary, &line);
    if (bench->by_ranks != NULL)
        return bench->by_ranks(&line.line, argc, argv);
    return sw_command_run(&line.line, argc, argv, &given, bench->run);
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
    fprintf(stderr, "spillway bench: there is no bench '%s'; spillway bench --help lists them\n", argv[0]);
    return SW_EXIT_USAGE;
}
