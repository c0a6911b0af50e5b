/* What the sweep of `bench io` measured, for those who print and draw it. */
#ifndef SW_BENCH_IO_SWEEP_H
#define SW_BENCH_IO_SWEEP_H

#include "bench/io/fio.h"
#include "bench/io/store.h"

#include <assert.h>

/* Who runs in turn within a round: ours and fio at the setting that was best for ours; fio there once more, which is
 * what chance alone makes of a ratio; fio at its own best. */
enum { SW_IO_OURS, SW_IO_FIO, SW_IO_FIO_AGAIN, SW_IO_FIO_BEST, SW_IO_CONTENDERS };
static_assert((int)SW_IO_CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each has its place among the rates");

struct sw_io_result {
    struct sw_io_cell cell;
    bool fits; /* into the files; else nothing was measured */
    struct sw_io_rate ours, fio;
};

/* One way at its best settings, compared. Without fio, only ours is there. */
struct sw_io_best {
    struct sw_io_result ours, fio;
    struct sw_bench_rounds rates, cores;
};

struct sw_io_report {
    const struct sw_io_bench *bench;
    int64_t file_bytes; /* before the store got its part */
    struct sw_fio fio;
    struct sw_io_result results[SW_IO_WAYS][SW_IO_MAX_CELLS]; /* by block, then depth */
    struct sw_io_best best[SW_IO_WAYS];
    bool has_store; /* a block device holds none */
    struct sw_io_store_price store;
};

static inline bool sw_io_beside_fio(const struct sw_io_report *report) {
    return report->fio.version[0] != '\0';
}

static inline const struct sw_io_result *sw_io_result_at(const struct sw_io_report *report, sw_io_way way, int block,
                                                         int depth) {
    return &report->results[way][block * report->bench->grid.depths + depth];
}

/* As people read it, 80 columns wide: what the drive gives in a sentence, the best settings, then everything else. */
void sw_io_print(const struct sw_io_report *report);
sw_status sw_io_print_json(const struct sw_io_report *report);
sw_status sw_io_draw(const struct sw_io_report *report, const char *path);

#endif
