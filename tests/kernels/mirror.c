#include "tests/kernels/mirror.h"

#include "core/ranks/comm.h"
#include "core/size.h"
#include "kernels/device_ops.h"
#include "kernels/muon.h"
#include "tests/kernels/support.h"

#include <string.h>

/* The bytes of one call. The largest are the operands and the workspace of a matrix product. */
#define MIRROR_BYTES (96 * SW_MIB)
enum { MOST_BUFFERS = 16, MOST_ARGS_BYTES = 256 };

static struct {
    struct sw_device_ops real;
    struct sw_memory *memory;
    int64_t used_bytes;
    int count;
    struct {
        char *host, *device;
        int64_t bytes;
    } brought[MOST_BUFFERS];
} mirror;

static int find(const char *host) {
    int i = 0;
    while (i < mirror.count && mirror.brought[i].host != host)
        i++;
    return i;
}

/* Returns the device's copy of what `at` points to. A buffer that a call names twice is brought once. */
static void *bring(struct sw_stream *stream, const void *at) {
    char *base = NULL;
    int64_t bytes = 0;
    if (at == NULL)
        return NULL;
    if (!buffer_region(at, &base, &bytes))
        fail_msg("an op was given memory that is in no buffer of the test");
    const int i = find(base);
    if (i == mirror.count) {
        assert_true(mirror.count < MOST_BUFFERS && mirror.used_bytes + bytes <= MIRROR_BYTES);
        mirror.brought[i].host = base;
        mirror.brought[i].device = (char *)sw_memory_base(mirror.memory) + mirror.used_bytes;
        mirror.brought[i].bytes = bytes;
        mirror.used_bytes += sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
        mirror.count++;
        assert_ok(sw_copy_to_device(stream, mirror.brought[i].device, base, bytes));
    }
    return mirror.brought[i].device + ((const char *)at - base);
}

/* Ends a call whose status is given: takes the buffers back, and returns the status, or the stream's. */
static sw_status take_back(struct sw_stream *stream, sw_status status) {
    for (int i = 0; i < mirror.count; i++)
        assert_ok(sw_copy_to_host(stream, mirror.brought[i].host, mirror.brought[i].device, mirror.brought[i].bytes));
    mirror.count = 0;
    mirror.used_bytes = 0;
    const sw_status ended = stream->device->ops.synchronize(stream);
    return status != SW_OK ? status : ended;
}

#define ON(at) bring(stream, at)

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    return take_back(stream, mirror.real.gemm(stream, entry, ON(a), ON(b), ON(bias), ON(addend), ON(c), ON(scratch)));
}

/* Runs an op on the copies of its operands. Documents are an operand within the shape. */
static sw_status run(struct sw_stream *stream, sw_device_op op, const void *args) {
    union {
        struct sw_attention_forward attention_forward;
        struct sw_attention_backward attention_backward;
        char bytes[MOST_ARGS_BYTES];
    } there;
    struct sw_attention shape;
    const struct sw_device_op_row *row = sw_device_op_row(op);
    assert_true(row->args_bytes <= sizeof there);
    memcpy(&there, args, row->args_bytes);
    for (size_t i = 0; i < row->operands; i++) {
        void *operand;
        memcpy(&operand, there.bytes + row->operands_at + i * sizeof operand, sizeof operand);
        operand = bring(stream, operand);
        memcpy(there.bytes + row->operands_at + i * sizeof operand, &operand, sizeof operand);
    }
    if (op == SW_DEVICE_ATTENTION_FORWARD || op == SW_DEVICE_ATTENTION_BACKWARD) {
        const struct sw_attention **at =
            op == SW_DEVICE_ATTENTION_FORWARD ? &there.attention_forward.shape : &there.attention_backward.shape;
        shape = **at;
        shape.document_start = bring(stream, shape.document_start);
        *at = &shape;
    }
    return take_back(stream, mirror.real.run(stream, op, &there));
}

/* The update multiplies by itself, so that the device has its own functions meanwhile. */
static sw_status update_muon(struct sw_stream *stream, const struct sw_update_muon *args) {
    struct sw_update_muon there = *args;
    const struct sw_device_ops mirrors = stream->device->ops;
    there.grads = ON(args->grads);
    there.records = ON(args->records);
    there.weights = ON(args->weights);
    there.scratch = ON(args->scratch);
    stream->device->ops = mirror.real;
    const sw_status status = mirror.real.update_muon(stream, &there);
    stream->device->ops = mirrors;
    return take_back(stream, status);
}

/* An op that is not here would be given host memory: a test of it ends at once. */
static struct sw_device_ops mirrored(const struct sw_device_ops *real) {
    return (struct sw_device_ops){
        .close = real->close,
        .open_memory = real->open_memory,
        .close_memory = real->close_memory,
        .open_stream = real->open_stream,
        .close_stream = real->close_stream,
        .open_event = real->open_event,
        .close_event = real->close_event,
        .record_event = real->record_event,
        .wait_event = real->wait_event,
        .event_reached = real->event_reached,
        .stream_wait = real->stream_wait,
        .elapsed_ns = real->elapsed_ns,
        .copy_to_device = real->copy_to_device,
        .copy_to_host = real->copy_to_host,
        .copy_on_device = real->copy_on_device,
        .zero = real->zero,
        .synchronize = real->synchronize,
        .check_warpgroups = real->check_warpgroups,
        .prepare_gemm = real->prepare_gemm,
        .release_gemm = real->release_gemm,
        .prepare_grouped_gemm = real->prepare_grouped_gemm,
        .attention_scratch_bytes = real->attention_scratch_bytes,
        .gemm = gemm,
        .update_muon = update_muon,
        .run = run,
    };
}

void mirror_begin(struct sw_device *device) {
    mirror.real = device->ops;
    assert_ok(sw_memory_open(device, "mirror", SW_MEMORY_DEVICE, MIRROR_BYTES, &mirror.memory));
    device->ops = mirrored(&mirror.real);
}

void mirror_end(struct sw_device *device) {
    device->ops = mirror.real;
    sw_memory_close(mirror.memory);
    mirror.memory = NULL;
}
