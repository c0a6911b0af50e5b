/* The functions of CUDA's driver that the emulated GPU has: those that the library loads, and memory for tests. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_DRIVER_H
#define SW_TESTS_EQUIPMENT_CUDA_DRIVER_H

#include "library/cuda_driver.h"

CUresult cuInit(unsigned flags);
CUresult cuGetErrorName(CUresult error, const char **out);
CUresult cuGetErrorString(CUresult error, const char **out);
CUresult cuDeviceGetCount(int *out);
CUresult cuDeviceGet(CUdevice *out, int number);
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *out);
CUresult cuStreamCreate(CUstream *out, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent *out, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *memory);
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr memory);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr pointer);
CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device);
CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *asked,
                                       CUmemAllocationGranularity_flags flags);
CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr address,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *asked,
                     unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count);

#endif
