"""NCCL alone, for `./dev gpu`: one process joins itself and sums some numbers on the GPU, without the program. Prints a
line of JSON: the library and its version, or what is absent; fails where NCCL or the driver does."""

import ctypes
import glob
import json
import os
import site
import struct
import sys

COUNT = 1024
FLOAT, SUM, UNIQUE_ID_BYTES = 7, 0, 128
DRIVER, LIBRARY = "libcuda.so.1", "libnccl.so.2"


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * UNIQUE_ID_BYTES)]


class Failure(Exception):
    pass


def library_paths():
    """Where the loader looks, and the wheel that PyTorch brings."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return [LIBRARY, *(path for folder in folders for path in glob.glob(os.path.join(folder, "nvidia", "nccl", "lib", LIBRARY)))]


def load(paths):
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def check(what, code):
    if code != 0:
        raise Failure(f"{what} failed with {code}")


def join_and_sum(cuda, nccl):
    """Returns NCCL's version, once the sum over the only rank has come back as it was."""
    version, gpu, context, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    comm, unique = ctypes.c_void_p(), UniqueId()
    numbers = struct.pack(f"<{COUNT}f", *range(COUNT))
    back = ctypes.create_string_buffer(len(numbers))
    check("cuInit", cuda.cuInit(0))
    check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(gpu), 0))
    check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu))
    check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    check("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 * len(numbers))))
    out = ctypes.c_uint64(memory.value + len(numbers))
    check("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(memory, numbers, ctypes.c_size_t(len(numbers))))
    check("cuMemsetD8", cuda.cuMemsetD8_v2(out, ctypes.c_ubyte(0), ctypes.c_size_t(len(numbers))))
    check("ncclGetVersion", nccl.ncclGetVersion(ctypes.byref(version)))
    check("ncclGetUniqueId", nccl.ncclGetUniqueId(ctypes.byref(unique)))
    check("ncclCommInitRank", nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0))
    check("ncclAllReduce", nccl.ncclAllReduce(memory, out, ctypes.c_size_t(COUNT), FLOAT, SUM, comm, None))
    check("cuCtxSynchronize", cuda.cuCtxSynchronize())
    check("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(back, out, ctypes.c_size_t(len(numbers))))
    check("ncclCommDestroy", nccl.ncclCommDestroy(comm))
    if back.raw[:len(numbers)] != numbers:
        raise Failure("the sum of one rank's numbers is not these numbers")
    return version.value


def main():
    cuda, nccl = load([DRIVER]), load(library_paths())
    if cuda is None or nccl is None:
        print(json.dumps({"absent": "NVIDIA's driver" if cuda is None else "NCCL"}))
        return 0
    try:
        print(json.dumps({"nccl": join_and_sum(cuda, nccl)}))
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
