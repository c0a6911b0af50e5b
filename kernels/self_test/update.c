/* The end of a gradient and the update, whose bits are part of their contract: they are those of the reference. */
#include "core/ranks/comm.h"
#include "core/size.h"
#include "kernels/moments.h"
#include "kernels/self_test/ops.h"

#include <string.h>

static void *exact(struct trial *trial, const char *name, trial_type type, int64_t elems) {
    return trial_operand(trial,
                         (struct trial_operand){.name = name, .type = type, .elems = elems, .compare = COMPARE_BITS});
}

/* Words of a grain of gradients in 8 bits. */
enum { KEPT_WORDS = (int)(SW_GRADS_8BIT_GRAIN_BYTES / 4) };

static int64_t elems_of(const struct trial *trial) {
    return ((const struct test_rows *)trial->shape)->rows * SW_GRAIN_ELEMS;
}

sw_status trial_finish_gradient(struct trial *trial) {
    const int64_t elems = elems_of(trial);
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
    const int64_t elems = elems_of(trial);
    const float *acc = trial_input(trial, "the accumulator", SW_F32, elems, 1.0f);
    void *grads = exact(trial, "gradients", (trial_type)trial->type, elems);
    return trial->pass < TRIAL_REFERENCE ? SW_OK : sw_round_gradient(trial->stream, trial->type, elems, acc, grads);
}

sw_status trial_square_sums(struct trial *trial) {
    const int64_t elems = elems_of(trial);
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
    return trial->pass < TRIAL_REFERENCE ? SW_OK : sw_cast_from_f32(trial->stream, trial->type, elems, from, to);
}

/* Second moments are squares. */
static void make_moments(float *records, int64_t grains) {
    for (int64_t g = 0; g < grains; g++) {
        float *m = records + (g * SW_OPTIMIZER_VECTORS + 1) * SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            v[i] *= v[i];
    }
}

/* The forms of optimizer state that are compared, with their roundings. */
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

/* Runs with and without decay, and with learning rates of their own, begin and end within grains; a tail of the unit is
 * padding. */
sw_status trial_update(struct trial *trial) {
    enum { FIRST_RUN = 101, TAIL = 77, STEP = 3 };
    const int64_t elems = elems_of(trial), grains = elems / SW_GRAIN_ELEMS;
    const struct sw_decay_run runs[] = {{.end = FIRST_RUN, .decay = true},
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
