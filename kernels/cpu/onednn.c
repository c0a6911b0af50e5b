#include "kernels/cpu/onednn.h"

#include <stdlib.h>

#if DNNL_VERSION_MAJOR == 2

static dnnl_status_t make_layout(sw_onednn_layout *out) {
    *out = calloc(1, sizeof **out);
    return *out == NULL ? dnnl_out_of_memory : dnnl_success;
}

static dnnl_status_t layout_by_strides(sw_onednn_layout *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                                       const dnnl_dims_t strides) {
    const dnnl_status_t status = make_layout(out);
    return status == dnnl_success ? dnnl_memory_desc_init_by_strides(*out, 2, dims, type, strides) : status;
}

static dnnl_status_t layout_by_tag(sw_onednn_layout *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                                   dnnl_format_tag_t tag) {
    const dnnl_status_t status = make_layout(out);
    return status == dnnl_success ? dnnl_memory_desc_init_by_tag(*out, 2, dims, type, tag) : status;
}

void sw_onednn_layout_destroy(sw_onednn_layout layout) {
    free(layout);
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops) {
    return dnnl_post_ops_append_sum(post_ops, 1.0f);
}

static dnnl_status_t describe_product(dnnl_engine_t engine, sw_onednn_const_layout a, sw_onednn_const_layout b,
                                      sw_onednn_const_layout bias, sw_onednn_const_layout c,
                                      const_dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out) {
    dnnl_matmul_desc_t product;
    const dnnl_status_t status = dnnl_matmul_desc_init(&product, a, b, bias, c);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &product, attributes, engine, NULL) : status;
}

#else

static dnnl_status_t layout_by_strides(sw_onednn_layout *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                                       const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static dnnl_status_t layout_by_tag(sw_onednn_layout *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                                   dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(out, 2, dims, type, tag);
}

void sw_onednn_layout_destroy(sw_onednn_layout layout) {
    if (layout != NULL)
        dnnl_memory_desc_destroy(layout);
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops) {
    return dnnl_post_ops_append_sum(post_ops, 1.0f, 0, dnnl_data_type_undef);
}

static dnnl_status_t describe_product(dnnl_engine_t engine, sw_onednn_const_layout a, sw_onednn_const_layout b,
                                      sw_onednn_const_layout bias, sw_onednn_const_layout c,
                                      const_dnnl_primitive_attr_t attributes, dnnl_primitive_desc_t *out) {
    return dnnl_matmul_primitive_desc_create(out, engine, a, b, bias, c, attributes);
}

#endif

/* Sets *out to NULL if oneDNN refuses, so that callers may always destroy it. */
static dnnl_status_t made(dnnl_status_t status, sw_onednn_layout *out) {
    if (status == dnnl_success)
        return status;
    sw_onednn_layout_destroy(*out);
    *out = NULL;
    return status;
}

dnnl_status_t sw_onednn_layout_by_strides(int64_t rows, int64_t cols, dnnl_data_type_t type, int64_t row_stride,
                                          int64_t col_stride, sw_onednn_layout *out) {
    const dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
    *out = NULL;
    return made(layout_by_strides(out, dims, type, strides), out);
}

dnnl_status_t sw_onednn_layout_by_tag(int64_t rows, int64_t cols, dnnl_data_type_t type, dnnl_format_tag_t tag,
                                      sw_onednn_layout *out) {
    const dnnl_dims_t dims = {rows, cols};
    *out = NULL;
    return made(layout_by_tag(out, dims, type, tag), out);
}

static dnnl_status_t set_accumulate(dnnl_primitive_attr_t attributes) {
    dnnl_post_ops_t post_ops = NULL;
    dnnl_status_t status = dnnl_post_ops_create(&post_ops);
    if (status != dnnl_success)
        return status;
    status = append_sum(post_ops);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attributes, post_ops);
    dnnl_post_ops_destroy(post_ops);
    return status;
}

dnnl_status_t sw_onednn_product(dnnl_engine_t engine, sw_onednn_const_layout a, sw_onednn_const_layout b,
                                sw_onednn_const_layout bias, sw_onednn_const_layout c, bool accumulate,
                                dnnl_primitive_desc_t *out) {
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attributes);
    if (status != dnnl_success)
        return status;
    status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && accumulate)
        status = set_accumulate(attributes);
    if (status == dnnl_success)
        status = describe_product(engine, a, b, bias, c, attributes, out);
    dnnl_primitive_attr_destroy(attributes);
    return status;
}
