"""The GPU of torch tensors, and the stream by which a store's copies keep the order with torch's work on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spillway.store import Store


def on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def choose_gpu(model: torch.nn.Module) -> int:
    """Returns the number of the GPU to which a module's parameters stream: theirs if they are on one, else the current one."""
    found: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if on_gpu(parameter):
            found.setdefault(parameter.device.index, name)
        elif parameter.device.type not in ("cpu", "meta"):
            raise ValueError(f"the parameter '{name}' is on {parameter.device}: this version streams to a CUDA device")
    if len(found) > 1:
        raise ValueError(f"the parameters {' and '.join(f'{name!r}' for name in found.values())} are on different GPUs: a module streams "
                         "to one")
    if found:
        return next(iter(found))
    if not torch.cuda.is_available():
        raise ValueError("weights='host' streams parameters from host memory to a GPU, and PyTorch finds none here: a CPU uses "
                         "parameters where they are in its memory, and weights='nvme' is for those that do not fit there")
    return torch.cuda.current_device()


class _Memory:
    """Bytes of a GPU as PyTorch imports them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def tensor_at(address: int, size: int, gpu: int, keep: Callable[[object], object]) -> torch.Tensor:
    """Returns a tensor of bytes on an address of a GPU, which leads to the GPU's memory now. keep: called with an object that
    lives as long as the tensor's memory is used."""
    memory = _Memory(address, size)
    keep(memory)
    return torch.as_tensor(memory, device=torch.device("cuda", gpu))


def to_gpu(tensor: torch.Tensor, gpu: int) -> torch.Tensor:
    """Returns a tensor in the memory of a GPU."""
    return tensor.to(torch.device("cuda", gpu))


def gpu_of(names: dict[torch.Tensor, str]) -> int | None:
    """Returns the number of the GPU that some of these parameters are on, None if all are in CPU memory."""
    first: torch.Tensor | None = None
    for parameter, name in names.items():
        if parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(f"the parameter '{name}' is on {parameter.device}: this version takes parameters in CPU memory and on "
                             "a CUDA device")
        if not on_gpu(parameter):
            continue
        first = parameter if first is None else first
        if parameter.device != first.device:
            raise ValueError(f"the parameter '{names[first]}' is on {first.device} and '{name}' on {parameter.device}: an optimizer "
                             "takes parameters of one GPU, and of CPU memory; make one for each GPU, with a store of its own")
    return None if first is None else first.device.index


def name_stream(store: Store, gpu: int | None, stream: Any = None) -> None:
    """Lets the store's next copies follow the work that a stream of a GPU has by now: torch's current one, if none is given."""
    if gpu is not None:
        store.use_cuda(gpu, (stream or torch.cuda.current_stream(gpu)).cuda_stream)


class Trailing:
    """Gradients on a GPU that are handed over one behind the backward pass. Whoever hands a gradient over waits until it is
    copied, and meanwhile the GPU computes the next one, which it was given before."""

    def __init__(self, gpu: int, hand_in: Callable[[torch.Tensor, torch.Tensor, Any], object]) -> None:
        """hand_in: takes a parameter, its gradient, and the stream whose work makes it."""
        made: Any = torch.cuda.Stream  # PyTorch does not type it
        self._gpu, self._hand_in, self._stream = gpu, hand_in, made(gpu)
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def put(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        self.flush()
        # The own stream waits for what makes this gradient, and not for what the backward pass gives the GPU next.
        self._stream.wait_stream(torch.cuda.current_stream(self._gpu))
        self._last = (parameter, gradient)

    def flush(self) -> None:
        """Hands the last gradient over."""
        last, self._last = self._last, None
        if last is not None:
            self._hand_in(*last, self._stream)

    def forget(self) -> None:
        self._last = None
