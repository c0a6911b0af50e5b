/* Matrix products by cuBLASLt. The algorithm of a shape is the first that its heuristic names for a fixed workspace and
 * alignment and that can do it: chosen once, by rule and not by timing, so that a run computes the same bits each time.
 */
#include "core/size.h"
#include "kernels/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Of operands: tensors of a unit, rows of areas. */
enum { OPERAND_ALIGN_BYTES = 64, WORKSPACE_ALIGN_BYTES = 256 };
/* That the heuristic is asked for. */
enum { MOST_ALGORITHMS = 8 };
static_assert(SW_BUFFER_ALIGN_BYTES % WORKSPACE_ALIGN_BYTES == 0, "scratch memory is aligned as cuBLASLt wants it");

struct product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    float beta;
};

static cudaDataType_t type_of(sw_dtype type) {
    static const cudaDataType_t types[] = {[SW_F32] = CUDA_R_32F, [SW_BF16] = CUDA_R_16BF, [SW_F16] = CUDA_R_16F};
    return types[type];
}

/* A row-major matrix is its transpose in the library's column-major order, so the library is asked for Cᵀ =
 * op(B)ᵀ·op(A)ᵀ and both operands change places. Its bias then runs along our columns, as it should. */
static sw_status describe_operation(struct product *p, const struct sw_gemm *shape, bool tf32) {
    const cublasOperation_t first = shape->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = shape->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t bias_type = type_of(shape->in);
    const uintptr_t bias_like = OPERAND_ALIGN_BYTES;
    const cublasComputeType_t compute = tf32 && shape->in == SW_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    SW_TRY(
        sw_cuda_check_lt(cublasLtMatmulDescCreate(&p->operation, compute, CUDA_R_32F), "describing a matrix product"));
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *value;
        size_t bytes;
        bool wanted;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first, true},
        {CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second, true},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, shape->bias},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type, shape->bias},
        /* An address that is aligned as the calls' will be, which is all that the heuristic looks at. */
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_like, sizeof bias_like, shape->bias},
    };
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].wanted)
            SW_TRY(sw_cuda_check_lt(cublasLtMatmulDescSetAttribute(p->operation, attributes[i].attribute,
                                                                   attributes[i].value, attributes[i].bytes),
                                    "describing a matrix product"));
    return SW_OK;
}

/* Of a row-major matrix. */
static sw_status describe_matrix(cublasLtMatrixLayout_t *out, sw_dtype type, int64_t rows, int64_t cols) {
    return sw_cuda_check_lt(cublasLtMatrixLayoutCreate(out, type_of(type), (uint64_t)cols, (uint64_t)rows, cols),
                            "describing a matrix");
}

static sw_status describe(struct product *p, const struct sw_gemm *s, bool tf32) {
    SW_TRY(describe_operation(p, s, tf32));
    SW_TRY(s->transpose_b ? describe_matrix(&p->a, s->in, s->n, s->k) : describe_matrix(&p->a, s->in, s->k, s->n));
    SW_TRY(s->transpose_a ? describe_matrix(&p->b, s->in, s->k, s->m) : describe_matrix(&p->b, s->in, s->m, s->k));
    return describe_matrix(&p->c, s->out, s->m, s->n);
}

static sw_status state_preferences(cublasLtMatmulPreference_t preference) {
    static const uint64_t workspace = (uint64_t)SW_GPU_GEMM_SCRATCH_BYTES;
    static const uint32_t align = OPERAND_ALIGN_BYTES;
    /* Where the sum is cut, its parts are added in fp32, not in the result's type. */
    static const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    static const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++)
        SW_TRY(sw_cuda_check_lt(
            cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].attribute, wishes[i].value, wishes[i].bytes),
            "choosing a matrix product's algorithm"));
    return SW_OK;
}

/* The heuristic is not told whether the addend is the result itself, as some algorithms want it. */
static bool serves(const cublasLtMatmulHeuristicResult_t *found, const struct sw_gemm *shape) {
    int32_t apart = 0;
    size_t bytes;
    if (found->state != CUBLAS_STATUS_SUCCESS)
        return false;
    return !shape->addend ||
           (cublasLtMatmulAlgoCapGetAttribute(&found->algo, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT, &apart,
                                              sizeof apart, &bytes) == CUBLAS_STATUS_SUCCESS &&
            apart != 0);
}

static sw_status choose_algorithm(const struct sw_cuda *cuda, struct product *p, const struct sw_gemm *shape,
                                  cublasLtMatmulPreference_t preference, int64_t *out_workspace_bytes) {
    cublasLtMatmulHeuristicResult_t found[MOST_ALGORITHMS];
    int count = 0, which = 0;
    SW_TRY(state_preferences(preference));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(cuda->lt, p->operation, p->a, p->b, p->c, p->c, preference,
                                                           MOST_ALGORITHMS, found, &count);
    while (status == CUBLAS_STATUS_SUCCESS && which < count && !serves(&found[which], shape))
        which++;
    if (status == CUBLAS_STATUS_SUCCESS && which == count)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS)
        return sw_fail(SW_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for a product of %lld x %lld x %lld in %s (%s)",
                       (long long)shape->m, (long long)shape->n, (long long)shape->k, sw_dtype_name(shape->in),
                       cublasLtGetStatusString(status));
    p->algorithm = found[which].algo;
    *out_workspace_bytes = (int64_t)found[which].workspaceSize;
    return SW_OK;
}

static void release(struct product *p) {
    if (p->operation != NULL)
        cublasLtMatmulDescDestroy(p->operation);
    const cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i] != NULL)
            cublasLtMatrixLayoutDestroy(layouts[i]);
    free(p);
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    cublasLtMatmulPreference_t preference = NULL;
    sw_status status;
    struct product *p = calloc(1, sizeof *p);
    if (p == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a matrix product");
    SW_TRY_GOTO(sw_cuda_use(device), end);
    SW_TRY_GOTO(describe(p, &entry->shape, sw_cuda_of(device)->tf32), end);
    SW_TRY_GOTO(sw_cuda_check_lt(cublasLtMatmulPreferenceCreate(&preference), "choosing a matrix product's algorithm"),
                end);
    SW_TRY_GOTO(choose_algorithm(sw_cuda_of(device), p, &entry->shape, preference, &entry->scratch_bytes), end);
    p->beta = entry->shape.accumulate || entry->shape.addend ? 1.0f : 0.0f;
    entry->prepared = p;
    p = NULL;
end:
    if (preference != NULL)
        cublasLtMatmulPreferenceDestroy(preference);
    if (p != NULL)
        release(p);
    return status;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    if (entry->prepared != NULL)
        release(entry->prepared);
}

static bool aligned(const void *operand) {
    return (uintptr_t)operand % OPERAND_ALIGN_BYTES == 0;
}

/* The bias is a pointer within the description, which streams share; so each call has a description of its own. */
static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    static const float one = 1.0f;
    const struct product *p = entry->prepared;
    const void *added = addend != NULL ? addend : c;
    cublasLtMatmulDescOpaque_t operation;
    /* A wrong one would end the GPU's work with an error that names nobody. */
    assert(aligned(a) && aligned(b) && aligned(bias) && aligned(added) && aligned(c));
    assert((uintptr_t)scratch % WORKSPACE_ALIGN_BYTES == 0);
    memcpy(&operation, p->operation, sizeof operation);
    SW_TRY(sw_cuda_use(stream->device));
    if (bias != NULL)
        SW_TRY(sw_cuda_check_lt(
            cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
            "giving a matrix product its bias"));
    return sw_cuda_check_lt(cublasLtMatmul(sw_cuda_of(stream->device)->lt, &operation, &one, b, p->a, a, p->b, &p->beta,
                                           added, p->c, c, p->c, &p->algorithm, scratch, (size_t)entry->scratch_bytes,
                                           sw_cuda_stream(stream)),
                            "starting a matrix product");
}

static void use_tf32(struct sw_device *device) {
    sw_cuda_of(device)->tf32 = true;
}

void sw_cuda_add_gemm(struct sw_device_ops *ops) {
    ops->use_tf32 = use_tf32;
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm;
}
