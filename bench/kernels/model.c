#include "bench/kernels/model.h"

#include "bench/kernels/onednn.h"
#include "core/machine.h"
#include "core/number.h"
#include "core/size.h"

#include <omp.h>
#include <stdio.h>

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

sw_status sw_bench_model_open(const struct sw_settings *given, struct sw_bench_model *out) {
    *out = (struct sw_bench_model){.settings = *given};
    out->settings.batch_tokens = SW_OPTION_AUTO;
    SW_TRY(sw_config_load(given->model, &out->config));
    SW_TRY(sw_bench_open_devices(given->device, given->threads, &out->devices));
    out->device = out->devices.compute;
    SW_TRY(sw_settings_prepare_device(&out->settings, out->device));
    const struct sw_device_info info = sw_devices_info(&out->devices);
    SW_TRY(sw_settings_resolve(&out->settings, &out->config, &info));
    out->type = out->bound_type = sw_settings_type(&out->settings);
    const struct sw_model_shape shape = {
        .type = out->type, .batch = out->settings.micro_batch, .seq = out->settings.seq};
    SW_TRY(sw_model_create(&out->config, &shape, out->device, &out->model));
    out->count = sw_model_products(out->model, out->product);
    omp_set_dynamic(0);
    omp_set_num_threads(info.threads);
    return SW_OK;
}

void sw_bench_model_close(struct sw_bench_model *model) {
    sw_model_destroy(model->model);
    sw_devices_close(&model->devices);
}

struct sw_gemm sw_bench_bound_shape(const struct sw_bench_model *model, int product) {
    struct sw_gemm shape = model->product[product].shape;
    if (model->bound_type != model->type)
        shape.in = shape.out = model->bound_type;
    return shape;
}

json_t *sw_bench_model_json(const struct sw_bench_model *model, const char *bench, int64_t rounds) {
    const struct sw_settings *s = &model->settings;
    const struct sw_device_info info = sw_devices_info(&model->devices);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I}", "bench", bench, "device", info.name, "isa",
                     info.isa, "model", s->model, "precision", sw_dtype_name(model->type), "threads", info.threads,
                     "rounds", (json_int_t)rounds, "micro_batch", (json_int_t)s->micro_batch, "seq",
                     (json_int_t)s->seq);
}

void sw_bench_model_print(const struct sw_bench_model *model, int64_t rounds) {
    const struct sw_settings *s = &model->settings;
    const struct sw_device_info info = sw_devices_info(&model->devices);
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
