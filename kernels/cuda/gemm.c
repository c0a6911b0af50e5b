/* Matrix products by cuBLASLt. The algorithm of a shape is chosen once, when it is prepared (algorithms.c), so that
 * every call of a run computes the same bits. */
#include "core/size.h"
#include "kernels/cuda/product.h"
#include "kernels/fp8_product.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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

/* Returns the product that the library is asked for. It multiplies codes only where both operands lie along the inner
 * side, so encoding turns those that do not. */
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
        status = sw_cuda_choose_algorithm(cuda, p);
    if (lent != NULL)
        (void)cudaFree(lent);
    return status;
}

/* The parts of the scratch memory of a product in 8 bits, behind the library's workspace. */
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
cublasStatus_t sw_cuda_multiply(const struct sw_cuda *cuda, const struct sw_cuda_product *product,
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
        sw_cuda_multiply(sw_cuda_of(stream->device), p, &algorithm, workspace_bytes, &operands, sw_cuda_stream(stream)),
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
