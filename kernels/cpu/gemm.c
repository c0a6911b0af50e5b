#include "kernels/cpu/cpu.h"
#include "kernels/cpu/product.h"

#include <pthread.h>
#include <stdlib.h>

/* A product that oneDNN makes, which runs one call at a time. */
struct cpu_gemm {
    struct sw_cpu_product *product;
    pthread_mutex_t lock;
};

sw_status sw_cpu_gemm_hold(sw_isa isa) {
    static const dnnl_cpu_isa_t names[SW_ISA_COUNT] = {[SW_ISA_BASELINE] = dnnl_cpu_isa_sse41,
                                                       [SW_ISA_AVX2] = dnnl_cpu_isa_avx2,
                                                       [SW_ISA_AVX512] = dnnl_cpu_isa_avx512_core,
                                                       [SW_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16};
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool asked;
    static dnnl_status_t status;
    pthread_mutex_lock(&lock);
    if (!asked)
        status = dnnl_set_max_cpu_isa(names[isa]);
    asked = true;
    pthread_mutex_unlock(&lock);
    return sw_cpu_check(status, "hold itself to the instruction set of " SW_ISA_VARIABLE);
}

sw_status sw_cpu_gemm_open(struct sw_cpu *cpu) {
    return sw_cpu_check(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0), "open the CPU");
}

void sw_cpu_gemm_close(struct sw_cpu *cpu) {
    dnnl_engine_destroy(cpu->engine);
}

bool sw_cpu_has_bf16_products(void) {
    const int need = (int)dnnl_cpu_isa_avx512_core_bf16;
    return ((int)dnnl_get_effective_cpu_isa() & need) == need;
}

static void destroy(struct cpu_gemm *gemm) {
    sw_cpu_product_close(gemm->product);
    pthread_mutex_destroy(&gemm->lock);
    free(gemm);
}

/* oneDNN reads the matrix of such a product at a fraction of the memory's rate. */
static bool is_row_product(const struct sw_gemm *shape) {
    return shape->m == 1 && !shape->accumulate;
}

/* Without instructions for the type oneDNN has no products of it (fp16: never), and without AVX-512 it cuts sums of
 * fp32 by the number of threads. */
bool sw_cpu_multiplies_blocks(const struct sw_device *device, sw_dtype type) {
    switch (type) {
    case SW_F32: return device->info.fp32_in_blocks;
    case SW_BF16: return !device->info.bf16_fast;
    default: return true;
    }
}

static sw_status prepare_onednn(struct sw_device *device, struct sw_gemm_entry *entry) {
    struct sw_cpu *cpu = device->backend;
    struct cpu_gemm *gemm = calloc(1, sizeof *gemm);
    if (gemm == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to prepare a matrix product");
    pthread_mutex_init(&gemm->lock, NULL);
    const sw_status status = sw_cpu_product_open(cpu->engine, &entry->shape, device->info.threads,
                                                 device->ops.pack_panel != NULL, &gemm->product, &entry->scratch_bytes);
    if (status == SW_OK)
        entry->prepared = gemm;
    else
        destroy(gemm);
    return status == SW_OK
               ? SW_OK
               : sw_fail_while(status, "preparing a matrix product of %lld x %lld x %lld", (long long)entry->shape.m,
                               (long long)entry->shape.n, (long long)entry->shape.k);
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    const struct sw_gemm *shape = &entry->shape;
    if (is_row_product(shape))
        entry->scratch_bytes = device->ops.row_product_scratch_bytes(shape);
    else if (sw_cpu_multiplies_blocks(device, shape->in))
        entry->scratch_bytes = device->ops.block_product_scratch_bytes(shape, device->info.threads);
    else
        return prepare_onednn(device, entry);
    return SW_OK;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    if (entry->prepared != NULL)
        destroy(entry->prepared);
}

static sw_status product(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                         const void *bias, void *c, void *scratch) {
    const struct sw_device_ops *ops = &stream->device->ops;
    struct cpu_gemm *gemm = entry->prepared;
    if (is_row_product(&entry->shape))
        return ops->row_product(stream, &entry->shape, a, b, bias, c, scratch);
    if (gemm == NULL) {
        ops->block_product(stream, &entry->shape, a, b, bias, c, scratch);
        return SW_OK;
    }
    const struct sw_cpu_operands at = {.a = a, .b = b, .bias = bias, .c = c};
    pthread_mutex_lock(&gemm->lock);
    const sw_status status = sw_cpu_product_run(gemm->product, stream, &at, scratch);
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

/* The addend comes to the rounded product, which gives the bits of the two ops in turn. */
static sw_status gemm_call(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                           const void *bias, const void *addend, void *c, void *scratch) {
    const struct sw_gemm *shape = &entry->shape;
    SW_TRY(product(stream, entry, a, b, bias, c, scratch));
    return addend == NULL ? SW_OK : sw_add(stream, shape->out, shape->m * shape->n, addend, c, c);
}

void sw_cpu_add_gemm(struct sw_device_ops *ops) {
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm_call;
}
