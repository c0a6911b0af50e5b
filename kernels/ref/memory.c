#include "kernels/ref/ref.h"

#include <string.h>

static void close_nothing(struct sw_device *device) {
    (void)device;
}

static sw_status copy(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    (void)stream;
    memcpy(to, from, (size_t)bytes);
    return SW_OK;
}

static sw_status zero(struct sw_stream *stream, void *to, int64_t bytes) {
    (void)stream;
    memset(to, 0, (size_t)bytes);
    return SW_OK;
}

/* Every call has finished when it returns. */
static sw_status synchronize(struct sw_stream *stream) {
    (void)stream;
    return SW_OK;
}

void sw_ref_add_memory(struct sw_device_ops *ops) {
    ops->close = close_nothing;
    ops->copy_to_device = copy;
    ops->copy_to_host = copy;
    ops->copy_on_device = copy;
    ops->zero = zero;
    ops->synchronize = synchronize;
}
