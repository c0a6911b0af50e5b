/* The algorithm of a product: the recorded one where the library still accepts it, else the cheapest of those that its
 * heuristic names for a fixed workspace and alignment, measured once, else the first of them. */
#include "core/rng.h"
#include "core/size.h"
#include "kernels/cuda/product.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ALGORITHMS = 8, ROUNDS = 3, ROUNDS_OF_LONG = 1 };
/* A product that takes longer is measured once: what one round is off by is a small share of it. */
#define LONG_MS 30.0f
/* Operands are normal random numbers while algorithms are timed, as a GPU multiplies simple numbers with less power,
 * and so faster. So many are drawn, a prime number so that rows are not alike, and repeated. */
enum { DRAWN_NUMBERS = 65521, OPERAND_SEED = 41 };

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(uint64_t) * SW_ALGORITHM_WORDS, "an algorithm's own form");

static sw_status state_preferences(cublasLtMatmulPreference_t preference) {
    static const uint64_t workspace = (uint64_t)SW_GPU_GEMM_SCRATCH_BYTES;
    static const uint32_t align = SW_CUDA_OPERAND_ALIGN_BYTES;
    /* The parts of a sum that an algorithm cuts are added in fp32, not in the type of the result. */
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

/* Fields are for readers and for telling a damaged record: one that the library does not have is 0. */
static void read_fields(const cublasLtMatmulAlgo_t *algo, int64_t out[SW_ALGORITHM_FIELDS]) {
    static const struct {
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        size_t bytes;
    } fields[SW_ALGORITHM_FIELDS] = {
        {CUBLASLT_ALGO_CONFIG_ID, 4},
        {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
        {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
        {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
        {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
        {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
        {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
        {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
        {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
    };
    for (int i = 0; i < SW_ALGORITHM_FIELDS; i++) {
        uint32_t value = 0; /* holds either width, because the processor stores the low bytes first */
        size_t bytes = 0;
        if (cublasLtMatmulAlgoConfigGetAttribute(algo, fields[i].attribute, &value, fields[i].bytes, &bytes) !=
            CUBLAS_STATUS_SUCCESS)
            value = 0;
        out[i] = value;
    }
}

static void keep(struct sw_gemm_algorithm *algorithm, const cublasLtMatmulHeuristicResult_t *found) {
    memcpy(algorithm->word, &found->algo, sizeof algorithm->word);
    algorithm->workspace_bytes = (int64_t)found->workspaceSize;
    read_fields(&found->algo, algorithm->field);
}

/* The record comes from a file: what the library does not accept, or reads otherwise, is not used. */
static bool restore(const struct sw_cuda *cuda, struct sw_cuda_product *p, const struct sw_gemm_algorithm *recorded) {
    struct sw_gemm_algorithm checked = p->algorithm;
    cublasLtMatmulHeuristicResult_t found = {.state = CUBLAS_STATUS_SUCCESS};
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, recorded->word, sizeof algo);
    if (cublasLtMatmulAlgoCheck(cuda->lt, p->operation, p->a, p->b, p->c, p->c, &algo, &found) != CUBLAS_STATUS_SUCCESS)
        return false;
    found.algo = algo;
    keep(&checked, &found);
    if (!serves(&found, &checked.shape) || checked.workspace_bytes > SW_GPU_GEMM_SCRATCH_BYTES ||
        memcmp(checked.field, recorded->field, sizeof checked.field) != 0)
        return false;
    p->algorithm = checked;
    return true;
}

/* Memory and marks for timing. */
struct timing {
    char *memory;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    struct sw_cuda_operands operands;
};

static void close_timing(struct timing *t) {
    if (t->begin != NULL)
        (void)cudaEventDestroy(t->begin);
    if (t->end != NULL)
        (void)cudaEventDestroy(t->end);
    if (t->stream != NULL)
        (void)cudaStreamDestroy(t->stream);
    if (t->memory != NULL)
        (void)cudaFree(t->memory);
    (void)cudaGetLastError(); /* a lack of memory has been handled */
}

/* Fills memory with numbers of a type. Doubles what is there, so that few come from the host. */
static bool fill(const struct timing *t, sw_dtype type, int64_t bytes) {
    const int64_t count = sw_min_i64(bytes / sw_dtype_bytes(type), DRAWN_NUMBERS);
    float *drawn = malloc(2 * (size_t)count * sizeof *drawn), *typed = drawn + count;
    int64_t done = count * sw_dtype_bytes(type);
    if (drawn == NULL)
        return false;
    sw_rng_normals(OPERAND_SEED, 0, 0, count, drawn);
    sw_dtype_round(type, drawn, count, typed);
    bool filled = cudaMemcpyAsync(t->memory, typed, (size_t)done, cudaMemcpyHostToDevice, t->stream) == cudaSuccess;
    for (; filled && done < bytes; done *= 2)
        filled = cudaMemcpyAsync(t->memory + done, t->memory, (size_t)sw_min_i64(done, bytes - done),
                                 cudaMemcpyDeviceToDevice, t->stream) == cudaSuccess;
    filled = cudaStreamSynchronize(t->stream) == cudaSuccess && filled;
    free(drawn);
    return filled;
}

/* Lays the operands one behind the other; false: there is no room to measure in. */
static bool open_timing(struct timing *t, const struct sw_gemm *s) {
    const int64_t in = sw_dtype_bytes(s->in), out = sw_dtype_bytes(s->out);
    const int64_t c_bytes = sw_gemm_c_elems(s) * out;
    const int64_t bytes[] = {sw_gemm_a_elems(s) * in,  s->k * s->n * in, s->n * in, c_bytes, c_bytes,
                             SW_GPU_GEMM_SCRATCH_BYTES};
    enum { PARTS = sizeof bytes / sizeof bytes[0] };
    int64_t at[PARTS], total = 0;
    for (int i = 0; i < PARTS; i++) {
        at[i] = total;
        total += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    }
    if (cudaMalloc((void **)&t->memory, (size_t)total) != cudaSuccess ||
        cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreateWithFlags(&t->begin, cudaEventBlockingSync) != cudaSuccess ||
        cudaEventCreateWithFlags(&t->end, cudaEventBlockingSync) != cudaSuccess || !fill(t, s->in, at[PARTS - 1]))
        return false;
    t->operands = (struct sw_cuda_operands){.a = t->memory + at[0],
                                            .b = t->memory + at[1],
                                            .bias = s->bias ? t->memory + at[2] : NULL,
                                            .addend = s->addend ? t->memory + at[3] : NULL,
                                            .c = t->memory + at[4],
                                            .workspace = t->memory + at[5]};
    if (s->a_as != SW_FP8_NONE) /* any numbers are codes, and scales */
        t->operands.a_scale = t->operands.b_scale = (const float *)(void *)(t->memory + at[2]);
    return true;
}

/* Times one product, in milliseconds, into *out; false: the algorithm does not run. */
static bool time_once(const struct sw_cuda *cuda, const struct sw_cuda_product *p, const struct timing *t,
                      const cublasLtMatmulHeuristicResult_t *found, float *out) {
    return cudaEventRecord(t->begin, t->stream) == cudaSuccess &&
           sw_cuda_multiply(cuda, p, &found->algo, (int64_t)found->workspaceSize, &t->operands, t->stream) ==
               CUBLAS_STATUS_SUCCESS &&
           cudaEventRecord(t->end, t->stream) == cudaSuccess && cudaEventSynchronize(t->end) == cudaSuccess &&
           cudaEventElapsedTime(out, t->begin, t->end) == cudaSuccess;
}

/* The first run loads the kernel and is not counted; the shortest of the others is. */
static bool time_best(const struct sw_cuda *cuda, const struct sw_cuda_product *p, const struct timing *t,
                      const cublasLtMatmulHeuristicResult_t *found, float *out) {
    float ms;
    if (!time_once(cuda, p, t, found, &ms) || !time_once(cuda, p, t, found, out))
        return false;
    for (int round = 1; round < (*out > LONG_MS ? ROUNDS_OF_LONG : ROUNDS); round++) {
        if (!time_once(cuda, p, t, found, &ms))
            return false;
        *out = ms < *out ? ms : *out;
    }
    return true;
}

/* Returns the index of the cheapest algorithm found; 0 where nothing can be measured. */
static int cheapest(const struct sw_cuda *cuda, const struct sw_cuda_product *p,
                    const cublasLtMatmulHeuristicResult_t *found, int count) {
    struct timing t = {0};
    float least_ms = 0.0f, ms;
    int best = -1;
    if (open_timing(&t, &p->algorithm.shape))
        for (int i = 0; i < count; i++)
            if (time_best(cuda, p, &t, &found[i], &ms) && (best < 0 || ms < least_ms)) {
                best = i;
                least_ms = ms;
            }
    close_timing(&t);
    return best < 0 ? 0 : best;
}

static sw_status ask(const struct sw_cuda *cuda, const struct sw_cuda_product *p, cublasLtMatmulPreference_t preference,
                     cublasLtMatmulHeuristicResult_t *found, int *out_count) {
    const struct sw_gemm *shape = &p->algorithm.shape;
    int count = 0;
    SW_TRY(state_preferences(preference));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(cuda->lt, p->operation, p->a, p->b, p->c, p->c, preference,
                                                           MOST_ALGORITHMS, found, &count);
    *out_count = 0;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; i++)
        if (serves(&found[i], shape))
            found[(*out_count)++] = found[i];
    if (status == CUBLAS_STATUS_SUCCESS && *out_count == 0)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for a product of %lld x %lld x %lld in %s (%s)",
                   (long long)shape->m, (long long)shape->n, (long long)shape->k, sw_dtype_name(shape->in),
                   cublasLtGetStatusString(status));
}

sw_status sw_cuda_choose_algorithm(struct sw_cuda *cuda, struct sw_cuda_product *p) {
    const struct sw_gemm_algorithm *recorded =
        sw_gemm_algorithms_find(&cuda->algorithms, &p->algorithm.shape, p->algorithm.tf32);
    cublasLtMatmulHeuristicResult_t found[MOST_ALGORITHMS];
    cublasLtMatmulPreference_t preference = NULL;
    int count = 0;
    if (recorded != NULL && restore(cuda, p, recorded))
        return SW_OK;
    p->refused = recorded != NULL;
    SW_TRY(sw_cuda_check_lt(cublasLtMatmulPreferenceCreate(&preference), "choosing a matrix product's algorithm"));
    const sw_status status = ask(cuda, p, preference, found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    SW_TRY(status);
    const bool measures = cuda->measures_algorithms && count > 1;
    keep(&p->algorithm, &found[measures ? cheapest(cuda, p, found, count) : 0]);
    return SW_OK;
}
