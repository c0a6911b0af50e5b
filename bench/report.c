#include "bench/report.h"

#include "core/log.h"
#include "core/machine.h"
#include "core/rng.h"
#include "job/machine/gpu_trust.h"
#include "job/settings/options.h"
#include "offload/simulate/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OUTSIDE resampled medians are left out at either end: the fortieth part of them. */
enum { RESAMPLES = 2000, OUTSIDE = RESAMPLES / 40 };

double sw_bench_median(const struct sw_bench_rounds *rounds, int who) {
    double sorted[SW_BENCH_MAX_ROUNDS];
    memcpy(sorted, rounds->rate[who], sizeof sorted);
    return sw_median(sorted, rounds->rounds);
}

static void take_ratios(const struct sw_bench_rounds *rounds, int who, int to, double ratio[SW_BENCH_MAX_ROUNDS]) {
    for (int i = 0; i < rounds->rounds; i++)
        ratio[i] = rounds->rate[who][i] / rounds->rate[to][i];
}

double sw_bench_ratio(const struct sw_bench_rounds *rounds, int who, int to) {
    double ratio[SW_BENCH_MAX_ROUNDS];
    take_ratios(rounds, who, to, ratio);
    return sw_median(ratio, rounds->rounds);
}

static int compare_doubles(const void *a, const void *b) {
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The draws are always the same, so that every report of the same rates shows the same interval. */
struct sw_bench_interval sw_bench_ratio_interval(const struct sw_bench_rounds *rounds, int who, int to) {
    double ratio[SW_BENCH_MAX_ROUNDS], drawn[SW_BENCH_MAX_ROUNDS], medians[RESAMPLES];
    take_ratios(rounds, who, to, ratio);
    for (int sample = 0; sample < RESAMPLES; sample++) {
        for (int i = 0; i < rounds->rounds; i++)
            drawn[i] = ratio[sw_rng(0, (uint64_t)sample, (uint64_t)i).word[0] % (uint32_t)rounds->rounds];
        medians[sample] = sw_median(drawn, rounds->rounds);
    }
    qsort(medians, RESAMPLES, sizeof medians[0], compare_doubles);
    return (struct sw_bench_interval){medians[OUTSIDE], medians[RESAMPLES - 1 - OUTSIDE]};
}

sw_status sw_bench_open_devices(int which, int64_t threads, struct sw_devices *out) {
    SW_TRY(sw_devices_open((sw_device_choice)which, threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)threads, 0,
                           out));
    return sw_gpu_as_in_training(out);
}

json_t *sw_bench_join(json_t *first, json_t *second) {
    const bool joined = first != NULL && second != NULL && json_object_update(first, second) == 0;
    json_decref(second);
    if (joined)
        return first;
    json_decref(first);
    return NULL;
}

sw_status sw_bench_print_json(json_t *root) {
    if (root == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the report");
    sw_log_end_folding();
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return SW_OK;
}
