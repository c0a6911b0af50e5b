/* `spillway bench papers`: what papers print, by our planner and our simulator. Nothing is measured. */
#include "bench/papers/papers.h"

#include "bench/commands.h"
#include "bench/options.h"

#include <stdio.h>

static sw_status (*const makers[])(struct sw_paper_table *out) = {
    sw_paper_zero_memory,      sw_paper_zero_largest,       sw_paper_zero_traffic,        sw_paper_infinity_memory,
    sw_paper_infinity_working, sw_paper_infinity_intensity, sw_paper_infinity_efficiency, sw_paper_least_bytes,
};
enum { MAKERS = sizeof makers / sizeof makers[0] };

/* Prints the table, or adds it to a list, and counts the numbers outside their bounds. */
static sw_status report(const struct sw_paper_table *table, json_t *list, int *outside) {
    *outside += sw_paper_count_outside(table);
    if (list == NULL)
        sw_paper_print(table);
    else if (json_array_append_new(list, sw_paper_json(table)) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory for the report");
    return SW_OK;
}

static sw_status (*const predictors[])(const char *machines, struct sw_paper_table *out) = {sw_paper_runs,
                                                                                            sw_paper_ratios};
enum { PREDICTORS = sizeof predictors / sizeof predictors[0] };

static sw_status make_all(const char *machines, json_t *list, int *outside) {
    struct sw_paper_table table;
    for (int m = 0; m < MAKERS; m++) {
        SW_TRY(makers[m](&table));
        SW_TRY(report(&table, list, outside));
    }
    for (int p = 0; machines != NULL && p < PREDICTORS; p++) {
        SW_TRY(predictors[p](machines, &table));
        SW_TRY(report(&table, list, outside));
    }
    return SW_OK;
}

sw_status sw_bench_papers(const void *given_options) {
    const struct sw_bench_options *given = given_options;
    json_t *list = given->settings.json ? json_array() : NULL;
    int outside = 0;
    if (list == NULL)
        printf("Numbers of papers, and ours by the planner and the simulator. Computed: nothing\n"
               "here was measured. Under each table, the bound of each column's deviation.\n");
    sw_status status = make_all(given->machines, list, &outside);
    if (status == SW_OK && list != NULL)
        status =
            sw_bench_print_json(json_pack("{s:s, s:O, s:i}", "bench", "papers", "tables", list, "outside", outside));
    json_decref(list);
    if (status == SW_OK && outside > 0)
        return sw_fail(SW_ERR_INTERNAL, "%d numbers deviate from their papers by more than their bounds", outside);
    return status;
}
