/* Lists the matrix products of a training step, from the products that the model has prepared. */
#include "model/model_private.h"

enum pass { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };
static const char *const passes[] = {
    [FORWARD] = "forward", [INPUT_GRADIENT] = "input gradient", [WEIGHT_GRADIENT] = "weight gradient"};

/* Adds a product and its two gradients to the list. Returns the new count. */
static int add(struct sw_model_product *out, int count, const char *layer, const struct sw_gemm shapes[3],
               int64_t times) {
    for (int i = FORWARD; i <= WEIGHT_GRADIENT; i++)
        out[count++] = (struct sw_model_product){.layer = layer, .pass = passes[i], .shape = shapes[i], .times = times};
    return count;
}

/* The sizes of tiles along one side of the head, and how many tiles have each: the last tile may be smaller. */
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

/* Adds a product of the head, or counts it with an equal one that is listed already. Returns the new count. */
static int add_of_head(struct sw_model_product *out, int count, enum pass pass, struct sw_gemm shape, int64_t times) {
    const struct sw_model_product added = {
        .layer = "head", .pass = passes[pass], .head = true, .shape = shape, .times = times};
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *there = &out[i].shape;
        if (out[i].head && out[i].pass == added.pass && there->m == shape.m && there->n == shape.n &&
            there->k == shape.k) {
            out[i].times += times;
            return count;
        }
    }
    out[count] = added;
    return count + 1;
}

static int add_head(struct sw_model_product *out, int count, const struct sw_model *model) {
    const struct sizes rows = cut(model->rows, model->head.rows), cols = cut(model->vocab.grains, model->head.cols);
    for (int r = 0; r < rows.count; r++) {
        const struct sizes parts = cut(rows.size[r], model->head.logits_rows);
        for (int c = 0; c < cols.count; c++) {
            const struct head_products tile = sw_head_products(model, rows.size[r], cols.size[c]);
            const int64_t times = rows.times[r] * cols.times[c];
            /* With a cut vocabulary, the logits of all tiles but the last are computed again for the gradients; those
             * of a tensor rank's last tile too, as its softmax waits for the other ranks. */
            const int64_t kept = model->cut.ranks == 1 && c + 1 == cols.count ? rows.times[r] : 0;
            const int64_t again = model->head.cut ? times - kept : 0;
            for (int p = 0; p < parts.count; p++)
                count = add_of_head(out, count, FORWARD, sw_head_products(model, parts.size[p], cols.size[c]).logits,
                                    (times + again) * parts.times[p]);
            count = add_of_head(out, count, INPUT_GRADIENT, tile.input_gradient, times);
            count = add_of_head(out, count, WEIGHT_GRADIENT, tile.table_gradient, times);
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
        /* The sum with the residual is no part of the product. */
        shapes[0].addend = false;
        count = add(out, count, names[i], shapes, model->config.layers * model->cut.tiles);
    }
    return add_head(out, count, model);
}
