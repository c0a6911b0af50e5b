#include "tests/equipment/cuda/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096 };

/* The regions of the GPUs' memory: of each its size and its GPU, in a page before it. */
struct region {
    size_t bytes;
    int device;
    struct region *next;
};
static struct region *regions; /* guarded by the machine's mutex */

static void add_region(struct region *region, size_t bytes, int device) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    *region = (struct region){.bytes = bytes, .device = device, .next = regions};
    regions = region;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
}

/* Removes a region and gives its bytes back. */
static void remove_region(struct region *region) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    struct region **link = &regions;
    while (*link != region)
        link = &(*link)->next;
    *link = region->next;
    sw_emulated_machine.used_bytes -= region->bytes;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
}

static bool holds(const char *base, size_t base_bytes, const char *at, size_t bytes) {
    return at >= base && bytes <= base_bytes && at <= base + (base_bytes - bytes);
}

static const struct region *region_of(const void *at, size_t bytes) {
    const struct region *region = regions;
    while (region != NULL && !holds((const char *)region + PAGE_BYTES, region->bytes, at, bytes))
        region = region->next;
    return region;
}

static const struct sw_emulated_mapping *mapping_of(const char *at) {
    const struct sw_emulated_mapping *mapping = sw_emulated_machine.mappings;
    while (mapping != NULL && !holds(mapping->base, mapping->bytes, at, 1))
        mapping = mapping->next;
    return mapping;
}

/* Returns whether mappings that are neighbours hold a range. */
static bool is_mapped(const char *at, size_t bytes) {
    for (const char *const end = at + bytes; at < end;) {
        const struct sw_emulated_mapping *mapping = mapping_of(at);
        if (mapping == NULL)
            return false;
        at = mapping->base + mapping->bytes;
    }
    return true;
}

bool sw_emulated_owns(const void *at, size_t bytes) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    const bool owns = region_of(at, bytes) != NULL || is_mapped(at, bytes);
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return owns;
}

int sw_emulated_device_of(const void *at) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    const struct region *region = region_of(at, 1);
    const struct sw_emulated_mapping *mapping = region == NULL ? mapping_of(at) : NULL;
    const int on_mapping = mapping != NULL ? mapping->device : -1;
    const int device = region != NULL ? region->device : on_mapping;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return device;
}

bool sw_emulated_range(const void *at, const char **out_base, size_t *out_bytes) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    const struct region *region = region_of(at, 1);
    const struct sw_emulated_pinned *pinned = region == NULL ? sw_emulated_machine.pinned : NULL;
    while (pinned != NULL && !holds(pinned->base, pinned->bytes, at, 1))
        pinned = pinned->next;
    *out_base = region != NULL ? (const char *)region + PAGE_BYTES : pinned != NULL ? pinned->base : NULL;
    *out_bytes = region != NULL ? region->bytes : pinned != NULL ? pinned->bytes : 0;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return *out_base != NULL;
}

static size_t mapped_bytes(size_t bytes) {
    const size_t page = PAGE_BYTES;
    return page + (bytes + page - 1) / page * page;
}

bool sw_emulated_take(size_t bytes) {
    struct sw_emulated_machine *machine = &sw_emulated_machine;
    pthread_mutex_lock(&machine->mutex);
    const bool fits = bytes <= machine->gpu.memory_bytes - machine->gpu.held_bytes - machine->used_bytes;
    machine->used_bytes += fits ? bytes : 0;
    if (machine->used_bytes > machine->most_used_bytes)
        machine->most_used_bytes = machine->used_bytes;
    pthread_mutex_unlock(&machine->mutex);
    return fits;
}

size_t sw_emulation_device_bytes(bool most) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    const size_t bytes = most ? sw_emulated_machine.most_used_bytes : sw_emulated_machine.used_bytes;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return bytes;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    const size_t mapped = mapped_bytes(bytes);
    int device = 0;
    (void)cudaGetDevice(&device);
    if (!sw_emulated_take(bytes))
        return cudaErrorMemoryAllocation;
    char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    add_region((struct region *)(void *)base, bytes, device);
    memset(base + PAGE_BYTES, 0xff, mapped - PAGE_BYTES); /* NaN in every type */
    if (sw_emulated_machine.key >= 0)
        pkey_mprotect(base + PAGE_BYTES, mapped - PAGE_BYTES, PROT_READ | PROT_WRITE, sw_emulated_machine.key);
    *out = base + PAGE_BYTES;
    return sw_emulated_state();
}

/* Waits for the work that the GPU still does by itself, as CUDA's function does. */
cudaError_t cudaFree(void *memory) {
    const cudaError_t error = cudaStreamSynchronize(NULL);
    char *base = (char *)memory - PAGE_BYTES;
    struct region *region = (struct region *)(void *)base;
    const size_t bytes = region->bytes;
    remove_region(region);
    munmap(base, mapped_bytes(bytes));
    return error;
}

/* A copy, or a clearing where from is NULL. */
struct copy {
    void *to, *from;
    int value;
    size_t bytes;
    bool owned; /* from is a copy of what the host had */
    struct copy *next;
};
static struct copy *pending; /* copies that were given to streams and have not run; guarded by the machine's mutex */

/* Takes a copy out of the list, and frees it. */
static void end_copy(struct copy *copy) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    struct copy **link = &pending;
    while (*link != copy)
        link = &(*link)->next;
    *link = copy->next;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    free(copy);
}

static void run_copy(void *argument) {
    const struct copy copy = *(struct copy *)argument;
    if (copy.from == NULL)
        memset(copy.to, copy.value, copy.bytes);
    else
        memcpy(copy.to, copy.from, copy.bytes);
    if (copy.owned)
        free(copy.from);
    end_copy(argument);
}

bool sw_emulated_is_copied(const void *at, size_t bytes) {
    const char *const first = at, *const last = first + bytes;
    bool found = false;
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    for (const struct copy *copy = pending; copy != NULL; copy = copy->next) {
        const char *const to = copy->to, *const from = copy->from;
        found |= to < last && to + copy->bytes > first;
        found |= from != NULL && from < last && from + copy->bytes > first;
    }
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return found;
}

static cudaError_t give_copy(cudaStream_t stream, const struct copy *copy) {
    struct copy *own = malloc(sizeof *own);
    if (own == NULL)
        return cudaErrorMemoryAllocation;
    *own = *copy;
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    own->next = pending;
    pending = own;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    const cudaError_t error = sw_emulated_give(stream, run_copy, own);
    if (error == cudaErrorMemoryAllocation)
        end_copy(own);
    return error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return give_copy(stream, &(struct copy){.to = to, .value = value, .bytes = bytes});
}

/* The host does not wait for it. */
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    const cudaStream_t stream = sw_emulated_default_stream();
    return stream == NULL ? cudaErrorMemoryAllocation : cudaMemsetAsync(to, value, bytes, stream);
}

static bool overlaps(const struct sw_emulated_pinned *p, const char *at, size_t bytes) {
    return at < p->base + p->bytes && p->base < at + bytes;
}

/* The position of a copy's host memory against the registered ranges. */
typedef enum { APART, WITHIN_ONE, ACROSS } pinned_relation;

static pinned_relation relation_to_pinned(const void *host, size_t bytes) {
    const char *at = host;
    pinned_relation found = APART;
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    for (const struct sw_emulated_pinned *p = sw_emulated_machine.pinned; p != NULL && found == APART; p = p->next)
        if (overlaps(p, at, bytes))
            found = at >= p->base && at + bytes <= p->base + p->bytes ? WITHIN_ONE : ACROSS;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return found;
}

/* CUDA refuses a copy that leaves a registered range, and does not promise that it may enter the next. Of memory that
 * is not pinned it takes a copy before it returns, and waits for what it writes there. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    struct copy copy = {.to = to, .from = (void *)(uintptr_t)from, .bytes = bytes};
    const void *host = kind == cudaMemcpyHostToDevice ? from : to;
    const pinned_relation relation = kind == cudaMemcpyDeviceToDevice ? WITHIN_ONE : relation_to_pinned(host, bytes);
    if (relation == ACROSS)
        return cudaErrorInvalidValue;
    if (kind == cudaMemcpyHostToDevice && relation == APART) {
        copy.from = malloc(bytes);
        if (copy.from == NULL)
            return cudaErrorMemoryAllocation;
        memcpy(copy.from, from, bytes);
        copy.owned = true;
    }
    const cudaError_t error = give_copy(stream, &copy);
    if (error == cudaErrorMemoryAllocation && copy.owned)
        free(copy.from);
    if (kind == cudaMemcpyDeviceToHost && relation == APART)
        sw_emulated_wait(stream);
    return error;
}

static cudaError_t register_range(struct sw_emulated_pinned *range) {
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    for (const struct sw_emulated_pinned *p = sw_emulated_machine.pinned; p != NULL; p = p->next)
        if (overlaps(p, range->base, range->bytes))
            error = cudaErrorHostMemoryAlreadyRegistered;
    if (error == cudaSuccess &&
        sw_emulated_machine.pinned_bytes + range->bytes > sw_emulated_machine.gpu.pinnable_bytes)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess) {
        range->next = sw_emulated_machine.pinned;
        sw_emulated_machine.pinned = range;
        sw_emulated_machine.pinned_bytes += range->bytes;
    }
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return error;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    (void)flags;
    struct sw_emulated_pinned *range = calloc(1, sizeof *range);
    if (range == NULL)
        return cudaErrorMemoryAllocation;
    *range = (struct sw_emulated_pinned){.base = memory, .bytes = bytes};
    const cudaError_t error = register_range(range);
    if (error != cudaSuccess)
        free(range);
    return error;
}

cudaError_t cudaHostUnregister(void *memory) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    struct sw_emulated_pinned **at = &sw_emulated_machine.pinned, *found = NULL;
    while (*at != NULL && (*at)->base != memory)
        at = &(*at)->next;
    if (*at != NULL) {
        found = *at;
        *at = found->next;
        sw_emulated_machine.pinned_bytes -= found->bytes;
    }
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    free(found);
    return found == NULL ? cudaErrorHostMemoryNotRegistered : sw_emulated_state();
}

size_t sw_emulation_pinned_bytes(void) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    const size_t bytes = sw_emulated_machine.pinned_bytes;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return bytes;
}
