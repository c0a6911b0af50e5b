/* Block quantization and numbers in 8 bits, whose bits are part of their contract. */
#include "core/quant.h"
#include "kernels/fp8_product.h"
#include "kernels/self_test/ops.h"

static const sw_quant quants[] = {SW_QUANT_INT8, SW_QUANT_INT4};
enum { QUANTS = sizeof quants / sizeof quants[0], RANKS = 3, OWN = 1 };

static int64_t grains_of(const struct trial *trial) {
    return ((const struct test_rows *)trial->shape)->rows;
}

/* Names records, by the words that they lie in. */
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

/* The records of several ranks are those of as many times the grains. */
sw_status trial_dequantize(struct trial *trial) {
    static const char *const names[QUANTS] = {"sum of int8", "sum of int4"};
    const int64_t grains = grains_of(trial), elems = grains * SW_GRAIN_ELEMS;
    const void *from = trial_input(trial, "elements", SW_F32, RANKS * elems, 1.0f);
    for (int q = 0; q < QUANTS; q++) {
        const int64_t bytes = grains * sw_quant_grain_bytes(quants[q]);
        char *of_ranks = records(trial, "records", quants[q], RANKS * grains, COMPARE_NOT);
        void *to = trial_operand(
            trial, (struct trial_operand){
                       .name = names[q], .type = (trial_type)trial->type, .elems = elems, .compare = COMPARE_BITS});
        if (trial->pass == TRIAL_PREPARE)
            SW_TRY(sw_quantize(trial->stream, SW_F32, quants[q], RANKS * grains, from, of_ranks));
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_dequantize(trial->stream, .type = trial->type, .quant = quants[q], .grains = grains, .rank = OWN,
                                 .ranks = RANKS, .stride_bytes = bytes, .own = of_ranks, .others = of_ranks + bytes,
                                 .to = to));
    }
    return SW_OK;
}

/* Names codes, by the words that they lie in. */
static void *code_words(struct trial *trial, const char *name, int64_t codes) {
    return trial_operand(trial, (struct trial_operand){.name = name,
                                                       .type = ELEMENT_F32,
                                                       .elems = codes / (int64_t)sizeof(float),
                                                       .compare = COMPARE_BITS});
}

/* Every scale shows in what its codes are decoded to. */
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

/* The unit has one wide grain more than the call has others. */
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
