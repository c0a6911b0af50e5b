/* The report of the sweep: for people, and as JSON. */
#include "bench/io/sweep.h"
#include "bench/table.h"
#include "core/number.h"
#include "core/size.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#define ROW struct sw_io_best
#define CELL(runner, member) result[runner].cell.member
static const struct sw_bench_field ours_fields[] = {
    {.name = "way", .heading = "", SW_AT(SW_FIELD_TEXT, way)},
    {.name = "block_bytes", .heading = "block", SW_AT(SW_FIELD_SIZE, CELL(SW_IO_OURS, block_bytes))},
    {.name = "depth", .heading = "in flight", SW_AT(SW_FIELD_INT, CELL(SW_IO_OURS, depth))},
    {.name = "bytes_per_s", .heading = "GB/s", SW_MEDIAN(rates, SW_IO_OURS), SW_GIGA, .digits = 2},
    {.name = "cores", .heading = "cores", SW_MEDIAN(cores, SW_IO_OURS), .digits = 3},
    {.name = "core_s_per_gb", .heading = "core-s/GB", SW_AT(SW_FIELD_REAL, core_s_per_gb[SW_IO_OURS]), .digits = 4},
};

/* fio at the setting that is best for ours, and then at its own best. */
#define RATIO(name_, heading_, who, to)                                                                                \
    { .name = (name_), .heading = (heading_), SW_RATIO(rates, who, to), .digits = 3, .has_interval = true }
static const struct sw_bench_field same_fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, way)},
    {.name = "bytes_per_s", .heading = "GB/s", SW_MEDIAN(rates, SW_IO_FIO), SW_GIGA, .digits = 2},
    {.name = "cores", .heading = "cores", SW_MEDIAN(cores, SW_IO_FIO), .digits = 3},
    {.name = "core_s_per_gb", SW_AT(SW_FIELD_REAL, core_s_per_gb[SW_IO_FIO])},
    RATIO("ours_of_fio", "ours to fio", SW_IO_OURS, SW_IO_FIO),
    RATIO("fio_of_fio", "fio to itself", SW_IO_FIO_AGAIN, SW_IO_FIO),
};
static const struct sw_bench_field own_fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, way)},
    {.name = "best_block_bytes", .heading = "block", SW_AT(SW_FIELD_SIZE, CELL(SW_IO_FIO, block_bytes))},
    {.name = "best_depth", .heading = "in flight", SW_AT(SW_FIELD_INT, CELL(SW_IO_FIO, depth))},
    {.name = "best_bytes_per_s", .heading = "GB/s", SW_MEDIAN(rates, SW_IO_FIO_BEST), SW_GIGA, .digits = 2},
    RATIO("ours_of_fio_best", "ours to fio", SW_IO_OURS, SW_IO_FIO_BEST),
};

/* Prints the answer in one sentence, for a reader who stops there. */
static void print_verdict(const struct sw_io_report *report) {
    double rate[SW_IO_WAYS], ratio[SW_IO_WAYS];
    for (int way = 0; way < SW_IO_WAYS; way++) {
        rate[way] = sw_bench_median(&report->best[way].rates, SW_IO_OURS) * 1e-9;
        ratio[way] = sw_bench_ratio(&report->best[way].rates, SW_IO_OURS, SW_IO_FIO_BEST);
    }
    printf("The drive reads %.2f GB/s, writes %.2f GB/s, and moves %.2f GB/s when both go\n", rate[SW_IO_READ],
           rate[SW_IO_WRITE], rate[SW_IO_BOTH]);
    if (report->runners == 1)
        puts("on at once, by the queue that a training uses.\n");
    else
        printf("on at once: %.2f, %.2f and %.2f times what %s reaches at its own best.\n\n", ratio[SW_IO_READ],
               ratio[SW_IO_WRITE], ratio[SW_IO_BOTH], report->fio.version);
}

/* A row of the sweep for people: one way and block size, with a rate for each depth. */
struct sweep_row {
    const char *way;
    int64_t block_bytes;
    double gb_per_s[SW_IO_MAX_DEPTHS];
};

static void print_sweep(const struct sw_io_report *report) {
    const struct sw_io_grid *grid = &report->bench->grid;
    const struct sw_io_target *target = &report->bench->target;
    char size[SW_SIZE_CHARS], headings[SW_IO_MAX_DEPTHS][12];
    struct sweep_row rows[SW_IO_WAYS * SW_IO_MAX_BLOCKS];
    struct sw_bench_field fields[2 + SW_IO_MAX_DEPTHS] = {
        {.heading = "", .kind = SW_FIELD_TEXT, .offset = offsetof(struct sweep_row, way)},
        {.heading = "block", .kind = SW_FIELD_SIZE, .offset = offsetof(struct sweep_row, block_bytes)}};
    for (int d = 0; d < grid->depths; d++) {
        snprintf(headings[d], sizeof headings[d], "%d", grid->depth[d]);
        fields[2 + d] = (struct sw_bench_field){.heading = headings[d],
                                                .kind = SW_FIELD_REAL,
                                                .offset = offsetof(struct sweep_row, gb_per_s) + d * sizeof(double),
                                                .digits = 2};
    }
    for (int i = 0; i < SW_IO_WAYS * grid->blocks; i++) {
        const int way = i / grid->blocks, block = i % grid->blocks;
        rows[i] = (struct sweep_row){block == 0 ? sw_io_way_name((sw_io_way)way) : "", grid->block_bytes[block], {0}};
        for (int d = 0; d < grid->depths; d++) {
            const struct sw_io_result *result = &report->results[way][block * grid->depths + d];
            rows[i].gb_per_s[d] = result->fits ? result->rate[SW_IO_OURS].bytes_per_s * 1e-9 : NAN;
        }
    }
    printf("\nall settings, %s in %d file%s%s, %s: GB/s by requests in flight\n",
           sw_format_size(report->bench->target.file_bytes * target->count, size), target->count,
           target->count == 1 ? "" : "s", target->direct ? "" : " through the page cache",
           report->bench->given->random ? "random" : "sequential");
    sw_table_print(&(struct sw_bench_table){fields, 2 + grid->depths, rows, SW_IO_WAYS * grid->blocks, sizeof *rows});
}

void sw_io_print(const struct sw_io_report *report) {
    const bool no_fio = report->runners == 1 && !report->bench->given->no_fio;
    print_verdict(report);
    printf("best settings, medians of %s%s\n", SW_COUNT(report->bench->effort.rounds, "round"),
           no_fio ? "; fio is not installed, so nothing stands beside" : "");
    sw_table_print(SW_TABLE(ours_fields, report->best, SW_IO_WAYS));
    if (report->runners > 1) {
        printf("\n%s in turn with it at the same settings%s (ratios: 95%% intervals)\n", report->fio.version,
               report->fio.fixed_buffers ? "" : ", without registered buffers");
        sw_table_print(SW_TABLE(same_fields, report->best, SW_IO_WAYS));
        printf("\n%s at its own best settings\n", report->fio.version);
        sw_table_print(SW_TABLE(own_fields, report->best, SW_IO_WAYS));
    }
    print_sweep(report);
}

static json_t *cells_json(const struct sw_io_report *report) {
    json_t *cells = json_array();
    for (int i = 0; i < SW_IO_WAYS * SW_IO_MAX_CELLS; i++) {
        const struct sw_io_result *result = &report->results[i / SW_IO_MAX_CELLS][i % SW_IO_MAX_CELLS];
        const struct sw_io_rate *rate = &result->rate[SW_IO_OURS];
        json_t *fio = report->runners > 1 ? json_real(result->rate[SW_IO_FIO].bytes_per_s) : NULL;
        if (result->fits)
            json_array_append_new(cells, json_pack("{s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:O*}", "way",
                                                   sw_io_way_name(result->cell.way), "block_bytes",
                                                   (json_int_t)result->cell.block_bytes, "depth", result->cell.depth,
                                                   "bytes_per_s", rate->bytes_per_s, "read_bytes_per_s",
                                                   rate->read_bytes_per_s, "write_bytes_per_s", rate->write_bytes_per_s,
                                                   "cores", rate->cores, "fio_bytes_per_s", fio));
        json_decref(fio);
    }
    return cells;
}

static json_t *best_json(const struct sw_io_report *report) {
    json_t *list = json_array();
    for (int way = 0; way < SW_IO_WAYS; way++) {
        const struct sw_io_best *best = &report->best[way];
        json_t *fio = report->runners == 1 ? json_null()
                                           : sw_bench_join(sw_table_row_json(SW_TABLE(same_fields, best, 1), 0),
                                                           sw_table_row_json(SW_TABLE(own_fields, best, 1), 0));
        json_array_append_new(
            list, sw_bench_join(sw_table_row_json(SW_TABLE(ours_fields, best, 1), 0), json_pack("{s:o}", "fio", fio)));
    }
    return list;
}

sw_status sw_io_print_json(const struct sw_io_report *report) {
    const struct sw_io_bench *bench = report->bench;
    const bool fio = report->runners > 1;
    return sw_bench_print_json(
        json_pack("{s:s, s:i, s:I, s:b, s:b, s:b, s:f, s:i, s:s?, s:b, s:I, s:o, s:o}", "bench", "io", "files",
                  bench->target.count, "file_bytes", (json_int_t)report->bench->target.file_bytes, "direct",
                  bench->target.direct, "random", bench->given->random, "thorough", bench->given->thorough, "seconds",
                  bench->effort.seconds, "rounds", (int)bench->effort.rounds, "fio", fio ? report->fio.version : NULL,
                  "fio_fixed_buffers", fio && report->fio.fixed_buffers, "written_bytes",
                  (json_int_t)bench->target.written_bytes, "cells", cells_json(report), "best", best_json(report)));
}
