/* Matrix products as cuBLASLt defines them, plainly. */
#include "core/dtype.h"
#include "core/fp8.h"
#include "kernels/cuda/cuda.h"
#include "tests/equipment/cuda/gpu.h"
#include "tests/equipment/vectors.h"

#include <cublasLt.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The workspace that every algorithm asks for, and uses, so that a call without it is noticed. The first algorithm of
 * a product adds to its result in place only. */
enum { WORKSPACE_BYTES = 4096, WORKSPACE_VALUE = 0x5a, WORKSPACE_ALIGN_BYTES = 256 };

/* An algorithm as this library writes it into its opaque words. Its number is 0 for the one that adds in place. */
struct algorithm {
    uint32_t magic, number, align_bytes;
};
enum { MAGIC = 0x6d75 };

static struct algorithm opened(const cublasLtMatmulAlgo_t *closed) {
    struct algorithm algorithm;
    memcpy(&algorithm, closed, sizeof algorithm);
    return algorithm;
}

static cublasLtMatmulAlgo_t closed(const struct algorithm *algorithm) {
    cublasLtMatmulAlgo_t closed = {{0}};
    memcpy(&closed, algorithm, sizeof *algorithm);
    return closed;
}

/* The error of the last row of a product on a GPU whose products are wrong. */
#define WRONG_SHARE 0.05

struct cublasLtContext {
    int unused;
};

sw_status sw_cublaslt_load(void) {
    return SW_OK;
}

const char *sw_cublaslt_name(void) {
    return "emulated cuBLASLt";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    *out = calloc(1, sizeof **out);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_NOT_SUPPORTED";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    (void)scale;
    *out = calloc(1, sizeof **out);
    (*out)->compute = compute;
    (*out)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    free(description);
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute: its number, and the address and bytes of its value. */
struct field {
    int attribute;
    void *at;
    size_t bytes;
};

static cublasStatus_t set_field(const struct field *fields, size_t count, int attribute, const void *value,
                                size_t bytes) {
    for (size_t i = 0; i < count; i++)
        if (fields[i].attribute == attribute && fields[i].bytes == bytes) {
            memcpy(fields[i].at, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    const struct field fields[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &d->transpose_a, sizeof d->transpose_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &d->transpose_b, sizeof d->transpose_b},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, sizeof d->epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, sizeof d->bias},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &d->a_scale, sizeof d->a_scale},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &d->b_scale, sizeof d->b_scale},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &d->bias_type, sizeof d->bias_type},
    };
    return set_field(fields, sizeof fields / sizeof fields[0], (int)attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t stride) {
    *out = calloc(1, sizeof **out);
    **out = (cublasLtMatrixLayoutOpaque_t){.type = type, .rows = rows, .cols = cols, .stride = stride};
    return stride < (int64_t)rows ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = calloc(1, sizeof **out);
    (*out)->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    const struct field fields[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &preference->workspace_bytes, sizeof preference->workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &preference->reductions, sizeof preference->reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &preference->align_bytes[0], sizeof preference->align_bytes[0]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &preference->align_bytes[1], sizeof preference->align_bytes[1]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &preference->align_bytes[2], sizeof preference->align_bytes[2]},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &preference->align_bytes[3], sizeof preference->align_bytes[3]},
    };
    return set_field(fields, sizeof fields / sizeof fields[0], (int)attribute, value, bytes);
}

/* A product, with its operands as the library sees them: in columns. */
struct product {
    cublasLtMatmulDescOpaque_t d;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    const char *a_at, *b_at, *c_at;
    char *d_at;
    float beta;
    void *workspace;
    size_t workspace_bytes;
};

static uint64_t inner_side(const struct product *p) {
    return p->d.transpose_a == CUBLAS_OP_T ? p->a.rows : p->a.cols;
}

static int is_code(cudaDataType_t type) {
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

/* cuBLASLt's conditions for products in 8 bits: the first operand transposed and the second not, sides of multiples of
 * 16, one operand at least in e4m3, and scales in the GPU's memory. */
static int codes_fit(const struct product *p) {
    return is_code(p->a.type) && is_code(p->b.type) && p->d.transpose_a == CUBLAS_OP_T &&
           p->d.transpose_b == CUBLAS_OP_N && (p->c.rows | p->c.cols | inner_side(p)) % 16 == 0 &&
           (p->a.type == CUDA_R_8F_E4M3 || p->b.type == CUDA_R_8F_E4M3) &&
           sw_emulated_owns(p->d.a_scale, sizeof *p->d.a_scale) && sw_emulated_owns(p->d.b_scale, sizeof *p->d.b_scale);
}

static int fits_together(const struct product *p) {
    const uint64_t rows = p->d.transpose_a == CUBLAS_OP_T ? p->a.cols : p->a.rows;
    const uint64_t b_inner = p->d.transpose_b == CUBLAS_OP_T ? p->b.cols : p->b.rows;
    const uint64_t cols = p->d.transpose_b == CUBLAS_OP_T ? p->b.rows : p->b.cols;
    return rows == p->c.rows && cols == p->c.cols && inner_side(p) == b_inner &&
           (is_code(p->a.type) || is_code(p->b.type) ? codes_fit(p) : p->a.type == p->b.type);
}

/* cuBLASLt's table of types: the bias has the result's. An algorithm is chosen and checked for the bias's address, so
 * it must be one. */
static int bias_fits(const struct product *p) {
    return p->d.epilogue != CUBLASLT_EPILOGUE_BIAS ||
           (p->d.bias_type == p->c.type && sw_emulated_owns(p->d.bias, p->c.rows * (p->c.type == CUDA_R_32F ? 4 : 2)));
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *out_count) {
    const struct product p = {.d = *description, .a = *a, .b = *b, .c = *c};
    (void)handle;
    *out_count = 0;
    if (most < 1 || c != d || !fits_together(&p) || !bias_fits(&p) || preference->workspace_bytes < WORKSPACE_BYTES ||
        (preference->reductions & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out_count = most < sw_emulation_blas().algorithms ? most : sw_emulation_blas().algorithms;
    for (int i = 0; i < *out_count; i++) {
        struct algorithm algorithm = {.magic = MAGIC, .number = (uint32_t)i, .align_bytes = preference->align_bytes[0]};
        for (int side = 1; side < 4; side++)
            if (preference->align_bytes[side] < algorithm.align_bytes)
                algorithm.align_bytes = preference->align_bytes[side];
        out[i] = (cublasLtMatmulHeuristicResult_t){.algo = closed(&algorithm), .workspaceSize = WORKSPACE_BYTES};
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void *out, size_t bytes,
                                                 size_t *out_bytes) {
    const int32_t apart = opened(algorithm).number != 0;
    if (attribute != CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT || bytes != sizeof apart)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(out, &apart, bytes);
    *out_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    return (size_t)sw_emulation_blas().version;
}

/* The library of another machine may know fewer algorithms than the one that made the record. */
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *out) {
    const struct product p = {.d = *description, .a = *a, .b = *b, .c = *c};
    const struct algorithm checked = opened(algorithm);
    (void)handle;
    if (c != d || !fits_together(&p) || !bias_fits(&p) || checked.magic != MAGIC)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (checked.number >= (uint32_t)sw_emulation_blas().algorithms)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = (cublasLtMatmulHeuristicResult_t){.algo = *algorithm, .workspaceSize = WORKSPACE_BYTES};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *out,
                                                    size_t bytes, size_t *out_bytes) {
    const uint32_t wide = attribute == CUBLASLT_ALGO_CONFIG_ID           ? opened(algorithm).number
                          : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? 1
                                                                         : 0;
    const uint16_t narrow = 0;
    const int is_narrow = attribute >= CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID;
    if (bytes != (is_narrow ? sizeof narrow : sizeof wide))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(out, is_narrow ? (const void *)&narrow : &wide, bytes);
    *out_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

static sw_dtype type_of(cudaDataType_t type) {
    switch (type) {
    case CUDA_R_32F: return SW_F32;
    case CUDA_R_16F: return SW_F16;
    default: return SW_BF16;
    }
}

/* Rounds an fp32 number to the 10 bits of mantissa that TF32 has, to nearest, ties away from zero as the GPU's cvt.rna
 * does. */
static float to_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x1000) & ~(uint32_t)0x1fff;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static float element(const struct product *p, const cublasLtMatrixLayoutOpaque_t *layout, const void *at,
                     cublasOperation_t transpose, uint64_t row, uint64_t col) {
    const uint64_t r = transpose == CUBLAS_OP_T ? col : row, c = transpose == CUBLAS_OP_T ? row : col;
    const int64_t index = (int64_t)(r + c * (uint64_t)layout->stride);
    if (is_code(layout->type))
        return sw_fp8_value(layout->type == CUDA_R_8F_E4M3 ? SW_FP8_E4M3 : SW_FP8_E5M2, ((const uint8_t *)at)[index]);
    const float value = sw_dtype_load(type_of(layout->type), at, index);
    return p->d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? to_tf32(value) : value;
}

/* A panel of rows and some columns are summed at once: their sums stay in registers. */
enum { PANEL_ROWS = 4, COLS_AT_ONCE = 8 };
typedef double panel_column __attribute__((vector_size(PANEL_ROWS * sizeof(double))));

static uint64_t panels_of(const struct product *p) {
    return (p->c.rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

static uint64_t index_in_panels(const struct product *p, uint64_t row, uint64_t term) {
    return (row / PANEL_ROWS * inner_side(p) + term) * PANEL_ROWS + row % PANEL_ROWS;
}

/* Returns op(A) in fp64 as [panels][terms][PANEL_ROWS], zeros below its last row; NULL without memory. */
static panel_column *widen_a(const struct product *p) {
    const uint64_t rows = p->c.rows, terms = inner_side(p), bytes = panels_of(p) * terms * sizeof(panel_column);
    double *wide = aligned_alloc(sizeof(panel_column), bytes > 0 ? bytes : sizeof(panel_column));
    if (wide != NULL)
        memset(wide, 0, bytes);
    for (uint64_t i = 0; wide != NULL && i < terms; i++)
        for (uint64_t row = 0; row < rows; row++)
            wide[index_in_panels(p, row, i)] = (double)element(p, &p->a, p->a_at, p->d.transpose_a, row, i);
    return (panel_column *)(void *)wide;
}

/* Writes columns of op(B) as [terms][COLS_AT_ONCE], zeros beyond its last column. */
static void widen_b(const struct product *p, uint64_t first, double *wide) {
    const uint64_t terms = inner_side(p), left = p->c.cols - first, count = left < COLS_AT_ONCE ? left : COLS_AT_ONCE;
    memset(wide, 0, terms * COLS_AT_ONCE * sizeof *wide);
    for (uint64_t col = 0; col < count; col++)
        for (uint64_t i = 0; i < terms; i++)
            wide[i * COLS_AT_ONCE + col] = (double)element(p, &p->b, p->b_at, p->d.transpose_b, i, first + col);
}

static void finish_column(const struct product *p, uint64_t col, const double *sums) {
    const sw_dtype type = type_of(p->c.type);
    for (uint64_t row = 0; row < p->c.rows; row++) {
        const int64_t at = (int64_t)(row + col * (uint64_t)p->c.stride);
        double sum = sums[row];
        if (is_code(p->a.type))
            sum *= (double)*p->d.a_scale * (double)*p->d.b_scale;
        if (p->beta != 0.0f)
            sum += (double)p->beta * (double)sw_dtype_load(type, p->c_at, at);
        if (p->d.epilogue == CUBLASLT_EPILOGUE_BIAS)
            sum += (double)sw_dtype_load(type_of(p->d.bias_type), p->d.bias, (int64_t)row);
        if (sw_emulation_blas().wrong && row + 1 == p->c.rows)
            sum *= 1.0 + WRONG_SHARE;
        sw_dtype_store(type, p->d_at, at, (float)sum);
    }
}

/* Adds a panel's terms one after the other. */
SW_WIDE_VECTORS static void sum_panel(uint64_t terms, const panel_column *a, const double *b,
                                      double out[COLS_AT_ONCE][PANEL_ROWS]) {
    panel_column sums[COLS_AT_ONCE] = {{0}};
    for (uint64_t i = 0; i < terms; i++)
        for (int col = 0; col < COLS_AT_ONCE; col++)
            sums[col] += a[i] * b[i * COLS_AT_ONCE + (uint64_t)col];
    memcpy(out, sums, sizeof sums);
}

/* `b` has room for the terms of COLS_AT_ONCE columns, `sums` for whole panels of each. */
static void multiply(const struct product *p, const panel_column *a, double *b, double *sums) {
    const uint64_t terms = inner_side(p), panels = panels_of(p), padded_rows = panels * PANEL_ROWS;
    double some[COLS_AT_ONCE][PANEL_ROWS];
    for (uint64_t first = 0; first < p->c.cols; first += COLS_AT_ONCE) {
        widen_b(p, first, b);
        for (uint64_t panel = 0; panel < panels; panel++) {
            sum_panel(terms, a + panel * terms, b, some);
            for (uint64_t col = 0; col < COLS_AT_ONCE; col++)
                memcpy(sums + col * padded_rows + panel * PANEL_ROWS, some[col], sizeof some[col]);
        }
        for (uint64_t col = 0; col < COLS_AT_ONCE && first + col < p->c.cols; col++)
            finish_column(p, first + col, sums + col * padded_rows);
    }
}

static atomic_llong constant_products;

int64_t sw_emulation_constant_products(void) {
    return atomic_load(&constant_products);
}

static void count_constants(const struct product *p, const double *a) {
    enum { LARGE = 256 };
    const uint64_t terms = inner_side(p), count = p->c.rows * terms;
    uint64_t i = 1;
    while (i < count && a[index_in_panels(p, i / terms, i % terms)] == a[0])
        i++;
    if (i == count && count >= LARGE)
        atomic_fetch_add(&constant_products, 1);
}

static void run_product(void *argument) {
    struct product *p = argument;
    panel_column *a = widen_a(p);
    double *b = malloc(inner_side(p) * COLS_AT_ONCE * sizeof *b);
    double *sums = malloc(panels_of(p) * PANEL_ROWS * COLS_AT_ONCE * sizeof *sums);
    if (a != NULL)
        count_constants(p, (const double *)(const void *)a);
    memset(p->workspace, WORKSPACE_VALUE, p->workspace_bytes);
    if (a != NULL && b != NULL && sums != NULL)
        multiply(p, a, b, sums);
    else
        sw_emulation_break("no memory for a matrix product");
    free(a);
    free(b);
    free(sums);
    free(p);
}

static int aligned(const void *at, uint32_t bytes) {
    return (uintptr_t)at % bytes == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    const struct product p = {.d = *description,
                              .a = *a_layout,
                              .b = *b_layout,
                              .c = *c_layout,
                              .a_at = a,
                              .b_at = b,
                              .c_at = c,
                              .d_at = d,
                              .beta = *(const float *)beta,
                              .workspace = workspace,
                              .workspace_bytes = workspace_bytes};
    const uint32_t align = opened(algorithm).align_bytes;
    (void)handle;
    if (*(const float *)alpha != 1.0f || c_layout != d_layout || !fits_together(&p) ||
        workspace_bytes < WORKSPACE_BYTES || workspace == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (opened(algorithm).magic != MAGIC || (opened(algorithm).number == 0 && c != d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!aligned(a, align) || !aligned(b, align) || !aligned(c, align) || !aligned(d, align) ||
        !aligned(workspace, WORKSPACE_ALIGN_BYTES))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct product *own = malloc(sizeof *own);
    if (own == NULL)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *own = p;
    sw_emulation_give(stream, run_product, own);
    return CUBLAS_STATUS_SUCCESS;
}
