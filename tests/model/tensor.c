/* The ranks of a tensor group compute what the whole model does: the same loss and gradients but for the order of sums.
 * Their units have every element of the model, and lie alike. */
#include "job/settings_plan.h"
#include "tests/equipment/support.h"
#include "tests/model/tensor_group.h"

#include <math.h>

#include "core/size.h"

static const int group_sizes[] = {2, 4};
enum { GROUP_SIZES = sizeof group_sizes / sizeof group_sizes[0] };
/* Tiles of a rank's part of a half: a first and a last, and two between them. */
static const int64_t tile_counts[] = {1, 2, 4};
enum { TILE_COUNTS = sizeof tile_counts / sizeof tile_counts[0] };
/* fp32 against fp32: relative, of the loss and of a tensor's norm. In bf16 partial sums are rounded once more. */
#define FP32_LOSS_TOLERANCE 1e-6
#define FP32_TOLERANCE 1e-5
#define BF16_LOSS_TOLERANCE 2e-3
#define BF16_TOLERANCE 5e-2

/* An odd vocabulary and odd positions, which no group divides. */
#define MIXED_SIZES                                                                                                    \
    .vocab = 1301, .hidden = 64, .layers = 2, .heads = 8, .head_dim = 8, .max_positions = 9, .norm_epsilon = 1e-5,     \
    .init_std = 0.15
#define SIZES MIXED_SIZES, .ffn = 96
/* A llama of so many key-value heads. Where they are fewer than the ranks, each rank has the weights of all. */
#define FORM(kv_heads_)                                                                                                \
    .kv_heads = (kv_heads_), .activation = SW_SILU, .norm = SW_NORM_RMS, .positions = SW_POSITIONS_ROTARY,             \
    .gated = true, .out_first = true, .rope = {.theta = 10000.0}
#define LLAMA_SHARING(kv_heads_) SIZES, FORM(kv_heads_)
#define LLAMA LLAMA_SHARING(4)
/* A mixture of five experts, three for each token, whose inner layers are cut like those of dense models. */
#define MIXTURE(kv_heads_) MIXED_SIZES, FORM(kv_heads_), .experts = 5, .chosen_experts = 3, .expert_ffn = 20

#define GPT_OSS                                                                                                        \
    .qkv_bias = true, .projection_bias = true, .joined_experts = true, .normalises_chosen = true, .window = 3,         \
    .full_layers = {2}

#define BLOOM                                                                                                          \
    SIZES, .kv_heads = 8, .activation = SW_GELU_TANH, .positions = SW_POSITIONS_ALIBI, .out_first = true,              \
           .embedding_norm = true, .qkv_by_head = true

static const struct tensor_case cases[] = {
    {.name = "gpt2",
     .config = {.family = "gpt2", SIZES, .kv_heads = 8, .activation = SW_GELU_TANH, .tied_embeddings = true}},
    {.name = "gpt2 with its own table, documents, recomputed",
     .config = {.family = "gpt2", SIZES, .kv_heads = 8, .activation = SW_GELU_TANH},
     .documents = true,
     .recompute = SW_RECOMPUTE_UNIT},
    {.name = "llama", .config = {.family = "llama", LLAMA}},
    {.name = "llama with biases and a window, recomputed",
     .config = {.family = "llama", LLAMA, .qkv_bias = true, .projection_bias = true, .mlp_bias = true, .window = 3},
     .recompute = SW_RECOMPUTE_DERIVED},
    {.name = "qwen3",
     .config = {.family = "qwen3", LLAMA, .qk_norm = true, .tied_embeddings = true},
     .recompute = SW_RECOMPUTE_UNIT},
    {.name = "qwen3 with its own table, documents",
     .config = {.family = "qwen3", LLAMA, .qk_norm = true},
     .documents = true,
     .recompute = SW_RECOMPUTE_DERIVED},
    {.name = "qwen2 of two key-value heads", .config = {.family = "qwen2", LLAMA_SHARING(2), .qkv_bias = true}},
    {.name = "qwen2 of one key-value head, recomputed",
     .config = {.family = "qwen2", LLAMA_SHARING(1), .qkv_bias = true, .tied_embeddings = true},
     .recompute = SW_RECOMPUTE_UNIT},
    {.name = "qwen3 of two key-value heads, recomputed",
     .config = {.family = "qwen3", LLAMA_SHARING(2), .qk_norm = true, .tied_embeddings = true},
     .recompute = SW_RECOMPUTE_UNIT},
    {.name = "qwen3 of one key-value head, documents",
     .config = {.family = "qwen3", LLAMA_SHARING(1), .qk_norm = true, .tied_embeddings = true},
     .documents = true,
     .recompute = SW_RECOMPUTE_DERIVED},
    {.name = "mixtral", .config = {.family = "mixtral", MIXTURE(4), .normalises_chosen = true}},
    {.name = "qwen3_moe of two key-value heads, recomputed",
     .config = {.family = "qwen3_moe", MIXTURE(2), .qk_norm = true, .normalises_chosen = true},
     .recompute = SW_RECOMPUTE_UNIT},
    {.name = "qwen3_moe, tied, documents, derived",
     .config = {.family = "qwen3_moe", MIXTURE(4), .qk_norm = true, .tied_embeddings = true},
     .documents = true,
     .recompute = SW_RECOMPUTE_DERIVED},
    {.name = "qwen2_moe", .config = {.family = "qwen2_moe", MIXTURE(4), .ffn = 48, .qkv_bias = true}},
    {.name = "qwen2_moe of two key-value heads, recomputed",
     .config = {.family = "qwen2_moe", MIXTURE(2), .ffn = 48, .qkv_bias = true, .tied_embeddings = true},
     .recompute = SW_RECOMPUTE_UNIT},
    {.name = "gpt_oss", .config = {.family = "gpt_oss", MIXTURE(4), GPT_OSS}},
    {.name = "gpt_oss of two key-value heads, documents, recomputed",
     .config = {.family = "gpt_oss", MIXTURE(2), GPT_OSS},
     .documents = true,
     .recompute = SW_RECOMPUTE_UNIT},
    {.name = "bloom", .config = {.family = "bloom", BLOOM, .tied_embeddings = true}},
    {.name = "bloom with its own table, documents, recomputed",
     .config = {.family = "bloom", BLOOM},
     .documents = true,
     .recompute = SW_RECOMPUTE_UNIT}};
enum { CASES = sizeof cases / sizeof cases[0], MIXTRAL = 10 };

int64_t tensor_elems(const struct sw_units *units) {
    int64_t elems = 0;
    for (int64_t u = 0; u < units->count; u++)
        elems += units->unit[u].elems;
    return elems;
}

int64_t tensor_place(const struct sw_units *whole, const char *name) {
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

static float *floats(int64_t count) {
    float *out = calloc((size_t)sw_max_i64(count, 1), sizeof *out);
    assert_non_null(out);
    return out;
}

static struct sw_units *whole_units(const struct sw_model_config *config, sw_optimizer_format format,
                                    const struct sw_tuning *tuning) {
    struct sw_units *units = NULL;
    support_expect_ok(sw_model_units(config, 1, format, tuning, &units), "the whole model");
    return units;
}

static struct tensor_result make_result(const struct sw_units *whole, int64_t hidden) {
    return (struct tensor_result){.grads = floats(tensor_elems(whole)), .input_grad = floats(BATCH * SEQ * hidden)};
}

static void free_result(struct tensor_result *result) {
    free(result->grads);
    free(result->input_grad);
}

/* Returns how far two vectors are apart, relative to the norm of the first. */
static double distance(const float *want, const float *got, int64_t elems) {
    double difference = 0.0, norm = 0.0;
    for (int64_t e = 0; e < elems; e++) {
        difference += ((double)got[e] - want[e]) * ((double)got[e] - want[e]);
        norm += (double)want[e] * want[e];
    }
    return sqrt(difference / norm);
}

struct comparison {
    const struct tensor_case *c;
    int ranks;
    double tolerance, worst;
};

static void compare(struct comparison *with, const char *what, const float *want, const float *got, int64_t elems) {
    const double found = distance(want, got, elems);
    with->worst = fmax(with->worst, found);
    if (!(found <= with->tolerance))
        fail_msg("%s, %d ranks, %d tiles: %s differs by %.2e of its norm", with->c->name, with->ranks,
                 (int)with->c->tiles, what, found);
}

/* With sequence parallelism nothing but the place of the norms' work differs, and so no bit. */
static void compare_sequence(const struct tensor_case *c, int ranks, const struct sw_units *whole,
                             const struct tensor_result *want) {
    struct tensor_case sequence = *c;
    struct tensor_result got = make_result(whole, c->config.hidden);
    sequence.sequence = true;
    tensor_run(&sequence, ranks, whole, &got);
    if (got.loss != want->loss)
        fail_msg("%s, %d ranks: sequence parallelism changes the loss", c->name, ranks);
    assert_memory_equal(got.input_grad, want->input_grad, (size_t)(BATCH * SEQ * c->config.hidden) * sizeof(float));
    assert_memory_equal(got.grads, want->grads, (size_t)tensor_elems(whole) * sizeof(float));
    free_result(&got);
}

static void compare_group(const struct tensor_case *c, int ranks, const struct sw_units *whole,
                          const struct tensor_result *want) {
    const bool fp32 = c->type == SW_F32;
    struct comparison with = {.c = c, .ranks = ranks, .tolerance = fp32 ? FP32_TOLERANCE : BF16_TOLERANCE};
    struct tensor_result got = make_result(whole, c->config.hidden);
    tensor_run(c, ranks, whole, &got);
    if (!(fabs(got.loss - want->loss) <= (fp32 ? FP32_LOSS_TOLERANCE : BF16_LOSS_TOLERANCE) * want->loss))
        fail_msg("%s, %d ranks: the loss is %.9g, and %.9g of the whole", c->name, ranks, got.loss, want->loss);
    compare(&with, "the gradient at the embedding's output", want->input_grad, got.input_grad,
            BATCH * SEQ * c->config.hidden);
    for (int64_t u = 0; u < whole->count; u++)
        for (int64_t t = 0; t < whole->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &whole->unit[u].tensor[t];
            const int64_t at = tensor_place(whole, tensor->name);
            compare(&with, tensor->name, want->grads + at, got.grads + at, tensor->elems);
        }
    if (c->tiles == 1)
        compare_sequence(c, ranks, whole, &got);
    printf("# %s, %s, %d ranks, %d tiles: gradients differ by up to %.1e, the loss by %.1e\n", c->name,
           fp32 ? "fp32" : "bf16", ranks, (int)c->tiles, with.worst, fabs(got.loss / want->loss - 1.0));
    free_result(&got);
}

/* Compares a group with each number of tiles that its ranks can have. Returns how many of these are above 1. */
static int compare_tiles(const struct tensor_case *c, int ranks, const struct sw_units *whole,
                         const struct tensor_result *want) {
    int tiled = 0;
    for (int i = 0; i < TILE_COUNTS; i++) {
        struct tensor_case cut = *c;
        cut.tiles = tile_counts[i];
        if (!sw_model_tiles_fit(&c->config, ranks, cut.tiles))
            continue;
        compare_group(&cut, ranks, whole, want);
        tiled += cut.tiles > 1;
    }
    return tiled;
}

static void compare_type(sw_dtype type) {
    int tiled = 0;
    for (int i = 0; i < CASES; i++) {
        struct tensor_case c = cases[i];
        c.type = type;
        if (type != SW_F32) /* else a rounded logit could choose another expert for a token */
            c.config.chosen_experts = c.config.experts;
        struct sw_units *whole = whole_units(&c.config, SW_OPTIMIZER_FP32, NULL);
        struct tensor_result want = make_result(whole, c.config.hidden);
        tensor_run(&c, 1, whole, &want);
        for (int n = 0; n < GROUP_SIZES; n++)
            tiled += compare_tiles(&c, group_sizes[n], whole, &want);
        free_result(&want);
        sw_units_destroy(whole);
    }
    assert_true(tiled > MIXTRAL / 2); /* none of a mixture */
}

static void a_group_computes_what_the_whole_model_does(void **state) {
    (void)state;
    compare_type(SW_F32);
}

static void in_bf16_a_group_rounds_once_more(void **state) {
    (void)state;
    compare_type(SW_BF16);
}

/* Marks the elements that a rank's part of a tensor has, those that all ranks have on the last, and checks that they
 * have the whole tensor's random weights. */
static void mark(const struct sw_units *whole, const float *weights, const struct sw_tensor *part, const float *own,
                 bool copied, bool last, int *seen) {
    const int64_t base = tensor_place(whole, part->name);
    for (int64_t e = 0, rest; e < part->elems; e++) {
        const int64_t at = base + sw_tensor_to_whole(part, e, &rest);
        assert_true(own[part->offset + e] == weights[at]);
        seen[at] += last || !copied;
    }
}

/* Checks that a rank's unit lies as that of rank 0, with frozen tensors and nothing else in the first grains, and
 * trained replicated ones and nothing else in the last. */
static void check_layout(const struct sw_unit *first, const struct sw_unit *unit) {
    assert_string_equal(unit->name, first->name);
    assert_int_equal(unit->grains, first->grains);
    assert_int_equal(unit->wide_grain, first->wide_grain);
    assert_int_equal(unit->replicated_grain, first->replicated_grain);
    assert_int_equal(unit->trained_grain, first->trained_grain);
    assert_int_equal(unit->base_grains, first->base_grains);
    assert_int_equal(unit->tensor_count, first->tensor_count);
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        assert_int_equal(tensor->offset, first->tensor[t].offset);
        const int64_t grain = tensor->offset / SW_GRAIN_ELEMS;
        const int64_t last = (tensor->offset + tensor->elems - 1) / SW_GRAIN_ELEMS;
        assert_true((grain < unit->trained_grain) == tensor->frozen && (last < unit->trained_grain) == tensor->frozen);
        if (!tensor->frozen) {
            assert_int_equal(sw_unit_grain_copies(unit, grain), tensor->part.replicated);
            assert_int_equal(sw_unit_grain_copies(unit, last), tensor->part.replicated);
        }
        assert_int_equal(tensor->decay, tensor->dims > 1 && strstr(tensor->name, "_proj_bias") == NULL);
    }
}

static void check_units(const struct sw_model_config *config, const struct sw_model_group *shape, int64_t tiles,
                        sw_optimizer_format format, const struct sw_tuning *tuning) {
    struct sw_units *whole = whole_units(config, format, tuning), *first = NULL, *units = NULL;
    float *weights = floats(tensor_elems(whole)), *next = weights;
    const int64_t elems = tensor_elems(whole);
    int *seen = calloc((size_t)sw_max_i64(elems, 1), sizeof *seen);
    assert_non_null(seen);
    for (int64_t u = 0; u < whole->count; next += whole->unit[u++].elems)
        tensor_fill(config, whole, u, next);
    struct sw_model_group group = *shape;
    support_expect_ok(sw_model_group_units(config, &group, tiles, format, tuning, &first), "the units of rank 0");
    assert_int_equal(first->count, 2 + (group.joined ? 1 : 2 * tiles) * config->layers);
    for (group.rank = 0; group.rank < group.ranks; group.rank++, sw_units_destroy(units)) {
        support_expect_ok(sw_model_group_units(config, &group, tiles, format, tuning, &units), "the units of a rank");
        assert_int_equal(units->tied, config->tied_embeddings);
        for (int64_t u = 0; u < units->count; u++) {
            const struct sw_unit *unit = &units->unit[u];
            float *own = floats(unit->elems);
            check_layout(&first->unit[u], unit);
            tensor_fill(config, units, u, own);
            for (int64_t n = 0; n < unit->tensor_count; n++) {
                const bool by_all = group.experts && !group.joined && !unit->shared_out;
                const bool replicated = unit->tensor[n].part.replicated;
                const int copies_begin = group.ranks - (replicated || !by_all ? 1 : group.ranks / group.experts);
                mark(whole, weights, &unit->tensor[n], own, replicated || by_all, group.rank >= copies_begin, seen);
            }
            free(own);
        }
    }
    int64_t found = 0;
    for (int64_t e = 0; e < elems; found += seen[e++])
        assert_true(seen[e] <= 1);
    assert_int_equal(found, sw_units_parameters(whole));
    sw_units_destroy(first);
    sw_units_destroy(whole);
    free(weights);
    free(seen);
}

static void the_units_of_a_group_have_each_element_once(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int n = 0; n < GROUP_SIZES; n++)
            for (int64_t k = 0; k < TILE_COUNTS * SW_OPTIMIZER_FORMATS; k++)
                if (sw_model_tiles_fit(&cases[i].config, group_sizes[n], tile_counts[k % TILE_COUNTS]))
                    check_units(&cases[i].config, &(struct sw_model_group){.ranks = group_sizes[n]},
                                tile_counts[k % TILE_COUNTS], (sw_optimizer_format)(k / TILE_COUNTS), NULL);
}

/* Each rank of an expert group has its experts whole, and all else as the others, adapters and a frozen base too; with
 * experts in units of their own, or in one with their block. If the members of the group are tensor groups, it has its
 * part of all these. */
static void the_units_of_an_expert_group_have_each_element_once(void **state) {
    (void)state;
    const struct sw_tuning tunings[] = {{.freeze = NULL},
                                        {.freeze = "blocks:0,*.experts.[024].*"},
                                        {.lora = {.rank = 3, .targets = "attention"}},
                                        {.lora = {.rank = 3, .targets = "attention"}, .base = SW_BASE_NF4},
                                        {.lora = {.rank = 3}}};
    static const struct sw_model_group groups[] = {
        {.ranks = 3, .experts = 3}, {.ranks = 6, .experts = 3}, {.ranks = 3, .experts = 3, .joined = true}};
    enum { TUNINGS = sizeof tunings / sizeof tunings[0], GROUPS = sizeof groups / sizeof groups[0] };
    for (int i = 0; i < CASES; i++)
        for (int format = 0; cases[i].config.experts > 0 && format < SW_OPTIMIZER_FORMATS; format++)
            for (int t = 0; t < TUNINGS * GROUPS; t++) {
                struct sw_model_config config = cases[i].config;
                struct sw_tuning tuning = tunings[t / GROUPS];
                config.experts = 6;
                const bool adapted = t / GROUPS + 1 == TUNINGS, halves = groups[t % GROUPS].ranks > 3;
                if (halves && (config.joined_experts || sw_config_has_shared_expert(&config))) /* refused */
                    continue;
                if (config.joined_experts && t / GROUPS == 1)
                    tuning.freeze = "blocks:0,*.experts.gate*";
                /* No other groups have adapters of experts; and one format is enough where experts are in halves. */
                if (adapted ? t % GROUPS == 0 && format == SW_OPTIMIZER_BF16 : !halves || format == SW_OPTIMIZER_8BIT)
                    check_units(&config, &groups[t % GROUPS], 1, (sw_optimizer_format)format, &tuning);
            }
}

/* The parts of adapters, of which some ranks have replicas, and a frozen base beside them. */
static void the_adapters_of_a_group_have_each_element_once(void **state) {
    (void)state;
    const struct sw_tuning tunings[] = {{.lora = {.rank = 3}},
                                        {.lora = {.rank = 5, .targets = "attention"}, .base = SW_BASE_NF4},
                                        {.lora = {.rank = 5, .targets = "attention"}},
                                        {.freeze = "blocks:0,*.1.*proj*"}};
    for (int i = 0; i < CASES * (int)(sizeof tunings / sizeof tunings[0]); i++)
        for (int n = 0; n < GROUP_SIZES; n++)
            for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++)
                if (cases[i % CASES].config.experts == 0 || i / CASES != 1) { /* a base of experts is not divided */
                    const struct sw_model_config *config = &cases[i % CASES].config;
                    struct sw_tuning tuning = tunings[i / CASES];
                    if (tuning.freeze != NULL && config->qkv_by_head) /* other names of matrices */
                        tuning.freeze = "blocks:0,*.1.*dense*";
                    check_units(config, &(struct sw_model_group){.ranks = group_sizes[n]}, 1,
                                (sw_optimizer_format)format, &tuning);
                }
}

/* Returns how many matrices of a block's tensor are Muon's: experts have one each, vectors and biases none. */
static int64_t matrices_of(const struct sw_tensor *tensor) {
    if (tensor->dims == 3)
        return tensor->dim[0];
    return tensor->dims == 2 && tensor->decay && tensor->dim[0] > 1 && tensor->dim[1] > 1;
}

/* Returns how many matrices a tensor of this name holds side by side. */
static int parts_of(const char *name) {
    if (strstr(name, "c_attn") != NULL || strstr(name, "qkv_proj") != NULL || strstr(name, "query_key_value") != NULL)
        return 3;
    return strstr(name, "gate_up_proj") != NULL ? 2 : 1;
}

static void check_matrices(const struct sw_model_config *config, const struct sw_unit *unit, bool block) {
    int64_t count = 0, end = unit->trained_grain * SW_GRAIN_ELEMS;
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const struct sw_muon_tensor *m = &tensor->muon;
        const int64_t *dim = tensor->dim + tensor->dims - 2;
        assert_int_equal(tensor->muon_count, block ? matrices_of(tensor) : 0);
        count += tensor->muon_count;
        if (tensor->muon_count == 0) {
            assert_true(tensor->offset >= unit->adamw_grain * SW_GRAIN_ELEMS);
            continue;
        }
        assert_int_equal(m->in_first, tensor->dims == 3 || !config->out_first);
        assert_int_equal(m->outputs, dim[m->in_first ? 1 : 0]);
        assert_int_equal(m->inputs, dim[m->in_first ? 0 : 1]);
        assert_int_equal(m->part_end[m->parts - 1], m->outputs);
        assert_int_equal(m->parts, parts_of(tensor->name));
        assert_int_equal(m->turn, config->qkv_by_head && m->parts == 3 ? config->head_dim : 0);
    }
    assert_int_equal(count, unit->muon_count);
    for (int64_t i = 0; i < count; end = unit->muon[i].first_elem + unit->muon[i].outputs * unit->muon[i].inputs, i++)
        assert_true(unit->muon[i].first_elem >= end);
    assert_true(count == 0 || end <= unit->adamw_grain * SW_GRAIN_ELEMS);
}

/* Muon has every matrix of every block whole, head-fused and joined ones in parts, and nothing else. */
static void muon_has_the_matrices_of_blocks(void **state) {
    (void)state;
    static const struct sw_model_config fused = {.family = "phi3", LLAMA};
    for (int i = 0; i <= CASES; i++) {
        const struct sw_model_config *config = i < CASES ? &cases[i].config : &fused;
        struct sw_units *whole = whole_units(config, SW_OPTIMIZER_MUON, NULL);
        for (int64_t u = 0; u < whole->count; u++)
            check_matrices(config, &whole->unit[u], u > 0 && u + 1 < whole->count);
        sw_units_destroy(whole);
    }
}

static void models_that_a_group_does_not_divide_are_refused(void **state) {
    (void)state;
    struct sw_units *units;
    struct sw_model_config config = cases[0].config;
    support_expect_failure(sw_model_rank_units(&config, 3, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--tensor 3 must divide the model's 8 heads; the nearest that fits is 2", "heads");
    config = cases[2].config;
    config.heads = 12;
    support_expect_failure(sw_model_rank_units(&config, 6, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--tensor 6 must divide the model's 4 key-value heads, or be a multiple of them; the "
                           "nearest that fits is 4",
                           "key heads");
    support_expect_failure(sw_model_rank_units(&config, 11, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--tensor 11 must divide the model's 12 heads; the nearest that fits is 12", "more ranks");
    config.ffn = 97;
    support_expect_failure(sw_model_rank_units(&config, 2, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "97 columns of the model's MLP", "columns of the MLP");
    config = cases[MIXTRAL].config;
    config.expert_ffn = 22;
    support_expect_failure(sw_model_rank_units(&config, 4, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--tensor 4 must divide the 22 columns of the model's experts; the nearest that fits is 2",
                           "experts");
    config = cases[0].config;
    config.max_positions = 3;
    support_expect_failure(sw_model_rank_units(&config, 4, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--tensor 4 is more than the 3 rows", "positions");
    config = cases[2].config;
    config.vocab = 3;
    support_expect_failure(sw_model_rank_units(&config, 4, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--tensor 4 is more than the 3 rows", "tokens");
}

static void experts_that_ranks_cannot_share_are_refused(void **state) {
    (void)state;
    struct sw_units *units;
    struct sw_model_config config = cases[MIXTRAL].config;
    struct sw_model_group group = {.ranks = 2, .experts = 2};
    const struct sw_tuning uneven = {.freeze = "*.experts.[02].*"};
    support_expect_failure(sw_model_group_units(&config, &group, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--experts 2 must divide the model's 5 experts", "experts");
    config.experts = 6;
    support_expect_failure(sw_model_group_units(&config, &group, 1, SW_OPTIMIZER_FP32, &uneven, &units),
                           SW_ERR_UNSUPPORTED, "--experts 2 gives one rank more of the experts", "frozen experts");
    support_expect_failure(sw_model_group_units(&config, &group, 2, SW_OPTIMIZER_FP32, NULL, &units),
                           SW_ERR_UNSUPPORTED, "whose blocks have experts", "tiles");
    support_expect_failure(sw_model_group_units(&cases[2].config, &group, 1, SW_OPTIMIZER_FP32, NULL, &units),
                           SW_ERR_ARG, "llama has none", "a dense model");
}

static void tiles_that_a_rank_cannot_have_are_refused(void **state) {
    (void)state;
    struct sw_units *units;
    struct sw_model_config config = cases[0].config;
    support_expect_failure(
        sw_model_rank_units(&config, 2, 0, 3, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
        "--tiles 3 must divide the 4 heads and 48 columns of the MLP that each rank of --tensor 2 has; "
        "give one of 1, 2, 4",
        "three tiles of four heads");
    config = cases[2].config;
    support_expect_failure(sw_model_rank_units(&config, 4, 0, 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "has; give 1", "two tiles of one key head");
    config.kv_heads = 2;
    support_expect_failure(sw_model_rank_units(&config, 4, 0, 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_ARG,
                           "--tiles 2 does not work with --tensor 4, whose ranks share the model's 2 key-value heads",
                           "tiles of shared heads");
    config.qk_norm = true;
    support_expect_failure(sw_model_rank_units(&config, 2, 0, 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_UNSUPPORTED,
                           "whose heads share the norms of queries and keys", "tiles of heads with norms");
}

/* Returns the floating-point operations of a forward pass by the plan of one rank of a group, in tiles where the
 * model's heads allow it. */
static double planned_flops(const struct tensor_case *c, struct sw_device *device, int ranks, int rank) {
    const int64_t tiles = c->config.kv_heads == c->config.heads ? 2 : 1;
    const struct sw_model_shape shape = {.type = c->type,
                                         .batch = BATCH,
                                         .seq = SEQ,
                                         .tiles = tiles,
                                         .tensor_ranks = ranks == 1 ? 0 : ranks,
                                         .tensor_rank = rank,
                                         .head_tile_bytes = HEAD_TILE_BYTES};
    const struct sw_settings settings = {.precision = SW_PRECISION_FP32,
                                         .batch_tokens = (int64_t)BATCH * SEQ,
                                         .micro_batch = BATCH,
                                         .seq = SEQ,
                                         .tiles = tiles,
                                         .ranks = ranks,
                                         .rank = rank,
                                         .node_ranks = ranks,
                                         .tensor = ranks,
                                         .ranks_per_node = SW_OPTION_AUTO,
                                         .order = "layer",
                                         .place = "optimizer=device",
                                         .chunk_grains = 1,
                                         .ring_chunks = SW_OPTION_AUTO,
                                         .device_memory = SW_GIB,
                                         .host_memory = SW_GIB};
    struct sw_model *model = NULL;
    struct sw_plan *plan = NULL;
    support_expect_ok(sw_model_create(&c->config, &shape, device, &model), c->name);
    support_expect_ok(sw_settings_outline(&settings, model, NULL, &plan), c->name);
    double flops = 0.0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        flops += plan->spec.cost[u].forward_flops;
    sw_plan_destroy(plan);
    sw_model_destroy(model);
    return flops;
}

/* Attention is included, of which each rank has its heads. Ranks that share a key-value head compute it twice, and each
 * rank computes the whole router, and the gate of a shared expert. */
static void the_ranks_of_a_group_share_the_flops(void **state) {
    (void)state;
    struct sw_device *device;
    support_expect_ok(sw_device_open("cpu", 1, &device), "a device");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].config.kv_heads < 2)
            continue;
        const struct sw_model_config *c = &cases[i].config;
        const double whole =
            planned_flops(&cases[i], device, 1, 0) +
            2.0 * BATCH * SEQ * (double)(c->layers * c->hidden * (c->experts + (c->experts > 0 && c->ffn > 0)));
        double sum = 0.0;
        for (int rank = 0; rank < 2; rank++)
            sum += planned_flops(&cases[i], device, 2, rank);
        if (fabs(sum - whole) > 1e-9 * whole)
            fail_msg("%s: two ranks have %.0f operations, the whole model %.0f", cases[i].name, sum, whole);
    }
    sw_device_close(device);
}

/* Ranks fill nodes one after the other, and groups take neighbours. */
static void groups_lie_on_nodes(void **state) {
    (void)state;
    static const struct {
        int64_t ranks, node, tensor;
        int tensor_node_ranks, data_node_ranks;
        int64_t nodes;
    } jobs[] = {
        {.ranks = 16, .node = 8, .tensor = 4, .tensor_node_ranks = 4, .data_node_ranks = 2, .nodes = 1},
        {.ranks = 16, .node = 8, .tensor = 8, .tensor_node_ranks = 8, .data_node_ranks = 1, .nodes = 1},
        {.ranks = 16, .node = 8, .tensor = 16, .tensor_node_ranks = 8, .data_node_ranks = 1, .nodes = 2},
        {.ranks = 16, .node = 1, .tensor = 4, .tensor_node_ranks = 1, .data_node_ranks = 1, .nodes = 4},
        /* Each group has four ranks on one node and two on another. */
        {.ranks = 12, .node = 4, .tensor = 6, .tensor_node_ranks = 2, .data_node_ranks = 1, .nodes = 2},
        /* The third group has two ranks on the first node and one on the second. */
        {.ranks = 24, .node = 8, .tensor = 3, .tensor_node_ranks = 1, .data_node_ranks = 2, .nodes = 2},
        {.ranks = 16, .node = 8, .tensor = 1, .tensor_node_ranks = 1, .data_node_ranks = 8, .nodes = 1},
        {.ranks = 16, .node = 0, .tensor = 4, .tensor_node_ranks = 0, .data_node_ranks = 0, .nodes = 0},
        {.ranks = 16, .node = SW_NODES_UNEVEN, .tensor = 4, .tensor_node_ranks = 0, .data_node_ranks = 0, .nodes = 0},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct sw_settings settings = {.ranks = jobs[i].ranks,
                                       .node_ranks = jobs[i].node,
                                       .tensor = jobs[i].tensor,
                                       .ranks_per_node = SW_OPTION_AUTO};
        assert_int_equal(sw_settings_tensor_node_ranks(&settings), jobs[i].tensor_node_ranks);
        assert_int_equal(sw_settings_data_node_ranks(&settings), jobs[i].data_node_ranks);
        assert_int_equal(sw_settings_tensor_nodes(&settings), jobs[i].nodes);
        settings.nodes_mixed = true;
        assert_int_equal(sw_settings_tensor_nodes(&settings), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_lie_on_nodes),
        cmocka_unit_test(the_ranks_of_a_group_share_the_flops),
        cmocka_unit_test(a_group_computes_what_the_whole_model_does),
        cmocka_unit_test(in_bf16_a_group_rounds_once_more),
        cmocka_unit_test(the_units_of_a_group_have_each_element_once),
        cmocka_unit_test(the_units_of_an_expert_group_have_each_element_once),
        cmocka_unit_test(the_adapters_of_a_group_have_each_element_once),
        cmocka_unit_test(muon_has_the_matrices_of_blocks),
        cmocka_unit_test(models_that_a_group_does_not_divide_are_refused),
        cmocka_unit_test(tiles_that_a_rank_cannot_have_are_refused),
        cmocka_unit_test(experts_that_ranks_cannot_share_are_refused),
    };
    return cmocka_run_group_tests_name("train tensor", tests, NULL, NULL);
}
