"""Parameters of which each process has a part: the DTensors of torch.distributed, as fully_shard (FSDP2) makes them."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch


def is_distributed(tensor: torch.Tensor) -> TypeGuard[Any]:
    """Tells whether a tensor is a DTensor, without importing what defines these."""
    return hasattr(tensor, "to_local")


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this process's part of a DTensor, in its own memory, or a plain tensor itself."""
    if not is_distributed(tensor):
        return tensor
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()
        return local


def like(local: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Returns a process's part of something as a DTensor, if the parameter is one."""
    if not is_distributed(parameter):
        return local
    from torch.distributed.tensor import DTensor
    made: torch.Tensor = DTensor.from_local(local, parameter.device_mesh, parameter.placements, run_check=False,
                                            shape=parameter.shape, stride=parameter.stride())
    return made


def place_of(parameter: torch.Tensor) -> tuple[int, int]:
    """Returns the elements of a whole parameter and the index of the first that this process has, if these are a run of it, as
    where its rows are shared out; else zeros."""
    if not is_distributed(parameter):
        return 0, 0
    placement, mesh = parameter.placements[0], parameter.device_mesh
    if mesh.ndim != 1 or not placement.is_shard(0) or parameter.dim() == 0:
        return 0, 0
    # Rows are cut as torch.chunk cuts them.
    rows, ranks, rank = parameter.shape[0], mesh.size(), mesh.get_local_rank()
    each = -(-rows // ranks)
    first, end = (min(rows, each * number) for number in (rank, rank + 1))
    per_row = parameter.numel() // rows if rows else 0
    return (parameter.numel(), first * per_row) if local_of(parameter).numel() == (end - first) * per_row else (0, 0)


def _is_part(name: str, parameter: torch.Tensor) -> bool:
    """Tells whether each process has other elements of a parameter. Refuses what is neither this nor the same in all."""
    if not is_distributed(parameter) or all(placement.is_replicate() for placement in parameter.placements):
        return False
    if parameter.device_mesh.ndim == 1 and parameter.placements[0].is_shard():
        return True
    raise ValueError(f"the parameter '{name}' is a DTensor with the placements {tuple(parameter.placements)}: this version takes those "
                     "that one dimension of a mesh shards, and those that are replicated")


def are_sharded(named: list[tuple[str, Any]], process_group: Any) -> bool:
    """Tells whether these parameters are the processes' own parts. Refuses a mix, and processes that cannot share a store."""
    parts = {name: _is_part(name, parameter) for name, parameter in named}
    if not any(parts.values()):
        return False
    whole = next((name for name, is_part in parts.items() if not is_part), None)
    name, parameter = next((name, parameter) for name, parameter in named if parts[name])
    if whole is not None:
        raise ValueError(f"each process has a part of '{name}' and the whole of '{whole}': give them to two optimizers, each with a "
                         "store of its own, or shard the whole module")
    ranks = parameter.device_mesh.size()
    if process_group is None and ranks > 1:
        raise ValueError(f"'{name}' is shared out over {ranks} processes: name their group in process_group")
    if process_group is not None and torch.distributed.get_world_size(process_group) != ranks:
        raise ValueError(f"'{name}' is shared out over {ranks} processes, and process_group has "
                         f"{torch.distributed.get_world_size(process_group)}")
    return True
