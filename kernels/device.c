/* Opening devices and streams, copies and matrix products: the wrappers that check and dispatch. */
#include "kernels/device.h"

#include "core/ranks/comm.h"
#include "core/size.h"
#include "kernels/device_ops.h"
#include "kernels/products.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static sw_status init_by_name(struct sw_device *device, const char *name, int threads) {
    static const char cpu_prefix[] = "cpu:", cuda_prefix[] = "cuda:";
    if (strcmp(name, "ref") == 0)
        return sw_ref_device_init(device);
    if (strcmp(name, "cpu") == 0)
        return sw_cpu_device_init(device, NULL, threads);
    if (strncmp(name, cpu_prefix, sizeof cpu_prefix - 1) == 0)
        return sw_cpu_device_init(device, name + sizeof cpu_prefix - 1, threads);
    if (strcmp(name, "cuda") == 0)
        return sw_cuda_device_init(device, NULL);
    if (strncmp(name, cuda_prefix, sizeof cuda_prefix - 1) == 0)
        return sw_cuda_device_init(device, name + sizeof cuda_prefix - 1);
    return sw_fail(SW_ERR_UNSUPPORTED, "there is no device named '%s'; 'cpu', 'cuda' and 'ref' are", name);
}

sw_status sw_device_open(const char *name, int threads, struct sw_device **out) {
    assert(name != NULL && out != NULL);
    *out = NULL;
    if (threads < 0)
        return sw_fail(SW_ERR_ARG, "a device cannot use %d threads; 0 means all cores", threads);
    struct sw_device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the device '%s'", name);
    const sw_status status = init_by_name(device, name, threads);
    if (status != SW_OK) {
        free(device);
        return status;
    }
    *out = device;
    return SW_OK;
}

void sw_device_close(struct sw_device *device) {
    if (device == NULL)
        return;
    for (int64_t i = 0; i < device->gemms.count; i++)
        if (!sw_fp8_is_apart(device, &device->gemms.entries[i]->shape))
            device->ops.release_gemm(device, device->gemms.entries[i]);
    sw_gemm_cache_free(&device->gemms);
    device->ops.close(device);
    free(device);
}

struct sw_device_info sw_device_info(const struct sw_device *device) {
    return device->info;
}

sw_status sw_device_use_tf32(struct sw_device *device) {
    assert(device->gemms.count == 0);
    if (device->ops.use_tf32 == NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--precision tf32 is for GPUs, whose tensor cores round fp32; here fp32 is as fast, use that");
    device->ops.use_tf32(device);
    return SW_OK;
}

sw_status sw_device_use_fp8(struct sw_device *device) {
    assert(device->gemms.count == 0);
    return device->ops.check_fp8 == NULL ? SW_OK : device->ops.check_fp8(device);
}

sw_status sw_device_use_warpgroups(struct sw_device *device, bool on) {
    if (on && device->ops.check_warpgroups == NULL)
        return sw_fail(SW_ERR_UNSUPPORTED, "the device %s has no products of warpgroups", device->info.name);
    if (on)
        SW_TRY(device->ops.check_warpgroups(device));
    device->info.warpgroups = on;
    return SW_OK;
}

/* Returns whether two ranges of bytes do not overlap. */
static bool apart(const void *a, const void *b, int64_t bytes) {
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x >= y + (uintptr_t)bytes || y >= x + (uintptr_t)bytes;
}

sw_status sw_copy_to_device(struct sw_stream *stream, void *device_to, const void *host_from, int64_t bytes) {
    assert(bytes >= 0 && (bytes == 0 || (device_to != NULL && host_from != NULL)));
    assert(apart(device_to, host_from, bytes));
    return bytes == 0 ? SW_OK : stream->device->ops.copy_to_device(stream, device_to, host_from, bytes);
}

sw_status sw_copy_to_host(struct sw_stream *stream, void *host_to, const void *device_from, int64_t bytes) {
    assert(bytes >= 0 && (bytes == 0 || (host_to != NULL && device_from != NULL)));
    assert(apart(host_to, device_from, bytes));
    return bytes == 0 ? SW_OK : stream->device->ops.copy_to_host(stream, host_to, device_from, bytes);
}

sw_status sw_copy_on_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    assert(bytes >= 0 && (bytes == 0 || (to != NULL && from != NULL)));
    assert(apart(to, from, bytes));
    return bytes == 0 ? SW_OK : stream->device->ops.copy_on_device(stream, to, from, bytes);
}

sw_status sw_zero(struct sw_stream *stream, void *to, int64_t bytes) {
    assert(bytes >= 0 && (bytes == 0 || to != NULL));
    return bytes == 0 ? SW_OK : stream->device->ops.zero(stream, to, bytes);
}

static void check_gemm(const struct sw_gemm *shape) {
    assert(shape->m > 0 && shape->n > 0 && shape->k > 0);
    assert(!shape->bias || shape->out == shape->in);
    assert(!shape->accumulate || (!shape->bias && !shape->addend));
    assert(shape->out == shape->in || shape->out == SW_F32);
    assert(sw_gemm_a_stride(shape) >= sw_gemm_a_cols(shape));
    assert(sw_gemm_c_stride(shape) >= shape->n);
    assert(!shape->addend || sw_gemm_c_stride(shape) == shape->n);
    assert((shape->a_as == SW_FP8_NONE) == (shape->b_as == SW_FP8_NONE));
    assert(shape->a_as == SW_FP8_NONE || (shape->in != SW_F32 && sw_gemm_a_stride(shape) == sw_gemm_a_cols(shape)));
    (void)shape;
}

/* Libraries count rows and columns in 32 bits, and some divide by a wrapped count. */
static sw_status check_sides(const struct sw_gemm *shape) {
    if (shape->m <= SW_GEMM_MOST_SIDE && shape->n <= SW_GEMM_MOST_SIDE && shape->k <= SW_GEMM_MOST_SIDE)
        return SW_OK;
    return sw_fail(
        SW_ERR_UNSUPPORTED,
        "a matrix product of %lld x %lld x %lld is too large, no side may exceed %lld: a smaller micro-batch "
        "or sequence has fewer rows",
        (long long)shape->m, (long long)shape->n, (long long)shape->k, (long long)SW_GEMM_MOST_SIDE);
}

/* Prepares the product of rounded operands that replaces one in 8 bits. */
static sw_status prepare_rounded(struct sw_device *device, struct sw_gemm_entry *entry) {
    const struct sw_gemm rounded = sw_fp8_rounded(&entry->shape);
    int64_t rounded_bytes;
    SW_TRY(sw_device_prepare_gemm(device, &rounded, &rounded_bytes));
    entry->scratch_bytes = sw_fp8_scratch_bytes(&entry->shape, rounded_bytes);
    return SW_OK;
}

sw_status sw_device_prepare_gemm(struct sw_device *device, const struct sw_gemm *shape, int64_t *out_scratch_bytes) {
    assert(device != NULL && shape != NULL && out_scratch_bytes != NULL);
    check_gemm(shape);
    SW_TRY(check_sides(shape));
    struct sw_gemm_entry *entry = sw_gemm_cache_find(&device->gemms, shape);
    if (entry == NULL) {
        SW_TRY(sw_gemm_cache_add(&device->gemms, shape, &entry));
        const sw_status status =
            sw_fp8_is_apart(device, shape) ? prepare_rounded(device, entry) : device->ops.prepare_gemm(device, entry);
        if (status != SW_OK) {
            sw_gemm_cache_remove(&device->gemms, entry);
            return status;
        }
        entry->scratch_bytes = sw_round_up(entry->scratch_bytes, SW_BUFFER_ALIGN_BYTES);
    }
    *out_scratch_bytes = entry->scratch_bytes;
    return SW_OK;
}

sw_status sw_gemm_add(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    assert(stream != NULL && shape != NULL && a != NULL && b != NULL && c != NULL);
    assert(shape->bias == (bias != NULL) && shape->addend == (addend != NULL));
    assert(addend == NULL || apart(addend, c, shape->m * shape->n * sw_dtype_bytes(shape->out)));
    struct sw_gemm_entry *entry = sw_gemm_cache_find(&stream->device->gemms, shape);
    if (entry == NULL)
        return sw_fail(SW_ERR_INTERNAL, "a matrix product of %lld x %lld x %lld was not prepared before the first step",
                       (long long)shape->m, (long long)shape->n, (long long)shape->k);
    assert(entry->scratch_bytes == 0 || (scratch != NULL && (uintptr_t)scratch % SW_BUFFER_ALIGN_BYTES == 0));
    const struct sw_gemm_operands at = {.a = a, .b = b, .bias = bias, .addend = addend, .c = c, .scratch = scratch};
    const sw_status status = sw_fp8_is_apart(stream->device, shape)
                                 ? sw_fp8_multiply(stream, entry, &at)
                                 : stream->device->ops.gemm(stream, entry, a, b, bias, addend, c, scratch);
    if (stream->first_error == SW_OK)
        stream->first_error = status;
    return status;
}

sw_status sw_gemm(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b, const void *bias,
                  void *c, void *scratch) {
    return sw_gemm_add(stream, shape, a, b, bias, NULL, c, scratch);
}

/* Memory, streams and events: the wrappers that make the objects and dispatch. */

sw_status sw_memory_open(struct sw_device *device, const char *name, sw_memory_side side, int64_t bytes,
                         struct sw_memory **out) {
    assert(device != NULL && bytes >= 0 && out != NULL);
    *out = NULL;
    struct sw_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the %s tier's handle", name);
    *memory = (struct sw_memory){.device = device,
                                 .name = name,
                                 .side = side,
                                 .bytes = sw_round_up(sw_max_i64(bytes, 1), SW_BUFFER_ALIGN_BYTES)};
    const sw_status status = device->ops.open_memory(memory);
    if (status != SW_OK) {
        free(memory);
        return status;
    }
    *out = memory;
    return SW_OK;
}

void *sw_memory_base(const struct sw_memory *memory) {
    return memory->base;
}

int64_t sw_memory_bytes(const struct sw_memory *memory) {
    return memory->bytes;
}

void sw_memory_close(struct sw_memory *memory) {
    if (memory == NULL)
        return;
    memory->device->ops.close_memory(memory);
    free(memory);
}

sw_status sw_stream_open(struct sw_device *device, struct sw_stream **out) {
    assert(device != NULL && out != NULL);
    *out = NULL;
    struct sw_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    stream->device = device;
    const sw_status status = device->ops.open_stream(stream);
    if (status != SW_OK) {
        free(stream);
        return status;
    }
    *out = stream;
    return SW_OK;
}

void sw_stream_close(struct sw_stream *stream) {
    if (stream == NULL)
        return;
    stream->device->ops.close_stream(stream);
    free(stream);
}

sw_status sw_stream_synchronize(struct sw_stream *stream) {
    const sw_status status = stream->device->ops.synchronize(stream);
    return stream->first_error != SW_OK ? stream->first_error : status;
}

sw_status sw_event_open(struct sw_device *device, struct sw_event **out) {
    assert(device != NULL && out != NULL);
    *out = NULL;
    struct sw_event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an event");
    event->device = device;
    const sw_status status = device->ops.open_event(event);
    if (status != SW_OK) {
        free(event);
        return status;
    }
    *out = event;
    return SW_OK;
}

void sw_event_close(struct sw_event *event) {
    if (event == NULL)
        return;
    event->device->ops.close_event(event);
    free(event);
}

sw_status sw_event_record(struct sw_event *event, struct sw_stream *stream) {
    assert(event->device == stream->device);
    return event->device->ops.record_event(event, stream);
}

sw_status sw_event_wait(struct sw_event *event) {
    return event->device->ops.wait_event(event);
}

sw_status sw_event_reached(struct sw_event *event, bool *out_reached) {
    assert(out_reached != NULL);
    return event->device->ops.event_reached(event, out_reached);
}

sw_status sw_stream_wait(struct sw_stream *stream, struct sw_event *event) {
    assert(event->device == stream->device);
    return stream->device->ops.stream_wait(stream, event);
}

sw_status sw_event_elapsed_ns(const struct sw_event *from, const struct sw_event *to, int64_t *out_ns) {
    assert(from->device == to->device && out_ns != NULL);
    return from->device->ops.elapsed_ns(from, to, out_ns);
}

/* The device functions by which ranks exchange a GPU's memory. */

struct parts {
    struct sw_stream *stream;
    struct sw_event *events[SW_COMM_REQUESTS];
};

static sw_status enter(void *context) {
    const struct parts *parts = context;
    return parts->stream->device->ops.use(parts->stream->device);
}

static sw_status sum(void *context, const struct sw_comm_sum *sum) {
    const struct parts *parts = context;
    return sw_device_run(parts->stream, SW_DEVICE_RANK_SUM, sum);
}

static sw_status copy(void *context, void *to, const void *from, int64_t bytes) {
    const struct parts *parts = context;
    return sw_copy_on_device(parts->stream, to, from, bytes);
}

static sw_status mark(void *context, int number) {
    const struct parts *parts = context;
    return sw_event_record(parts->events[number], parts->stream);
}

static sw_status reached(void *context, int number, bool *out_reached) {
    const struct parts *parts = context;
    return sw_event_reached(parts->events[number], out_reached);
}

sw_status sw_device_comm_open(struct sw_stream *stream, struct sw_comm_device *out) {
    assert(stream != NULL && out != NULL && !stream->device->info.host_memory);
    struct parts *parts = calloc(1, sizeof *parts);
    if (parts == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the ranks' work on the GPU");
    parts->stream = stream;
    *out = (struct sw_comm_device){.context = parts,
                                   .stream = stream->backend,
                                   .enter = enter,
                                   .sum = sum,
                                   .copy = copy,
                                   .mark = mark,
                                   .reached = reached};
    sw_status status;
    for (int i = 0; i < SW_COMM_REQUESTS; i++)
        SW_TRY_GOTO(sw_event_open(stream->device, &parts->events[i]), failed);
    return SW_OK;
failed:
    sw_device_comm_close(out);
    return status;
}

void sw_device_comm_close(struct sw_comm_device *device) {
    struct parts *parts = device->context;
    if (parts == NULL)
        return;
    for (int i = 0; i < SW_COMM_REQUESTS; i++)
        sw_event_close(parts->events[i]);
    free(parts);
    *device = (struct sw_comm_device){0};
}
