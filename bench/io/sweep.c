/* Every cell of the grid by ours and by fio; then the best settings in turn, round by round; then the store. */
#include "bench/io/sweep.h"

#include "bench/io/compare.h"
#include "bench/io/pass.h"
#include "core/size.h"

#include <assert.h>
#include <stdlib.h>

enum { MOST_FINALISTS = 3 };

static int cell_count(const struct sw_io_bench *bench) {
    return bench->grid.blocks * bench->grid.depths;
}

static void lay_out(struct sw_io_report *report) {
    const struct sw_io_bench *bench = report->bench;
    for (int way = 0; way < SW_IO_WAYS; way++)
        for (int i = 0; i < cell_count(bench); i++) {
            const struct sw_io_cell cell = {.way = (sw_io_way)way,
                                            .block_bytes = bench->grid.block_bytes[i / bench->grid.depths],
                                            .depth = bench->grid.depth[i % bench->grid.depths]};
            report->results[way][i] =
                (struct sw_io_result){.cell = cell, .fits = sw_io_fits(bench, cell.block_bytes, cell.depth)};
        }
}

/* The seconds of all writing to come, of which each pass may write its part. */
static double planned_seconds(const struct sw_io_report *report) {
    const struct sw_io_effort *effort = &report->bench->effort;
    const bool beside = sw_io_beside_fio(report);
    double seconds = 0.0;
    for (int way = SW_IO_WRITE; way < SW_IO_WAYS; way++) {
        int count = 0;
        for (int i = 0; i < cell_count(report->bench); i++)
            count += report->results[way][i].fits;
        const int64_t most = (int64_t)(beside ? 2 : 1) * effort->finalists;
        const int finals = count > 1 ? (int)sw_min_i64(count, most) * effort->final_rounds : 0;
        seconds += effort->seconds * (count + finals) * (beside ? 2 : 1);
        seconds += sw_io_compared_seconds(effort->seconds, (sw_io_way)way) * effort->round_passes *
                   (double)effort->rounds * (beside ? SW_IO_CONTENDERS : 1);
    }
    return seconds + (report->has_store ? effort->seconds * (double)effort->rounds * SW_IO_STORE_PASSES : 0.0);
}

static double rate_of(const struct sw_io_result *result, bool fio) {
    return fio ? result->fio.bytes_per_s : result->ours.bytes_per_s;
}

static sw_status sweep_way(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way) {
    struct sw_io_result *cells[SW_IO_MAX_CELLS];
    int count = 0;
    for (int i = 0; i < cell_count(bench); i++)
        if (report->results[way][i].fits)
            cells[count++] = &report->results[way][i];
    return sw_io_measure_cells(report, bench, cells, count, bench->effort.sweep_rounds,
                               bench->effort.seconds / bench->effort.sweep_rounds);
}

/* Adds the fastest cells to those that are there already. */
static int add_finalists(struct sw_io_report *report, sw_io_way way, bool fio, struct sw_io_result *out, int count) {
    bool taken[SW_IO_MAX_CELLS] = {false};
    for (int place = 0; place < report->bench->effort.finalists; place++) {
        int fastest = -1;
        for (int i = 0; i < cell_count(report->bench); i++) {
            const struct sw_io_result *result = &report->results[way][i];
            if (result->fits && !taken[i] &&
                (fastest < 0 || rate_of(result, fio) > rate_of(&report->results[way][fastest], fio)))
                fastest = i;
        }
        if (fastest < 0)
            break;
        taken[fastest] = true;
        const struct sw_io_result *result = &report->results[way][fastest];
        bool known = false;
        for (int i = 0; i < count; i++)
            known = known ||
                    (out[i].cell.block_bytes == result->cell.block_bytes && out[i].cell.depth == result->cell.depth);
        if (!known)
            out[count++] = *result;
    }
    return count;
}

static struct sw_io_result fastest_of(const struct sw_io_result *results, int count, bool fio) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (rate_of(&results[i], fio) > rate_of(&results[best], fio))
            best = i;
    return results[best];
}

/* Among the cells that were fastest for either, which both run some times more in turn: the same moments of a drive
 * decide for both. */
static sw_status choose_best(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way) {
    struct sw_io_result results[2 * MOST_FINALISTS], *cells[2 * MOST_FINALISTS];
    assert(bench->effort.finalists <= MOST_FINALISTS);
    int count = add_finalists(report, way, false, results, 0);
    if (sw_io_beside_fio(report))
        count = add_finalists(report, way, true, results, count);
    assert(count > 0);
    for (int i = 0; i < count; i++)
        cells[i] = &results[i];
    if (count > 1)
        SW_TRY(sw_io_measure_cells(report, bench, cells, count, bench->effort.final_rounds, bench->effort.seconds));
    report->best[way].ours = fastest_of(results, count, false);
    report->best[way].fio = fastest_of(results, count, sw_io_beside_fio(report));
    return SW_OK;
}

/* What the store writes before it is measured: its zeros, and then random bits. */
static int64_t store_bytes(const struct sw_io_report *report) {
    return report->has_store ? report->file_bytes * report->bench->target.count : 0;
}

/* Keeps back what the store needs, and shares the rest; refuses shares of less than two blocks. */
static sw_status plan_writing(const struct sw_io_report *report, struct sw_io_bench *bench) {
    struct sw_io_target *target = &bench->target;
    int64_t largest = report->has_store ? SW_IO_STORE_LEAST_BYTES : 0;
    for (int i = 0; i < cell_count(bench); i++)
        if (report->results[SW_IO_WRITE][i].fits)
            largest = sw_max_i64(largest, report->results[SW_IO_WRITE][i].cell.block_bytes);
    target->planned_s = planned_seconds(report);
    target->may_write_bytes -= store_bytes(report);
    const int64_t fill_bytes = target->file_bytes * target->count;
    if ((double)(target->may_write_bytes - fill_bytes) * bench->effort.seconds / target->planned_s <
        2.0 * (double)largest)
        return sw_fail(SW_ERR_ARG, "--most is too little for so many measurements of such blocks: give more, or fewer "
                                   "cells by --block and --depth");
    return SW_OK;
}

static sw_status sweep(struct sw_io_report *report, struct sw_io_bench *bench) {
    for (int way = 0; way < SW_IO_WAYS; way++)
        SW_TRY(sweep_way(report, bench, (sw_io_way)way));
    return SW_OK;
}

static sw_status compare_best(struct sw_io_report *report, struct sw_io_bench *bench) {
    for (int way = 0; way < SW_IO_WAYS; way++) {
        SW_TRY(choose_best(report, bench, (sw_io_way)way));
        SW_TRY(sw_io_compare(report, bench, (sw_io_way)way));
    }
    return SW_OK;
}

static sw_status price_store(struct sw_io_report *report, struct sw_io_bench *bench) {
    if (!report->has_store)
        return SW_OK;
    bench->target.may_write_bytes += store_bytes(report);
    return sw_io_measure_store(bench, &report->store);
}

static sw_status measure(struct sw_io_report *report, struct sw_io_bench *bench) {
    if (!bench->given->no_fio)
        SW_TRY(sw_fio_find(&bench->target, &report->fio));
    SW_TRY(plan_writing(report, bench));
    SW_TRY(sw_io_fill(&bench->target));
    SW_TRY(sweep(report, bench));
    SW_TRY(compare_best(report, bench));
    return price_store(report, bench);
}

static sw_status report_all(const struct sw_io_report *report) {
    const struct sw_io_options *given = report->bench->given;
    if (given->svg != NULL)
        SW_TRY(sw_io_draw(report, given->svg));
    sw_long_work_end(&report->bench->progress);
    if (given->json)
        return sw_io_print_json(report);
    sw_io_print(report);
    return SW_OK;
}

sw_status sw_io_sweep(struct sw_io_bench *bench) {
    struct sw_io_report *report = calloc(1, sizeof *report);
    if (report == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for what is measured");
    report->bench = bench;
    report->file_bytes = bench->target.file_bytes;
    report->has_store = sw_io_has_room_for_store(&bench->target);
    lay_out(report);
    sw_status status = measure(report, bench);
    if (status == SW_OK)
        status = report_all(report);
    free(report);
    return status;
}
