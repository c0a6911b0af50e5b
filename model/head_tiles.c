/* How the head's rows and the vocabulary are cut into tiles, and the products of a tile. Both depend on the model, the
 * micro-batch and the kind of device alone, so that budgets never change bits. */
#include "core/size.h"
#include "kernels/tiling.h"
#include "model/model_private.h"

/* The bytes that a tile's logits and their gradient may take on a CPU, where all rows of a tile have both at once: as
 * many as the gradient of the output table, within these. Each tile packs the table anew and adds to its gradient, so
 * tiles of few rows cost time, and a model that is large anyway has the memory. With the most a vocabulary of 152,000
 * has tiles of 256 rows. */
#define HOST_LEAST_TILE_BYTES (64 * SW_MIB)
#define HOST_MOST_TILE_BYTES (224 * SW_MIB)
/* A GPU multiplies so fast that what crosses its memory counts. The gradient of logits is kept for all R rows of a
 * tile, for each of which the table's fp32 gradient is read and written, and logits are of r rows at a time, for each
 * of which the table is read. In bf16 that is R / 4 and r operations a byte, and an H100 multiplies some 250 in the
 * time of one: with these bytes a vocabulary of 150,000 has tiles of about 1,500 and 500 rows. Least crosses memory
 * where logits take two fifths of a tile. */
#define GPU_TILE_BYTES (768 * SW_MIB)
#define LOGITS_SHARE 0.4
/* A GPU's products are made of tiles of 128 rows. So many rows of any vocabulary also end where a buffer may begin. */
enum { ROWS_MULTIPLE = 16, GPU_ROWS_MULTIPLE = 128 };
/* Rows of logits and of their gradient begin at multiples of so many elements on a GPU: 128 bytes in 16 bits. A product
 * can load 16 bytes at once, and its tiles by the GPU's own copies (TMA), only where every row begins at a multiple of
 * 16 bytes, which 50,257 tokens do not give; and where rows begin with a line of the caches, 64 columns are one line
 * each instead of parts of two. So 50,257 columns take the memory of 50,304, 0.1% more. On a CPU rows follow each other
 * without gaps: its own products gain nothing by gaps, and oneDNN has its fast ways for rows without
 * (kernels/cpu/product.c). */
enum { GPU_COLS_MULTIPLE = 64 };
/* A tile of rows costs one pass over the output table and two over its gradient. With fewer rows than these that is
 * more than to compute logits twice; where the tile of whole rows would have fewer, the vocabulary is cut instead, and
 * the rows of a tile may be many. */
enum { LEAST_ROWS = 128, CUT_ROWS = 1024 };
static_assert((int)LEAST_ROWS >= (int)GPU_ROWS_MULTIPLE, "what is not cut has room for the least of a GPU's tiles");

/* Bytes of one row of logits and of their gradient, over the whole vocabulary, with what lies behind it. */
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

/* Returns how many rows these bytes hold, rounded down to a multiple of GPU_ROWS_MULTIPLE, at least that. */
static int64_t most_in(int64_t bytes, int64_t row_bytes) {
    return sw_max_i64(bytes / row_bytes / GPU_ROWS_MULTIPLE, 1) * GPU_ROWS_MULTIPLE;
}

/* Cuts tiles with more rows of gradients than of logits. Rounding tiles to an even size leaves some memory of the
 * gradients free, and the logits get it. */
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

/* Cuts the head into tiles whose rows are `stride` elements apart where they have the whole vocabulary. */
static struct head_tiles cut_head(const struct sw_model *model, int64_t vocab, int64_t stride, bool as_gpu) {
    const bool gpu = !sw_device_info(model->device).host_memory;
    const int64_t kind_bytes = gpu ? GPU_TILE_BYTES : host_tile_bytes(vocab, model->config.hidden);
    const int64_t tile_bytes = model->shape.head_tile_bytes > 0 ? model->shape.head_tile_bytes : kind_bytes;
    const int64_t rows = model->shape.context > 0 ? 1 : model->rows;
    const int64_t float_bytes = (int64_t)sizeof(float), typed_bytes = sw_dtype_bytes(model->shape.type);
    const struct row_bytes row = {.logits = stride * float_bytes, .grad = stride * typed_bytes};
    /* A rank of a tensor group knows the softmax of no row until the others have told theirs. */
    if (model->cut.ranks > 1)
        return cut_vocabulary(tile_bytes, rows, vocab, float_bytes + typed_bytes);
    if (vocab > SW_SOFTMAX_BLOCK_COLUMNS && sw_min_i64(rows, LEAST_ROWS) * (row.logits + row.grad) > tile_bytes)
        return cut_vocabulary(tile_bytes, rows, vocab, float_bytes + typed_bytes);
    return as_gpu ? cut_rows_apart(tile_bytes, rows, vocab, row) : cut_rows(tile_bytes, rows, vocab, row);
}

struct head_tiles sw_head_tiles(const struct sw_model *model) {
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
