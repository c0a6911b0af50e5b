/* Stands in cuBLASLt's place where its loading is tested. FAKE_CUBLASLT is the version that it says, and the bytes that
 * its descriptions of products take. Its other functions are never called. */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 130100 };

static void told(size_t *version, size_t *bytes) {
    const char *text = getenv("FAKE_CUBLASLT");
    *version = VERSION;
    *bytes = 1;
    if (text != NULL)
        (void)sscanf(text, "%zu %zu", version, bytes); /* NOLINT(cert-err34-c): numbers of the test itself */
}

size_t cublasLtGetVersion(void) {
    size_t version, bytes;
    told(&version, &bytes);
    return version;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    size_t version, least;
    (void)compute, (void)scale;
    told(&version, &least);
    if (bytes < least)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(description, 1, least);
    return CUBLAS_STATUS_SUCCESS;
}

#define UNUSED(name)                                                                                                   \
    void name##_unused(void) __asm__(#name);                                                                           \
    void name##_unused(void) {                                                                                         \
        abort();                                                                                                       \
    }
UNUSED(cublasLtCreate)
UNUSED(cublasLtDestroy)
UNUSED(cublasLtGetStatusString)
UNUSED(cublasLtMatmulDescSetAttribute)
UNUSED(cublasLtMatrixLayoutCreate)
UNUSED(cublasLtMatrixLayoutDestroy)
UNUSED(cublasLtMatmulPreferenceCreate)
UNUSED(cublasLtMatmulPreferenceDestroy)
UNUSED(cublasLtMatmulPreferenceSetAttribute)
UNUSED(cublasLtMatmulAlgoGetHeuristic)
UNUSED(cublasLtMatmulAlgoCapGetAttribute)
UNUSED(cublasLtMatmulAlgoConfigGetAttribute)
UNUSED(cublasLtMatmulAlgoCheck)
#ifndef FAKE_WITHOUT_MATMUL
UNUSED(cublasLtMatmul)
#endif
