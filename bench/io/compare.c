#include "bench/io/compare.h"

#include "bench/io/pass.h"
#include "core/rng.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <math.h>
#include <unistd.h>

/* Both at once runs longer: fio's reader begins before its writer has filled its memory, and what it reads alone until
 * then must not count for much. */
#define LONGER_BOTH 2.0

/* A pass of the comparison ends with its bytes; only where the drive has become this much slower, by its time. */
#define LATEST 4.0

/* Who follows whom: every contender directly follows every other one once in these rows, so that what one leaves the
 * drive with meets all alike (a Williams square). */
static const int turns_of[SW_IO_CONTENDERS][SW_IO_CONTENDERS] = {
    {SW_IO_OURS, SW_IO_FIO, SW_IO_FIO_BEST, SW_IO_FIO_AGAIN},
    {SW_IO_FIO, SW_IO_FIO_AGAIN, SW_IO_OURS, SW_IO_FIO_BEST},
    {SW_IO_FIO_AGAIN, SW_IO_FIO_BEST, SW_IO_FIO, SW_IO_OURS},
    {SW_IO_FIO_BEST, SW_IO_OURS, SW_IO_FIO_AGAIN, SW_IO_FIO}};

/* What a turn of the cell may move; one that only reads may move anything. */
static int64_t share(struct sw_io_bench *bench, sw_io_way way, double seconds) {
    return way == SW_IO_READ ? INT64_MAX : sw_io_target_share(&bench->target, seconds);
}

static sw_status run_turn(struct sw_io_bench *bench, const struct sw_io_turn *turn, struct sw_io_rate *out) {
    const struct sw_io_pass pass = {.cell = turn->cell,
                                    .seconds = turn->seconds,
                                    .most_bytes = turn->most_bytes,
                                    .shared = turn->cell.way != SW_IO_READ,
                                    .random = bench->given->random};
    struct sw_io_done done;
    SW_TRY(sw_io_run(&bench->target, &pass, &done));
    *out = done.rate;
    return SW_OK;
}

static sw_status run_turns(const struct sw_io_report *report, struct sw_io_bench *bench, bool fio,
                           const struct sw_io_turn *turns, int count, struct sw_io_rate *out) {
    SW_TRY(sw_long_work_at(&bench->progress, 0));
    if (fio)
        return sw_fio_run(&report->fio, &bench->target, bench->given->random, turns, count, out);
    for (int i = 0; i < count; i++)
        SW_TRY(run_turn(bench, &turns[i], &out[i]));
    return SW_OK;
}

/* fio runs all of them at once, because it takes longer to start than a cell to measure. */
static sw_status run_cells(const struct sw_io_report *report, struct sw_io_bench *bench, bool fio, int round,
                           struct sw_io_result *const *results, int count, double seconds, struct sw_io_rate *out) {
    struct sw_io_turn turns[SW_IO_MAX_CELLS];
    struct sw_io_rate rates[SW_IO_MAX_CELLS];
    int cell[SW_IO_MAX_CELLS];
    for (int i = 0; i < count; i++) {
        cell[i] = (int)sw_rng_permute(0, (uint64_t)round, (uint64_t)i, (uint64_t)count);
        const struct sw_io_cell *next = &results[cell[i]]->cell;
        turns[i] = (struct sw_io_turn){*next, seconds, share(bench, next->way, seconds)};
    }
    SW_TRY(run_turns(report, bench, fio, turns, count, rates));
    for (int i = 0; i < count; i++)
        out[cell[i]] = rates[i];
    return SW_OK;
}

/* The measurement in the middle, whole, so that its parts belong together. */
static struct sw_io_rate middle(struct sw_io_rate (*rates)[SW_IO_MAX_CELLS], int cell, int rounds) {
    int best = 0;
    double sorted[SW_IO_MAX_MEASURED_ROUNDS];
    for (int i = 0; i < rounds; i++)
        sorted[i] = rates[i][cell].bytes_per_s;
    const double median = sw_median(sorted, rounds);
    for (int i = 1; i < rounds; i++)
        if (fabs(rates[i][cell].bytes_per_s - median) < fabs(rates[best][cell].bytes_per_s - median))
            best = i;
    return rates[best][cell];
}

sw_status sw_io_measure_cells(struct sw_io_report *report, struct sw_io_bench *bench,
                              struct sw_io_result *const *results, int count, int rounds, double seconds) {
    struct sw_io_rate rates[2][SW_IO_MAX_MEASURED_ROUNDS][SW_IO_MAX_CELLS];
    const int runners = sw_io_beside_fio(report) ? 2 : 1;
    assert(rounds <= SW_IO_MAX_MEASURED_ROUNDS && count <= SW_IO_MAX_CELLS);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < runners; i++) {
            const int fio = (round + i) % runners;
            SW_TRY(run_cells(report, bench, fio == 1, round, results, count, seconds, rates[fio][round]));
        }
    for (int cell = 0; cell < count; cell++) {
        results[cell]->ours = middle(rates[0], cell, rounds);
        if (runners == 2)
            results[cell]->fio = middle(rates[1], cell, rounds);
    }
    return SW_OK;
}

/* The sums over a contender's passes in a round. */
struct totals {
    double bytes, cpu_s, seconds;
};

/* The drive rests as long before ours as it does while fio starts. */
static void rest(const struct sw_io_report *report) {
    usleep((useconds_t)(report->fio.start_s * 1e6));
}

double sw_io_compared_seconds(double seconds, sw_io_way way) {
    return seconds * (way == SW_IO_BOTH ? LONGER_BOTH : 1.0);
}

static sw_status run_contender(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way, int who,
                               int64_t most_bytes, struct totals *totals) {
    const struct sw_io_best *best = &report->best[way];
    const double seconds = sw_io_compared_seconds(bench->effort.seconds, way);
    struct sw_io_turn turn = {who == SW_IO_FIO_BEST ? best->fio.cell : best->ours.cell, seconds,
                              share(bench, way, seconds)};
    struct sw_io_rate rate;
    if (way != SW_IO_BOTH) {
        turn.seconds *= LATEST;
        if (most_bytes < turn.most_bytes) {
            sw_io_target_count(&bench->target, way == SW_IO_WRITE ? turn.most_bytes - most_bytes : 0, 0);
            turn.most_bytes = most_bytes;
        }
    }
    if (who == SW_IO_OURS)
        rest(report);
    SW_TRY(run_turns(report, bench, who != SW_IO_OURS, &turn, 1, &rate));
    totals->bytes += rate.bytes_per_s * rate.seconds;
    totals->cpu_s += rate.cores * rate.seconds;
    totals->seconds += rate.seconds;
    return SW_OK;
}

/* What the slower of the best settings moves in the time of a pass: passes of equal bytes take as much of what a drive
 * allows for a while, as passes of equal time do not. */
static int64_t pass_bytes(const struct sw_io_report *report, const struct sw_io_bench *bench, sw_io_way way) {
    const struct sw_io_best *best = &report->best[way];
    const double rate = sw_io_beside_fio(report) ? fmin(best->ours.ours.bytes_per_s, best->fio.fio.bytes_per_s)
                                                 : best->ours.ours.bytes_per_s;
    return sw_max_i64((int64_t)(rate * bench->effort.seconds),
                      sw_max_i64(best->ours.cell.block_bytes, best->fio.cell.block_bytes));
}

/* Each runs in the order of a row, and with two passes then back again, so that a drive that becomes steadily slower or
 * faster does so for all of them. */
static sw_status run_round(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way, int round,
                           int64_t most_bytes) {
    struct sw_io_best *best = &report->best[way];
    struct totals totals[SW_IO_CONTENDERS] = {{0}};
    const int *row = turns_of[round % SW_IO_CONTENDERS];
    assert(bench->effort.round_passes <= 2);
    for (int i = 0; i < bench->effort.round_passes * SW_IO_CONTENDERS; i++) {
        const int who = row[i < SW_IO_CONTENDERS ? i : 2 * SW_IO_CONTENDERS - 1 - i];
        if (who == SW_IO_OURS || sw_io_beside_fio(report))
            SW_TRY(run_contender(report, bench, way, who, most_bytes, &totals[who]));
    }
    for (int who = 0; who < SW_IO_CONTENDERS; who++) {
        if (totals[who].seconds <= 0.0)
            continue;
        best->rates.rate[who][round] = totals[who].bytes / totals[who].seconds;
        best->cores.rate[who][round] = totals[who].cpu_s / totals[who].seconds;
    }
    return SW_OK;
}

sw_status sw_io_compare(struct sw_io_report *report, struct sw_io_bench *bench, sw_io_way way) {
    struct sw_io_best *best = &report->best[way];
    const int64_t most_bytes = pass_bytes(report, bench, way);
    best->rates.rounds = best->cores.rounds = (int)bench->effort.rounds;
    for (int round = 0; round < best->rates.rounds; round++)
        SW_TRY(run_round(report, bench, way, round, most_bytes));
    return SW_OK;
}
