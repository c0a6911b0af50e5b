/* cuBLASLt, loaded when a GPU is opened and not before: it takes half a gigabyte of address space and some tens of
 * megabytes of memory, which a program that computes on the CPU has no use for, and a machine without it can still do
 * that. The functions that the device calls are here under their own names and go on to the library's. */
#include "core/library.h"
#include "kernels/cuda/cuda.h"

#define FUNCTION(name) __typeof__(name) *name##_at /* NOLINT(bugprone-macro-parentheses): a declaration */
static struct {
    struct sw_library loaded;
    FUNCTION(cublasLtCreate);
    FUNCTION(cublasLtDestroy);
    FUNCTION(cublasLtGetStatusString);
    FUNCTION(cublasLtMatmulDescCreate);
    FUNCTION(cublasLtMatmulDescDestroy);
    FUNCTION(cublasLtMatmulDescSetAttribute);
    FUNCTION(cublasLtMatrixLayoutCreate);
    FUNCTION(cublasLtMatrixLayoutDestroy);
    FUNCTION(cublasLtMatmulPreferenceCreate);
    FUNCTION(cublasLtMatmulPreferenceDestroy);
    FUNCTION(cublasLtMatmulPreferenceSetAttribute);
    FUNCTION(cublasLtMatmulAlgoGetHeuristic);
    FUNCTION(cublasLtMatmulAlgoCapGetAttribute);
    FUNCTION(cublasLtMatmul);
} library = {.loaded = SW_LIBRARY_INIT};

sw_status sw_cublaslt_load(void) {
#define ENTRY(name)                                                                                                    \
    { #name, (void **)&library.name##_at }
    static const struct sw_library_function functions[] = {
        ENTRY(cublasLtCreate),
        ENTRY(cublasLtDestroy),
        ENTRY(cublasLtGetStatusString),
        ENTRY(cublasLtMatmulDescCreate),
        ENTRY(cublasLtMatmulDescDestroy),
        ENTRY(cublasLtMatmulDescSetAttribute),
        ENTRY(cublasLtMatrixLayoutCreate),
        ENTRY(cublasLtMatrixLayoutDestroy),
        ENTRY(cublasLtMatmulPreferenceCreate),
        ENTRY(cublasLtMatmulPreferenceDestroy),
        ENTRY(cublasLtMatmulPreferenceSetAttribute),
        ENTRY(cublasLtMatmulAlgoGetHeuristic),
        ENTRY(cublasLtMatmulAlgoCapGetAttribute),
        ENTRY(cublasLtMatmul),
    };
    const char *failure = sw_library_load(&library.loaded, SW_CUBLASLT_NAME, SW_CUBLASLT_PATH, functions,
                                          sizeof functions / sizeof functions[0]);
    if (failure == NULL)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "--device cuda: cuBLASLt cannot be loaded (%s); install the CUDA Toolkit's libraries (%s), or use "
                   "--device cpu",
                   failure, SW_CUBLASLT_NAME);
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): NVIDIA's header has other names. */
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    return library.cublasLtCreate_at(out);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return library.cublasLtDestroy_at(handle);
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return library.cublasLtGetStatusString_at(status);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    return library.cublasLtMatmulDescCreate_at(out, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    return library.cublasLtMatmulDescDestroy_at(description);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes) {
    return library.cublasLtMatmulDescSetAttribute_at(description, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t stride) {
    return library.cublasLtMatrixLayoutCreate_at(out, type, rows, cols, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return library.cublasLtMatrixLayoutDestroy_at(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return library.cublasLtMatmulPreferenceCreate_at(out);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return library.cublasLtMatmulPreferenceDestroy_at(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    return library.cublasLtMatmulPreferenceSetAttribute_at(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *out, int *out_count) {
    return library.cublasLtMatmulAlgoGetHeuristic_at(handle, description, a, b, c, d, preference, most, out, out_count);
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void *out, size_t bytes,
                                                 size_t *out_bytes) {
    return library.cublasLtMatmulAlgoCapGetAttribute_at(algorithm, attribute, out, bytes, out_bytes);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    return library.cublasLtMatmul_at(handle, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d,
                                     d_layout, algorithm, workspace, workspace_bytes, stream);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
