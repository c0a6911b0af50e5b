/* cuBLASLt, loaded when a GPU is opened and not before: the library takes half a gigabyte of address space and some
 * tens of megabytes of memory, which a program that computes on the CPU has no use for, and a machine without it can
 * still do that. The functions that the device calls are here under their own names and go on to the library's.
 *
 * The library may be of CUDA 12 or 13, whichever the program was built with: the functions, attributes and structs that
 * the device uses are the same in both, but for the size of a product's description, which this file makes. */
#include "core/library.h"
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

/* The majors that this file is written for. */
enum { OLDEST_MAJOR = 12, NEWEST_MAJOR = 13 };
/* A version is 13 01 00 in decimal; before CUDA 12 it had one digit less. */
enum { PER_MAJOR = 10000, PER_MINOR = 100 };
enum { NAME_CHARS = SW_LIBRARY_PATH_CHARS + 64 };

/* Applies a macro to each function of the library that is used. */
#define FUNCTIONS(EACH)                                                                                                \
    EACH(cublasLtGetVersion)                                                                                           \
    EACH(cublasLtCreate)                                                                                               \
    EACH(cublasLtDestroy)                                                                                              \
    EACH(cublasLtGetStatusString)                                                                                      \
    EACH(cublasLtMatmulDescInit_internal)                                                                              \
    EACH(cublasLtMatmulDescSetAttribute)                                                                               \
    EACH(cublasLtMatrixLayoutCreate)                                                                                   \
    EACH(cublasLtMatrixLayoutDestroy)                                                                                  \
    EACH(cublasLtMatmulPreferenceCreate)                                                                               \
    EACH(cublasLtMatmulPreferenceDestroy)                                                                              \
    EACH(cublasLtMatmulPreferenceSetAttribute)                                                                         \
    EACH(cublasLtMatmulAlgoGetHeuristic)                                                                               \
    EACH(cublasLtMatmulAlgoCapGetAttribute)                                                                            \
    EACH(cublasLtMatmul)                                                                                               \
    EACH(cublasLtMatmulAlgoCheck)                                                                                      \
    EACH(cublasLtMatmulAlgoConfigGetAttribute)

#define MEMBER(name) __typeof__(name) *name##_at; /* NOLINT(bugprone-macro-parentheses): a declaration */
#define ENTRY(name) {#name, (void **)&library.name##_at},
static struct {
    struct sw_library loaded;
    FUNCTIONS(MEMBER)
} library = {.loaded = SW_LIBRARY_INIT};

static const char *load(void) {
    static const struct sw_library_function functions[] = {FUNCTIONS(ENTRY)};
    static const char *const names[] = {SW_CUBLASLT_NAMES, NULL};
    return sw_library_load(&library.loaded,
                           &(struct sw_library_need){.names = names,
                                                     .built_path = SW_CUBLASLT_PATH,
                                                     .functions = functions,
                                                     .function_count = sizeof functions / sizeof functions[0]});
}

/* Headers of the first releases of CUDA 12 have smaller descriptions of products than later libraries. */
static bool descriptions_fit(void) {
    cublasLtMatmulDesc_t description = NULL;
    const bool fit = cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;
    if (fit)
        cublasLtMatmulDescDestroy(description);
    return fit;
}

sw_status sw_cublaslt_load(void) {
    const char *failure = load();
    if (failure != NULL)
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "--device cuda: cuBLASLt cannot be loaded (%s); install the CUDA Toolkit's libraries or a Python "
            "wheel of cuBLAS (12 or 13), name its folder in LD_LIBRARY_PATH, or use --device cpu",
            failure);
    const size_t version = library.cublasLtGetVersion_at(), major = version / PER_MAJOR;
    if (major < OLDEST_MAJOR || major > NEWEST_MAJOR)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--device cuda: %s is cuBLASLt of version %zu, and spillway is written for %d and %d; put the "
                       "folder of such a one first in LD_LIBRARY_PATH, or use --device cpu",
                       library.loaded.path, version, (int)OLDEST_MAJOR, (int)NEWEST_MAJOR);
    if (descriptions_fit())
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "--device cuda: %s (cuBLASLt %zu) is too new for this program, which was built with an older one; "
                   "build it with that version's headers, or put the folder of the older one first in LD_LIBRARY_PATH",
                   library.loaded.path, version);
}

const char *sw_cublaslt_name(void) {
    static _Thread_local char name[NAME_CHARS];
    const size_t version = library.cublasLtGetVersion_at();
    snprintf(name, sizeof name, "cuBLASLt %zu.%zu.%zu (%s)", version / PER_MAJOR, version % PER_MAJOR / PER_MINOR,
             version % PER_MINOR, library.loaded.path);
    return name;
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

/* Made here and not by the library, so that it has the size that the program was compiled with and can be copied. A
 * library whose descriptions are larger refuses. */
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    cublasLtMatmulDesc_t description = calloc(1, sizeof *description);
    if (description == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    const cublasStatus_t status =
        library.cublasLtMatmulDescInit_internal_at(description, sizeof *description, compute, scale);
    if (status == CUBLAS_STATUS_SUCCESS)
        *out = description;
    else
        free(description);
    return status;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    free(description);
    return CUBLAS_STATUS_SUCCESS;
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

size_t cublasLtGetVersion(void) {
    return library.cublasLtGetVersion_at();
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *out) {
    return library.cublasLtMatmulAlgoCheck_at(handle, description, a, b, c, d, algorithm, out);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *out,
                                                    size_t bytes, size_t *out_bytes) {
    return library.cublasLtMatmulAlgoConfigGetAttribute_at(algorithm, attribute, out, bytes, out_bytes);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
