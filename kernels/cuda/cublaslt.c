/* cuBLASLt, loaded when a GPU is opened and not before: it takes half a gigabyte of address space and some tens of
 * megabytes of memory, which a program that computes on the CPU has no use for, and a machine without it can still do
 * that. The functions that the device calls are here under their own names and go on to the library's. */
#include "kernels/cuda/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define FUNCTION(name) __typeof__(name) *name##_at /* NOLINT(bugprone-macro-parentheses): a declaration */
/* Of the process, as a loaded library is. */
static struct {
    pthread_once_t once;
    char failure[512]; /* empty: it is there */
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
    FUNCTION(cublasLtMatmul);
} library = {.once = PTHREAD_ONCE_INIT};

/* By its name, where the loader looks; else where it was when this program was built. */
static void *open_library(void) {
    static const char *const names[] = {SW_CUBLASLT_NAME, SW_CUBLASLT_PATH};
    void *handle = NULL;
    for (size_t i = 0; handle == NULL && i < sizeof names / sizeof names[0]; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return handle;
}

static void load(void) {
    void *handle = open_library();
    const struct {
        const char *name;
        void **at;
    } functions[] = {
#define ENTRY(name) {#name, (void **)&library.name##_at}
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
        ENTRY(cublasLtMatmul),
    };
    if (handle == NULL) {
        snprintf(library.failure, sizeof library.failure, "%s", dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        *functions[i].at = dlsym(handle, functions[i].name);
        if (*functions[i].at == NULL && library.failure[0] == '\0')
            snprintf(library.failure, sizeof library.failure, "%s is not in it", functions[i].name);
    }
}

sw_status sw_cublaslt_load(void) {
    pthread_once(&library.once, load);
    if (library.failure[0] == '\0')
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "--device cuda: cuBLASLt cannot be loaded (%s); install the CUDA Toolkit's libraries (%s), or use "
                   "--device cpu",
                   library.failure, SW_CUBLASLT_NAME);
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
