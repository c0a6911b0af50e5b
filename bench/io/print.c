/* The sweep as people read it. */
#include "bench/io/sweep.h"

#include "core/size.h"

#include <stdio.h>

static double gb(double bytes) {
    return bytes * 1e-9;
}

static double best_rate(const struct sw_io_report *report, sw_io_way way, int who) {
    return sw_bench_median(&report->best[way].rates, who);
}

/* The verdict: one sentence for a reader who stops there. */
static void print_verdict(const struct sw_io_report *report) {
    printf("The drive reads %.2f GB/s, writes %.2f GB/s, and moves %.2f GB/s when both go\n",
           gb(best_rate(report, SW_IO_READ, SW_IO_OURS)), gb(best_rate(report, SW_IO_WRITE, SW_IO_OURS)),
           gb(best_rate(report, SW_IO_BOTH, SW_IO_OURS)));
    if (!sw_io_beside_fio(report)) {
        puts("on at once, by the queue that a training uses.\n");
        return;
    }
    printf("on at once: %.2f, %.2f and %.2f times what %s reaches at its own best.\n\n",
           sw_bench_ratio(&report->best[SW_IO_READ].rates, SW_IO_OURS, SW_IO_FIO_BEST),
           sw_bench_ratio(&report->best[SW_IO_WRITE].rates, SW_IO_OURS, SW_IO_FIO_BEST),
           sw_bench_ratio(&report->best[SW_IO_BOTH].rates, SW_IO_OURS, SW_IO_FIO_BEST), report->fio.version);
}

static void print_cell(sw_io_way way, const struct sw_io_cell *cell) {
    char size[SW_SIZE_CHARS];
    printf("%-6s %10s %10d", sw_io_way_name(way), sw_format_size(cell->block_bytes, size), cell->depth);
}

static void print_ours(const struct sw_io_report *report) {
    printf("best settings, medians of %d rounds%s\n%-6s %10s %10s %8s %7s %16s\n", (int)report->bench->effort.rounds,
           sw_io_beside_fio(report) || report->bench->given->no_fio
               ? ""
               : "; fio is not installed, so nothing stands beside",
           "", "block", "in flight", "GB/s", "cores", "core-seconds/GB");
    for (int way = 0; way < SW_IO_WAYS; way++) {
        const double rate = best_rate(report, (sw_io_way)way, SW_IO_OURS);
        const double cores = sw_bench_median(&report->best[way].cores, SW_IO_OURS);
        print_cell((sw_io_way)way, &report->best[way].ours.cell);
        printf(" %8.2f %7.3f %16.4f\n", gb(rate), cores, sw_io_core_s_per_gb(cores, rate));
    }
}

static void print_ratio(const struct sw_io_best *best, int who, int to) {
    const struct sw_bench_interval interval = sw_bench_ratio_interval(&best->rates, who, to);
    printf("   %6.3f (%.3f-%.3f)", sw_bench_ratio(&best->rates, who, to), interval.low, interval.high);
}

/* fio at our setting, ours to it, and what chance makes of such a ratio. */
static void print_same_setting(const struct sw_io_report *report) {
    printf("\n%s in turn with it at the same settings%s (ratios: 95%% intervals)\n"
           "%-6s %8s %7s   %-22s   %-22s\n",
           report->fio.version, report->fio.fixed_buffers ? "" : ", without registered buffers", "", "GB/s", "cores",
           "ours to fio", "fio to itself");
    for (int way = 0; way < SW_IO_WAYS; way++) {
        const struct sw_io_best *best = &report->best[way];
        printf("%-6s %8.2f %7.3f", sw_io_way_name((sw_io_way)way), gb(best_rate(report, (sw_io_way)way, SW_IO_FIO)),
               sw_bench_median(&best->cores, SW_IO_FIO));
        print_ratio(best, SW_IO_OURS, SW_IO_FIO);
        print_ratio(best, SW_IO_FIO_AGAIN, SW_IO_FIO);
        putchar('\n');
    }
}

static void print_fio_best(const struct sw_io_report *report) {
    printf("\n%s at its own best settings\n%-6s %10s %10s %8s   %s\n", report->fio.version, "", "block", "in flight",
           "GB/s", "ours to fio");
    for (int way = 0; way < SW_IO_WAYS; way++) {
        print_cell((sw_io_way)way, &report->best[way].fio.cell);
        printf(" %8.2f", gb(best_rate(report, (sw_io_way)way, SW_IO_FIO_BEST)));
        print_ratio(&report->best[way], SW_IO_OURS, SW_IO_FIO_BEST);
        putchar('\n');
    }
}

static void print_way(const struct sw_io_report *report, sw_io_way way) {
    const struct sw_io_grid *grid = &report->bench->grid;
    char size[SW_SIZE_CHARS];
    for (int b = 0; b < grid->blocks; b++) {
        printf("%-6s %10s", b == 0 ? sw_io_way_name(way) : "", sw_format_size(grid->block_bytes[b], size));
        for (int d = 0; d < grid->depths; d++) {
            const struct sw_io_result *result = sw_io_result_at(report, way, b, d);
            if (result->fits)
                printf(" %7.2f", gb(result->ours.bytes_per_s));
            else
                printf(" %7s", "-");
        }
        putchar('\n');
    }
}

static void print_sweep(const struct sw_io_report *report) {
    const struct sw_io_grid *grid = &report->bench->grid;
    const struct sw_io_target *target = &report->bench->target;
    char size[SW_SIZE_CHARS];
    printf("\nall settings, %s in %d file%s%s, %s: GB/s by requests in flight\n%-6s %10s",
           sw_format_size(report->file_bytes * target->count, size), target->count, target->count == 1 ? "" : "s",
           target->direct ? "" : " through the page cache", report->bench->given->random ? "random" : "sequential", "",
           "block");
    for (int d = 0; d < grid->depths; d++)
        printf(" %7d", grid->depth[d]);
    putchar('\n');
    for (int way = 0; way < SW_IO_WAYS; way++)
        print_way(report, (sw_io_way)way);
}

static void print_store(const struct sw_io_report *report) {
    const struct sw_io_store_price *store = &report->store;
    char size[SW_SIZE_CHARS];
    printf("\nthe store, with checksums, %s blocks, %d in flight\n%-6s %8s %18s %16s %14s\n",
           sw_format_size(store->block_bytes, size), store->depth, "", "GB/s", "to the queue alone", "core-seconds/GB",
           "of it for sums");
    for (int way = SW_IO_READ; way <= SW_IO_WRITE; way++) {
        const double rate = sw_bench_median(&store->rates[way], SW_IO_STORE);
        const double price = sw_bench_median(&store->costs[way], SW_IO_STORE);
        const double plain = sw_bench_median(&store->costs[way], SW_IO_PLAIN);
        printf("%-6s %8.2f %18.3f %16.4f %14.4f\n", sw_io_way_name((sw_io_way)way), gb(rate),
               sw_bench_ratio(&store->rates[way], SW_IO_STORE, SW_IO_PLAIN), price, price - plain);
    }
}

void sw_io_print(const struct sw_io_report *report) {
    print_verdict(report);
    print_ours(report);
    if (sw_io_beside_fio(report)) {
        print_same_setting(report);
        print_fio_best(report);
    }
    print_sweep(report);
    if (report->has_store)
        print_store(report);
}
