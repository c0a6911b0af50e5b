/* Muon's update of each shape of a model's matrices, against a product of the same sides by oneDNN called directly,
 * with operands in its own layouts. The rate counts the operations of the iteration, half of each symmetric product. */
#include "kernels/muon.h"
#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/log.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>

enum { OURS, PRODUCT, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");
enum { GRADS, RECORDS, MUON_SCRATCH, AREAS };
enum { MOST_SHAPES = 32 };

/* The matrices of one shape. */
struct shape_row {
    int64_t outputs, inputs, times;
    double seconds;                /* of one matrix */
    struct sw_bench_rounds rounds; /* floating-point operations a second */
};
/* All matrices of the model, each of which is updated once a step. */
struct total_row {
    int64_t matrices, tokens; /* tokens: so many have as many operations in a training step */
    double seconds, flops, flops_per_s, of_product;
};

struct muon_bench {
    const struct sw_bench_options *given;
    struct sw_settings settings;
    struct sw_bench_model of;
    struct sw_bench_products products;
    struct sw_memory *memory; /* holds the areas */
    void *area[AREAS];
    int count;
    struct shape_row row[MOST_SHAPES];
};

static struct sw_muon_tensor tensor_of(const struct shape_row *row) {
    return (struct sw_muon_tensor){
        .outputs = row->outputs, .inputs = row->inputs, .parts = 1, .part_end = {row->outputs}};
}

static double flops_of(const struct shape_row *row) {
    const struct sw_muon_tensor tensor = tensor_of(row);
    return sw_muon_flops(&tensor, 1);
}

static int64_t grains_of(const struct shape_row *row) {
    return sw_div_up(row->outputs * row->inputs, SW_GRAIN_ELEMS);
}

/* Counts a matrix. Shapes beyond the most would be those of a model with other sides in each layer. */
static void add_shape(struct muon_bench *b, int64_t outputs, int64_t inputs) {
    int i = 0;
    while (i < b->count && (b->row[i].outputs != outputs || b->row[i].inputs != inputs))
        i++;
    if (i == MOST_SHAPES)
        return;
    b->row[i].outputs = outputs;
    b->row[i].inputs = inputs;
    b->row[i].times++;
    b->count = i < b->count ? b->count : i + 1;
}

static void list_shapes(struct muon_bench *b) {
    const struct sw_units *units = sw_model_get_units(b->of.job.model);
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].muon_count; t++) {
            const struct sw_muon_tensor *tensor = &units->unit[u].muon[t];
            for (int part = 0; part < tensor->parts; part++)
                add_shape(b, tensor->part_end[part] - (part > 0 ? tensor->part_end[part - 1] : 0), tensor->inputs);
        }
}

/* The first area is filled with normal numbers; zeros are numbers as good as any for momenta and masters. */
static sw_status take_areas(struct muon_bench *b) {
    int64_t bytes[AREAS] = {0};
    for (int i = 0; i < b->count; i++) {
        const struct sw_muon_tensor tensor = tensor_of(&b->row[i]);
        const int64_t grains = grains_of(&b->row[i]);
        bytes[GRADS] = sw_max_i64(bytes[GRADS], grains * SW_GRAIN_ELEMS * sw_dtype_bytes(b->of.type));
        bytes[RECORDS] = sw_max_i64(bytes[RECORDS], grains * sw_optimizer_muon_bytes(SW_OPTIMIZER_MUON));
        bytes[MUON_SCRATCH] = sw_max_i64(bytes[MUON_SCRATCH], sw_muon_scratch_bytes(&tensor, 1));
    }
    if (sw_device_info(b->of.device).host_memory)
        SW_TRY(sw_bench_check_memory("a matrix and its products", sw_bench_areas_bytes(bytes, AREAS), "model"));
    SW_TRY(sw_bench_products_open(b->of.device, b->of.product, 1, &b->products));
    SW_TRY(sw_bench_areas_open(b->of.device, bytes, AREAS, &b->memory, b->area));
    SW_TRY(sw_bench_fill(&b->products, SW_F32, b->area[RECORDS], bytes[RECORDS]));
    return sw_bench_fill(&b->products, b->of.type, b->area[GRADS], bytes[GRADS]);
}

struct update {
    const struct muon_bench *bench;
    const struct shape_row *row;
};

static sw_status update(void *context) {
    const struct update *update = context;
    const struct muon_bench *b = update->bench;
    const struct sw_muon_tensor tensor = tensor_of(update->row);
    const struct sw_muon muon = {.lr = 1e-6, .momentum = 0.95, .grad_scale = 1.0f};
    return sw_update_muon(b->products.stream, &(struct sw_update_muon){.type = b->of.type,
                                                                       .muon = &muon,
                                                                       .format = SW_OPTIMIZER_MUON,
                                                                       .grains = grains_of(update->row),
                                                                       .tensor = &tensor,
                                                                       .tensors = 1,
                                                                       .grads = b->area[GRADS],
                                                                       .records = b->area[RECORDS],
                                                                       .scratch = b->area[MUON_SCRATCH]});
}

/* Returns the product of a symmetric matrix by X, the largest of an iteration. */
static struct sw_gemm product_of(const struct muon_bench *b, const struct shape_row *row) {
    const int64_t least = sw_min_i64(row->outputs, row->inputs), most = sw_max_i64(row->outputs, row->inputs);
    return (struct sw_gemm){.m = least, .n = most, .k = least, .in = b->of.bound_type, .out = b->of.bound_type};
}

/* Runs both in turn, round by round. The round before the first only touches the memory. */
static sw_status race(struct muon_bench *b, struct shape_row *row, struct sw_onednn_product *direct) {
    const struct sw_gemm shape = product_of(b, row);
    row->rounds.rounds = (int)b->given->rounds;
    row->rounds.rate[PRODUCT][0] = NAN;
    for (int round = -1; round < row->rounds.rounds; round++) {
        double seconds, product_s = NAN;
        SW_TRY(sw_bench_time(&b->products, update, &(struct update){.bench = b, .row = row}, &seconds));
        if (direct != NULL)
            SW_TRY(sw_onednn_product_time(direct, &product_s));
        if (round < 0)
            continue;
        row->rounds.rate[OURS][round] = flops_of(row) / seconds;
        row->rounds.rate[PRODUCT][round] = sw_gemm_flops(&shape) / product_s;
    }
    row->seconds = flops_of(row) / sw_bench_median(&row->rounds, OURS);
    return SW_OK;
}

static sw_status measure(struct muon_bench *b, struct shape_row *row) {
    const struct sw_gemm shape = product_of(b, row);
    struct sw_onednn_product *direct = NULL;
    if (sw_device_info(b->of.device).host_memory)
        SW_TRY(sw_onednn_product_open(&shape, true, &direct));
    const sw_status status = race(b, row, direct);
    sw_onednn_product_close(direct);
    return status;
}

#define ROW struct shape_row
static const struct sw_bench_field shape_fields[] = {
    {.name = "outputs", .heading = "outputs", SW_AT(SW_FIELD_COUNT, outputs), .key = true},
    {.name = "inputs", .heading = "inputs", SW_AT(SW_FIELD_COUNT, inputs), .key = true},
    {.name = "times", .heading = "times", SW_AT(SW_FIELD_COUNT, times)},
    {.name = "seconds", .heading = "seconds", SW_AT(SW_FIELD_REAL, seconds), .digits = 5},
    SW_RATE_FIELD("flops_per_s", "Gflop/s", OURS, 0),
    SW_RATE_FIELD("product_flops_per_s", "a product", PRODUCT, 0),
    SW_RATIO_FIELD("of_product", "to it", OURS, PRODUCT),
};
#undef ROW
#define ROW struct total_row
static const struct sw_bench_field total_fields[] = {
    {.name = "matrices", .heading = "all matrices", SW_AT(SW_FIELD_COUNT, matrices)},
    {.name = "seconds", .heading = "seconds", SW_AT(SW_FIELD_REAL, seconds), .digits = 5},
    {.name = "flops", .heading = "Gflop", SW_AT(SW_FIELD_REAL, flops), SW_GIGA, .digits = 1},
    {.name = "flops_per_s", .heading = "Gflop/s", SW_AT(SW_FIELD_REAL, flops_per_s), SW_GIGA},
    {.name = "of_product", .heading = "to products", SW_AT(SW_FIELD_REAL, of_product), .digits = 2},
    {.name = "tokens", .heading = "as training of tokens", SW_AT(SW_FIELD_COUNT, tokens)},
};

static struct total_row total_of(const struct muon_bench *b) {
    const double flops_per_token = sw_model_flops_per_token(&b->of.job.config, b->of.settings.seq);
    struct total_row total = {0};
    double product_s = 0.0;
    for (int i = 0; i < b->count; i++) {
        const double times = (double)b->row[i].times;
        total.matrices += b->row[i].times;
        total.seconds += times * b->row[i].seconds;
        total.flops += times * flops_of(&b->row[i]);
        product_s += times * flops_of(&b->row[i]) / sw_bench_median(&b->row[i].rounds, PRODUCT);
    }
    total.flops_per_s = total.flops / total.seconds;
    total.of_product = product_s / total.seconds;
    total.tokens = (int64_t)(total.flops / flops_per_token);
    return total;
}

static sw_status report(const struct muon_bench *b) {
    const struct total_row total = total_of(b);
    const struct sw_device_info info = sw_devices_info(&b->of.job.devices);
    if (b->of.settings.json)
        return sw_command_print_json(json_pack(
            "{s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:s, s:s, s:o, s:o}", "bench", "muon", "device", info.name, "isa",
            info.isa, "model", b->of.settings.model, "threads", info.threads, "rounds", (int)b->given->rounds, "seq",
            (json_int_t)b->of.settings.seq, "numbers", SW_BENCH_NUMBERS, "product_precision",
            sw_dtype_name(b->of.bound_type), "matrices", sw_table_json(SW_TABLE(shape_fields, b->row, b->count)),
            "total", sw_table_row_json(SW_TABLE(total_fields, &total, 1), 0)));
    printf("%s, %s, %s; medians of %s\n"
           "Muon's update of a matrix, against a product of its sides by oneDNN in %s\n",
           b->of.settings.model, info.name, SW_COUNT(info.threads, "thread"), SW_COUNT(b->given->rounds, "round"),
           sw_dtype_name(b->of.bound_type));
    sw_table_print(SW_TABLE(shape_fields, b->row, b->count));
    sw_table_print(SW_TABLE(total_fields, &total, 1));
    return SW_OK;
}

static sw_status run(struct muon_bench *b) {
    b->settings = b->given->settings;
    b->settings.tuning.optimizer = SW_TRAINS_MUON;
    b->settings.micro_batch = 1;
    SW_TRY(sw_bench_model_open(&b->settings, &b->of));
    list_shapes(b);
    SW_TRY(take_areas(b));
    if (sw_device_info(b->of.device).host_memory)
        SW_TRY(sw_bench_choose_bound_type(&b->of));
    struct sw_long_work work = sw_long_work_begin("measuring Muon's updates", 0);
    for (int i = 0; i < b->count; i++) {
        SW_TRY(sw_long_work_at(&work, 0));
        SW_TRY(measure(b, &b->row[i]));
    }
    sw_long_work_end(&work);
    return report(b);
}

sw_status sw_bench_muon(const void *given_options) {
    struct muon_bench bench = {.given = given_options};
    const sw_status status = run(&bench);
    sw_bench_products_close(&bench.products);
    sw_memory_close(bench.memory);
    sw_bench_model_close(&bench.of);
    return status;
}
