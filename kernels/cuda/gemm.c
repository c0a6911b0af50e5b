/* Matrix products by cuBLASLt. The algorithm of a shape is chosen once, when it is prepared (gemm.c), so that
 * every call of a run computes the same bits. */
#include "core/rng.h"
#include "core/size.h"
#include "kernels/cuda/cuda.h"
#include "kernels/products.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The alignment of operands that cuBLASLt may assume: tensors of a unit and rows of areas have it. */
enum { SW_CUDA_OPERAND_ALIGN_BYTES = 64, SW_CUDA_WORKSPACE_ALIGN_BYTES = 256 };

struct sw_cuda_product {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    struct sw_gemm_algorithm algorithm;
    bool refused; /* the library does not accept the algorithm that was recorded for the product */
    float beta;
};

struct sw_cuda_operands {
    const void *a, *b, *bias, *addend; /* bias and addend are NULL where the shape has none */
    void *c, *workspace;
    const float *a_scale, *b_scale; /* of operands in 8 bits, which are codes then; NULL: none are */
};

static_assert(SW_BUFFER_ALIGN_BYTES % SW_CUDA_WORKSPACE_ALIGN_BYTES == 0,
              "scratch memory is aligned as cuBLASLt wants it");

static cudaDataType_t type_of(sw_dtype type) {
    static const cudaDataType_t types[] = {[SW_F32] = CUDA_R_32F, [SW_BF16] = CUDA_R_16BF, [SW_F16] = CUDA_R_16F};
    return types[type];
}

static cudaDataType_t code_type_of(sw_fp8 type) {
    return type == SW_FP8_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

static bool is_fp8(const struct sw_gemm *shape) {
    return shape->a_as != SW_FP8_NONE;
}

/* Returns the product that the library is asked for. It multiplies codes only if both operands are contiguous along the
 * inner dimension, so encoding transposes the others. */
static struct sw_gemm asked_for(const struct sw_gemm *shape) {
    struct sw_gemm asked = *shape;
    if (is_fp8(shape)) {
        asked.transpose_a = false;
        asked.transpose_b = true;
        asked.a_stride = 0;
    }
    return asked;
}

/* A row-major matrix is its transpose in the library's column-major order, so the library is asked for Cᵀ =
 * op(B)ᵀ·op(A)ᵀ and both operands change places. Its bias then runs along our columns, as it should. */
static sw_status describe_operation(struct sw_cuda_product *p, const struct sw_gemm *shape, bool tf32,
                                    const void *lent) {
    const cublasOperation_t first = shape->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = shape->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t bias_type = type_of(shape->in);
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
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &lent, sizeof lent, shape->bias},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &lent, sizeof lent, is_fp8(shape)},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &lent, sizeof lent, is_fp8(shape)},
    };
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].wanted)
            SW_TRY(sw_cuda_check_lt(cublasLtMatmulDescSetAttribute(p->operation, attributes[i].attribute,
                                                                   attributes[i].value, attributes[i].bytes),
                                    "describing a matrix product"));
    return SW_OK;
}

/* Creates the layout of a row-major matrix, which cuBLASLt sees as its column-major transpose. */
static sw_status describe_matrix(cublasLtMatrixLayout_t *out, cudaDataType_t type, int64_t rows, int64_t cols,
                                 int64_t stride) {
    return sw_cuda_check_lt(cublasLtMatrixLayoutCreate(out, type, (uint64_t)cols, (uint64_t)rows, stride),
                            "describing a matrix");
}

/* lent: memory of the GPU that the description names until calls bring their own. */
static sw_status describe(struct sw_cuda_product *p, const struct sw_gemm *shape, bool tf32, const void *lent) {
    const struct sw_gemm asked = asked_for(shape), *s = &asked;
    const cudaDataType_t a_type = is_fp8(s) ? code_type_of(s->a_as) : type_of(s->in);
    const cudaDataType_t b_type = is_fp8(s) ? code_type_of(s->b_as) : type_of(s->in);
    SW_TRY(describe_operation(p, s, tf32, lent));
    const int64_t a_stride = sw_gemm_a_stride(s);
    SW_TRY(s->transpose_b ? describe_matrix(&p->a, b_type, s->n, s->k, s->k)
                          : describe_matrix(&p->a, b_type, s->k, s->n, s->n));
    SW_TRY(s->transpose_a ? describe_matrix(&p->b, a_type, s->k, s->m, a_stride)
                          : describe_matrix(&p->b, a_type, s->m, s->k, a_stride));
    return describe_matrix(&p->c, type_of(s->out), s->m, s->n, sw_gemm_c_stride(s));
}

static void release(struct sw_cuda_product *p) {
    if (p->operation != NULL)
        cublasLtMatmulDescDestroy(p->operation);
    const cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i] != NULL)
            cublasLtMatrixLayoutDestroy(layouts[i]);
    free(p);
}

static sw_status cuda_choose_algorithm(struct sw_cuda *cuda, struct sw_cuda_product *p);

/* Describes a product and chooses its algorithm, for which the library looks at the addresses of the bias and of
 * scales. So the product has memory of the GPU for them meanwhile; calls bring their own. */
static sw_status describe_and_choose(struct sw_cuda *cuda, struct sw_cuda_product *p) {
    const struct sw_gemm *shape = &p->algorithm.shape;
    void *lent = NULL;
    if (shape->bias || is_fp8(shape))
        SW_TRY(sw_cuda_check(cudaMalloc(&lent, (size_t)(shape->n * (int64_t)sizeof(float))),
                             "taking memory for a bias, to choose its product's algorithm"));
    sw_status status = describe(p, shape, cuda->tf32, lent);
    if (status == SW_OK)
        status = cuda_choose_algorithm(cuda, p);
    if (lent != NULL)
        (void)cudaFree(lent);
    return status;
}

/* The parts of the scratch memory of a product in 8 bits, after the library's workspace. */
struct codes {
    int64_t a_scale, b_scale, a, b, bytes;
};

static struct codes codes_of(const struct sw_gemm *s, int64_t workspace_bytes) {
    struct codes at = {.a_scale = sw_round_up(workspace_bytes, SW_BUFFER_ALIGN_BYTES)};
    at.b_scale = at.a_scale + sw_round_up(SW_FP8_SCALE_BYTES, SW_BUFFER_ALIGN_BYTES);
    at.a = at.b_scale + sw_round_up(SW_FP8_SCALE_BYTES, SW_BUFFER_ALIGN_BYTES);
    at.b = at.a + sw_round_up(s->m * s->k, SW_BUFFER_ALIGN_BYTES);
    at.bytes = at.b + s->k * s->n;
    return at;
}

/* Encodes both operands of a product as the library wants them, and points to the codes instead. */
static sw_status encode_operands(struct sw_stream *stream, const struct sw_gemm *s, int64_t workspace_bytes,
                                 struct sw_cuda_operands *operands) {
    const struct codes at = codes_of(s, workspace_bytes);
    char *scratch = operands->workspace;
    uint8_t *a = (uint8_t *)scratch + at.a, *b = (uint8_t *)scratch + at.b;
    float *a_scale = (float *)(void *)(scratch + at.a_scale), *b_scale = (float *)(void *)(scratch + at.b_scale);
    const bool turn_a = s->transpose_a, turn_b = !s->transpose_b;
    SW_TRY(sw_encode_fp8(stream, .type = s->in, .as = s->a_as, .rows = turn_a ? s->k : s->m,
                         .cols = turn_a ? s->m : s->k, .transpose = turn_a, .from = operands->a, .codes = a,
                         .scale = a_scale));
    SW_TRY(sw_encode_fp8(stream, .type = s->in, .as = s->b_as, .rows = turn_b ? s->k : s->n,
                         .cols = turn_b ? s->n : s->k, .transpose = turn_b, .from = operands->b, .codes = b,
                         .scale = b_scale));
    operands->a = a;
    operands->b = b;
    operands->a_scale = a_scale;
    operands->b_scale = b_scale;
    return SW_OK;
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    struct sw_cuda *cuda = sw_cuda_of(device);
    sw_status status;
    struct sw_cuda_product *p = calloc(1, sizeof *p);
    if (p == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a matrix product");
    p->algorithm = (struct sw_gemm_algorithm){.shape = entry->shape, .tf32 = cuda->tf32 && entry->shape.in == SW_F32};
    p->beta = entry->shape.accumulate || entry->shape.addend ? 1.0f : 0.0f;
    SW_TRY_GOTO(sw_cuda_use(device), fail);
    SW_TRY_GOTO(describe_and_choose(cuda, p), fail);
    entry->scratch_bytes = is_fp8(&entry->shape) ? codes_of(&entry->shape, p->algorithm.workspace_bytes).bytes
                                                 : p->algorithm.workspace_bytes;
    entry->prepared = p;
    return SW_OK;
fail:
    release(p);
    return status;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    if (entry->prepared != NULL)
        release(entry->prepared);
}

static bool aligned(const void *operand) {
    return (uintptr_t)operand % SW_CUDA_OPERAND_ALIGN_BYTES == 0;
}

static cublasStatus_t name_address(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                   const void *address) {
    return address == NULL ? CUBLAS_STATUS_SUCCESS
                           : cublasLtMatmulDescSetAttribute(operation, attribute, &address, sizeof address);
}

/* Bias and scales are pointers within the description, which streams share; so each call has a description of its own.
 * The library's first operand is our second. */
/* Starts a product on a stream, by an algorithm in the library's own form. */
static cublasStatus_t cuda_multiply(const struct sw_cuda *cuda, const struct sw_cuda_product *product,
                                    const cublasLtMatmulAlgo_t *algorithm, int64_t workspace_bytes,
                                    const struct sw_cuda_operands *operands, cudaStream_t stream) {
    static const float one = 1.0f;
    cublasLtMatmulDescOpaque_t operation;
    memcpy(&operation, product->operation, sizeof operation);
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        const void *address;
    } addresses[] = {{CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands->bias},
                     {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands->b_scale},
                     {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands->a_scale}};
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        const cublasStatus_t status = name_address(&operation, addresses[i].attribute, addresses[i].address);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    return cublasLtMatmul(cuda->lt, &operation, &one, operands->b, product->a, operands->a, product->b, &product->beta,
                          operands->addend != NULL ? operands->addend : operands->c, product->c, operands->c,
                          product->c, algorithm, operands->workspace, (size_t)workspace_bytes, stream);
}

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    const struct sw_cuda_product *p = entry->prepared;
    struct sw_cuda_operands operands = {.a = a, .b = b, .bias = bias, .addend = addend, .c = c, .workspace = scratch};
    cublasLtMatmulAlgo_t algorithm;
    /* A misaligned address would end the GPU's work with an error that names nobody. */
    assert(aligned(a) && aligned(b) && aligned(bias) && aligned(addend) && aligned(c));
    assert((uintptr_t)scratch % SW_CUDA_WORKSPACE_ALIGN_BYTES == 0);
    memcpy(&algorithm, p->algorithm.word, sizeof algorithm);
    const int64_t workspace_bytes = p->algorithm.workspace_bytes;
    SW_TRY(sw_cuda_use(stream->device));
    if (is_fp8(&entry->shape))
        SW_TRY(encode_operands(stream, &entry->shape, workspace_bytes, &operands));
    return sw_cuda_check_lt(
        cuda_multiply(sw_cuda_of(stream->device), p, &algorithm, workspace_bytes, &operands, sw_cuda_stream(stream)),
        "starting a matrix product");
}

static sw_status use_algorithms(struct sw_device *device, const struct sw_gemm_algorithms *list, bool measure) {
    struct sw_cuda *cuda = sw_cuda_of(device);
    sw_gemm_algorithms_release(&cuda->algorithms);
    cuda->measures_algorithms = measure;
    for (int64_t i = 0; i < list->count; i++)
        SW_TRY(sw_gemm_algorithms_put(&cuda->algorithms, &list->item[i]));
    return SW_OK;
}

static void algorithm_of(const struct sw_gemm_entry *entry, struct sw_gemm_algorithm *out, bool *out_refused) {
    const struct sw_cuda_product *p = entry->prepared;
    *out = p->algorithm;
    *out_refused = p->refused;
}

static void use_tf32(struct sw_device *device) {
    sw_cuda_of(device)->tf32 = true;
}

static sw_status check_fp8(struct sw_device *device) {
    enum { LEAST_CAPABILITY = 89 };
    const struct sw_cuda *cuda = sw_cuda_of(device);
    if (cuda->capability >= LEAST_CAPABILITY)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "--precision fp8 needs a GPU that multiplies in 8 bits, from compute capability 8.9 on, and the %s "
                   "has %d.%d; give --precision bf16",
                   cuda->name, cuda->capability / 10, cuda->capability % 10);
}

void sw_cuda_add_gemm(struct sw_device_ops *ops) {
    ops->use_tf32 = use_tf32;
    ops->check_fp8 = check_fp8;
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm;
    ops->use_algorithms = use_algorithms;
    ops->algorithm = algorithm_of;
}

/* The algorithm of a product: the recorded one where the library still accepts it, else the cheapest of those that its
 * heuristic names for a fixed workspace and alignment, measured once, else the first of them. */

enum { MOST_ALGORITHMS = 8, ROUNDS = 3, ROUNDS_OF_LONG = 1 };
/* A product that takes longer is measured once, because the error of one round is a small share of its time. */
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

/* Restores a recorded algorithm. The record comes from a file, so one that the library refuses or reads differently is
 * not used. */
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

/* Fills memory with numbers of a type. Copies the filled part again and again, so that few numbers come from the host.
 */
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

/* Places the operands in a row; false: there is no room to measure in. */
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
           cuda_multiply(cuda, p, &found->algo, (int64_t)found->workspaceSize, &t->operands, t->stream) ==
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

/* Fills the product's algorithm: the one that was recorded for its shape, or the cheapest, or the first. */
static sw_status cuda_choose_algorithm(struct sw_cuda *cuda, struct sw_cuda_product *p) {
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
