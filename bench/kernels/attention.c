/* Attention of a model's micro-batch, forward and backward, against the two matrix products of one of its heads by the
 * device's library, without a mask: the cost of the same multiplications if scores were kept whole. */
#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>

enum { FORWARD, BACKWARD, PRODUCTS, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");
enum { HEAD_PRODUCTS = 2 };
enum { Q, K, V, O, D_O, LSE, DQ, DK, DV, SCRATCH, AREAS };

struct attention_bench {
    const struct sw_bench_options *given;
    struct sw_bench_model of;
    struct sw_attention shape;
    struct sw_model_product product[HEAD_PRODUCTS];
    struct sw_bench_products products;
    struct sw_memory *memory; /* holds the areas */
    void *area[AREAS];
    struct sw_bench_rounds rounds; /* operations a second */
};

/* Returns the attention of a block: each row has queries, keys and values next to each other. */
static struct sw_attention shape_of(const struct attention_bench *b) {
    const struct sw_model_config *c = &b->of.job.config;
    const int64_t wide = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    return (struct sw_attention){.batch = b->of.settings.micro_batch,
                                 .seq = b->of.settings.seq,
                                 .heads = c->heads,
                                 .kv_heads = c->kv_heads,
                                 .head_dim = c->head_dim,
                                 .q_stride = wide + 2 * narrow,
                                 .k_stride = wide + 2 * narrow,
                                 .v_stride = wide + 2 * narrow,
                                 .o_stride = wide,
                                 .window = sw_config_window(c, 0),
                                 .scale = 1.0f / sqrtf((float)c->head_dim)};
}

/* Returns the number of scores that a head computes for a sequence. */
static double scores_of(const struct sw_attention *a) {
    const double window = a->window > 0 && a->window < a->seq ? (double)a->window : (double)a->seq;
    return window * (window + 1.0) / 2.0 + ((double)a->seq - window) * window;
}

/* Returns the operations of a pass. The forward pass multiplies twice, for scores and for outputs; the backward pass
 * repeats one of these products and has four for gradients. */
static double flops_of(const struct sw_attention *shape, int pass) {
    enum { FORWARD_PRODUCTS = 2, BACKWARD_PRODUCTS = 5 };
    return 2.0 * (pass == BACKWARD ? BACKWARD_PRODUCTS : FORWARD_PRODUCTS) * scores_of(shape) *
           (double)(shape->batch * shape->heads * shape->head_dim);
}

/* Keys and values share the rows of the queries, and their gradients share the rows of the queries' gradients. */
static sw_status take_areas(struct attention_bench *b) {
    const struct sw_attention *a = &b->shape;
    const int64_t rows = a->batch * a->seq, typed = sw_dtype_bytes(b->of.type);
    const int64_t bytes[AREAS] = {
        [Q] = rows * a->q_stride * typed,   [O] = rows * a->o_stride * typed,
        [D_O] = rows * a->o_stride * typed, [LSE] = a->batch * a->heads * a->seq * (int64_t)sizeof(float),
        [DQ] = rows * a->q_stride * typed,  [SCRATCH] = sw_attention_scratch_bytes(b->of.device, a, b->of.type)};
    if (sw_device_info(b->of.device).host_memory)
        SW_TRY(
            sw_bench_check_memory("attention's tensors", sw_bench_areas_bytes(bytes, AREAS), SW_BENCH_SMALLER_MODEL));
    SW_TRY(sw_bench_products_open(b->of.device, b->product, HEAD_PRODUCTS, &b->products));
    SW_TRY(sw_bench_areas_open(b->of.device, bytes, AREAS, &b->memory, b->area));
    const int64_t k = a->heads * a->head_dim * typed, v = k + a->kv_heads * a->head_dim * typed;
    b->area[K] = (char *)b->area[Q] + k;
    b->area[V] = (char *)b->area[Q] + v;
    b->area[DK] = (char *)b->area[DQ] + k;
    b->area[DV] = (char *)b->area[DQ] + v;
    SW_TRY(sw_bench_fill(&b->products, b->of.type, b->area[Q], bytes[Q]));
    return sw_bench_fill(&b->products, b->of.type, b->area[D_O], bytes[D_O]);
}

static sw_status forward(void *context) {
    struct attention_bench *b = context;
    void **t = b->area;
    return sw_attention_forward(b->products.stream, b->of.type, &b->shape, t[Q], t[K], t[V], t[O], t[LSE], t[SCRATCH]);
}

static sw_status backward(void *context) {
    struct attention_bench *b = context;
    void **t = b->area;
    return sw_attention_backward(b->products.stream, b->of.type, &b->shape, t[Q], t[K], t[V], t[O], t[D_O], t[LSE],
                                 t[DQ], t[DK], t[DV], t[SCRATCH]);
}

/* Lists the products of one head: queries by keys, and scores by values. */
static void list_products(struct attention_bench *b) {
    const int64_t seq = b->shape.seq, dim = b->shape.head_dim;
    b->product[0] = (struct sw_model_product){
        .shape = {.m = seq, .n = seq, .k = dim, .transpose_b = true, .in = b->of.type, .out = SW_F32}, .times = 1};
    b->product[1] = (struct sw_model_product){
        .shape = {.m = seq, .n = dim, .k = seq, .in = b->of.type, .out = b->of.type}, .times = 1};
}

/* Runs all in turn, round by round. The round before the first only touches the memory. */
static sw_status race(struct attention_bench *b) {
    b->rounds.rounds = (int)b->given->rounds;
    for (int round = -1; round < b->rounds.rounds; round++) {
        double forward_s, backward_s, rate;
        SW_TRY(sw_bench_time(&b->products, forward, b, &forward_s));
        SW_TRY(sw_bench_time(&b->products, backward, b, &backward_s));
        SW_TRY(sw_bench_products_rate(&b->products, b->product, HEAD_PRODUCTS, &rate));
        if (round < 0)
            continue;
        b->rounds.rate[FORWARD][round] = flops_of(&b->shape, FORWARD) / forward_s;
        b->rounds.rate[BACKWARD][round] = flops_of(&b->shape, BACKWARD) / backward_s;
        b->rounds.rate[PRODUCTS][round] = rate;
    }
    return SW_OK;
}

/* The medians of a pass. */
struct pass_row {
    const char *name;
    double seconds, flops_per_s, of_products;
};

#define ROW struct pass_row
static const struct sw_bench_field fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, name)},
    {.name = "seconds", .heading = "seconds", SW_AT(SW_FIELD_REAL, seconds), .digits = 5},
    {.name = "flops_per_s", .heading = "Gflop/s", SW_AT(SW_FIELD_REAL, flops_per_s), SW_GIGA},
    {.name = "of_products", .heading = "to a head's products", SW_AT(SW_FIELD_REAL, of_products), .digits = 2},
};

static sw_status report(const struct attention_bench *b) {
    static const char *const names[] = {[FORWARD] = "forward", [BACKWARD] = "backward"};
    const double products = sw_bench_median(&b->rounds, PRODUCTS);
    struct pass_row rows[BACKWARD + 1];
    for (int who = FORWARD; who <= BACKWARD; who++) {
        const double rate = sw_bench_median(&b->rounds, who);
        rows[who] = (struct pass_row){names[who], flops_of(&b->shape, who) / rate, rate,
                                      sw_bench_ratio(&b->rounds, who, PRODUCTS)};
    }
    if (b->of.settings.json)
        return sw_command_print_json(
            sw_bench_join(sw_bench_join(sw_bench_model_json(&b->of, "attention", b->rounds.rounds),
                                        sw_table_named_json(SW_TABLE(fields, rows, BACKWARD + 1))),
                          json_pack("{s:f, s:s}", "products_flops_per_s", products, "numbers", SW_BENCH_NUMBERS)));
    sw_bench_model_print(&b->of, b->rounds.rounds);
    printf("attention, against a head's matrix products by the library at %.0f Gflop/s\n", products * 1e-9);
    sw_table_print(SW_TABLE(fields, rows, BACKWARD + 1));
    return SW_OK;
}

static sw_status run(struct attention_bench *b) {
    SW_TRY(sw_bench_model_open(&b->given->settings, &b->of));
    b->shape = shape_of(b);
    list_products(b);
    SW_TRY(take_areas(b));
    SW_TRY(race(b));
    return report(b);
}

sw_status sw_bench_attention(const void *given_options) {
    struct attention_bench b = {.given = given_options};
    const sw_status status = run(&b);
    sw_bench_products_close(&b.products);
    sw_memory_close(b.memory);
    sw_bench_model_close(&b.of);
    return status;
}
