/* Blocks in tiles are the same model: the same parameters, random weights and checkpoint files; and a plan for wide
 * layers needs far less of the device. */
#include "tests/equipment/support.h"

#include "core/size.h"
#include "model/hf/checkpoint.h"
#include "model/model.h"
#include "offload/plan/plan.h"

enum { SEED = 5, FILE_BYTES = 1 << 20 };

static const struct sw_model_config small_config = {
    .family = "gpt2",
    .vocab = 96,
    .hidden = 72,
    .layers = 2,
    .heads = 12,
    .kv_heads = 12,
    .head_dim = 6,
    .ffn = 180,
    .max_positions = 16,
    .norm_epsilon = 1e-5,
    .init_std = 0.1,
    .activation = SW_GELU_TANH,
    .tied_embeddings = true,
};
static const int64_t tilings[] = {2, 3, 4, 6, 12};
enum { TILINGS = sizeof tilings / sizeof tilings[0] };

static struct sw_units *units_of(int64_t tiles) {
    struct sw_units *units = NULL;
    support_expect_ok(sw_model_units(&small_config, tiles, SW_OPTIMIZER_FP32, NULL, &units), "describing the units");
    return units;
}

static void units_are_tiles_of_blocks(void **state) {
    (void)state;
    struct sw_units *whole = units_of(1);
    for (int i = 0; i < TILINGS; i++) {
        struct sw_units *units = units_of(tilings[i]);
        assert_int_equal(units->count, 2 + small_config.layers * 2 * tilings[i]);
        assert_int_equal(sw_units_parameters(units), sw_units_parameters(whole));
        for (int64_t u = 0; u < units->count; u++)
            for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
                assert_int_equal(units->unit[u].tensor[t].decay, units->unit[u].tensor[t].dims > 1);
        sw_units_destroy(units);
    }
    sw_units_destroy(whole);
}

static void tiles_that_do_not_divide_are_refused(void **state) {
    (void)state;
    struct sw_units *units;
    const int64_t wrong[] = {5, 7, 8, 9, 24, 0};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        support_expect_failure(sw_model_units(&small_config, wrong[i], SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                               "one of 1, 2, 3, 4, 6, 12", "tiles");
    struct sw_model_config odd = small_config;
    odd.ffn = 35;
    support_expect_failure(sw_model_units(&odd, 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "12 heads and 35 columns of the MLP; give 1", "tiles of an odd MLP");
}

/* The file that a source of weights makes, in a fresh folder that is removed again. */
static int64_t export_file(void *const *state, const struct sw_units *units, sw_fill_function fill, void *context,
                           char *content) {
    char folder[SUPPORT_PATH_CHARS], path[SUPPORT_PATH_CHARS + 32];
    support_path(state, "exported", folder);
    const struct sw_checkpoint_format format = {.type = SW_F32, .shard_bytes = SW_CHECKPOINT_SHARD_BYTES};
    const struct sw_load from = {.fill = fill, .context = context};
    support_expect_ok(sw_checkpoint_write(folder, &small_config, units, &format, &from, NULL), "writing");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const int64_t bytes = (int64_t)fread(content, 1, FILE_BYTES, file);
    assert_true(bytes > 0 && bytes < FILE_BYTES);
    fclose(file);
    return bytes;
}

static void remove_export(void *const *state) {
    char path[SUPPORT_PATH_CHARS];
    unlink(support_path(state, "exported/model.safetensors", path));
    unlink(support_path(state, "exported/config.json", path));
    rmdir(support_path(state, "exported", path));
}

static void expect_same(const char *expected, int64_t expected_bytes, const char *found, int64_t found_bytes,
                        int64_t tiles, const char *what) {
    if (found_bytes != expected_bytes || memcmp(found, expected, (size_t)expected_bytes) != 0)
        fail_msg("%s in %lld tiles differ from the whole", what, (long long)tiles);
}

/* Random weights do not depend on tiles, nor does a checkpoint that is read and written in tiles. */
static void checkpoints_are_the_same_bytes(void **state) {
    char *expected = malloc(FILE_BYTES), *found = malloc(FILE_BYTES);
    assert_true(expected != NULL && found != NULL);
    struct sw_units *whole = units_of(1);
    struct sw_model_init init = {.config = &small_config, .units = whole, .seed = SEED};
    const int64_t bytes = export_file(state, whole, sw_model_fill_random, &init, expected);
    remove_export(state);
    for (int i = 0; i < TILINGS; i++) {
        struct sw_units *units = units_of(tilings[i]);
        struct sw_model_init cut = {.config = &small_config, .units = units, .seed = SEED};
        const int64_t random_bytes = export_file(state, units, sw_model_fill_random, &cut, found);
        expect_same(expected, bytes, found, random_bytes, tilings[i], "random weights");
        char folder[SUPPORT_PATH_CHARS], kept[SUPPORT_PATH_CHARS], path[SUPPORT_PATH_CHARS];
        support_path(state, "exported", folder);
        assert_int_equal(rename(folder, support_path(state, "kept", kept)), 0);
        struct sw_checkpoint *checkpoint;
        support_expect_ok(sw_checkpoint_open(kept, units, &checkpoint), "reading in tiles");
        const int64_t read_bytes = export_file(state, units, sw_checkpoint_fill, checkpoint, found);
        expect_same(expected, bytes, found, read_bytes, tilings[i], "weights that were read");
        sw_checkpoint_close(checkpoint);
        remove_export(state);
        unlink(support_path(state, "kept/model.safetensors", path));
        unlink(support_path(state, "kept/config.json", path));
        rmdir(kept);
        sw_units_destroy(units);
    }
    sw_units_destroy(whole);
    free(expected);
    free(found);
}

/* One very wide layer, with all state on NVMe. */
static const struct sw_model_config wide_config = {
    .family = "gpt2",
    .vocab = 256,
    .hidden = 4096,
    .layers = 1,
    .heads = 32,
    .kv_heads = 32,
    .head_dim = 128,
    .ffn = 16384,
    .max_positions = 64,
    .norm_epsilon = 1e-5,
    .init_std = 0.02,
    .activation = SW_GELU_TANH,
    .tied_embeddings = true,
};

static int64_t wide_device_bytes(int64_t tiles) {
    const struct sw_model_shape shape = {.type = SW_F32, .batch = 1, .seq = 64, .tiles = tiles};
    struct sw_device *device;
    struct sw_model *model;
    struct sw_plan *plan;
    support_expect_ok(sw_device_open("cpu", 1, &device), "opening the CPU");
    support_expect_ok(sw_model_create(&wide_config, &shape, device, &model), "preparing the model");
    const struct sw_model_bytes bytes = sw_model_bytes(model);
    struct sw_plan_spec spec = {
        .units = sw_model_get_units(model),
        .type = shape.type,
        .train = true,
        .micro_batches = 4,
        .group = 4,
        .unit_slots = 2,
        .token_bytes = bytes.token,
        .cost = bytes.cost,
        .work_bytes = bytes.work,
        .recompute = SW_RECOMPUTE_UNIT,
        .chunk_grains = 16,
        .ring_chunks = 4,
        .budget_bytes = {[SW_DEVICE] = 64 * SW_GIB, [SW_HOST] = 64 * SW_GIB},
    };
    support_expect_ok(sw_placement_parse("weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", &spec.place), "placing");
    support_expect_ok(sw_plan_create(&spec, &plan), "planning");
    support_expect_ok(sw_plan_check(plan), "checking the plan");
    const int64_t device_bytes = plan->tier_bytes[SW_DEVICE];
    sw_plan_destroy(plan);
    sw_model_destroy(model);
    sw_device_close(device);
    return device_bytes;
}

static void wide_layers_need_less_of_the_device(void **state) {
    (void)state;
    struct sw_units *units;
    support_expect_ok(sw_model_units(&wide_config, 1, SW_OPTIMIZER_FP32, NULL, &units), "describing the units");
    const int64_t block_bytes = units->unit[1].elems * (int64_t)sizeof(float);
    sw_units_destroy(units);
    const int64_t whole = wide_device_bytes(1), tiled = wide_device_bytes(8);
    printf(
        "# device memory of one layer of 4096, fp32: %lld MiB whole, %lld MiB in 8 tiles; its weights are %lld MiB\n",
        (long long)(whole / SW_MIB), (long long)(tiled / SW_MIB), (long long)(block_bytes / SW_MIB));
    assert_true(whole > 2 * block_bytes);
    assert_true(tiled < block_bytes / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_tiles_of_blocks),
        cmocka_unit_test(tiles_that_do_not_divide_are_refused),
        cmocka_unit_test_setup_teardown(checkpoints_are_the_same_bytes, support_make_folder, support_remove_folder),
        cmocka_unit_test(wide_layers_need_less_of_the_device),
    };
    return cmocka_run_group_tests_name("train tiles", tests, NULL, NULL);
}
