/* Flags that the benches share, for the tables of their command lines. */
#ifndef SW_BENCH_OPTIONS_H
#define SW_BENCH_OPTIONS_H

#include "bench/report.h"
#include "train/settings/options.h"

#define SW_BENCH_THREADS(offset_)                                                                                      \
    {                                                                                                                  \
        .name = "--threads", .kind = SW_OPTION_INT, .offset = (offset_), .initial = "auto", .value = "N",              \
        .what = "threads of the CPU device and of what it is compared with; auto: all cores", .int_min = 1,            \
        .int_max = 4096, .allow_auto = true                                                                            \
    }

#define SW_BENCH_DEVICE(offset_)                                                                                       \
    {                                                                                                                  \
        .name = "--device", .kind = SW_OPTION_CHOICE, .offset = (offset_), .initial = "auto",                          \
        .choices = "auto|cpu|cuda", .what = "what computes; auto: CUDA where there is one, else the CPU"               \
    }

#define SW_BENCH_ROUNDS(offset_, initial_)                                                                             \
    {                                                                                                                  \
        .name = "--rounds", .kind = SW_OPTION_INT, .offset = (offset_), .initial = (initial_), .value = "N",           \
        .what = "times that each is measured, in turn; medians are shown", .int_min = 1,                               \
        .int_max = SW_BENCH_MAX_ROUNDS                                                                                 \
    }

#define SW_BENCH_JSON(offset_)                                                                                         \
    { .name = "--json", .kind = SW_OPTION_FLAG, .offset = (offset_), .what = "one object on standard output" }

#endif
