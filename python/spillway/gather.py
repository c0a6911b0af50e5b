"""The gather of several processes, by torch.distributed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist


_PROBLEM_BYTES = 1000


def _bytes_at(address: int, count: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


class Exchange(NamedTuple):
    """A process of a group, and how it exchanges with the others."""

    rank: int
    ranks: int
    gather: Callable[[int, list[int]], None]
    """Copies each process's part of some bytes to all of them, as Store describes it."""


def gather_over(process_group: Any) -> Exchange:
    """Returns this process's exchange with a group. It has a gloo group of its own, because the library may gather while the
    caller exchanges gradients."""
    if not dist.is_initialized():
        raise ValueError("process_group: torch.distributed is not initialised")
    members = dist.get_process_group_ranks(process_group)
    group: Any = dist.new_group(members, backend="gloo", use_local_synchronization=True)
    rank = dist.get_rank(group)

    def gather(address: int, bounds: list[int]) -> None:
        whole = _bytes_at(address, bounds[-1])
        most = max(end - begin for begin, end in zip(bounds, bounds[1:], strict=False))
        mine = torch.zeros(most, dtype=torch.uint8)
        mine[:bounds[rank + 1] - bounds[rank]] = whole[bounds[rank]:bounds[rank + 1]]
        parts = [torch.empty(most, dtype=torch.uint8) for _ in members]
        dist.all_gather(parts, mine, group=group)
        for begin, end, part in zip(bounds, bounds[1:], parts, strict=False):
            whole[begin:end] = part[:end - begin]

    return Exchange(rank, len(members), gather)


def first_problem(exchange: Exchange, problem: str | None) -> tuple[int, str] | None:
    """Tells all processes the problem that each may have, and returns the first process that has one, and its words."""
    own = (problem or "").encode()[:_PROBLEM_BYTES]
    room = ctypes.create_string_buffer(exchange.ranks * _PROBLEM_BYTES)
    ctypes.memmove(ctypes.addressof(room) + exchange.rank * _PROBLEM_BYTES, own, len(own))
    exchange.gather(ctypes.addressof(room), [rank * _PROBLEM_BYTES for rank in range(exchange.ranks + 1)])
    for rank in range(exchange.ranks):
        text = room.raw[rank * _PROBLEM_BYTES:(rank + 1) * _PROBLEM_BYTES].rstrip(b"\0")
        if text:
            return rank, text.decode(errors="replace")
    return None
