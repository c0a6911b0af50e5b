/* How the head is cut: parts of tiles are what the model lists, a GPU computes nothing twice that need not be, and
 * logits are never whole. */
#include "tests/equipment/support.h"
#include "tests/model/head.h"

#include "core/size.h"
#include "kernels/described.h"

enum { LARGEST_VOCAB = 10000000 };

static struct sw_model *model_of(struct sw_device *device, const struct tiling *tiling, sw_dtype type) {
    const struct sw_model_config config = config_of(tiling->vocab, true);
    const struct sw_model_shape shape = {.type = type,
                                         .batch = tiling->batch,
                                         .seq = SEQ,
                                         .head_tile_bytes = tiling->tile_bytes,
                                         .head_logits_apart = tiling->apart};
    struct sw_model *model;
    support_expect_ok(sw_model_create(&config, &shape, device, &model), "preparing");
    return model;
}

/* The head's products by pass, rows and how often. */
struct listed {
    const char *pass;
    int64_t rows, times;
};
static const struct listed apart_list[] = {{"forward", LOGITS_ROWS, 5},
                                           {"input gradient", TILE_ROWS, 1},
                                           {"weight gradient", TILE_ROWS, 1},
                                           {"forward", APART_ROWS - TILE_ROWS - 2 * LOGITS_ROWS, 1},
                                           {"input gradient", APART_ROWS - TILE_ROWS, 1},
                                           {"weight gradient", APART_ROWS - TILE_ROWS, 1}};

static void check_list(const struct sw_model *model, const struct listed *expected, int expected_count) {
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
    const int count = sw_model_products(model, product), first = count - expected_count;
    assert_true(first > 0 && !product[first - 1].head);
    for (int e = 0; e < expected_count; e++) {
        const struct sw_model_product *found = &product[first + e];
        const int64_t rows = strcmp(found->pass, "weight gradient") == 0 ? found->shape.k : found->shape.m;
        assert_true(found->head);
        assert_string_equal(found->pass, expected[e].pass);
        assert_int_equal(rows, expected[e].rows);
        assert_int_equal(found->times, expected[e].times);
    }
}

static void parts_of_tiles_are_listed_once(void **state) {
    (void)state;
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    struct sw_device *device;
    support_expect_ok(sw_device_open("cpu", 1, &device), "preparing");
    for (int t = 0; t < 3; t++) {
        const struct tiling tiling = logits_apart(types[t]);
        struct sw_model *model = model_of(device, &tiling, types[t]);
        check_list(model, apart_list, sizeof apart_list / sizeof apart_list[0]);
        sw_model_destroy(model);
    }
    sw_device_close(device);
}

/* Multiplications and additions of the head's products, as the model lists them. */
static double listed_flops(const struct sw_model *model) {
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
    const int count = sw_model_products(model, product);
    double flops = 0.0;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *shape = &product[i].shape;
        if (product[i].head)
            flops += 2.0 * (double)(shape->m * shape->n) * (double)(shape->k * product[i].times);
    }
    return flops;
}

/* Returns the seconds that a counting device charges for the head's loss and gradients; contents do not matter. */
static double counted_s(struct sw_device *device, struct sw_model *model) {
    const struct sw_unit_ops ops = sw_model_ops(model);
    struct sw_stream *stream;
    struct sw_memory *memory;
    double loss;
    support_expect_ok(sw_stream_open(device, &stream), "preparing");
    support_expect_ok(sw_memory_open(device, "head", SW_MEMORY_DEVICE, SW_MIB, &memory), "preparing");
    void *any = sw_memory_base(memory);
    const struct sw_unit_call call = {.stream = stream,
                                      .unit = HEAD_UNIT,
                                      .weights = any,
                                      .table = any,
                                      .tokens = any,
                                      .in = any,
                                      .grad = any,
                                      .acc = any,
                                      .table_acc = any,
                                      .work = any,
                                      .loss = &loss,
                                      .loss_scale = 1.0f};
    const double before_s = sw_device_counted_s(device);
    support_expect_ok(ops.head(ops.context, &call), "counting");
    sw_stream_close(stream);
    sw_memory_close(memory);
    return sw_device_counted_s(device) - before_s;
}

/* A GPU on which only products take time, an operation a second. */
static struct sw_device *open_gpu(void) {
    static const struct sw_device_description description = {
        .name = "a GPU",
        .memory_bytes = SW_GIB,
        .memory_bytes_per_s = 1e300,
        .product_flops_per_s = {[SW_F32] = 1.0, [SW_BF16] = 1.0, [SW_F16] = 1.0},
        .attention_forward_flops_per_s = 1.0,
        .attention_backward_flops_per_s = 1.0};
    struct sw_device *device;
    support_expect_ok(sw_device_open_described(&description, &device), "preparing");
    return device;
}

static void check_on_gpu(struct sw_device *device, int64_t batch, int64_t vocab, sw_dtype type) {
    const struct tiling tiling = {.batch = batch, .vocab = vocab};
    struct sw_model *model = model_of(device, &tiling, type);
    const double counted = counted_s(device, model), listed = listed_flops(model);
    const double once = 6.0 * (double)(batch * SEQ * HIDDEN) * (double)vocab;
    if (counted != listed || (vocab == LARGEST_VOCAB ? !(counted > once) : counted != once))
        fail_msg("%lld rows of %lld: %.17g operations, %.17g listed, %.17g needed", (long long)(batch * SEQ),
                 (long long)vocab, counted, listed, once);
    if (sw_model_bytes(model).work > 832 * SW_MIB)
        fail_msg("%lld rows of %lld: the work area has %lld bytes", (long long)(batch * SEQ), (long long)vocab,
                 (long long)sw_model_bytes(model).work);
    sw_model_destroy(model);
}

static void a_gpu_computes_nothing_twice(void **state) {
    (void)state;
    static const int64_t vocabs[] = {96, 1300, 50257, 152064, 700000, LARGEST_VOCAB}, batches[] = {4, 18, 111, 447};
    struct sw_device *device = open_gpu();
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++) {
        for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
            check_on_gpu(device, batches[b], vocabs[v], SW_BF16);
            check_on_gpu(device, batches[b], vocabs[v], SW_F32);
        }
    }
    sw_device_close(device);
}

/* Counts the operands of the head's products whose rows do not begin at multiples of these bytes. */
static int misaligned(const struct sw_model *model, int64_t bytes, int *out_operands) {
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
    const int count = sw_model_products(model, product);
    int found = 0;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *s = &product[i].shape;
        const int64_t in = sw_dtype_bytes(s->in), out = sw_dtype_bytes(s->out);
        const int64_t row_bytes[] = {sw_gemm_a_stride(s) * in, (s->transpose_b ? s->k : s->n) * in,
                                     sw_gemm_c_stride(s) * out};
        for (int o = 0; product[i].head && o < 3; o++) {
            found += row_bytes[o] % bytes != 0;
            *out_operands += 1;
        }
    }
    return found;
}

static int check_rows(struct sw_device *device, const struct sw_model_config *config, struct sw_model_shape shape) {
    enum { LINE_BYTES = 128 };
    struct sw_model *model;
    int operands = 0;
    support_expect_ok(sw_model_create(config, &shape, device, &model), "preparing");
    const int found = misaligned(model, LINE_BYTES, &operands);
    if (found > 0)
        fail_msg("%lld tokens, rank %d of %d, tiles of %lld bytes: the rows of %d of %d operands are not aligned",
                 (long long)config->vocab, shape.tensor_rank, shape.tensor_ranks, (long long)shape.head_tile_bytes,
                 found, operands);
    sw_model_destroy(model);
    return operands;
}

/* Every operand of the head's products has rows that begin with a line of a GPU's caches: for odd vocabularies, whole
 * and cut, and for each rank's part of one. */
static void rows_are_aligned_on_a_gpu(void **state) {
    (void)state;
    static const int64_t vocabs[] = {257, 1001, 32003, 50257}, tile_bytes[] = {0, INT64_C(48) * 512 * 8};
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    struct sw_device *device = open_gpu();
    int operands = 0;
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++)
        for (int i = 0; i < 2 * 3; i++)
            for (int ranks = 1; ranks <= 4; ranks *= 2)
                for (int rank = 0; rank < ranks; rank++) {
                    const struct sw_model_config config = config_of(vocabs[v], true);
                    operands += check_rows(device, &config,
                                           (struct sw_model_shape){.type = types[i / 2],
                                                                   .batch = 3,
                                                                   .seq = SEQ,
                                                                   .tensor_ranks = ranks == 1 ? 0 : ranks,
                                                                   .tensor_rank = rank,
                                                                   .head_tile_bytes = tile_bytes[i % 2]});
                }
    printf("# the rows of all %d operands are aligned\n", operands);
    sw_device_close(device);
}

/* On a CPU rows follow each other, so that memory and products are as they always were. */
static void rows_have_no_gaps_on_a_cpu(void **state) {
    (void)state;
    const struct tiling tiling = {.batch = 3, .vocab = 1001};
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
    struct sw_device *device;
    support_expect_ok(sw_device_open("cpu", 1, &device), "preparing");
    struct sw_model *model = model_of(device, &tiling, SW_BF16);
    const int count = sw_model_products(model, product);
    for (int i = 0; i < count; i++) {
        assert_int_equal(sw_gemm_a_stride(&product[i].shape), sw_gemm_a_cols(&product[i].shape));
        assert_int_equal(sw_gemm_c_stride(&product[i].shape), product[i].shape.n);
    }
    sw_model_destroy(model);
    sw_device_close(device);
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
        cmocka_unit_test(parts_of_tiles_are_listed_once), cmocka_unit_test(a_gpu_computes_nothing_twice),
        cmocka_unit_test(rows_are_aligned_on_a_gpu),      cmocka_unit_test(rows_have_no_gaps_on_a_cpu),
        cmocka_unit_test(logits_are_never_whole),
    };
    return cmocka_run_group_tests_name("train head tiles", tests, NULL, NULL);
}
