#include "bench/kernels/harness.h"

#include "core/arena.h"
#include "core/clock.h"
#include "core/machine.h"
#include "core/rng.h"
#include "core/size.h"
#include "kernels/cpu/onednn.h"
#include "offload/simulate/measure.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls in a row take about LEAST_SECONDS, and are at most MOST_CALLS. */
#define LEAST_SECONDS 5e-3
enum { MOST_CALLS = 1000 };
/* The best round counts, because other load on the machine says nothing about the device. An extra round before the
 * first touches the memory. */
enum { ROUNDS = 3 };

enum { A, B, BIAS, C, SCRATCH, OPERANDS = SW_BENCH_OPERANDS };
/* So many numbers are drawn, a prime number so that rows are not alike. */
enum { DRAWN_NUMBERS = 65521, SEED = 41 };

int64_t sw_bench_areas_bytes(const int64_t *bytes, int count) {
    int64_t all_bytes = 0;
    for (int i = 0; i < count; i++)
        all_bytes += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    return all_bytes;
}

sw_status sw_bench_areas_open(struct sw_device *device, const int64_t *bytes, int count, struct sw_memory **out,
                              void **areas) {
    SW_TRY(sw_memory_open(device, "operands", SW_MEMORY_DEVICE, sw_bench_areas_bytes(bytes, count), out));
    for (int i = 0; i < count; i++)
        areas[i] = (char *)sw_memory_base(*out) + sw_bench_areas_bytes(bytes, i);
    return SW_OK;
}

/* Finds the largest bytes of each operand. */
static sw_status size_operands(struct sw_device *device, const struct sw_model_product *products, int count,
                               int64_t bytes[OPERANDS]) {
    for (int o = 0; o < OPERANDS; o++)
        bytes[o] = 0;
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *shape = &products[i].shape;
        const int64_t in = sw_dtype_bytes(shape->in), out = sw_dtype_bytes(shape->out);
        int64_t of[OPERANDS] = {[A] = sw_gemm_a_elems(shape) * in,
                                [B] = shape->k * shape->n * in,
                                [BIAS] = shape->bias ? shape->n * in : 0,
                                [C] = sw_gemm_c_elems(shape) * out};
        SW_TRY(sw_device_prepare_gemm(device, shape, &of[SCRATCH]));
        for (int o = 0; o < OPERANDS; o++)
            bytes[o] = sw_max_i64(bytes[o], of[o]);
    }
    return SW_OK;
}

sw_status sw_bench_products_bytes(struct sw_device *device, const struct sw_model_product *products, int count,
                                  int64_t *out_bytes) {
    int64_t bytes[OPERANDS];
    SW_TRY(size_operands(device, products, count, bytes));
    *out_bytes = sw_bench_areas_bytes(bytes, OPERANDS);
    return SW_OK;
}

/* Draws the first numbers and repeats them. */
static sw_status fill_host(sw_dtype type, void *to, int64_t bytes) {
    const int64_t count = sw_min_i64(bytes / sw_dtype_bytes(type), DRAWN_NUMBERS);
    float *drawn = malloc((size_t)sw_max_i64(1, count) * sizeof *drawn);
    if (drawn == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the numbers of a bench's operands");
    sw_rng_normals(SEED, 0, 0, count, drawn);
    sw_dtype_round(type, drawn, count, to);
    free(drawn);
    for (int64_t done = count * sw_dtype_bytes(type); done > 0 && done < bytes; done *= 2)
        memcpy((char *)to + done, to, (size_t)sw_min_i64(done, bytes - done));
    return SW_OK;
}

sw_status sw_bench_fill(const struct sw_bench_products *products, sw_dtype type, void *to, int64_t bytes) {
    const int64_t staged_bytes = SW_MIB;
    struct sw_memory *staged;
    SW_TRY(sw_memory_open(products->device, "operands", SW_MEMORY_HOST, staged_bytes, &staged));
    sw_status status = fill_host(type, sw_memory_base(staged), staged_bytes);
    for (int64_t at = 0; status == SW_OK && at < bytes; at += staged_bytes)
        status = sw_copy_to_device(products->stream, (char *)to + at, sw_memory_base(staged),
                                   sw_min_i64(staged_bytes, bytes - at));
    if (status == SW_OK)
        status = sw_stream_synchronize(products->stream);
    sw_memory_close(staged);
    return status;
}

sw_status sw_bench_products_open(struct sw_device *device, const struct sw_model_product *products, int count,
                                 struct sw_bench_products *out) {
    static const int read[] = {A, B, BIAS};
    int64_t bytes[OPERANDS];
    *out = (struct sw_bench_products){.device = device};
    SW_TRY(sw_stream_open(device, &out->stream));
    SW_TRY(sw_event_open(device, &out->from));
    SW_TRY(sw_event_open(device, &out->to));
    SW_TRY(size_operands(device, products, count, bytes));
    SW_TRY(sw_bench_areas_open(device, bytes, OPERANDS, &out->memory, out->operand));
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        SW_TRY(sw_bench_fill(out, products[0].shape.in, out->operand[read[i]], bytes[read[i]]));
    return SW_OK;
}

void sw_bench_products_close(struct sw_bench_products *products) {
    sw_stream_close(products->stream);
    sw_event_close(products->from);
    sw_event_close(products->to);
    sw_memory_close(products->memory);
    *products = (struct sw_bench_products){0};
}

/* Measures the seconds of each of `count` calls in a row. */
static sw_status time_calls(struct sw_bench_products *products, sw_status (*run)(void *context), void *context,
                            int count, double *out_s) {
    int64_t elapsed_ns;
    SW_TRY(sw_event_record(products->from, products->stream));
    for (int i = 0; i < count; i++)
        SW_TRY(run(context));
    SW_TRY(sw_event_record(products->to, products->stream));
    SW_TRY(sw_event_wait(products->to));
    SW_TRY(sw_event_elapsed_ns(products->from, products->to, &elapsed_ns));
    *out_s = (double)sw_max_i64(1, elapsed_ns) * 1e-9 / count;
    return SW_OK;
}

sw_status sw_bench_time(struct sw_bench_products *products, sw_status (*run)(void *context), void *context,
                        double *out_s) {
    SW_TRY(time_calls(products, run, context, 1, out_s));
    if (!sw_device_info(products->device).asynchronous)
        return SW_OK;
    return time_calls(products, run, context, (int)fmin(MOST_CALLS, fmax(1.0, LEAST_SECONDS / *out_s)), out_s);
}

struct product {
    const struct sw_bench_products *products;
    const struct sw_gemm *shape;
};

static sw_status multiply(void *context) {
    const struct product *product = context;
    void *const *at = product->products->operand;
    return sw_gemm(product->products->stream, product->shape, at[A], at[B], product->shape->bias ? at[BIAS] : NULL,
                   at[C], at[SCRATCH]);
}

sw_status sw_bench_product_time(struct sw_bench_products *products, const struct sw_gemm *shape, double *out_s) {
    return sw_bench_time(products, multiply, &(struct product){.products = products, .shape = shape}, out_s);
}

sw_status sw_bench_products_rate(struct sw_bench_products *products, const struct sw_model_product *all, int count,
                                 double *out_flops_per_s) {
    double seconds = 0.0, flops = 0.0;
    for (int i = 0; i < count; i++) {
        double least_s = INFINITY;
        for (int round = -1; round < ROUNDS; round++) {
            double once_s;
            SW_TRY(sw_bench_product_time(products, &all[i].shape, &once_s));
            least_s = round < 0 ? least_s : fmin(least_s, once_s);
        }
        seconds += least_s * (double)all[i].times;
        flops += sw_gemm_flops(&all[i].shape) * (double)all[i].times;
    }
    *out_flops_per_s = flops / seconds;
    return SW_OK;
}

struct sw_onednn_product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[OPERANDS];
    struct sw_arena *arena; /* holds all operands */
    bool bias;
};

static sw_status check(dnnl_status_t status) {
    if (status == dnnl_success)
        return SW_OK;
    if (status == dnnl_unimplemented)
        return sw_fail(SW_ERR_UNSUPPORTED, "oneDNN has no such product on this CPU");
    return sw_fail(SW_ERR_INTERNAL, "oneDNN refused a call (its status %d)", status);
}

static dnnl_data_type_t data_type(sw_dtype type) {
    switch (type) {
    case SW_F32: return dnnl_f32;
    case SW_BF16: return dnnl_bf16;
    default: return dnnl_f16;
    }
}

static sw_status describe(int64_t rows, int64_t cols, bool transposed, bool own_layout, sw_dtype type,
                          sw_onednn_layout *out) {
    return check(own_layout ? sw_onednn_layout_by_tag(rows, cols, data_type(type), dnnl_format_tag_any, out)
                            : sw_onednn_layout_by_strides(rows, cols, data_type(type), transposed ? 1 : cols,
                                                          transposed ? rows : 1, out));
}

static sw_status make_primitive_desc(struct sw_onednn_product *p, const struct sw_gemm *shape, bool own_layouts,
                                     dnnl_primitive_desc_t *out) {
    sw_onednn_layout layout[SCRATCH] = {NULL};
    sw_status status = SW_OK;
    SW_TRY_GOTO(describe(shape->m, shape->k, shape->transpose_a, own_layouts, shape->in, &layout[A]), out);
    SW_TRY_GOTO(describe(shape->k, shape->n, shape->transpose_b, own_layouts, shape->in, &layout[B]), out);
    if (shape->bias)
        SW_TRY_GOTO(describe(1, shape->n, false, false, shape->in, &layout[BIAS]), out);
    SW_TRY_GOTO(describe(shape->m, shape->n, false, own_layouts, shape->out, &layout[C]), out);
    status = check(sw_onednn_product(p->engine, layout[A], layout[B], layout[BIAS], layout[C], shape->accumulate, out));
out:
    for (int i = 0; i < SCRATCH; i++)
        sw_onednn_layout_destroy(layout[i]);
    return status;
}

/* Takes operands in an arena, as the engine's are, so that huge pages favour nobody. */
static sw_status make_memory(struct sw_onednn_product *p, sw_dtype type, const_dnnl_primitive_desc_t desc) {
    const sw_onednn_const_layout layout[OPERANDS] = {
        [A] = dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0),
        [B] = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0),
        [BIAS] = p->bias ? dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 1) : NULL,
        [C] = dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0),
        [SCRATCH] = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)};
    int64_t bytes[OPERANDS] = {0}, all_bytes = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (layout[i] != NULL)
            bytes[i] = (int64_t)dnnl_memory_desc_get_size(layout[i]);
        all_bytes += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    }
    SW_TRY(sw_arena_create("oneDNN", all_bytes, false, NULL, &p->arena));
    for (int i = 0; i < OPERANDS; i++) {
        void *data;
        if (layout[i] == NULL)
            continue;
        SW_TRY(sw_arena_take(p->arena, bytes[i], &data));
        SW_TRY(fill_host(type, data, bytes[i]));
        SW_TRY(check(dnnl_memory_create(&p->memory[i], layout[i], p->engine, data)));
    }
    return SW_OK;
}

static sw_status make(struct sw_onednn_product *p, const struct sw_gemm *shape, bool own_layouts) {
    dnnl_primitive_desc_t desc = NULL;
    sw_status status = SW_OK;
    SW_TRY(check(dnnl_engine_create(&p->engine, dnnl_cpu, 0)));
    SW_TRY(check(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags)));
    SW_TRY(make_primitive_desc(p, shape, own_layouts, &desc));
    SW_TRY_GOTO(check(dnnl_primitive_create(&p->primitive, desc)), out);
    status = make_memory(p, shape->in, desc);
out:
    dnnl_primitive_desc_destroy(desc);
    return status;
}

sw_status sw_onednn_product_open(const struct sw_gemm *shape, bool own_layouts, struct sw_onednn_product **out) {
    *out = NULL;
    struct sw_onednn_product *p = calloc(1, sizeof *p);
    if (p == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a matrix product");
    p->bias = shape->bias;
    const sw_status status = make(p, shape, own_layouts);
    if (status == SW_OK)
        *out = p;
    else
        sw_onednn_product_close(p);
    return status;
}

sw_status sw_onednn_product_time(struct sw_onednn_product *p, double *out_s) {
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->memory[A]},
                                         {DNNL_ARG_WEIGHTS, p->memory[B]},
                                         {DNNL_ARG_DST, p->memory[C]},
                                         {DNNL_ARG_SCRATCHPAD, p->memory[SCRATCH]},
                                         {DNNL_ARG_BIAS, p->memory[BIAS]}};
    const int count = (int)(sizeof arguments / sizeof arguments[0]) - (p->bias ? 0 : 1);
    const int64_t start_ns = sw_now_ns();
    SW_TRY(check(dnnl_primitive_execute(p->primitive, p->stream, count, arguments)));
    SW_TRY(check(dnnl_stream_wait(p->stream)));
    *out_s = (double)sw_max_i64(1, sw_now_ns() - start_ns) * 1e-9;
    return SW_OK;
}

void sw_onednn_product_close(struct sw_onednn_product *p) {
    if (p == NULL)
        return;
    for (int i = 0; i < OPERANDS; i++)
        dnnl_memory_destroy(p->memory[i]);
    dnnl_primitive_destroy(p->primitive);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
    sw_arena_destroy(p->arena);
    free(p);
}

/* Our device widens types that oneDNN cannot multiply on this CPU; a direct user of oneDNN would take fp32. */
sw_status sw_bench_choose_bound_type(struct sw_bench_model *m) {
    struct sw_onednn_product *direct;
    const sw_status status = sw_onednn_product_open(&m->product[0].shape, false, &direct);
    sw_onednn_product_close(direct);
    if (status != SW_ERR_UNSUPPORTED || m->type == SW_F32)
        return status;
    sw_error_clear();
    m->bound_type = SW_F32;
    return SW_OK;
}

static sw_status choose_settings(const struct sw_settings *given, struct sw_settings *s) {
    SW_TRY(sw_options_defaults(&sw_bench_step_command, s));
    free(s->model);
    s->model = strdup(given->model);
    s->device = given->device;
    s->threads = given->threads;
    s->precision = given->precision;
    s->micro_batch = given->micro_batch;
    s->seq = given->seq;
    s->tuning.optimizer = given->tuning.optimizer;
    s->json = given->json;
    return s->model != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the settings");
}

sw_status sw_bench_model_open(const struct sw_settings *given, struct sw_bench_model *out) {
    struct sw_job *job = &out->job;
    *out = (struct sw_bench_model){0};
    SW_TRY(choose_settings(given, &out->settings));
    SW_TRY(sw_job_open(&(struct sw_job_spec){.settings = &out->settings, .folder = ".", .unplanned = true}, job));
    out->device = job->devices.compute;
    out->type = out->bound_type = sw_settings_type(job->settings);
    out->count = sw_model_products(job->model, out->product);
    omp_set_dynamic(0);
    omp_set_num_threads(sw_devices_info(&job->devices).threads);
    return SW_OK;
}

void sw_bench_model_close(struct sw_bench_model *model) {
    sw_job_release(&model->job);
    sw_options_release(&sw_bench_step_command, &model->settings);
}

struct sw_gemm sw_bench_bound_shape(const struct sw_bench_model *model, int product) {
    struct sw_gemm shape = model->product[product].shape;
    if (model->bound_type != model->type)
        shape.in = shape.out = model->bound_type;
    return shape;
}

json_t *sw_bench_model_json(const struct sw_bench_model *model, const char *bench, int64_t rounds) {
    const struct sw_settings *s = &model->settings;
    const struct sw_device_info info = sw_devices_info(&model->job.devices);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I}", "bench", bench, "device", info.name, "isa",
                     info.isa, "model", s->model, "precision", sw_dtype_name(model->type), "threads", info.threads,
                     "rounds", (json_int_t)rounds, "micro_batch", (json_int_t)s->micro_batch, "seq",
                     (json_int_t)s->seq);
}

void sw_bench_model_print(const struct sw_bench_model *model, int64_t rounds) {
    const struct sw_settings *s = &model->settings;
    const struct sw_device_info info = sw_devices_info(&model->job.devices);
    printf("%s, micro-batch of %lld x %lld tokens, %s\n", s->model, (long long)s->micro_batch, (long long)s->seq,
           sw_dtype_name(model->type));
    if (info.host_memory)
        printf("%s, %s", info.name, SW_COUNT(info.threads, "thread"));
    else
        fputs(info.model, stdout);
    printf("; medians of %s\n", SW_COUNT(rounds, "round"));
    if (model->bound_type != model->type)
        printf("oneDNN has no %s products on this CPU: ours widens the operands and multiplies in\nfp32; oneDNN is "
               "measured in fp32\n",
               sw_dtype_name(model->type));
}

sw_status sw_bench_check_memory(const char *what, int64_t need_bytes, const char *smaller) {
    struct sw_machine machine;
    char need[SW_SIZE_CHARS], available[SW_SIZE_CHARS];
    SW_TRY(sw_machine_read(&machine));
    if (need_bytes <= machine.available_bytes)
        return SW_OK;
    return sw_fail(SW_ERR_NOMEM, "%s need %s, and %s are available; a smaller %s needs less", what,
                   sw_format_size(need_bytes, need), sw_format_size(machine.available_bytes, available), smaller);
}

enum { RUNS = 5 };

sw_status sw_bench_memory_open(int threads, int64_t area_bytes, struct sw_bench_memory *out) {
    *out = (struct sw_bench_memory){.threads = threads, .area_bytes = area_bytes};
    const int64_t bytes = SW_BENCH_AREAS * sw_round_up(area_bytes, SW_BUFFER_ALIGN_BYTES);
    SW_TRY(sw_arena_create("bench", bytes, false, NULL, &out->arena));
    for (int i = 0; i < SW_BENCH_AREAS; i++) {
        void *area;
        SW_TRY(sw_arena_take(out->arena, area_bytes, &area));
        out->area[i] = area;
        for (int64_t e = 0; e < area_bytes / (int64_t)sizeof(float); e++)
            out->area[i][e] = (float)(e % 1009) * 1e-3f;
    }
    return SW_OK;
}

void sw_bench_memory_close(struct sw_bench_memory *memory) {
    sw_arena_destroy(memory->arena);
}

double sw_bench_rate(void (*loop)(const void *context), const void *context, int64_t bytes) {
    double rate[RUNS];
    for (int run = -1; run < RUNS; run++) {
        const int64_t start_ns = sw_now_ns();
        loop(context);
        if (run >= 0)
            rate[run] = (double)bytes * 1e9 / (double)sw_max_i64(1, sw_now_ns() - start_ns);
    }
    return sw_median(rate, RUNS);
}

struct copies {
    const struct sw_bench_memory *memory;
    int64_t bytes, chunk_bytes;
    int threads;
};

static void copy_together(char *to, const char *from, int64_t bytes, int threads) {
    const int64_t slice_bytes = sw_div_up(bytes, threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t at = 0; at < bytes; at += slice_bytes)
        memcpy(to + at, from + at, (size_t)sw_min_i64(slice_bytes, bytes - at));
}

static void copy_chunks(const void *context) {
    const struct copies *copies = context;
    char *to = (char *)copies->memory->area[0];
    const char *from = (const char *)copies->memory->area[1];
    for (int64_t at = 0; at + copies->chunk_bytes <= copies->bytes; at += copies->chunk_bytes) {
        if (copies->threads == 1)
            memcpy(to + at, from + at, (size_t)copies->chunk_bytes);
        else
            copy_together(to + at, from + at, copies->chunk_bytes, copies->threads);
    }
}

double sw_bench_memcpy(const struct sw_bench_memory *memory, int64_t bytes, int64_t chunk_bytes, int threads) {
    const struct copies copies = {.memory = memory, .bytes = bytes, .chunk_bytes = chunk_bytes, .threads = threads};
    return sw_bench_rate(copy_chunks, &copies, bytes / chunk_bytes * chunk_bytes);
}

/* Tera-operations a second without sparsity, from the data sheets: 16-bit types with fp32 sums, and fp32 outside of the
 * tensor cores. A name may begin another one, so the longer stands first. */
static const struct {
    const char *name; /* a part of what the driver calls it */
    double typed, fp32;
} peaks[] = {
    {"H100 NVL", 835.5, 60.0}, {"H100 PCIe", 756.0, 51.0}, {"H100", 989.4, 66.9},      {"H200 NVL", 835.5, 60.0},
    {"H200", 989.4, 66.9},     {"GH200", 989.4, 66.9},     {"B200", 2250.0, 75.0},     {"A100", 312.0, 19.5},
    {"L40S", 362.0, 91.6},     {"L40", 181.0, 90.5},       {"L4", 121.0, 30.3},        {"A10G", 70.0, 35.0},
    {"A10", 125.0, 31.2},      {"A40", 149.7, 37.4},       {"RTX 5090", 209.5, 104.8}, {"RTX 4090", 165.2, 82.6},
    {"RTX 4080", 97.5, 48.7},  {"RTX 3090", 71.0, 35.6},
};

double sw_peak_flops_per_s(const struct sw_device_info *info, sw_dtype type) {
    for (size_t i = 0; info->model != NULL && i < sizeof peaks / sizeof peaks[0]; i++)
        if (strstr(info->model, peaks[i].name) != NULL)
            return (type == SW_F32 ? peaks[i].fp32 : peaks[i].typed) * 1e12;
    return 0.0;
}
