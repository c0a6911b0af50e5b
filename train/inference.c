#include "train/inference.h"

#include "core/machine.h"
#include "train/settings.h"

enum { CHUNK_GRAINS = 16, UNIT_SLOTS = 2 };

static sw_status open_device(const struct sw_inference_spec *spec, struct sw_inference *out, sw_dtype *out_type) {
    const int threads = spec->threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)spec->threads;
    SW_TRY(sw_device_open("cpu", threads, &out->device));
    const sw_dtype types[] = {[SW_PRECISION_AUTO] = sw_device_info(out->device).bf16_fast ? SW_BF16 : SW_F32,
                              [SW_PRECISION_BF16] = SW_BF16,
                              [SW_PRECISION_FP16] = SW_F16,
                              [SW_PRECISION_FP32] = SW_F32};
    *out_type = types[spec->precision];
    return SW_OK;
}

/* No budgets are given here: the machine's memory is the limit. */
static sw_status make_plan(struct sw_inference *inference, sw_dtype type) {
    struct sw_machine machine;
    SW_TRY(sw_machine_read(&machine));
    const struct sw_model_bytes bytes = sw_model_bytes(inference->model);
    struct sw_plan_spec spec = {
        .units = sw_model_get_units(inference->model),
        .type = type,
        .micro_batches = 1,
        .group = 1,
        .unit_slots = UNIT_SLOTS,
        .token_bytes = bytes.token,
        .boundary_bytes = bytes.boundary,
        .saved_bytes = bytes.saved,
        .work_bytes = bytes.work,
        .recompute = true,
        .chunk_grains = CHUNK_GRAINS,
        .ring_chunks = 1,
        .budget_bytes = {[SW_DEVICE] = machine.available_bytes, [SW_HOST] = machine.available_bytes},
    };
    SW_TRY(sw_placement_parse("auto", &spec.place));
    SW_TRY(sw_plan_create(&spec, &inference->plan));
    return sw_plan_check(inference->plan);
}

sw_status sw_inference_open(const struct sw_inference_spec *spec, struct sw_inference *out) {
    sw_dtype type;
    SW_TRY(open_device(spec, out, &type));
    const struct sw_model_shape shape = {
        .type = type, .batch = spec->batch, .seq = spec->seq, .tiles = sw_source_tiles(spec->source)};
    SW_TRY(sw_model_create(sw_source_config(spec->source), &shape, out->device, &out->model));
    SW_TRY(make_plan(out, type));
    const struct sw_engine_spec engine = {
        .plan = out->plan, .device = out->device, .host = out->device, .ops = sw_model_ops(out->model)};
    SW_TRY(sw_engine_open(&engine, &out->engine));
    const struct sw_load load = sw_source_load(spec->source);
    return sw_engine_load(out->engine, &load);
}

void sw_inference_close(struct sw_inference *inference) {
    sw_engine_close(inference->engine);
    sw_plan_destroy(inference->plan);
    sw_model_destroy(inference->model);
    if (inference->device != NULL)
        sw_device_close(inference->device);
    *inference = (struct sw_inference){0};
}
