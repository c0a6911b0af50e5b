/* Measures ours and fio in turn: the cells of a way, and the best settings round by round. */
#include "bench/io/pass.h"
#include "bench/io/sweep.h"
#include "core/rng.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <math.h>
#include <unistd.h>

/* A pass of both ways runs longer: fio's reader begins before its writer has filled its memory, and its reads alone
 * until then must not count for much. */
#define LONGER_BOTH 2.0

/* A pass of the comparison ends with its bytes. Where the drive has become this much slower, it ends by its time. */
#define LATEST 4.0

enum { MOST_ROUNDS = 5 };

/* Every contender directly follows every other one once in these rows, so that the state in which one leaves the drive
 * meets all alike (a Williams square). */
static const int turns_of[SW_IO_CONTENDERS][SW_IO_CONTENDERS] = {
    {SW_IO_OURS, SW_IO_FIO, SW_IO_FIO_BEST, SW_IO_FIO_AGAIN},
    {SW_IO_FIO, SW_IO_FIO_AGAIN, SW_IO_OURS, SW_IO_FIO_BEST},
    {SW_IO_FIO_AGAIN, SW_IO_FIO_BEST, SW_IO_FIO, SW_IO_OURS},
    {SW_IO_FIO_BEST, SW_IO_OURS, SW_IO_FIO_AGAIN, SW_IO_FIO}};

/* Returns a turn of the cell. One that only reads may move anything. */
static struct sw_io_turn turn_of(const struct sw_io_bench *bench, const struct sw_io_cell *cell, double seconds) {
    return (struct sw_io_turn){.cell = *cell,
                               .seconds = seconds,
                               .most_bytes = cell->way == SW_IO_READ ? INT64_MAX : sw_io_share(bench, seconds)};
}

static sw_status run_turns(struct sw_io_report *report, bool fio, const struct sw_io_turn *turns, int count,
                           struct sw_io_rate *out) {
    struct sw_io_bench *bench = report->bench;
    SW_TRY(sw_long_work_at(&bench->progress, 0));
    if (fio)
        return sw_fio_run(&report->fio, &bench->target, bench->given->random, turns, count, out);
    for (int i = 0; i < count; i++) {
        const struct sw_io_pass pass = {.turn = turns[i], .random = bench->given->random};
        struct sw_io_done done;
        SW_TRY(sw_io_run(&bench->target, &pass, &done));
        out[i] = done.rate;
    }
    return SW_OK;
}

/* Measures the cells once, in an order of the round. fio runs all of them at once, because its start takes longer than
 * a cell. */
static sw_status run_cells(struct sw_io_report *report, int runner, int round, struct sw_io_result *const *cells,
                           int count, struct sw_io_rate *out) {
    struct sw_io_turn turns[SW_IO_MAX_CELLS];
    struct sw_io_rate rates[SW_IO_MAX_CELLS];
    int order[SW_IO_MAX_CELLS];
    for (int i = 0; i < count; i++) {
        order[i] = (int)sw_rng_permute(0, (uint64_t)round, (uint64_t)i, (uint64_t)count);
        turns[i] = turn_of(report->bench, &cells[order[i]]->cell, report->bench->effort.seconds);
    }
    SW_TRY(run_turns(report, runner == SW_IO_FIO, turns, count, rates));
    for (int i = 0; i < count; i++)
        out[order[i]] = rates[i];
    return SW_OK;
}

/* Returns the whole measurement of the median rate, so that its parts belong together. */
static struct sw_io_rate middle(struct sw_io_rate (*rates)[SW_IO_MAX_CELLS], int cell, int rounds) {
    int best = 0;
    double sorted[MOST_ROUNDS];
    for (int i = 0; i < rounds; i++)
        sorted[i] = rates[i][cell].bytes_per_s;
    const double median = sw_median(sorted, rounds);
    for (int i = 1; i < rounds; i++)
        if (fabs(rates[i][cell].bytes_per_s - median) < fabs(rates[best][cell].bytes_per_s - median))
            best = i;
    return rates[best][cell];
}

sw_status sw_io_sweep_way(struct sw_io_report *report, sw_io_way way) {
    struct sw_io_rate rates[SW_IO_RUNNERS][MOST_ROUNDS][SW_IO_MAX_CELLS];
    struct sw_io_result *cells[SW_IO_MAX_CELLS];
    const int rounds = report->bench->effort.sweep_rounds;
    int count = 0;
    assert(rounds <= MOST_ROUNDS);
    for (int i = 0; i < SW_IO_MAX_CELLS; i++)
        if (report->results[way][i].fits)
            cells[count++] = &report->results[way][i];
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < report->runners; i++) {
            const int runner = (round + i) % report->runners;
            SW_TRY(run_cells(report, runner, round, cells, count, rates[runner][round]));
        }
    struct sw_io_best *best = &report->best[way];
    best->way = sw_io_way_name(way);
    for (int runner = 0; runner < SW_IO_RUNNERS; runner++) {
        const int of = runner < report->runners ? runner : SW_IO_OURS;
        struct sw_io_result *fastest = cells[0]; /* one cell fits at least */
        for (int i = 0; i < count; i++) {
            cells[i]->rate[of] = middle(rates[of], i, rounds);
            fastest = cells[i]->rate[of].bytes_per_s > fastest->rate[of].bytes_per_s ? cells[i] : fastest;
        }
        best->result[runner] = *fastest;
    }
    return SW_OK;
}

double sw_io_compared_seconds(const struct sw_io_bench *bench, sw_io_way way) {
    return bench->effort.seconds * (way == SW_IO_BOTH ? LONGER_BOTH : 1.0);
}

/* Returns the bytes that the slower of the best settings moves in the time of a pass. Passes of equal bytes take an
 * equal part of what a drive allows for a while, as passes of equal time do not. */
static int64_t pass_bytes(const struct sw_io_report *report, sw_io_way way) {
    const struct sw_io_result *best = report->best[way].result;
    double rate = best[SW_IO_OURS].rate[SW_IO_OURS].bytes_per_s;
    int64_t block_bytes = best[SW_IO_OURS].cell.block_bytes;
    if (report->runners > 1) {
        rate = fmin(rate, best[SW_IO_FIO].rate[SW_IO_FIO].bytes_per_s);
        block_bytes = sw_max_i64(block_bytes, best[SW_IO_FIO].cell.block_bytes);
    }
    return sw_max_i64((int64_t)(rate * report->bench->effort.seconds), block_bytes);
}

/* Sums over the passes of a contender in a round. */
struct totals {
    double bytes, cpu_s, seconds;
};

static sw_status run_contender(struct sw_io_report *report, sw_io_way way, int who, struct totals *totals) {
    const struct sw_io_best *best = &report->best[way];
    const struct sw_io_cell *cell = &best->result[who == SW_IO_FIO_BEST ? SW_IO_FIO : SW_IO_OURS].cell;
    struct sw_io_turn turn = turn_of(report->bench, cell, sw_io_compared_seconds(report->bench, way));
    struct sw_io_rate rate;
    if (way != SW_IO_BOTH) {
        turn.seconds *= LATEST;
        turn.most_bytes = sw_min_i64(turn.most_bytes, pass_bytes(report, way));
    }
    if (who == SW_IO_OURS) /* the drive rests as long before ours as while fio starts */
        usleep((useconds_t)(report->fio.start_s * 1e6));
    SW_TRY(run_turns(report, who != SW_IO_OURS, &turn, 1, &rate));
    totals->bytes += rate.bytes_per_s * rate.seconds;
    totals->cpu_s += rate.cores * rate.seconds;
    totals->seconds += rate.seconds;
    return SW_OK;
}

/* Runs the contenders in the order of a row, and with two passes then back again, so that a drive that becomes steadily
 * slower or faster does so for all of them. */
static sw_status run_round(struct sw_io_report *report, sw_io_way way, int round) {
    struct sw_io_best *best = &report->best[way];
    struct totals totals[SW_IO_CONTENDERS] = {{0}};
    const int *row = turns_of[round % SW_IO_CONTENDERS];
    for (int i = 0; i < report->bench->effort.round_passes * SW_IO_CONTENDERS; i++) {
        const int who = row[i < SW_IO_CONTENDERS ? i : 2 * SW_IO_CONTENDERS - 1 - i];
        if (who == SW_IO_OURS || report->runners > 1)
            SW_TRY(run_contender(report, way, who, &totals[who]));
    }
    for (int who = 0; who < SW_IO_CONTENDERS; who++) {
        if (totals[who].seconds <= 0.0)
            continue;
        best->rates.rate[who][round] = totals[who].bytes / totals[who].seconds;
        best->cores.rate[who][round] = totals[who].cpu_s / totals[who].seconds;
    }
    return SW_OK;
}

sw_status sw_io_compare(struct sw_io_report *report, sw_io_way way) {
    struct sw_io_best *best = &report->best[way];
    best->rates.rounds = best->cores.rounds = (int)report->bench->effort.rounds;
    for (int round = 0; round < best->rates.rounds; round++)
        SW_TRY(run_round(report, way, round));
    for (int runner = 0; runner < report->runners; runner++)
        best->core_s_per_gb[runner] =
            sw_io_core_s_per_gb(sw_bench_median(&best->cores, runner), sw_bench_median(&best->rates, runner));
    return SW_OK;
}
