/* The arithmetic of a micro-batch, one unit of each kind forward and backward, in turn with oneDNN alone, called
 * directly for the same matrix products with operands that already lie in the layouts that it chose: how much of the
 * library's own speed a step keeps. On a GPU the products are those of its library, one after the other. */
#include "bench/commands.h"
#include "bench/kernels/model.h"
#include "bench/kernels/onednn.h"
#include "bench/kernels/products.h"
#include "bench/table.h"
#include "core/clock.h"
#include "core/long_work.h"
#include "core/size.h"
#include "offload/simulate/measure.h"
#include "train/model/unit_run.h"

#include <stdio.h>

enum { EMBEDDING, BLOCK, HEAD, PARTS, TOTALS };
/* The head's backward pass is all of its work. */
enum { FORWARD, BACKWARD, PRODUCTS, CONTENDERS };

/* A unit, and how often a micro-batch goes through one like it. */
struct part {
    const char *name;
    int64_t unit, times;
    double seconds[CONTENDERS][SW_BENCH_MAX_ROUNDS]; /* per unit and round */
};

struct compute_bench {
    const struct sw_bench_options *given;
    struct sw_bench_model of;
    struct sw_unit_run *run;
    struct sw_bench_products products; /* opened on a GPU alone; on the CPU oneDNN's own products are measured */
    struct part part[PARTS];
};

/* A part of a micro-batch, or all of it: all of its units for programs, and one unit for people. */
struct total_row {
    const char *name;
    int64_t times;
    double seconds[CONTENDERS], unit_seconds[CONTENDERS], products_share;
};

#define ROW struct total_row
static const struct sw_bench_field fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, name)},
    {.heading = "times", SW_AT(SW_FIELD_COUNT, times)},
    {.heading = "forward, s", SW_AT(SW_FIELD_REAL, unit_seconds[FORWARD]), .digits = 4},
    {.heading = "backward, s", SW_AT(SW_FIELD_REAL, unit_seconds[BACKWARD]), .digits = 4},
    {.heading = "products, s", SW_AT(SW_FIELD_REAL, unit_seconds[PRODUCTS]), .digits = 4},
    {.name = "forward_s", SW_AT(SW_FIELD_REAL, seconds[FORWARD])},
    {.name = "backward_s", SW_AT(SW_FIELD_REAL, seconds[BACKWARD])},
    {.name = "products_s", SW_AT(SW_FIELD_REAL, seconds[PRODUCTS])},
    {.name = "products_share", .heading = "products to both", SW_AT(SW_FIELD_REAL, products_share), .digits = 2},
};

static void name_parts(struct compute_bench *bench) {
    const int64_t layers = bench->of.config.layers;
    bench->part[EMBEDDING] = (struct part){.name = "embedding", .unit = 0, .times = 1};
    bench->part[BLOCK] = (struct part){.name = "block", .unit = 1, .times = layers};
    bench->part[HEAD] = (struct part){.name = "head", .unit = 1 + layers, .times = 1};
}

static bool belongs(const struct sw_model_product *product, int part) {
    return part == (product->head ? HEAD : BLOCK);
}

/* Checks the units' memory, and the operands of the products of one kind of unit. */
static sw_status check_memory(const struct compute_bench *bench) {
    int64_t bytes[PARTS] = {0};
    for (int i = 0; i < bench->of.count; i++) {
        const struct sw_gemm *shape = &bench->of.product[i].shape;
        const int64_t in_bytes = (shape->m * shape->k + shape->k * shape->n) * sw_dtype_bytes(shape->in);
        bytes[bench->of.product[i].head ? HEAD : BLOCK] += in_bytes + shape->m * shape->n * sw_dtype_bytes(shape->out);
    }
    return sw_bench_check_memory("a unit of this model and the operands of its products",
                                 sw_unit_run_bytes(bench->of.model) + sw_max_i64(bytes[BLOCK], bytes[HEAD]));
}

static sw_status time_pass(struct compute_bench *bench, sw_unit_pass pass, double *out_s) {
    const int64_t start_ns = sw_now_ns();
    SW_TRY(sw_unit_run_pass(bench->run, pass));
    *out_s = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

/* Times the products by the GPU's library. */
static sw_status time_products_there(struct compute_bench *bench, int number, double *out_s) {
    *out_s = 0.0;
    for (int i = 0; i < bench->of.count; i++) {
        const struct sw_model_product *product = &bench->of.product[i];
        const int64_t calls = product->times / bench->part[number].times;
        double once_s;
        if (!belongs(product, number))
            continue;
        SW_TRY(sw_bench_product_time(&bench->products, &product->shape, &once_s));
        *out_s += once_s * (double)calls;
    }
    return SW_OK;
}

static sw_status time_products(struct compute_bench *bench, int number, struct sw_onednn_product *const direct[],
                               double *out_s) {
    const struct part *part = &bench->part[number];
    if (bench->products.device != NULL)
        return time_products_there(bench, number, out_s);
    const int64_t start_ns = sw_now_ns();
    for (int i = 0; i < bench->of.count; i++)
        for (int64_t t = 0; direct[i] != NULL && t < bench->of.product[i].times / part->times; t++)
            SW_TRY(sw_onednn_product_run(direct[i]));
    *out_s = (double)(sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

/* Runs all in turn, round by round; the first only touches the memory. */
static sw_status race(struct compute_bench *bench, int number, struct sw_onednn_product *const direct[]) {
    struct part *part = &bench->part[number];
    SW_TRY(sw_unit_run_choose(bench->run, part->unit));
    for (int round = -1; round < bench->given->rounds; round++) {
        double seconds[CONTENDERS] = {0};
        if (number != HEAD)
            SW_TRY(time_pass(bench, SW_UNIT_FORWARD, &seconds[FORWARD]));
        SW_TRY(time_pass(bench, SW_UNIT_BACKWARD, &seconds[BACKWARD]));
        if (number != EMBEDDING)
            SW_TRY(time_products(bench, number, direct, &seconds[PRODUCTS]));
        for (int who = 0; round >= 0 && who < CONTENDERS; who++)
            part->seconds[who][round] = seconds[who];
    }
    return SW_OK;
}

static sw_status measure(struct compute_bench *bench, int part) {
    struct sw_onednn_product *direct[SW_MODEL_MAX_PRODUCTS] = {NULL};
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && bench->products.device == NULL && i < bench->of.count; i++) {
        const struct sw_gemm shape = sw_bench_bound_shape(&bench->of, i);
        if (belongs(&bench->of.product[i], part))
            status = sw_onednn_product_open(&shape, true, &direct[i]);
    }
    if (status == SW_OK)
        status = race(bench, part, direct);
    for (int i = 0; i < bench->of.count; i++)
        sw_onednn_product_close(direct[i]);
    return status;
}

/* Sums the parts of [first, end). The share is the median of each round's own, so that what else the machine does hits
 * both sides. */
static struct total_row total_of(const struct compute_bench *bench, const char *name, int first, int end) {
    const int rounds = (int)bench->given->rounds;
    double seconds[CONTENDERS][SW_BENCH_MAX_ROUNDS] = {{0}}, share[SW_BENCH_MAX_ROUNDS];
    struct total_row total = {.name = name, .times = end - first == 1 ? bench->part[first].times : 1};
    for (int i = 0; i < rounds; i++) {
        for (int who = 0; who < CONTENDERS; who++)
            for (int part = first; part < end; part++)
                seconds[who][i] += (double)bench->part[part].times * bench->part[part].seconds[who][i];
        share[i] = seconds[PRODUCTS][i] / (seconds[FORWARD][i] + seconds[BACKWARD][i]);
    }
    for (int who = 0; who < CONTENDERS; who++) {
        total.seconds[who] = sw_median(seconds[who], rounds);
        total.unit_seconds[who] = total.seconds[who] / (double)total.times;
    }
    total.products_share = sw_median(share, rounds);
    return total;
}

static sw_status report(const struct compute_bench *bench) {
    struct total_row totals[TOTALS];
    for (int part = 0; part < PARTS; part++)
        totals[part] = total_of(bench, bench->part[part].name, part, part + 1);
    totals[PARTS] = total_of(bench, "all", 0, PARTS);
    if (bench->of.settings.json)
        return sw_bench_print_json(
            sw_bench_join(sw_bench_model_json(&bench->of, "compute", bench->given->rounds),
                          json_pack("{s:s, s:I, s:o}", "bound_precision", sw_dtype_name(bench->of.bound_type), "blocks",
                                    (json_int_t)bench->part[BLOCK].times, "totals",
                                    sw_table_named_json(SW_TABLE(fields, totals, TOTALS)))));
    sw_bench_model_print(&bench->of, bench->given->rounds);
    printf("one unit of each kind, beside its products alone by %s\n",
           bench->products.device != NULL ? "the GPU's library" : "oneDNN in its own layouts");
    sw_table_print(SW_TABLE(fields, totals, TOTALS));
    return SW_OK;
}

static sw_status run(struct compute_bench *bench) {
    SW_TRY(sw_bench_model_open(&bench->given->settings, &bench->of));
    if (sw_device_info(bench->of.device).host_memory) {
        SW_TRY(check_memory(bench));
        SW_TRY(sw_bench_choose_bound_type(&bench->of));
    } else {
        SW_TRY(sw_bench_products_open(bench->of.device, bench->of.product, bench->of.count, &bench->products));
    }
    SW_TRY(sw_unit_run_open(bench->of.model, bench->of.device, &bench->run));
    name_parts(bench);
    struct sw_long_work work = sw_long_work_begin("measuring arithmetic", 0);
    for (int part = 0; part < PARTS; part++) {
        SW_TRY(sw_long_work_at(&work, 0));
        SW_TRY(measure(bench, part));
    }
    sw_long_work_end(&work);
    return report(bench);
}

sw_status sw_bench_compute(const void *given_options) {
    struct compute_bench bench = {.given = given_options};
    const sw_status status = run(&bench);
    sw_unit_run_close(bench.run);
    sw_bench_products_close(&bench.products);
    sw_bench_model_close(&bench.of);
    return status;
}
