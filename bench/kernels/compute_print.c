#include "bench/kernels/compute.h"

#include "offload/simulate/measure.h"

#include <stdio.h>
#include <string.h>

/* What a line reports: some parts, each so often as a micro-batch goes through it, and its medians. */
struct total {
    const char *name;
    int64_t times[SW_COMPUTE_PARTS];
    double seconds[SW_COMPUTE_CONTENDERS], of_products;
};

enum { TOTALS = SW_COMPUTE_PARTS + 1 };

static double median(const double *values, int count) {
    double sorted[SW_BENCH_MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    return sw_median(sorted, count);
}

/* The share is that of each round, so that what else the machine does hits both sides. */
static void sum(const struct sw_compute_bench *bench, struct total *total) {
    const int rounds = (int)bench->given->rounds;
    double seconds[SW_COMPUTE_CONTENDERS][SW_BENCH_MAX_ROUNDS] = {{0}}, share[SW_BENCH_MAX_ROUNDS];
    for (int i = 0; i < rounds; i++) {
        for (int who = 0; who < SW_COMPUTE_CONTENDERS; who++)
            for (int part = 0; part < SW_COMPUTE_PARTS; part++)
                seconds[who][i] += (double)total->times[part] * bench->part[part].seconds[who][i];
        share[i] = seconds[SW_COMPUTE_PRODUCTS][i] / (seconds[SW_COMPUTE_FORWARD][i] + seconds[SW_COMPUTE_BACKWARD][i]);
    }
    for (int who = 0; who < SW_COMPUTE_CONTENDERS; who++)
        total->seconds[who] = median(seconds[who], rounds);
    total->of_products = median(share, rounds);
}

/* Each part, and all of them. */
static void sum_all(const struct sw_compute_bench *bench, struct total totals[TOTALS]) {
    totals[SW_COMPUTE_PARTS] = (struct total){.name = "all"};
    for (int part = 0; part < SW_COMPUTE_PARTS; part++) {
        totals[part] = (struct total){.name = bench->part[part].name};
        totals[part].times[part] = totals[SW_COMPUTE_PARTS].times[part] = bench->part[part].times;
        sum(bench, &totals[part]);
    }
    sum(bench, &totals[SW_COMPUTE_PARTS]);
}

void sw_compute_print(const struct sw_compute_bench *bench) {
    const struct sw_settings *s = &bench->of.settings;
    const struct sw_device_info info = sw_devices_info(&bench->of.devices);
    struct total totals[TOTALS];
    sum_all(bench, totals);
    printf("%s, micro-batch of %lld x %lld tokens, %s, %s, %d threads: seconds forward and backward; of its matrix "
           "products "
           "alone by %s; these to both passes (median of %d)\n",
           s->model, (long long)s->micro_batch, (long long)s->seq, sw_dtype_name(bench->of.type), info.name,
           info.threads, bench->products.device != NULL ? "its library" : "oneDNN in its own layouts",
           (int)bench->given->rounds);
    sw_bench_print_bound(&bench->of);
    printf("%-9s %5s %9s %9s %9s %7s\n", "", "times", "forward", "backward", "products", "share");
    for (int t = 0; t < TOTALS; t++) {
        const int64_t times = t < SW_COMPUTE_PARTS ? bench->part[t].times : 1;
        printf("%-9s %4lldx", totals[t].name, (long long)times);
        for (int who = 0; who < SW_COMPUTE_CONTENDERS; who++)
            printf(" %9.4f", totals[t].seconds[who] / (double)times);
        printf(" %7.2f\n", totals[t].of_products);
    }
}

static json_t *total_json(const struct total *total) {
    return json_pack("{s:f, s:f, s:f, s:f}", "forward_s", total->seconds[SW_COMPUTE_FORWARD], "backward_s",
                     total->seconds[SW_COMPUTE_BACKWARD], "products_s", total->seconds[SW_COMPUTE_PRODUCTS],
                     "products_share", total->of_products);
}

sw_status sw_compute_print_json(const struct sw_compute_bench *bench) {
    const struct sw_settings *s = &bench->of.settings;
    const struct sw_device_info info = sw_devices_info(&bench->of.devices);
    struct total totals[TOTALS];
    json_t *json = json_object();
    sw_status status = SW_OK;
    sum_all(bench, totals);
    for (int t = 0; status == SW_OK && t < TOTALS; t++)
        if (json_object_set_new(json, totals[t].name, total_json(&totals[t])) != 0)
            status = sw_fail(SW_ERR_NOMEM, "no memory to print what was measured");
    if (status == SW_OK)
        status = sw_bench_print_json(
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:I, s:O}", "bench", "compute", "device",
                      info.name, "isa", info.isa, "model", s->model, "precision", sw_dtype_name(bench->of.type),
                      "bound_precision", sw_dtype_name(bench->of.bound_type), "threads", info.threads, "rounds",
                      (int)bench->given->rounds, "micro_batch", (json_int_t)s->micro_batch, "seq", (json_int_t)s->seq,
                      "blocks", (json_int_t)bench->part[SW_COMPUTE_BLOCK].times, "totals", json));
    json_decref(json);
    return status;
}
