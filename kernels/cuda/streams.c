/* Streams, events, and what kernels need to know of them. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernel_ops.h"

/* A launch is about the thread's current GPU, as every call is; an error of choosing it shows at the launch. */
cudaStream_t sw_cuda_stream_handle(const struct sw_stream *stream) {
    (void)cudaSetDevice(sw_cuda_of(stream->device)->number);
    return sw_cuda_stream(stream);
}

sw_status sw_cuda_launched(struct sw_stream *stream, const char *op) {
    (void)stream;
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? SW_OK
                                : sw_fail(SW_ERR_DEVICE, "CUDA: %s (%s), while starting %s", cudaGetErrorString(error),
                                          cudaGetErrorName(error), op);
}

/* Opens a stream that does not wait for the default one. */
static sw_status open_stream(struct sw_stream *stream) {
    cudaStream_t opened;
    SW_TRY(sw_cuda_use(stream->device));
    SW_TRY(sw_cuda_check(cudaStreamCreateWithFlags(&opened, cudaStreamNonBlocking), "making a stream"));
    stream->backend = opened;
    return SW_OK;
}

static void close_stream(struct sw_stream *stream) {
    (void)cudaSetDevice(sw_cuda_of(stream->device)->number);
    (void)cudaStreamSynchronize(sw_cuda_stream(stream));
    (void)cudaStreamDestroy(sw_cuda_stream(stream));
}

static sw_status synchronize(struct sw_stream *stream) {
    SW_TRY(sw_cuda_use(stream->device));
    return sw_cuda_check(cudaStreamSynchronize(sw_cuda_stream(stream)), "waiting for the GPU");
}

/* Whoever waits sleeps: the cores are for the update. */
static sw_status open_event(struct sw_event *event) {
    cudaEvent_t opened;
    SW_TRY(sw_cuda_use(event->device));
    SW_TRY(sw_cuda_check(cudaEventCreateWithFlags(&opened, cudaEventBlockingSync), "making an event"));
    event->backend = opened;
    return SW_OK;
}

static void close_event(struct sw_event *event) {
    (void)cudaSetDevice(sw_cuda_of(event->device)->number);
    (void)cudaEventDestroy(event->backend);
}

static sw_status record_event(struct sw_event *event, struct sw_stream *stream) {
    SW_TRY(sw_cuda_use(event->device));
    return sw_cuda_check(cudaEventRecord(event->backend, sw_cuda_stream(stream)), "recording an event");
}

static sw_status wait_event(struct sw_event *event) {
    SW_TRY(sw_cuda_use(event->device));
    return sw_cuda_check(cudaEventSynchronize(event->backend), "waiting for the GPU");
}

static sw_status event_reached(struct sw_event *event, bool *out_reached) {
    SW_TRY(sw_cuda_use(event->device));
    const cudaError_t state = cudaEventQuery(event->backend);
    *out_reached = state == cudaSuccess;
    if (state != cudaErrorNotReady)
        return sw_cuda_check(state, "asking the GPU how far it is");
    cudaGetLastError(); /* cudaErrorNotReady is no error, and would show at the next launch */
    return SW_OK;
}

static sw_status stream_wait(struct sw_stream *stream, struct sw_event *event) {
    SW_TRY(sw_cuda_use(event->device));
    return sw_cuda_check(cudaStreamWaitEvent(sw_cuda_stream(stream), event->backend, cudaEventWaitDefault),
                         "putting streams in order");
}

static sw_status elapsed_ns(const struct sw_event *from, const struct sw_event *to, int64_t *out_ns) {
    float milliseconds;
    SW_TRY(sw_cuda_use(from->device));
    SW_TRY(sw_cuda_check(cudaEventElapsedTime(&milliseconds, from->backend, to->backend), "timing the GPU"));
    *out_ns = (int64_t)((double)milliseconds * 1e6);
    return SW_OK;
}

static sw_status use(const struct sw_device *device) {
    return sw_cuda_use(device);
}

void sw_cuda_add_streams(struct sw_device_ops *ops) {
    ops->use = use;
    ops->open_stream = open_stream;
    ops->close_stream = close_stream;
    ops->synchronize = synchronize;
    ops->open_event = open_event;
    ops->close_event = close_event;
    ops->record_event = record_event;
    ops->wait_event = wait_event;
    ops->event_reached = event_reached;
    ops->stream_wait = stream_wait;
    ops->elapsed_ns = elapsed_ns;
}
