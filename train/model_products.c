/* What a training step multiplies, read off the products that the model has prepared. */
#include "core/size.h"
#include "train/model_private.h"

/* A product and its two gradients. */
static int add(struct sw_model_product *out, int count, const char *layer, const struct sw_gemm shapes[3],
               int64_t times) {
    static const char *const passes[] = {"forward", "input gradient", "weight gradient"};
    for (int i = 0; i < 3; i++)
        out[count + i] =
            (struct sw_model_product){.layer = layer, .pass = passes[i], .shape = shapes[i], .times = times};
    return count + 3;
}

/* Tiles of one size along one side of the head: all but the last, and the last where it is smaller. */
struct sizes {
    int64_t size[2], times[2];
    int count;
};

static struct sizes cut(int64_t all, int64_t tile) {
    struct sizes sizes = {.count = 0};
    if (all >= tile)
        sizes = (struct sizes){.size = {tile}, .times = {all / tile}, .count = 1};
    if (all % tile != 0) {
        sizes.size[sizes.count] = all % tile;
        sizes.times[sizes.count++] = 1;
    }
    return sizes;
}

static int add_head(struct sw_model_product *out, int count, const struct sw_model *model) {
    const struct sizes rows = cut(model->rows, model->head.rows), cols = cut(model->config.vocab, model->head.cols);
    for (int r = 0; r < rows.count; r++) {
        for (int c = 0; c < cols.count; c++) {
            const struct head_products tile = sw_head_products(model, rows.size[r], cols.size[c]);
            const struct sw_gemm shapes[] = {tile.logits, tile.input_gradient, tile.table_gradient};
            const int64_t times = rows.times[r] * cols.times[c];
            const int end = add(out, count, "head", shapes, times);
            /* Logits of a cut vocabulary are computed again for the gradients, all but those of the last tile. */
            if (model->head.cut)
                out[count].times += times - (c + 1 == cols.count ? rows.times[r] : 0);
            for (; count < end; count++)
                out[count].head = true;
        }
    }
    return count;
}

int sw_model_products(const struct sw_model *model, struct sw_model_product out[SW_MODEL_MAX_PRODUCTS]) {
    static const char *const names[LINEARS] = {"qkv", "projection", "up", "down"};
    static_assert(3 * (LINEARS + 4) <= SW_MODEL_MAX_PRODUCTS, "there is room for each product");
    int count = 0;
    for (int i = 0; i < LINEARS; i++) {
        const struct linear *linear = &model->linear[i];
        struct sw_gemm shapes[] = {linear->forward, linear->input_gradient, linear->weight_gradient};
        /* What a residual adds is no part of the product. */
        shapes[0].addend = false;
        count = add(out, count, names[i], shapes, model->config.layers * model->tiles);
    }
    return add_head(out, count, model);
}
