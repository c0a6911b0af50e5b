/* Memory of a device that is not here: the host's side is real, the device's has addresses that nobody may follow. */
#include "kernels/described/described.h"
#include "kernels/ref/ref.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static sw_status open_memory(struct sw_memory *memory) {
    const int protection = memory->side == SW_MEMORY_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    memory->base = mmap(NULL, (size_t)memory->bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory->base != MAP_FAILED)
        return SW_OK;
    memory->base = NULL;
    return sw_fail(SW_ERR_NOMEM, "%s: no addresses for %lld bytes: %s", memory->name, (long long)memory->bytes,
                   strerror(errno));
}

static void close_memory(struct sw_memory *memory) {
    munmap(memory->base, (size_t)memory->bytes);
}

/* Copies over the link are ops of lanes of their own, which the simulator prices. */
static sw_status cross_link(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    (void)stream;
    (void)to;
    (void)from;
    (void)bytes;
    return SW_OK;
}

static sw_status copy_on_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    (void)to;
    (void)from;
    return sw_described_count(stream, 0.0, 1.0, 2.0 * (double)bytes);
}

static sw_status zero(struct sw_stream *stream, void *to, int64_t bytes) {
    (void)to;
    return sw_described_count(stream, 0.0, 1.0, (double)bytes);
}

void sw_described_add_memory(struct sw_device_ops *ops) {
    sw_ref_add_memory(ops);
    ops->open_memory = open_memory;
    ops->close_memory = close_memory;
    ops->copy_to_device = cross_link;
    ops->copy_to_host = cross_link;
    ops->copy_on_device = copy_on_device;
    ops->zero = zero;
}
