/* The matrix products of a model's training: those of a block and of the head, forward and backward.
 *
 * The bounds: oneDNN called directly with the same row-major operands, and oneDNN with operands that already lie in the
 * layouts that it chose, which a training step would have to make first. A GPU's products, which are the vendor's
 * library, stand alone. */
#include "bench/kernels/gemm.h"

#include "bench/commands.h"
#include "bench/kernels/onednn.h"
#include "core/clock.h"
#include "core/size.h"
#include "train/cli/commands.h"

#define AT(member) offsetof(struct sw_gemm_options, member)
static const struct sw_option options[] = {
    SW_BENCH_MODEL_FLAGS(struct sw_gemm_options),
    SW_BENCH_ROUNDS(AT(rounds), "9"),
    SW_BENCH_JSON(AT(settings.json)),
};
static const struct sw_command_line line = {
    .command = "bench gemm",
    .summary = "the matrix products of a model; of the CPU beside oneDNN called directly",
    .options = options,
    .option_count = sizeof options / sizeof options[0]};

/* Each contender has operands of its own, the direct ones at most the largest of each. A GPU's memory says itself what
 * it has no room for. */
static sw_status check_memory(const struct sw_gemm_bench *bench) {
    int64_t bytes;
    if (bench->contenders == 1)
        return SW_OK;
    SW_TRY(sw_bench_products_bytes(bench->of.device, bench->of.product, bench->of.count, &bytes));
    return sw_bench_check_memory("operands of these products", SW_GEMM_CONTENDERS * bytes);
}

static sw_status time_direct(struct sw_onednn_product *product, double *out_s) {
    const int64_t start_ns = sw_now_ns();
    SW_TRY(sw_onednn_product_run(product));
    *out_s = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

/* Runs all in turn, round by round; the first only touches the memory. */
static sw_status race(struct sw_gemm_bench *bench, int product, struct sw_onednn_product *const direct[]) {
    const struct sw_gemm *shape = &bench->of.product[product].shape;
    struct sw_bench_rounds *result = &bench->result[product];
    result->rounds = (int)bench->given->rounds;
    for (int round = -1; round < result->rounds; round++)
        for (int who = 0; who < bench->contenders; who++) {
            double seconds;
            SW_TRY(who == SW_GEMM_OURS ? sw_bench_product_time(&bench->products, shape, &seconds)
                                       : time_direct(direct[who], &seconds));
            if (round >= 0)
                result->rate[who][round] = sw_gemm_flops(shape) / seconds;
        }
    return SW_OK;
}

static sw_status measure(struct sw_gemm_bench *bench, int product) {
    const struct sw_gemm shape = sw_bench_bound_shape(&bench->of, product);
    struct sw_onednn_product *direct[SW_GEMM_CONTENDERS] = {NULL};
    sw_status status = SW_OK;
    if (bench->contenders == 1)
        return race(bench, product, direct);
    SW_TRY_GOTO(sw_onednn_product_open(&shape, false, &direct[SW_GEMM_SAME_LAYOUTS]), out);
    SW_TRY_GOTO(sw_onednn_product_open(&shape, true, &direct[SW_GEMM_OWN_LAYOUTS]), out);
    status = race(bench, product, direct);
out:
    sw_onednn_product_close(direct[SW_GEMM_SAME_LAYOUTS]);
    sw_onednn_product_close(direct[SW_GEMM_OWN_LAYOUTS]);
    return status;
}

static sw_status run(struct sw_gemm_bench *bench) {
    SW_TRY(sw_bench_model_open(&bench->given->settings, &bench->of));
    bench->contenders = sw_device_info(bench->of.device).host_memory ? SW_GEMM_CONTENDERS : 1;
    SW_TRY(check_memory(bench));
    SW_TRY(sw_bench_products_open(bench->of.device, bench->of.product, bench->of.count, &bench->products));
    if (bench->contenders > 1)
        SW_TRY(sw_bench_choose_bound_type(&bench->of));
    const bool json = bench->of.settings.json;
    if (!json)
        sw_gemm_print_head(bench);
    for (int i = 0; i < bench->of.count; i++) {
        SW_TRY(measure(bench, i));
        if (!json)
            sw_gemm_print_product(bench, i);
    }
    if (json)
        return sw_gemm_print_json(bench);
    sw_gemm_print_totals(bench);
    return SW_OK;
}

static void release(struct sw_gemm_bench *bench) {
    sw_bench_products_close(&bench->products);
    sw_bench_model_close(&bench->of);
}

int sw_bench_gemm(int argc, char **argv) {
    struct sw_gemm_options given = {0};
    int code;
    if (sw_command_parse(&line, argc, argv, &given, &code)) {
        struct sw_gemm_bench bench = {.given = &given};
        const sw_status status = run(&bench);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail(line.command, status);
        release(&bench);
    }
    sw_options_release(&line, &given);
    return code;
}
