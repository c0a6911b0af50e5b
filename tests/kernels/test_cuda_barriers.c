/* Every barrier of the CUDA kernels is needed, and so is every fence and wait of their products, and together they
 * suffice: the emulation gives the same bits in whatever order threads run, and others, or an error, when it leaves out
 * any one of them. */
#include "tests/kernels/support.h"

#include "core/fp8.h"
#include "core/size.h"
#include "kernels/cuda/kernel_ops.h"
#include "kernels/device_ops.h"
#include "kernels/muon.h"
#include "kernels/products.h"
#include "tests/equipment/cuda/machine.h"
#include "tests/equipment/cuda/runtime.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 3, PATH_CHARS = 512, LINE_CHARS = 256, FOUND = 64, NAME_CHARS = 64 };

/* A number that stands for all results of a run of the ops; an error is a result. */
struct digest {
    struct sw_stream *stream;
    uint64_t value;
};

static void take(struct digest *digest, struct buffer *results) {
    const unsigned char *bytes = results->data;
    for (int64_t i = 0; i < results->bytes; i++)
        digest->value = (digest->value ^ bytes[i]) * UINT64_C(0x100000001b3);
    buffer_free(results);
}

static void take_status(struct digest *digest, sw_status status) {
    digest->value = (digest->value ^ (uint64_t)(uint32_t)status) * UINT64_C(0x100000001b3);
    sw_error_clear();
}

static void norms(struct digest *digest) {
    enum { ROWS = 600, COLS = 1030, FEW = 3 };
    struct buffer x = buffer_random(SW_BF16, ROWS * COLS, 1, 1.0f), gamma = buffer_random(SW_BF16, COLS, 2, 1.0f);
    struct buffer y = buffer_zeros(x.bytes), mean = buffer_zeros(ROWS * 4), rstd = buffer_zeros(ROWS * 4);
    struct buffer acc = buffer_zeros(COLS * 4), beta_acc = buffer_zeros(COLS * 4), bias = buffer_zeros(COLS * 4);
    take_status(digest, sw_layernorm_forward(digest->stream, SW_BF16, FEW, COLS, 1e-5f, x.data, gamma.data, gamma.data,
                                             y.data, mean.data, rstd.data));
    take_status(digest, sw_layernorm_backward(digest->stream, SW_BF16, FEW, COLS, true, x.data, x.data, gamma.data,
                                              mean.data, rstd.data, y.data, acc.data, beta_acc.data));
    take_status(digest, sw_bias_gradient(digest->stream, SW_BF16, ROWS, 33, x.data, bias.data));
    struct buffer *results[] = {&x, &gamma, &y, &mean, &rstd, &acc, &beta_acc, &bias};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

/* A matrix that is turned, of several tiles, and momenta in 8 bits, whose blocks share words and scales. */
static void muons(struct digest *digest) {
    enum { OUTPUTS = 45, INPUTS = 40 };
    static const struct sw_muon rates = {.lr = 0.02, .momentum = 0.95, .grad_scale = 1.0f};
    const struct sw_muon_tensor tensor = {.outputs = OUTPUTS, .inputs = INPUTS, .parts = 1, .part_end = {OUTPUTS}};
    int64_t scratch_bytes;
    assert_ok(sw_muon_prepare(digest->stream->device, &tensor, 1, &scratch_bytes));
    struct buffer records = buffer_zeros(sw_optimizer_muon_bytes(SW_OPTIMIZER_MUON_8BIT));
    struct buffer grads = buffer_random(SW_BF16, SW_GRAIN_ELEMS, 15, 1.0f), scratch = buffer_zeros(scratch_bytes);
    take_status(digest, sw_update_muon(digest->stream, &(struct sw_update_muon){.type = SW_BF16,
                                                                                .muon = &rates,
                                                                                .format = SW_OPTIMIZER_MUON_8BIT,
                                                                                .rounding = SW_ROUND_STOCHASTIC,
                                                                                .grains = 1,
                                                                                .tensor = &tensor,
                                                                                .tensors = 1,
                                                                                .grads = grads.data,
                                                                                .records = records.data,
                                                                                .scratch = scratch.data}));
    struct buffer *results[] = {&records, &grads, &scratch};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

static void embeddings(struct digest *digest) {
    enum { TOKENS = 600, COLS = 16, VOCAB = 9 };
    struct buffer tokens = buffer_zeros(TOKENS * 4), d_out = buffer_random(SW_F32, TOKENS * COLS, 3, 1.0f);
    struct buffer acc = buffer_zeros(VOCAB * COLS * 4);
    for (int i = 0; i < TOKENS; i++)
        ((int32_t *)tokens.data)[i] = i < 300 ? i % 2 : i % VOCAB; /* some rows come late, so the search is long */
    take_status(digest, sw_embedding_backward(digest->stream, SW_F32, 1, TOKENS, COLS, tokens.data, NULL, d_out.data,
                                              acc.data, NULL, .positions_part = {0}));
    struct buffer *results[] = {&tokens, &d_out, &acc};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

static void gradients(struct digest *digest) {
    enum { GRAINS = 2 };
    struct buffer grads = buffer_random(SW_BF16, GRAINS * SW_GRAIN_ELEMS, 8, 1.0f), sums = buffer_zeros(GRAINS * 8);
    take_status(digest, sw_square_sums(digest->stream, SW_BF16, GRAINS * SW_GRAIN_ELEMS, grads.data, sums.data));
    struct buffer *results[] = {&grads, &sums};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

/* The largest number is behind the first warps. */
static void codes(struct digest *digest) {
    enum { ROWS = 70, COLS = 200 };
    struct buffer from = buffer_random(SW_BF16, ROWS * COLS, 9, 1.0f), scale = buffer_zeros(SW_FP8_SCALE_BYTES);
    struct buffer turned = buffer_zeros(ROWS * COLS);
    for (int64_t i = ROWS * COLS / 2; i < ROWS * COLS; i++)
        set_element(SW_BF16, from.data, i, 1e3f * (float)(i % 7));
    take_status(digest, sw_encode_fp8(digest->stream, .type = SW_BF16, .as = SW_FP8_E4M3, .rows = ROWS, .cols = COLS,
                                      .transpose = true, .from = from.data, .codes = turned.data, .scale = scale.data));
    struct buffer *results[] = {&from, &turned, &scale};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

/* A grain whose scales are between 1 and 3. */
static void frozen(struct digest *digest) {
    struct buffer record = buffer_random(SW_BF16, SW_NF4_RECORD_BYTES / 2, 10, 1.0f);
    struct buffer values = buffer_zeros(SW_GRAIN_ELEMS * 2);
    ((struct sw_nf4_record *)record.data)->spread = 1.0f;
    ((struct sw_nf4_record *)record.data)->offset = 2.0f;
    take_status(digest,
                sw_dequantize_base(digest->stream, SW_BF16, SW_BASE_NF4, 0, SW_GRAIN_ELEMS, record.data, values.data));
    struct buffer *results[] = {&record, &values};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

/* Pairs of several windows, and products of several chunks of terms. Without a barrier pairs get places outside, which
 * are still within the buffer. */
static void experts(struct digest *digest) {
    enum { SLACK = 4096, PAIRS = 600, EXPERTS = 3, ROWS = 150, N = 72, K = 104 };
    struct buffer expert = buffer_zeros(PAIRS * 4), offset = buffer_zeros((EXPERTS + 1) * 4);
    struct buffer source = buffer_zeros((PAIRS + 2 * SLACK) * 4), place = buffer_zeros(PAIRS * 4);
    for (int i = 0; i < PAIRS; i++)
        ((int32_t *)expert.data)[i] = i < 4 * ROWS / 3 ? i % EXPERTS : 1;
    take_status(digest, sw_order_by_expert(digest->stream, PAIRS, EXPERTS, 1, expert.data, offset.data,
                                           (int32_t *)source.data + SLACK, place.data));
    for (int e = 0; e <= EXPERTS; e++)
        ((int32_t *)offset.data)[e] = e * ROWS / EXPERTS;
    struct buffer a = buffer_random(SW_BF16, ROWS * N, 11, 1.0f), b = buffer_random(SW_BF16, ROWS * K, 12, 1.0f);
    struct buffer matrices = buffer_random(SW_BF16, EXPERTS * N * K, 13, 1.0f), c = buffer_zeros(EXPERTS * N * K * 4);
    struct sw_grouped_gemm shape = {
        .experts = EXPERTS, .rows = ROWS, .n = N, .k = K, .in = SW_BF16, .out = SW_BF16, .matrix_stride = N * K};
    for (int transposed = 0; transposed < 2; transposed++) {
        shape.transpose_b = transposed == 1;
        take_status(digest,
                    sw_grouped_gemm(digest->stream, &shape, offset.data, b.data, matrices.data, NULL, a.data, NULL));
    }
    shape.transpose_b = false;
    shape.weight_gradient = true;
    shape.out = SW_F32;
    take_status(digest, sw_grouped_gemm(digest->stream, &shape, offset.data, a.data, b.data, NULL, c.data, NULL));
    struct buffer *results[] = {&expert, &offset, &source, &place, &a, &b, &matrices, &c};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

/* Two blocks of rows, the second of them not full, and more experts than a warp has threads. */
static void tally(struct digest *digest) {
    enum { EXPERTS = 40, ROWS = SW_TALLY_ROWS + 9 };
    const struct sw_routing shape = {.rows = ROWS, .experts = EXPERTS, .chosen = 1};
    struct buffer logits = buffer_random(SW_BF16, ROWS * EXPERTS, 14, 2.0f), offset = buffer_zeros((EXPERTS + 1) * 4);
    struct buffer routed = buffer_zeros(EXPERTS * 8), count = buffer_zeros(EXPERTS * 8);
    struct buffer sum = buffer_zeros((EXPERTS + 1) * 8), router_losses = buffer_zeros(2 * 8);
    struct buffer scratch = buffer_zeros(sw_tally_scratch_bytes(&shape));
    for (int e = 0; e <= EXPERTS; e++)
        ((int32_t *)offset.data)[e] = e * ROWS / EXPERTS;
    take_status(digest,
                sw_tally_routing(digest->stream, .type = SW_BF16, .shape = &shape, .layers = 1, .first_layer = true,
                                 .last_layer = true, .first_micro = true, .logits = logits.data, .offset = offset.data,
                                 .routed = routed.data, .count = count.data, .sum = sum.data,
                                 .losses = router_losses.data, .scratch = scratch.data));
    struct buffer *results[] = {&logits, &offset, &routed, &count, &sum, &router_losses, &scratch};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

/* Three groups of blocks of columns: the third writes where the first was. */
static void losses(struct digest *digest) {
    enum { ROWS = 2, VOCAB = 34007 };
    struct buffer logits = buffer_random(SW_F32, ROWS * VOCAB, 4, 4.0f), targets = buffer_zeros(ROWS * 4);
    struct buffer loss = buffer_zeros(ROWS * 4), d_logits = buffer_zeros(ROWS * VOCAB * 2), total = buffer_zeros(8);
    take_status(digest, sw_cross_entropy(digest->stream, SW_BF16, ROWS, VOCAB, VOCAB, 1.0f, logits.data, targets.data,
                                         loss.data, d_logits.data, NULL));
    take_status(digest, sw_sum_losses(digest->stream, ROWS * VOCAB, logits.data, total.data));
    struct buffer reference = buffer_zeros(2 * 8), sums = buffer_zeros(2 * 8);
    take_status(digest, sw_preference(digest->stream, .pairs = 1, .seq = VOCAB, .beta = 0.1, .losses = logits.data,
                                      .reference = reference.data, .sums = sums.data));
    struct buffer *results[] = {&logits, &targets, &loss, &d_logits, &total, &reference, &sums};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

/* dim 16 has two stages of tiles, dim 200 one, and dim 128 small tiles on a GPU of little shared memory; products of
 * warpgroups need some more rows to have every step. */
static void attention(struct digest *digest, int64_t dim, bool warpgroups) {
    const int64_t SEQ = warpgroups ? 300 : 150;
    const struct sw_attention a = {.batch = 1,
                                   .seq = SEQ,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = dim,
                                   .q_stride = dim,
                                   .k_stride = dim,
                                   .v_stride = dim,
                                   .o_stride = dim,
                                   .scale = 0.25f};
    assert_ok(sw_device_use_warpgroups(digest->stream->device, warpgroups));
    struct buffer q = buffer_random(SW_BF16, SEQ * dim, 5, 1.0f), k = buffer_random(SW_BF16, SEQ * dim, 6, 1.0f);
    struct buffer v = buffer_random(SW_BF16, SEQ * dim, 7, 1.0f), o = buffer_zeros(q.bytes),
                  lse = buffer_zeros(SEQ * 4);
    struct buffer dq = buffer_zeros(q.bytes), dk = buffer_zeros(q.bytes), dv = buffer_zeros(q.bytes);
    struct buffer scratch = buffer_zeros(sw_attention_scratch_bytes(digest->stream->device, &a, SW_BF16));
    take_status(digest, sw_attention_forward(digest->stream, SW_BF16, &a, q.data, k.data, v.data, o.data, lse.data,
                                             scratch.data));
    take_status(digest, sw_attention_backward(digest->stream, SW_BF16, &a, q.data, k.data, v.data, o.data, v.data,
                                              lse.data, dq.data, dk.data, dv.data, scratch.data));
    struct buffer *results[] = {&q, &k, &v, &o, &lse, &dq, &dk, &dv, &scratch};
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        take(digest, results[i]);
}

static void attention_of_small_tiles(struct digest *digest) {
    sw_emulation_set_shared(SW_EMULATION_LEAST_SHARED_BYTES);
    attention(digest, 128, false);
    sw_emulation_set_shared(sw_emulation_default_gpu.shared_bytes);
}

/* Runs the ops of attention, or all others. */
static uint64_t run_all(struct sw_device *device, bool of_attention, uint64_t seed) {
    struct digest digest = {0};
    assert_ok(sw_stream_open(device, &digest.stream));
    sw_emulation_set_seed(seed);
    if (of_attention) {
        attention(&digest, 16, false);
        attention(&digest, 200, false);
        attention_of_small_tiles(&digest);
        attention(&digest, 64, true);
    } else {
        norms(&digest);
        muons(&digest);
        embeddings(&digest);
        gradients(&digest);
        codes(&digest);
        frozen(&digest);
        experts(&digest);
        tally(&digest);
        losses(&digest);
    }
    sw_stream_close(digest.stream);
    return digest.value;
}

/* The calls that may be left out. */
static bool has_barrier(const char *line) {
    static const char *const calls[] = {"    __syncthreads();", "    sw_fence_copies();", "    sw_warpgroup_fence();",
                                        "    sw_warpgroup_wait<", "    sw_warpgroup_wait_behind("};
    bool has = false;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        has = has || strstr(line, calls[i]) != NULL;
    return has;
}

struct barrier {
    char file[NAME_CHARS];
    int line;
};

static int find_in(const char *folder, const char *name, struct barrier *found, int count) {
    char path[PATH_CHARS + NAME_CHARS], line[LINE_CHARS];
    snprintf(path, sizeof path, "%s/%.*s", folder, NAME_CHARS - 2, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        if (!has_barrier(line))
            continue;
        assert_true(count < FOUND);
        snprintf(found[count].file, sizeof found[count].file, "%.*s", NAME_CHARS - 1, name);
        found[count++].line = number;
    }
    fclose(file);
    return count;
}

static int find_in_folder(const char *folder, struct barrier *found) {
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    int count = 0;
    for (const struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        /* The calls in warpgroup.cuh are those of a real GPU. */
        if (strstr(entry->d_name, ".cu") != NULL && strcmp(entry->d_name, "warpgroup.cuh") != 0)
            count = find_in(folder, entry->d_name, found, count);
    }
    closedir(listing);
    return count;
}

/* Finds the barriers in the sources of the kernels, or of those that attention's kernels share. */
static int find_barriers(bool of_attention, struct barrier *found) {
    const char *root = getenv("SW_SOURCE_ROOT");
    char folder[PATH_CHARS];
    assert_non_null(root);
    snprintf(folder, sizeof folder, "%s/kernels/cuda%s", root, of_attention ? "/attention" : "");
    return of_attention ? find_in(folder, "attention.cuh", found, 0) : find_in_folder(folder, found);
}

static void leave_out_each(bool of_attention) {
    struct barrier found[FOUND];
    struct sw_device *device = NULL;
    assert_ok(sw_device_open("cuda", 0, &device));
    const int count = find_barriers(of_attention, found);
    assert_true(count > 0);
    const uint64_t whole = run_all(device, of_attention, 1);
    for (uint64_t seed = 2; seed <= SEEDS; seed++)
        assert_true(run_all(device, of_attention, seed) == whole);
    for (int i = 0; i < count; i++) {
        bool shown = false;
        sw_emulation_pass_barrier(found[i].file, found[i].line);
        for (uint64_t seed = 1; seed <= SEEDS && !shown; seed++)
            shown = run_all(device, of_attention, seed) != whole;
        if (!shown)
            fail_msg("the results are the same without the barrier of %s, line %d", found[i].file, found[i].line);
    }
    sw_emulation_pass_barrier(NULL, 0);
    assert_true(run_all(device, of_attention, 1) == whole);
    sw_device_close(device);
}

static void barriers(void **state) {
    (void)state;
    leave_out_each(false);
}

static void barriers_of_attention(void **state) {
    (void)state;
    leave_out_each(true);
}

static uint64_t digest_of_attention(struct sw_device *device) {
    struct digest digest = {0};
    assert_ok(sw_stream_open(device, &digest.stream));
    sw_emulation_take_most_given();
    attention(&digest, 128, false);
    sw_stream_close(digest.stream);
    return digest.value;
}

/* On a GPU of little shared memory two blocks share a multiprocessor too, by other tiles that give the same bits. */
static void small_tiles(void **state) {
    (void)state;
    enum { RESERVED_BYTES = 1 << 10 };
    struct sw_device *device = NULL;
    assert_ok(sw_device_open("cuda", 0, &device));
    const uint64_t large = digest_of_attention(device);
    const size_t large_bytes = sw_emulation_take_most_given();
    sw_emulation_set_shared(SW_EMULATION_LEAST_SHARED_BYTES);
    const uint64_t small = digest_of_attention(device);
    const size_t small_bytes = sw_emulation_take_most_given();
    sw_emulation_set_shared(sw_emulation_default_gpu.shared_bytes);
    sw_device_close(device);
    assert_true(small == large);
    assert_true(2 * (large_bytes + RESERVED_BYTES) > SW_EMULATION_LEAST_SHARED_BYTES);
    assert_true(2 * (small_bytes + RESERVED_BYTES) <= SW_EMULATION_LEAST_SHARED_BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(small_tiles), cmocka_unit_test(barriers),
                                       cmocka_unit_test(barriers_of_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
