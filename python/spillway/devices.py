"""The GPU of torch tensors, and the stream by which a store's copies keep the order with torch's work on it."""

from __future__ import annotations

import torch

from spillway.store import Store


def on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


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


def name_stream(store: Store, gpu: int | None) -> None:
    """Lets the store's next copies follow the work that torch's current stream of a GPU has by now."""
    if gpu is not None:
        store.use_cuda(gpu, torch.cuda.current_stream(gpu).cuda_stream)
