/* The sweep as people read it. */
#include "bench/io_sweep.h"

#include "core/size.h"

#include <stdio.h>

void sw_io_print_table(const struct sw_io_report *report, sw_io_way way) {
    const struct sw_io_grid *grid = &report->bench->grid;
    const struct sw_io_target *target = &report->bench->target;
    char size[SW_SIZE_CHARS];
    if (way == SW_IO_READ)
        printf("%s in %d file%s%s, %s: GB/s by block size and requests in flight\n",
               sw_format_size(target->file_bytes * target->count, size), target->count, target->count == 1 ? "" : "s",
               target->direct ? "" : " through the page cache", report->bench->given->random ? "random" : "sequential");
    printf("%-10s", sw_io_way_name(way));
    for (int d = 0; d < grid->depths; d++)
        printf(" %6d", grid->depth[d]);
    putchar('\n');
    for (int b = 0; b < grid->blocks; b++) {
        printf("%10s", sw_format_size(grid->block_bytes[b], size));
        for (int d = 0; d < grid->depths; d++) {
            const struct sw_io_result *result = sw_io_result_at(report, way, b, d);
            if (result->fits)
                printf(" %6.2f", result->ours.bytes_per_s * 1e-9);
            else
                printf(" %6s", "-");
        }
        putchar('\n');
    }
    fflush(stdout);
}

static void print_cell(const struct sw_io_cell *cell) {
    char size[SW_SIZE_CHARS];
    printf(" %9s x %-4d", sw_format_size(cell->block_bytes, size), cell->depth);
}

static void print_ours(const struct sw_io_report *report, sw_io_way way) {
    const struct sw_io_best *best = &report->best[way];
    const double rate = sw_bench_median(&best->rates, SW_IO_OURS), cores = sw_bench_median(&best->cores, SW_IO_OURS);
    printf("%-6s", sw_io_way_name(way));
    print_cell(&best->ours.cell);
    printf(" %7.2f %7.3f %7.4f\n", rate * 1e-9, cores, sw_io_core_s_per_gb(cores, rate));
}

static void print_ratio(const struct sw_io_best *best, int who, int to) {
    const struct sw_bench_interval interval = sw_bench_ratio_interval(&best->rates, who, to);
    printf("  %5.3f (%5.3f-%5.3f)", sw_bench_ratio(&best->rates, who, to), interval.low, interval.high);
}

/* At our setting fio, ours to it, and what chance makes of such a ratio; then fio's own best, and ours to that. */
static void print_fio(const struct sw_io_report *report, sw_io_way way) {
    const struct sw_io_best *best = &report->best[way];
    printf("%-6s %7.2f %7.3f", sw_io_way_name(way), sw_bench_median(&best->rates, SW_IO_FIO) * 1e-9,
           sw_bench_median(&best->cores, SW_IO_FIO));
    print_ratio(best, SW_IO_OURS, SW_IO_FIO);
    print_ratio(best, SW_IO_FIO_AGAIN, SW_IO_FIO);
    print_cell(&best->fio.cell);
    printf(" %7.2f", sw_bench_median(&best->rates, SW_IO_FIO_BEST) * 1e-9);
    print_ratio(best, SW_IO_OURS, SW_IO_FIO_BEST);
    putchar('\n');
}

void sw_io_print_best(const struct sw_io_report *report) {
    printf("best settings, medians of %d rounds: GB/s, cores, core-seconds a GB", (int)report->bench->given->rounds);
    if (!sw_io_beside_fio(report) && !report->bench->given->no_fio)
        printf("; fio is not installed, so nothing stands beside");
    putchar('\n');
    for (int way = 0; way < SW_IO_WAYS; way++)
        print_ours(report, (sw_io_way)way);
    if (sw_io_beside_fio(report))
        printf("%s in turn with it%s, at the same setting: GB/s, cores, ours to it (95%%), it to itself (95%%); at its "
               "own "
               "best: GB/s, ours to it (95%%)\n",
               report->fio.version, report->fio.fixed_buffers ? "" : " (without registered buffers)");
    for (int way = 0; sw_io_beside_fio(report) && way < SW_IO_WAYS; way++)
        print_fio(report, (sw_io_way)way);
    fflush(stdout);
}

void sw_io_print_store(const struct sw_io_report *report) {
    const struct sw_io_store_price *store = &report->store;
    char size[SW_SIZE_CHARS];
    printf("the store, with checksums, %s x %d: GB/s, to the queue alone, core-seconds a GB, of these for sums\n",
           sw_format_size(store->block_bytes, size), store->depth);
    for (int way = SW_IO_READ; way <= SW_IO_WRITE; way++) {
        const double rate = sw_bench_median(&store->rates[way], SW_IO_STORE);
        const double price = sw_bench_median(&store->costs[way], SW_IO_STORE);
        const double plain = sw_bench_median(&store->costs[way], SW_IO_PLAIN);
        printf("%-6s %7.2f %6.3f %7.4f %7.4f\n", sw_io_way_name((sw_io_way)way), rate * 1e-9,
               sw_bench_ratio(&store->rates[way], SW_IO_STORE, SW_IO_PLAIN), price, price - plain);
    }
}
