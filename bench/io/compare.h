/* fio, where it is installed, on the same open files: what a user would measure a drive with. */
#ifndef SW_BENCH_IO_COMPARE_H
#define SW_BENCH_IO_COMPARE_H

#include "bench/io/io.h"

/* fio, where it is installed, on the same open files: what a user would measure a drive with. */
struct sw_fio {
    char version[64];   /* "fio-3.33"; "" where it is not installed */
    bool fixed_buffers; /* fio registers buffers only with the right to lift the memlock limit */
    double start_s;     /* time of fio's start and end, while the drive rests */
};

/* Looks for fio and tries whether it may register buffers. It is no error where fio is missing. */
sw_status sw_fio_find(struct sw_io_target *target, struct sw_fio *out);

#endif
