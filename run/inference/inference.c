#include "run/inference/inference.h"

#include "core/log.h"
#include "core/machine.h"
#include "core/size.h"
#include "job/machine/algorithms.h"
#include "job/machine/gpu_verdict.h"
#include "job/settings/settings.h"
#include "offload/engine/scratch.h"

#include <stdlib.h>

enum { CHUNK_GRAINS = 16, UNIT_SLOTS = 2, LEAST_RING_CHUNKS = 2, IO_DEPTH = 32 };
/* Budgets of "auto" as shares of available memory. Beside a GPU, host memory only takes what the GPU cannot hold. */
#define AUTO_DEVICE_SHARE 0.85
#define AUTO_HOST_SHARE 0.1
#define AUTO_GPU_HOST_SHARE 0.8

static sw_status open_devices(const struct sw_inference_options *options, int64_t cores, struct sw_inference *out,
                              sw_dtype *out_type) {
    const int threads = (int)(options->threads == SW_OPTION_AUTO ? cores : options->threads);
    SW_TRY(sw_devices_open((sw_device_choice)options->device, threads, sw_ranks_local_rank(out->ranks), &out->devices));
    SW_TRY(sw_gpu_verdict_require(&out->devices));
    SW_TRY(sw_algorithms_begin(out->devices.compute, &(struct sw_algorithm_record){0}));
    const sw_dtype types[] = {[SW_PRECISION_AUTO] = sw_devices_info(&out->devices).bf16_fast ? SW_BF16 : SW_F32,
                              [SW_PRECISION_BF16] = SW_BF16,
                              [SW_PRECISION_FP16] = SW_F16,
                              [SW_PRECISION_FP32] = SW_F32};
    *out_type = types[options->precision];
    return SW_OK;
}

/* Returns the folders for weights that memory cannot hold. If there are none, memory must hold all. */
static const struct sw_option_list *scratch_of(const struct sw_inference_spec *spec) {
    return spec->options->scratch.count > 0 ? &spec->options->scratch : sw_source_drives(spec->source);
}

static int64_t given_or(int64_t given, double automatic_bytes) {
    return given == SW_OPTION_AUTO ? (int64_t)automatic_bytes : given;
}

static void choose_budgets(const struct sw_inference_options *options, const struct sw_device_info *device,
                           const struct sw_machine *machine, int64_t budget_bytes[SW_TIERS]) {
    const bool gpu = !device->host_memory;
    const double available = (double)machine->available_bytes;
    budget_bytes[SW_DEVICE] =
        given_or(options->device_memory, gpu ? (double)sw_devices_gpu_budget(device) : AUTO_DEVICE_SHARE * available);
    budget_bytes[SW_HOST] = given_or(options->host_memory, (gpu ? AUTO_GPU_HOST_SHARE : AUTO_HOST_SHARE) * available);
}

/* Checks the host memory that the plan takes. A GPU refuses by itself what it has no room for. A budget that the user
 * named may exceed the available memory, but not the limit of a cgroup (job/settings/room.h). */
static sw_status check_memory(const struct sw_inference_options *options, const struct sw_plan *plan,
                              const struct sw_device_info *device, const struct sw_machine *machine) {
    const int64_t need_bytes = plan->tier_bytes[SW_HOST] + (device->host_memory ? plan->tier_bytes[SW_DEVICE] : 0);
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    const bool named =
        options->host_memory != SW_OPTION_AUTO || (device->host_memory && options->device_memory != SW_OPTION_AUTO);
    if (named && need_bytes > machine->available_bytes && need_bytes <= machine->limit.room_bytes) {
        sw_log_info("taking %s of memory, as --device-memory and --host-memory allow, although only %s is available",
                    sw_format_size(need_bytes, need), sw_format_size(machine->available_bytes, have));
        return SW_OK;
    }
    return need_bytes <= machine->available_bytes
               ? SW_OK
               : sw_fail(SW_ERR_BUDGET,
                         "the model takes %s of memory, but this machine has %s available; lower --device-memory and "
                         "--host-memory to that",
                         sw_format_size(need_bytes, need), sw_format_size(machine->available_bytes, have));
}

/* Adds to an error of too small budgets what the memory is for. */
static sw_status explain(sw_status status, const struct sw_inference_spec *spec, const struct sw_model *model) {
    const struct sw_model_bytes bytes = sw_model_bytes(model);
    char text[SW_SIZE_CHARS];
    int64_t cache_bytes = 0;
    for (int64_t u = 0; u < sw_model_get_units(model)->count; u++)
        cache_bytes += bytes.cache[u];
    if (status != SW_ERR_BUDGET)
        return status;
    const bool in_memory = scratch_of(spec)->count == 0;
    if (cache_bytes > 0)
        return sw_fail_while(status, "keeping %s of keys and values of a text of %lld tokens%s",
                             sw_format_size(cache_bytes, text), (long long)spec->context,
                             in_memory ? ", and all weights in memory, as without --scratch FOLDER" : "");
    return in_memory ? sw_fail_while(status, "keeping all weights in memory, as without --scratch FOLDER") : status;
}

static int tensor_ranks_of(const struct sw_inference_spec *spec) {
    return spec->tensor_ranks > 1 ? spec->tensor_ranks : 1;
}

static sw_status make_plan(const struct sw_inference_spec *spec, sw_dtype type, struct sw_inference *inference) {
    const struct sw_device_info device = sw_devices_info(&inference->devices);
    const int tensor_ranks = tensor_ranks_of(spec);
    struct sw_machine machine;
    SW_TRY(sw_machine_read(&machine));
    machine.available_bytes /= sw_ranks_local_count(spec->ranks);
    const struct sw_model_bytes bytes = sw_model_bytes(inference->model);
    struct sw_plan_spec plan = {
        .units = sw_model_get_units(inference->model),
        .type = type,
        .ranks = sw_ranks_count(spec->ranks) / tensor_ranks,
        .rank = sw_ranks_rank(spec->ranks) / tensor_ranks,
        .scratch_store = scratch_of(spec)->count > 0,
        .micro_batches = 1,
        .group = 1,
        .unit_slots = UNIT_SLOTS,
        .token_bytes = bytes.token,
        .output_bytes = bytes.output,
        .saved_bytes = bytes.saved,
        .derived_bytes = bytes.derived,
        .continues = bytes.continues,
        .cache_bytes = bytes.cache,
        .work_bytes = bytes.work,
        .recompute = SW_RECOMPUTE_UNIT,
        .chunk_grains = CHUNK_GRAINS,
        .ring_chunks = LEAST_RING_CHUNKS,
        .ring_auto = true,
    };
    if (tensor_ranks > 1)
        plan.tensor = (struct sw_plan_tensor){.ranks = tensor_ranks,
                                              .rank = sw_ranks_rank(spec->ranks) % tensor_ranks,
                                              .rows = bytes.rows,
                                              .softmax_bytes = bytes.softmax};
    choose_budgets(spec->options, &device, &machine, plan.budget_bytes);
    SW_TRY(sw_placement_parse("auto", &plan.place));
    SW_TRY(explain(sw_plan_create(&plan, &inference->plan), spec, inference->model));
    SW_TRY(sw_plan_check(inference->plan));
    return check_memory(spec->options, inference->plan, &device, &machine);
}

/* Makes the store for weights that memory cannot hold. Its files have no name, so that nothing is left of them however
 * the process ends. A store must hold at least one grain; the weights are the scratch area behind it. */
static sw_status make_store(const struct sw_inference_spec *inferred, struct sw_inference *inference) {
    const struct sw_option_list *folders = scratch_of(inferred);
    const struct sw_plan *plan = inference->plan;
    const int64_t bytes = plan->tier_bytes[SW_NVME];
    char size[SW_SIZE_CHARS];
    if (bytes == 0)
        return SW_OK;
    int64_t *grains = calloc((size_t)plan->spec.units->count, sizeof *grains);
    if (grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the layout of the weights");
    struct sw_scratch scratch;
    sw_status status = sw_scratch_of(plan, &scratch);
    grains[0] = 1;
    const struct sw_store_spec spec = {.directories = (const char *const *)folders->items,
                                       .directory_count = folders->count,
                                       .unit_grains = grains,
                                       .unit_count = plan->spec.units->count,
                                       .scratch = scratch.kind,
                                       .scratch_count = scratch.count,
                                       .allow_buffered = inferred->options->allow_buffered,
                                       .one_generation = true,
                                       .unnamed = true};
    if (status == SW_OK)
        status = sw_store_create(&spec, NULL, NULL, &inference->store);
    sw_scratch_release(&scratch);
    free(grains);
    if (status == SW_OK)
        sw_log_info("memory cannot hold %s of the weights: every pass reads them from a copy in %s",
                    sw_format_size(bytes, size), folders->items[0]);
    return status;
}

/* Makes the model and its plan, with nothing in memory yet. */
static sw_status make_model(const struct sw_inference_spec *spec, sw_dtype type, struct sw_inference *out) {
    const int tensor_ranks = tensor_ranks_of(spec);
    if (tensor_ranks > 1)
        SW_TRY(sw_source_cut(spec->source, tensor_ranks, sw_ranks_rank(spec->ranks) % tensor_ranks));
    const struct sw_model_shape shape = {.type = type,
                                         .batch = spec->batch,
                                         .seq = spec->seq,
                                         .tiles = sw_source_tiles(spec->source),
                                         .tensor_ranks = tensor_ranks,
                                         .tensor_rank = sw_ranks_rank(spec->ranks) % tensor_ranks,
                                         .optimizer = sw_source_units(spec->source)->optimizer,
                                         .documents = spec->documents,
                                         .context = spec->context,
                                         .forward_only = true};
    SW_TRY(sw_model_create(sw_source_config(spec->source), &shape, out->devices.compute, &out->model));
    sw_algorithms_keep(out->devices.compute);
    SW_TRY(make_plan(spec, type, out));
    return make_store(spec, out);
}

static sw_status open_engine(const struct sw_inference_spec *spec, struct sw_inference *out) {
    const struct sw_engine_spec engine = {.plan = out->plan,
                                          .device = out->devices.compute,
                                          .host = out->devices.host,
                                          .store = out->store,
                                          .io_depth = IO_DEPTH,
                                          .ops = sw_model_ops(out->model),
                                          .comm = sw_ranks_comm(spec->ranks),
                                          .comm_stream = sw_ranks_stream(spec->ranks),
                                          .watch = sw_ranks_watch(spec->ranks)};
    SW_TRY(sw_engine_open(&engine, &out->engine));
    const struct sw_load load = sw_source_load(spec->source);
    return sw_engine_load(out->engine, &load);
}

sw_status sw_inference_open(const struct sw_inference_spec *spec, struct sw_inference *out) {
    struct sw_ranks *ranks = spec->ranks;
    int64_t cores = sw_machine_cores();
    sw_dtype type = SW_F32;
    out->ranks = ranks;
    if (sw_ranks_count(ranks) > 1)
        SW_TRY(sw_ranks_cores(ranks, &cores));
    SW_TRY(sw_ranks_agree_on_error(ranks, open_devices(spec->options, cores, out, &type)));
    SW_TRY(sw_ranks_use_gpu(ranks, &out->devices));
    SW_TRY(sw_ranks_agree_on_error(ranks, make_model(spec, type, out)));
    SW_TRY(sw_ranks_agree_on_error(ranks, open_engine(spec, out)));
    sw_ranks_relax_timeout(ranks, false);
    return SW_OK;
}

void sw_inference_close(struct sw_inference *inference) {
    sw_engine_close(inference->engine);
    if (inference->store != NULL)
        sw_store_close(inference->store);
    sw_plan_destroy(inference->plan);
    sw_model_destroy(inference->model);
    if (!sw_ranks_hold(inference->ranks, &inference->devices))
        sw_devices_close(&inference->devices);
    *inference = (struct sw_inference){0};
}
