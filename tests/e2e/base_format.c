/* A quantized base gives the bits of one in the compute type whose weights were rounded to the format before, or are
 * the values of stored codes, wherever it lives, whatever is computed again, and after a resume; weights that are not
 * finite are refused by name. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"
#include "kernels/device_ops.h"

enum { PLACE_CHARS = 128, STOPPED_STEP = 2, FEW = 4, BAD_BLOCK = 2 };

/* One training: which tensors are frozen, in which format, and how it computes. */
struct variant {
    struct sw_tuning tuning;
    sw_dtype type;
    sw_optimizer_format optimizer;
    bool tied;
    int64_t tiles;
    bool experts; /* the model is same_expert_config */
};
static const struct variant variants[] = {
    {{.lora = {.rank = 4, .targets = "o_proj,down_proj"}, .base = SW_BASE_NF4},
     SW_BF16,
     SW_OPTIMIZER_FP32,
     false,
     1,
     false},
    {{.lora = {.rank = 2, .targets = "attention"}, .base = SW_BASE_INT8}, SW_F32, SW_OPTIMIZER_8BIT, true, 1, false},
    {{.freeze = "blocks:0-1,*.mlp.*", .base = SW_BASE_NF4}, SW_F32, SW_OPTIMIZER_FP32, true, 1, false},
    {{.freeze = "embedding,blocks:1-2", .base = SW_BASE_INT8}, SW_BF16, SW_OPTIMIZER_BF16, false, 1, false},
    {{.freeze = "*attn*,blocks:2", .base = SW_BASE_NF4}, SW_BF16, SW_OPTIMIZER_FP32, true, 2, false},
    {{.freeze = "*.experts.[0-2].*,*self_attn*", .base = SW_BASE_NF4}, SW_BF16, SW_OPTIMIZER_FP32, true, 1, true},
};
enum { TIED_NF4 = 2, EMBEDDING_INT8 = 3, VARIANTS = sizeof variants / sizeof variants[0] };

static struct harness_spec spec_of(const struct variant *variant) {
    struct harness_spec spec = same_spec(variant->type);
    if (variant->experts)
        same_use_experts(&spec);
    else
        spec.config = variant->tied ? &same_config : &same_rotary_config;
    spec.shape.tuning = variant->tuning;
    spec.shape.optimizer = variant->optimizer;
    spec.shape.tiles = variant->tiles;
    return spec;
}

/* Tells whether a GPU runs the test, which may be emulated: what it computes from a base is then compared in fewer
 * variants, as the CPU has all. */
static bool is_on_gpu(void) {
    return getenv("SW_TEST_DEVICE") != NULL;
}

static void placements_give_the_same_bits(void **state) {
    enum { PLACES = SW_TIERS * SW_TIERS * SW_TIERS };
    for (int v = 0; v < VARIANTS; v++) {
        struct harness_spec spec = spec_of(&variants[v]);
        struct same_trace reference, trace;
        must(same_train(&spec, false, &reference));
        for (int p = v % FEW; p < PLACES; p += FEW) {
            char place[PLACE_CHARS];
            const int tier[] = {p % SW_TIERS, p / SW_TIERS % SW_TIERS, p / SW_TIERS / SW_TIERS};
            snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s,acts=%s%s", sw_tier_name((sw_tier)tier[0]),
                     sw_tier_name((sw_tier)tier[1]), sw_tier_name((sw_tier)tier[2]),
                     sw_tier_name((sw_tier)((tier[0] + tier[1] + tier[2]) % SW_TIERS)),
                     p % 5 < 3 ? "" : ",trained=nvme");
            spec.place = place;
            spec.directory = *state;
            spec.recompute = (sw_recompute)(p % SW_RECOMPUTES);
            spec.chunk_grains = 1 + p % 4;
            spec.unit_slots = 2 + p % 2;
            spec.update_on_device = p % 4 == 3 ? UINT64_MAX : 0;
            spec.speculation = p % 2 == 0 ? SW_SPECULATE_ALWAYS : SW_SPECULATE_NEVER;
            must(same_train(&spec, p % 5 > 1, &trace));
            must_equal(&reference, &trace, place);
            same_free(&trace);
        }
        same_free(&reference);
    }
}

/* A part of the base on each tier. */
static void shares_give_the_same_bits(void **state) {
    static const char *const places[] = {"weights=device:40%/host:30%/nvme", "weights=host:50%/nvme,optimizer=nvme"};
    for (int v = 0; v < VARIANTS; v++) {
        struct harness_spec spec = spec_of(&variants[v]);
        struct same_trace reference, trace;
        must(same_train(&spec, false, &reference));
        spec.place = places[v % 2];
        spec.directory = *state;
        must(same_train(&spec, true, &trace));
        must_equal(&reference, &trace, spec.place);
        same_free(&trace);
        same_free(&reference);
    }
}

/* More than is written at once when a base is loaded, to a drive and from it in chunks of other sizes. */
static void a_base_of_many_cells_gives_the_same_bits(void **state) {
    struct sw_model_config config = same_config;
    struct sw_tuning tuning = {.freeze = "blocks:0"};
    config.layers = 1;
    config.ffn = 16384;
    for (tuning.base = SW_BASE_INT8; tuning.base <= SW_BASE_NF4; tuning.base++) {
        struct harness_spec spec = same_spec(SW_F32);
        struct same_trace reference, trace;
        spec.config = &config;
        spec.shape.tuning = tuning;
        must(same_train(&spec, false, &reference));
        spec.place = "weights=nvme";
        spec.directory = *state;
        spec.chunk_grains = 5;
        must(same_train(&spec, false, &trace));
        must_equal(&reference, &trace, sw_base_format_name((sw_base_format)tuning.base));
        same_free(&trace);
        same_free(&reference);
    }
}

static void a_resumed_training_gives_the_same_bits(void **state) {
    static const char *const places[] = {"weights=nvme,optimizer=nvme", "weights=host,grads=host,optimizer=host",
                                         "weights=device,grads=device,optimizer=device"};
    for (int v = 0; v < VARIANTS; v++) {
        struct harness_spec spec = spec_of(&variants[v]);
        struct same_trace whole, parts;
        must(same_train(&spec, false, &whole));
        spec.place = places[v % 3];
        spec.directory = *state;
        must(same_train_in_parts(&spec, STOPPED_STEP, &parts));
        must_equal(&whole, &parts, spec.place);
        same_free(&whole);
        same_free(&parts);
    }
}

/* Weights of a model without a base, of which those that another has in its base went through the format. */
struct rounded {
    struct sw_model_init init; /* of the units that are filled */
    struct sw_lora_init lora;  /* of the same units */
    struct sw_units *based;    /* those with a base */
    float **base;              /* one entry per unit: its base, dequantized */
};

/* Quantizes each grain of a unit's base and makes fp32 of it again. */
static float *round_base(const struct rounded *model, struct sw_stream *stream, int64_t u) {
    const struct sw_units *units = model->based;
    const struct sw_model_init init = {.config = model->init.config, .units = units, .seed = SAME_SEED};
    const int64_t elems = units->unit[u].base_grains * SW_GRAIN_ELEMS;
    float *values = malloc((size_t)(elems + 1) * sizeof *values);
    void *records = aligned_alloc(64, (size_t)sw_round_up(sw_units_base_bytes(units, u) + 1, 64));
    assert_true(values != NULL && records != NULL);
    must(sw_model_fill_random((void *)(uintptr_t)&init, u, 0, elems, values));
    must(sw_quantize_base(stream, .type = SW_F32, .format = units->base, .grains = elems / SW_GRAIN_ELEMS,
                          .from = values, .records = records));
    must(sw_dequantize_base(stream, .type = SW_F32, .format = units->base, .elems = elems, .records = records,
                            .to = values));
    must(sw_stream_synchronize(stream));
    free(records);
    return values;
}

struct rounded_run {
    const struct rounded *model;
    int64_t unit;
    float *out;
};

/* A unit has the same tensors in the same order, with a base or without. */
static sw_status fill_run(void *context, int64_t t, int64_t whole, int64_t run, int64_t at) {
    const struct rounded_run *fill = context;
    const struct sw_unit *unit = &fill->model->based->unit[fill->unit];
    int64_t neighbours;
    const int64_t elem = unit->tensor[t].offset + sw_tensor_from_whole(&unit->tensor[t], whole, &neighbours);
    if (elem < unit->base_grains * SW_GRAIN_ELEMS)
        memcpy(fill->out + at, fill->model->base[fill->unit] + elem, (size_t)run * sizeof *fill->out);
    return SW_OK;
}

static sw_status fill_rounded(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct rounded *model = context;
    struct rounded_run fill = {.model = model, .unit = unit, .out = out};
    const struct sw_load load = sw_lora_load(&model->lora);
    must(load.fill(load.context, unit, first, count, out));
    return sw_unit_walk(&model->init.units->unit[unit], first, count, fill_run, &fill);
}

/* They are not those of a model that was not rounded. */
static void compare_exact(const struct harness_spec *spec, const struct same_trace *based) {
    struct same_trace exact;
    must(same_train(spec, false, &exact));
    for (int step = 0; step < SAME_STEPS; step++) {
        assert_true(based->loss[step] != exact.loss[step]);
        assert_true(fabs(based->loss[step] - exact.loss[step]) < 0.02 * exact.loss[step]);
    }
    same_free(&exact);
}

/* The losses and norms of gradients are those of a model in the compute type that begins with the rounded weights. That
 * rounding changes them is a fact about the format, which the CPU shows for every device. */
static void a_base_computes_with_its_rounded_weights(void **state) {
    struct sw_device *device;
    struct sw_stream *stream;
    (void)state;
    must(sw_device_open("ref", 1, &device));
    must(sw_stream_open(device, &stream));
    for (int v = 0; v < VARIANTS; v++) {
        struct harness_spec spec = spec_of(&variants[v]);
        if (is_on_gpu() && (v == TIED_NF4 || v == EMBEDDING_INT8))
            continue;
        struct rounded model = {.init = {.config = spec.config, .seed = SAME_SEED}};
        struct same_trace based, typed;
        struct sw_tuning without = variants[v].tuning;
        struct sw_units *units;
        without.base = SW_BASE_TYPED;
        must(same_train(&spec, false, &based));
        must(sw_model_units(spec.config, variants[v].tiles, variants[v].optimizer, &variants[v].tuning, &model.based));
        must(sw_model_units(spec.config, variants[v].tiles, variants[v].optimizer, &without, &units));
        model.init.units = units;
        model.lora = (struct sw_lora_init){
            .units = units, .seed = SAME_SEED, .base = {.fill = sw_model_fill_random, .context = &model.init}};
        model.base = calloc((size_t)units->count, sizeof *model.base);
        assert_non_null(model.base);
        int64_t grains = 0;
        for (int64_t u = 0; u < units->count; grains += model.based->unit[u++].base_grains)
            model.base[u] = round_base(&model, stream, u);
        assert_true(grains > 0);
        spec.shape.tuning = without;
        if (!is_on_gpu())
            compare_exact(&spec, &based);
        spec.fill = fill_rounded;
        spec.fill_context = &model;
        must(same_train(&spec, false, &typed));
        for (int step = 0; step < SAME_STEPS; step++) {
            assert_true(based.loss[step] == typed.loss[step] && based.grad_norm[step] == typed.grad_norm[step]);
            assert_true(based.grad_norm[step] > 0.0);
        }
        assert_true(based.evaluation == typed.evaluation);
        for (int64_t u = 0; u < units->count; u++)
            free(model.base[u]);
        free(model.base);
        sw_units_destroy(model.based);
        sw_units_destroy(units);
        same_free(&based);
        same_free(&typed);
    }
    sw_stream_close(stream);
    sw_device_close(device);
}

/* A source whose base is stored: random weights, each made to the number of a code near it times a scale that changes
 * from block to block. */
struct stored {
    struct sw_model_init init;
    struct sw_lora_init lora; /* of the same units */
    int64_t lie_unit;         /* a code of this unit's last record is not that of its value; 0: none */
};

static float fp8_scale(int64_t block) {
    return 0.001f * (float)(1 + block % 7);
}

static uint8_t mxfp4_code(float scaled) {
    int nearest = 0;
    for (int code = 0; code < SW_MXFP4_LEVELS; code++)
        if (fabsf(sw_mxfp4_level(code) - scaled) < fabsf(sw_mxfp4_level(nearest) - scaled))
            nearest = code;
    return (uint8_t)nearest;
}

static sw_status make_stored(const struct stored *source, int64_t unit, int64_t grain, void *record) {
    enum { LEAST_BYTE = 127 - 7 };
    const sw_base_format format = source->init.units->base;
    struct sw_fp8_record *fp8 = record;
    struct sw_mxfp4_record *mxfp4 = record;
    float *weights = malloc(SW_GRAIN_ELEMS * sizeof *weights);
    assert_non_null(weights);
    must(sw_model_fill_random((void *)(uintptr_t)&source->init, unit, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, weights));
    memset(record, 0, (size_t)sw_base_grain_bytes(format));
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
        const int64_t block = i / sw_base_stored_elems(format);
        if (format == SW_BASE_FP8) {
            fp8->scales[block] = fp8_scale(block);
            fp8->codes[i] = sw_fp8_code(SW_FP8_E4M3, weights[i] / fp8_scale(block));
            continue;
        }
        mxfp4->scales[block] = (uint8_t)(LEAST_BYTE + block % 3);
        mxfp4->codes[i / 2] |= (uint8_t)(mxfp4_code(weights[i] / sw_mxfp4_scale(mxfp4->scales[block])) << i % 2 * 4);
    }
    free(weights);
    return SW_OK;
}

static sw_status take_stored(void *context, int64_t unit, int64_t grain, void *record) {
    const struct stored *source = context;
    must(make_stored(source, unit, grain, record));
    if (unit == source->lie_unit && grain + 1 == source->init.units->unit[unit].base_grains)
        *(uint8_t *)record ^= 1;
    return SW_OK;
}

static sw_status fill_stored(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct stored *source = context;
    const sw_base_format format = source->init.units->base;
    const struct sw_load load = sw_lora_load(&source->lora);
    must(load.fill(load.context, unit, first, count, out));
    char *record = malloc((size_t)sw_base_grain_bytes(format));
    assert_non_null(record);
    const struct sw_fp8_record *fp8 = (const struct sw_fp8_record *)(void *)record;
    const struct sw_mxfp4_record *mxfp4 = (const struct sw_mxfp4_record *)(void *)record;
    for (int64_t i = 0, made = -1; i < count; i++) {
        const int64_t grain = (first + i) / SW_GRAIN_ELEMS, at = (first + i) % SW_GRAIN_ELEMS;
        if (grain >= source->init.units->unit[unit].base_grains)
            break;
        if (grain != made)
            must(make_stored(source, unit, grain, record));
        made = grain;
        out[i] = format == SW_BASE_FP8
                     ? sw_fp8_value(SW_FP8_E4M3, fp8->codes[at]) * fp8->scales[at / 128]
                     : sw_mxfp4_level(mxfp4->codes[at / 2] >> at % 2 * 4 & 15) * sw_mxfp4_scale(mxfp4->scales[at / 32]);
    }
    free(record);
    return SW_OK;
}

static struct harness_spec stored_spec(sw_base_format format, bool experts, struct sw_model_config *config) {
    struct harness_spec spec = same_spec(SW_BF16);
    *config = experts ? same_expert_config : same_rotary_config;
    config->hidden = 128;
    config->heads = 4;
    config->head_dim = 32;
    config->ffn = experts ? 0 : 256;
    config->expert_ffn = experts ? 128 : 0;
    config->layers = 2;
    spec.config = config;
    spec.shape.tuning = (struct sw_tuning){.lora = {.rank = 4, .targets = "q_proj,down_proj"}, .base = format};
    return spec;
}

static struct stored stored_source(const struct harness_spec *spec, struct sw_units *units) {
    return (struct stored){.init = {.config = spec->config, .units = units, .seed = SAME_SEED},
                           .lora = {.units = units, .seed = SAME_SEED}};
}

/* The losses and norms are those of a model in the compute type that begins with the same values, on every tier. */
static void a_base_computes_with_stored_weights(void **state) {
    static const char *const places[] = {"weights=host", "weights=device:30%/host:30%/nvme"};
    enum { CASES = 4, PLACES = sizeof places / sizeof places[0] };
    for (int i = 0; i < CASES; i++) {
        /* A GPU has each format and each model once, and each place. */
        if (is_on_gpu() && i % (CASES - 1) != 0)
            continue;
        const sw_base_format format = i % 2 == 0 ? SW_BASE_FP8 : SW_BASE_MXFP4;
        struct sw_model_config config;
        struct harness_spec spec = stored_spec(format, i > 1, &config);
        struct harness_spec plain = spec;
        struct same_trace typed, based;
        struct rounded model = {.init = {.config = &config, .seed = SAME_SEED}};
        must(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, &spec.shape.tuning, &model.based));
        struct stored source = stored_source(&spec, model.based);
        source.lora.base = (struct sw_load){.fill = sw_model_fill_random, .context = &source.init};
        plain.shape.tuning.base = SW_BASE_TYPED;
        struct sw_units *units;
        must(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, &plain.shape.tuning, &units));
        model.init.units = units;
        model.lora = (struct sw_lora_init){
            .units = units, .seed = SAME_SEED, .base = {.fill = sw_model_fill_random, .context = &model.init}};
        model.base = calloc((size_t)units->count, sizeof *model.base);
        assert_non_null(model.base);
        for (int64_t u = 0; u < units->count; u++) {
            const int64_t elems = model.based->unit[u].base_grains * SW_GRAIN_ELEMS;
            model.base[u] = malloc((size_t)(elems + 1) * sizeof **model.base);
            assert_non_null(model.base[u]);
            must(fill_stored(&source, u, 0, elems, model.base[u]));
        }
        plain.fill = fill_rounded;
        plain.fill_context = &model;
        must(same_train(&plain, false, &typed));
        spec.fill = fill_stored;
        spec.record = take_stored;
        spec.fill_context = &source;
        for (int p = 0; p < PLACES; p++) {
            if (is_on_gpu() && p != i / (CASES - 1))
                continue;
            spec.place = places[p];
            spec.directory = p > 0 ? *state : NULL;
            must(same_train(&spec, false, &based));
            for (int step = 0; step < SAME_STEPS; step++)
                assert_true(based.loss[step] == typed.loss[step] && based.grad_norm[step] == typed.grad_norm[step]);
            assert_true(based.evaluation == typed.evaluation && based.grad_norm[0] > 0.0);
            same_free(&based);
        }
        same_free(&typed);
        for (int64_t u = 0; u < units->count; u++)
            free(model.base[u]);
        free(model.base);
        sw_units_destroy(model.based);
        sw_units_destroy(units);
    }
}

/* A record is used only where it agrees with the values, which were checked. A source without records cannot give a
 * stored base. */
static void records_that_are_not_of_the_values_are_refused(void **state) {
    (void)state;
    for (sw_base_format format = SW_BASE_FP8; format <= SW_BASE_MXFP4; format++) {
        struct sw_model_config config;
        struct harness_spec spec = stored_spec(format, false, &config);
        struct harness harness;
        struct sw_units *units;
        must(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, &spec.shape.tuning, &units));
        struct stored source = stored_source(&spec, units);
        source.lora.base = (struct sw_load){.fill = sw_model_fill_random, .context = &source.init};
        source.lie_unit = BAD_BLOCK;
        spec.fill = fill_stored;
        spec.fill_context = &source;
        assert_int_equal(harness_open(&spec, &harness), SW_ERR_UNSUPPORTED);
        assert_non_null(strstr(sw_error_message(SW_ERR_UNSUPPORTED), "as a checkpoint stores them"));
        sw_error_clear();
        spec.record = take_stored;
        assert_int_equal(harness_open(&spec, &harness), SW_ERR_CORRUPT);
        assert_non_null(strstr(sw_error_message(SW_ERR_CORRUPT), "layers.1.mlp."));
        assert_non_null(strstr(sw_error_message(SW_ERR_CORRUPT), "changed while"));
        sw_error_clear();
        sw_units_destroy(units);
    }
}

static sw_status fill_bad(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    must(sw_model_fill_random(context, unit, first, count, out));
    const struct sw_model_init *init = context;
    const int64_t bad = init->units->unit[unit].tensor[BAD_BLOCK].offset + 1;
    if (unit == BAD_BLOCK && bad >= first && bad < first + count)
        out[bad - first] = unit % 2 == 0 ? NAN : INFINITY;
    return SW_OK;
}

/* The message names the tensor, on a tier where a thread would make its record and on a drive. */
static void weights_that_are_not_finite_are_refused(void **state) {
    static const char *const places[] = {"weights=host", "weights=nvme"};
    for (int p = 0; p < 2; p++) {
        struct harness_spec spec = spec_of(&variants[0]);
        struct harness harness;
        struct sw_units *units;
        must(sw_model_units(spec.config, 1, spec.shape.optimizer, &spec.shape.tuning, &units));
        struct sw_model_init init = {.config = spec.config, .units = units, .seed = SAME_SEED};
        assert_true(units->unit[BAD_BLOCK].tensor[BAD_BLOCK].offset <
                    units->unit[BAD_BLOCK].base_grains * SW_GRAIN_ELEMS);
        spec.place = places[p];
        spec.directory = *state;
        spec.fill = fill_bad;
        spec.fill_context = &init;
        assert_int_equal(harness_open(&spec, &harness), SW_ERR_ARG);
        assert_non_null(strstr(sw_error_message(SW_ERR_ARG), units->unit[BAD_BLOCK].tensor[BAD_BLOCK].name));
        assert_non_null(strstr(sw_error_message(SW_ERR_ARG), "not a finite number"));
        sw_error_clear();
        sw_units_destroy(units);
        harness_remove_store(*state);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(shares_give_the_same_bits, harness_make_directory, harness_remove_directory),
        cmocka_unit_test_setup_teardown(a_base_of_many_cells_gives_the_same_bits, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(a_resumed_training_gives_the_same_bits, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test(a_base_computes_with_its_rounded_weights),
        cmocka_unit_test_setup_teardown(a_base_computes_with_stored_weights, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test(records_that_are_not_of_the_values_are_refused),
        cmocka_unit_test_setup_teardown(weights_that_are_not_finite_are_refused, harness_make_directory,
                                        harness_remove_directory),
    };
    return cmocka_run_group_tests_name("a quantized base", tests, NULL, NULL);
}
