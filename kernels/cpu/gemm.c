#include "core/size.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/product.h"

#include <pthread.h>
#include <stdlib.h>

/* The fp32 copies of operands where the CPU has no products of the type (no CPU has those of fp16). The offsets are
 * those of the copies in the scratch; oneDNN's own scratchpad comes first. */
struct widened {
    bool on, c;
    int64_t a_at, b_at, bias_at, c_at;
};

/* A prepared product, which runs one call at a time. */
struct cpu_gemm {
    struct sw_cpu_product *product;
    struct widened widened;
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

/* Returns the end of a buffer of elems floats at `at`, aligned for the next. */
static int64_t after(int64_t at, int64_t elems) {
    return sw_round_up(at + elems * (int64_t)sizeof(float), SW_BUFFER_ALIGN_BYTES);
}

/* Lays the fp32 copies out behind oneDNN's scratchpad and returns the bytes of all. */
static int64_t lay_out(const struct sw_gemm *shape, int64_t scratchpad_bytes, struct widened *widened) {
    if (!widened->on)
        return scratchpad_bytes;
    widened->c = shape->out != SW_F32;
    widened->a_at = sw_round_up(scratchpad_bytes, SW_BUFFER_ALIGN_BYTES);
    widened->b_at = after(widened->a_at, shape->m * shape->k);
    widened->bias_at = after(widened->b_at, shape->k * shape->n);
    widened->c_at = after(widened->bias_at, shape->bias ? shape->n : 0);
    return after(widened->c_at, widened->c ? shape->m * shape->n : 0);
}

/* oneDNN reads the matrix of such a product at a fraction of the memory's rate. */
static bool is_row_product(const struct sw_gemm *shape) {
    return shape->m == 1 && !shape->accumulate;
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    if (is_row_product(&entry->shape)) {
        entry->scratch_bytes = device->ops.row_product_scratch_bytes(&entry->shape);
        return SW_OK;
    }
    struct sw_cpu *cpu = device->backend;
    struct cpu_gemm *gemm = calloc(1, sizeof *gemm);
    if (gemm == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to prepare a matrix product");
    pthread_mutex_init(&gemm->lock, NULL);
    gemm->widened.on = entry->shape.in == SW_F16 || (entry->shape.in == SW_BF16 && !device->info.bf16_fast);
    struct sw_gemm shape = entry->shape;
    if (gemm->widened.on)
        shape.in = shape.out = SW_F32;
    int64_t scratchpad_bytes = 0;
    const sw_status status = sw_cpu_product_open(cpu->engine, &shape, device->info.threads,
                                                 device->ops.pack_panel != NULL, &gemm->product, &scratchpad_bytes);
    if (status == SW_OK) {
        entry->scratch_bytes = lay_out(&entry->shape, scratchpad_bytes, &gemm->widened);
        entry->prepared = gemm;
    } else {
        destroy(gemm);
    }
    return status == SW_OK
               ? SW_OK
               : sw_fail_while(status, "preparing a matrix product of %lld x %lld x %lld", (long long)entry->shape.m,
                               (long long)entry->shape.n, (long long)entry->shape.k);
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    if (entry->prepared != NULL)
        destroy(entry->prepared);
}

static sw_status widen_operands(struct sw_stream *stream, const struct sw_gemm *shape, const struct widened *widened,
                                struct sw_cpu_operands from, char *scratch, struct sw_cpu_operands *out) {
    float *a = (float *)(scratch + widened->a_at), *b = (float *)(scratch + widened->b_at);
    float *bias = (float *)(scratch + widened->bias_at), *c = (float *)(scratch + widened->c_at);
    SW_TRY(sw_cast_to_f32(stream, shape->in, shape->m * shape->k, from.a, a));
    SW_TRY(sw_cast_to_f32(stream, shape->in, shape->k * shape->n, from.b, b));
    if (shape->bias)
        SW_TRY(sw_cast_to_f32(stream, shape->in, shape->n, from.bias, bias));
    if (widened->c && shape->accumulate)
        SW_TRY(sw_cast_to_f32(stream, shape->out, shape->m * shape->n, from.c, c));
    *out = (struct sw_cpu_operands){.a = a, .b = b, .bias = bias, .c = widened->c ? c : from.c};
    return SW_OK;
}

static sw_status product(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                         const void *bias, void *c, void *scratch) {
    struct cpu_gemm *gemm = entry->prepared;
    const struct sw_gemm *shape = &entry->shape;
    if (is_row_product(shape))
        return stream->device->ops.row_product(stream, shape, a, b, bias, c, scratch);
    struct sw_cpu_operands at = {.a = a, .b = b, .bias = bias, .c = c};
    if (gemm->widened.on)
        SW_TRY(widen_operands(stream, shape, &gemm->widened, at, scratch, &at));
    pthread_mutex_lock(&gemm->lock);
    const sw_status status = sw_cpu_product_run(gemm->product, stream, &at, scratch);
    pthread_mutex_unlock(&gemm->lock);
    SW_TRY(status);
    if (gemm->widened.on && gemm->widened.c)
        return sw_cast_from_f32(stream, shape->out, shape->m * shape->n, at.c, c);
    return SW_OK;
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
