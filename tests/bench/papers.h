/* Numbers that papers print, and the same numbers by the planner and the simulator. paper_tables.c fills the tables;
 * papers.c compares each deviation with the bound that its column states. */
#ifndef SW_TESTS_BENCH_PAPERS_H
#define SW_TESTS_BENCH_PAPERS_H

#include "core/status.h"

#include <stdbool.h>

enum { SW_PAPER_COLUMNS = 4, SW_PAPER_ROWS = 24, SW_PAPER_NAME_CHARS = 40 };

/* The bound holds ours / paper - 1 between two shares. */
struct sw_paper_column {
    const char *heading;
    double low, high;
    const char *reason; /* why ours differs, or NULL */
};

struct sw_paper_number {
    const char *printed; /* as the paper prints it; NULL: the paper gives the equation alone */
    double paper;        /* by the paper's equation; 0: there is none, and the printed number counts */
    double ours;
    double slow, fast; /* ours with all assumed numbers of a machine slow or fast; 0: not known */
};

struct sw_paper_row {
    char name[SW_PAPER_NAME_CHARS];
    struct sw_paper_number number[SW_PAPER_COLUMNS];
};

struct sw_paper_table {
    const char *name, *title, *source, *unit;
    struct sw_paper_column column[SW_PAPER_COLUMNS];
    int columns, rows;
    struct sw_paper_row row[SW_PAPER_ROWS];
};

/* Each fills a table, which is all zero before. */
sw_status sw_paper_zero_memory(struct sw_paper_table *out);
sw_status sw_paper_zero_largest(struct sw_paper_table *out);
sw_status sw_paper_zero_traffic(struct sw_paper_table *out);
sw_status sw_paper_infinity_memory(struct sw_paper_table *out);
sw_status sw_paper_infinity_working(struct sw_paper_table *out);
sw_status sw_paper_infinity_intensity(struct sw_paper_table *out);
sw_status sw_paper_infinity_efficiency(struct sw_paper_table *out);
sw_status sw_paper_least_bytes(struct sw_paper_table *out);
/* Both predict published runs for the machines that bench/machines describes. */
sw_status sw_paper_runs(struct sw_paper_table *out);
sw_status sw_paper_ratios(struct sw_paper_table *out);

#endif
