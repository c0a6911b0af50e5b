/* config.json: what is read, what is refused and how, and what is written. */
#include "model/hf/config.h"
#include "tests/equipment/support.h"

#include <sys/stat.h>

/* As transformers writes one, with fields that do not matter among those that do. */
static const char good_text[] =
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"activation_function\": \"gelu_new\","
    "\"attn_pdrop\": 0.1, \"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256,"
    "\"initializer_range\": 0.03, \"layer_norm_epsilon\": 1e-05, \"n_ctx\": 128, \"n_embd\": 48, \"n_head\": 6,"
    "\"n_inner\": null, \"n_layer\": 3, \"n_positions\": 128, \"reorder_and_upcast_attn\": false,"
    "\"scale_attn_weights\": true, \"summary_type\": \"cls_index\", \"torch_dtype\": \"float32\", \"use_cache\": true,"
    "\"transformers_version\": \"4.44.0\", \"task_specific_params\": {\"x\": {\"do_sample\": true}},"
    "\"vocab_size\": 999, \"pruned_heads\": {}}";

static void test_good(void **state) {
    (void)state;
    struct sw_model_config config;
    support_expect_ok(sw_config_parse(good_text, "config.json", &config), "good");
    assert_string_equal(config.family, "gpt2");
    assert_int_equal(config.vocab, 999);
    assert_int_equal(config.hidden, 48);
    assert_int_equal(config.layers, 3);
    assert_int_equal(config.heads, 6);
    assert_int_equal(config.kv_heads, 6);
    assert_int_equal(config.head_dim, 8);
    assert_int_equal(config.ffn, 192);
    assert_int_equal(config.max_positions, 128);
    assert_true(config.norm_epsilon == 1e-5 && config.init_std == 0.03);
    assert_int_equal(config.activation, SW_GELU_TANH);
    assert_true(config.tied_embeddings);
}

#define BASE "\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 4"
#define WITH(field) "{" BASE ", \"n_positions\": 64, " field "}"

static void test_variants(void **state) {
    (void)state;
    struct sw_model_config config;
    support_expect_ok(sw_config_parse(WITH("\"n_inner\": 100, \"activation_function\": \"gelu\""), "c", &config),
                      "erf");
    assert_int_equal(config.ffn, 100);
    assert_int_equal(config.activation, SW_GELU_ERF);
    assert_true(config.norm_epsilon == 1e-5 && config.init_std == 0.02);
    support_expect_ok(
        sw_config_parse(WITH("\"activation_function\": \"relu\", \"tie_word_embeddings\": false"), "c", &config),
        "relu");
    assert_int_equal(config.activation, SW_RELU);
    assert_false(config.tied_embeddings);
    support_expect_ok(sw_config_parse("{" BASE ", \"n_ctx\": 32}", "c", &config), "n_ctx alone");
    assert_int_equal(config.max_positions, 32);
}

static const struct {
    const char *text;
    sw_status code;
    const char *message;
} bad[] = {
    {"", SW_ERR_ARG, "not JSON"},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 2", SW_ERR_ARG, "not JSON"},
    {"[]", SW_ERR_ARG, "must be a JSON object"},
    {"{}", SW_ERR_ARG, "no 'model_type'"},
    {"{\"model_type\": 3}", SW_ERR_ARG, "'model_type' is 3"},
    {"{\"model_type\": \"mamba\"}", SW_ERR_UNSUPPORTED,
     "the architecture 'mamba' is not supported by this version; supported: gpt2, llama"},
    {WITH("\"architectures\": [\"GPT2ForSequenceClassification\"]"), SW_ERR_UNSUPPORTED, "GPT2ForSequence"},
    {WITH("\"architectures\": []"), SW_ERR_UNSUPPORTED, "'architectures' is []"},
    {WITH("\"rope_theta\": 10000"), SW_ERR_UNSUPPORTED, "'rope_theta' is not known"},
    {WITH("\"n_embd\": 64"), SW_ERR_ARG, "two members of one name"},
    {"{" BASE "}", SW_ERR_ARG, "no 'n_positions'"},
    {"{\"model_type\": \"gpt2\", \"n_embd\": 64}", SW_ERR_ARG, "no 'vocab_size'"},
    {WITH("\"n_ctx\": 128"), SW_ERR_ARG, "'n_ctx' is 128 but 'n_positions' is 64"},
    {WITH("\"n_inner\": 0"), SW_ERR_ARG, "'n_inner' is 0"},
    {WITH("\"n_inner\": 4.5"), SW_ERR_ARG, "'n_inner' is 4.5"},
    {WITH("\"n_inner\": 99999999999999999999"), SW_ERR_ARG, "whole number"},
    {WITH("\"n_inner\": 9223372036854775807"), SW_ERR_ARG, "from 1 to"},
    {WITH("\"layer_norm_epsilon\": 0"), SW_ERR_ARG, "'layer_norm_epsilon' is 0"},
    {WITH("\"layer_norm_epsilon\": \"small\""), SW_ERR_ARG, "'layer_norm_epsilon' is \"small\""},
    {WITH("\"initializer_range\": -1"), SW_ERR_ARG, "'initializer_range' is -1"},
    {WITH("\"tie_word_embeddings\": 1"), SW_ERR_ARG, "must be true or false"},
    {WITH("\"activation_function\": \"silu\""), SW_ERR_UNSUPPORTED, "'activation_function' is \"silu\""},
    {WITH("\"activation_function\": [1]"), SW_ERR_UNSUPPORTED, "'activation_function' is [1]"},
    {WITH("\"scale_attn_weights\": false"), SW_ERR_UNSUPPORTED, "must be true"},
    {WITH("\"scale_attn_by_inverse_layer_idx\": true"), SW_ERR_UNSUPPORTED, "must be false"},
    {WITH("\"reorder_and_upcast_attn\": true"), SW_ERR_UNSUPPORTED, "must be false"},
    {WITH("\"add_cross_attention\": true"), SW_ERR_UNSUPPORTED, "must be false"},
    {WITH("\"pruned_heads\": {\"0\": [1]}"), SW_ERR_UNSUPPORTED, "must be absent or empty"},
    {WITH("\"quantization_config\": {\"bits\": 4}"), SW_ERR_UNSUPPORTED, "'quantization_config'"},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 5, \"n_positions\": "
     "9}",
     SW_ERR_ARG, "'n_head' 5 does not divide 'n_embd' 64"},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": -1, \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 4, \"n_positions\": "
     "9}",
     SW_ERR_ARG, "'vocab_size' is -1"},
};

static void test_bad(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sw_model_config config = {.vocab = 7};
        const sw_status status = sw_config_parse(bad[i].text, "some/config.json", &config);
        support_expect_failure(status, bad[i].code, bad[i].message, bad[i].text);
        assert_int_equal(config.vocab, 7); /* Untouched. */
    }
    struct sw_model_config config;
    support_expect_failure(sw_config_parse("{}", "some/config.json", &config), SW_ERR_ARG, "some/config.json",
                           "origin");
}

static void assert_same(const struct sw_model_config *a, const struct sw_model_config *b) {
    assert_string_equal(a->family, b->family);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->max_positions, b->max_positions);
    assert_true(a->norm_epsilon == b->norm_epsilon && a->init_std == b->init_std);
    assert_int_equal(a->activation, b->activation);
    assert_int_equal(a->tied_embeddings, b->tied_embeddings);
    assert_int_equal(a->norm, b->norm);
    assert_int_equal(a->positions, b->positions);
}

static void assert_round_trip(const struct sw_model_config *config) {
    char *text = NULL;
    struct sw_model_config back;
    support_expect_ok(sw_config_to_json(config, &text), "write");
    support_expect_ok(sw_config_parse(text, "written", &back), text);
    assert_same(config, &back);
    free(text);
}

static void test_round_trip(void **state) {
    (void)state;
    const struct sw_preset *preset = NULL;
    for (int i = 0; (preset = sw_preset_at(i)) != NULL; i++)
        assert_round_trip(&preset->config);
    struct sw_model_config odd;
    support_expect_ok(sw_config_parse(good_text, "good", &odd), "good");
    odd.ffn = 77;
    odd.activation = SW_RELU;
    odd.tied_embeddings = false;
    odd.norm_epsilon = 1.0 / 3.0;
    assert_round_trip(&odd);
    odd.activation = SW_GELU_ERF;
    assert_round_trip(&odd);
}

/* Tied embeddings, positions, two norms and four matrices with biases a block, and the final norm. */
static int64_t parameters(const struct sw_model_config *c) {
    const int64_t h = c->hidden;
    const int64_t block = 4 * h + (3 * h * h + 3 * h) + (h * h + h) + (h * c->ffn + c->ffn) + (c->ffn * h + h);
    return c->vocab * h + c->max_positions * h + c->layers * block + 2 * h;
}

static void test_presets(void **state) {
    (void)state;
    /* The published counts of GPT-2's four sizes, and the ranges that the others are meant for. */
    static const struct {
        const char *name;
        int64_t least, most;
    } expected[] = {
        {"gpt2-124m", 124439808, 124439808},   {"gpt2-355m", 354823168, 354823168},
        {"gpt2-774m", 774030080, 774030080},   {"gpt2-1.5b", 1557611200, 1557611200},
        {"gpt2-1.3b", 1200000000, 1300000000}, {"gpt2-demo", 3000000, 10000000},
        {"gpt2-tiny", 50000, 200000},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        struct sw_model_config config;
        support_expect_ok(sw_config_load(expected[i].name, &config), expected[i].name);
        const int64_t count = parameters(&config);
        if (count < expected[i].least || count > expected[i].most)
            fail_msg("%s has %lld parameters", expected[i].name, (long long)count);
    }
    assert_null(sw_preset_at(-1));
}

static void test_load(void **state) {
    const struct support_folder *folder = *state;
    char path[SUPPORT_PATH_CHARS];
    struct sw_model_config config;
    support_expect_failure(sw_config_load(folder->path, &config), SW_ERR_ARG, "has no config.json", "empty folder");
    support_write(state, "config.json", good_text, strlen(good_text), path);
    support_expect_ok(sw_config_load(folder->path, &config), "folder");
    assert_int_equal(config.vocab, 999);
    config.vocab = 0;
    support_expect_ok(sw_config_load(path, &config), "file");
    assert_int_equal(config.vocab, 999);
    support_expect_failure(sw_config_load("gpt2-124n", &config), SW_ERR_ARG, "gpt2-124m", "preset mistyped");
    support_write(state, "config.json", good_text, strlen(good_text) / 2, path);
    support_expect_failure(sw_config_load(folder->path, &config), SW_ERR_ARG, path, "cut off");
    support_write(state, "config.json", good_text, sizeof good_text, path);
    support_expect_failure(sw_config_load(path, &config), SW_ERR_ARG, "zero bytes", "zero byte at the end");
    support_write(state, "config.json", "", 0, path);
    support_expect_failure(sw_config_load(path, &config), SW_ERR_ARG, "not JSON", "empty file");
    assert_int_equal(truncate(path, INT64_C(1) << 25), 0);
    support_expect_failure(sw_config_load(path, &config), SW_ERR_ARG, "at most", "huge file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    support_expect_failure(sw_config_load(path, &config), SW_ERR_ARG, "regular file", "pipe");
}

/* The model of a family's own depth is itself, and sizes grow with depth. */
static void test_scaled(void **state) {
    (void)state;
    for (int i = 0; sw_proportions_at(i) != NULL; i++) {
        const struct sw_model_config *base = &sw_proportions_at(i)->config;
        struct sw_model_config config, before = {0};
        support_expect_ok(sw_config_scale(base, base->layers, &config), base->family);
        assert_memory_equal(&config, base, sizeof config);
        for (int64_t layers = 1; layers <= 128; layers++) {
            support_expect_ok(sw_config_scale(base, layers, &config), base->family);
            assert_int_equal(config.layers, layers);
            assert_int_equal(config.heads * base->kv_heads, config.kv_heads * base->heads);
            assert_int_equal(config.hidden * base->heads, base->hidden * config.heads);
            assert_true(config.hidden >= before.hidden && config.ffn >= before.ffn && config.ffn % 64 == 0);
            assert_true(config.expert_ffn >= before.expert_ffn && config.expert_ffn % 64 == 0);
            assert_true((config.ffn == 0) == (base->ffn == 0) && (config.expert_ffn == 0) == (base->expert_ffn == 0));
            before = config;
        }
        support_expect_failure(sw_config_scale(base, 0, &config), SW_ERR_ARG, "layers", "no layer");
        support_expect_failure(sw_config_scale(base, SW_CONFIG_MAX_LAYERS + 1, &config), SW_ERR_ARG, "layers",
                               "too many layers");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_scaled),
        cmocka_unit_test_setup_teardown(test_load, support_make_folder, support_remove_folder),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
