/* Matrix products: some rows and columns of each, which meet every tile that an algorithm has, are computed in double,
 * and all other elements must be there. */
#include "core/size.h"
#include "kernels/fp8_product.h"
#include "kernels/self_test/ops.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 2, FEW_PRODUCTS = 8 /* the most that one alone may be */ };

/* The first, the last and some between them, which lie in different tiles. */
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

/* k products of deviation 1, each a share of its last place off, lose that times the square root of k. Tensor cores cut
 * sums off instead of rounding them. TF32 rounds both factors to 11 bits. A product may be rounded before an addend is
 * added to it, which may leave less of both than was rounded off; few elements have five times the deviation. */
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

/* Names an operand in 8 bits: what its codes stand for, so that the device's own codes stand for the same. */
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
