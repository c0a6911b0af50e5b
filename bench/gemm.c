/* The matrix products of a model's training: those of a block and of the head, forward and backward.
 *
 * The bounds: oneDNN called directly with the same row-major operands, and oneDNN with operands that already lie in the
 * layouts that it chose, which a training step would have to make first. */
#include "bench/gemm.h"

#include "bench/commands.h"
#include "bench/onednn.h"
#include "core/clock.h"
#include "core/size.h"
#include "train/commands.h"

#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct sw_gemm_options, member)
static const struct sw_option options[] = {
    SW_BENCH_MODEL_FLAGS(struct sw_gemm_options),
    SW_BENCH_ROUNDS(AT(rounds), "9"),
    SW_BENCH_JSON(AT(settings.json)),
};
static const struct sw_command_line line = {.command = "bench gemm",
                                            .summary = "the matrix products of a model, beside oneDNN called directly",
                                            .options = options,
                                            .option_count = sizeof options / sizeof options[0]};

/* The largest of each operand. */
struct operand_bytes {
    int64_t a, b, bias, c, scratch;
};

static sw_status size_operands(const struct sw_gemm_bench *bench, struct operand_bytes *out) {
    const int64_t typed = sw_dtype_bytes(bench->of.type);
    *out = (struct operand_bytes){0};
    for (int i = 0; i < bench->of.count; i++) {
        const struct sw_gemm *shape = &bench->of.product[i].shape;
        int64_t scratch_bytes;
        SW_TRY(sw_device_prepare_gemm(bench->of.device, shape, &scratch_bytes));
        out->a = sw_max_i64(out->a, shape->m * shape->k * typed);
        out->b = sw_max_i64(out->b, shape->k * shape->n * typed);
        out->bias = sw_max_i64(out->bias, shape->bias ? shape->n * typed : 0);
        out->c = sw_max_i64(out->c, shape->m * shape->n * sw_dtype_bytes(shape->out));
        out->scratch = sw_max_i64(out->scratch, scratch_bytes);
    }
    return SW_OK;
}

static void fill(void *operand, int64_t bytes, sw_dtype type) {
    for (int64_t i = 0; i < bytes / sw_dtype_bytes(type); i++)
        sw_dtype_store(type, operand, i, (float)(i % 101) * 1e-4f);
}

static sw_status take_operands(struct sw_gemm_bench *bench) {
    struct operand_bytes bytes;
    SW_TRY(size_operands(bench, &bytes));
    const struct {
        int64_t bytes;
        void **at;
    } operands[] = {{bytes.a, &bench->a},
                    {bytes.b, &bench->b},
                    {bytes.bias, &bench->bias},
                    {bytes.c, &bench->c},
                    {bytes.scratch, &bench->scratch}};
    const int count = sizeof operands / sizeof operands[0];
    int64_t all_bytes = 0;
    for (int i = 0; i < count; i++)
        all_bytes += sw_round_up(operands[i].bytes, SW_BUFFER_ALIGN_BYTES);
    /* Each contender has operands of its own, the direct ones at most the largest of each. */
    SW_TRY(sw_bench_check_memory("operands of these products", SW_GEMM_CONTENDERS * all_bytes));
    SW_TRY(sw_arena_create("matrix products", all_bytes, false, NULL, &bench->arena));
    for (int i = 0; i < count; i++)
        SW_TRY(sw_arena_take(bench->arena, operands[i].bytes, operands[i].at));
    fill(bench->a, bytes.a, bench->of.type);
    fill(bench->b, bytes.b, bench->of.type);
    fill(bench->bias, bytes.bias, bench->of.type);
    return SW_OK;
}

/* Runs all in turn, round by round; the first only touches the memory. */
static sw_status race(struct sw_gemm_bench *bench, int product, struct sw_onednn_product *const direct[]) {
    const struct sw_gemm *shape = &bench->of.product[product].shape;
    struct sw_bench_rounds *result = &bench->result[product];
    result->rounds = (int)bench->given->rounds;
    memset(bench->c, 0, (size_t)(shape->m * shape->n * sw_dtype_bytes(shape->out)));
    for (int round = -1; round < result->rounds; round++)
        for (int who = 0; who < SW_GEMM_CONTENDERS; who++) {
            const int64_t start_ns = sw_now_ns();
            if (who == SW_GEMM_OURS)
                SW_TRY(sw_gemm(bench->of.stream, shape, bench->a, bench->b, shape->bias ? bench->bias : NULL, bench->c,
                               bench->scratch));
            else
                SW_TRY(sw_onednn_product_run(direct[who]));
            if (round >= 0)
                result->rate[who][round] = sw_gemm_flops(shape) * 1e9 / (double)sw_max_i64(1, sw_now_ns() - start_ns);
        }
    return SW_OK;
}

static sw_status measure(struct sw_gemm_bench *bench, int product) {
    const struct sw_gemm shape = sw_bench_bound_shape(&bench->of, product);
    struct sw_onednn_product *direct[SW_GEMM_CONTENDERS] = {NULL};
    sw_status status = SW_OK;
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
    SW_TRY(take_operands(bench));
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
    sw_bench_model_close(&bench->of);
    sw_arena_destroy(bench->arena);
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
