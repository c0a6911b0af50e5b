/* Addresses apart from memory, as the driver has them: addresses are reserved, memory of a GPU or of the host is taken,
 * and mapped behind them. The host's threads may touch mapped memory, also a GPU's: tests let PyTorch's kernels of the
 * CPU stand for those of a GPU there. An address without a mapping crashes, as it ends a GPU's work. */
#include "tests/equipment/cuda/driver.h"
#include "tests/equipment/cuda/gpu.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { UNIT_BYTES = 2 << 20 }; /* that of NVIDIA's GPUs */

/* Memory: a part of one file. It lives until it is released, and mapped nowhere. */
struct memory {
    off_t at;
    size_t bytes;
    int device; /* -1: the host's */
    bool released;
};

static int file = -1;
static off_t file_bytes;

static void lock(void) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
}

static void unlock(void) {
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    *out = -1; /* there are no NUMA nodes */
    return attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *asked,
                                       CUmemAllocationGranularity_flags flags) {
    (void)asked;
    (void)flags;
    *out = UNIT_BYTES;
    return CUDA_SUCCESS;
}

static bool is_whole(size_t bytes) {
    return bytes > 0 && bytes % UNIT_BYTES == 0;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr address,
                             unsigned long long flags) {
    if (!is_whole(bytes) || alignment > UNIT_BYTES || address != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    char *made = mmap(NULL, bytes + UNIT_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t before = (UNIT_BYTES - (uintptr_t)made % UNIT_BYTES) % UNIT_BYTES;
    if (before > 0)
        munmap(made, before);
    munmap(made + before + bytes, UNIT_BYTES - before);
    *out = (CUdeviceptr)(uintptr_t)(made + before);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
    return munmap((void *)(uintptr_t)at, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Fills new memory with NaN of every type. */
static bool spoil(const struct memory *memory) {
    void *at = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, memory->at);
    if (at == MAP_FAILED)
        return false;
    memset(at, 0xff, memory->bytes);
    munmap(at, memory->bytes);
    return true;
}

static bool take_file(struct memory *memory) {
    lock();
    if (file < 0)
        file = memfd_create("emulated GPU", MFD_CLOEXEC);
    memory->at = file_bytes;
    file_bytes += (off_t)memory->bytes;
    const bool grown = file >= 0 && ftruncate(file, file_bytes) == 0;
    unlock();
    return grown && spoil(memory);
}

static void give_bytes_back(const struct memory *memory) {
    lock();
    sw_emulated_machine.used_bytes -= memory->device >= 0 ? memory->bytes : 0;
    unlock();
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *asked,
                     unsigned long long flags) {
    const bool on_host = asked->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!is_whole(bytes) || flags != 0 || asked->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (on_host ? asked->location.id != 0 : asked->location.type != CU_MEM_LOCATION_TYPE_DEVICE))
        return CUDA_ERROR_INVALID_VALUE;
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct memory){.bytes = bytes, .device = on_host ? -1 : asked->location.id};
    const bool taken = on_host || sw_emulated_take(bytes);
    if (!taken || !take_file(memory)) {
        if (taken)
            give_bytes_back(memory);
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* Frees memory that is released, and mapped nowhere. */
static void end(struct memory *memory) {
    lock();
    bool mapped = false;
    for (const struct sw_emulated_mapping *m = sw_emulated_machine.mappings; m != NULL; m = m->next)
        mapped |= m->memory == memory;
    unlock();
    if (mapped || !memory->released)
        return;
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory->at, (off_t)memory->bytes);
    give_bytes_back(memory);
    free(memory);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct memory *memory = (void *)(uintptr_t)handle;
    memory->released = true;
    end(memory);
    return CUDA_SUCCESS;
}

static bool overlaps(const struct sw_emulated_mapping *mapping, const char *at, size_t bytes) {
    return at < mapping->base + mapping->bytes && mapping->base < at + bytes;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct memory *memory = (void *)(uintptr_t)handle;
    struct sw_emulated_mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mapping = (struct sw_emulated_mapping){
        .base = (char *)(uintptr_t)at, .bytes = bytes, .device = memory->device, .memory = memory};
    bool fits = at % UNIT_BYTES == 0 && bytes == memory->bytes && offset == 0 && flags == 0;
    lock();
    for (const struct sw_emulated_mapping *m = sw_emulated_machine.mappings; m != NULL; m = m->next)
        fits &= !overlaps(m, mapping->base, bytes);
    fits = fits && mmap(mapping->base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, memory->at) == mapping->base;
    if (fits) {
        mapping->next = sw_emulated_machine.mappings;
        sw_emulated_machine.mappings = mapping;
    }
    unlock();
    if (!fits)
        free(mapping);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Takes a mapping that begins at an address out of the list; NULL: there is none. */
static struct sw_emulated_mapping *take_out(const char *at) {
    lock();
    struct sw_emulated_mapping **link = &sw_emulated_machine.mappings;
    while (*link != NULL && (*link)->base != at)
        link = &(*link)->next;
    struct sw_emulated_mapping *found = *link;
    if (found != NULL)
        *link = found->next;
    unlock();
    return found;
}

/* Work that uses the range has ended, or would fail on a GPU. */
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    char *from = (char *)(uintptr_t)at, *const to = from + bytes;
    if (sw_emulated_is_copied(from, bytes))
        sw_emulation_break("memory was unmapped while a copy used it");
    while (from < to) {
        struct sw_emulated_mapping *mapping = take_out(from);
        if (mapping == NULL || mapping->base + mapping->bytes > to)
            return CUDA_ERROR_INVALID_VALUE;
        (void)cudaHostUnregister(mapping->base);
        if (mmap(from, mapping->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
            from)
            return CUDA_ERROR_OUT_OF_MEMORY;
        from += mapping->bytes;
        end(mapping->memory);
        free(mapping);
    }
    return CUDA_SUCCESS;
}

/* Memory that the host may touch is pinned. */
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    void *from = (void *)(uintptr_t)at;
    bool on_host = false;
    for (size_t i = 0; i < count; i++)
        on_host |= access[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!sw_emulated_owns(from, bytes) || (on_host && sw_emulated_device_of(from) >= 0) ||
        mprotect(from, bytes, PROT_READ | PROT_WRITE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return on_host ? (CUresult)cudaHostRegister(from, bytes, 0) : CUDA_SUCCESS;
}
