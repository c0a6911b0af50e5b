"""Parameters that are waited for when their module reads them, while a step of the optimizer runs."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

_ZERO_GRAD = torch.nn.Module.zero_grad.__code__
# Frames between a module's zero_grad and the table of parameters.
_MOST_FRAMES = 8
# PyTorch has it from version 2.7 on.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
_COMPILED = "overlap: the module is compiled, and a compiled module does not say when it reads a parameter"


def _only_forgets_gradients() -> bool:
    """Tells whether the table is read for a `zero_grad` that sets gradients to None: it reads no weight, and leaves the
    memory of the gradients, which a step that runs reads, as it is."""
    frame: types.FrameType | None = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_code is _ZERO_GRAD:
            return bool(frame.f_locals.get("set_to_none"))
        frame = frame.f_back
    return False


class _Parameters(dict[str, Any]):
    """A module's table of its parameters. Each of `waits`, one for each optimizer that overlaps, is called with each parameter
    that is read."""

    def __init__(self, table: dict[str, Any]) -> None:
        super().__init__(table)
        self.waits: list[Callable[[Any], None]] = []

    def _wait(self, parameter: Any) -> None:
        if torch.compiler.is_compiling() and not _is_exporting():
            raise ValueError(_COMPILED)
        for wait in self.waits:
            wait(parameter)

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        self._wait(parameter)
        return parameter

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def _wait_for_all(self) -> None:
        for parameter in super().values():
            self._wait(parameter)

    def items(self) -> Any:
        if not _only_forgets_gradients():
            self._wait_for_all()
        return super().items()

    def values(self) -> Any:
        if not _only_forgets_gradients():
            self._wait_for_all()
        return super().values()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        """A copy of the module has no step to wait for."""
        return dict, (self.copy(),)


def _is_compiled(module: torch.nn.Module) -> bool:
    return (isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod")
            or getattr(module, "_compiled_call_impl", None) is not None)


def check_overlap(model: torch.nn.Module, names: dict[Any, str]) -> None:
    """Refuses a model that would not wait for all of these parameters."""
    if any(_is_compiled(module) for module in model.modules()):
        raise ValueError(_COMPILED)
    own = set(model.parameters())
    for parameter, name in names.items():
        if parameter not in own:
            raise ValueError(f"overlap: the module has no parameter '{name}', so nothing would wait for it: name the whole model")


def watch(model: torch.nn.Module, wait: Callable[[Any], None]) -> Callable[[], None]:
    """Lets each module of a model call `wait` with a parameter that is read as its attribute. Returns a function that undoes
    it, and does not keep the model alive."""
    watched = [weakref.ref(module) for module in model.modules()]
    for module in model.modules():
        table = module._parameters
        if not isinstance(table, _Parameters):
            table = module.__dict__["_parameters"] = _Parameters(table)
        table.waits.append(wait)

    def undo() -> None:
        for reference in watched:
            module = reference()
            table = module._parameters if module is not None else None
            if module is None or not isinstance(table, _Parameters) or wait not in table.waits:
                continue  # the module is gone, or got another table since
            table.waits.remove(wait)
            if not table.waits:
                module.__dict__["_parameters"] = dict.copy(table)
    return undo
