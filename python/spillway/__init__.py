"""spillway: optimizer state in host memory and on NVMe, in a store that survives a crash.

`spillway.AdamW` is a `torch.optim.Optimizer`. `spillway.offload` lets the parameters of a module stream from a drive.
`spillway.Store` is the C library (spillway.h) without torch, and `spillway.io` reads and writes files. `spillway.plan`
asks the program, `spillway.curves` reads the log of a run, and `spillway.read_run` its tensors. Importing this package
imports nothing else: a name's module is imported when it is first used.
"""

from __future__ import annotations

# The constant of `typing`, which takes longer to import than this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from spillway import io
    from spillway._library import loaded_version
    from spillway._program import ProgramError
    from spillway.adamw import AdamW
    from spillway.offloading import Offloaded, OffloadUsage, offload
    from spillway.runs import State, curves, plan, read_log, read_run
    from spillway.store import StepResult, Store, StoreArgumentError, StoreError, Usage

    __version__: str

__all__ = ["AdamW", "OffloadUsage", "Offloaded", "ProgramError", "State", "StepResult", "Store", "StoreArgumentError", "StoreError",
           "Usage", "curves", "io", "loaded_version", "offload", "plan", "read_log", "read_run"]

_MODULES = {"_library": ["loaded_version"], "_program": ["ProgramError"], "adamw": ["AdamW"],
            "offloading": ["OffloadUsage", "Offloaded", "offload"], "runs": ["State", "curves", "plan", "read_log", "read_run"],
            "store": ["StepResult", "Store", "StoreArgumentError", "StoreError", "Usage"]}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "io":
        return import_module("spillway.io")
    if name == "__version__":
        return import_module("spillway._library").loaded_version()
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(import_module(f"spillway.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'spillway' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
