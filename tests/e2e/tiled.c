/* A training in tiles against the same training in whole blocks: the gradient of every tensor, and the losses of some
 * steps and of a fixed batch, within what another order of sums costs; and what tiles cost in bf16. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum { STEPS = 5 };
/* fp32 against fp32: relative, and of a tensor's norm. Training moves later losses apart: where a gradient is nearly
 * zero AdamW divides a rounding error by itself. */
#define FIRST_LOSS_TOLERANCE 5e-7
#define LOSS_TOLERANCE 2e-5
#define GRADIENT_TOLERANCE 2e-6
/* bf16 against fp32: at most this factor of the error that whole blocks have in bf16. */
#define BF16_FACTOR 2.0

/* Sixteen heads, so that there can be many tiles. */
static const struct sw_model_config config = {
    .family = "gpt2",
    .vocab = 331,
    .hidden = 128,
    .layers = 3,
    .heads = 16,
    .kv_heads = 16,
    .head_dim = 8,
    .ffn = 384,
    .max_positions = 32,
    .norm_epsilon = 1e-5,
    .init_std = 0.08,
    .activation = SW_GELU_TANH,
    .tied_embeddings = false,
};

/* The numbers that a training computes; gradients are those of the first step, whole tensors in the order of the
 * untiled units. */
struct outcome {
    double loss[STEPS], evaluation;
    float *grads;
};

static int64_t all_elems(const struct sw_units *units) {
    int64_t elems = 0;
    for (int64_t u = 0; u < units->count; u++)
        elems += units->unit[u].elems;
    return elems;
}

/* Where the whole tensor of a name begins. */
static int64_t place_of(const struct sw_units *whole, const char *name) {
    int64_t before = 0;
    for (int64_t u = 0; u < whole->count; u++) {
        for (int64_t t = 0; t < whole->unit[u].tensor_count; t++)
            if (strcmp(whole->unit[u].tensor[t].name, name) == 0)
                return before + whole->unit[u].tensor[t].offset;
        before += whole->unit[u].elems;
    }
    fail_msg("there is no tensor %s", name);
    return 0;
}

static void gather(const struct sw_units *whole, const struct sw_units *units, const float *from, float *to) {
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *part = &units->unit[u].tensor[t];
            float *base = to + place_of(whole, part->name);
            for (int64_t e = 0, run; e < part->elems; e++)
                base[sw_tensor_to_whole(part, e, &run)] = from[part->offset + e];
        }
        from += units->unit[u].elems;
    }
}

static struct harness_spec spec_of(sw_dtype type, int64_t tiles, sw_recompute recompute) {
    struct harness_spec spec = same_spec(type);
    spec.config = &config;
    spec.shape.tiles = tiles;
    spec.recompute = recompute;
    return spec;
}

static void train(const struct sw_units *whole, const struct harness_spec *spec, struct outcome *out) {
    struct harness harness;
    struct sw_step_result result;
    must(harness_open(spec, &harness));
    const struct sw_units *units = sw_model_get_units(harness.model);
    float *flat = malloc((size_t)all_elems(units) * sizeof *flat);
    out->grads = calloc((size_t)all_elems(whole), sizeof *out->grads);
    assert_true(flat != NULL && out->grads != NULL);
    for (int64_t step = 1; step <= STEPS; step++) {
        must(harness_begin(&harness, step, SAME_CLIP));
        must(harness_wait(&harness, &result));
        out->loss[step - 1] = result.loss_sum;
        if (step == 1) {
            must(harness_read_grads(&harness, flat));
            gather(whole, units, flat, out->grads);
        }
    }
    must(harness_evaluate(&harness, &out->evaluation));
    harness_close(&harness);
    free(flat);
}

static double relative(double a, double b) {
    return fabs(a - b) / a;
}

/* Losses of the fixed batch and of all steps. */
static double loss_error(const struct outcome *a, const struct outcome *b) {
    double most = relative(a->evaluation, b->evaluation);
    for (int s = 0; s < STEPS; s++)
        most = fmax(most, relative(a->loss[s], b->loss[s]));
    return most;
}

/* The largest distance of a tensor's gradients, of their norm. */
static double gradient_error(const struct sw_units *whole, const struct outcome *a, const struct outcome *b) {
    double most = 0;
    const float *x = a->grads, *y = b->grads;
    for (int64_t u = 0; u < whole->count; x += whole->unit[u].elems, y += whole->unit[u].elems, u++) {
        for (int64_t t = 0; t < whole->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &whole->unit[u].tensor[t];
            double distance = 0, norm = 0;
            for (int64_t e = tensor->offset; e < tensor->offset + tensor->elems; e++) {
                distance += ((double)x[e] - y[e]) * ((double)x[e] - y[e]);
                norm += (double)x[e] * x[e];
            }
            assert_true(norm > 0);
            most = fmax(most, sqrt(distance / norm));
        }
    }
    return most;
}

static void release(struct outcome *outcome) {
    free(outcome->grads);
}

/* The training in fp32 and whole blocks. */
static struct sw_units *train_reference(struct outcome *out) {
    struct sw_units *whole;
    const struct harness_spec spec = spec_of(SW_F32, 1, SW_RECOMPUTE_UNIT);
    must(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, NULL, &whole));
    train(whole, &spec, out);
    return whole;
}

/* Compares 2 tiles, `times` as many, and so on up to one for each head. */
static void compare_tiles(int64_t times) {
    struct outcome reference, tiled;
    struct sw_units *whole = train_reference(&reference);
    for (int64_t tiles = 2; tiles <= config.heads; tiles *= times) {
        const struct harness_spec spec =
            spec_of(SW_F32, tiles, tiles % 4 == 0 ? SW_RECOMPUTE_DERIVED : SW_RECOMPUTE_UNIT);
        train(whole, &spec, &tiled);
        const double first = relative(reference.loss[0], tiled.loss[0]), losses = loss_error(&reference, &tiled);
        const double gradients = gradient_error(whole, &reference, &tiled);
        printf("# fp32, %2lld tiles: the first loss differs by %.1e, all by %.1e, gradients by %.1e of their norm\n",
               (long long)tiles, first, losses, gradients);
        if (!(first <= FIRST_LOSS_TOLERANCE && losses <= LOSS_TOLERANCE && gradients <= GRADIENT_TOLERANCE))
            fail_msg("%lld tiles: the first loss differs by %g, all by %g, gradients by %g", (long long)tiles, first,
                     losses, gradients);
        release(&tiled);
    }
    release(&reference);
    sw_units_destroy(whole);
}

static void tiles_compute_the_same_in_fp32(void **state) {
    (void)state;
    compare_tiles(2);
}

/* Few enough for a slow device: two tiles, and one for each head, which begin from other intermediates. */
static void some_tiles_compute_the_same_in_fp32(void **state) {
    (void)state;
    compare_tiles(8);
}

/* The residual is rounded once a tile instead of once a half: little beside all that bf16 rounds. */
static void tiles_cost_little_in_bf16(void **state) {
    (void)state;
    struct outcome reference, tiled;
    struct sw_units *whole = train_reference(&reference);
    double most = 0;
    for (int64_t tiles = 1; tiles <= config.heads; tiles *= 2) {
        const struct harness_spec spec = spec_of(SW_BF16, tiles, SW_RECOMPUTE_UNIT);
        train(whole, &spec, &tiled);
        const double gradients = gradient_error(whole, &reference, &tiled);
        printf("# bf16 against fp32, %2lld tiles: losses differ by %.1e, gradients by %.1e of their norm\n",
               (long long)tiles, loss_error(&reference, &tiled), gradients);
        if (tiles == 1)
            most = BF16_FACTOR * gradients;
        if (!(gradients <= most))
            fail_msg("%lld tiles: gradients differ by %g, more than %g", (long long)tiles, gradients, most);
        release(&tiled);
    }
    release(&reference);
    sw_units_destroy(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_compute_the_same_in_fp32),
        cmocka_unit_test(some_tiles_compute_the_same_in_fp32),
        cmocka_unit_test(tiles_cost_little_in_bf16),
    };
    return cmocka_run_group_tests_name("e2e tiled", tests, NULL, NULL);
}
