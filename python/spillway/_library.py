"""Finds and loads libspillway.so, and declares the functions and structs of spillway.h."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

SONAME = "libspillway.so.0"
# The folder of a wheel's libraries, and the file that lists them, those that others need first.
BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
ORDER = os.path.join(BUNDLED, "order.txt")

OK, ERROR_ARGUMENT = 0, -1


# int gather(void *context, void *data, const uint64_t *bounds)
GATHER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_uint64))


class Options(ctypes.Structure):
    """struct spillway_options"""

    _fields_ = [("size", c_size_t), ("store", c_char_p), ("host_memory_bytes", c_uint64), ("state", c_int),
                ("threads", c_int), ("save_every", c_int64), ("accumulate", c_int), ("missing_gradients", c_int),
                ("allow_buffered", c_int), ("rank", c_int), ("ranks", c_int), ("gather", GATHER),
                ("gather_context", c_void_p), ("sharded", c_int)]


class Tensor(ctypes.Structure):
    """struct spillway_tensor"""

    _fields_ = [("size", c_size_t), ("name", c_char_p), ("type", c_int), ("count", c_int64), ("weights", c_void_p),
                ("lr_scale", c_double), ("decay", c_int), ("begins_unit", c_int), ("whole_count", c_int64), ("first", c_int64)]


class Rates(ctypes.Structure):
    """struct spillway_rates"""

    _fields_ = [("size", c_size_t), ("lr", c_double), ("beta1", c_double), ("beta2", c_double), ("eps", c_double),
                ("weight_decay", c_double), ("clip", c_double), ("note", c_char_p)]


class Result(ctypes.Structure):
    """struct spillway_result"""

    _fields_ = [("size", c_size_t), ("step", c_int64), ("grad_norm", c_double), ("skipped", c_int),
                ("applied_steps", c_int64), ("committed", c_int)]


class State(ctypes.Structure):
    """struct spillway_state"""

    _fields_ = [("size", c_size_t), ("master", POINTER(c_void_p)), ("first_moment", POINTER(c_void_p)),
                ("second_moment", POINTER(c_void_p)), ("step", c_int64), ("applied_steps", c_int64), ("note", c_char_p),
                ("tensor_steps", POINTER(c_int64))]


class IoOptions(ctypes.Structure):
    """struct spillway_io_options"""

    _fields_ = [("size", c_size_t), ("write", c_int), ("depth", c_int), ("allow_buffered", c_int)]


class UsageStruct(ctypes.Structure):
    """struct spillway_usage"""

    _fields_ = [("size", c_size_t), ("parameters", c_int64), ("host_bytes", c_int64), ("drive_bytes", c_int64),
                ("state_bytes", c_int64), ("state_host_bytes", c_int64), ("read_bytes", c_int64),
                ("written_bytes", c_int64)]


class StreamOptions(ctypes.Structure):
    """struct spillway_stream_options"""

    _fields_ = [("size", c_size_t), ("folder", c_char_p), ("memory_bytes", c_uint64), ("allow_buffered", c_int),
                ("cuda_device", c_int)]


class StreamUsageStruct(ctypes.Structure):
    """struct spillway_stream_usage"""

    _fields_ = [("size", c_size_t), ("tensor_bytes", c_int64), ("memory_bytes", c_int64), ("drive_bytes", c_int64),
                ("read_bytes", c_int64), ("written_bytes", c_int64), ("needs", c_int64), ("waits", c_int64),
                ("wait_seconds", c_double)]


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "spillway_version": (c_int, []),
    "spillway_status_name": (c_char_p, [c_int]),
    "spillway_create": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "spillway_add": (c_int, [c_void_p, POINTER(Tensor), POINTER(c_int64)]),
    "spillway_use_cuda": (c_int, [c_void_p, c_int, c_void_p]),
    "spillway_open": (c_int, [c_void_p]),
    "spillway_last_step": (c_int64, [c_void_p]),
    "spillway_note": (c_char_p, [c_void_p]),
    "spillway_set_factors": (c_int, [c_void_p, c_int64, c_double, c_int]),
    "spillway_gradient": (c_int, [c_void_p, c_int64, c_int, c_void_p, c_int]),
    "spillway_forget_gradients": (c_int, [c_void_p]),
    "spillway_step": (c_int, [c_void_p, POINTER(Rates), POINTER(Result)]),
    "spillway_step_start": (c_int, [c_void_p, POINTER(Rates), POINTER(Result)]),
    "spillway_wait": (c_int, [c_void_p, POINTER(Result)]),
    "spillway_wait_tensor": (c_int, [c_void_p, c_int64]),
    "spillway_agree": (c_int, [c_void_p, c_char_p, POINTER(ctypes.c_ubyte), c_int64]),
    "spillway_save": (c_int, [c_void_p]),
    "spillway_read": (c_int, [c_void_p, c_int64, c_int, c_int64, c_int64, c_void_p]),
    "spillway_write": (c_int, [c_void_p, POINTER(State)]),
    "spillway_applied_steps": (c_int64, [c_void_p]),
    "spillway_tensor_steps": (c_int64, [c_void_p, c_int64]),
    "spillway_get_usage": (c_int, [c_void_p, POINTER(UsageStruct)]),
    "spillway_io_open": (c_int, [c_char_p, POINTER(IoOptions), POINTER(c_void_p)]),
    "spillway_io_submit": (c_int, [c_void_p, c_int, c_int64, c_void_p, c_int64, POINTER(c_int64)]),
    "spillway_io_submit_checked": (c_int, [c_void_p, c_int, c_int64, c_void_p, c_int64, POINTER(c_uint64), POINTER(c_int64)]),
    "spillway_checksum": (c_uint64, [c_void_p, c_int64]),
    "spillway_io_wait": (c_int, [c_void_p, c_int64]),
    "spillway_io_flush": (c_int, [c_void_p]),
    "spillway_io_size": (c_int, [c_void_p, POINTER(c_int64)]),
    "spillway_io_close": (None, [c_void_p]),
    "spillway_error": (c_char_p, [c_void_p]),
    "spillway_close": (None, [c_void_p]),
    "spillway_stream_create": (c_int, [POINTER(StreamOptions), POINTER(c_void_p)]),
    "spillway_stream_add": (c_int, [c_void_p, c_char_p, c_int64, POINTER(c_int64)]),
    "spillway_stream_open": (c_int, [c_void_p]),
    "spillway_stream_use_cuda": (c_int, [c_void_p, c_void_p]),
    "spillway_stream_address": (c_void_p, [c_void_p, c_int64]),
    "spillway_stream_need": (c_int, [c_void_p, POINTER(c_int64), c_int64, c_int]),
    "spillway_stream_done": (c_int, [c_void_p, POINTER(c_int64), c_int64]),
    "spillway_stream_changed": (c_int, [c_void_p, POINTER(c_int64), c_int64]),
    "spillway_stream_get_usage": (c_int, [c_void_p, POINTER(StreamUsageStruct)]),
    "spillway_stream_close": (c_int, [c_void_p, c_int]),
    "spillway_use_stream": (c_int, [c_void_p, c_void_p]),
}


def _find() -> ctypes.CDLL:
    """Loads the library named by SPILLWAY_LIBRARY, else the wheel's with what it needs, else the system's."""
    named = os.environ.get("SPILLWAY_LIBRARY")
    if named:
        return ctypes.CDLL(named)
    if not os.path.exists(ORDER):
        return ctypes.CDLL(SONAME)
    with open(ORDER, encoding="utf-8") as file:
        names = file.read().split()
    # Each is found by its soname once it is loaded, so no search path and no environment variable is needed.
    for name in names[:-1]:
        ctypes.CDLL(os.path.join(BUNDLED, name))
    return ctypes.CDLL(os.path.join(BUNDLED, names[-1]))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_loaded: ctypes.CDLL | None = None


def load() -> ctypes.CDLL:
    """Returns the library, loaded at the first call."""
    global _loaded
    if _loaded is None:
        try:
            _loaded = _declare(_find())
        except (OSError, AttributeError) as error:
            raise ImportError(f"{SONAME} cannot be loaded ({error}): install spillway's wheel or its program, or name "
                              "the library's file in SPILLWAY_LIBRARY") from error
    return _loaded


def loaded_version() -> str:
    """Returns the version of the C library that is loaded."""
    number = load().spillway_version()
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
