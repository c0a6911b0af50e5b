#include "bench/kernels/onednn.h"

#include "bench/kernels/products.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/size.h"
#include "kernels/cpu/onednn.h"

#include <stdlib.h>

enum { A, B, BIAS, C, SCRATCHPAD, OPERANDS };

struct sw_onednn_product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[OPERANDS];
    struct sw_arena *arena; /* holds all operands */
    bool bias;
};

static sw_status check(dnnl_status_t status) {
    if (status == dnnl_success)
        return SW_OK;
    if (status == dnnl_unimplemented)
        return sw_fail(SW_ERR_UNSUPPORTED, "oneDNN has no such product on this CPU");
    return sw_fail(SW_ERR_INTERNAL, "oneDNN refused a call (its status %d)", status);
}

static dnnl_data_type_t data_type(sw_dtype type) {
    switch (type) {
    case SW_F32: return dnnl_f32;
    case SW_BF16: return dnnl_bf16;
    default: return dnnl_f16;
    }
}

static sw_status describe(int64_t rows, int64_t cols, bool transposed, bool own_layout, sw_dtype type,
                          sw_onednn_layout *out) {
    return check(own_layout ? sw_onednn_layout_by_tag(rows, cols, data_type(type), dnnl_format_tag_any, out)
                            : sw_onednn_layout_by_strides(rows, cols, data_type(type), transposed ? 1 : cols,
                                                          transposed ? rows : 1, out));
}

static sw_status make_primitive_desc(struct sw_onednn_product *p, const struct sw_gemm *shape, bool own_layouts,
                                     dnnl_primitive_desc_t *out) {
    sw_onednn_layout layout[SCRATCHPAD] = {NULL};
    sw_status status = SW_OK;
    SW_TRY_GOTO(describe(shape->m, shape->k, shape->transpose_a, own_layouts, shape->in, &layout[A]), out);
    SW_TRY_GOTO(describe(shape->k, shape->n, shape->transpose_b, own_layouts, shape->in, &layout[B]), out);
    if (shape->bias)
        SW_TRY_GOTO(describe(1, shape->n, false, false, shape->in, &layout[BIAS]), out);
    SW_TRY_GOTO(describe(shape->m, shape->n, false, own_layouts, shape->out, &layout[C]), out);
    status = check(sw_onednn_product(p->engine, layout[A], layout[B], layout[BIAS], layout[C], shape->accumulate, out));
out:
    for (int i = 0; i < SCRATCHPAD; i++)
        sw_onednn_layout_destroy(layout[i]);
    return status;
}

/* Takes operands in an arena, as the engine's are, so that huge pages favour nobody. */
static sw_status make_memory(struct sw_onednn_product *p, sw_dtype type, const_dnnl_primitive_desc_t desc) {
    const sw_onednn_const_layout layout[OPERANDS] = {
        [A] = dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0),
        [B] = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0),
        [BIAS] = p->bias ? dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 1) : NULL,
        [C] = dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0),
        [SCRATCHPAD] = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)};
    int64_t bytes[OPERANDS] = {0}, all_bytes = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (layout[i] != NULL)
            bytes[i] = (int64_t)dnnl_memory_desc_get_size(layout[i]);
        all_bytes += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    }
    SW_TRY(sw_arena_create("oneDNN", all_bytes, false, NULL, &p->arena));
    for (int i = 0; i < OPERANDS; i++) {
        void *data;
        if (layout[i] == NULL)
            continue;
        SW_TRY(sw_arena_take(p->arena, bytes[i], &data));
        SW_TRY(sw_bench_fill_host(type, data, bytes[i]));
        SW_TRY(check(dnnl_memory_create(&p->memory[i], layout[i], p->engine, data)));
    }
    return SW_OK;
}

static sw_status make(struct sw_onednn_product *p, const struct sw_gemm *shape, bool own_layouts) {
    dnnl_primitive_desc_t desc = NULL;
    sw_status status = SW_OK;
    SW_TRY(check(dnnl_engine_create(&p->engine, dnnl_cpu, 0)));
    SW_TRY(check(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags)));
    SW_TRY(make_primitive_desc(p, shape, own_layouts, &desc));
    SW_TRY_GOTO(check(dnnl_primitive_create(&p->primitive, desc)), out);
    status = make_memory(p, shape->in, desc);
out:
    dnnl_primitive_desc_destroy(desc);
    return status;
}

sw_status sw_onednn_product_open(const struct sw_gemm *shape, bool own_layouts, struct sw_onednn_product **out) {
    *out = NULL;
    struct sw_onednn_product *p = calloc(1, sizeof *p);
    if (p == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a matrix product");
    p->bias = shape->bias;
    const sw_status status = make(p, shape, own_layouts);
    if (status == SW_OK)
        *out = p;
    else
        sw_onednn_product_close(p);
    return status;
}

sw_status sw_onednn_product_time(struct sw_onednn_product *p, double *out_s) {
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->memory[A]},
                                         {DNNL_ARG_WEIGHTS, p->memory[B]},
                                         {DNNL_ARG_DST, p->memory[C]},
                                         {DNNL_ARG_SCRATCHPAD, p->memory[SCRATCHPAD]},
                                         {DNNL_ARG_BIAS, p->memory[BIAS]}};
    const int count = (int)(sizeof arguments / sizeof arguments[0]) - (p->bias ? 0 : 1);
    const int64_t start_ns = sw_now_ns();
    SW_TRY(check(dnnl_primitive_execute(p->primitive, p->stream, count, arguments)));
    SW_TRY(check(dnnl_stream_wait(p->stream)));
    *out_s = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

void sw_onednn_product_close(struct sw_onednn_product *p) {
    if (p == NULL)
        return;
    for (int i = 0; i < OPERANDS; i++)
        dnnl_memory_destroy(p->memory[i]);
    dnnl_primitive_destroy(p->primitive);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
    sw_arena_destroy(p->arena);
    free(p);
}
