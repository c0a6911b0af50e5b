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

static int add_tiles(struct sw_model_product *out, int count, const struct head_products *tile, int64_t times) {
    const struct sw_gemm shapes[] = {tile->logits, tile->input_gradient, tile->table_gradient};
    const int end = add(out, count, "head", shapes, times);
    for (int i = count; i < end; i++)
        out[i].head = true;
    return end;
}

int sw_model_products(const struct sw_model *model, struct sw_model_product out[SW_MODEL_MAX_PRODUCTS]) {
    static const char *const names[LINEARS] = {"qkv", "projection", "up", "down"};
    static_assert(3 * (LINEARS + 2) <= SW_MODEL_MAX_PRODUCTS, "there is room for each product");
    int count = 0;
    for (int i = 0; i < LINEARS; i++) {
        const struct linear *linear = &model->linear[i];
        const struct sw_gemm shapes[] = {linear->forward, linear->input_gradient, linear->weight_gradient};
        count = add(out, count, names[i], shapes, model->config.layers);
    }
    const bool last_differs = model->last_tile_rows != model->tile_rows;
    const int64_t tiles = sw_div_up(model->rows, model->tile_rows);
    if (tiles > last_differs)
        count = add_tiles(out, count, &model->tile, tiles - last_differs);
    if (last_differs)
        count = add_tiles(out, count, &model->last_tile, 1);
    return count;
}
