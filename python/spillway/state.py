"""State of an optimizer as tensors, in the form of torch.optim.AdamW, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from spillway.sharding import like, local_of
from spillway.store import PARTS, Store

# Flags of torch.optim.AdamW that mean another update.
_OTHER_UPDATES = ("amsgrad", "maximize")


def copies_of(parameter: torch.Tensor, store: Store, index: int) -> dict[str, torch.Tensor]:
    """Returns copies of a tensor's state in the store, in fp32."""
    parts = {}
    for part in PARTS:
        copy = torch.empty(local_of(parameter).shape, dtype=torch.float32)
        store.read(index, part, copy.data_ptr())
        parts[part] = like(copy, parameter)
    return parts


def steps_of(store: Store) -> list[int]:
    """Returns each tensor's count of steps."""
    return [store.tensor_steps(index) for index in range(len(store.counts))]


class Replacement(NamedTuple):
    """State that is to be written: tensors by part and by their index in the store, and the counts of their step."""

    parts: dict[str, list[torch.Tensor | None]]
    step: int
    applied_steps: int
    tensor_steps: list[int]

    def is_in(self, store: Store) -> bool:
        """Tells whether the store has this state already, in all processes."""
        differs = (self.step, self.applied_steps) != (store.last_step, store.applied_steps) or self.tensor_steps != steps_of(store)
        if store.agree(flags=[differs])[0]:
            return False
        for part, tensors in self.parts.items():
            for index, tensor in enumerate(tensors):
                if tensor is None:
                    continue  # the store keeps its own
                own = torch.empty_like(tensor)
                store.read(index, part, own.data_ptr())
                differs |= not torch.equal(own, tensor)
        return not store.agree(flags=[differs])[0]

    def write(self, store: Store, note: str) -> None:
        addresses = {part: [None if tensor is None else tensor.data_ptr() for tensor in tensors]
                     for part, tensors in self.parts.items()}
        store.write(addresses, step=self.step, applied_steps=self.applied_steps, tensor_steps=self.tensor_steps, note=note)


def _as_fp32(tensor: torch.Tensor, parameter: torch.Tensor, what: str) -> torch.Tensor:
    if tensor.shape != parameter.shape:
        raise ValueError(f"the {what} has the shape {tuple(tensor.shape)}, and its parameter {tuple(parameter.shape)}")
    return tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()


def masters_of(parameters: dict[torch.Tensor, int], changed: list[torch.Tensor]) -> dict[str, list[torch.Tensor | None]]:
    """Returns the values of these parameters as masters."""
    masters: list[torch.Tensor | None] = [None] * len(parameters)
    for parameter in changed:
        masters[parameters[parameter]] = _as_fp32(parameter, parameter, "parameter")
    return {"master": masters}


def replacement_of(state_dict: dict[str, Any], groups: list[dict[str, Any]], index: dict[torch.Tensor, int],
                   names: dict[torch.Tensor, str]) -> Replacement:
    """Takes state from the dictionary of an AdamW, torch's or spillway's. Where it has no masters, the parameters' own
    values become masters, so load the model before."""
    for group in state_dict["param_groups"]:
        for flag in _OTHER_UPDATES:
            if group.get(flag):
                raise ValueError(f"the state_dict is of an optimizer with {flag}=True, which spillway.AdamW does not have")
    parts: dict[str, list[torch.Tensor | None]] = {part: [None] * len(index) for part in PARTS}
    steps = [0] * len(index)
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    parameters = [parameter for group in groups for parameter in group["params"]]
    if len(numbers) != len(parameters):
        raise ValueError(f"the state_dict is of {len(numbers)} parameters, and the optimizer has {len(parameters)}")
    for number, parameter in zip(numbers, parameters):
        if parameter not in index:
            continue
        # PyTorch makes the state of a parameter in its first step.
        own = state_dict["state"].get(number, {"step": 0, "exp_avg": torch.zeros_like(parameter),
                                               "exp_avg_sq": torch.zeros_like(parameter)})
        for part in PARTS:
            value = own.get(part, parameter if part == "master" else None)
            if value is None:
                raise ValueError(f"the state_dict lacks the {part} of '{names[parameter]}': it is not of an AdamW")
            parts[part][index[parameter]] = _as_fp32(value, parameter, f"{part} of '{names[parameter]}'")
        steps[index[parameter]] = int(own["step"])
    applied = max([int(state_dict.get("applied_steps", 0)), *steps])
    return Replacement(parts, max(applied, int(state_dict.get("step", applied))), applied, steps)
