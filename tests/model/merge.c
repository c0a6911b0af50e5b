/* Adapters merged into matrices whose rows are longer than a sum is at once, and end within grains: W + scale·B·A. */
#include "tests/equipment/support.h"

#include "core/size.h"
#include "model/merge.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANK = 3 };
#define TOLERANCE 1e-5

/* Rows of 2,300 elements, so that the columns of a run of elements begin anywhere. */
static const struct sw_model_config wide_config = {
    .family = "gpt2",
    .vocab = 40,
    .hidden = 24,
    .layers = 1,
    .heads = 2,
    .kv_heads = 2,
    .head_dim = 12,
    .ffn = 2300,
    .max_positions = 8,
    .norm_epsilon = 1e-5,
    .init_std = 0.1,
    .activation = SW_GELU_TANH,
    .tied_embeddings = true,
};

/* A weight of every element, those of adapters too. */
static float weight_of(int64_t unit, int64_t elem) {
    return (float)((unit * 7919 + elem * 104729) % 1009) / 1009.0f - 0.5f;
}

static sw_status fill_weights(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)context;
    for (int64_t i = 0; i < count; i++)
        out[i] = weight_of(unit, first + i);
    return SW_OK;
}

/* Returns a factor of a matrix's adapter; NULL: the tensor has none. */
static const struct sw_tensor *factor_of(const struct sw_unit *unit, const struct sw_tensor *plain, const char *end) {
    char module[SW_TENSOR_NAME_CHARS], name[SW_TENSOR_NAME_CHARS + sizeof SW_LORA_A];
    sw_lora_module(plain->name, module);
    snprintf(name, sizeof name, "%s%s", module, end);
    return plain->dims == 2 ? sw_unit_find(unit, name) : NULL;
}

/* Returns an element of a merged matrix [in, out], summed in double. */
static double sum_of(const struct sw_units *units, int64_t u, const struct sw_tensor *plain, double scale, int64_t i) {
    const struct sw_unit *unit = &units->unit[u];
    const struct sw_tensor *matrix = sw_unit_find(unit, plain->name);
    const struct sw_tensor *a = factor_of(unit, plain, SW_LORA_A), *b = factor_of(unit, plain, SW_LORA_B);
    assert_non_null(matrix);
    double sum = 0.0;
    for (int64_t r = 0; a != NULL && r < RANK; r++) {
        const int64_t in = i / plain->dim[1], out = i % plain->dim[1];
        sum += (double)weight_of(u, a->offset + r * plain->dim[0] + in) * weight_of(u, b->offset + out * RANK + r);
    }
    return weight_of(u, matrix->offset + i) + scale * sum;
}

/* Reads as exports do, some grains at once. */
static void read_unit(const struct sw_load *load, int64_t u, int64_t grains, int64_t at_once, float *out) {
    for (int64_t grain = 0; grain < grains; grain += at_once) {
        const int64_t count = sw_min_i64(at_once, grains - grain) * SW_GRAIN_ELEMS;
        support_expect_ok(load->prepare(load->context, u, grain * SW_GRAIN_ELEMS, count), "preparing");
        support_expect_ok(load->fill(load->context, u, grain * SW_GRAIN_ELEMS, count, out + grain * SW_GRAIN_ELEMS),
                          "merging");
    }
}

static void matrices_are_sums(void **state) {
    (void)state;
    const struct sw_tuning tuning = {.lora = {.rank = RANK, .alpha = 6}};
    struct sw_units *units;
    struct sw_merge *merge;
    support_expect_ok(sw_model_units(&wide_config, 1, SW_OPTIMIZER_FP32, &tuning, &units), "describing the units");
    const struct sw_merge_spec spec = {
        .config = &wide_config, .lora = &tuning.lora, .units = units, .load = {.fill = fill_weights}};
    support_expect_ok(sw_merge_open(&spec, &merge), "opening");
    const struct sw_units *plain = sw_merge_units(merge);
    const struct sw_load load = sw_merge_load(merge);
    const double scale = sw_lora_scale(&tuning.lora);
    int64_t merged = 0;
    for (int64_t u = 0; u < plain->count; u++) {
        const struct sw_unit *unit = &plain->unit[u];
        float *found = malloc((size_t)(unit->grains * SW_GRAIN_ELEMS) * sizeof *found);
        assert_non_null(found);
        read_unit(&load, u, unit->grains, 1 + u % 3, found);
        for (int64_t t = 0; t < unit->tensor_count; t++) {
            const struct sw_tensor *tensor = &unit->tensor[t];
            merged += factor_of(&units->unit[u], tensor, SW_LORA_A) != NULL;
            for (int64_t i = 0; i < tensor->elems; i++)
                if (!(fabs(found[tensor->offset + i] - sum_of(units, u, tensor, scale, i)) <= TOLERANCE))
                    fail_msg("element %lld of %s is %.9g", (long long)i, tensor->name, found[tensor->offset + i]);
        }
        free(found);
    }
    assert_int_equal(merged, 4);
    sw_merge_close(merge);
    sw_units_destroy(units);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(matrices_are_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
