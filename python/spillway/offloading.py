"""A module whose parameters stream while it runs: from a drive to memory, or from memory to a GPU.

The library decides what is in memory, and what is read ahead. This file tells it which parameters a module needs and when it is
done with them. A parameter's address never changes, and leads to its values at all times (spillway.h), so nothing
here decides whether a result is right: views, saved tensors and uses that no hook sees read the same bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import torch

from spillway import _library, devices
from spillway.store import Store, StoreArgumentError, StoreError, parse_size

_FORWARD, _BACKWARD, _CHANGE = 0, 1, 2
_is_shared: Callable[[torch.Tensor], bool] = torch.Tensor.is_shared
# The backward pass of these does not read the weights.
_WEIGHTLESS = ("EmbeddingBackward0",)


class OffloadUsage(NamedTuple):
    """Memory, drive and waits of an offloaded module. Bytes and seconds since it was made."""

    tensor_bytes: int
    memory_bytes: int
    drive_bytes: int
    read_bytes: int
    written_bytes: int
    needs: int
    waits: int
    wait_seconds: float


class _Closing:
    """Closes a stream when neither it, nor a tensor on its memory, nor a store that writes to it is used any more. At the end of
    the interpreter it is left to the system, because tensors may still be read."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle, self._users, self.stores = library, handle, 0, 0

    def begin_store(self) -> Callable[[], None]:
        """Counts a store, and returns what ends its use, after it is closed."""
        self._users += 1
        self.stores += 1
        return self._end_store

    def _end_store(self) -> None:
        self.stores -= 1
        self._release()

    def add(self, user: object) -> weakref.finalize:  # type: ignore[type-arg]
        self._users += 1
        finalizer = weakref.finalize(user, self._release)
        finalizer.atexit = False
        return finalizer

    def _release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._library.spillway_stream_close(self._handle, 0)


class _Stream:
    """A spillway_stream as a class: tensors by number."""

    def __init__(self, folder: str, memory_bytes: int, allow_buffered: bool, gpu: int | None) -> None:
        """gpu: the number of that which has the tensors, and then there is no folder; None: they are in memory."""
        self._library, self._gpu = _library.load(), gpu
        options = _library.StreamOptions(ctypes.sizeof(_library.StreamOptions), os.fsencode(folder), memory_bytes, allow_buffered,
                                         -1 if gpu is None else gpu)
        handle = ctypes.c_void_p()
        self.check(self._library.spillway_stream_create(options, handle))
        self.handle = handle
        self.closing = _Closing(self._library, handle)
        self.close = self.closing.add(self)

    def check(self, status: int) -> None:
        if status != _library.OK:
            message = self._library.spillway_error(None).decode("utf-8", "replace")
            kind = StoreArgumentError if status == _library.ERROR_ARGUMENT else StoreError
            raise kind(message, self._library.spillway_status_name(status).decode())

    def add(self, name: str, size: int) -> int:
        index = ctypes.c_int64()
        self.check(self._library.spillway_stream_add(self.handle, name.encode(), size, index))
        return index.value

    def open(self) -> None:
        self.check(self._library.spillway_stream_open(self.handle))

    def tensor(self, index: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor on the address of a tensor of the stream, which is needed now."""
        if self._gpu is not None:
            address = self._library.spillway_stream_address(self.handle, index)
            return devices.tensor_at(address, shape.numel() * dtype.itemsize, self._gpu, self.closing.add).view(dtype).view(shape)
        memory = (ctypes.c_char * (shape.numel() * dtype.itemsize)).from_address(
            self._library.spillway_stream_address(self.handle, index))
        self.closing.add(memory)
        return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)

    def _name_work(self) -> None:
        """Lets the library wait for PyTorch's work where it has to."""
        if self._gpu is not None:
            self.check(self._library.spillway_stream_use_cuda(self.handle, torch.cuda.current_stream(self._gpu).cuda_stream))

    def need(self, group: ctypes.Array[ctypes.c_int64], direction: int) -> None:
        self._name_work()
        self.check(self._library.spillway_stream_need(self.handle, group, len(group), direction))

    def done(self, group: ctypes.Array[ctypes.c_int64]) -> None:
        self._name_work()
        self.check(self._library.spillway_stream_done(self.handle, group, len(group)))

    def changed(self, group: ctypes.Array[ctypes.c_int64]) -> None:
        self._name_work()
        self.check(self._library.spillway_stream_changed(self.handle, group, len(group)))

    @contextlib.contextmanager
    def on_gpu(self, group: ctypes.Array[ctypes.c_int64]) -> Iterator[None]:
        """Needs some tensors if they are a GPU's, which reads them slowly where they live. A CPU reads a file as well."""
        if self._gpu is not None:
            self.need(group, _FORWARD)
        yield
        if self._gpu is not None:
            self.done(group)

    def usage(self) -> OffloadUsage:
        usage = _library.StreamUsageStruct(ctypes.sizeof(_library.StreamUsageStruct))
        self.check(self._library.spillway_stream_get_usage(self.handle, usage))
        return OffloadUsage(*(getattr(usage, name) for name in OffloadUsage._fields))


def _group(indices: list[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(indices))(*indices)


class _Scope:
    """A forward pass of a module that has begun: what is held until it ends. `frame`: that of the module's call."""

    __slots__ = ("extra", "frame", "group", "module")

    def __init__(self, module: torch.nn.Module, frame: types.FrameType) -> None:
        self.module, self.frame = module, frame
        self.group: ctypes.Array[ctypes.c_int64] | None = None
        self.extra: list[int] = []


class _Parameters(dict):  # type: ignore[type-arg]
    """The parameters of a module. Sees a module's forward use a parameter of another module."""

    def __init__(self, offloaded: Offloaded, members: dict[str, Any]) -> None:
        super().__init__(members)
        self.offloaded = offloaded

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        self.offloaded._seen(parameter)
        return parameter


def _tensors_of(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for member in output.values():
            yield from _tensors_of(member)
    elif isinstance(output, (list, tuple)):
        for member in output:
            yield from _tensors_of(member)


class Offloaded:
    """What `offload` returns: the stream of a module's parameters. It lives as long as the module."""

    def __init__(self, model: torch.nn.Module, folder: str, memory_bytes: int, fill: Callable[[str, torch.Tensor], Any] | None,
                 allow_buffered: bool, gpu: int | None) -> None:
        self._model = weakref.ref(model)
        self._scopes = threading.local()
        self._owner = os.getpid()
        self._names: list[str] = []
        self._index: dict[int, int] = {}
        self._parameters: list[torch.nn.Parameter] = []
        self._from_gpu: list[bool] = []
        self._versions: list[int] = []
        self._groups: dict[int, ctypes.Array[ctypes.c_int64]] = {}
        self._handles: list[Any] = []
        self._stream = _Stream(folder, memory_bytes, allow_buffered, gpu)
        members = self._members(model, fill is not None, gpu)
        for name, parameter in members:
            self._names.append(name)
            self._stream.add(name, parameter.numel() * parameter.element_size())
        if not members:
            raise ValueError("the module has no parameters")
        self._stream.open()
        try:
            moved = {id(parameter): self._move(index, name, parameter, fill) for index, (name, parameter) in enumerate(members)}
            for module in model.modules():
                self._attach(module, moved)
            if gpu is not None:
                self._move_buffers(model, gpu)
        except BaseException:
            self._give_back()
            raise

    # Parameters.

    @staticmethod
    def _members(model: torch.nn.Module, filled: bool, gpu: int | None) -> list[tuple[str, torch.nn.Parameter]]:
        """Returns the parameters, or refuses one by name."""
        members = []
        for name, parameter in model.named_parameters():
            if hasattr(parameter, "spillway_stream"):
                raise ValueError(f"the parameter '{name}' is offloaded already")
            if parameter.device.type not in ("cpu", "meta") and gpu is None:
                raise ValueError(f"the parameter '{name}' is on {parameter.device}, and weights='nvme' streams parameters in CPU "
                                 "memory, because a GPU cannot read a file where a use is not announced: give weights='host' and "
                                 "device_memory, leave the parameters on the GPU if they fit, or move the module to the CPU before")
            if type(parameter) is not torch.nn.Parameter or parameter.layout != torch.strided:
                raise ValueError(f"the parameter '{name}' is a {type(parameter).__name__} of layout {parameter.layout}, not a "
                                 "dense torch.nn.Parameter")
            if parameter.device.type == "meta" and not filled:
                raise ValueError(f"the parameter '{name}' is on meta, so it has no values: give `fill`, which writes them")
            if not parameter.is_contiguous():
                raise ValueError(f"the parameter '{name}' is not contiguous: call .contiguous() on it before")
            if parameter.numel() > 0:
                members.append((name, parameter))
        return members

    @torch.no_grad()
    def _move(self, index: int, name: str, parameter: torch.nn.Parameter,
              fill: Callable[[str, torch.Tensor], Any] | None) -> torch.nn.Parameter:
        """Moves a parameter's values to its address, and returns the parameter, a new one if it was on meta."""
        group, from_gpu = _group([index]), devices.on_gpu(parameter)
        self._stream.need(group, _CHANGE)
        try:
            streamed = self._stream.tensor(index, parameter.shape, parameter.dtype)
            if parameter.device.type != "meta":
                streamed.copy_(parameter.data)
            elif fill is not None:
                fill(name, streamed)
            self._stream.changed(group)
        finally:
            self._stream.done(group)
        if parameter.device.type == "meta":
            parameter = torch.nn.Parameter(streamed, parameter.requires_grad)
        else:
            parameter.data = streamed
        self._index[id(parameter)] = index
        self._parameters.append(parameter)
        self._from_gpu.append(from_gpu)
        self._versions.append(parameter._version)
        parameter.spillway_stream = self  # type: ignore[attr-defined]
        return parameter

    @staticmethod
    def _move_buffers(model: torch.nn.Module, gpu: int) -> None:
        """Moves buffers in CPU memory to the GPU. One that several modules share stays one."""
        moved: dict[torch.Tensor, torch.Tensor] = {}
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.device.type == "cpu":
                    if buffer not in moved:
                        moved[buffer] = devices.to_gpu(buffer, gpu)
                    module._buffers[name] = moved[buffer]

    def _attach(self, module: torch.nn.Module, moved: dict[int, torch.nn.Parameter]) -> None:
        members = {name: moved.get(id(parameter), parameter) for name, parameter in module._parameters.items()}
        own = sorted({self._index[id(parameter)] for parameter in members.values() if id(parameter) in self._index})
        module._parameters = _Parameters(self, members)
        self._groups[id(module)] = _group(own)
        self._handles.append(module.register_forward_pre_hook(self._before, prepend=True))
        self._handles.append(module.register_forward_hook(self._after, always_call=True))
        # PyTorch gives these no types.
        hooks: list[tuple[Callable[[Any], Any], Any]] = [(module.register_load_state_dict_pre_hook, self._before_load),
                                                         (module.register_load_state_dict_post_hook, self._after_load)]
        self._handles += [register(hook) for register, hook in hooks]
        module._apply = functools.partial(self._refuse_apply, module)  # type: ignore[method-assign]

    # Hooks.

    def _stack(self) -> list[_Scope]:
        if not hasattr(self._scopes, "stack"):
            self._scopes.stack = []
        stack: list[_Scope] = self._scopes.stack
        return stack

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            raise RuntimeError("an offloaded module cannot be compiled as a whole: its hooks bring weights to memory")
        frame = sys._getframe(1)
        self._end_interrupted(frame)
        scope, group = _Scope(module, frame), self._groups.get(id(module))
        self._stack().append(scope)
        if group:
            self._check_unchanged(group)
            self._need(scope, group)

    def _need(self, scope: _Scope, group: ctypes.Array[ctypes.c_int64]) -> None:
        """Holds a scope's own parameters. A KeyboardInterrupt that came while the library waited is raised when it has them."""
        scope.group = group
        try:
            self._stream.need(group, _FORWARD)
        except StoreError:
            scope.group = None
            raise

    def _end_interrupted(self, caller: types.FrameType) -> None:
        """Ends passes that a KeyboardInterrupt has left: hooks do not run then. Their calls are no callers of this one."""
        stack = self._stack()
        while stack:
            frame: types.FrameType | None = caller
            while frame is not None and frame is not stack[-1].frame:
                frame = frame.f_back
            if frame is not None:
                return
            self._let_go(stack.pop())

    def _let_go(self, scope: _Scope) -> list[int]:
        """Releases what a scope holds, and returns it."""
        used = [*(scope.group or []), *scope.extra]
        if used:
            self._stream.done(_group(used))
        return used

    def _after(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        stack = self._stack()
        if not stack or stack[-1].module is not module:
            return
        used = self._let_go(stack.pop())
        if used and torch.is_grad_enabled():
            group = _group(used)
            for tensor in _tensors_of(output):
                node = tensor.grad_fn
                if node is not None and node.name() not in _WEIGHTLESS:
                    node.register_prehook(functools.partial(self._before_backward, group))

    def _before_backward(self, group: ctypes.Array[ctypes.c_int64], _: Any) -> None:
        self._stream.need(group, _BACKWARD)

    def _seen(self, parameter: Any) -> None:
        """Holds a parameter that a running forward has got from a module, unless it is held."""
        stack, index = self._stack(), self._index.get(id(parameter))
        if not stack or index is None or any(index in scope.extra or (scope.group and index in scope.group) for scope in stack):
            return
        group = _group([index])
        self._check_unchanged(group)
        self._stream.need(group, _FORWARD)
        stack[-1].extra.append(index)

    def _check_unchanged(self, group: ctypes.Array[ctypes.c_int64]) -> None:
        for index in group:
            if self._parameters[index]._version != self._versions[index]:
                raise RuntimeError(f"the parameter '{self._names[index]}' was changed in place: spillway.AdamW trains an "
                                   "offloaded module, load_state_dict() works, and other changes belong into "
                                   "`with offloaded.changing(parameter):`")

    def _note_changes(self, group: ctypes.Array[ctypes.c_int64]) -> None:
        self._stream.changed(group)
        for index in group:
            self._versions[index] = self._parameters[index]._version

    def _before_load(self, module: torch.nn.Module, *_: Any) -> None:
        group = self._groups[id(module)]
        if group:
            self._stream.need(group, _CHANGE)

    def _after_load(self, module: torch.nn.Module, _: Any) -> None:
        group = self._groups[id(module)]
        if group:
            self._note_changes(group)
            self._stream.done(group)

    def _refuse_apply(self, module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor],
                      recurse: bool = True) -> torch.nn.Module:
        """Stands in for Module._apply, by which to(), half() and cuda() work. What changes nothing is allowed."""
        with torch.no_grad():
            for probe in {parameter.dtype: parameter.new_empty(1) for parameter in self._parameters}.values():
                known = (probe.dtype, probe.device, _is_shared(probe))
                result = fn(probe)
                if (result.dtype, result.device, _is_shared(result)) != known:
                    raise RuntimeError("an offloaded module keeps its types and its memory: convert it before "
                                       "spillway.offload, or call close() on what that returned")
        return module

    # What AdamW uses, beside `_stream`.

    def _accept(self, parameter: torch.nn.Parameter) -> None:
        """Takes note that the library itself has changed a parameter."""
        self._versions[self._index[id(parameter)]] = parameter._version

    # What a user calls.

    def _check_open(self) -> None:
        if not self._stream.close.alive:
            raise ValueError("the module is offloaded no more: close() has brought its parameters back")

    def usage(self) -> OffloadUsage:
        """Returns the memory and the drive that the parameters take, and how often a module waited."""
        self._check_open()
        return self._stream.usage()

    @contextlib.contextmanager
    def changing(self, *parameters: torch.nn.Parameter) -> Iterator[None]:
        """Within the `with` statement these parameters are in memory and may be changed in place."""
        self._check_open()
        group = _group([self._index[id(parameter)] for parameter in parameters])
        self._check_unchanged(group)
        self._stream.need(group, _CHANGE)
        try:
            yield
        finally:
            self._note_changes(group)
            self._stream.done(group)

    def close(self) -> None:
        """Brings all parameters back to ordinary memory, of the GPU if they came from one, and removes the hooks. Close a
        spillway.AdamW of them before."""
        if not self._stream.close.alive:
            return
        if self._stream.closing.stores > 0:
            raise ValueError("a spillway.AdamW writes to the parameters of the offloaded module: close it before")
        self._check_unchanged(_group(list(range(len(self._parameters)))))
        self._give_back()

    @torch.no_grad()
    def _give_back(self) -> None:
        model = self._model()
        for index, (parameter, from_gpu) in enumerate(zip(self._parameters, self._from_gpu, strict=True)):
            with self._stream.on_gpu(_group([index])):
                parameter.data = parameter.data.clone() if from_gpu else parameter.data.to("cpu", copy=True)
            del parameter.spillway_stream  # type: ignore[attr-defined]
        for handle in self._handles:
            handle.remove()
        for module in model.modules() if model is not None else []:
            if isinstance(module._parameters, _Parameters):
                module._parameters = dict(module._parameters.items())
                del module.__dict__["_apply"]
        self._index.clear()
        self._stream.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an offloaded module cannot be copied or pickled: do it before spillway.offload, or use its "
                        "state_dict()")

    def __deepcopy__(self, _: Any) -> NoReturn:
        self.__reduce__()


def _memory_of(weights: str, store: Any, memory: Any, device_memory: Any) -> int | str:
    """Returns the memory through which parameters stream, or refuses arguments that do not go together."""
    if weights not in ("nvme", "host"):
        raise ValueError(f"weights={weights!r} is neither 'nvme' nor 'host'")
    if weights == "nvme" and device_memory is not None:
        raise ValueError("device_memory is for weights='host', which streams parameters from host memory to a GPU: a GPU cannot read "
                         "a file where a use is not announced, so weights='nvme' streams parameters in CPU memory, through `memory`")
    if weights == "nvme" and (store is None or memory is None):
        raise ValueError("weights='nvme' streams from a file: give `store`, its folder, and `memory`, that for parameters in use")
    if weights == "host" and device_memory is None:
        raise ValueError("weights='host' streams parameters from host memory to a GPU: give device_memory, that of the GPU for "
                         "parameters in use. Parameters that a CPU uses are in its memory already; weights='nvme' is for those "
                         "that do not fit there")
    if weights == "host" and (store is not None or memory is not None):
        raise ValueError("`store` and `memory` are for weights='nvme': with weights='host' all parameters are in host memory, and "
                         "stream through device_memory")
    chosen: int | str = device_memory if weights == "host" else memory
    return chosen


def offload(model: torch.nn.Module, *, store: str | os.PathLike[str] | None = None, memory: int | str | None = None,
            weights: str = "nvme", device_memory: int | str | None = None,
            fill: Callable[[str, torch.Tensor], Any] | None = None, allow_buffered: bool = False) -> Offloaded:
    """Lets the parameters of a module live in a file, and stream through `memory` while the module runs; or in host memory, and
    stream through `device_memory` of a GPU.

    The order in which modules run is recorded, and what comes next is read ahead, in forward and backward passes. Give the
    parameters to `spillway.AdamW` afterwards: an update then writes new weights to where they live, and takes gradients as the
    backward pass makes them, which also stream if there is a file.

    Args:
        store: for "nvme": a folder, made if it is missing. The file has no name there and is gone when the process ends.
        memory: for "nvme": for parameters in memory, and for gradients, such as "2GiB"; at least the largest parameter.
        weights: "nvme", or "host", which is for a GPU: the one that has the parameters, or PyTorch's current one if they are in CPU
            memory or on meta, to which buffers move too. Host memory has all parameters then, and is pinned.
        device_memory: for "host": of the GPU, for parameters in use, such as "20GiB"; some times the largest parameter.
        fill: writes the values of a parameter that is on meta: called with its name and the tensor to write to.
        allow_buffered: accept a file system without direct I/O.
    """
    size = parse_size(_memory_of(weights, store, memory, device_memory))
    if isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        raise ValueError(f"a {type(model).__name__} has replicas or a process group, which this version does not stream: offload the "
                         "module inside, in one process")
    gpu = devices.choose_gpu(model) if weights == "host" else None
    if store is not None:
        os.makedirs(store, mode=0o700, exist_ok=True)
    return Offloaded(model, os.fspath(store or ""), size, fill, allow_buffered, gpu)
