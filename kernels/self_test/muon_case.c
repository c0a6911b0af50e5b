/* The comparison of the Muon update: momenta bit for bit, masters within the rounding of its products. */
#include "kernels/self_test/cases.h"

#include "core/size.h"
#include "kernels/moments.h"
#include "kernels/muon.h"

#include <stdlib.h>

/* One that is turned and one that is not, two whose outputs take turns, three whose heads do; and a larger one. One
 * side is at least four times the other: the singular values of such random matrices are near each other, so that
 * rounding is not raised much. */
static const struct sw_muon_tensor tensors[] = {
    {.first_elem = 0, .outputs = 20, .inputs = 100, .parts = 1, .part_end = {20}, .decay = true},
    {.first_elem = 2048, .outputs = 140, .inputs = 35, .parts = 1, .part_end = {140}, .lr_scale = 0.5},
    {.first_elem = 7168,
     .outputs = 40,
     .inputs = 90,
     .in_first = true,
     .alternate = true,
     .parts = 2,
     .part_end = {20, 40}},
    {.first_elem = 10880, .outputs = 30, .inputs = 50, .turn = 5, .parts = 3, .part_end = {10, 20, 30}},
    {.first_elem = SW_GRAIN_ELEMS, .outputs = 70, .inputs = 400, .parts = 1, .part_end = {70}, .decay = true},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0], LARGE_GRAINS = 3 };

#define LR 0.01
/* A sixteenth of the largest elements of X, which are about 0.4. Jordan's scale is 2 where it is largest, for the
 * tensor with half the rate. */
static const struct trial_tolerance STEPS = {0.0, LR * 0.4 / 16.0};

static const struct form {
    sw_optimizer_format format;
    const char *records, *weights;
} forms[] = {{SW_OPTIMIZER_MUON, "records", "weights"},
             {SW_OPTIMIZER_MUON_BF16, "records of momenta in bf16", "weights of momenta in bf16"},
             {SW_OPTIMIZER_MUON_8BIT, "records of momenta in 8 bits", "weights of momenta in 8 bits"}};
enum { FORMS = sizeof forms / sizeof forms[0] };

/* Rounds the momenta of drawn records to a narrow form. */
static sw_status round_records(int64_t grains, char *wide, sw_optimizer_format format, char *narrow) {
    const struct sw_moment_rounding nearest = {.rounding = SW_ROUND_NEAREST};
    float *fp32 = malloc((size_t)sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32));
    if (fp32 == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to test the device");
    for (int64_t g = 0; g < grains; g++) {
        sw_muon_record_to_fp32(SW_OPTIMIZER_MUON, wide + g * sw_optimizer_muon_bytes(SW_OPTIMIZER_MUON), fp32);
        sw_muon_record_from_fp32(format, &nearest, fp32, narrow + g * sw_optimizer_muon_bytes(format));
    }
    free(fp32);
    return SW_OK;
}

static sw_status need_scratch(struct trial *trial, int64_t count) {
    int64_t bytes, reference_bytes;
    SW_TRY(sw_muon_prepare(trial->device, tensors, count, &bytes));
    SW_TRY(sw_muon_prepare(trial->reference, tensors, count, &reference_bytes));
    trial_needs_scratch(trial, bytes, reference_bytes);
    return SW_OK;
}

sw_status trial_muon(struct trial *trial) {
    static const struct sw_muon muon = {
        .lr = LR, .momentum = 0.95, .weight_decay = 0.1, .scale = SW_MUON_JORDAN, .grad_scale = 0.375f};
    const struct test_rows *s = trial->shape;
    const bool large = s->rows >= LARGE_GRAINS;
    const int64_t grains = large ? LARGE_GRAINS : 1, count = large ? TENSORS : TENSORS - 1;
    const void *grads = trial_input(trial, "gradients", trial->type, grains * SW_GRAIN_ELEMS, 0.5f);
    char *wide = NULL;
    if (trial->pass == TRIAL_DECLARE)
        SW_TRY(need_scratch(trial, count));
    for (int f = 0; f < FORMS; f++) {
        char *records =
            trial_operand(trial, (struct trial_operand){.name = forms[f].records,
                                                        .type = ELEMENT_F32,
                                                        .elems = grains * sw_optimizer_muon_bytes(forms[f].format) / 4,
                                                        .fill = f == 0 ? FILL_NORMAL : FILL_POISON,
                                                        .deviation = 0.1f,
                                                        .compare = COMPARE_CLOSE,
                                                        .tolerance = STEPS});
        void *weights = trial_output(trial, forms[f].weights, trial->type, grains * SW_GRAIN_ELEMS, STEPS);
        if (f == 0)
            wide = records;
        else if (trial->pass == TRIAL_PREPARE)
            SW_TRY(round_records(grains, wide, forms[f].format, records));
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_update_muon(trial->stream, &(struct sw_update_muon){.type = trial->type,
                                                                          .muon = &muon,
                                                                          .format = forms[f].format,
                                                                          .rounding = SW_ROUND_STOCHASTIC,
                                                                          .seed = trial->seed,
                                                                          .unit = 1,
                                                                          .step = 3,
                                                                          .grains = grains,
                                                                          .tensor = tensors,
                                                                          .tensors = count,
                                                                          .grads = grads,
                                                                          .records = records,
                                                                          .weights = weights,
                                                                          .scratch = trial->scratch}));
    }
    return SW_OK;
}
