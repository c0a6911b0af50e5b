/* The sweep as JSON and as a picture. */
#include "bench/io/svg.h"
#include "bench/io/sweep.h"
#include "core/size.h"
#include "train/cli/drives.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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
        status = sw_bench_print_json(
            json_pack("{s:s, s:i, s:I, s:b, s:b, s:b, s:f, s:i, s:s?, s:b, s:I, s:O, s:O, s:o}", "bench", "io", "files",
                      target->count, "file_bytes", (json_int_t)report->file_bytes, "direct", target->direct, "random",
                      given->random, "thorough", given->thorough, "seconds", report->bench->effort.seconds, "rounds",
                      (int)report->bench->effort.rounds, "fio", sw_io_beside_fio(report) ? report->fio.version : NULL,
                      "fio_fixed_buffers", sw_io_beside_fio(report) && report->fio.fixed_buffers, "written_bytes",
                      (json_int_t)target->written_bytes, "cells", cells, "best", best, "store", store_json(report)));
    json_decref(cells);
    json_decref(best);
    return status;
}

/* The points of one way: a line for each block size, over the requests in flight; and as many of fio's. */
struct points {
    double x[2 * SW_IO_MAX_BLOCKS][SW_IO_MAX_DEPTHS], y[2 * SW_IO_MAX_BLOCKS][SW_IO_MAX_DEPTHS];
};

static void draw_series(const struct sw_io_report *report, sw_io_way way, int block, bool fio, double *x, double *y,
                        struct sw_svg_series *series) {
    const struct sw_io_grid *grid = &report->bench->grid;
    char size[SW_SIZE_CHARS];
    *series = (struct sw_svg_series){.x = x, .y = y, .dots = fio, .colour = block};
    snprintf(series->name, sizeof series->name, "%s%s", sw_format_size(grid->block_bytes[block], size),
             fio ? ", fio" : "");
    for (int d = 0; d < grid->depths; d++) {
        const struct sw_io_result *result = sw_io_result_at(report, way, block, d);
        if (!result->fits)
            continue;
        x[series->count] = log2((double)grid->depth[d]);
        y[series->count++] = (fio ? result->fio : result->ours).bytes_per_s * 1e-9;
    }
}

static void draw_way(const struct sw_io_report *report, sw_io_way way, struct points *points,
                     struct sw_svg_chart *chart) {
    static const char *const titles[SW_IO_WAYS] = {
        [SW_IO_READ] = "reading", [SW_IO_WRITE] = "writing", [SW_IO_BOTH] = "reading and writing at once, together"};
    const struct sw_io_grid *grid = &report->bench->grid;
    *chart = (struct sw_svg_chart){
        .title = titles[way], .x_label = "requests in flight", .y_label = "GB/s", .tick_count = grid->depths};
    for (int d = 0; d < grid->depths; d++) {
        chart->tick_at[d] = log2((double)grid->depth[d]);
        snprintf(chart->tick[d], sizeof chart->tick[d], "%d", grid->depth[d]);
    }
    static_assert(2 * (int)SW_IO_MAX_BLOCKS <= (int)SW_SVG_MAX_SERIES, "ours and fio's fit a chart");
    for (int fio = 0; fio <= sw_io_beside_fio(report); fio++)
        for (int b = 0; b < grid->blocks; b++) {
            const int index = chart->series_count++;
            draw_series(report, way, b, fio == 1, points->x[index], points->y[index], &chart->series[index]);
        }
}

void sw_io_caption(const struct sw_io_target *target, char *text, size_t chars) {
    struct sw_mount mount;
    struct sw_drives drives;
    char day[sizeof "2026-01-01"] = "";
    struct tm parts;
    const time_t now = time(NULL);
    sw_drives_of_folder("", target->paths[0], &mount, &drives);
    if (localtime_r(&now, &parts) != NULL)
        strftime(day, sizeof day, "%Y-%m-%d", &parts);
    const struct sw_drive *drive = &drives.drive[0];
    char *whole = realpath(target->paths[0], NULL);
    int used = snprintf(text, chars, "%s", whole != NULL ? whole : target->paths[0]);
    free(whole);
    if (drives.count > 0 && used < (int)chars)
        used += snprintf(text + used, chars - (size_t)used, ": %s%s%s", drive->name, drive->model[0] != '\0' ? " " : "",
                         drive->model);
    if (used < (int)chars)
        snprintf(text + used, chars - (size_t)used, "%s%s%s, %s", target->count + drives.count > 2 ? " and others" : "",
                 mount.type[0] != '\0' ? ", " : "", mount.type, day);
}

sw_status sw_io_draw(const struct sw_io_report *report, const char *path) {
    struct points points[SW_IO_WAYS];
    struct sw_svg_chart charts[SW_IO_WAYS];
    char caption[SW_SVG_CAPTION_CHARS];
    for (int way = 0; way < SW_IO_WAYS; way++)
        draw_way(report, (sw_io_way)way, &points[way], &charts[way]);
    sw_io_caption(&report->bench->target, caption, sizeof caption);
    return sw_svg_write(path, caption, charts, SW_IO_WAYS);
}
