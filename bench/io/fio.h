/* fio, where it is installed, on the same files with the same memory of requests: what a user would measure with. */
#ifndef SW_BENCH_IO_FIO_H
#define SW_BENCH_IO_FIO_H

#include "bench/io/io.h"

enum { SW_FIO_VERSION_CHARS = 64 };

struct sw_fio {
    char version[SW_FIO_VERSION_CHARS]; /* "" where it is not installed */
    bool fixed_buffers;                 /* fio registers buffers only with the right to lift the memlock limit */
    double start_s;                     /* what it takes to start and end, while the drive rests */
};

/* Looks for it and tries what it may do. That it is missing is no error. */
sw_status sw_fio_find(struct sw_io_target *target, struct sw_fio *out);

/* Runs it once, for one turn after another. What a turn that writes may write has been set aside. */
sw_status sw_fio_run(const struct sw_fio *fio, struct sw_io_target *target, bool random, const struct sw_io_turn *turns,
                     int count, struct sw_io_rate *out);

#endif
