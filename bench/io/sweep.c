#include "bench/io/sweep.h"

#include "bench/io/pass.h"
#include "core/size.h"

#include <stdlib.h>

static void lay_out(struct sw_io_report *report) {
    const struct sw_io_grid *grid = &report->bench->grid;
    for (int way = 0; way < SW_IO_WAYS; way++)
        for (int i = 0; i < grid->blocks * grid->depths; i++) {
            const struct sw_io_cell cell = {.way = (sw_io_way)way,
                                            .block_bytes = grid->block_bytes[i / grid->depths],
                                            .depth = grid->depth[i % grid->depths]};
            report->results[way][i] =
                (struct sw_io_result){.cell = cell, .fits = sw_io_fits(report->bench, cell.block_bytes, cell.depth)};
        }
}

static double planned_write_s(const struct sw_io_report *report) {
    const struct sw_io_effort *effort = &report->bench->effort;
    const int contenders = report->runners > 1 ? SW_IO_CONTENDERS : 1;
    double seconds = 0.0;
    for (int way = SW_IO_WRITE; way < SW_IO_WAYS; way++) {
        for (int i = 0; i < SW_IO_MAX_CELLS; i++)
            seconds += report->results[way][i].fits ? effort->seconds * effort->sweep_rounds * report->runners : 0.0;
        seconds += sw_io_compared_seconds(report->bench, (sw_io_way)way) * effort->round_passes *
                   (double)effort->rounds * contenders;
    }
    return seconds;
}

/* Shares the bytes of --most among the passes by their time, after the files have been written once. Refuses shares of
 * less than two blocks. */
static sw_status plan_writing(struct sw_io_report *report) {
    struct sw_io_bench *bench = report->bench;
    int64_t largest = 0;
    for (int i = 0; i < SW_IO_MAX_CELLS; i++)
        if (report->results[SW_IO_WRITE][i].fits)
            largest = sw_max_i64(largest, report->results[SW_IO_WRITE][i].cell.block_bytes);
    bench->planned_write_s = planned_write_s(report);
    bench->planned_write_bytes = bench->given->most_bytes - bench->target.file_bytes * bench->target.count;
    if (sw_io_share(bench, bench->effort.seconds) >= 2 * largest)
        return SW_OK;
    return sw_fail(SW_ERR_USAGE, "--most is too little for so many measurements of such blocks: give more, or fewer "
                                 "cells by --block and --depth");
}

static sw_status measure(struct sw_io_report *report) {
    struct sw_io_bench *bench = report->bench;
    if (!bench->given->no_fio)
        SW_TRY(sw_fio_find(&bench->target, &report->fio));
    report->runners = report->fio.version[0] != '\0' ? SW_IO_RUNNERS : 1;
    SW_TRY(plan_writing(report));
    SW_TRY(sw_io_fill(&bench->target));
    for (int way = 0; way < SW_IO_WAYS; way++)
        SW_TRY(sw_io_sweep_way(report, (sw_io_way)way));
    for (int way = 0; way < SW_IO_WAYS; way++)
        SW_TRY(sw_io_compare(report, (sw_io_way)way));
    return SW_OK;
}

static sw_status show(const struct sw_io_report *report) {
    const struct sw_io_options *given = report->bench->given;
    sw_long_work_end(&report->bench->progress);
    if (given->json)
        return sw_io_print_json(report);
    sw_io_print(report);
    return SW_OK;
}

sw_status sw_io_sweep(struct sw_io_bench *bench) {
    struct sw_io_report *report = calloc(1, sizeof *report);
    if (report == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the rates of the drive");
    report->bench = bench;
    lay_out(report);
    sw_status status = measure(report);
    if (status == SW_OK)
        status = show(report);
    free(report);
    return status;
}
