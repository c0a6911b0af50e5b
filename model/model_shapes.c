/* Prepares a model's arithmetic: its matrix products by shape, and the offset of each intermediate.
 *
 * Everything is chosen from the model, the micro-batch and the kind of device, before the plan exists. Letting the
 * plan's budgets choose the head's tiles would save memory in some runs, but the order of sums, and so the bits, would
 * follow the budget. */
#include "core/size.h"
#include "kernels/tiling.h"
#include "model/model_private.h"

#include <math.h>
#include <stdlib.h>

/* Rounds the frequency to fp32 as torch does, because an angle's error is the frequency's error times the position. */
static double base_frequency(const struct sw_model_config *config, int64_t i) {
    const float power = (float)(2 * i) / (float)config->head_dim;
    return 1.0f / (float)pow(config->rope.theta, power);
}

/* Divides low frequencies by the factor, keeps high ones, and mixes both in between, as Llama 3.1 does. */
static double llama3_frequency(const struct sw_rope *rope, double frequency) {
    const double wavelength = 2.0 * M_PI / frequency, original = (double)rope->original_positions;
    if (wavelength < original / rope->high_freq_factor)
        return frequency;
    if (wavelength > original / rope->low_freq_factor)
        return frequency / rope->factor;
    const double smooth =
        (original / wavelength - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1.0 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Returns the index of the frequency that turns this many times over the original positions. */
static double index_of_turns(const struct sw_model_config *config, double turns) {
    const double original = (double)config->rope.original_positions;
    return (double)config->head_dim * log(original / (turns * 2.0 * M_PI)) / (2.0 * log(config->rope.theta));
}

static double yarn_frequency(const struct sw_model_config *config, int64_t i, double frequency) {
    const struct sw_rope *rope = &config->rope;
    double low = index_of_turns(config, rope->beta_fast), high = index_of_turns(config, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)(config->head_dim - 1));
    const double width = low == high ? 0.001 : high - low;
    const double slowed = fmin(fmax(((double)i - low) / width, 0.0), 1.0);
    return slowed * frequency / rope->factor + (1.0 - slowed) * frequency;
}

static double frequency_of(const struct sw_model_config *config, int64_t i) {
    const double frequency = base_frequency(config, i);
    switch (config->rope.kind) {
    case SW_ROPE_LINEAR: return frequency / config->rope.factor;
    case SW_ROPE_LLAMA3: return llama3_frequency(&config->rope, frequency);
    case SW_ROPE_YARN: return yarn_frequency(config, i, frequency);
    default: return frequency;
    }
}

static double yarn_scale(double factor, double strength) {
    return factor <= 1.0 ? 1.0 : 0.1 * strength * log(factor) + 1.0;
}

/* Returns the factor by which YaRN scales cosines and sines, so that attention over long texts stays sharp. */
static double amplitude_of(const struct sw_rope *rope) {
    if (rope->kind != SW_ROPE_YARN)
        return 1.0;
    if (rope->attention_factor != 0.0)
        return rope->attention_factor;
    if (rope->mscale != 0.0 && rope->mscale_all_dim != 0.0)
        return yarn_scale(rope->factor, rope->mscale) / yarn_scale(rope->factor, rope->mscale_all_dim);
    return yarn_scale(rope->factor, 1.0);
}

void sw_rope_table(const struct sw_model_config *config, int64_t seq, float *table) {
    const int64_t half = config->head_dim / 2;
    const double amplitude = amplitude_of(&config->rope);
    for (int64_t i = 0; i < half; i++) {
        const float frequency = (float)frequency_of(config, i);
        for (int64_t t = 0; t < seq; t++) {
            const double angle = frequency * (float)t; /* rounded to fp32 before it is widened */
            table[t * config->head_dim + i] = (float)(cos(angle) * amplitude);
            table[t * config->head_dim + half + i] = (float)(sin(angle) * amplitude);
        }
    }
}

int64_t sw_rope_table_bytes(const struct sw_model *model) {
    return sw_most_keys(model) * model->config.head_dim * (int64_t)sizeof *model->rotation;
}

int64_t sw_rope_bytes(const struct sw_model *model) {
    return sw_rope_table_bytes(model) * (model->config.window_theta > 0.0 ? 2 : 1);
}

int sw_rope_table_of(const struct sw_model_config *config, int64_t layer) {
    return config->window_theta > 0.0 && !sw_config_in_full_layers(config, layer);
}

/* How the head's rows and the vocabulary are cut into tiles, and the products of a tile. Both depend only on the model,
 * the micro-batch and the kind of device, so budgets never change bits. */

/* Bounds of the bytes that a tile's logits and their gradient take on a CPU, where all rows of a tile have both at
 * once. Between the bounds they take as much as the gradient of the output table: each tile packs the table anew and
 * adds to its gradient, so tiles of few rows cost time, and a model with a large table has the memory. With the upper
 * bound a vocabulary of 152,000 has tiles of 256 rows. */
#define HOST_LEAST_TILE_BYTES (64 * SW_MIB)
#define HOST_MOST_TILE_BYTES (224 * SW_MIB)
/* A GPU multiplies so fast that its memory traffic decides. A tile keeps the gradient of the logits for its R rows, and
 * logits for r rows at a time. The table's fp32 gradient is read and written once per R rows, the table is read once
 * per r rows: in bf16 that is R / 4 and r operations per byte. An H100 does about 250 operations in the time of one
 * byte; with these bytes a vocabulary of 150,000 has tiles of about 1,500 and 500 rows. Traffic is least if logits take
 * two fifths of a tile. */
#define GPU_TILE_BYTES (768 * SW_MIB)
#define LOGITS_SHARE 0.4
/* A GPU's products work in tiles of 128 rows. That many rows of any vocabulary also end at an aligned address. */
enum { ROWS_MULTIPLE = 16, GPU_ROWS_MULTIPLE = 128 };
/* On a GPU, rows of logits and of their gradient begin at multiples of this many elements: 128 bytes in 16 bits. A
 * product can load 16 bytes at once, or use the GPU's own tile copies (TMA), only if every row begins at a multiple of
 * 16 bytes, which 50,257 tokens do not give. Rows that begin with a cache line also keep 64 columns in one line instead
 * of two. So 50,257 columns take the memory of 50,304, 0.1% more. On a CPU rows follow each other without gaps: its own
 * products gain nothing from gaps, and oneDNN's fast paths want none (kernels/cpu/gemm.c). */
enum { GPU_COLS_MULTIPLE = 64 };
/* A tile of rows costs one pass over the output table and two over its gradient. Below LEAST_ROWS rows that costs more
 * than computing logits twice; the vocabulary is then cut instead, with up to CUT_ROWS rows per tile. */
enum { LEAST_ROWS = 128, CUT_ROWS = 1024 };
static_assert((int)LEAST_ROWS >= (int)GPU_ROWS_MULTIPLE, "what is not cut has room for the least of a GPU's tiles");

/* Bytes of one row of logits and of their gradient, over the whole vocabulary, gap included. */
struct row_bytes {
    int64_t logits, grad;
};

/* Returns the size of tiles that cut `whole` about evenly: a multiple of `multiple`, at most `most`. */
static int64_t even_tile(int64_t whole, int64_t most, int64_t multiple) {
    const int64_t tiles = sw_div_up(whole, most);
    return sw_min_i64(whole, sw_round_up(sw_div_up(whole, tiles), multiple));
}

static struct head_tiles cut_vocabulary(int64_t tile_bytes, int64_t rows, int64_t vocab, int64_t logit_bytes) {
    const int64_t most_rows = sw_max_i64(tile_bytes / (SW_SOFTMAX_BLOCK_COLUMNS * logit_bytes), ROWS_MULTIPLE);
    const int64_t tile_rows = even_tile(rows, sw_min_i64(most_rows, CUT_ROWS), ROWS_MULTIPLE);
    const int64_t blocks = sw_max_i64(tile_bytes / (tile_rows * logit_bytes) / SW_SOFTMAX_BLOCK_COLUMNS, 1);
    return (struct head_tiles){
        .rows = tile_rows,
        .logits_rows = tile_rows,
        .cols = even_tile(vocab, blocks * SW_SOFTMAX_BLOCK_COLUMNS, SW_SOFTMAX_BLOCK_COLUMNS),
        .cut = true,
    };
}

static struct head_tiles cut_rows(int64_t tile_bytes, int64_t rows, int64_t vocab, struct row_bytes row) {
    const int64_t most_rows = sw_max_i64(tile_bytes / (row.logits + row.grad), ROWS_MULTIPLE);
    const int64_t tile_rows = even_tile(rows, most_rows, ROWS_MULTIPLE);
    return (struct head_tiles){.rows = tile_rows, .logits_rows = tile_rows, .cols = vocab};
}

/* Returns how many rows fit these bytes, rounded down to a multiple of GPU_ROWS_MULTIPLE, but at least that many. */
static int64_t most_in(int64_t bytes, int64_t row_bytes) {
    return sw_max_i64(bytes / row_bytes / GPU_ROWS_MULTIPLE, 1) * GPU_ROWS_MULTIPLE;
}

/* Cuts tiles with more rows of gradients than of logits. Rounding tiles to even sizes leaves some of the gradients'
 * memory free, and the logits get it. */
static struct head_tiles cut_rows_apart(int64_t tile_bytes, int64_t rows, int64_t vocab, struct row_bytes row) {
    const int64_t least_logits = sw_min_i64(most_in((int64_t)(LOGITS_SHARE * (double)tile_bytes), row.logits), rows);
    const int64_t most_rows = most_in(tile_bytes - least_logits * row.logits, row.grad);
    const int64_t tile_rows = even_tile(rows, most_rows, GPU_ROWS_MULTIPLE);
    const int64_t most_logits = most_in(tile_bytes - tile_rows * row.grad, row.logits);
    return (struct head_tiles){
        .rows = tile_rows, .logits_rows = even_tile(tile_rows, most_logits, GPU_ROWS_MULTIPLE), .cols = vocab};
}

static int64_t host_tile_bytes(int64_t vocab, int64_t hidden) {
    const int64_t table_grad_bytes = vocab * hidden * (int64_t)sizeof(float);
    return sw_min_i64(sw_max_i64(table_grad_bytes, HOST_LEAST_TILE_BYTES), HOST_MOST_TILE_BYTES);
}

/* Cuts the head into tiles. Rows are `stride` elements apart if they span the whole vocabulary. */
static struct head_tiles cut_head(const struct sw_model *model, int64_t vocab, int64_t stride, bool as_gpu) {
    const bool gpu = !sw_device_info(model->device).host_memory;
    const int64_t kind_bytes = gpu ? GPU_TILE_BYTES : host_tile_bytes(vocab, model->config.hidden);
    const int64_t tile_bytes = model->shape.head_tile_bytes > 0 ? model->shape.head_tile_bytes : kind_bytes;
    const int64_t rows = model->shape.context > 0 ? 1 : model->rows;
    const int64_t float_bytes = (int64_t)sizeof(float), typed_bytes = sw_dtype_bytes(model->shape.type);
    const struct row_bytes row = {.logits = stride * float_bytes, .grad = stride * typed_bytes};
    /* A tensor rank knows no row's softmax until it has the records of the others. */
    if (model->cut.ranks > 1)
        return cut_vocabulary(tile_bytes, rows, vocab, float_bytes + typed_bytes);
    if (vocab > SW_SOFTMAX_BLOCK_COLUMNS && sw_min_i64(rows, LEAST_ROWS) * (row.logits + row.grad) > tile_bytes)
        return cut_vocabulary(tile_bytes, rows, vocab, float_bytes + typed_bytes);
    return as_gpu ? cut_rows_apart(tile_bytes, rows, vocab, row) : cut_rows(tile_bytes, rows, vocab, row);
}

/* Returns the head's tiles. The model's rows, configuration and device must be set. */
static struct head_tiles sw_head_tiles(const struct sw_model *model) {
    const bool as_gpu = !sw_device_info(model->device).host_memory || model->shape.head_logits_apart;
    const int64_t multiple = as_gpu ? GPU_COLS_MULTIPLE : 1;
    const int64_t vocab = sw_shard_most_grains(model->config.vocab, model->cut.ranks);
    struct head_tiles tiles = cut_head(model, vocab, sw_round_up(vocab, multiple), as_gpu);
    tiles.cols_multiple = multiple;
    return tiles;
}

int64_t sw_head_stride(const struct sw_model *model, int64_t cols) {
    return sw_round_up(cols, model->head.cols_multiple);
}

struct head_products sw_head_products(const struct sw_model *model, int64_t rows, int64_t cols) {
    const int64_t hidden = model->config.hidden, stride = sw_head_stride(model, cols);
    const sw_dtype type = model->shape.type;
    return (struct head_products){
        .logits =
            {.m = rows, .n = cols, .k = hidden, .transpose_b = true, .in = type, .out = SW_F32, .c_stride = stride},
        .input_gradient = {.m = rows,
                           .n = hidden,
                           .k = cols,
                           .accumulate = model->head.cut,
                           .in = type,
                           .out = model->head.cut ? SW_F32 : type,
                           .a_stride = stride},
        .table_gradient = {.m = cols,
                           .n = hidden,
                           .k = rows,
                           .transpose_a = true,
                           .accumulate = true,
                           .in = type,
                           .out = SW_F32,
                           .a_stride = stride},
    };
}

static int64_t place(int64_t *used_bytes, int64_t bytes) {
    const int64_t at = *used_bytes;
    *used_bytes += sw_round_up(bytes, AREA_ALIGN_BYTES);
    return at;
}

static bool has(enum block_kind kind, enum sw_block_tensor tensor) {
    const struct sw_block_range range = sw_block_range(kind);
    return range.first <= (int)tensor && (int)tensor < range.end;
}

/* Lays out the routing of a micro-batch's rows. */
static void lay_routing(const struct sw_model *model, int64_t *used_bytes, struct saved_layout *s) {
    const int64_t pairs = sw_experts_pairs(model), number_bytes = (int64_t)sizeof(int32_t);
    s->router_logits =
        place(used_bytes, model->rows * model->config.experts * (int64_t)sw_dtype_bytes(model->shape.type));
    s->expert_chosen = place(used_bytes, pairs * number_bytes);
    s->expert_weight = place(used_bytes, pairs * (int64_t)sizeof(float));
    s->expert_offset = place(used_bytes, (model->config.experts + 1) * number_bytes);
    s->expert_source = place(used_bytes, pairs * number_bytes);
    s->expert_place = place(used_bytes, pairs * number_bytes);
}

/* Lays out the logits of a shared expert's gate, and the routing of all rows to two experts, of which it is the first.
 */
static void lay_shared(const struct sw_model *model, int64_t *used_bytes, struct saved_layout *s) {
    const int64_t pairs = 2 * model->rows, number_bytes = (int64_t)sizeof(int32_t);
    s->shared_logits = place(used_bytes, pairs * (int64_t)sw_dtype_bytes(model->shape.type));
    s->shared_chosen = place(used_bytes, pairs * number_bytes);
    s->shared_weight = place(used_bytes, pairs * (int64_t)sizeof(float));
    s->shared_offset = place(used_bytes, 3 * number_bytes);
    s->shared_source = place(used_bytes, pairs * number_bytes);
    s->shared_place = place(used_bytes, pairs * number_bytes);
}

/* Returns the bytes of the results of the experts' up products. */
static int64_t expert_up_bytes(const struct sw_model *model) {
    return sw_experts_pairs(model) * 2 * model->widths.expert_ffn * sw_dtype_bytes(model->shape.type);
}

static void lay_saved(const struct sw_model *model, enum block_kind kind, struct saved_layout *s) {
    const struct sw_model_config *c = &model->config;
    const struct widths *w = &model->widths;
    const int64_t typed = sw_dtype_bytes(model->shape.type), typed_rows = model->rows * typed;
    const int64_t row_bytes = model->rows * (int64_t)sizeof(float);
    const int64_t mean_bytes = c->norm == SW_NORM_LAYER ? row_bytes : 0;
    if (has(kind, QKV_WEIGHT)) {
        s->qkv = place(&s->saved_bytes, typed_rows * w->qkv);
        if (c->qk_norm) {
            s->q_rstd = place(&s->derived_bytes, row_bytes * model->attention.heads);
            s->k_rstd = place(&s->derived_bytes, row_bytes * model->attention.kv_heads);
            s->heads = place(&s->derived_bytes, typed_rows * (w->q + w->kv));
        }
        s->log_sum_exp = place(&s->saved_bytes, row_bytes * model->attention.heads);
        s->attention_out = place(&s->saved_bytes, typed_rows * w->q);
    }
    if (kind == BLOCK_WHOLE || kind == BLOCK_ROUTED || kind == SHARED_BLOCK)
        s->residual = place(&s->saved_bytes, typed_rows * c->hidden);
    if (has(kind, ROUTER) && c->experts > 0 && model->cut.expert_ranks <= 1)
        lay_routing(model, &s->saved_bytes, s);
    if (has(kind, SHARED_GATE) && sw_config_has_shared_expert(c))
        lay_shared(model, &s->saved_bytes, s);
    if (kind == SHARED_BLOCK && sw_config_has_shared_expert(c))
        s->shared_sum = place(&s->saved_bytes, typed_rows * c->hidden);
    if (has(kind, EXPERTS) && c->experts > 0 && model->cut.expert_ranks <= 1)
        s->expert_up = place(&s->saved_bytes, expert_up_bytes(model));
    if (c->norm_of_results && kind == BLOCK_WHOLE) {
        s->attention_result = place(&s->saved_bytes, typed_rows * c->hidden);
        s->attention_result_rstd = place(&s->saved_bytes, row_bytes);
        s->mlp_result = place(&s->saved_bytes, typed_rows * c->hidden);
        s->mlp_result_rstd = place(&s->saved_bytes, row_bytes);
    }
    if (has(kind, UP_WEIGHT)) {
        s->up = place(&s->saved_bytes, typed_rows * w->up);
        s->activated = place(&s->derived_bytes, typed_rows * w->ffn);
    }
    s->unnormed_bytes = s->derived_bytes;
    if (has(kind, NORM1_SCALE)) {
        s->norm1_mean = place(&s->derived_bytes, mean_bytes);
        s->norm1_rstd = place(&s->derived_bytes, row_bytes);
        s->norm1_out = place(&s->derived_bytes, typed_rows * c->hidden);
    }
    if (has(kind, NORM2_SCALE) && kind != SHARED_MLP) { /* which keeps nothing */
        s->norm2_mean = place(&s->derived_bytes, mean_bytes);
        s->norm2_rstd = place(&s->derived_bytes, row_bytes);
        s->norm2_out = place(&s->derived_bytes, typed_rows * c->hidden);
    }
}

bool sw_model_splits_backward(const struct sw_model *model) {
    return model->cut.ranks > 1 && model->cut.tiles == 1;
}

int64_t sw_split_product_bytes(const struct sw_model *model) {
    if (!sw_model_splits_backward(model))
        return 0;
    return model->cut.expert_ranks > 1 ? model->rows * model->widths.qkv * sw_dtype_bytes(model->shape.type)
                                       : sw_product_bytes(model);
}

int64_t sw_product_bytes(const struct sw_model *model) {
    const int64_t widest = sw_max_i64(model->widths.up, model->widths.qkv), typed = sw_dtype_bytes(model->shape.type);
    const int64_t experts =
        model->config.experts > 0 ? sw_router_grad_offset(model) + model->rows * model->config.experts * typed : 0;
    const bool splits_shared = sw_config_has_shared_expert(&model->config) && sw_model_splits_backward(model);
    const int64_t shared = splits_shared ? sw_shared_logits_grad_offset(model) + 2 * model->rows * typed : 0;
    return sw_max_i64(model->rows * widest * typed, sw_max_i64(experts, shared));
}

/* Returns the elements of a block's largest matrix, in the shape that a product reads it. */
static int64_t largest_matrix(const struct sw_model *model) {
    int64_t most = sw_experts_unpacked_elems(model);
    for (int name = 0; name < LINEARS; name++)
        most = sw_max_i64(most, model->linear[name].forward.n * model->linear[name].forward.k);
    return most;
}

static void lay_work(struct sw_model *model) {
    const struct sw_model_config *c = &model->config;
    const struct head_tiles *tiles = &model->head;
    struct work_layout *w = &model->work;
    const int64_t typed = sw_dtype_bytes(model->shape.type);
    const int64_t hidden_bytes = model->rows * c->hidden * typed;
    const int64_t row_bytes = model->rows * (int64_t)sizeof(float),
                  tile_row_bytes = tiles->rows * (int64_t)sizeof(float);
    /* The rotation table stays valid for the whole run, so block and head must not reuse its memory or the scratch
     * memory. */
    if (c->positions == SW_POSITIONS_ROTARY)
        w->rotation = place(&w->bytes, sw_round_up(sw_rope_bytes(model), SW_BUFFER_ALIGN_BYTES));
    if (c->embedding_norm) {
        w->embedding_normed = place(&w->bytes, sw_round_up(hidden_bytes, SW_BUFFER_ALIGN_BYTES));
        w->embedding_mean = place(&w->bytes, sw_round_up(row_bytes, SW_BUFFER_ALIGN_BYTES));
        w->embedding_rstd = place(&w->bytes, sw_round_up(row_bytes, SW_BUFFER_ALIGN_BYTES));
    }
    w->scratch = place(&w->bytes, sw_round_up(model->scratch_bytes, SW_BUFFER_ALIGN_BYTES));
    if (sw_tuning_freezes(&model->shape.tuning))
        w->unwanted = place(&w->bytes, sw_max_i64(c->hidden, c->heads * c->head_dim) * (int64_t)sizeof(float));
    /* The tally stays valid, too, from the forward passes of a micro-batch to its backward passes and to the head. */
    if (sw_experts_tally(model) > 0) {
        const int64_t double_bytes = (int64_t)sizeof(double), micros = model->shape.micro_batches;
        w->tally = place(&w->bytes, sw_experts_tally(model) * double_bytes);
        if (sw_experts_have_loss(model)) {
            w->router_counts = place(&w->bytes, micros * c->experts * double_bytes);
            w->router_sums = place(&w->bytes, micros * (c->experts + 1) * double_bytes);
            w->tally_scratch = place(&w->bytes, sw_tally_scratch_bytes(&model->routing));
        }
    }
    int64_t block = w->bytes, head = w->bytes;
    const int64_t pairs = sw_experts_pairs(model);
    const struct widths *wide = &model->widths;
    if (!sw_model_splits_backward(model) || model->cut.expert_ranks > 1)
        w->wide = place(&block, sw_product_bytes(model));
    w->narrow = place(&block, model->rows * sw_max_i64(c->hidden, wide->q) * typed);
    if (c->norm_of_results)
        w->result_grad = place(&block, hidden_bytes);
    if (model->shape.fp8 || model->units->base != SW_BASE_TYPED)
        w->matrix = place(&block, largest_matrix(model) * typed);
    if (model->adapter != NULL) {
        const int64_t most_rows = sw_max_i64(model->rows, model->expert_factors == NULL ? 0 : sw_experts_pairs(model));
        const int64_t elems = most_rows * model->shape.tuning.lora.rank;
        w->adapter_sums = place(&block, elems * (int64_t)sizeof(float));
        w->adapter = place(&block, elems * typed);
        if (model->shape.tuning.lora.dropout > 0.0 && !model->shape.forward_only)
            w->adapter_input = place(&block, model->rows * sw_adapters_widest_input(model) * typed);
    }
    if (sw_cut_copies_kv(c, &model->cut)) {
        w->own_qkv = place(&block, wide->qkv * c->hidden * typed);
        w->own_qkv_bias = place(&block, wide->qkv * typed);
        w->own_qkv_acc = place(&block, wide->qkv * c->hidden * (int64_t)sizeof(float));
        w->own_qkv_bias_acc = place(&block, wide->qkv * (int64_t)sizeof(float));
    }
    if (c->gated)
        w->inner = place(&block, model->rows * wide->ffn * typed);
    if (c->experts > 0) {
        w->expert_rows = place(&block, pairs * c->hidden * typed);
        w->expert_inner = place(&block, pairs * wide->expert_ffn * typed);
        w->expert_inner_grad = place(&block, pairs * wide->expert_ffn * typed);
        w->expert_weight_grad = place(&block, pairs * (int64_t)sizeof(float));
        if (model->cut.expert_ranks > 1) {
            lay_routing(model, &block, &w->routed);
            w->routed.expert_up = place(&block, expert_up_bytes(model));
        }
    }
    if (sw_config_has_shared_expert(c)) {
        w->shared_rows = place(&block, hidden_bytes);
        w->shared_inner = place(&block, model->rows * wide->ffn * typed);
        w->shared_weight_grad = place(&block, 2 * row_bytes);
        w->shared_logits_grad = place(&block, 2 * model->rows * typed);
    }
    if (c->qk_norm)
        w->heads = place(&block, model->rows * (wide->q + wide->kv) * typed);
    w->norm_mean = place(&head, row_bytes);
    w->norm_rstd = place(&head, row_bytes);
    w->norm_out = place(&head, hidden_bytes);
    w->norm_grad = place(&head, hidden_bytes);
    /* The single row of logits of a generating pass covers the whole vocabulary. */
    const int64_t logits_stride = sw_head_stride(model, tiles->cols);
    w->logits = place(&head, sw_max_i64(tiles->logits_rows * logits_stride, sw_head_stride(model, c->vocab)) *
                                 (int64_t)sizeof(float));
    w->logits_grad = place(&head, model->shape.forward_only ? 0 : tiles->rows * logits_stride * typed);
    /* The gradients of pairs begin when the losses of all rows are known. */
    const bool has_pairs = sw_has_pairs(model);
    const int64_t loss_bytes = has_pairs ? row_bytes : tile_row_bytes;
    w->losses = place(&head, loss_bytes);
    w->loss = place(&head, (has_pairs ? model->shape.batch : 1) * (int64_t)sizeof(double));
    if (has_pairs)
        w->row_scale = place(&head, row_bytes);
    if (tiles->cut) {
        w->largest = place(&head, loss_bytes);
        w->sums = place(&head, loss_bytes);
        w->target_logits = place(&head, loss_bytes);
        w->hidden_grad = place(&head, tile_row_bytes * c->hidden);
    }
    w->bytes = sw_max_i64(block, head);
}

/* Tells whether the product adds the residual itself. In a whole block the MLP's norm adds the attention's result; the
 * ranks of a tensor group add the residual of their rows to their part; and a norm of the result comes before the
 * addition. */
static bool meets_residual(const struct sw_model *model, enum linear_name name) {
    const bool whole_attention = name == LINEAR_PROJECTION && model->cut.tiles == 1;
    return is_behind_sum(name) && !whole_attention && model->cut.ranks == 1 && !model->config.norm_of_results;
}

static sw_status prepare_linear(struct sw_model *model, enum linear_name name, enum sw_block_tensor bias, int64_t in,
                                int64_t out) {
    const sw_dtype type = model->shape.type;
    const bool out_first = model->config.out_first, has_bias = sw_block_pieces(&model->config, bias) > 0;
    struct linear *linear = &model->linear[name];
    linear->forward = (struct sw_gemm){.m = model->rows,
                                       .n = out,
                                       .k = in,
                                       .transpose_b = out_first,
                                       .bias = has_bias,
                                       .addend = meets_residual(model, name),
                                       .in = type,
                                       .out = type};
    if (model->shape.fp8)
        linear->forward.a_as = linear->forward.b_as = SW_FP8_E4M3;
    linear->forward_plain = linear->forward;
    linear->forward_plain.bias = false;
    linear->forward_continued = linear->forward_plain;
    linear->forward_continued.addend = true;
    linear->input_gradient =
        (struct sw_gemm){.m = model->rows, .n = in, .k = out, .transpose_b = !out_first, .in = type, .out = type};
    linear->weight_gradient = (struct sw_gemm){.m = out_first ? out : in,
                                               .n = out_first ? in : out,
                                               .k = model->rows,
                                               .transpose_a = true,
                                               .accumulate = true,
                                               .in = type,
                                               .out = SW_F32};
    if (model->shape.fp8) {
        linear->input_gradient.a_as = SW_FP8_E5M2;
        linear->input_gradient.b_as = SW_FP8_E4M3;
        linear->weight_gradient.a_as = out_first ? SW_FP8_E5M2 : SW_FP8_E4M3;
        linear->weight_gradient.b_as = out_first ? SW_FP8_E4M3 : SW_FP8_E5M2;
    }
    SW_TRY(sw_model_prepare_product(model, &linear->forward));
    if (sw_cut_parts(&model->cut) > 1)
        SW_TRY(sw_model_prepare_product(model, &linear->forward_plain));
    if (model->cut.ranks > 1 && model->cut.tiles > 1 && is_behind_sum(name))
        SW_TRY(sw_model_prepare_product(model, &linear->forward_continued));
    SW_TRY(sw_model_prepare_product(model, &linear->input_gradient));
    return sw_model_prepare_product(model, &linear->weight_gradient);
}

/* The logit lies beside another that is 0, so that their softmax is its sigmoid (block.c). */
static sw_status prepare_shared_gate(struct sw_model *model) {
    const int64_t rows = model->rows, hidden = model->config.hidden;
    const sw_dtype type = model->shape.type;
    if (!sw_config_has_shared_expert(&model->config))
        return SW_OK;
    model->shared_routing = (struct sw_routing){.rows = rows, .experts = 2, .chosen = 2, .softmax_first = true};
    model->shared_gate = (struct linear){
        .forward = {.m = rows, .n = 1, .k = hidden, .transpose_b = true, .in = type, .out = type, .c_stride = 2},
        .input_gradient = {.m = rows, .n = hidden, .k = 1, .accumulate = true, .in = type, .out = type, .a_stride = 2},
        .weight_gradient = {.m = 1,
                            .n = hidden,
                            .k = rows,
                            .transpose_a = true,
                            .accumulate = true,
                            .in = type,
                            .out = SW_F32,
                            .a_stride = 2},
    };
    SW_TRY(sw_model_prepare_product(model, &model->shared_gate.forward));
    SW_TRY(sw_model_prepare_product(model, &model->shared_gate.input_gradient));
    return sw_model_prepare_product(model, &model->shared_gate.weight_gradient);
}

static int64_t last_of(int64_t whole, int64_t tile) {
    return whole - (sw_div_up(whole, tile) - 1) * tile;
}

/* Prepares the gradients of a tile of the head, and the logits of its parts. */
static sw_status prepare_head_tile(struct sw_model *model, int64_t rows, int64_t cols) {
    const int64_t part = sw_min_i64(rows, model->head.logits_rows);
    const struct head_products tile = sw_head_products(model, rows, cols);
    const struct head_products logits[] = {sw_head_products(model, part, cols),
                                           sw_head_products(model, last_of(rows, part), cols)};
    SW_TRY(sw_model_prepare_product(model, &logits[0].logits));
    SW_TRY(sw_model_prepare_product(model, &logits[1].logits));
    SW_TRY(sw_model_prepare_product(model, &tile.input_gradient));
    return sw_model_prepare_product(model, &tile.table_gradient);
}

/* One rank of a tensor group may have one row of the vocabulary more than another. Every rank prepares both sizes, so
 * that all need the same memory. */
static sw_status prepare_head(struct sw_model *model) {
    const int64_t vocab = model->config.vocab, least = vocab / model->cut.ranks;
    const int64_t most = sw_shard_most_grains(vocab, model->cut.ranks);
    const int64_t rows[] = {model->head.rows, last_of(model->rows, model->head.rows)};
    const int64_t cols[] = {model->head.cols, last_of(most, model->head.cols), last_of(least, model->head.cols)};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++)
            SW_TRY(prepare_head_tile(model, rows[r], sw_min_i64(cols[c], most)));
    const struct head_products row = sw_head_products(model, 1, model->vocab.grains);
    return sw_model_prepare_product(model, &row.logits);
}

static void measure_widths(struct sw_model *model) {
    const struct sw_model_config *c = &model->config;
    const int64_t parts = sw_cut_parts(&model->cut), heads = c->heads / parts;
    const int64_t kv_heads = sw_cut_copies_kv(c, &model->cut) ? 1 : c->kv_heads / parts;
    const int64_t q = heads * c->head_dim, kv = kv_heads * c->head_dim, ffn = c->ffn / parts;
    const struct widths widths = {.q = q,
                                  .kv = kv,
                                  .qkv = q + 2 * kv,
                                  .ffn = ffn,
                                  .up = c->gated ? 2 * ffn : ffn,
                                  .expert_ffn = c->expert_ffn / parts};
    const int64_t heads_stride = c->qk_norm ? q + kv : widths.qkv;
    model->widths = widths;
    model->attention = (struct sw_attention){
        .batch = model->shape.batch,
        .seq = model->shape.seq,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = c->head_dim,
        .q_stride = heads_stride,
        .k_stride = heads_stride,
        .v_stride = widths.qkv,
        .o_stride = q,
        .head_stride = c->qkv_by_head ? 3 * c->head_dim : 0,
        .alibi_heads = c->positions == SW_POSITIONS_ALIBI ? c->heads : 0,
        .scale = (float)(1.0 / sqrt((double)(c->query_width > 0 ? c->query_width : c->head_dim))),
    };
}

static sw_status make_rotation(struct sw_model *model) {
    if (model->config.positions != SW_POSITIONS_ROTARY)
        return SW_OK;
    const int64_t places = sw_most_keys(model);
    model->rotation = malloc((size_t)sw_rope_bytes(model));
    if (model->rotation == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the positions of %lld tokens", (long long)places);
    sw_rope_table(&model->config, places, model->rotation);
    if (model->config.window_theta > 0.0) {
        struct sw_model_config local = model->config;
        local.rope = (struct sw_rope){.theta = local.window_theta};
        sw_rope_table(&local, places, model->rotation + places * local.head_dim);
    }
    return SW_OK;
}

/* Prepares the products of Muon's updates on a GPU. */
static sw_status prepare_muon(struct sw_model *model) {
    for (int64_t u = 0; u < model->units->count && !sw_device_info(model->device).host_memory; u++) {
        int64_t bytes;
        SW_TRY(sw_muon_prepare(model->device, model->units->unit[u].muon, model->units->unit[u].muon_count, &bytes));
        model->muon_gpu_bytes = sw_max_i64(model->muon_gpu_bytes, bytes);
    }
    return SW_OK;
}

sw_status sw_model_prepare(struct sw_model *model) {
    const struct sw_model_config *c = &model->config;
    const struct widths *w = &model->widths;
    measure_widths(model);
    model->head = sw_head_tiles(model);
    SW_TRY(make_rotation(model));
    SW_TRY(prepare_linear(model, LINEAR_QKV, QKV_BIAS, c->hidden, w->qkv));
    SW_TRY(prepare_linear(model, LINEAR_PROJECTION, PROJECTION_BIAS, w->q, c->hidden));
    if (c->ffn > 0) {
        SW_TRY(prepare_linear(model, LINEAR_UP, UP_BIAS, c->hidden, w->up));
        SW_TRY(prepare_linear(model, LINEAR_DOWN, DOWN_BIAS, w->ffn, c->hidden));
    }
    SW_TRY(sw_experts_prepare(model));
    SW_TRY(prepare_shared_gate(model));
    SW_TRY(sw_adapters_prepare(model));
    SW_TRY(sw_expert_adapters_prepare(model));
    SW_TRY(prepare_head(model));
    SW_TRY(prepare_muon(model));
    struct sw_attention longest = model->attention;
    longest.past = sw_most_keys(model) - model->shape.seq;
    model->scratch_bytes =
        sw_max_i64(model->scratch_bytes, sw_attention_scratch_bytes(model->device, &longest, model->shape.type));
    for (int kind = 0; kind < BLOCK_KINDS; kind++)
        lay_saved(model, (enum block_kind)kind, &model->saved[kind]);
    lay_work(model);
    return SW_OK;
}

struct sw_handed_layout sw_handed_layout(const struct sw_model *model) {
    const int64_t elems = model->rows * model->config.hidden, typed = sw_dtype_bytes(model->shape.type);
    const int64_t pairs = sw_experts_pairs(model), number_bytes = (int64_t)sizeof(int32_t);
    struct sw_handed_layout at = {.normed = 0};
    at.bytes = sw_norm_offset(model);
    at.weight = place(&at.bytes, pairs * (int64_t)sizeof(float));
    at.offset = place(&at.bytes, (model->config.experts + 1) * number_bytes);
    at.source = place(&at.bytes, pairs * number_bytes);
    at.place = place(&at.bytes, pairs * number_bytes);
    at.sum = at.bytes;
    at.routed_bytes = at.bytes + elems * typed;
    at.bytes += elems * (int64_t)sizeof(float);
    /* Some output must be as long as the gradients, which lie where outputs do. */
    if (model->cut.expert_units == 1)
        at.routed_bytes = at.bytes;
    return at;
}

/* Returns the bytes of the output of a unit that hands something on within its block. */
static int64_t handed_bytes(const struct sw_model *model, const struct sw_tile *tile) {
    const struct sw_handed_layout at = sw_handed_layout(model);
    return tile->kind == BLOCK_ROUTED   ? at.routed_bytes
           : tile->kind == EXPERT_GROUP ? at.bytes
                                        : sw_adapters_handed_offset(model) + sw_adapters_handed_bytes(model, tile);
}

/* Returns the bytes of the KV cache of a unit. With all three of a head in a row, whole rows are kept (block.c). */
static int64_t cache_bytes(const struct sw_model *model) {
    const int64_t row_bytes = model->widths.qkv * sw_dtype_bytes(model->shape.type);
    return model->config.qkv_by_head ? sw_round_up(model->shape.context * row_bytes, AREA_ALIGN_BYTES)
                                     : 2 * sw_cache_values_offset(model);
}

struct sw_unit_cost sw_model_unit_cost(const struct sw_model *model, int64_t unit) {
    const int64_t hidden_bytes = model->rows * model->config.hidden * sw_dtype_bytes(model->shape.type);
    if (unit + 1 == model->units->count)
        return (struct sw_unit_cost){0};
    if (unit == 0)
        return (struct sw_unit_cost){.output_bytes = hidden_bytes};
    const struct sw_tile tile = sw_tile_of(&model->cut, unit);
    const bool shared = tile.kind == SHARED_BLOCK || tile.kind == SHARED_EXPERTS;
    return (struct sw_unit_cost){
        .output_bytes = tile.last || shared ? hidden_bytes : handed_bytes(model, &tile),
        .saved_bytes = model->saved[tile.kind].saved_bytes,
        .derived_bytes = model->saved[tile.kind].derived_bytes,
        .unnormed_bytes = model->saved[tile.kind].unnormed_bytes,
        .cache_bytes = has(tile.kind, QKV_WEIGHT) ? cache_bytes(model) : 0,
        .routing_bytes = tile.kind == BLOCK_ROUTED ? (model->config.experts + 1) * (int64_t)sizeof(int32_t) : 0,
        .routed = tile.kind == EXPERT_GROUP,
        .shares_input = !tile.first && (shared || tile.index > 1),
        .continues = !tile.first,
        .adapted = model->adapter != NULL,
    };
}

int64_t sw_cache_values_offset(const struct sw_model *model) {
    const int64_t row_bytes = model->widths.kv * sw_dtype_bytes(model->shape.type);
    return sw_round_up(model->shape.context * row_bytes, AREA_ALIGN_BYTES);
}
