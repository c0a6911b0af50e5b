#include "bench/commands.h"

#include "train/cli/cmd_ranks.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *what;
    int (*run)(int argc, char **argv);
    bool by_ranks; /* several processes may run it together */
} benches[] = {
    {.name = "io", .what = "a drive through the store's I/O queue, beside fio", .run = sw_bench_io},
    {.name = "copy", .what = "copies between device and host, beside plain memory copies", .run = sw_bench_copy},
    {.name = "comm",
     .what = "what ranks exchange, beside plain sends of the same bytes; start it with mpirun",
     .run = sw_bench_comm,
     .by_ranks = true},
    {.name = "update",
     .what = "the fused optimizer update, beside the same memory traffic without arithmetic",
     .run = sw_bench_update},
    {.name = "gemm",
     .what = "the matrix products of a model's block, beside the vendor's library called directly",
     .run = sw_bench_gemm},
    {.name = "attention",
     .what = "attention forward and backward, beside a head's matrix products alone",
     .run = sw_bench_attention},
    {.name = "compute",
     .what = "a micro-batch's arithmetic, beside its matrix products alone by the vendor's library",
     .run = sw_bench_compute},
    {.name = "load",
     .what = "a checkpoint into a new store, beside the drive read and written at once",
     .run = sw_bench_load},
    {.name = "step",
     .what = "a training step as placed, beside one that is resident, its own I/O, and the least bytes",
     .run = sw_bench_step,
     .by_ranks = true},
    {.name = "zero",
     .what = "what ranks hold and send at each stage of ZeRO, beside its formulas; start it with mpirun",
     .run = sw_bench_zero,
     .by_ranks = true},
};
enum { BENCH_COUNT = sizeof benches / sizeof benches[0] };

static void print_help(FILE *to) {
    fprintf(to, "usage: spillway bench NAME [flags]; spillway bench NAME --help explains each\n\n");
    for (int i = 0; i < BENCH_COUNT; i++)
        fprintf(to, "  %-9s %s\n", benches[i].name, benches[i].what);
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
    for (int i = 0; i < BENCH_COUNT; i++) {
        int code;
        if (strcmp(argv[0], benches[i].name) != 0)
            continue;
        if (!benches[i].by_ranks && !sw_command_is_alone("bench", &code))
            return code;
        return benches[i].run(argc - 1, argv + 1);
    }
    fprintf(stderr, "spillway bench: there is no bench '%s'; spillway bench --help lists them\n", argv[0]);
    return SW_EXIT_USAGE;
}
