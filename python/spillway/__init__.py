"""spillway: optimizer state in host memory and on NVMe, in a store that survives a crash.

`spillway.AdamW` is a `torch.optim.Optimizer`. `spillway.Store` is the C library (spillway.h) without torch. Importing
this package imports neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spillway._library import loaded_version
from spillway.store import Store, StepResult, StoreArgumentError, StoreError, Usage

if TYPE_CHECKING:
    from spillway.adamw import AdamW

__all__ = ["AdamW", "StepResult", "Store", "StoreArgumentError", "StoreError", "Usage", "loaded_version"]


def __getattr__(name: str) -> object:
    if name == "AdamW":
        from spillway.adamw import AdamW

        return AdamW
    raise AttributeError(f"module 'spillway' has no attribute {name!r}")
