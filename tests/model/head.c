/* A head in tiles gives what the uncut one gives: the same losses to the last bit where the logits are exact, the same
 * gradients but for the order of their sums, and writes nowhere beside its areas. */
#include "tests/model/head.h"
#include "tests/equipment/support.h"

#include <math.h>

#include "core/rng.h"
#include "core/size.h"

enum { THREADS = 2 };
enum { WEIGHTS, TABLE, INPUT, TOKENS, RANDOMS };
#define SEED 99
#define UNCUT_BYTES (4 * SW_GIB)
/* Guard bytes behind every area, and the byte that fills unwritten areas: it is NaN in every type. */
enum { GUARD_BYTES = 64, GUARD = 0xa5, UNWRITTEN = 0xff };

struct head_case {
    const char *name;
    sw_dtype type;
    bool tied, exact;
    double tolerance; /* of the norm, for gradients; of the loss, where it is not exact */
};

/* Too few bytes for 111 rows. In fp32 48 rows and 512 columns: three tiles of each, the last of both smaller. */
static const struct tiling cut_vocabulary = {.batch = 3, .vocab = 1300, .tile_bytes = INT64_C(48) * 512 * 8};
static const struct tiling large_vocabulary = {.batch = 3, .vocab = LARGE_VOCAB};
/* The results of one configuration. */
struct result {
    double loss, evaluation;
    float *logits, *grad, *acc, *table_acc;
    int64_t grad_elems, acc_elems, table_elems;
};

/* The operands that a call names, one after the other in the device's memory, and a copy of it that the test fills and
 * reads. */
enum area { WEIGHTS_AREA, TABLE_AREA, TOKENS_AREA, IN, GRAD, ACC, TABLE_ACC, WORK, AREAS };
struct bench {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_model *model;
    struct sw_memory *memory;
    int64_t bytes[AREAS], at[AREAS + 1];
    char *host;
    struct sw_unit_call call;
};

static void *take(int64_t bytes) {
    void *at = malloc((size_t)bytes);
    assert_non_null(at);
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

static void fill_unit(const struct head_case *c, const struct sw_unit *unit, int stream, void *weights) {
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const bool scale = strcmp(tensor->name, "transformer.ln_f.weight") == 0;
        const bool table = tensor->dims == 2;
        for (int64_t e = 0; e < tensor->elems; e++) {
            const float random = value_of(c, stream + 10 * (int)t, e, 0.3f, table ? 0.125f : 1.0f);
            sw_dtype_store(c->type, weights, tensor->offset + e, scale ? (c->exact ? 0.0f : 1.0f + random) : random);
        }
    }
}

static void lay_areas(const struct head_case *c, struct bench *b, int64_t rows) {
    const struct sw_units *units = sw_model_get_units(b->model);
    const int64_t typed = sw_dtype_bytes(c->type), table_elems = c->tied ? units->unit[0].elems : 0;
    const int64_t bytes[AREAS] = {[WEIGHTS_AREA] = units->unit[HEAD_UNIT].elems * typed,
                                  [TABLE_AREA] = table_elems * typed,
                                  [TOKENS_AREA] = 2 * rows * (int64_t)sizeof(int32_t),
                                  [IN] = rows * HIDDEN * typed,
                                  [GRAD] = rows * HIDDEN * typed,
                                  [ACC] = units->unit[HEAD_UNIT].elems * (int64_t)sizeof(float),
                                  [TABLE_ACC] = table_elems * (int64_t)sizeof(float),
                                  [WORK] = sw_model_bytes(b->model).work};
    memcpy(b->bytes, bytes, sizeof bytes);
    for (int a = 0; a < AREAS; a++)
        b->at[a + 1] = b->at[a] + sw_round_up(bytes[a] + GUARD_BYTES, SW_BUFFER_ALIGN_BYTES);
    b->host = take(b->at[AREAS]);
    memset(b->host, GUARD, (size_t)b->at[AREAS]);
    for (int a = 0; a < AREAS; a++)
        memset(b->host + b->at[a], a == WORK || a == GRAD ? UNWRITTEN : 0, (size_t)bytes[a]);
}

static void fill_areas(const struct head_case *c, struct bench *b, int64_t rows, int64_t vocab) {
    const struct sw_units *units = sw_model_get_units(b->model);
    int32_t *tokens = (int32_t *)(void *)(b->host + b->at[TOKENS_AREA]);
    for (int64_t r = 0; r < 2 * rows; r++)
        tokens[r] = r % 11 == 5 ? -1 : (int32_t)(sw_rng(SEED, TOKENS, (uint64_t)r).word[0] % (uint32_t)vocab);
    for (int64_t e = 0; e < rows * HIDDEN; e++)
        sw_dtype_store(c->type, b->host + b->at[IN], e, sw_rng_normal(SEED, INPUT, (uint64_t)e));
    fill_unit(c, &units->unit[HEAD_UNIT], WEIGHTS, b->host + b->at[WEIGHTS_AREA]);
    if (c->tied)
        fill_unit(c, &units->unit[0], TABLE, b->host + b->at[TABLE_AREA]);
}

/* On the CPU, or on the GPU that the program is linked for. */
static void open_model(const struct head_case *c, struct bench *b, const struct tiling *tiling) {
    const struct sw_model_config config = config_of(tiling->vocab, c->tied);
    const struct sw_model_shape shape = {.type = c->type,
                                         .batch = tiling->batch,
                                         .seq = SEQ,
                                         .head_tile_bytes = tiling->tile_bytes,
                                         .head_logits_apart = tiling->apart};
    const char *device = getenv("SW_TEST_DEVICE");
    support_expect_ok(sw_device_open(device != NULL ? device : "cpu", THREADS, &b->device), "preparing");
    support_expect_ok(sw_stream_open(b->device, &b->stream), "preparing");
    support_expect_ok(sw_model_create(&config, &shape, b->device, &b->model), "preparing");
}

static void open_bench(const struct head_case *c, struct bench *b, const struct tiling *tiling) {
    const int64_t rows = tiling->batch * SEQ;
    *b = (struct bench){0};
    open_model(c, b, tiling);
    lay_areas(c, b, rows);
    fill_areas(c, b, rows, tiling->vocab);
    support_expect_ok(sw_memory_open(b->device, "head", SW_MEMORY_DEVICE, b->at[AREAS], &b->memory), "preparing");
    char *base = sw_memory_base(b->memory);
    support_expect_ok(sw_copy_to_device(b->stream, base, b->host, b->at[AREAS]), "preparing");
    b->call = (struct sw_unit_call){
        .stream = b->stream,
        .unit = HEAD_UNIT,
        .weights = base + b->at[WEIGHTS_AREA],
        .table = c->tied ? base + b->at[TABLE_AREA] : NULL,
        .tokens = (int32_t *)(void *)(base + b->at[TOKENS_AREA]),
        .in = base + b->at[IN],
        .grad = base + b->at[GRAD],
        .acc = (float *)(void *)(base + b->at[ACC]),
        .table_acc = c->tied ? (float *)(void *)(base + b->at[TABLE_ACC]) : NULL,
        .work = base + b->at[WORK],
        .loss_scale = 1.0f / (float)rows,
        .row = 7,
    };
}

static void close_bench(struct bench *b) {
    free(b->host);
    sw_model_destroy(b->model);
    sw_stream_close(b->stream);
    sw_memory_close(b->memory);
    sw_device_close(b->device);
}

/* Brings back what the device has made, nothing of it between the areas. */
static void fetch(const struct head_case *c, struct bench *b) {
    support_expect_ok(sw_copy_to_host(b->stream, b->host, sw_memory_base(b->memory), b->at[AREAS]), "fetching");
    support_expect_ok(sw_stream_synchronize(b->stream), "fetching");
    for (int a = 0; a < AREAS; a++)
        for (int64_t i = b->at[a] + b->bytes[a]; i < b->at[a + 1]; i++)
            if ((unsigned char)b->host[i] != GUARD)
                fail_msg("%s: byte %lld behind area %d of %lld bytes was written", c->name,
                         (long long)(i - b->at[a] - b->bytes[a]), a, (long long)b->bytes[a]);
}

static float *floats_of(const struct bench *b, enum area area, sw_dtype type, int64_t *out_elems) {
    *out_elems = b->bytes[area] / sw_dtype_bytes(type);
    float *floats = take(*out_elems * (int64_t)sizeof(float));
    for (int64_t e = 0; e < *out_elems; e++)
        floats[e] = sw_dtype_load(type, b->host + b->at[area], e);
    return floats;
}

static void compute(const struct head_case *c, const struct tiling *tiling, struct result *out) {
    struct bench b;
    double ignored;
    open_bench(c, &b, tiling);
    const struct sw_unit_ops ops = sw_model_ops(b.model);
    struct sw_unit_call *call = &b.call;
    *out = (struct result){.logits = take(tiling->vocab * (int64_t)sizeof(float))};
    call->logits = out->logits;
    call->loss = &out->evaluation;
    support_expect_ok(ops.loss(ops.context, call), "the loss alone");
    call->loss = &ignored;
    support_expect_ok(ops.logits(ops.context, call), "logits of a row");
    call->loss = &out->loss;
    support_expect_ok(ops.head(ops.context, call), "loss and gradients");
    fetch(c, &b);
    out->grad = floats_of(&b, GRAD, c->type, &out->grad_elems);
    out->acc = floats_of(&b, ACC, SW_F32, &out->acc_elems);
    out->table_acc = floats_of(&b, TABLE_ACC, SW_F32, &out->table_elems);
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

static void compare_results(const struct head_case *c, const struct tiling *tiling) {
    const struct tiling whole = {.batch = tiling->batch, .vocab = tiling->vocab, .tile_bytes = UNCUT_BYTES};
    struct result uncut, cut;
    compute(c, &whole, &uncut);
    compute(c, tiling, &cut);
    assert_true(isfinite(uncut.loss) && uncut.loss > 0);
    assert_true(uncut.loss == uncut.evaluation && cut.loss == cut.evaluation);
    if (c->exact && uncut.loss != cut.loss)
        fail_msg("%s: the loss is %.17g uncut and %.17g cut", c->name, uncut.loss, cut.loss);
    if (!(fabs(cut.loss - uncut.loss) <= 1e-6 * uncut.loss))
        fail_msg("%s: the loss is %.17g uncut and %.17g cut", c->name, uncut.loss, cut.loss);
    assert_memory_equal(uncut.logits, cut.logits, (size_t)tiling->vocab * sizeof(float)); /* of one row: whole */
    compare(c, "gradients at the input", uncut.grad, cut.grad, c->exact ? 0 : uncut.grad_elems, c->tolerance);
    compare(c, "gradients of the head", uncut.acc, cut.acc, uncut.acc_elems, c->tolerance);
    compare(c, "gradients of the table", uncut.table_acc, cut.table_acc, uncut.table_elems, c->tolerance);
    release(&uncut);
    release(&cut);
}

/* In bf16 and fp16 a gradient at the input is rounded once; sums in another order round another way. Where logits are
 * exact all rows are the same, so that the roundings of their sum are too. */
static const struct head_case cases[] = {
    {"fp32, tied", SW_F32, true, false, 3e-6},  {"fp32, own table", SW_F32, false, false, 3e-6},
    {"bf16, tied", SW_BF16, true, false, 2e-3}, {"fp16, tied", SW_F16, true, false, 5e-4},
    {"fp32, exact", SW_F32, true, true, 2e-5},  {"bf16, exact", SW_BF16, false, true, 2e-3},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void a_cut_vocabulary_changes_nothing(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        compare_results(&cases[i], &cut_vocabulary);
}

static void logits_of_a_part_of_a_tile_change_nothing(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const struct tiling tiling = logits_apart(cases[i].type);
        compare_results(&cases[i], &tiling);
    }
}

/* Rows with gaps against rows without, over vocabularies that are no multiple of a gap: whole, and cut into tiles, the
 * last of which is smaller. */
static void gaps_between_rows_change_nothing(void **state) {
    (void)state;
    static const struct tiling odd[] = {
        {.batch = 3, .vocab = 257, .apart = true},
        {.batch = 3, .vocab = 1001, .tile_bytes = INT64_C(48) * 512 * 8, .apart = true},
        {.batch = 1, .vocab = 50257, .apart = true},
    };
    for (size_t t = 0; t < sizeof odd / sizeof odd[0]; t++) {
        if (odd[t].tile_bytes == 0 && getenv("SW_TEST_DEVICE") != NULL)
            continue; /* a GPU's whole tile has gaps as well */
        for (int i = 0; i < (odd[t].vocab > APART_VOCAB ? 1 : CASES); i++)
            compare_results(&cases[i], &odd[t]);
    }
}

static bool threads_keep_bits(sw_dtype type) {
    struct sw_device *device;
    support_expect_ok(sw_device_open("cpu", THREADS, &device), "preparing");
    const bool keep = sw_device_info(device).threads_keep_bits[type];
    sw_device_close(device);
    return keep;
}

/* The same tile with gaps and without. A library may multiply rows with gaps in other ways. */
static void gaps_between_rows_change_no_bits(void **state) {
    (void)state;
    if (getenv("SW_TEST_DEVICE") != NULL)
        skip(); /* a GPU has no rows without gaps */
    for (int i = 0; i < CASES; i++) {
        const struct tiling dense = {.batch = 3, .vocab = 1001, .tile_bytes = UNCUT_BYTES};
        struct tiling wide = dense;
        struct result want, got;
        wide.apart = true;
        if (!threads_keep_bits(cases[i].type))
            continue;
        compute(&cases[i], &dense, &want);
        compute(&cases[i], &wide, &got);
        assert_true(want.loss == got.loss && want.evaluation == got.evaluation);
        assert_memory_equal(want.logits, got.logits, (size_t)dense.vocab * sizeof(float));
        assert_memory_equal(want.grad, got.grad, (size_t)want.grad_elems * sizeof(float));
        assert_memory_equal(want.acc, got.acc, (size_t)want.acc_elems * sizeof(float));
        assert_memory_equal(want.table_acc, got.table_acc, (size_t)want.table_elems * sizeof(float));
        release(&want);
        release(&got);
    }
}

static void a_large_vocabulary_is_cut_by_itself(void **state) {
    (void)state;
    if (getenv("SW_TEST_DEVICE") != NULL)
        skip(); /* a GPU's tile has all of it */
    const struct head_case large = {"150,000 tokens", SW_F32, true, false, 3e-6};
    compare_results(&large, &large_vocabulary);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_vocabulary_changes_nothing),
        cmocka_unit_test(logits_of_a_part_of_a_tile_change_nothing),
        cmocka_unit_test(gaps_between_rows_change_nothing),
        cmocka_unit_test(gaps_between_rows_change_no_bits),
        cmocka_unit_test(a_large_vocabulary_is_cut_by_itself),
    };
    return cmocka_run_group_tests_name("train head", tests, NULL, NULL);
}
