#include "core/size.h"
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

/* The fp32 copies of operands where the CPU has no products of the type (no CPU has those of fp16). The offsets are
 * those of the copies in the scratch; oneDNN's own scratchpad comes first. */
struct widened {
    bool on, c;
    int64_t a_at, b_at, bias_at, c_at;
};

/* A prepared product. Its memory objects get their addresses at each call, hence the lock. */
struct cpu_gemm {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_memory_t a, b, bias, c, scratchpad;
    struct widened widened;
    pthread_mutex_t lock;
};

static sw_status check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success)
        return SW_OK;
    const sw_status code = status == dnnl_out_of_memory ? SW_ERR_NOMEM : SW_ERR_INTERNAL;
    return sw_fail(code, "oneDNN could not %s (its status %d)", what, (int)status);
}

sw_status sw_cpu_gemm_open(struct sw_cpu *cpu) {
    return check(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0), "open the CPU");
}

void sw_cpu_gemm_close(struct sw_cpu *cpu) {
    dnnl_engine_destroy(cpu->engine);
}

bool sw_cpu_has_bf16_products(void) {
    const int need = (int)dnnl_cpu_isa_avx512_core_bf16;
    return ((int)dnnl_get_effective_cpu_isa() & need) == need;
}

/* The descriptions of the operands in oneDNN's terms. */
struct operands {
    dnnl_memory_desc_t a, b, bias, c;
};

/* Describes a row-major [rows, cols] matrix, or the transposed view of a stored [cols, rows]. */
static sw_status describe(dnnl_memory_desc_t *desc, int64_t rows, int64_t cols, bool transposed, sw_dtype type) {
    const dnnl_dims_t dims = {rows, cols};
    const dnnl_dims_t strides = {transposed ? 1 : cols, transposed ? rows : 1};
    const dnnl_data_type_t data_type = type == SW_F32 ? dnnl_f32 : dnnl_bf16;
    return check(dnnl_memory_desc_init_by_strides(desc, 2, dims, data_type, strides), "describe a matrix");
}

static sw_status describe_operands(const struct sw_gemm *shape, bool widen, struct operands *out) {
    const sw_dtype in = widen ? SW_F32 : shape->in, to = widen ? SW_F32 : shape->out;
    SW_TRY(describe(&out->a, shape->m, shape->k, shape->transpose_a, in));
    SW_TRY(describe(&out->b, shape->k, shape->n, shape->transpose_b, in));
    SW_TRY(describe(&out->bias, 1, shape->n, false, in));
    return describe(&out->c, shape->m, shape->n, false, to);
}

static sw_status make_attributes(const struct sw_gemm *shape, dnnl_primitive_attr_t attributes) {
    SW_TRY(check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "set its scratchpad"));
    if (!shape->accumulate)
        return SW_OK;
    dnnl_post_ops_t post_ops = NULL;
    SW_TRY(check(dnnl_post_ops_create(&post_ops), "prepare to accumulate"));
    dnnl_status_t status = dnnl_post_ops_append_sum(post_ops, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attributes, post_ops);
    dnnl_post_ops_destroy(post_ops);
    return check(status, "prepare to accumulate");
}

/* Makes the primitive, and the memory object of its scratchpad. */
static sw_status make_primitive(struct sw_cpu *cpu, const struct sw_gemm *shape, const struct operands *operands,
                                struct cpu_gemm *gemm, int64_t *scratchpad_bytes) {
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t primitive_desc = NULL;
    sw_status status = SW_OK;
    SW_TRY_GOTO(check(dnnl_matmul_desc_init(&desc, &operands->a, &operands->b, shape->bias ? &operands->bias : NULL,
                                            &operands->c),
                      "describe a matrix product"),
                out);
    SW_TRY_GOTO(check(dnnl_primitive_attr_create(&attributes), "make attributes"), out);
    SW_TRY_GOTO(make_attributes(shape, attributes), out);
    SW_TRY_GOTO(check(dnnl_primitive_desc_create(&primitive_desc, &desc, attributes, cpu->engine, NULL),
                      "find a way to multiply matrices of this shape"),
                out);
    SW_TRY_GOTO(check(dnnl_primitive_create(&gemm->primitive, primitive_desc), "prepare a matrix product"), out);
    const dnnl_memory_desc_t *scratchpad = dnnl_primitive_desc_query_md(primitive_desc, dnnl_query_scratchpad_md, 0);
    *scratchpad_bytes = (int64_t)dnnl_memory_desc_get_size(scratchpad);
    SW_TRY_GOTO(check(dnnl_memory_create(&gemm->scratchpad, scratchpad, cpu->engine, DNNL_MEMORY_NONE),
                      "describe its scratchpad"),
                out);
out:
    dnnl_primitive_desc_destroy(primitive_desc);
    dnnl_primitive_attr_destroy(attributes);
    return status;
}

static sw_status make_memories(struct sw_cpu *cpu, const struct operands *operands, struct cpu_gemm *gemm) {
    const char *what = "make a memory object";
    SW_TRY(check(dnnl_memory_create(&gemm->a, &operands->a, cpu->engine, DNNL_MEMORY_NONE), what));
    SW_TRY(check(dnnl_memory_create(&gemm->b, &operands->b, cpu->engine, DNNL_MEMORY_NONE), what));
    SW_TRY(check(dnnl_memory_create(&gemm->bias, &operands->bias, cpu->engine, DNNL_MEMORY_NONE), what));
    SW_TRY(check(dnnl_memory_create(&gemm->c, &operands->c, cpu->engine, DNNL_MEMORY_NONE), what));
    return check(dnnl_stream_create(&gemm->stream, cpu->engine, dnnl_stream_default_flags), "make a stream");
}

static void destroy(struct cpu_gemm *gemm) {
    dnnl_memory_destroy(gemm->scratchpad);
    dnnl_memory_destroy(gemm->c);
    dnnl_memory_destroy(gemm->bias);
    dnnl_memory_destroy(gemm->b);
    dnnl_memory_destroy(gemm->a);
    dnnl_primitive_destroy(gemm->primitive);
    dnnl_stream_destroy(gemm->stream);
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

/* oneDNN reads the number of threads where a primitive is made and where it runs; both must see the same, and get it:
 * with fewer, parts of the result stay unwritten. So the OpenMP runtime may not choose by itself. */
static int set_threads(int threads) {
    const int before = omp_get_max_threads();
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    return before;
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
    struct operands operands;
    int64_t scratchpad_bytes = 0;
    sw_status status = SW_OK;
    const int threads_before = set_threads(device->info.threads);
    SW_TRY_GOTO(describe_operands(&entry->shape, gemm->widened.on, &operands), out);
    SW_TRY_GOTO(make_primitive(cpu, &entry->shape, &operands, gemm, &scratchpad_bytes), out);
    SW_TRY_GOTO(make_memories(cpu, &operands, gemm), out);
    entry->scratch_bytes = lay_out(&entry->shape, scratchpad_bytes, &gemm->widened);
    entry->prepared = gemm;
out:
    omp_set_num_threads(threads_before);
    if (status != SW_OK)
        destroy(gemm);
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

/* The addresses of a call. */
struct addresses {
    const void *a, *b, *bias;
    void *c;
};

static sw_status widen_operands(struct sw_stream *stream, const struct sw_gemm *shape, const struct widened *widened,
                                struct addresses from, char *scratch, struct addresses *out) {
    float *a = (float *)(scratch + widened->a_at), *b = (float *)(scratch + widened->b_at);
    float *bias = (float *)(scratch + widened->bias_at), *c = (float *)(scratch + widened->c_at);
    SW_TRY(sw_cast_to_f32(stream, shape->in, shape->m * shape->k, from.a, a));
    SW_TRY(sw_cast_to_f32(stream, shape->in, shape->k * shape->n, from.b, b));
    if (shape->bias)
        SW_TRY(sw_cast_to_f32(stream, shape->in, shape->n, from.bias, bias));
    if (widened->c && shape->accumulate)
        SW_TRY(sw_cast_to_f32(stream, shape->out, shape->m * shape->n, from.c, c));
    *out = (struct addresses){.a = a, .b = b, .bias = bias, .c = widened->c ? c : from.c};
    return SW_OK;
}

/* oneDNN's handles are not const, although it only reads the inputs. */
static void *unconst(const void *pointer) {
    return (void *)(uintptr_t)pointer;
}

static dnnl_status_t multiply(struct cpu_gemm *gemm, const struct sw_gemm *shape, struct addresses at, void *scratch) {
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, gemm->a},
                                         {DNNL_ARG_WEIGHTS, gemm->b},
                                         {DNNL_ARG_DST, gemm->c},
                                         {DNNL_ARG_SCRATCHPAD, gemm->scratchpad},
                                         {DNNL_ARG_BIAS, gemm->bias}};
    const int count = (int)(sizeof arguments / sizeof arguments[0]) - (shape->bias ? 0 : 1);
    dnnl_status_t status = dnnl_memory_set_data_handle(gemm->a, unconst(at.a));
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(gemm->b, unconst(at.b));
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(gemm->c, at.c);
    if (status == dnnl_success && shape->bias)
        status = dnnl_memory_set_data_handle(gemm->bias, unconst(at.bias));
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(gemm->scratchpad, scratch);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(gemm->primitive, gemm->stream, count, arguments);
    return status == dnnl_success ? dnnl_stream_wait(gemm->stream) : status;
}

static sw_status product(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                         const void *bias, void *c, void *scratch) {
    struct cpu_gemm *gemm = entry->prepared;
    const struct sw_gemm *shape = &entry->shape;
    if (is_row_product(shape))
        return stream->device->ops.row_product(stream, shape, a, b, bias, c, scratch);
    struct addresses at = {.a = a, .b = b, .bias = bias, .c = c};
    if (gemm->widened.on)
        SW_TRY(widen_operands(stream, shape, &gemm->widened, at, scratch, &at));
    pthread_mutex_lock(&gemm->lock);
    const int threads_before = set_threads(stream->device->info.threads);
    const dnnl_status_t status = multiply(gemm, shape, at, scratch);
    omp_set_num_threads(threads_before);
    pthread_mutex_unlock(&gemm->lock);
    SW_TRY(check(status, "multiply matrices"));
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
