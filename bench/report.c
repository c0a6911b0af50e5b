#include "bench/report.h"

#include "core/machine.h"
#include "offload/measure.h"
#include "train/options.h"

#include <stdio.h>
#include <string.h>

double sw_bench_median(const struct sw_bench_rounds *rounds, int who) {
    double sorted[SW_BENCH_MAX_ROUNDS];
    memcpy(sorted, rounds->rate[who], sizeof sorted);
    return sw_median(sorted, rounds->rounds);
}

double sw_bench_ratio(const struct sw_bench_rounds *rounds, int who, int to) {
    double ratio[SW_BENCH_MAX_ROUNDS];
    for (int i = 0; i < rounds->rounds; i++)
        ratio[i] = rounds->rate[who][i] / rounds->rate[to][i];
    return sw_median(ratio, rounds->rounds);
}

sw_status sw_bench_open_device(int64_t threads, struct sw_device **out) {
    return sw_device_open("cpu", threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)threads, out);
}

static sw_status no_memory(void) {
    return sw_fail(SW_ERR_NOMEM, "no memory to print what was measured");
}

sw_status sw_bench_append(json_t *array, json_t *item) {
    return json_array_append_new(array, item) == 0 ? SW_OK : no_memory();
}

sw_status sw_bench_print_json(json_t *root) {
    if (root == NULL)
        return no_memory();
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return SW_OK;
}
