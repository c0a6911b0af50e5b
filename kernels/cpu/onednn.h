/* The part of oneDNN's interface that changed from version 2 to 3: memory descriptions were structs and are handles,
 * and products were described in two steps. All other calls are the same in both versions. */
#ifndef SW_KERNELS_CPU_ONEDNN_H
#define SW_KERNELS_CPU_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdint.h>

/* The layout of a matrix in memory, as oneDNN's functions take it. */
#if DNNL_VERSION_MAJOR == 2
typedef dnnl_memory_desc_t *sw_onednn_layout;
typedef const dnnl_memory_desc_t *sw_onednn_const_layout;
#else
typedef dnnl_memory_desc_t sw_onednn_layout;
typedef const_dnnl_memory_desc_t sw_onednn_const_layout;
#endif

/* Make the layout of a [rows, cols] matrix from the distances between elements, or from oneDNN's name for it. The
 * caller destroys *out. */
dnnl_status_t sw_onednn_layout_by_strides(int64_t rows, int64_t cols, dnnl_data_type_t type, int64_t row_stride,
                                          int64_t col_stride, sw_onednn_layout *out);
dnnl_status_t sw_onednn_layout_by_tag(int64_t rows, int64_t cols, dnnl_data_type_t type, dnnl_format_tag_t tag,
                                      sw_onednn_layout *out);
/* NULL is allowed. */
void sw_onednn_layout_destroy(sw_onednn_layout layout);

/* Describes C = A B + bias, or C += A B + bias with `accumulate`, whose scratchpad the caller passes. bias: NULL for
 * none. The layouts are copied. The caller destroys *out. */
dnnl_status_t sw_onednn_product(dnnl_engine_t engine, sw_onednn_const_layout a, sw_onednn_const_layout b,
                                sw_onednn_const_layout bias, sw_onednn_const_layout c, bool accumulate,
                                dnnl_primitive_desc_t *out);

#endif
