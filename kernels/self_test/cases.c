/* The comparisons of the self-test, op by op.
 *
 * A tolerance follows from the arithmetic that the contract allows: the order of sums, the rounding of matrix
 * instructions, the accuracy of exp. One tolerance for all ops would have to be so wide that a wrong mask passes. Ops
 * whose bits are part of their contract are compared bit by bit. */
#include "kernels/self_test/cases.h"

#include "core/quant.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "kernels/moments.h"
#include "kernels/products.h"
#include "kernels/tiling.h"

#include <math.h>
#include <string.h>

/* Ops on elements, sums over rows, the embedding. */

/* exp and tanh of a GPU are accurate to two units in the last place, which the surrounding formulas propagate. */
static const struct trial_tolerance CURVES = {4e-6, 2e-6}, GRADIENTS = {4e-6, 8e-6}, EXACT = {0, 0};
/* Sums of some thousand rows in a different order, in fp32. */
static const struct trial_tolerance SUMS = {1e-5, 4e-4};
enum { ACTIVATIONS = SW_SILU + 1 };

/* One trial takes all four in turn, each on its own row of outputs. */
sw_status trial_activations(struct trial *trial) {
    static const char *const names[ACTIVATIONS] = {"gelu (tanh)", "gelu (erf)", "relu", "silu"};
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const void *x = trial_input(trial, "x", trial->type, elems, 2.0f);
    for (int which = 0; which < ACTIVATIONS; which++) {
        void *y = trial_output(trial, names[which], trial->type, elems, CURVES);
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_activation_forward(trial->stream, trial->type, (sw_activation)which, elems, x, y));
    }
    return SW_OK;
}

sw_status trial_activation_gradients(struct trial *trial) {
    static const char *const names[ACTIVATIONS][2] = {{"dx of gelu (tanh)", "gelu (tanh)"},
                                                      {"dx of gelu (erf)", "gelu (erf)"},
                                                      {"dx of relu", "relu"},
                                                      {"dx of silu", "silu"}};
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const void *x = trial_input(trial, "x", trial->type, elems, 2.0f);
    const void *dy = trial_input(trial, "dy", trial->type, elems, 1.0f);
    for (int which = 0; which < ACTIVATIONS; which++) {
        void *dx = trial_output(trial, names[which][0], trial->type, elems, GRADIENTS);
        void *y = trial_output(trial, names[which][1], trial->type, elems, CURVES);
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_activation_backward(trial->stream, trial->type, (sw_activation)which, elems, x, dy, dx, y));
    }
    return SW_OK;
}

sw_status trial_gated(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *x = trial_input(trial, "x", trial->type, 2 * s->rows * s->cols, 1.5f);
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, CURVES);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_gated_forward(trial->stream, trial->type, SW_SILU, s->rows, s->cols, x, y, SW_ALL_ROWS);
}

sw_status trial_gated_gradients(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *x = trial_input(trial, "x", trial->type, 2 * s->rows * s->cols, 1.5f);
    const void *dy = trial_input(trial, "dy", trial->type, s->rows * s->cols, 1.0f);
    void *dx = trial_output(trial, "dx", trial->type, 2 * s->rows * s->cols, GRADIENTS);
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, CURVES);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_gated_backward(trial->stream, trial->type, SW_SILU, s->rows, s->cols, x, dy, dx, y, SW_ALL_ROWS);
}

sw_status trial_add(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const void *a = trial_input(trial, "a", trial->type, elems, 1.0f);
    const void *b = trial_input(trial, "b", trial->type, elems, 1.0f);
    void *y = trial_output(trial, "y", trial->type, elems, EXACT);
    return trial->pass < TRIAL_REFERENCE ? SW_OK : sw_add(trial->stream, trial->type, elems, a, b, y);
}

sw_status trial_dropout(struct trial *trial) {
    static const double RATE = 0.1;
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const void *x = trial_input(trial, "x", trial->type, elems, 1.0f);
    void *y = trial_output(trial, "y", trial->type, elems, EXACT);
    return trial->pass < TRIAL_REFERENCE
               ? SW_OK
               : sw_dropout(trial->stream, trial->type, elems, RATE, trial->seed, trial->seed, x, y, .cols = s->cols,
                            .first_col = s->cols, .width = 2 * s->cols);
}

sw_status trial_bias_gradient(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *dy = trial_input(trial, "dy", trial->type, s->rows * s->cols, 1.0f);
    float *acc = trial_sum(trial, "the bias's gradient", SW_F32, s->cols, SUMS);
    return trial->pass < TRIAL_REFERENCE ? SW_OK
                                         : sw_bias_gradient(trial->stream, trial->type, s->rows, s->cols, dy, acc);
}

/* Each token occurs several times, because the order in which its gradients are added is part of the contract. */
struct embedding {
    int64_t cols, vocab;
    const int32_t *tokens, *documents;
};

static struct embedding embedding_of(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const int64_t rows = s->batch * s->seq;
    struct embedding e = {.cols = s->heads * s->head_dim, .vocab = rows / 3 + 1};
    e.tokens = trial_operand(
        trial,
        (struct trial_operand){
            .name = "tokens", .type = ELEMENT_I32, .elems = rows, .fill = FILL_INDICES, .first = 0, .limit = e.vocab});
    if (s->document > 0)
        e.documents = trial_operand(trial, (struct trial_operand){.name = "documents",
                                                                  .type = ELEMENT_I32,
                                                                  .elems = rows,
                                                                  .fill = FILL_DOCUMENTS,
                                                                  .first = s->seq,
                                                                  .limit = s->document});
    return e;
}

sw_status trial_embedding_forward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct embedding e = embedding_of(trial);
    const void *table = trial_input(trial, "table", trial->type, e.vocab * e.cols, 1.0f);
    const void *positions = trial_input(trial, "positions", trial->type, s->seq * e.cols, 1.0f);
    void *out = trial_output(trial, "out", trial->type, s->batch * s->seq * e.cols, EXACT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_embedding_forward(trial->stream, trial->type, s->batch, s->seq, e.cols, e.tokens, e.documents, table,
                                positions, out, .scale = 0.5f);
}

sw_status trial_embedding_backward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct embedding e = embedding_of(trial);
    const void *d_out = trial_input(trial, "d_out", trial->type, s->batch * s->seq * e.cols, 1.0f);
    float *table = trial_sum(trial, "the table's gradient", SW_F32, e.vocab * e.cols, EXACT);
    float *positions = trial_sum(trial, "the positions' gradient", SW_F32, s->seq * e.cols, EXACT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_embedding_backward(trial->stream, trial->type, s->batch, s->seq, e.cols, e.tokens, e.documents, d_out,
                                 table, positions, .scale = 0.5f);
}

/* Norms and rotary positions. Tolerances are those of a row's sum in fp32: some units in the last place of the sum of
 * magnitudes, which for drawn elements is near 1. */

static const float EPSILON = 1e-5f, GAMMA_BASE = 0.5f;
static const struct trial_tolerance VALUES = {1e-5, 2e-5}, STATISTICS = {1e-5, 2e-6};

static const float *positive(struct trial *trial, const char *name, int64_t elems) {
    return trial_operand(
        trial, (struct trial_operand){
                   .name = name, .type = ELEMENT_F32, .elems = elems, .fill = FILL_POSITIVE, .deviation = 0.3f});
}

sw_status trial_layernorm_forward(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *x = trial_input(trial, "x", trial->type, s->rows * s->cols, 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, s->cols, 1.0f);
    const void *beta = trial_input(trial, "beta", trial->type, s->cols, 1.0f);
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, VALUES);
    float *mean = trial_output(trial, "mean", SW_F32, s->rows, STATISTICS);
    float *rstd = trial_output(trial, "rstd", SW_F32, s->rows, STATISTICS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_layernorm_forward(trial->stream, trial->type, s->rows, s->cols, EPSILON, x, gamma, beta, y, mean, rstd);
}

/* Half of the trials add to dx, as the residual path does. */
sw_status trial_layernorm_backward(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const bool adds = s->rows % 2 == 0;
    const void *dy = trial_input(trial, "dy", trial->type, s->rows * s->cols, 1.0f);
    const void *x = trial_input(trial, "x", trial->type, s->rows * s->cols, 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, s->cols, 1.0f);
    const float *mean = trial_input(trial, "mean", SW_F32, s->rows, 0.1f);
    const float *rstd = positive(trial, "rstd", s->rows);
    void *dx = adds ? trial_sum(trial, "dx", trial->type, s->rows * s->cols, VALUES)
                    : trial_output(trial, "dx", trial->type, s->rows * s->cols, VALUES);
    float *gamma_acc = trial_sum(trial, "gamma's gradient", SW_F32, s->cols, SUMS);
    float *beta_acc = trial_sum(trial, "beta's gradient", SW_F32, s->cols, SUMS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_layernorm_backward(trial->stream, trial->type, s->rows, s->cols, adds, dy, x, gamma, mean, rstd, dx,
                                 gamma_acc, beta_acc);
}

static sw_status add_norm(struct trial *trial, bool centred) {
    const struct test_rows *s = trial->shape;
    const void *a = trial_input(trial, "a", trial->type, s->rows * s->cols, 1.0f);
    const void *b = trial_input(trial, "b", trial->type, s->rows * s->cols, 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, s->cols, 1.0f);
    const void *beta = centred ? trial_input(trial, "beta", trial->type, s->cols, 1.0f) : NULL;
    void *sum = trial_output(trial, "sum", trial->type, s->rows * s->cols, (struct trial_tolerance){0});
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, VALUES);
    float *mean = centred ? trial_output(trial, "mean", SW_F32, s->rows, STATISTICS) : NULL;
    float *rstd = trial_output(trial, "rstd", SW_F32, s->rows, STATISTICS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_add_norm_forward(trial->stream, trial->type, s->rows, s->cols, EPSILON, a, b, sum, gamma, beta, y, mean,
                               rstd, centred ? 0.0f : GAMMA_BASE);
}

sw_status trial_add_layernorm(struct trial *trial) {
    return add_norm(trial, true);
}

sw_status trial_add_rmsnorm(struct trial *trial) {
    return add_norm(trial, false);
}

/* The heads of a token are neighbours within longer rows, like queries next to keys. */
static struct sw_rmsnorm norm_of(const struct test_heads *s) {
    const int64_t width = s->heads * s->head_dim;
    return (struct sw_rmsnorm){.rows = s->batch * s->seq * s->heads,
                               .cols = s->head_dim,
                               .groups = s->heads,
                               .x_stride = width + s->gap,
                               .y_stride = width + 2 * s->gap,
                               .epsilon = EPSILON,
                               .gamma_base = GAMMA_BASE};
}

/* The last row ends with its elements, so that a write beyond it shows. */
static int64_t head_elems(const struct test_heads *s, int64_t gap) {
    return s->batch * s->seq * (s->heads * s->head_dim + gap) - gap;
}

sw_status trial_rmsnorm_forward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct sw_rmsnorm norm = norm_of(s);
    const void *x = trial_input(trial, "x", trial->type, head_elems(s, s->gap), 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, norm.cols, 1.0f);
    void *y = trial_output(trial, "y", trial->type, head_elems(s, 2 * s->gap), VALUES);
    float *rstd = trial_output(trial, "rstd", SW_F32, norm.rows, STATISTICS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_rmsnorm_forward(trial->stream, trial->type, &norm, x, gamma, y, rstd);
}

sw_status trial_rmsnorm_backward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct sw_rmsnorm norm = norm_of(s);
    const bool adds = s->seq % 2 == 0;
    const void *dy = trial_input(trial, "dy", trial->type, head_elems(s, 2 * s->gap), 1.0f);
    const void *x = trial_input(trial, "x", trial->type, head_elems(s, s->gap), 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, norm.cols, 1.0f);
    const float *rstd = positive(trial, "rstd", norm.rows);
    void *dx = adds ? trial_sum(trial, "dx", trial->type, head_elems(s, s->gap), VALUES)
                    : trial_output(trial, "dx", trial->type, head_elems(s, s->gap), VALUES);
    float *gamma_acc = trial_sum(trial, "gamma's gradient", SW_F32, norm.cols, SUMS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_rmsnorm_backward(trial->stream, trial->type, &norm, adds, dy, x, gamma, rstd, dx, gamma_acc);
}

sw_status trial_rotate(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct sw_rotation rotation = {.batch = s->batch,
                                         .seq = s->seq,
                                         .heads = s->heads,
                                         .head_dim = s->head_dim,
                                         .stride = s->heads * s->head_dim + s->gap,
                                         .back = s->seq % 2 == 1};
    const float *table = trial_input(trial, "table", SW_F32, s->seq * s->head_dim, 1.0f);
    void *x = trial_sum(trial, "x", trial->type, head_elems(s, s->gap), (struct trial_tolerance){2e-6, 2e-6});
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_rotate(trial->stream, trial->type, &rotation, table, x);
}

/* Matrix products. Some rows and columns, which meet every tile that an algorithm has, are computed in double; all
 * other elements must at least be written. */

enum { SAMPLES = 2, FEW_PRODUCTS = 8 /* the largest of a single one */ };

/* Selects the first, the last and some between them, in different tiles. */
static bool sampled(int64_t at, int64_t count) {
    if (count <= SAMPLES || at == count - 1)
        return true;
    return at % (count / SAMPLES + 1) == 0;
}

static double element(const struct sw_gemm *s, const void *a, const void *b, int64_t row, int64_t col) {
    const int64_t a_stride = sw_gemm_a_stride(s);
    double sum = 0.0;
    for (int64_t i = 0; i < s->k; i++) {
        const int64_t a_at = s->transpose_a ? i * a_stride + row : row * a_stride + i;
        const int64_t b_at = s->transpose_b ? col * s->k + i : i * s->n + col;
        sum += (double)sw_dtype_load(s->in, a, a_at) * (double)sw_dtype_load(s->in, b, b_at);
    }
    return sum;
}

struct operands {
    const void *a, *b, *bias, *addend;
    void *c;
};

static void sample(const struct sw_gemm *s, const struct operands *of) {
    const int64_t bytes = sw_dtype_bytes(s->out);
    for (int64_t row = 0; row < s->m; row++)
        for (int64_t col = 0; col < s->n; col++) {
            const int64_t at = row * sw_gemm_c_stride(s) + col;
            if (!sampled(row, s->m) && !sampled(col, s->n)) {
                memset((char *)of->c + at * bytes, 0xff, (size_t)bytes);
                continue;
            }
            double sum = element(s, of->a, of->b, row, col);
            sum += s->bias ? (double)sw_dtype_load(s->in, of->bias, col) : 0.0;
            sum += s->accumulate ? (double)sw_dtype_load(s->out, of->c, at) : 0.0;
            sum += s->addend ? (double)sw_dtype_load(s->out, of->addend, at) : 0.0;
            sw_dtype_store(s->out, of->c, at, (float)sum);
        }
}

/* k products of deviation 1, each wrong by a share of its last place, lose that times the square root of k. Tensor
 * cores truncate sums instead of rounding them. TF32 rounds both factors to 11 bits. A product may be rounded before an
 * addend is added, which may leave less of both than was rounded off; few elements have five times the deviation. */
static struct trial_tolerance tolerance_of(const struct sw_gemm *s, bool tf32) {
    static const double roundings[] = {[SW_F32] = 0.0, [SW_BF16] = 5 * 0x1p-9, [SW_F16] = 5 * 0x1p-12};
    const double sums = tf32 ? 4 * 0x1p-11 : s->in != SW_F32 ? 2e-5 : 5e-6;
    const double one = s->addend ? sums + roundings[s->out] : sums;
    return (struct trial_tolerance){1e-5, one * (sqrt((double)s->k) + (tf32 ? FEW_PRODUCTS : 0))};
}

static sw_status run(struct trial *trial, bool tf32) {
    struct sw_gemm s = *(const struct sw_gemm *)trial->shape;
    int64_t scratch_bytes = 0;
    s.out = s.in == s.out ? trial->type : SW_F32;
    s.in = trial->type;
    struct operands of = {.a = trial_input(trial, "A", s.in, sw_gemm_a_elems(&s), 1.0f),
                          .b = trial_input(trial, "B", s.in, s.k * s.n, 1.0f),
                          .bias = s.bias ? trial_input(trial, "the bias", s.in, s.n, 1.0f) : NULL,
                          .addend = s.addend ? trial_input(trial, "the addend", s.out, s.m * s.n, 1.0f) : NULL};
    of.c = trial_operand(trial, (struct trial_operand){.name = "C",
                                                       .type = (trial_type)s.out,
                                                       .elems = sw_gemm_c_elems(&s),
                                                       .fill = s.accumulate ? FILL_NORMAL : FILL_POISON,
                                                       .deviation = 1.0f,
                                                       .compare = COMPARE_SAMPLED,
                                                       .tolerance = tolerance_of(&s, tf32)});
    if (trial->pass == TRIAL_DECLARE) {
        SW_TRY(sw_device_prepare_gemm(trial->device, &s, &scratch_bytes));
        trial_needs_scratch(trial, scratch_bytes, 0);
    }
    if (trial->pass == TRIAL_REFERENCE)
        sample(&s, &of);
    if (trial->pass != TRIAL_DEVICE)
        return SW_OK;
    return sw_gemm_add(trial->stream, &s, of.a, of.b, of.bias, of.addend, of.c, trial->scratch);
}

/* Names an 8-bit operand: the values of its codes, so that the device's own codes have the same values. */
static sw_status rounded_input(struct trial *trial, const char *name, sw_fp8 as, int64_t elems, const void **out) {
    void *at = trial_operand(trial, (struct trial_operand){.name = name,
                                                           .type = (trial_type)trial->type,
                                                           .elems = elems,
                                                           .fill = FILL_NORMAL,
                                                           .deviation = 1.0f,
                                                           .compare = COMPARE_NOT});
    *out = at;
    if (trial->pass != TRIAL_PREPARE)
        return SW_OK;
    uint8_t *codes = (uint8_t *)trial->scratch + SW_FP8_SCALE_BYTES;
    float *scale = (float *)(void *)trial->scratch;
    SW_TRY(sw_encode_fp8(trial->stream, .type = trial->type, .as = as, .rows = 1, .cols = elems, .from = at,
                         .codes = codes, .scale = scale));
    return sw_decode_fp8(trial->stream, trial->type, as, elems, codes, scale, at);
}

sw_status trial_gemm_fp8(struct trial *trial) {
    struct sw_gemm s = *(const struct sw_gemm *)trial->shape;
    struct operands of = {.bias = NULL};
    int64_t scratch_bytes = 0;
    s.in = trial->type;
    s.out = s.accumulate ? SW_F32 : trial->type;
    if (trial->pass == TRIAL_DECLARE) {
        SW_TRY(sw_device_prepare_gemm(trial->device, &s, &scratch_bytes));
        trial_needs_scratch(trial, scratch_bytes, SW_FP8_SCALE_BYTES + sw_max_i64(s.m * s.k, s.k * s.n));
    }
    SW_TRY(rounded_input(trial, "A", s.a_as, s.m * s.k, &of.a));
    SW_TRY(rounded_input(trial, "B", s.b_as, s.k * s.n, &of.b));
    of.bias = s.bias ? trial_input(trial, "the bias", s.in, s.n, 1.0f) : NULL;
    of.c = trial_operand(trial, (struct trial_operand){.name = "C",
                                                       .type = (trial_type)s.out,
                                                       .elems = s.m * s.n,
                                                       .fill = s.accumulate ? FILL_NORMAL : FILL_POISON,
                                                       .deviation = 1.0f,
                                                       .compare = COMPARE_SAMPLED,
                                                       .tolerance = tolerance_of(&s, false)});
    if (trial->pass == TRIAL_REFERENCE)
        sample(&s, &of);
    if (trial->pass != TRIAL_DEVICE)
        return SW_OK;
    return sw_gemm_add(trial->stream, &s, of.a, of.b, of.bias, NULL, of.c, trial->scratch);
}

sw_status trial_gemm(struct trial *trial) {
    return run(trial, false);
}

sw_status trial_gemm_tf32(struct trial *trial) {
    return run(trial, true);
}

/* Attention, with windows, documents, grouped heads and earlier keys. */

/* The tensors of a trial. Rows are as long as strides say; the last ends with its elements. */
struct tensors {
    struct sw_attention shape;
    const void *q, *k, *v;
};

static int64_t elems_of(int64_t rows, int64_t stride, int64_t width) {
    return (rows - 1) * stride + width;
}

/* Returns the elements from the first head of a row of queries, keys or values to the end of the last. */
static int64_t width_of(const struct test_heads *s, int64_t heads) {
    return (heads - 1) * (s->alibi ? 3 : 1) * s->head_dim + s->head_dim;
}

static struct tensors tensors_of(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const int64_t wide = width_of(s, s->heads), narrow = width_of(s, s->kv_heads);
    const int64_t queries = s->batch * s->seq, keys = s->batch * (s->past + s->seq);
    struct tensors t = {.shape = {.batch = s->batch,
                                  .seq = s->seq,
                                  .past = s->past,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .q_stride = wide + s->gap,
                                  .k_stride = narrow + 2 * s->gap,
                                  .v_stride = narrow + 5 * s->gap,
                                  .o_stride = s->heads * s->head_dim + 3 * s->gap,
                                  .window = s->window,
                                  .head_stride = s->alibi ? 3 * s->head_dim : 0,
                                  .alibi_heads = s->alibi ? s->heads + 1 : 0,
                                  .alibi_first = s->alibi ? 1 : 0,
                                  .scale = 1.0f / sqrtf((float)s->head_dim)}};
    t.q = trial_input(trial, "q", trial->type, elems_of(queries, t.shape.q_stride, wide), 1.5f);
    t.k = trial_input(trial, "k", trial->type, elems_of(keys, t.shape.k_stride, narrow), 1.5f);
    t.v = trial_input(trial, "v", trial->type, elems_of(keys, t.shape.v_stride, narrow), 1.0f);
    if (s->document > 0)
        t.shape.document_start = trial_operand(trial, (struct trial_operand){.name = "documents",
                                                                             .type = ELEMENT_I32,
                                                                             .elems = queries,
                                                                             .fill = FILL_DOCUMENTS,
                                                                             .first = s->seq,
                                                                             .limit = s->document});
    if (trial->pass == TRIAL_DECLARE)
        trial_needs_scratch(trial, sw_attention_scratch_bytes(trial->device, &t.shape, trial->type),
                            sw_attention_scratch_bytes(trial->reference, &t.shape, trial->type));
    return t;
}

/* A GPU's matrix instructions take probabilities and their gradients in the tensors' type, with 8 bits in bf16 and 11
 * in fp16; fp32 tensors are multiplied in fp32. */
static struct trial_tolerance rounding_of(sw_dtype type, double roundings) {
    const double one = type == SW_F32 ? 3e-5 : type == SW_BF16 ? 0x1p-8 : 0x1p-11;
    return (struct trial_tolerance){roundings * one, roundings * one};
}

sw_status trial_attention_forward(struct trial *trial) {
    const struct tensors t = tensors_of(trial);
    const struct sw_attention *s = &t.shape;
    const int64_t wide = s->heads * s->head_dim, queries = s->batch * s->seq;
    void *o =
        trial_output(trial, "o", trial->type, elems_of(queries, s->o_stride, wide), rounding_of(trial->type, 1.0));
    float *log_sum_exp =
        trial_output(trial, "log-sum-exp", SW_F32, queries * s->heads, (struct trial_tolerance){1e-5, 1e-5});
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_attention_forward(trial->stream, trial->type, s, t.q, t.k, t.v, o, log_sum_exp, trial->scratch);
}

/* The backward pass rounds twice, and sums the errors over all queries of a key. */
enum { BACKWARD_ROUNDINGS = 8 };

sw_status trial_attention_backward(struct trial *trial) {
    const struct tensors t = tensors_of(trial);
    const struct sw_attention *s = &t.shape;
    const sw_dtype type = trial->type;
    const struct test_heads *heads = trial->shape;
    const int64_t wide = s->heads * s->head_dim, rows = s->batch * s->seq;
    const int64_t queries = width_of(heads, s->heads), keys = width_of(heads, s->kv_heads);
    const struct trial_tolerance within = rounding_of(type, BACKWARD_ROUNDINGS);
    const void *d_o = trial_input(trial, "d_o", type, elems_of(rows, s->o_stride, wide), 1.0f);
    void *o = (void *)trial_input(trial, "o", type, elems_of(rows, s->o_stride, wide), 1.0f);
    float *log_sum_exp = (float *)trial_input(trial, "log-sum-exp", SW_F32, rows * s->heads, 1.0f);
    void *dq = trial_output(trial, "dq", type, elems_of(rows, s->q_stride, queries), within);
    void *dk = trial_output(trial, "dk", type, elems_of(rows, s->k_stride, keys), within);
    void *dv = trial_output(trial, "dv", type, elems_of(rows, s->v_stride, keys), within);
    if (trial->pass == TRIAL_DECLARE)
        return SW_OK;
    if (trial->pass == TRIAL_PREPARE)
        return sw_attention_forward(trial->stream, type, s, t.q, t.k, t.v, o, log_sum_exp, trial->scratch);
    return sw_attention_backward(trial->stream, type, s, t.q, t.k, t.v, o, d_o, log_sum_exp, dq, dk, dv,
                                 trial->scratch);
}

/* The loss and its gradient, whole and by tiles of the vocabulary. */

/* Logarithms and sums of exponentials in fp32, compared with the reference's in double. */
static const struct trial_tolerance LOSS = {2e-6, 4e-6}, GRADIENT = {4e-6, 4e-7}, SUM = {4e-6, 1e-6};
static const float SCALE = 0.25f;

/* Some rows have no target. */
static const int32_t *targets_of(struct trial *trial, const struct test_rows *s) {
    return trial_operand(trial, (struct trial_operand){.name = "targets",
                                                       .type = ELEMENT_I32,
                                                       .elems = s->rows,
                                                       .fill = FILL_INDICES,
                                                       .first = -1,
                                                       .limit = s->cols});
}

sw_status trial_cross_entropy(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t stride = sw_round_up(s->cols, TRIAL_ROW_MULTIPLE), elems = s->rows * stride;
    const float *logits = trial_input(trial, "logits", SW_F32, elems, 2.0f);
    const int32_t *targets = targets_of(trial, s);
    float *loss = trial_output(trial, "loss", SW_F32, s->rows, LOSS);
    void *gradient = trial_output(trial, "d_logits", trial->type, elems, GRADIENT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_cross_entropy(trial->stream, trial->type, s->rows, s->cols, stride, SCALE, logits, targets, loss,
                            gradient, NULL);
}

/* Two tiles, the second ragged and with gaps between rows. Each holds its columns of the whole in an order of its own.
 */
struct tiles {
    int64_t cols[2], stride[2];
    const float *logits[2];
    const int32_t *targets;
};

static struct tiles tiles_of(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    struct tiles t = {0};
    t.cols[0] = s->cols > SW_SOFTMAX_BLOCK_COLUMNS ? s->cols / 2 / SW_SOFTMAX_BLOCK_COLUMNS * SW_SOFTMAX_BLOCK_COLUMNS
                                                   : s->cols;
    t.cols[0] = sw_max_i64(t.cols[0], sw_min_i64(s->cols, SW_SOFTMAX_BLOCK_COLUMNS));
    t.cols[1] = s->cols - t.cols[0];
    t.stride[0] = t.cols[0];
    t.stride[1] = sw_round_up(t.cols[1], TRIAL_ROW_MULTIPLE);
    for (int i = 0; i < 2 && t.cols[i] > 0; i++)
        t.logits[i] = trial_input(trial, "logits", SW_F32, s->rows * t.stride[i], 2.0f);
    t.targets = targets_of(trial, s);
    return t;
}

static sw_status take_tiles(struct sw_stream *stream, const struct test_rows *s, const struct tiles *t, float *max,
                            float *sum, float *target_logit) {
    SW_TRY(sw_softmax_partial(stream, s->rows, t->cols[0], t->stride[0], 0, t->logits[0], t->targets, max, sum,
                              target_logit, .begin_col = 0));
    if (t->cols[1] == 0)
        return SW_OK;
    return sw_softmax_partial(stream, s->rows, t->cols[1], t->stride[1], t->cols[0], t->logits[1], t->targets, max, sum,
                              target_logit, .begin_col = 0);
}

sw_status trial_softmax_partial(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const struct tiles t = tiles_of(trial);
    float *max = trial_output(trial, "max", SW_F32, s->rows, EXACT);
    float *sum = trial_output(trial, "sum", SW_F32, s->rows, SUM);
    float *target_logit = trial_output(trial, "the target's logit", SW_F32, s->rows, EXACT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return take_tiles(trial->stream, s, &t, max, sum, target_logit);
}

/* As many parts as a large tensor group has ranks. */
sw_status trial_softmax_combine(struct trial *trial) {
    enum { PARTS = 8 };
    const struct test_rows *s = trial->shape;
    const float *part = trial_input(trial, "parts", SW_F32, (int64_t)PARTS * 3 * s->rows, 2.0f);
    float *max = trial_output(trial, "max", SW_F32, s->rows, EXACT);
    float *sum = trial_output(trial, "sum", SW_F32, s->rows, SUM);
    float *target_logit = trial_output(trial, "the target's logit", SW_F32, s->rows, SUM);
    return trial->pass < TRIAL_REFERENCE
               ? SW_OK
               : sw_softmax_combine(trial->stream, s->rows, PARTS, 3 * s->rows, s->rows, part, max, sum, target_logit);
}

sw_status trial_cross_entropy_tile(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const struct tiles t = tiles_of(trial);
    float *max = (float *)trial_input(trial, "max", SW_F32, s->rows, 1.0f);
    float *sum = (float *)trial_input(trial, "sum", SW_F32, s->rows, 1.0f);
    float *target_logit = (float *)trial_input(trial, "the target's logit", SW_F32, s->rows, 1.0f);
    float *loss = trial_output(trial, "loss", SW_F32, s->rows, LOSS);
    int64_t first = 0;
    if (trial->pass == TRIAL_PREPARE)
        SW_TRY(take_tiles(trial->stream, s, &t, max, sum, target_logit));
    for (int i = 0; i < 2 && t.cols[i] > 0; i++) {
        void *gradient = trial_output(trial, "d_logits", trial->type, s->rows * t.stride[i], GRADIENT);
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_cross_entropy_tile(trial->stream, trial->type, s->rows, t.cols[i], t.stride[i], first, SCALE,
                                         t.logits[i], t.targets, max, sum, target_logit, loss, gradient, NULL));
        first += t.cols[i];
    }
    return SW_OK;
}

sw_status trial_sum_losses(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const float *losses = trial_input(trial, "losses", SW_F32, s->rows, 1.0f);
    double *total = trial_operand(trial, (struct trial_operand){.name = "total",
                                                                .type = ELEMENT_F64,
                                                                .elems = 1,
                                                                .fill = FILL_NORMAL,
                                                                .deviation = 1.0f,
                                                                .compare = COMPARE_CLOSE,
                                                                .tolerance = {1e-12, 1e-12}});
    return trial->pass < TRIAL_REFERENCE ? SW_OK : sw_sum_losses(trial->stream, s->rows, losses, total);
}

/* Sequences are as long as a row, and each pair is a row. */
sw_status trial_preference(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t sequences = 2 * s->rows;
    const float *losses = trial_input(trial, "losses", SW_F32, sequences * s->cols, 1.0f);
    const struct trial_operand reference = {
        .name = "reference", .type = ELEMENT_F64, .elems = sequences, .fill = FILL_NORMAL, .deviation = 4.0f};
    const double *log_probabilities = trial_operand(trial, reference);
    double *sums = trial_operand(trial, (struct trial_operand){.name = "sums",
                                                               .type = ELEMENT_F64,
                                                               .elems = sequences,
                                                               .compare = COMPARE_CLOSE,
                                                               .tolerance = {1e-12, 1e-12}});
    float *row_scale = trial_output(trial, "row scale", SW_F32, sequences * s->cols, SUM);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_preference(trial->stream, s->rows, s->cols, 0.1, losses, log_probabilities, sums, row_scale);
}

/* Block quantization and 8-bit numbers, whose bits are part of their contract. */

static const sw_quant quants[] = {SW_QUANT_INT8, SW_QUANT_INT4};
enum { QUANTS = sizeof quants / sizeof quants[0], QUANT_RANKS = 3, QUANT_OWN = 1 };

static int64_t grains_of(const struct trial *trial) {
    return ((const struct test_rows *)trial->shape)->rows;
}

/* Names records, as the words that they consist of. */
static void *records(struct trial *trial, const char *name, sw_quant quant, int64_t grains, trial_compare compare) {
    return trial_operand(trial,
                         (struct trial_operand){.name = name,
                                                .type = ELEMENT_F32,
                                                .elems = grains * sw_quant_grain_bytes(quant) / (int64_t)sizeof(float),
                                                .compare = compare});
}

sw_status trial_quantize(struct trial *trial) {
    static const char *const names[QUANTS] = {"records of int8", "records of int4"};
    const int64_t grains = grains_of(trial);
    const void *from = trial_input(trial, "elements", trial->type, grains * SW_GRAIN_ELEMS, 1.0f);
    for (int q = 0; q < QUANTS; q++) {
        void *to = records(trial, names[q], quants[q], grains, COMPARE_BITS);
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_quantize(trial->stream, trial->type, quants[q], grains, from, to));
    }
    return SW_OK;
}

/* The records of several ranks count as that many times the grains. */
sw_status trial_dequantize(struct trial *trial) {
    static const char *const names[QUANTS] = {"sum of int8", "sum of int4"};
    const int64_t grains = grains_of(trial), elems = grains * SW_GRAIN_ELEMS;
    const void *from = trial_input(trial, "elements", SW_F32, QUANT_RANKS * elems, 1.0f);
    for (int q = 0; q < QUANTS; q++) {
        const int64_t bytes = grains * sw_quant_grain_bytes(quants[q]);
        char *of_ranks = records(trial, "records", quants[q], QUANT_RANKS * grains, COMPARE_NOT);
        void *to = trial_operand(
            trial, (struct trial_operand){
                       .name = names[q], .type = (trial_type)trial->type, .elems = elems, .compare = COMPARE_BITS});
        if (trial->pass == TRIAL_PREPARE)
            SW_TRY(sw_quantize(trial->stream, SW_F32, quants[q], QUANT_RANKS * grains, from, of_ranks));
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_dequantize(trial->stream, .type = trial->type, .quant = quants[q], .grains = grains,
                                 .rank = QUANT_OWN, .ranks = QUANT_RANKS, .stride_bytes = bytes, .own = of_ranks,
                                 .others = of_ranks + bytes, .to = to));
    }
    return SW_OK;
}

/* Names codes, as the words that they consist of. */
static void *code_words(struct trial *trial, const char *name, int64_t codes) {
    return trial_operand(trial, (struct trial_operand){.name = name,
                                                       .type = ELEMENT_F32,
                                                       .elems = codes / (int64_t)sizeof(float),
                                                       .compare = COMPARE_BITS});
}

/* Every scale shows in the decoded values. */
sw_status trial_encode_fp8(struct trial *trial) {
    static const sw_fp8 types[] = {SW_FP8_E4M3, SW_FP8_E5M2};
    static const char *const names[][3] = {{"codes of e4m3", "turned codes of e4m3", "numbers of e4m3"},
                                           {"codes of e5m2", "turned codes of e5m2", "numbers of e5m2"}};
    enum { COLS = 128 };
    const int64_t elems = grains_of(trial) * SW_GRAIN_ELEMS, rows = elems / COLS;
    const void *from = trial_input(trial, "elements", trial->type, elems, 1.0f);
    if (trial->pass == TRIAL_DECLARE)
        trial_needs_scratch(trial, SW_FP8_SCALE_BYTES, SW_FP8_SCALE_BYTES);
    for (int t = 0; t < 2; t++) {
        uint8_t *codes = code_words(trial, names[t][0], elems), *turned = code_words(trial, names[t][1], elems);
        float *scale = (float *)(void *)trial->scratch;
        void *numbers = trial_operand(
            trial, (struct trial_operand){
                       .name = names[t][2], .type = (trial_type)trial->type, .elems = elems, .compare = COMPARE_BITS});
        if (trial->pass < TRIAL_REFERENCE)
            continue;
        SW_TRY(sw_encode_fp8(trial->stream, .type = trial->type, .as = types[t], .rows = rows, .cols = COLS,
                             .transpose = true, .from = from, .codes = turned, .scale = scale));
        SW_TRY(sw_encode_fp8(trial->stream, .type = trial->type, .as = types[t], .rows = rows, .cols = COLS,
                             .from = from, .codes = codes, .scale = scale));
        SW_TRY(sw_decode_fp8(trial->stream, trial->type, types[t], elems, codes, scale, numbers));
    }
    return SW_OK;
}

/* The unit has one more wide grain than the call has other grains. */
sw_status trial_pack_weights(struct trial *trial) {
    const int64_t grains = grains_of(trial), wide_elem = grains * SW_GRAIN_ELEMS;
    const int64_t record_elems = sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32_APART) / (int64_t)sizeof(float);
    const void *from = trial_input(trial, "records", SW_F32, (grains + 1) * record_elems, 1.0f);
    void *packed = code_words(trial, "weights", (grains + 1) * (int64_t)SW_GRAIN_ELEMS);
    void *whole = trial_operand(
        trial, (struct trial_operand){
                   .name = "unpacked weights", .type = ELEMENT_BF16, .elems = wide_elem, .compare = COMPARE_BITS});
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_pack_weights(trial->stream, .type = SW_BF16, .grains = grains + 1, .wide_elem = wide_elem,
                           .format = SW_OPTIMIZER_FP32_APART, .records = from, .weights = packed));
    return sw_unpack_weights(trial->stream, SW_BF16, 0, wide_elem, packed, whole);
}

/* Makes records of a format that only checkpoints have, with codes and scales of every kind. */
static void make_stored(sw_base_format format, int64_t grains, void *records) {
    enum { CODE_STEP = 37 };
    for (int64_t g = 0; g < grains; g++) {
        uint8_t *record = (uint8_t *)records + g * sw_base_grain_bytes(format);
        for (int64_t i = 0; i < sw_base_grain_bytes(format); i++)
            record[i] = (uint8_t)((g + i) * CODE_STEP + i / 256);
        for (int b = 0; format == SW_BASE_FP8 && b < SW_FP8_BASE_BLOCKS; b++)
            ((struct sw_fp8_record *)(void *)record)->scales[b] = 0.02f * (1.0f + (float)b);
    }
}

static sw_status make_base(struct trial *trial, sw_base_format format, int64_t grains, const void *from,
                           void *records) {
    if (sw_base_stored_elems(format) == 0)
        return sw_quantize_base(trial->stream, trial->type, format, grains, from, records);
    make_stored(format, grains, records);
    return SW_OK;
}

/* A GPU takes the records that the reference made. The values begin and end within a block. */
sw_status trial_base(struct trial *trial) {
    enum { FIRST = 24, TAIL = 10 };
    static const struct {
        sw_base_format format;
        const char *records, *values;
    } formats[] = {{SW_BASE_INT8, "records of int8", "values of int8"},
                   {SW_BASE_NF4, "records of nf4", "values of nf4"},
                   {SW_BASE_FP8, "records of fp8", "values of fp8"},
                   {SW_BASE_MXFP4, "records of mxfp4", "values of mxfp4"}};
    const bool on_host = sw_device_info(trial->device).host_memory;
    const int64_t grains = grains_of(trial), elems = grains * SW_GRAIN_ELEMS - FIRST - TAIL;
    const void *from = trial_input(trial, "elements", trial->type, grains * SW_GRAIN_ELEMS, 0.02f);
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        const sw_base_format format = formats[f].format;
        const bool stored = sw_base_stored_elems(format) > 0, quantizes = on_host && !stored;
        void *packed = trial_operand(
            trial, (struct trial_operand){.name = formats[f].records,
                                          .type = ELEMENT_F32,
                                          .elems = grains * sw_base_grain_bytes(format) / (int64_t)sizeof(float),
                                          .compare = quantizes ? COMPARE_BITS : COMPARE_NOT});
        void *to = trial_operand(trial, (struct trial_operand){.name = formats[f].values,
                                                               .type = (trial_type)trial->type,
                                                               .elems = elems,
                                                               .compare = COMPARE_BITS});
        if (quantizes ? trial->pass >= TRIAL_REFERENCE : trial->pass == TRIAL_PREPARE)
            SW_TRY(make_base(trial, format, grains, from, packed));
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_dequantize_base(trial->stream, trial->type, format, FIRST, elems, packed, to));
    }
    return SW_OK;
}

/* The end of a gradient, and the update. Their bits are part of their contract: they must be those of the reference. */

static void *exact(struct trial *trial, const char *name, trial_type type, int64_t elems) {
    return trial_operand(trial,
                         (struct trial_operand){.name = name, .type = type, .elems = elems, .compare = COMPARE_BITS});
}

/* Words of a grain of gradients in 8 bits. */
enum { KEPT_WORDS = (int)(SW_GRADS_8BIT_GRAIN_BYTES / 4) };

static int64_t grain_elems(const struct trial *trial) {
    return ((const struct test_rows *)trial->shape)->rows * SW_GRAIN_ELEMS;
}

sw_status trial_finish_gradient(struct trial *trial) {
    const int64_t elems = grain_elems(trial);
    const float *acc = trial_input(trial, "the accumulator", SW_F32, elems, 1.0f);
    void *grads = exact(trial, "gradients", (trial_type)trial->type, elems);
    double *sums = exact(trial, "sums of squares", ELEMENT_F64, elems / SW_GRAIN_ELEMS);
    void *kept = exact(trial, "gradients in 8 bits", ELEMENT_F32, elems / SW_GRAIN_ELEMS * KEPT_WORDS);
    double *kept_sums = exact(trial, "sums of squares in 8 bits", ELEMENT_F64, elems / SW_GRAIN_ELEMS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_finish_gradient(trial->stream, .type = trial->type, .elems = elems, .acc = acc, .grads = grads,
                              .sums = sums));
    return sw_finish_gradient(trial->stream, .type = trial->type, .elems = elems, .acc = acc, .grads = kept,
                              .sums = kept_sums, .format = SW_GRADS_8BIT);
}

sw_status trial_round_gradient(struct trial *trial) {
    const int64_t elems = grain_elems(trial);
    const float *acc = trial_input(trial, "the accumulator", SW_F32, elems, 1.0f);
    void *grads = exact(trial, "gradients", (trial_type)trial->type, elems);
    return trial->pass < TRIAL_REFERENCE
               ? SW_OK
               : sw_round_gradient(trial->stream, .type = trial->type, .elems = elems, .from = acc, .to = grads);
}

sw_status trial_square_sums(struct trial *trial) {
    const int64_t elems = grain_elems(trial);
    const void *grads = trial_input(trial, "gradients", trial->type, elems, 1.0f);
    double *sums = exact(trial, "sums of squares", ELEMENT_F64, elems / SW_GRAIN_ELEMS);
    return trial->pass < TRIAL_REFERENCE ? SW_OK : sw_square_sums(trial->stream, trial->type, elems, grads, sums);
}

sw_status trial_cast(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const float *from = trial_operand(
        trial, (struct trial_operand){
                   .name = "from", .type = ELEMENT_F32, .elems = elems, .fill = FILL_EDGES, .deviation = 1.0f});
    void *to = exact(trial, "to", (trial_type)trial->type, elems);
    return trial->pass < TRIAL_REFERENCE
               ? SW_OK
               : sw_cast_from_f32(trial->stream, .type = trial->type, .elems = elems, .from = from, .to = to);
}

/* Second moments are squares. */
static void make_moments(float *records, int64_t grains) {
    for (int64_t g = 0; g < grains; g++) {
        float *m = records + (g * SW_OPTIMIZER_VECTORS + 1) * SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            v[i] *= v[i];
    }
}

/* The forms of optimizer state to compare, with their roundings. */
static const struct form {
    sw_optimizer_format format;
    sw_rounding rounding;
    const char *name;
    sw_grads_format grads;
} forms[] = {{SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, "records", SW_GRADS_TYPED},
             {SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, "records from gradients in 8 bits", SW_GRADS_8BIT},
             {SW_OPTIMIZER_8BIT, SW_ROUND_NEAREST, "records in 8 bits from gradients in 8 bits", SW_GRADS_8BIT},
             {SW_OPTIMIZER_BF16, SW_ROUND_NEAREST, "records in bf16", SW_GRADS_TYPED},
             {SW_OPTIMIZER_BF16, SW_ROUND_STOCHASTIC, "records in bf16, rounded at random", SW_GRADS_TYPED},
             {SW_OPTIMIZER_8BIT, SW_ROUND_NEAREST, "records in 8 bits", SW_GRADS_TYPED},
             {SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC, "records in 8 bits, rounded at random", SW_GRADS_TYPED}};
enum { FORMS = sizeof forms / sizeof forms[0] };

/* Rounds drawn moments to a form. The last grain is wide. */
static void make_records(const struct form *form, const float *fp32, int64_t grains, char *records) {
    const struct sw_moment_rounding how = {.rounding = SW_ROUND_NEAREST};
    for (int64_t g = 0; g < grains; g++)
        sw_record_from_fp32(form->format, g == grains - 1, &how, fp32 + g * SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS,
                            records + g * sw_optimizer_grain_bytes(form->format));
}

/* Quantizes drawn gradients. */
static sw_status make_kept(struct trial *trial, int64_t grains, const void *grads, char *kept) {
    const int64_t grain_bytes = SW_GRAIN_ELEMS * sw_dtype_bytes(trial->type);
    for (int64_t g = 0; g < grains; g++)
        SW_TRY(sw_quantize(trial->stream, trial->type, SW_QUANT_INT8, 1, (const char *)grads + g * grain_bytes,
                           kept + g * SW_GRADS_8BIT_GRAIN_BYTES));
    return SW_OK;
}

/* Runs with and without decay, and with learning rates and a t of their own, begin and end within grains; one run is
 * left out. A tail of the unit is padding. */
sw_status trial_update(struct trial *trial) {
    enum { FIRST_RUN = 101, SECOND_RUN = 1024, LEFT_OUT = 3072, TAIL = 77, STEP = 3 };
    const int64_t elems = grain_elems(trial), grains = elems / SW_GRAIN_ELEMS;
    const struct sw_decay_run runs[] = {{.end = FIRST_RUN, .decay = true},
                                        {.end = SECOND_RUN, .decay = true, .step = 7},
                                        {.end = LEFT_OUT, .left_out = true},
                                        {.end = elems / 2 + 1, .decay = false, .lr_scale = 0.1},
                                        {.end = elems - TAIL, .decay = true, .lr_scale = 3.0}};
    const struct sw_adamw adamw = {
        .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.375f, .step = STEP};
    const void *grads = trial_input(trial, "gradients", trial->type, elems, 0.5f);
    void *kept = trial_operand(trial, (struct trial_operand){.name = "gradients in 8 bits",
                                                             .type = ELEMENT_F32,
                                                             .elems = grains * KEPT_WORDS,
                                                             .compare = COMPARE_NOT});
    float *drawn = NULL;
    if (trial->pass == TRIAL_PREPARE)
        SW_TRY(make_kept(trial, grains, grads, kept));
    for (int f = 0; f < FORMS; f++) {
        char *records = trial_operand(
            trial, (struct trial_operand){.name = forms[f].name,
                                          .type = ELEMENT_F32,
                                          .elems = grains * sw_optimizer_grain_bytes(forms[f].format) / 4,
                                          .fill = forms[f].format == SW_OPTIMIZER_FP32 ? FILL_NORMAL : FILL_POISON,
                                          .deviation = 0.1f,
                                          .compare = COMPARE_BITS});
        void *weights = exact(trial, "weights", (trial_type)trial->type, elems);
        if (f == 0)
            drawn = (float *)records;
        if (trial->pass == TRIAL_PREPARE && f == 0)
            make_moments(drawn, grains);
        else if (trial->pass == TRIAL_PREPARE && forms[f].format == SW_OPTIMIZER_FP32)
            memcpy(records, drawn, (size_t)(grains * SW_OPTIMIZER_GRAIN_BYTES));
        else if (trial->pass == TRIAL_PREPARE)
            make_records(&forms[f], drawn, grains, records);
        if (trial->pass < TRIAL_REFERENCE)
            continue;
        SW_TRY(sw_update_adamw(
            trial->stream, .type = trial->type, .adamw = &adamw, .grains = grains, .runs = runs,
            .run_count = sizeof runs / sizeof runs[0], .grads = forms[f].grads == SW_GRADS_8BIT ? kept : grads,
            .records = records, .weights = weights, .grads_format = forms[f].grads, .format = forms[f].format,
            .rounding = forms[f].rounding, .seed = trial->seed, .unit = 1, .wide_elem = elems - SW_GRAIN_ELEMS));
    }
    return SW_OK;
}

/* Checks the sum of three other ranks' contributions against a plain sum. */
sw_status trial_rank_sum(struct trial *trial) {
    enum { RANKS = 4, OWN = 1 };
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols, bytes = sw_dtype_bytes(trial->type);
    const int64_t stride = sw_round_up(elems, SW_TENSOR_ALIGN_ELEMS);
    const char *own = trial_input(trial, "the own share", trial->type, elems, 1.0f);
    const char *others = trial_input(trial, "the others' shares", trial->type, (RANKS - 1) * stride, 1.0f);
    float *to = exact(trial, "the sum", ELEMENT_F32, elems);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    if (trial->pass == TRIAL_REFERENCE || sw_device_info(trial->device).host_memory) {
        for (int64_t i = 0; i < elems; i++) {
            to[i] = sw_dtype_load(trial->type, others, i) + sw_dtype_load(trial->type, own, i);
            for (int64_t other = OWN; other < RANKS - 1; other++)
                to[i] += sw_dtype_load(trial->type, others + other * stride * bytes, i);
        }
        return SW_OK;
    }
    return sw_device_run(trial->stream, SW_DEVICE_RANK_SUM,
                         &(const struct sw_comm_sum){.type = trial->type,
                                                     .to_type = SW_F32,
                                                     .elems = elems,
                                                     .rank = OWN,
                                                     .ranks = RANKS,
                                                     .own = own,
                                                     .others = others,
                                                     .stride_bytes = stride * bytes,
                                                     .to = to});
}
