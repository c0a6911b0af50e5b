"""Transfers between files and torch tensors in CPU memory, numpy arrays and other buffers: io_uring past the page cache, with
many requests under way. Knows neither torch nor numpy."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from typing import Any

from spillway import _library
from spillway.store import check_status

_READ, _WRITE, _VERIFY = 0, 1, 2


def _memory_of(buffer: Any, to_write: bool) -> tuple[int, int, Any]:
    """Returns the address and the bytes of a buffer, and what keeps both. to_write: a file's bytes come into it."""
    if hasattr(buffer, "data_ptr"):
        if buffer.device.type != "cpu":
            raise ValueError(f"the tensor is on {buffer.device}, not in CPU memory")
        if not buffer.is_contiguous():
            raise ValueError("the tensor is not contiguous: call .contiguous() on it before")
        if buffer.is_conj() or buffer.is_neg():
            raise ValueError("the tensor is a conjugate or a negative that is not computed yet: call .resolve_conj().resolve_neg() "
                             "on it before")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size(), buffer
    view = memoryview(buffer)
    if view.nbytes == 0:
        raise ValueError("the array has no bytes")
    if not view.contiguous:
        raise ValueError("the array is not contiguous: copy it before")
    if to_write and view.readonly:
        raise ValueError("the array is read-only, and a file is to be read into it")
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:
        return interface["data"][0], view.nbytes, view
    if isinstance(buffer, bytes):
        return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0, view.nbytes, view
    if view.readonly:
        raise ValueError(f"a read-only {type(buffer).__name__} does not tell its address: give bytes or an array")
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)), view.nbytes, view


def _close(handle: ctypes.c_void_p, owner: int) -> None:
    if os.getpid() == owner:
        _library.load().spillway_io_close(handle)


class File:
    """A file whose ranges are read and written by a thread of its own, with the result of the calls' order. `read` and `write` return at
    once a number for `wait`, and keep the buffer until then. With `checked` they sum the bytes while they move, for `checksum`.
    Threads take turns at a file."""

    def __init__(self, path: str | os.PathLike[str], *, write: bool = False, depth: int = 0, allow_buffered: bool = False) -> None:
        """
        Args:
            path: a file; with `write` it is made if it is missing.
            depth: requests of 1 MiB under way; 0 for 32.
            allow_buffered: accept a file system without direct I/O.
        """
        self._library, self._lock, self.path = _library.load(), threading.RLock(), os.fspath(path)
        options = _library.IoOptions(ctypes.sizeof(_library.IoOptions), write, depth, allow_buffered)
        handle = ctypes.c_void_p()
        self._handle: ctypes.c_void_p | None = None
        # The number of a transfer, once it is submitted, and what keeps its memory, and the place of its checksum.
        self._buffers: list[tuple[ctypes.c_int64, Any]] = []
        self._sums: dict[int, ctypes.c_uint64] = {}
        check_status(self._library.spillway_io_open(os.fsencode(path), options, handle))
        self._handle = handle
        self._finalizer = weakref.finalize(self, _close, handle, os.getpid())

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, *arguments: object) -> None:
        if self._handle is None:
            raise ValueError(f"{self.path} is closed")
        check_status(getattr(self._library, name)(self._handle, *arguments))

    def _submit(self, how: int, buffer: Any, offset: int, checksum: ctypes.c_uint64 | None) -> int:
        address, count, keeper = _memory_of(buffer, how != _WRITE)
        number = ctypes.c_int64(-1)
        with self._lock:
            # Before the call: a KeyboardInterrupt that comes during it is raised when the transfer runs.
            self._buffers.append((number, (keeper, checksum)))
            self._call("spillway_io_submit_checked", how, offset, address, count, checksum, number)
            if checksum is not None and how != _VERIFY:
                self._sums[number.value] = checksum
        return number.value

    def read(self, buffer: Any, offset: int = 0, *, checked: bool = False, expect: int | None = None) -> int:
        """Begins to fill a tensor or an array from the file's bytes from an offset on, and returns the transfer's number. expect:
        the checksum that the bytes must have; if they have another one, `wait` raises StoreError with the status "corrupt"."""
        if expect is not None:
            return self._submit(_VERIFY, buffer, offset, ctypes.c_uint64(expect))
        return self._submit(_READ, buffer, offset, ctypes.c_uint64() if checked else None)

    def write(self, buffer: Any, offset: int = 0, *, checked: bool = False) -> int:
        """Begins to write a tensor or an array to the file from an offset on, and returns the transfer's number."""
        return self._submit(_WRITE, buffer, offset, ctypes.c_uint64() if checked else None)

    def checksum(self, number: int) -> int:
        """Waits for a transfer that was `checked`, and returns the checksum of its bytes."""
        if number not in self._sums:
            raise ValueError(f"there is no checksum of transfer {number} of {self.path}: begin it with checked=True")
        self.wait(number)
        return self._sums[number].value

    def wait(self, number: int | None = None) -> None:
        """Waits until a transfer, and all before it, are done; None: all."""
        with self._lock:
            self._call("spillway_io_wait", -1 if number is None else number)
            self._buffers = [kept for kept in self._buffers if number is not None and kept[0].value > number]

    def flush(self) -> None:
        """Waits for all transfers, and makes what was written durable."""
        with self._lock:
            self._call("spillway_io_flush")

    def size(self) -> int:
        """Waits for all transfers, and returns the bytes of the file."""
        size = ctypes.c_int64()
        with self._lock:
            self._call("spillway_io_size", size)
        return size.value

    def close(self) -> None:
        """Waits for all transfers, and closes the file. An error of a transfer that was not waited for is lost: call `wait` or
        `flush` before."""
        with self._lock:
            self._handle = None
            self._finalizer()
            self._buffers = []


def empty(count: int) -> mmap.mmap:
    """Returns a writable buffer of this many bytes at a page's begin, if possible of huge pages, which direct I/O reaches without
    a copy: give it to `numpy.frombuffer` or `torch.frombuffer`."""
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # small pages are only slower
    return memory


def checksum(buffer: Any) -> int:
    """Returns the checksum of a tensor, an array or another buffer: the XXH3-64 of its bytes, or 1 if that is 0."""
    address, count, _keeper = _memory_of(buffer, False)
    found: int = _library.load().spillway_checksum(address, count)
    return found


def read(path: str | os.PathLike[str], buffer: Any, offset: int = 0, *, expect: int | None = None, depth: int = 0,
         allow_buffered: bool = False) -> None:
    """Fills a tensor or an array from a file's bytes from an offset on. expect: the checksum that they must have."""
    with File(path, depth=depth, allow_buffered=allow_buffered) as file:
        file.read(buffer, offset, expect=expect)
        file.wait()


def write(path: str | os.PathLike[str], buffer: Any, offset: int = 0, *, depth: int = 0, allow_buffered: bool = False) -> int:
    """Writes a tensor or an array to a file from an offset on, makes it durable, and returns the checksum of the bytes. A file that
    is there keeps its other bytes."""
    with File(path, write=True, depth=depth, allow_buffered=allow_buffered) as file:
        number = file.write(buffer, offset, checked=True)
        file.flush()
        return file.checksum(number)
