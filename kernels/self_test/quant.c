/* Block quantization, whose bits are part of its contract. */
#include "core/quant.h"
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
