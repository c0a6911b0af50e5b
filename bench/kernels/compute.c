/* The arithmetic of a micro-batch, one unit of each kind forward and backward, in turn with oneDNN alone, called
 * directly for the same matrix products with operands that already lie in the layouts that it chose: how much of the
 * library's own speed a step keeps. On a GPU the products are those of its library, one after the other. */
#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "model/unit_run.h"

#include <stdio.h>

/* The last row of the report is all parts together. */
enum { EMBEDDING, BLOCK, HEAD, PARTS, ALL = PARTS, ROWS };
/* The head's backward pass is all of its work. */
enum { FORWARD, BACKWARD, PRODUCTS, BOTH_PASSES, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

/* A unit of the model, and how often a micro-batch goes through one like it. */
struct part {
    const char *name;
    int64_t unit, times;
    struct sw_bench_rounds unit_s, all_s; /* seconds of one unit, and of all of a micro-batch */
};

struct compute_bench {
    const struct sw_bench_options *given;
    struct sw_bench_model of;
    struct sw_unit_run *run;
    struct sw_bench_products products; /* opened only on a GPU; on the CPU oneDNN's own products are measured */
    struct part part[ROWS];
};

/* People read times of one unit, programs those of all. */
#define ROW struct part
static const struct sw_bench_field fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, name)},
    {.heading = "times", SW_AT(SW_FIELD_COUNT, times)},
    {.heading = "forward, s", SW_MEDIAN(unit_s, FORWARD), .digits = 4},
    {.heading = "backward, s", SW_MEDIAN(unit_s, BACKWARD), .digits = 4},
    {.heading = "products, s", SW_MEDIAN(unit_s, PRODUCTS), .digits = 4},
    {.name = "forward_s", SW_MEDIAN(all_s, FORWARD)},
    {.name = "backward_s", SW_MEDIAN(all_s, BACKWARD)},
    {.name = "products_s", SW_MEDIAN(all_s, PRODUCTS)},
    {.name = "products_share", .heading = "products to both", SW_RATIO(all_s, PRODUCTS, BOTH_PASSES), .digits = 2},
};

static void name_parts(struct compute_bench *bench) {
    const int64_t layers = bench->of.job.config.layers;
    bench->part[EMBEDDING] = (struct part){.name = "embedding", .unit = 0, .times = 1};
    bench->part[BLOCK] = (struct part){.name = "block", .unit = 1, .times = layers};
    bench->part[HEAD] = (struct part){.name = "head", .unit = 1 + layers, .times = 1};
    bench->part[ALL] = (struct part){.name = "all", .times = 1};
    for (int i = 0; i < ROWS; i++)
        bench->part[i].unit_s.rounds = bench->part[i].all_s.rounds = (int)bench->given->rounds;
}

static bool belongs(const struct sw_model_product *product, int part) {
    return part == (product->head ? HEAD : BLOCK);
}

/* Checks the units' memory, and the operands of the products of one kind of unit. */
static sw_status check_memory(const struct compute_bench *bench) {
    int64_t bytes[PARTS] = {0};
    for (int i = 0; i < bench->of.count; i++) {
        const struct sw_gemm *shape = &bench->of.product[i].shape;
        const int64_t in_bytes = (sw_gemm_a_elems(shape) + shape->k * shape->n) * sw_dtype_bytes(shape->in);
        bytes[bench->of.product[i].head ? HEAD : BLOCK] +=
            in_bytes + sw_gemm_c_elems(shape) * sw_dtype_bytes(shape->out);
    }
    return sw_bench_check_memory("a unit of this model and the operands of its products",
                                 sw_unit_run_bytes(bench->of.job.model) + sw_max_i64(bytes[BLOCK], bytes[HEAD]),
                                 SW_BENCH_SMALLER_MODEL);
}

static sw_status time_pass(struct compute_bench *bench, sw_unit_pass pass, double *out_s) {
    const int64_t start_ns = sw_now_ns();
    SW_TRY(sw_unit_run_pass(bench->run, pass));
    *out_s = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

/* Times the products of one unit of a part: by oneDNN where `direct` has them, else by the device's library. */
static sw_status time_products(struct compute_bench *bench, int number, struct sw_onednn_product *const direct[],
                               double *out_s) {
    *out_s = 0.0;
    for (int i = 0; i < bench->of.count; i++) {
        const struct sw_model_product *product = &bench->of.product[i];
        double once_s;
        if (!belongs(product, number))
            continue;
        SW_TRY(direct[i] != NULL ? sw_onednn_product_time(direct[i], &once_s)
                                 : sw_bench_product_time(&bench->products, &product->shape, &once_s));
        const int64_t times = product->times / bench->part[number].times;
        *out_s += once_s * (double)times;
    }
    return SW_OK;
}

/* Adds a round of a part to its times and to those of all parts. */
static void add_round(struct compute_bench *bench, int number, int round, const double seconds[CONTENDERS]) {
    struct part *part = &bench->part[number], *all = &bench->part[ALL];
    for (int who = 0; who < CONTENDERS; who++) {
        part->unit_s.rate[who][round] = seconds[who];
        part->all_s.rate[who][round] = seconds[who] * (double)part->times;
        all->all_s.rate[who][round] += part->all_s.rate[who][round];
        all->unit_s.rate[who][round] = all->all_s.rate[who][round];
    }
}

/* Runs all in turn, round by round. The round before the first only touches the memory. */
static sw_status race(struct compute_bench *bench, int number, struct sw_onednn_product *const direct[]) {
    SW_TRY(sw_unit_run_choose(bench->run, bench->part[number].unit));
    for (int round = -1; round < bench->given->rounds; round++) {
        double seconds[CONTENDERS] = {0};
        if (number != HEAD)
            SW_TRY(time_pass(bench, SW_UNIT_FORWARD, &seconds[FORWARD]));
        SW_TRY(time_pass(bench, SW_UNIT_BACKWARD, &seconds[BACKWARD]));
        if (number != EMBEDDING)
            SW_TRY(time_products(bench, number, direct, &seconds[PRODUCTS]));
        seconds[BOTH_PASSES] = seconds[FORWARD] + seconds[BACKWARD];
        if (round >= 0)
            add_round(bench, number, round, seconds);
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

static sw_status report(const struct compute_bench *bench) {
    if (bench->of.settings.json)
        return sw_command_print_json(
            sw_bench_join(sw_bench_model_json(&bench->of, "compute", bench->given->rounds),
                          json_pack("{s:s, s:I, s:o}", "bound_precision", sw_dtype_name(bench->of.bound_type), "blocks",
                                    (json_int_t)bench->part[BLOCK].times, "totals",
                                    sw_table_named_json(SW_TABLE(fields, bench->part, ROWS)))));
    sw_bench_model_print(&bench->of, bench->given->rounds);
    printf("one unit of each kind, against its products alone by %s\n",
           bench->products.device != NULL ? "the GPU's library" : "oneDNN in its own layouts");
    sw_table_print(SW_TABLE(fields, bench->part, ROWS));
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
    SW_TRY(sw_unit_run_open(bench->of.job.model, bench->of.device, &bench->run));
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
