/* The matrix products of a model's training: those of a block and of the head, forward and backward.
 *
 * The bounds: oneDNN called directly with the same row-major operands, and oneDNN with operands that already lie in the
 * layouts that it chose, which a training step would have to make first. */
#include "bench/gemm.h"

#include "bench/commands.h"
#include "bench/onednn.h"
#include "bench/options.h"
#include "core/clock.h"
#include "core/machine.h"
#include "core/size.h"
#include "train/commands.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct sw_gemm_options, member)
static const struct sw_option options[] = {
    {.name = "--model",
     .kind = SW_OPTION_STRING,
     .offset = AT(settings.model),
     .initial = "gpt2-124m",
     .value = "M",
     .what = "Hugging Face folder, or a preset of those that plan --help lists"},
    {.name = "--seq",
     .kind = SW_OPTION_INT,
     .offset = AT(settings.seq),
     .initial = "auto",
     .value = "tokens",
     .what = "tokens of a sequence",
     .int_min = 1,
     .int_max = 1 << 22,
     .allow_auto = true},
    {.name = "--micro-batch",
     .kind = SW_OPTION_INT,
     .offset = AT(settings.micro_batch),
     .initial = "auto",
     .value = "N",
     .what = "sequences computed at once; auto, as of train: about 4,096 tokens",
     .int_min = 1,
     .int_max = 1 << 20,
     .allow_auto = true},
    {.name = "--precision",
     .kind = SW_OPTION_CHOICE,
     .offset = AT(settings.precision),
     .initial = "auto",
     .choices = "auto|bf16|fp16|fp32",
     .what = "type of the operands; auto: bf16 where the device has it"},
    SW_BENCH_THREADS(AT(settings.threads)),
    SW_BENCH_ROUNDS(AT(rounds), "9"),
    SW_BENCH_JSON(AT(settings.json)),
};
static const struct sw_command_line line = {.command = "bench gemm",
                                            .summary = "the matrix products of a model, beside oneDNN called directly",
                                            .options = options,
                                            .option_count = sizeof options / sizeof options[0]};

static sw_status load_model(struct sw_gemm_bench *bench) {
    struct sw_settings *settings = &bench->settings;
    settings->batch_tokens = SW_OPTION_AUTO;
    SW_TRY(sw_config_load(settings->model, &bench->config));
    SW_TRY(sw_bench_open_device(settings->threads, &bench->device));
    const struct sw_device_info info = sw_device_info(bench->device);
    SW_TRY(sw_settings_resolve(settings, &bench->config, &info));
    bench->type = bench->bound_type = sw_settings_type(settings);
    const struct sw_model_shape shape = {.type = bench->type, .batch = settings->micro_batch, .seq = settings->seq};
    SW_TRY(sw_model_create(&bench->config, &shape, bench->device, &bench->model));
    bench->count = sw_model_products(bench->model, bench->product);
    return sw_stream_open(bench->device, &bench->stream);
}

/* The largest of each operand. */
struct operand_bytes {
    int64_t a, b, bias, c, scratch;
};

static sw_status size_operands(const struct sw_gemm_bench *bench, struct operand_bytes *out) {
    const int64_t typed = sw_dtype_bytes(bench->type);
    *out = (struct operand_bytes){0};
    for (int i = 0; i < bench->count; i++) {
        const struct sw_gemm *shape = &bench->product[i].shape;
        int64_t scratch_bytes;
        SW_TRY(sw_device_prepare_gemm(bench->device, shape, &scratch_bytes));
        out->a = sw_max_i64(out->a, shape->m * shape->k * typed);
        out->b = sw_max_i64(out->b, shape->k * shape->n * typed);
        out->bias = sw_max_i64(out->bias, shape->bias ? shape->n * typed : 0);
        out->c = sw_max_i64(out->c, shape->m * shape->n * sw_dtype_bytes(shape->out));
        out->scratch = sw_max_i64(out->scratch, scratch_bytes);
    }
    return SW_OK;
}

/* Each contender has operands of its own, the direct ones at most the largest of each. */
static sw_status check_memory(int64_t operand_bytes) {
    struct sw_machine machine;
    char need[SW_SIZE_CHARS], available[SW_SIZE_CHARS];
    SW_TRY(sw_machine_read(&machine));
    if (operand_bytes <= machine.available_bytes / SW_GEMM_CONTENDERS)
        return SW_OK;
    return sw_fail(SW_ERR_NOMEM,
                   "operands of these products need %s, and %s are available; a smaller --micro-batch, --seq or model "
                   "needs less",
                   sw_format_size(SW_GEMM_CONTENDERS * operand_bytes, need),
                   sw_format_size(machine.available_bytes, available));
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
    SW_TRY(check_memory(all_bytes));
    SW_TRY(sw_arena_create("matrix products", all_bytes, false, NULL, &bench->arena));
    for (int i = 0; i < count; i++)
        SW_TRY(sw_arena_take(bench->arena, operands[i].bytes, operands[i].at));
    fill(bench->a, bytes.a, bench->type);
    fill(bench->b, bytes.b, bench->type);
    fill(bench->bias, bytes.bias, bench->type);
    return SW_OK;
}

static struct sw_gemm bound_shape(const struct sw_gemm_bench *bench, int product) {
    struct sw_gemm shape = bench->product[product].shape;
    if (bench->bound_type != bench->type)
        shape.in = shape.out = bench->bound_type;
    return shape;
}

/* What oneDNN cannot multiply on this CPU, ours widens; a user of oneDNN alone would take fp32. */
static sw_status choose_bound_type(struct sw_gemm_bench *bench) {
    struct sw_onednn_product *direct;
    const sw_status status = sw_onednn_product_open(&bench->product[0].shape, false, &direct);
    sw_onednn_product_close(direct);
    if (status != SW_ERR_UNSUPPORTED || bench->type == SW_F32)
        return status;
    sw_error_clear();
    bench->bound_type = SW_F32;
    return SW_OK;
}

/* Runs all in turn, round by round; the first only touches the memory. */
static sw_status race(struct sw_gemm_bench *bench, int product, struct sw_onednn_product *const direct[]) {
    const struct sw_gemm *shape = &bench->product[product].shape;
    struct sw_bench_rounds *result = &bench->result[product];
    result->rounds = (int)bench->given->rounds;
    memset(bench->c, 0, (size_t)(shape->m * shape->n * sw_dtype_bytes(shape->out)));
    for (int round = -1; round < result->rounds; round++)
        for (int who = 0; who < SW_GEMM_CONTENDERS; who++) {
            const int64_t start_ns = sw_now_ns();
            if (who == SW_GEMM_OURS)
                SW_TRY(sw_gemm(bench->stream, shape, bench->a, bench->b, shape->bias ? bench->bias : NULL, bench->c,
                               bench->scratch));
            else
                SW_TRY(sw_onednn_product_run(direct[who]));
            if (round >= 0)
                result->rate[who][round] = sw_gemm_flops(shape) * 1e9 / (double)sw_max_i64(1, sw_now_ns() - start_ns);
        }
    return SW_OK;
}

static sw_status measure(struct sw_gemm_bench *bench, int product) {
    const struct sw_gemm shape = bound_shape(bench, product);
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
    SW_TRY(load_model(bench));
    /* oneDNN reads OpenMP's threads when called directly. */
    omp_set_dynamic(0);
    omp_set_num_threads(sw_device_info(bench->device).threads);
    SW_TRY(take_operands(bench));
    SW_TRY(choose_bound_type(bench));
    const bool json = bench->settings.json;
    if (!json)
        sw_gemm_print_head(bench);
    for (int i = 0; i < bench->count; i++) {
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
    if (bench->stream != NULL)
        sw_stream_close(bench->stream);
    sw_model_destroy(bench->model);
    if (bench->device != NULL)
        sw_device_close(bench->device);
    sw_arena_destroy(bench->arena);
}

int sw_bench_gemm(int argc, char **argv) {
    struct sw_gemm_options given = {0};
    int code;
    if (sw_command_parse(&line, argc, argv, &given, &code)) {
        struct sw_gemm_bench bench = {.given = &given, .settings = given.settings};
        const sw_status status = run(&bench);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail(line.command, status);
        release(&bench);
    }
    sw_options_release(&line, &given);
    return code;
}
