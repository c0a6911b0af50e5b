/* The arithmetic of a micro-batch, one unit of each kind forward and backward, in turn with oneDNN alone, called
 * directly for the same matrix products with operands that already lie in the layouts that it chose: how much of the
 * library's own speed a step keeps. On a GPU the products are those of its library, one after the other. */
#include "bench/kernels/compute.h"

#include "bench/commands.h"
#include "bench/kernels/onednn.h"
#include "core/clock.h"
#include "core/size.h"
#include "train/cli/commands.h"
#include "train/model/unit_run.h"

static const struct sw_option options[] = {
    SW_BENCH_MODEL_FLAGS(struct sw_compute_options),
    SW_BENCH_ROUNDS(offsetof(struct sw_compute_options, rounds), "5"),
    SW_BENCH_JSON(offsetof(struct sw_compute_options, settings.json)),
};
static const struct sw_command_line line = {
    .command = "bench compute",
    .summary = "a micro-batch forward and backward, beside its matrix products alone by the vendor's library",
    .options = options,
    .option_count = sizeof options / sizeof options[0]};

static void name_parts(struct sw_compute_bench *bench) {
    const int64_t layers = bench->of.config.layers;
    bench->part[SW_COMPUTE_EMBEDDING] = (struct sw_compute_part){.name = "embedding", .unit = 0, .times = 1};
    bench->part[SW_COMPUTE_BLOCK] = (struct sw_compute_part){.name = "block", .unit = 1, .times = layers};
    bench->part[SW_COMPUTE_HEAD] = (struct sw_compute_part){.name = "head", .unit = 1 + layers, .times = 1};
}

static bool belongs(const struct sw_model_product *product, int part) {
    return part == (product->head ? SW_COMPUTE_HEAD : SW_COMPUTE_BLOCK);
}

/* The units' memory, and the operands of the products of one kind of unit. */
static sw_status check_memory(const struct sw_compute_bench *bench) {
    int64_t bytes[SW_COMPUTE_PARTS] = {0};
    for (int i = 0; i < bench->of.count; i++) {
        const struct sw_gemm *shape = &bench->of.product[i].shape;
        const int64_t in_bytes = (shape->m * shape->k + shape->k * shape->n) * sw_dtype_bytes(shape->in);
        bytes[bench->of.product[i].head ? SW_COMPUTE_HEAD : SW_COMPUTE_BLOCK] +=
            in_bytes + shape->m * shape->n * sw_dtype_bytes(shape->out);
    }
    return sw_bench_check_memory("a unit of this model and the operands of its products",
                                 sw_unit_run_bytes(bench->of.model) +
                                     sw_max_i64(bytes[SW_COMPUTE_BLOCK], bytes[SW_COMPUTE_HEAD]));
}

static sw_status time_pass(struct sw_compute_bench *bench, sw_unit_pass pass, double *out_s) {
    const int64_t start_ns = sw_now_ns();
    SW_TRY(sw_unit_run_pass(bench->run, pass));
    *out_s = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

/* Of a GPU's library. */
static sw_status time_products_there(struct sw_compute_bench *bench, int number, double *out_s) {
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

static sw_status time_products(struct sw_compute_bench *bench, int number, struct sw_onednn_product *const direct[],
                               double *out_s) {
    const struct sw_compute_part *part = &bench->part[number];
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
static sw_status race(struct sw_compute_bench *bench, int number, struct sw_onednn_product *const direct[]) {
    struct sw_compute_part *part = &bench->part[number];
    SW_TRY(sw_unit_run_choose(bench->run, part->unit));
    for (int round = -1; round < bench->given->rounds; round++) {
        double seconds[SW_COMPUTE_CONTENDERS] = {0};
        if (number != SW_COMPUTE_HEAD)
            SW_TRY(time_pass(bench, SW_UNIT_FORWARD, &seconds[SW_COMPUTE_FORWARD]));
        SW_TRY(time_pass(bench, SW_UNIT_BACKWARD, &seconds[SW_COMPUTE_BACKWARD]));
        if (number != SW_COMPUTE_EMBEDDING)
            SW_TRY(time_products(bench, number, direct, &seconds[SW_COMPUTE_PRODUCTS]));
        for (int who = 0; round >= 0 && who < SW_COMPUTE_CONTENDERS; who++)
            part->seconds[who][round] = seconds[who];
    }
    return SW_OK;
}

static sw_status measure(struct sw_compute_bench *bench, int part) {
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

static sw_status run(struct sw_compute_bench *bench) {
    SW_TRY(sw_bench_model_open(&bench->given->settings, &bench->of));
    if (sw_device_info(bench->of.device).host_memory) {
        SW_TRY(check_memory(bench));
        SW_TRY(sw_bench_choose_bound_type(&bench->of));
    } else {
        SW_TRY(sw_bench_products_open(bench->of.device, bench->of.product, bench->of.count, &bench->products));
    }
    SW_TRY(sw_unit_run_open(bench->of.model, bench->of.device, &bench->run));
    name_parts(bench);
    for (int part = 0; part < SW_COMPUTE_PARTS; part++)
        SW_TRY(measure(bench, part));
    if (bench->of.settings.json)
        return sw_compute_print_json(bench);
    sw_compute_print(bench);
    return SW_OK;
}

int sw_bench_compute(int argc, char **argv) {
    struct sw_compute_options given = {0};
    int code;
    if (sw_command_parse(&line, argc, argv, &given, &code)) {
        struct sw_compute_bench bench = {.given = &given};
        const sw_status status = run(&bench);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail(line.command, status);
        sw_unit_run_close(bench.run);
        sw_bench_products_close(&bench.products);
        sw_bench_model_close(&bench.of);
    }
    sw_options_release(&line, &given);
    return code;
}
