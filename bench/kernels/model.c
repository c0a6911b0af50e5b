#include "bench/kernels/model.h"

#include "bench/kernels/onednn.h"
#include "core/machine.h"
#include "core/number.h"
#include "core/size.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ours widens types that oneDNN cannot multiply on this CPU; a user of oneDNN alone would take fp32. */
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

sw_status sw_bench_check_memory(const char *what, int64_t need_bytes) {
    struct sw_machine machine;
    char need[SW_SIZE_CHARS], available[SW_SIZE_CHARS];
    SW_TRY(sw_machine_read(&machine));
    if (need_bytes <= machine.available_bytes)
        return SW_OK;
    return sw_fail(SW_ERR_NOMEM, "%s need %s, and %s are available; a smaller --micro-batch, --seq or model needs less",
                   what, sw_format_size(need_bytes, need), sw_format_size(machine.available_bytes, available));
}
