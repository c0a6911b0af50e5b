/* fio, where it is installed, on the same open files: what a user would measure a drive with. */
#ifndef SW_BENCH_IO_FIO_H
#define SW_BENCH_IO_FIO_H

#include "bench/io/io.h"

struct sw_fio {
    char version[64];   /* "fio-3.33"; "" where it is not installed */
    bool fixed_buffers; /* fio registers buffers only with the right to lift the memlock limit */
    double start_s;     /* time of fio's start and end, while the drive rests */
};

/* Looks for fio and tries whether it may register buffers. It is no error where fio is missing. */
sw_status sw_fio_find(struct sw_io_target *target, struct sw_fio *out);

/* Runs fio once, for one turn after another. The target counts the bytes that it writes. */
sw_status sw_fio_run(const struct sw_fio *fio, struct sw_io_target *target, bool random, const struct sw_io_turn *turns,
                     int count, struct sw_io_rate *out);

#endif
