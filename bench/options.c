#include "bench/options.h"

#include "core/size.h"

#include <assert.h>
#include <stdlib.h>

enum {
    PASSES = SW_BENCH_GEMM | SW_BENCH_ATTENTION | SW_BENCH_COMPUTE,
    MODELS = PASSES | SW_BENCH_MUON,
    FIVE_ROUNDS = SW_BENCH_EXPERTS | SW_BENCH_COPY | SW_BENCH_COMM | SW_BENCH_ATTENTION | SW_BENCH_COMPUTE,
    ALONE = MODELS | SW_BENCH_EXPERTS | SW_BENCH_COPY | SW_BENCH_UPDATE | SW_BENCH_LOAD,
    NINE_ROUNDS = SW_BENCH_UPDATE | SW_BENCH_GEMM | SW_BENCH_MUON,
    ALL = ALONE | SW_BENCH_COMM | SW_BENCH_ZERO,
};

/* Headings in --help. Rows stand in the order in which --help prints them: what most people need comes first. */
#define WORKLOAD "Workload"
#define DRIVES "Drives"
#define MEASUREMENT "Measurement"
#define DEVICE "Device"
#define OUTPUT SW_OPTION_OUTPUT

#define AT(member) .offset = offsetof(struct sw_bench_options, member)
/* One member a line would make the table 250 lines long. */
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "--model", .kind = SW_OPTION_STRING, AT(settings.model), .commands = MODELS, .group = WORKLOAD,
     .initial = "gpt2-124m", .value = "M",
     .what = "Hugging Face folder, or the name of a preset (listed below)"},
    {.name = "--model", .kind = SW_OPTION_STRING, AT(settings.model), .commands = SW_BENCH_LOAD, .group = WORKLOAD,
     .initial = "gpt2-355m", .value = "M",
     .what = "Hugging Face folder, or the name of a preset (listed below), of whose shape a bf16 checkpoint is "
             "made, and removed at the end"},
    {.name = "--model", .kind = SW_OPTION_STRING, AT(settings.model), .commands = SW_BENCH_ZERO, .group = WORKLOAD,
     .initial = SW_BENCH_MADE_MODEL, .value = "M",
     .what = "made: 8.6 million parameters, on several nodes 25, in tensor groups of 2 or 4 ranks 46 or 92, with little padding on "
             "up to 8 ranks; or a Hugging Face folder, or the name of a preset (listed below)"},
    {.name = "--tensor", .kind = SW_OPTION_INT, AT(settings.tensor), .commands = SW_BENCH_ZERO, .group = WORKLOAD,
     .initial = "1", .value = "N", .int_min = 1, .int_max = SW_SETTINGS_MOST_RANKS,
     .what = "cut layers for groups of N neighbouring ranks, and measure every stage also with partitioned activations; made is "
             "for 2 or 4"},
    {.name = "--pipeline", .kind = SW_OPTION_INT, AT(settings.pipeline), .commands = SW_BENCH_ZERO, .group = WORKLOAD,
     .initial = "1", .value = "N", .int_min = 1, .int_max = SW_MOST_STAGES,
     .what = "give the layers to N stages of consecutive ranks, through which 2 N micro-batches pass; --tensor and ZeRO are "
             "within each stage, without partitioned activations"},
    {.name = "--recompute", .kind = SW_OPTION_CHOICE, AT(settings.recompute), .commands = SW_BENCH_ZERO,
     .group = WORKLOAD, .initial = "auto", .choices = "auto|all|none",
     .what = "blocks that the backward pass computes again; auto: with --tensor all, else as many as memory requires"},
    {.name = "--ranks-per-node", .kind = SW_OPTION_INT, AT(settings.ranks_per_node), .commands = SW_BENCH_ZERO,
     .group = WORKLOAD, .initial = "auto", .value = "N", .int_min = 1, .int_max = SW_SETTINGS_MOST_RANKS,
     .allow_auto = true, .what = "count every N ranks as a node; auto: those of a machine"},
    {.name = "--size", .kind = SW_OPTION_MANY, AT(sizes), .commands = SW_BENCH_COPY, .group = WORKLOAD,
     .value = "SIZE",
     .what = "size of a copy; default: 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB"},
    {.name = "--size", .kind = SW_OPTION_MANY, AT(sizes), .commands = SW_BENCH_COMM, .group = WORKLOAD,
     .value = "SIZE",
     .what = "size of a vector, all ranks' shares together; default: 64KiB 1MiB 8MiB 64MiB"},
    {.name = "--seq", .kind = SW_OPTION_INT, AT(settings.seq), .commands = MODELS, .group = WORKLOAD,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = 1 << 22, .allow_auto = true,
     .what = "tokens of a sequence; auto: 1024, or fewer if the model has fewer positions"},
    {.name = "--micro-batch", .kind = SW_OPTION_INT, AT(settings.micro_batch), .commands = PASSES, .group = WORKLOAD,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = 1 << 20, .allow_auto = true,
     .what = "sequences computed at once; auto: as many as hold 4096 tokens"},
    {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .commands = PASSES, .group = WORKLOAD,
     .initial = "auto", .choices = "auto|bf16|fp16|fp32|tf32",
     .what = "type of the operands; tf32: fp32, which a GPU multiplies as TF32; auto: bf16 if the device has it"},
    {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .commands = SW_BENCH_ZERO,
     .group = WORKLOAD, .initial = "auto", .choices = "auto|bf16|fp16|fp32",
     .what = "type of weights and gradients; auto: bf16 if the device has it"},
    /* Choices stand in the order of types[] in kernels/update.c, after all. */
    {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .commands = SW_BENCH_UPDATE,
     .group = WORKLOAD, .initial = "all", .choices = "all|bf16|fp16|fp32",
     .what = "type of weights and gradients"},
    /* Choices stand in the order of sw_dtype. */
    {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .commands = SW_BENCH_COMM,
     .group = WORKLOAD, .initial = "bf16", .choices = "fp32|bf16|fp16",
     .what = "type of the elements that are added"},
    {.name = "--experts", .kind = SW_OPTION_INT, AT(experts), .commands = SW_BENCH_EXPERTS, .group = WORKLOAD,
     .initial = "32", .value = "N", .int_min = 1, .int_max = SW_MOST_EXPERTS, .what = "experts of a layer"},
    {.name = "--chosen", .kind = SW_OPTION_INT, AT(chosen), .commands = SW_BENCH_EXPERTS, .group = WORKLOAD,
     .initial = "8", .value = "N", .int_min = 1, .int_max = SW_MOST_CHOSEN, .what = "experts that each token is sent to"},
    {.name = "--hidden", .kind = SW_OPTION_INT, AT(hidden), .commands = SW_BENCH_EXPERTS, .group = WORKLOAD,
     .initial = "2048", .value = "N", .int_min = 1, .int_max = 1 << 20, .what = "elements of a token's row"},
    {.name = "--inner", .kind = SW_OPTION_INT, AT(inner), .commands = SW_BENCH_EXPERTS, .group = WORKLOAD,
     .initial = "768", .value = "N", .int_min = 1, .int_max = 1 << 20,
     .what = "inner width of an expert, whose gate and up matrices are one of twice that width"},
    {.name = "--tokens", .kind = SW_OPTION_INT, AT(tokens), .commands = SW_BENCH_EXPERTS, .group = WORKLOAD,
     .initial = "2048", .value = "N", .int_min = 1, .int_max = 1 << 24, .what = "tokens of a micro-batch"},
    /* Choices stand in the order of sw_dtype. */
    {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(settings.precision), .commands = SW_BENCH_EXPERTS,
     .group = WORKLOAD, .initial = "bf16", .choices = "fp32|bf16|fp16", .what = "type of the operands"},
    {.name = "--optimizer-state", .kind = SW_OPTION_CHOICE, AT(settings.optimizer_state),
     .commands = SW_BENCH_UPDATE, .group = WORKLOAD, .initial = "fp32", .choices = "fp32|bf16|8bit",
     .what = "form of AdamW's moments; bf16 and 8bit are measured against fp32"},
    {.name = "--rounding", .kind = SW_OPTION_CHOICE, AT(settings.rounding), .commands = SW_BENCH_UPDATE,
     .group = WORKLOAD, .initial = "auto", .choices = "auto|nearest|stochastic",
     .what = "rounding of moments in bf16 or 8bit; auto: stochastic"},
    {.name = "--chunk-grains", .kind = SW_OPTION_INT, AT(chunk_grains), .commands = SW_BENCH_UPDATE,
     .group = WORKLOAD, .initial = "16", .value = "N", .int_min = 1, .int_max = SW_BENCH_MOST_CHUNK_GRAINS,
     .what = "grains (16,384 parameters) that one update covers, as in train --chunk-grains"},

    {.name = "--nvme", .kind = SW_OPTION_MANY, AT(nvme), .commands = SW_BENCH_LOAD, .group = DRIVES, .value = "DIR",
     .what = "folder for the store; repeat to stripe over drives; default: the current folder"},
    {.name = "--allow-buffered", .kind = SW_OPTION_FLAG, AT(settings.allow_buffered), .commands = SW_BENCH_LOAD,
     .group = DRIVES,
     .what = "accept a file system without O_DIRECT; data then goes through the page cache"},

    {.name = "--rounds", .kind = SW_OPTION_INT, AT(rounds), .commands = FIVE_ROUNDS, .group = MEASUREMENT,
     .initial = "5", .value = "N", .int_min = 1, .int_max = SW_BENCH_MAX_ROUNDS,
     .what = "rounds; each measures every contender in turn, and medians are shown"},
    {.name = "--rounds", .kind = SW_OPTION_INT, AT(rounds), .commands = NINE_ROUNDS, .group = MEASUREMENT,
     .initial = "9", .value = "N", .int_min = 1, .int_max = SW_BENCH_MAX_ROUNDS,
     .what = "rounds; each measures every contender in turn, and medians are shown"},
    {.name = "--rounds", .kind = SW_OPTION_INT, AT(rounds), .commands = SW_BENCH_LOAD, .group = MEASUREMENT,
     .initial = "3", .value = "N", .int_min = 1, .int_max = SW_BENCH_MAX_ROUNDS,
     .what = "rounds; each measures every contender in turn, and medians are shown"},

    {.name = "--device", .kind = SW_OPTION_CHOICE, AT(settings.device), .commands = ALL, .group = DEVICE,
     .initial = "auto", .choices = "auto|cpu|cuda",
     .what = "device that computes; auto: the CUDA GPU, or the CPU where there is no GPU"},
    {.name = "--threads", .kind = SW_OPTION_INT, AT(settings.threads), .commands = ALONE, .group = DEVICE,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = 4096, .allow_auto = true,
     .what = "threads of the CPU device and of its peers; auto: all cores"},
    {.name = "--threads", .kind = SW_OPTION_INT, AT(settings.threads), .commands = SW_BENCH_COMM, .group = DEVICE,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = 4096, .allow_auto = true,
     .what = "CPU threads of each rank; auto: 1"},
    {.name = "--threads", .kind = SW_OPTION_INT, AT(settings.threads), .commands = SW_BENCH_ZERO, .group = DEVICE,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = 4096, .allow_auto = true,
     .what = "CPU threads of each rank; auto: all cores, divided among the ranks of the machine"},

    {.name = "--json", .kind = SW_OPTION_FLAG, AT(settings.json), .commands = ALL, .group = OUTPUT,
     .what = "print one JSON object on standard output"},
};
/* clang-format on */
enum { OPTION_COUNT = sizeof options / sizeof options[0] };
static_assert((int)SW_F32 == 0 && (int)SW_BF16 == 1 && (int)SW_F16 == 2,
              "--precision of comm and of experts has the order of sw_dtype");

const struct sw_bench_sizes sw_bench_copy_sizes = {
    "a multiple of 32KiB up to 64MiB",
    32 * SW_KIB,
    64 * SW_MIB,
    32 * SW_KIB, /* a grain's weights in bf16 */
    6,
    {64 * SW_KIB, 256 * SW_KIB, SW_MIB, 4 * SW_MIB, 16 * SW_MIB, 64 * SW_MIB}};
const struct sw_bench_sizes sw_bench_comm_sizes = {
    "from 4KiB to 256MiB", 4 * SW_KIB, 256 * SW_MIB, 1, 4, {64 * SW_KIB, SW_MIB, 8 * SW_MIB, 64 * SW_MIB}};

static sw_status parse_size(const char *text, const struct sw_bench_sizes *sizes, int64_t *out_bytes) {
    SW_TRY(sw_parse_size(text, out_bytes));
    if (*out_bytes >= sizes->least_bytes && *out_bytes <= sizes->most_bytes && *out_bytes % sizes->multiple_bytes == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "--size %s is not %s", text, sizes->allowed);
}

static sw_status check_sizes(const struct sw_bench_options *given, const struct sw_bench_sizes *sizes) {
    int64_t bytes;
    for (int i = 0; i < given->sizes.count; i++)
        SW_TRY(parse_size(given->sizes.items[i], sizes, &bytes));
    return SW_OK;
}

sw_status sw_bench_size_rows(const struct sw_bench_options *given, const struct sw_bench_sizes *sizes,
                             struct sw_bench_size_row **out, int *out_count) {
    const bool chosen = given->sizes.count > 0;
    *out_count = chosen ? given->sizes.count : sizes->usual_count;
    *out = calloc((size_t)*out_count, sizeof **out);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the rates of %d sizes", *out_count);
    for (int i = 0; i < *out_count; i++) {
        struct sw_bench_size_row *row = &(*out)[i];
        row->rounds.rounds = (int)given->rounds;
        row->bytes = sizes->usual_bytes[chosen ? 0 : i];
        if (chosen)
            SW_TRY(parse_size(given->sizes.items[i], sizes, &row->bytes));
    }
    return SW_OK;
}

static sw_status check_copy(const void *given) {
    return check_sizes(given, &sw_bench_copy_sizes);
}

static sw_status check_comm(const void *given) {
    return check_sizes(given, &sw_bench_comm_sizes);
}

/* The members that all lines of this table have alike. */
#define LINE(name, bit_) .command = "bench " name, .bit = (bit_), .options = options, .option_count = OPTION_COUNT
const struct sw_command_line sw_bench_copy_line = {
    LINE("copy", SW_BENCH_COPY), .summary = "Measures copies between device and host, against plain memory copies.",
    .check = check_copy,
    .examples = {"spillway bench copy", "spillway bench copy --size 1MiB 16MiB --rounds 9",
                 "spillway bench copy --device cpu --threads 2 --json"}};
const struct sw_command_line sw_bench_comm_line = {
    LINE("comm", SW_BENCH_COMM),
    .summary = "Measures the collectives of ranks, against plain sends of the same bytes. mpirun starts the ranks.",
    .check = check_comm,
    .examples = {"mpirun -n 2 spillway bench comm", "mpirun -n 2 spillway bench comm --size 1MiB 8MiB --precision fp32",
                 "mpirun -n 2 spillway bench comm --device cpu --json"}};
const struct sw_command_line sw_bench_update_line = {
    LINE("update", SW_BENCH_UPDATE),
    .summary = "Measures the fused optimizer update, against the same memory traffic without arithmetic.",
    .examples = {"spillway bench update", "spillway bench update --precision bf16 --optimizer-state 8bit",
                 "spillway bench update --device cpu --threads 2 --json"}};
const struct sw_command_line sw_bench_gemm_line = {
    LINE("gemm", SW_BENCH_GEMM),
    .summary = "Measures a model's matrix products; on the CPU, against direct calls of oneDNN.",
    .more_help = sw_settings_help_presets,
    .examples = {"spillway bench gemm", "spillway bench gemm --model model --seq 32",
                 "spillway bench gemm --model gpt2-tiny --device cpu --precision fp32 --json"}};
const struct sw_command_line sw_bench_muon_line = {
    LINE("muon", SW_BENCH_MUON),
    .summary = "Measures Muon's update of a model's matrices; on the CPU, against products of their sides by oneDNN.",
    .more_help = sw_settings_help_presets,
    .examples = {"spillway bench muon", "spillway bench muon --model model --threads 1",
                 "spillway bench muon --model gpt2-tiny --device cpu --rounds 3 --json"}};
const struct sw_command_line sw_bench_experts_line = {
    LINE("experts", SW_BENCH_EXPERTS),
    .summary = "Measures the grouped products of a mixture of experts, against products by one matrix.",
    .examples = {"spillway bench experts", "spillway bench experts --experts 8 --chosen 2 --hidden 1024 --inner 3584",
                 "spillway bench experts --device cpu --precision fp32 --json"}};
const struct sw_command_line sw_bench_attention_line = {
    LINE("attention", SW_BENCH_ATTENTION),
    .summary =
        "Measures attention of a micro-batch, forward and backward, against the matrix products of its heads alone.",
    .more_help = sw_settings_help_presets,
    .examples = {"spillway bench attention", "spillway bench attention --model model --seq 32 --micro-batch 4",
                 "spillway bench attention --model gpt2-tiny --precision fp32 --json"}};
const struct sw_command_line sw_bench_compute_line = {
    LINE("compute", SW_BENCH_COMPUTE),
    .summary =
        "Measures a micro-batch, forward and backward, against its matrix products alone by the vendor's library.",
    .more_help = sw_settings_help_presets,
    .examples = {"spillway bench compute", "spillway bench compute --model model --seq 32 --micro-batch 4",
                 "spillway bench compute --model gpt2-tiny --precision fp32 --json"}};
const struct sw_command_line sw_bench_load_line = {
    LINE("load", SW_BENCH_LOAD),
    .summary = "Loads a checkpoint into a new store, against the drive read and written at once.",
    .more_help = sw_settings_help_presets,
    .examples = {"spillway bench load", "spillway bench load --model model --nvme . --rounds 5",
                 "spillway bench load --model gpt2-tiny --device cpu --json"}};
const struct sw_command_line sw_bench_zero_line = {
    LINE("zero", SW_BENCH_ZERO),
    .summary = "Counts what a rank holds and sends at each ZeRO stage, against the formulas. mpirun starts the ranks.",
    .more_help = sw_settings_help_presets,
    .examples = {"mpirun -n 2 spillway bench zero", "mpirun -n 4 spillway bench zero --pipeline 2",
                 "mpirun -n 2 spillway bench zero --tensor 2 --model gpt2-tiny --json"}};
