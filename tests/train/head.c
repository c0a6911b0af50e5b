/* A head whose vocabulary is cut into tiles gives what the uncut one gives: the same losses to the last bit where the
 * logits are exact, the same gradients but for the order of their sums; and its logits are never whole. */
#include "tests/train/support.h"

#include <math.h>

#include "core/rng.h"
#include "core/size.h"
#include "train/model.h"

enum {
    HIDDEN = 64,
    VOCAB = 1300,
    BATCH = 3,
    SEQ = 37,
    ROWS = BATCH * SEQ,
    LARGE_VOCAB = 150000,
    LARGEST_VOCAB = 10000000,
    ALIGN = 4096
};
enum { WEIGHTS, TABLE, INPUT, TOKENS, RANDOMS };
enum { HEAD_UNIT = 2 };
#define SEED 99
/* 48 rows and 512 columns in fp32: three tiles of rows, three of columns, the last of both smaller. */
#define SMALL_TILE_BYTES (INT64_C(48) * 512 * 8)
#define UNCUT_BYTES (4 * SW_GIB)

struct head_case {
    const char *name;
    sw_dtype type;
    bool tied, exact;
    double tolerance; /* of the norm, for gradients; of the loss, where it is not exact */
};

/* What one configuration computes. */
struct result {
    double loss, evaluation;
    float *logits, *grad, *acc, *table_acc;
    int64_t grad_elems, acc_elems, table_elems;
};

struct bench {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_model *model;
    struct sw_unit_call call;
};

static struct sw_model_config config_of(int64_t vocab, bool tied) {
    return (struct sw_model_config){.family = "gpt2",
                                    .vocab = vocab,
                                    .hidden = HIDDEN,
                                    .layers = 1,
                                    .heads = 4,
                                    .kv_heads = 4,
                                    .head_dim = HIDDEN / 4,
                                    .ffn = 2 * HIDDEN,
                                    .max_positions = 512,
                                    .norm_epsilon = 1e-5,
                                    .init_std = 0.1,
                                    .activation = SW_GELU_TANH,
                                    .tied_embeddings = tied};
}

static void *take(int64_t bytes) {
    void *at = aligned_alloc(ALIGN, (size_t)sw_round_up(bytes, ALIGN));
    assert_non_null(at);
    memset(at, 0, (size_t)bytes);
    return at;
}

static int small_integer(int stream, int64_t i) {
    return (int)(sw_rng(SEED, (uint64_t)stream, (uint64_t)i).word[0] % 5) - 2;
}

/* Random numbers; or such that every logit is a sum without rounding: norm scale 0, its bias and the table small. */
static float value_of(const struct head_case *c, int stream, int64_t i, float std, float exact_unit) {
    return c->exact ? exact_unit * (float)small_integer(stream, i)
                    : std * sw_rng_normal(SEED, (uint64_t)stream, (uint64_t)i);
}

static void *fill_unit(const struct head_case *c, const struct sw_unit *unit, int stream) {
    char *weights = take(unit->elems * sw_dtype_bytes(c->type));
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const bool scale = strcmp(tensor->name, "transformer.ln_f.weight") == 0;
        const bool table = tensor->dims == 2;
        for (int64_t e = 0; e < tensor->elems; e++) {
            const float random = value_of(c, stream + 10 * (int)t, e, 0.3f, table ? 0.125f : 1.0f);
            sw_dtype_store(c->type, weights, tensor->offset + e, scale ? (c->exact ? 0.0f : 1.0f + random) : random);
        }
    }
    return weights;
}

static void open_bench(const struct head_case *c, struct bench *b, int64_t vocab, int64_t head_tile_bytes) {
    const struct sw_model_config config = config_of(vocab, c->tied);
    const struct sw_model_shape shape = {
        .type = c->type, .batch = BATCH, .seq = SEQ, .head_tile_bytes = head_tile_bytes};
    *b = (struct bench){0};
    support_expect_ok(sw_device_open("cpu", 2, &b->device), "preparing");
    support_expect_ok(sw_stream_open(b->device, &b->stream), "preparing");
    support_expect_ok(sw_model_create(&config, &shape, b->device, &b->model), "preparing");
    const struct sw_units *units = sw_model_get_units(b->model);
    int32_t *tokens = take(2 * ROWS * (int64_t)sizeof *tokens);
    char *in = take(ROWS * HIDDEN * sw_dtype_bytes(c->type));
    for (int64_t r = 0; r < 2 * ROWS; r++)
        tokens[r] = r % 11 == 5 ? -1 : (int32_t)(sw_rng(SEED, TOKENS, (uint64_t)r).word[0] % (uint32_t)vocab);
    for (int64_t e = 0; e < ROWS * HIDDEN; e++)
        sw_dtype_store(c->type, in, e, sw_rng_normal(SEED, INPUT, (uint64_t)e));
    b->call = (struct sw_unit_call){
        .stream = b->stream,
        .unit = HEAD_UNIT,
        .weights = fill_unit(c, &units->unit[HEAD_UNIT], WEIGHTS),
        .table = c->tied ? fill_unit(c, &units->unit[0], TABLE) : NULL,
        .tokens = tokens,
        .in = in,
        .grad = take(ROWS * HIDDEN * sw_dtype_bytes(c->type)),
        .acc = take(units->unit[HEAD_UNIT].elems * (int64_t)sizeof(float)),
        .table_acc = c->tied ? take(units->unit[0].elems * (int64_t)sizeof(float)) : NULL,
        .work = take(sw_model_bytes(b->model).work),
        .loss_scale = 1.0f / ROWS,
        .row = 7,
    };
}

static void close_bench(struct bench *b) {
    const void *const taken[] = {b->call.weights, b->call.table, b->call.tokens,    b->call.in,
                                 b->call.grad,    b->call.acc,   b->call.table_acc, b->call.work};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        free((void *)(uintptr_t)taken[i]);
    sw_model_destroy(b->model);
    sw_stream_close(b->stream);
    sw_device_close(b->device);
}

static void compute(const struct head_case *c, int64_t vocab, int64_t head_tile_bytes, struct result *out) {
    struct bench b;
    open_bench(c, &b, vocab, head_tile_bytes);
    const struct sw_unit_ops ops = sw_model_ops(b.model);
    const struct sw_units *units = sw_model_get_units(b.model);
    struct sw_unit_call *call = &b.call;
    *out = (struct result){.grad_elems = ROWS * HIDDEN, .acc_elems = units->unit[HEAD_UNIT].elems};
    out->logits = take(vocab * (int64_t)sizeof(float));
    call->logits = out->logits;
    call->loss = &out->evaluation;
    support_expect_ok(ops.loss(ops.context, call), "preparing");
    double ignored;
    call->loss = &ignored;
    support_expect_ok(ops.logits(ops.context, call), "preparing");
    call->loss = &out->loss;
    support_expect_ok(ops.head(ops.context, call), "preparing");
    out->grad = take(out->grad_elems * (int64_t)sizeof(float));
    for (int64_t e = 0; e < out->grad_elems; e++)
        out->grad[e] = sw_dtype_load(c->type, call->grad, e);
    out->acc = call->acc;
    out->table_acc = call->table_acc;
    out->table_elems = c->tied ? vocab * HIDDEN : 0;
    call->acc = call->table_acc = NULL;
    close_bench(&b);
}

static void release(struct result *result) {
    free(result->logits);
    free(result->grad);
    free(result->acc);
    free(result->table_acc);
}

static void compare(const struct head_case *c, const char *what, const float *a, const float *b, int64_t elems,
                    double tolerance) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < elems; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)a[i] * a[i];
    }
    if (elems > 0)
        printf("# %s: %s differ by %.1e of their norm\n", c->name, what, sqrt(difference / norm));
    if (elems > 0 && !(sqrt(difference) <= tolerance * sqrt(norm) && norm > 0))
        fail_msg("%s: %s differ by %g of their norm %g", c->name, what, sqrt(difference / norm), sqrt(norm));
}

static void compare_results(const struct head_case *c, int64_t vocab, int64_t cut_bytes) {
    struct result uncut, cut;
    compute(c, vocab, UNCUT_BYTES, &uncut);
    compute(c, vocab, cut_bytes, &cut);
    assert_true(isfinite(uncut.loss) && uncut.loss > 0);
    assert_true(uncut.loss == uncut.evaluation && cut.loss == cut.evaluation);
    if (c->exact && uncut.loss != cut.loss)
        fail_msg("%s: the loss is %.17g uncut and %.17g cut", c->name, uncut.loss, cut.loss);
    if (!(fabs(cut.loss - uncut.loss) <= 1e-6 * uncut.loss))
        fail_msg("%s: the loss is %.17g uncut and %.17g cut", c->name, uncut.loss, cut.loss);
    assert_memory_equal(uncut.logits, cut.logits, (size_t)vocab * sizeof(float)); /* of one row: whole either way */
    compare(c, "gradients at the input", uncut.grad, cut.grad, c->exact ? 0 : uncut.grad_elems, c->tolerance);
    compare(c, "gradients of the head", uncut.acc, cut.acc, uncut.acc_elems, c->tolerance);
    compare(c, "gradients of the table", uncut.table_acc, cut.table_acc, uncut.table_elems, c->tolerance);
    release(&uncut);
    release(&cut);
}

/* In bf16 and fp16 a gradient at the input is rounded once; sums in another order round another way. */
static const struct head_case cases[] = {
    {"fp32, tied", SW_F32, true, false, 1e-6},  {"fp32, own table", SW_F32, false, false, 1e-6},
    {"bf16, tied", SW_BF16, true, false, 2e-3}, {"fp16, tied", SW_F16, true, false, 5e-4},
    {"fp32, exact", SW_F32, true, true, 1e-6},  {"bf16, exact", SW_BF16, false, true, 2e-3},
};

static void a_cut_vocabulary_changes_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        compare_results(&cases[i], VOCAB, SMALL_TILE_BYTES);
}

static void a_large_vocabulary_is_cut_by_itself(void **state) {
    (void)state;
    const struct head_case large = {"150,000 tokens", SW_F32, true, false, 1e-6};
    compare_results(&large, LARGE_VOCAB, 0);
}

static void check_work_area(int64_t vocab) {
    const struct sw_model_config config = config_of(vocab, true);
    const struct sw_model_shape shape = {.type = SW_BF16, .batch = 16, .seq = 512};
    struct sw_device *device;
    struct sw_model *model;
    support_expect_ok(sw_device_open("cpu", 1, &device), "preparing");
    support_expect_ok(sw_model_create(&config, &shape, device, &model), "preparing");
    const int64_t rows = shape.batch * shape.seq, work = sw_model_bytes(model).work;
    if (work > 256 * SW_MIB)
        fail_msg("the work area has %lld bytes; whole logits would have %lld", (long long)work,
                 (long long)(rows * vocab * (int64_t)sizeof(float)));
    sw_model_destroy(model);
    sw_device_close(device);
}

/* Work memory of heads that would fill gigabytes with whole logits, the larger one even with those of 16 rows. */
static void logits_are_never_whole(void **state) {
    (void)state;
    check_work_area(LARGE_VOCAB);
    check_work_area(LARGEST_VOCAB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_vocabulary_changes_nothing),
        cmocka_unit_test(a_large_vocabulary_is_cut_by_itself),
        cmocka_unit_test(logits_are_never_whole),
    };
    return cmocka_run_group_tests_name("train head", tests, NULL, NULL);
}
