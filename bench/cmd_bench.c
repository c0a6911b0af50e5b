#include "bench/commands.h"

#include "train/commands.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *what;
    int (*run)(int argc, char **argv);
} benches[] = {
    {"io", "a drive through the store's I/O queue, beside fio", sw_bench_io},
    {"copy", "copies between device and host, beside plain memory copies", sw_bench_copy},
    {"update", "the fused optimizer update, beside the same memory traffic without arithmetic", sw_bench_update},
    {"gemm", "the matrix products of a model's block, beside the vendor's library called directly", sw_bench_gemm},
    {"attention", "attention forward and backward, beside a head's matrix products alone", sw_bench_attention},
    {"compute", "a micro-batch's arithmetic, beside its matrix products alone by the vendor's library",
     sw_bench_compute},
    {"load", "a checkpoint into a new store, beside the drive read and written at once", sw_bench_load},
    {"step", "a training step as placed, beside one that is resident, its own I/O, and the least bytes", sw_bench_step},
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
    for (int i = 0; i < BENCH_COUNT; i++)
        if (strcmp(argv[0], benches[i].name) == 0)
            return benches[i].run(argc - 1, argv + 1);
    fprintf(stderr, "spillway bench: there is no bench '%s'; spillway bench --help lists them\n", argv[0]);
    return SW_EXIT_USAGE;
}
