"""spillway: optimizer state in host memory and on NVMe, in a store that survives a crash.

`spillway.AdamW` is a `torch.optim.Optimizer`. `spillway.offload` lets the parameters of a module stream from a drive.
`spillway.Store` is the C library (spillway.h) without torch, and `spillway.io` reads and writes files. Importing
this package imports neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway import io
from spillway._library import loaded_version
from spillway.store import Store, StepResult, StoreArgumentError, StoreError, Usage

if TYPE_CHECKING:
    from spillway.adamw import AdamW
    from spillway.offloading import Offloaded, OffloadUsage, offload

__all__ = ["AdamW", "OffloadUsage", "Offloaded", "StepResult", "Store", "StoreArgumentError", "StoreError", "Usage", "io",
           "loaded_version", "offload"]


def __getattr__(name: str) -> object:
    if name == "AdamW":
        from spillway.adamw import AdamW

        return AdamW
    if name in ("Offloaded", "OffloadUsage", "offload"):
        from spillway import offloading

        return getattr(offloading, name)
    raise AttributeError(f"module 'spillway' has no attribute {name!r}")
