/* The sweep as JSON and as a picture. */
#include "bench/io_svg.h"
#include "bench/io_sweep.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>

static json_t *cell_json(const struct sw_io_report *report, const struct sw_io_result *result) {
    json_t *object =
        json_pack("{s:s, s:I, s:i, s:f, s:f, s:f, s:f}", "way", sw_io_way_name(result->cell.way), "block_bytes",
                  (json_int_t)result->cell.block_bytes, "depth", result->cell.depth, "bytes_per_s",
                  result->ours.bytes_per_s, "read_bytes_per_s", result->ours.read_bytes_per_s, "write_bytes_per_s",
                  result->ours.write_bytes_per_s, "cores", result->ours.cores);
    if (object != NULL && sw_io_beside_fio(report))
        json_object_set_new(object, "fio_bytes_per_s", json_real(result->fio.bytes_per_s));
    return object;
}

static json_t *interval_json(const struct sw_io_best *best, int who, int to) {
    const struct sw_bench_interval interval = sw_bench_ratio_interval(&best->rates, who, to);
    return json_pack("[f, f]", interval.low, interval.high);
}

static json_t *fio_json(const struct sw_io_best *best) {
    const double same = sw_bench_median(&best->rates, SW_IO_FIO), cores = sw_bench_median(&best->cores, SW_IO_FIO);
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:f, s:o, s:I, s:i, s:f, s:f, s:o}", "bytes_per_s", same, "cores",
                     cores, "core_s_per_gb", sw_io_core_s_per_gb(cores, same), "ours_of_fio",
                     sw_bench_ratio(&best->rates, SW_IO_OURS, SW_IO_FIO), "ours_of_fio_interval",
                     interval_json(best, SW_IO_OURS, SW_IO_FIO), "fio_of_fio",
                     sw_bench_ratio(&best->rates, SW_IO_FIO_AGAIN, SW_IO_FIO), "fio_of_fio_interval",
                     interval_json(best, SW_IO_FIO_AGAIN, SW_IO_FIO), "best_block_bytes",
                     (json_int_t)best->fio.cell.block_bytes, "best_depth", best->fio.cell.depth, "best_bytes_per_s",
                     sw_bench_median(&best->rates, SW_IO_FIO_BEST), "ours_of_fio_best",
                     sw_bench_ratio(&best->rates, SW_IO_OURS, SW_IO_FIO_BEST), "ours_of_fio_best_interval",
                     interval_json(best, SW_IO_OURS, SW_IO_FIO_BEST));
}

static json_t *best_json(const struct sw_io_report *report, const struct sw_io_best *best) {
    const double rate = sw_bench_median(&best->rates, SW_IO_OURS), cores = sw_bench_median(&best->cores, SW_IO_OURS);
    return json_pack("{s:s, s:I, s:i, s:f, s:f, s:f, s:o}", "way", sw_io_way_name(best->ours.cell.way), "block_bytes",
                     (json_int_t)best->ours.cell.block_bytes, "depth", best->ours.cell.depth, "bytes_per_s", rate,
                     "cores", cores, "core_s_per_gb", sw_io_core_s_per_gb(cores, rate), "fio",
                     sw_io_beside_fio(report) ? fio_json(best) : json_null());
}

static json_t *price_json(const struct sw_io_store_price *store, sw_io_way way) {
    const struct sw_bench_rounds *rates = &store->rates[way], *costs = &store->costs[way];
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "bytes_per_s", sw_bench_median(rates, SW_IO_STORE), "core_s_per_gb",
                     sw_bench_median(costs, SW_IO_STORE), "plain_bytes_per_s", sw_bench_median(rates, SW_IO_PLAIN),
                     "plain_core_s_per_gb", sw_bench_median(costs, SW_IO_PLAIN), "of_plain",
                     sw_bench_ratio(rates, SW_IO_STORE, SW_IO_PLAIN));
}

static json_t *store_json(const struct sw_io_report *report) {
    const struct sw_io_store_price *store = &report->store;
    if (!report->has_store)
        return json_null();
    return json_pack("{s:I, s:i, s:o, s:o}", "block_bytes", (json_int_t)store->block_bytes, "depth", store->depth,
                     "read", price_json(store, SW_IO_READ), "write", price_json(store, SW_IO_WRITE));
}

static sw_status fill_arrays(const struct sw_io_report *report, json_t *cells, json_t *best) {
    const struct sw_io_grid *grid = &report->bench->grid;
    for (int way = 0; way < SW_IO_WAYS; way++) {
        for (int b = 0; b < grid->blocks; b++)
            for (int d = 0; d < grid->depths; d++) {
                const struct sw_io_result *result = sw_io_result_at(report, (sw_io_way)way, b, d);
                if (result->fits)
                    SW_TRY(sw_bench_append(cells, cell_json(report, result)));
            }
        SW_TRY(sw_bench_append(best, best_json(report, &report->best[way])));
    }
    return SW_OK;
}

sw_status sw_io_print_json(const struct sw_io_report *report) {
    const struct sw_io_options *given = report->bench->given;
    const struct sw_io_target *target = &report->bench->target;
    json_t *cells = json_array(), *best = json_array();
    sw_status status = fill_arrays(report, cells, best);
    if (status == SW_OK)
        status = sw_bench_print_json(json_pack(
            "{s:s, s:i, s:I, s:b, s:b, s:f, s:i, s:s?, s:b, s:I, s:O, s:O, s:o}", "bench", "io", "files", target->count,
            "file_bytes", (json_int_t)report->file_bytes, "direct", target->direct, "random", given->random, "seconds",
            given->seconds, "rounds", (int)given->rounds, "fio", sw_io_beside_fio(report) ? report->fio.version : NULL,
            "fio_fixed_buffers", sw_io_beside_fio(report) && report->fio.fixed_buffers, "written_bytes",
            (json_int_t)target->written_bytes, "cells", cells, "best", best, "store", store_json(report)));
    json_decref(cells);
    json_decref(best);
    return status;
}

/* The points of one way: a line for each block size, over the requests in flight. */
struct points {
    double x[SW_IO_MAX_BLOCKS][SW_IO_MAX_DEPTHS], y[SW_IO_MAX_BLOCKS][SW_IO_MAX_DEPTHS];
};

static void draw_way(const struct sw_io_report *report, sw_io_way way, struct points *points,
                     struct sw_svg_chart *chart) {
    static const char *const titles[SW_IO_WAYS] = {
        [SW_IO_READ] = "reading", [SW_IO_WRITE] = "writing", [SW_IO_BOTH] = "reading and writing at once, together"};
    const struct sw_io_grid *grid = &report->bench->grid;
    *chart = (struct sw_svg_chart){.title = titles[way],
                                   .x_label = "requests in flight",
                                   .y_label = "GB/s",
                                   .series_count = grid->blocks,
                                   .tick_count = grid->depths};
    for (int d = 0; d < grid->depths; d++) {
        chart->tick_at[d] = log2((double)grid->depth[d]);
        snprintf(chart->tick[d], sizeof chart->tick[d], "%d", grid->depth[d]);
    }
    for (int b = 0; b < grid->blocks; b++) {
        struct sw_svg_series *series = &chart->series[b];
        sw_format_size(grid->block_bytes[b], series->name);
        series->x = points->x[b];
        series->y = points->y[b];
        for (int d = 0; d < grid->depths; d++) {
            const struct sw_io_result *result = sw_io_result_at(report, way, b, d);
            if (!result->fits)
                continue;
            points->x[b][series->count] = chart->tick_at[d];
            points->y[b][series->count++] = result->ours.bytes_per_s * 1e-9;
        }
    }
}

sw_status sw_io_draw(const struct sw_io_report *report, const char *path) {
    struct points points[SW_IO_WAYS];
    struct sw_svg_chart charts[SW_IO_WAYS];
    for (int way = 0; way < SW_IO_WAYS; way++)
        draw_way(report, (sw_io_way)way, &points[way], &charts[way]);
    return sw_svg_write(path, charts, SW_IO_WAYS);
}
