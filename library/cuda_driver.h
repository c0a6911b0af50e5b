/* The functions of CUDA's driver that the library calls, declared as NVIDIA's cuda.h does, and loaded when the first of
 * a process's tensors is on a GPU. A driver comes with libcuda.so.1 whatever toolkit is installed, so the library needs
 * none when it is built, and works with whatever CUDA the program that calls it brings. */
#ifndef SW_LIBRARY_CUDA_DRIVER_H
#define SW_LIBRARY_CUDA_DRIVER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Handles of the driver; cudaStream_t and cudaEvent_t of CUDA's runtime are the same. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef int CUdevice, CUresult;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef unsigned CUdevice_attribute, CUmemAllocationGranularity_flags;

/* A place of memory, what is asked of an allocation there, and who may touch a mapping. */
typedef struct {
    int type, id; /* CU_MEM_LOCATION_TYPE_*; number of the device, or of the host's NUMA node */
} CUmemLocation;
typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
} CUmemAllocationProp;
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;
enum { SIZE_OF_CUmemAllocationProp = 32, SIZE_OF_CUmemAccessDesc = 12 };
_Static_assert(sizeof(CUmemAllocationProp) == SIZE_OF_CUmemAllocationProp, "as NVIDIA lays it out");
_Static_assert(sizeof(CUmemAccessDesc) == SIZE_OF_CUmemAccessDesc, "as NVIDIA lays it out");

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_BLOCKING_SYNC = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_MEMHOSTALLOC_PORTABLE = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
};

/* Applies a macro to each function: the member of struct cuda_driver, the driver's name, the arguments. */
#define CUDA_DRIVER_FUNCTIONS(EACH)                                                                                    \
    EACH(init, "cuInit", (unsigned flags))                                                                             \
    EACH(error_name, "cuGetErrorName", (CUresult error, const char **out))                                             \
    EACH(error_string, "cuGetErrorString", (CUresult error, const char **out))                                         \
    EACH(device_count, "cuDeviceGetCount", (int *out))                                                                 \
    EACH(device_get, "cuDeviceGet", (CUdevice * out, int number))                                                      \
    EACH(device_attribute, "cuDeviceGetAttribute", (int *out, CUdevice_attribute attribute, CUdevice device))          \
    EACH(retain, "cuDevicePrimaryCtxRetain", (CUcontext * out, CUdevice device))                                       \
    EACH(release, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                                   \
    EACH(push, "cuCtxPushCurrent_v2", (CUcontext context))                                                             \
    EACH(pop, "cuCtxPopCurrent_v2", (CUcontext * out))                                                                 \
    EACH(stream_create, "cuStreamCreate", (CUstream * out, unsigned flags))                                            \
    EACH(stream_destroy, "cuStreamDestroy_v2", (CUstream stream))                                                      \
    EACH(stream_synchronize, "cuStreamSynchronize", (CUstream stream))                                                 \
    EACH(stream_wait, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))                           \
    EACH(event_create, "cuEventCreate", (CUevent * out, unsigned flags))                                               \
    EACH(event_destroy, "cuEventDestroy_v2", (CUevent event))                                                          \
    EACH(event_record, "cuEventRecord", (CUevent event, CUstream stream))                                              \
    EACH(event_synchronize, "cuEventSynchronize", (CUevent event))                                                     \
    EACH(host_alloc, "cuMemHostAlloc", (void **out, size_t bytes, unsigned flags))                                     \
    EACH(host_free, "cuMemFreeHost", (void *memory))                                                                   \
    EACH(copy_to_host, "cuMemcpyDtoHAsync_v2", (void *to, CUdeviceptr from, size_t bytes, CUstream stream))            \
    EACH(copy_to_device, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))    \
    EACH(pointer_attribute, "cuPointerGetAttribute", (void *out, int attribute, CUdeviceptr pointer))                  \
    EACH(granularity, "cuMemGetAllocationGranularity",                                                                 \
         (size_t * out, const CUmemAllocationProp *asked, CUmemAllocationGranularity_flags flags))                     \
    EACH(reserve, "cuMemAddressReserve",                                                                               \
         (CUdeviceptr * out, size_t bytes, size_t alignment, CUdeviceptr address, unsigned long long flags))           \
    EACH(unreserve, "cuMemAddressFree", (CUdeviceptr at, size_t bytes))                                                \
    EACH(create, "cuMemCreate",                                                                                        \
         (CUmemGenericAllocationHandle * out, size_t bytes, const CUmemAllocationProp *asked,                          \
          unsigned long long flags))                                                                                   \
    EACH(destroy, "cuMemRelease", (CUmemGenericAllocationHandle handle))                                               \
    EACH(map, "cuMemMap",                                                                                              \
         (CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
    EACH(unmap, "cuMemUnmap", (CUdeviceptr at, size_t bytes))                                                          \
    EACH(set_access, "cuMemSetAccess", (CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count))

/* The functions' addresses, valid after cuda_driver_load. */
struct cuda_driver {
#define CUDA_DRIVER_MEMBER(member, name, arguments) CUresult(*member) arguments;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};
extern struct cuda_driver sw_cuda_driver;

/* Loads and starts the driver, once for the process. SW_ERR_UNSUPPORTED: there is none, or no GPU. */
sw_status sw_cuda_driver_load(void);
/* Loads the driver, and returns a GPU by its number, with its primary context, which CUDA's runtime uses. The caller
 * gives the context back by `release`. */
sw_status sw_cuda_driver_choose(int number, CUdevice *device, CUcontext *context);
/* Returns SW_OK, or records the error that came while `doing`. An error of earlier work shows at any later call. */
sw_status sw_cuda_driver_check(CUresult result, const char *doing);
/* Tells whether a result says that nothing of a context is left: the program reset the GPU, or the process ends. */
bool sw_cuda_driver_is_gone(CUresult result);

#endif
