/* Every cell of the grid once, by ours and by fio; then the best settings in turn, round by round; then the store. */
#include "bench/io_sweep.h"

#include "bench/io_pass.h"
#include "core/size.h"
#include "offload/measure.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* A comparison takes so many times as long as a cell. The fastest cells of the sweep are measured some times more,
 * because the fastest of many is often only the luckiest. */
enum { LONGER = 2, FINALISTS = 3, FINAL_ROUNDS = 3 };

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
    const struct sw_io_options *given = report->bench->given;
    const bool beside = report->fio.version[0] != '\0';
    double seconds = 0.0;
    for (int way = SW_IO_WRITE; way < SW_IO_WAYS; way++) {
        int count = 0;
        for (int i = 0; i < cell_count(report->bench); i++)
            count += report->results[way][i].fits;
        const int finals = count > 1 ? (int)sw_min_i64(count, FINALISTS) * FINAL_ROUNDS : 0;
        seconds += given->seconds * (count + finals) * (beside ? 2 : 1);
        seconds += given->seconds * LONGER * (double)given->rounds * (beside ? SW_IO_CONTENDERS : 1);
    }
    return seconds + (report->has_store ? given->seconds * (double)given->rounds * SW_IO_STORE_PASSES : 0.0);
}

/* What a pass of the cell may write; a reader needs nothing of it. */
static int64_t share(struct sw_io_bench *bench, sw_io_way way, double seconds) {
    return way == SW_IO_READ ? INT64_MAX : sw_io_target_share(&bench->target, seconds);
}

static sw_status run_ours(struct sw_io_bench *bench, const struct sw_io_cell *cell, double seconds,
                          struct sw_io_rate *out) {
    const struct sw_io_pass pass = {.cell = *cell,
                                    .seconds = seconds,
                                    .most_bytes = share(bench, cell->way, seconds),
                                    .shared = cell->way != SW_IO_READ,
                                    .random = bench->given->random};
    struct sw_io_done done;
    SW_TRY(sw_io_run(&bench->target, &pass, &done));
    *out = done.rate;
    return SW_OK;
}

static sw_status run_fio(const struct sw_io_report *report, struct sw_io_bench *bench, const struct sw_io_cell *cell,
                         struct sw_io_rate *out) {
    const double seconds = bench->given->seconds * LONGER;
    const struct sw_fio_cell one = {*cell, seconds, share(bench, cell->way, seconds)};
    return sw_fio_run(&report->fio, &bench->target, bench->given->random, &one, 1, out);
}

static sw_status sweep_ours(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way) {
    for (int i = 0; i < cell_count(bench); i++) {
        struct sw_io_result *result = &report->results[way][i];
        if (result->fits)
            SW_TRY(run_ours(bench, &result->cell, bench->given->seconds, &result->ours));
    }
    return SW_OK;
}

/* In one run of fio, which takes longer to start than a cell to measure. */
static sw_status sweep_fio(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way) {
    struct sw_fio_cell cells[SW_IO_MAX_CELLS];
    struct sw_io_rate rates[SW_IO_MAX_CELLS];
    int count = 0;
    for (int i = 0; i < cell_count(bench); i++)
        if (report->results[way][i].fits)
            cells[count++] = (struct sw_fio_cell){report->results[way][i].cell, bench->given->seconds,
                                                  share(bench, way, bench->given->seconds)};
    SW_TRY(sw_fio_run(&report->fio, &bench->target, bench->given->random, cells, count, rates));
    for (int i = 0, measured = 0; i < cell_count(bench); i++)
        if (report->results[way][i].fits)
            report->results[way][i].fio = rates[measured++];
    return SW_OK;
}

static double rate_of(const struct sw_io_result *result, bool fio) {
    return fio ? result->fio.bytes_per_s : result->ours.bytes_per_s;
}

/* The fastest cells, the fastest first. */
static int find_finalists(const struct sw_io_report *report, sw_io_way way, bool fio,
                          const struct sw_io_result *out[FINALISTS]) {
    int count = 0;
    for (int i = 0; i < cell_count(report->bench); i++) {
        const struct sw_io_result *result = &report->results[way][i];
        if (!result->fits || (count == FINALISTS && rate_of(out[count - 1], fio) >= rate_of(result, fio)))
            continue;
        int at = count < FINALISTS ? count++ : count - 1;
        for (; at > 0 && rate_of(out[at - 1], fio) < rate_of(result, fio); at--)
            out[at] = out[at - 1];
        out[at] = result;
    }
    return count;
}

static sw_status run_finalists(const struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way, bool fio,
                               const struct sw_io_result *const *finalists, int count,
                               struct sw_io_rate rates[FINAL_ROUNDS * FINALISTS]) {
    struct sw_fio_cell cells[FINAL_ROUNDS * FINALISTS];
    for (int i = 0; i < FINAL_ROUNDS * count; i++) {
        const struct sw_io_cell *cell = &finalists[i % count]->cell;
        if (fio)
            cells[i] = (struct sw_fio_cell){*cell, bench->given->seconds, share(bench, way, bench->given->seconds)};
        else
            SW_TRY(run_ours(bench, cell, bench->given->seconds, &rates[i]));
    }
    return fio ? sw_fio_run(&report->fio, &bench->target, bench->given->random, cells, FINAL_ROUNDS * count, rates)
               : SW_OK;
}

/* The best median of a few rounds among the fastest cells. */
static sw_status choose_best(const struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way, bool fio,
                             const struct sw_io_result **out) {
    const struct sw_io_result *finalists[FINALISTS] = {NULL};
    struct sw_io_rate rates[FINAL_ROUNDS * FINALISTS];
    double best = 0.0, round[FINAL_ROUNDS];
    const int count = find_finalists(report, way, fio, finalists);
    assert(count > 0);
    *out = finalists[0];
    if (count == 1)
        return SW_OK;
    SW_TRY(run_finalists(report, bench, way, fio, finalists, count, rates));
    for (int i = 0; i < count; i++) {
        for (int r = 0; r < FINAL_ROUNDS; r++)
            round[r] = rates[r * count + i].bytes_per_s;
        const double median = sw_median(round, FINAL_ROUNDS);
        if (median > best)
            *out = finalists[i];
        best = fmax(best, median);
    }
    return SW_OK;
}

static void note(struct sw_io_best *best, int who, int round, const struct sw_io_rate *rate) {
    best->rates.rate[who][round] = rate->bytes_per_s;
    best->cores.rate[who][round] = rate->cores;
}

/* The drive rests as long before ours as it does while fio starts. */
static void rest(const struct sw_io_report *report) {
    usleep((useconds_t)(report->fio.start_s * 1e6));
}

static sw_status run_contender(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way, int who,
                               int round) {
    struct sw_io_best *best = &report->best[way];
    const struct sw_io_cell *cell = who == SW_IO_FIO_BEST ? &best->fio->cell : &best->ours->cell;
    struct sw_io_rate rate;
    if (who == SW_IO_OURS) {
        rest(report);
        SW_TRY(run_ours(bench, cell, bench->given->seconds * LONGER, &rate));
    } else {
        SW_TRY(run_fio(report, bench, cell, &rate));
    }
    note(best, who, round, &rate);
    return SW_OK;
}

/* Every second round goes the other way round: what one leaves the drive with, the other finds as often. */
static sw_status compare(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way) {
    struct sw_io_best *best = &report->best[way];
    const int contenders = report->fio.version[0] == '\0' ? 1 : SW_IO_CONTENDERS;
    best->rates.rounds = best->cores.rounds = (int)bench->given->rounds;
    for (int round = 0; round < best->rates.rounds; round++)
        for (int i = 0; i < contenders; i++)
            SW_TRY(run_contender(report, bench, way, round % 2 == 0 ? i : contenders - 1 - i, round));
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
    if ((double)(target->may_write_bytes - fill_bytes) * bench->given->seconds / target->planned_s <
        2.0 * (double)largest)
        return sw_fail(SW_ERR_ARG, "--most is too little for so many measurements of such blocks: give more, or fewer "
                                   "cells by --block and --depth");
    return SW_OK;
}

static sw_status sweep(struct sw_io_report *report, struct sw_io_bench *bench) {
    for (int way = 0; way < SW_IO_WAYS; way++) {
        SW_TRY(sweep_ours(report, bench, (sw_io_way)way));
        if (!bench->given->json)
            sw_io_print_table(report, (sw_io_way)way);
    }
    return SW_OK;
}

static sw_status compare_best(struct sw_io_report *report, struct sw_io_bench *bench) {
    const bool beside = report->fio.version[0] != '\0';
    for (int way = 0; way < SW_IO_WAYS; way++) {
        struct sw_io_best *best = &report->best[way];
        if (beside)
            SW_TRY(sweep_fio(report, bench, (sw_io_way)way));
        SW_TRY(choose_best(report, bench, (sw_io_way)way, false, &best->ours));
        if (beside)
            SW_TRY(choose_best(report, bench, (sw_io_way)way, true, &best->fio));
        SW_TRY(compare(report, bench, (sw_io_way)way));
    }
    if (!bench->given->json)
        sw_io_print_best(report);
    return SW_OK;
}

static sw_status price_store(struct sw_io_report *report, struct sw_io_bench *bench) {
    if (!report->has_store)
        return SW_OK;
    bench->target.may_write_bytes += store_bytes(report);
    SW_TRY(sw_io_measure_store(bench, &report->store));
    if (!bench->given->json)
        sw_io_print_store(report);
    return SW_OK;
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
    return given->json ? sw_io_print_json(report) : SW_OK;
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
