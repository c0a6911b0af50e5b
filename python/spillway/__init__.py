"""spillway: optimizer state in host memory and on NVMe, in a store that survives a crash.

`spillway.AdamW` is a `torch.optim.Optimizer`. `spillway.offload` lets the parameters of a module stream from a drive.
`spillway.Store` is the C library (spillway.h) without torch, and `spillway.io` reads and writes files. `spillway.plan`
asks the program, and `spillway.curves` reads the log of a run. Importing this package imports neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from spillway._library import loaded_version
from spillway.store import StepResult, Store, StoreArgumentError, StoreError, Usage

if TYPE_CHECKING:
    from spillway import io
    from spillway.adamw import AdamW
    from spillway.offloading import Offloaded, OffloadUsage, offload
    from spillway.runs import ProgramError, curves, plan, read_log

__all__ = ["AdamW", "OffloadUsage", "Offloaded", "ProgramError", "StepResult", "Store", "StoreArgumentError", "StoreError",
           "Usage", "curves", "io", "loaded_version", "offload", "plan", "read_log"]

# Names that are imported when they are first asked for, and where they are.
_LATER = {"AdamW": "adamw", "OffloadUsage": "offloading", "Offloaded": "offloading", "offload": "offloading",
          "ProgramError": "runs", "curves": "runs", "plan": "runs", "read_log": "runs"}


def __getattr__(name: str) -> object:
    if name == "io":
        return import_module("spillway.io")
    if name in _LATER:
        return getattr(import_module(f"spillway.{_LATER[name]}"), name)
    raise AttributeError(f"module 'spillway' has no attribute {name!r}")
