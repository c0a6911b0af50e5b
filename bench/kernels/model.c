#include "bench/kernels/model.h"

#include "bench/kernels/onednn.h"
#include "core/machine.h"
#include "core/size.h"

#include <omp.h>
#include <stdio.h>

/* What oneDNN cannot multiply on this CPU, ours widens; a user of oneDNN alone would take fp32. */
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
    return sw_stream_open(out->device, &out->stream);
}

void sw_bench_model_close(struct sw_bench_model *model) {
    if (model->stream != NULL)
        sw_stream_close(model->stream);
    sw_model_destroy(model->model);
    sw_devices_close(&model->devices);
}

struct sw_gemm sw_bench_bound_shape(const struct sw_bench_model *model, int product) {
    struct sw_gemm shape = model->product[product].shape;
    if (model->bound_type != model->type)
        shape.in = shape.out = model->bound_type;
    return shape;
}

void sw_bench_print_bound(const struct sw_bench_model *model) {
    if (model->bound_type != model->type)
        printf("oneDNN has no %s products on this CPU: ours widens the operands and multiplies in fp32; oneDNN is "
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
