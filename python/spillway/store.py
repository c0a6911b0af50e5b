"""The C library as a class: tensors by address, one step at a time. Knows nothing of torch."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from spillway import _library

TYPES = {"fp32": 0, "bf16": 1, "fp16": 2}
STATES = {"fp32": 0, "bf16": 1, "8bit": 2}
# Added to a type: the address leads to memory of a CUDA device.
CUDA = 16
MISSING = {"error": 0, "zero": 1, "skip": 2}
PARTS = {"master": 0, "exp_avg": 1, "exp_avg_sq": 2}
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30,
          "T": 1 << 40}


class StoreError(RuntimeError):
    """A call of the library failed. `status` names the reason's kind, such as "no space"."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class StoreArgumentError(StoreError, ValueError):
    """An argument is wrong, or the tensors are not those of the store. Nothing has changed."""


def check_status(status: int, handle: ctypes.c_void_p | None = None, cause: BaseException | None = None) -> None:
    """Raises the error of a call of the library that returned this status; handle: a store's; cause: what its callback
    raised."""
    if status == _library.OK:
        return
    library = _library.load()
    message = library.spillway_error(handle).decode("utf-8", "replace")
    kind = StoreArgumentError if status == _library.ERROR_ARGUMENT else StoreError
    raise kind(message, library.spillway_status_name(status).decode()) from cause


class StepResult(NamedTuple):
    """The outcome of a step."""

    step: int
    """The number of the step, from 1, over all processes that used the store."""
    grad_norm: float
    """The global norm of the gradients before clipping; not finite if the step was skipped."""
    skipped: bool
    """A gradient was not finite, and the state stays as it was."""
    applied_steps: int
    """Steps that were not skipped."""
    committed: bool
    """The step survives a crash."""


class Usage(NamedTuple):
    """Memory and drive of an open store, in bytes."""

    parameters: int
    host_bytes: int
    drive_bytes: int
    state_bytes: int
    state_host_bytes: int
    read_bytes: int
    written_bytes: int


def parse_size(size: int | float | str) -> int:
    """Returns the bytes of a size such as 4096, 4e9, "512MiB" or "1.5GiB"; "24G" is GiB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?(?:iB)?)\s*", size) if isinstance(size, str) else None
    if found is not None and found[2] in _UNITS:
        return int(float(found[1]) * _UNITS[found[2]])
    if isinstance(size, str) or not hasattr(size, "__int__") or not 1 <= size < 1 << 63:
        raise ValueError(f"{size!r} is not a size: write a number of bytes, or one with KiB, MiB, GiB or TiB")
    return int(size)


def _close(handle: ctypes.c_void_p, lock: threading.RLock, owner: int, _gather: object, after: list[Callable[[], None]]) -> None:
    """Closes a handle, for which the library may call `gather` a last time, once no other thread is in a call with it: an
    interpreter may end while a thread is within a step. Then calls `after`."""
    if os.getpid() == owner:
        with lock:
            _library.load().spillway_close(handle)
        for call in after:
            call()


def _named(table: dict[str, int], key: str, what: str) -> int:
    if key not in table:
        raise ValueError(f"{key!r} is not {what}: take one of {', '.join(table)}")
    return table[key]


def _whole(name: str, number: Any) -> int:
    """Returns a number that must be whole, such as one of numpy."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} is {number!r}: it must be a whole number") from None


def _step_result(result: _library.Result) -> StepResult:
    return StepResult(result.step, result.grad_norm, bool(result.skipped), result.applied_steps, bool(result.committed))


class Store:
    """A store of optimizer state. Register tensors by `add`, then `open` it; close it, or use it in a `with` statement.

    Threads take turns at a store. Calls release the interpreter's lock while they work. A child process cannot use a store
    that its parent opened.
    """

    def __init__(self, folder: str | os.PathLike[str], *, host_memory: int | float | str | None = None, state: str = "fp32",
                 threads: int = 0, save_every: int = 1, accumulate: bool = False, missing_gradients: str = "error",
                 allow_buffered: bool = False, rank: int = 0, ranks: int = 1,
                 gather: Callable[[int, list[int]], None] | None = None, sharded: bool = False) -> None:
        """
        Args:
            folder: made if it is missing; its parent exists.
            host_memory: what the library may take beside the tensors, such as "32GiB"; None: half of the memory that is free at
                `open`.
            state: "fp32", "bf16" or "8bit", the format of the moments.
            threads: cores that the library uses; 0 for all that the process may use.
            save_every: steps from commit to commit while some of the state lives in host memory.
            accumulate: gradients may be added up by `gradient(..., add=True)`.
            missing_gradients: a step without a gradient for some tensor is refused by its name ("error"), or the tensor has one
                of zeros ("zero"), or is left out of the step ("skip"), as by torch.optim.AdamW.
            allow_buffered: accept a file system without direct I/O.
            rank, ranks: the number of this process among those that share the store, and their number.
            gather: for several processes: copies each one's part of some bytes to all of them. It gets the address of the
                bytes and bounds: process r's part is bytes bounds[r] to bounds[r + 1]. Any thread may call it.
            sharded: each process has elements of its own of each tensor, perhaps none.
        """
        self._library = _library.load()
        # The library calls it as long as the handle lives.
        self._gather = _library.GATHER(self._gathered_by(gather, ranks)) if gather is not None else _library.GATHER()
        self._gather_error: BaseException | None = None
        options = _library.Options(ctypes.sizeof(_library.Options), os.fsencode(folder),
                                   0 if host_memory is None else parse_size(host_memory),
                                   _named(STATES, state, "a format of state"), _whole("threads", threads),
                                   _whole("save_every", save_every), accumulate,
                                   _named(MISSING, missing_gradients, "a way with missing gradients"), allow_buffered, rank, ranks, self._gather, None, sharded)
        handle = ctypes.c_void_p()
        self._handle: ctypes.c_void_p | None = None
        self._check(self._library.spillway_create(options, handle))
        self.folder = os.fspath(folder)
        self.counts: list[int] = []
        self._handle = handle
        self._lock, self._owner = threading.RLock(), os.getpid()
        # At the latest at the end of the interpreter.
        self._after_close: list[Callable[[], None]] = []
        self._finalizer = weakref.finalize(self, _close, handle, self._lock, self._owner, self._gather, self._after_close)

    def _gathered_by(self, gather: Callable[[int, list[int]], None], ranks: int) -> Callable[[int, int, Any], int]:
        """Returns the function as the library calls it. The finalizer must not keep the store alive, so nor does this."""
        store = weakref.ref(self)

        def call(_: int, address: int, bounds: Any) -> int:
            try:
                gather(address, bounds[:ranks + 1])
            except BaseException as error:  # an exception cannot pass through the library
                alive = store()
                if alive is not None:
                    alive._gather_error = error
                return 1
            return 0
        return call

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a store is open in this process and cannot be copied or pickled")

    def _check(self, status: int) -> None:
        cause, self._gather_error = self._gather_error, None
        check_status(status, self._handle, cause)

    def _turn(self) -> contextlib.AbstractContextManager[object]:
        """Returns the lock of calls. In a forked child, which the library refuses, another thread of the parent may hold it for
        ever."""
        return self._lock if os.getpid() == self._owner else contextlib.nullcontext()

    def _call(self, name: str, *arguments: object) -> None:
        with self._turn():
            self._check(getattr(self._library, name)(self._open_handle(), *arguments))

    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ValueError(f"the store in {self.folder} is closed")
        return self._handle

    def add(self, name: str, address: int, count: int, dtype: str = "fp32", *, lr_scale: float = 1.0,
            decay: bool = True, begins_unit: bool = False, cuda: bool = False, whole_count: int = 0, first: int = 0) -> int:
        """Registers `count` elements at an address, before `open`, and returns the tensor's index. The caller keeps them in
        place until the store is closed. begins_unit: the tensor begins a unit of a new store, on which the norm's bits
        depend (spillway.h). cuda: the address leads to memory of the GPU that `use_cuda` has named. whole_count, first: with
        `sharded`, the elements of the tensor over all processes and the index of this process's first one, by which other
        processes may open the store; 0 if they are no run of it."""
        tensor = _library.Tensor(ctypes.sizeof(_library.Tensor), name.encode(),
                                 _named(TYPES, dtype, "an element type") + (CUDA if cuda else 0), count, address, lr_scale, decay,
                                 begins_unit, whole_count, first)
        index = ctypes.c_int64()
        self._call("spillway_add", tensor, index)
        self.counts.append(count)
        return index.value

    def use_cuda(self, device: int, stream: int = 0) -> None:
        """Names the GPU of tensors and gradients, before they are added, and the CUDA stream, 0 for the default one, that has
        the caller's work there. Later calls name another stream. Gradients that are handed in next are complete after the
        work that the stream has then; new weights wait for what it has at the step, and are complete when `step`, `wait` or
        `wait_tensor` returns."""
        self._call("spillway_use_cuda", device, stream)

    def open(self) -> None:
        """Makes the store, with the tensors' values as step 0, or resumes the one that is there at its last commit and
        writes that step's weights to the tensors."""
        self._call("spillway_open")

    @property
    def last_step(self) -> int:
        """The number of the last step; 0 for a new store, -1 before `open`."""
        with self._turn():
            return int(self._library.spillway_last_step(self._open_handle()))

    @property
    def note(self) -> str:
        """The note of the commit that was resumed; empty for a new store."""
        with self._turn():
            return str(self._library.spillway_note(self._open_handle()).decode())

    def use_stream(self, stream: ctypes.c_void_p, begin: Callable[[], Callable[[], None]]) -> None:
        """Lets the store write the new weights of a stream's tensors through the stream, before `open`. The stream outlives the
        store: `begin` counts its use, and returns what ends it."""
        self._check(self._library.spillway_use_stream(self._open_handle(), stream))
        self._after_close.append(begin())

    def set_factors(self, index: int, lr_scale: float, decay: bool) -> None:
        """Changes a tensor's factor of the learning rate, and whether weight decay applies, for the steps to come."""
        self._call("spillway_set_factors", index, lr_scale, decay)

    def gradient(self, index: int, address: int, dtype: str = "fp32", *, add: bool = False, cuda: bool = False) -> None:
        """Hands in a gradient, of as many elements as the tensor. Without `add` the next step reads it at the address, and
        the caller keeps it there until then. cuda: the address leads to the GPU's memory."""
        kind = _named(TYPES, dtype, "an element type") + (CUDA if cuda else 0)
        self._call("spillway_gradient", index, kind, address, add)

    def forget_gradients(self) -> None:
        """Forgets the gradients that were handed in since the last step."""
        self._call("spillway_forget_gradients")

    def step(self, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
             weight_decay: float = 1e-2, clip: float = 0.0, note: str = "", wait: bool = True) -> StepResult:
        """Runs a step with the gradients that were handed in. clip: the largest global norm, 0 for none. note: text that the
        step's commit keeps. Without `wait` it returns once the norm is known: until a tensor was waited for, its weights
        are not whole, and its gradient must stay as it is."""
        if not isinstance(note, str):
            raise TypeError(f"the note is {note!r}: it must be text")
        rates = _library.Rates(ctypes.sizeof(_library.Rates), lr, *betas, eps, weight_decay, clip, note.encode())
        result = _library.Result(ctypes.sizeof(_library.Result))
        self._call("spillway_step" if wait else "spillway_step_start", rates, result)
        return _step_result(result)

    def wait(self) -> StepResult:
        """Waits until the step that runs, if any, is done, and returns the outcome of the last step of this store."""
        result = _library.Result(ctypes.sizeof(_library.Result))
        self._call("spillway_wait", result)
        return _step_result(result)

    def wait_tensor(self, index: int) -> None:
        """Waits until the weights of a tensor are those of the last step that was started."""
        self._call("spillway_wait_tensor", index)

    def agree(self, problem: str | None = None, flags: list[bool] | None = None) -> list[bool]:
        """Lets processes agree on whether to go on, and returns which flags are true in any of them. With a problem, which one of
        them may have alone, all raise StoreArgumentError: that process here, the others in their next call."""
        made = (ctypes.c_ubyte * len(flags or []))(*(flags or []))
        self._call("spillway_agree", problem.encode() if problem is not None else None, made, len(made))
        return [value != 0 for value in made]

    def save(self) -> None:
        """Commits the last step, unless it is committed."""
        self._call("spillway_save")

    def read(self, index: int, part: str, address: int, first: int = 0, count: int | None = None) -> None:
        """Copies elements of a tensor's state, "master", "exp_avg" or "exp_avg_sq", as fp32 to an address."""
        count = self.counts[index] - first if count is None else count
        self._call("spillway_read", index, _named(PARTS, part, "a part of the state"), first, count, address)

    @property
    def applied_steps(self) -> int:
        """The steps that were not skipped, over all processes that used the store; -1 before `open`."""
        with self._turn():
            return int(self._library.spillway_applied_steps(self._open_handle()))

    def tensor_steps(self, index: int) -> int:
        """The steps of these that did not leave a tensor out, which are the t of its bias correction."""
        with self._turn():
            return int(self._library.spillway_tensor_steps(self._open_handle(), index))

    def write(self, parts: dict[str, list[int | None]], *, step: int, applied_steps: int,
              tensor_steps: list[int] | None = None, note: str = "") -> None:
        """Replaces state, writes the weights to the tensors, and commits the state as a step. parts: for "master",
        "exp_avg" and "exp_avg_sq" the address of each tensor's fp32 values; None, or a part that is missing, keeps the
        store's. tensor_steps: each tensor's count of steps; None: applied_steps for all."""
        arrays: dict[str, object] = {}
        for name, addresses in parts.items():
            _named(PARTS, name, "a part of the state")
            if len(addresses) != len(self.counts):
                raise ValueError(f"there are {len(addresses)} addresses of {name}, and {len(self.counts)} tensors")
            arrays[name] = (ctypes.c_void_p * len(addresses))(*addresses)
        if tensor_steps is not None and len(tensor_steps) != len(self.counts):
            raise ValueError(f"there are {len(tensor_steps)} counts of steps, and {len(self.counts)} tensors")
        steps = (ctypes.c_int64 * len(tensor_steps))(*tensor_steps) if tensor_steps is not None else None
        state = _library.State(ctypes.sizeof(_library.State), *(arrays.get(name) for name in PARTS), step, applied_steps,
                               note.encode(), steps)
        self._call("spillway_write", state)

    def usage(self) -> Usage:
        """Returns the memory and the drive that the open store takes."""
        usage = _library.UsageStruct(ctypes.sizeof(_library.UsageStruct))
        self._call("spillway_get_usage", usage)
        return Usage(*(getattr(usage, name) for name in Usage._fields))

    def close(self) -> None:
        """Closes the store. Steps since the last commit are lost: call `save` before."""
        with self._turn():
            self._handle = None
            self._finalizer()
