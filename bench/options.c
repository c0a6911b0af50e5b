#include "bench/options.h"

#include "core/size.h"

#include <assert.h>

enum {
    MODELS = SW_BENCH_GEMM | SW_BENCH_ATTENTION | SW_BENCH_COMPUTE,
    FIVE_ROUNDS = SW_BENCH_COPY | SW_BENCH_COMM | SW_BENCH_ATTENTION | SW_BENCH_COMPUTE,
    NINE_ROUNDS = SW_BENCH_UPDATE | SW_BENCH_GEMM,
    ALL = 255,
};

#define AT(member) .offset = offsetof(struct sw_bench_options, member)
/* clang-format off */
static const struct {
    int benches; /* that have the flag */
    struct sw_option option;
} rows[] = {
    {MODELS,
     {.name = "--model", .kind = SW_OPTION_STRING, AT(settings.model), .initial = "gpt2-124m", .value = "M",
      .what = "Hugging Face folder, or a preset of those that plan --help lists"}},
    {SW_BENCH_LOAD,
     {.name = "--model", .kind = SW_OPTION_STRING, AT(settings.model), .initial = "gpt2-355m", .value = "M",
      .what = "Hugging Face folder, or a preset: then a bf16 checkpoint of that shape is made, and removed again"}},
    {SW_BENCH_ZERO,
     {.name = "--model", .kind = SW_OPTION_STRING, AT(settings.model), .initial = SW_BENCH_MADE_MODEL, .value = "M",
      .what = "made: one of 17 million parameters with little padding on up to 8 ranks; or a Hugging Face folder, or a "
              "preset of those that plan --help lists"}},
    {SW_BENCH_LOAD,
     {.name = "--nvme", .kind = SW_OPTION_MANY, AT(nvme), .value = "DIR",
      .what = "folder for the store; repeatable, then striped; default: the current folder"}},
    {SW_BENCH_COPY,
     {.name = "--size", .kind = SW_OPTION_MANY, AT(sizes), .value = "SIZE",
      .what = "size of a copy; default: 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB"}},
    {SW_BENCH_COMM,
     {.name = "--size", .kind = SW_OPTION_MANY, AT(sizes), .value = "SIZE",
      .what = "size of a vector, all ranks' shares together; default: 64KiB 1MiB 8MiB 64MiB"}},
    {MODELS,
     {.name = "--seq", .kind = SW_OPTION_INT, AT(settings.seq), .initial = "auto", .value = "tokens",
      .what = "tokens of a sequence", .int_min = 1, .int_max = 1 << 22, .allow_auto = true}},
    {MODELS,
     {.name = "--micro-batch", .kind = SW_OPTION_INT, AT(settings.micro_batch), .initial = "auto", .value = "N",
      .what = "sequences computed at once; auto, as of train: about 4,096 tokens", .int_min = 1, .int_max = 1 << 20,
      .allow_auto = true}},
    {MODELS,
     {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .initial = "auto",
      .choices = "auto|bf16|fp16|fp32|tf32", .what = "type of the operands; auto: bf16 where the device has it"}},
    {SW_BENCH_ZERO,
     {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .initial = "auto",
      .choices = "auto|bf16|fp16|fp32", .what = "type of weights and gradients; auto: bf16 where the device has it"}},
    {SW_BENCH_UPDATE, /* all, then the types in the order of the bench */
     {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .initial = "all",
      .choices = "all|bf16|fp16|fp32", .what = "type of weights and gradients"}},
    {SW_BENCH_COMM, /* in the order of sw_dtype */
     {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .initial = "bf16",
      .choices = "fp32|bf16|fp16", .what = "type of the elements that are added"}},
    {SW_BENCH_UPDATE,
     {.name = "--chunk-grains", .kind = SW_OPTION_INT, AT(chunk_grains), .initial = "16", .value = "N",
      .what = "grains (16,384 parameters) of one update, as of train", .int_min = 1,
      .int_max = SW_BENCH_MOST_CHUNK_GRAINS}},
    {SW_BENCH_COMM,
     {.name = "--staging", .kind = SW_OPTION_SIZE, AT(staging_bytes), .initial = "16MiB", .value = "SIZE",
      .int_min = SW_MIB, .what = "memory through which reductions pass"}},
    {ALL,
     {.name = "--device", .kind = SW_OPTION_CHOICE, AT(settings.device), .initial = "auto", .choices = "auto|cpu|cuda",
      .what = "device that computes; auto: CUDA where there is one, else the CPU"}},
    {ALL,
     {.name = "--threads", .kind = SW_OPTION_INT, AT(settings.threads), .initial = "auto", .value = "N",
      .what = "threads of the CPU device and of its peers; auto: all cores", .int_min = 1, .int_max = 4096,
      .allow_auto = true}},
    {FIVE_ROUNDS,
     {.name = "--rounds", .kind = SW_OPTION_INT, AT(rounds), .initial = "5", .value = "N",
      .what = "times that each is measured, in turn; medians are shown", .int_min = 1,
      .int_max = SW_BENCH_MAX_ROUNDS}},
    {NINE_ROUNDS,
     {.name = "--rounds", .kind = SW_OPTION_INT, AT(rounds), .initial = "9", .value = "N",
      .what = "times that each is measured, in turn; medians are shown", .int_min = 1,
      .int_max = SW_BENCH_MAX_ROUNDS}},
    {SW_BENCH_LOAD,
     {.name = "--rounds", .kind = SW_OPTION_INT, AT(rounds), .initial = "3", .value = "N",
      .what = "times that each is measured, in turn; medians are shown", .int_min = 1,
      .int_max = SW_BENCH_MAX_ROUNDS}},
    {SW_BENCH_LOAD,
     {.name = "--allow-buffered", .kind = SW_OPTION_FLAG, AT(settings.allow_buffered),
      .what = "accept a file system without direct I/O"}},
    {ALL, {.name = "--json", .kind = SW_OPTION_FLAG, AT(settings.json), .what = "one object on standard output"}},
};
/* clang-format on */
static_assert((int)SW_F32 == 0 && (int)SW_BF16 == 1 && (int)SW_F16 == 2,
              "comm's --precision has the order of sw_dtype");

const struct sw_bench_sizes sw_bench_copy_sizes = {
    "a multiple of 32KiB up to 64MiB",
    32 * SW_KIB,
    64 * SW_MIB,
    32 * SW_KIB, /* a grain's weights in bf16 */
    6,
    {64 * SW_KIB, 256 * SW_KIB, SW_MIB, 4 * SW_MIB, 16 * SW_MIB, 64 * SW_MIB}};
const struct sw_bench_sizes sw_bench_comm_sizes = {
    "from 4KiB to 256MiB", 4 * SW_KIB, 256 * SW_MIB, 1, 4, {64 * SW_KIB, SW_MIB, 8 * SW_MIB, 64 * SW_MIB}};

int sw_bench_size_count(const struct sw_bench_options *given, const struct sw_bench_sizes *sizes) {
    return given->sizes.count > 0 ? given->sizes.count : sizes->usual_count;
}

sw_status sw_bench_size_at(const struct sw_bench_options *given, const struct sw_bench_sizes *sizes, int which,
                           int64_t *out_bytes) {
    if (given->sizes.count == 0) {
        *out_bytes = sizes->usual_bytes[which];
        return SW_OK;
    }
    const char *text = given->sizes.items[which];
    SW_TRY(sw_parse_size(text, out_bytes));
    if (*out_bytes >= sizes->least_bytes && *out_bytes <= sizes->most_bytes && *out_bytes % sizes->multiple_bytes == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "--size %s is not %s", text, sizes->allowed);
}

static sw_status check_sizes(const struct sw_bench_options *given, const struct sw_bench_sizes *sizes) {
    int64_t bytes;
    for (int i = 0; i < sw_bench_size_count(given, sizes); i++)
        SW_TRY(sw_bench_size_at(given, sizes, i, &bytes));
    return SW_OK;
}

static sw_status check_copy(const void *given) {
    return check_sizes(given, &sw_bench_copy_sizes);
}

static sw_status check_comm(const void *given) {
    return check_sizes(given, &sw_bench_comm_sizes);
}

void sw_bench_line(int bench, const char *command, const char *summary, struct sw_bench_line *out) {
    out->line = (struct sw_command_line){.command = command, .summary = summary, .options = out->options};
    if (bench == SW_BENCH_COPY)
        out->line.check = check_copy;
    if (bench == SW_BENCH_COMM)
        out->line.check = check_comm;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if ((rows[i].benches & bench) != 0) {
            assert(out->line.option_count < SW_BENCH_MAX_FLAGS);
            out->options[out->line.option_count++] = rows[i].option;
        }
}
