"""AdamW as a torch.optim.Optimizer whose state lives in a store."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from spillway.devices import Trailing, gpu_of, name_stream, on_gpu
from spillway.overlap import check_overlap, watch
from spillway.sharding import are_sharded, local_of, place_of
from spillway.state import Replacement, copies_of, masters_of, replacement_of, steps_of
from spillway.store import MISSING, StepResult, Store, StoreError, Usage

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# A store has one pair of betas and one eps for all of its tensors.
_ALIKE = ("betas", "eps")
# A store cannot do these, which torch.optim.AdamW can.
_REFUSED = ("amsgrad", "maximize")


def _named_groups(params: Iterable[Any]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Returns parameter groups without names, and the names by the identity of the parameters. Takes what
    torch.optim.Optimizer takes: parameters, pairs of name and parameter, or groups of either."""
    if isinstance(params, (torch.Tensor, torch.nn.Module)):
        raise TypeError(f"params is a {type(params).__name__}: give an iterable of parameters, such as model.named_parameters()")
    entries = list(params)
    groups = [dict(entry) for entry in entries] if entries and isinstance(entries[0], dict) else [{"params": entries}]
    names: dict[int, str] = {}
    for number, group in enumerate(groups):
        members = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        group["params"] = []
        for position, member in enumerate(members):
            named = isinstance(member, tuple)
            parameter = member[1] if named else member
            names.setdefault(id(parameter), str(member[0]) if named else f"group{number}.{position}")
            group["params"].append(parameter)
    return groups, names


def _hand_over(owner: weakref.ref[AdamW], parameter: torch.Tensor) -> None:
    """Runs when the backward pass has made a parameter's gradient: the store takes it, and its memory is free."""
    optimizer = owner()
    if optimizer is None or optimizer._store is None or parameter.grad is None:
        return
    if optimizer._trailing is not None and on_gpu(parameter):
        optimizer._trailing.put(parameter, parameter.grad)
    else:
        optimizer._hand_in(optimizer._store, parameter, parameter.grad, add=True)
    parameter.grad = None


def _hand_in_trailing(owner: weakref.ref[AdamW], parameter: torch.Tensor, gradient: torch.Tensor, stream: Any) -> None:
    """Hands over a gradient that a stream makes."""
    optimizer = owner()
    if optimizer is not None and optimizer._store is not None:
        optimizer._hand_in(optimizer._store, parameter, gradient, add=True, stream=stream)


def _wait_for(owner: weakref.ref[AdamW], parameter: torch.Tensor) -> None:
    """Runs when a module reads a parameter."""
    optimizer = owner()
    if optimizer is not None:
        optimizer._wait_for(parameter)


def _end(store: Store, unwatch: Callable[[], None]) -> None:
    """Lets a step that runs end, and closes the store. Runs before the optimizer gives up the parameters and gradients that the
    step uses."""
    unwatch()
    store.close()


@contextlib.contextmanager
def _agreeing(process_group: Any) -> Iterator[dict[str, Any]]:
    """Yields the options of a store by which the processes of a group share it. What one of them raises before the store is
    opened, all raise, so that none waits for it."""
    if process_group is None:
        yield {}
        return
    from spillway.gather import first_problem, gather_over

    exchange = gather_over(process_group)
    try:
        yield exchange._asdict()
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # the others have ended
            first_problem(exchange, str(error) or repr(error))
        raise
    found = first_problem(exchange, None)
    if found is not None:
        raise ValueError(f"process {found[0]} failed: {found[1]}")


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) as torch.optim.AdamW defines it, on parameters in CPU memory or on a
    CUDA device. Master weights in fp32 and the moments live in host memory, as far as `host_memory` allows, and on the drive of `store`.

    If the whole state lives on the drive, each step is committed before `step` returns; else every `save_every` steps,
    and by `save`. An optimizer that is made on the folder of an earlier one resumes at the last commit, and writes that
    step's weights to the parameters: look at `last_step` and `note` to find the place in the data.

    Parameters without `requires_grad` are left out. Parameter groups may differ in `lr`, and in `weight_decay` by having
    it or having none. Schedulers, closures, `zero_grad` and accumulation in `.grad` work as with any optimizer.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, *, store: str | os.PathLike[str],
                 host_memory: int | float | str | None = None, state: str = "fp32", clip: float | None = None,
                 save_every: int = 1, missing: str = "skip", threads: int = 0, allow_buffered: bool = False, full_state_dict: bool = False,
                 overlap: torch.nn.Module | None = None, process_group: Any = None, hand_over: bool = False) -> None:
        """
        Args:
            params: as of torch.optim.AdamW; `model.named_parameters()` gives the tensors of the store their names, by
                which a resume tells what was added, removed or renamed.
            store: the folder; made if it is missing.
            host_memory: what the library may take beside parameters and gradients, such as "32GiB". State that does not fit lives
                on the drive. None: half of the memory that is free when the optimizer is made, and no more than the state
                takes. The bits of a step do not depend on it.
            state: "fp32", "bf16" or "8bit", the format of the moments.
            clip: the largest global norm of the gradients; None for none. It may be changed between steps.
            save_every: steps from commit to commit while some of the state lives in host memory.
            missing: a parameter whose gradient is None is left out of the step, as torch.optim.AdamW leaves it out ("skip"), is
                refused by name ("error"), or has a gradient of zeros ("zero").
            threads: cores of an update; 0 for all that the process may use.
            allow_buffered: accept a file system without direct I/O.
            overlap: the module whose parameters these are. `step` then returns once the norm of the gradients is known, and
                the update and the commit go on behind the next forward pass: each parameter is waited for when the module,
                or a part of it, reads it as its attribute. Call `wait` before parameters are read in another way.
            full_state_dict: `state_dict()` holds the state itself, as `state_dict(full=True)` does. Trainers that keep
                several checkpoints, or go back to one after later steps were committed, need it.
            process_group: a group of torch.distributed whose processes share the store, each with a part of the state. All
                have the same gradients, as DistributedDataParallel makes them, or each has its part of each parameter, as
                fully_shard (FSDP2) makes them. They call `step`, `wait`, `save`, `usage`,
                `read_state`, `state_dict`, `load_state_dict` and `take_weights` together.
            hand_over: the backward pass hands each gradient over as soon as it has made it, and `.grad` is None again, so that
                no more than a few gradients take memory, of the GPU for instance. The store adds up those of several backward
                passes, in fp32, which takes 4 bytes of `host_memory` for each parameter.
        """
        if hand_over and process_group is not None:
            raise ValueError("hand_over and process_group: the processes average gradients after the backward pass has made them, "
                             "and these would be handed over before: leave hand_over out")
        self._store: Store | None = None
        # The gradients of parameters that the step that runs has not been waited for.
        self._running: dict[torch.Tensor, torch.Tensor | None] = {}
        self._is_running = False
        self._trailing: Trailing | None = None
        self._hooks: list[Any] = []
        self.clip = clip
        self.full_state_dict = full_state_dict
        #: Text that the commits of the steps to come keep, such as the position in the data.
        self.note = ""
        #: The outcome of the last step of this process.
        self.last_result: StepResult | None = None
        opened: Store | None = None
        try:
            with _agreeing(process_group) as shared:
                if missing not in MISSING:
                    raise ValueError(f"missing={missing!r} is none of {', '.join(map(repr, MISSING))}")
                if overlap is not None and not isinstance(overlap, torch.nn.Module):
                    raise TypeError(f"overlap is {overlap!r}: give the module whose parameters these are")
                groups, names = _named_groups(params)
                super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
                self._check_rates()
                self._offloaded = self._find_offloaded(names)
                # Gradients are added up by the store, and leave `.grad`.
                self._adds = hand_over or self._offloaded is not None
                trained = self._find_trained(names)
                self._gpu = gpu_of(trained)
                if self._offloaded is not None and overlap is not None:
                    raise ValueError("overlap: the module is offloaded, and a step of offloaded parameters ends before it returns")
                if overlap is not None:
                    check_overlap(overlap, trained)
                sharded = are_sharded([(name, parameter) for parameter, name in trained.items()], process_group)
                self._is_shared = bool(shared)
                opened = Store(store, host_memory=host_memory, state=state, threads=threads, save_every=save_every,
                               accumulate=self._adds, missing_gradients=missing, allow_buffered=allow_buffered, sharded=sharded,
                               **shared)
                self._index = self._register(opened, trained)
            opened.open()
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        self._store = opened
        self._names = {parameter: trained[parameter] for parameter in self._index}
        self._places = {parameter: (local_of(parameter).data_ptr(), parameter.dtype) for parameter in self._index}
        self._versions: dict[torch.Tensor, int] = {}
        # What the store was told last.
        self._factors: dict[torch.Tensor, tuple[float, bool]] = {}
        self.note = opened.note
        self._touch()
        self._overlaps = overlap is not None
        unwatch = watch(overlap, functools.partial(_wait_for, weakref.ref(self))) if overlap is not None else lambda: None
        self._finalizer = weakref.finalize(self, _end, opened, unwatch)
        # Keeps this object from living as long as the parameters.
        hook = functools.partial(_hand_over, weakref.ref(self))
        # A torch.amp.GradScaler then sets found_inf, and leaves the rest to step(), which refuses it.
        self._step_supports_amp_scaling = self._adds
        if self._adds and self._gpu is not None:
            self._trailing = Trailing(self._gpu, functools.partial(_hand_in_trailing, weakref.ref(self)))
        hooked: list[Any] = list(self._index) if self._adds else []  # PyTorch does not type the hook
        self._hooks = [parameter.register_post_accumulate_grad_hook(hook) for parameter in hooked]

    def _register(self, store: Store, trained: dict[torch.Tensor, str]) -> dict[torch.Tensor, int]:
        """Registers the parameters, and returns their numbers in the store."""
        name_stream(store, self._gpu)
        if self._offloaded is not None:
            store.use_stream(self._offloaded._stream.handle, self._offloaded._stream.closing.begin_store)
        return {parameter: self._add(store, name, parameter) for parameter, name in trained.items() if parameter.numel() > 0}

    def _find_trained(self, names: dict[int, str]) -> dict[torch.Tensor, str]:
        """Returns the parameters that a step changes, and their names."""
        given = [parameter for group in self.param_groups for parameter in group["params"]]
        trained = {parameter: names[id(parameter)] for parameter in given if parameter.requires_grad}
        if not given:
            raise ValueError("there are no parameters: an empty list, or an iterator that something else has used up, was given")
        if all(parameter.numel() == 0 for parameter in trained):
            raise ValueError(f"none of the {len(given)} parameters can be trained: they do not require a gradient, or have no elements")
        return trained

    def _find_offloaded(self, names: dict[int, str]) -> Any:
        """Returns what spillway.offload returned for the parameters, None if they are not offloaded."""
        found: dict[int, Any] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                offloaded = getattr(parameter, "spillway_stream", None)
                found[id(offloaded)] = (offloaded, names[id(parameter)])
        streams = [offloaded for offloaded, _ in found.values() if offloaded is not None]
        if len(streams) > 1:
            raise ValueError(f"{' and '.join(repr(name) for _, name in found.values())} are of different offloaded modules: "
                             "an optimizer takes the parameters of one")
        return streams[0] if streams else None

    @staticmethod
    def _add(store: Store, name: str, parameter: torch.Tensor) -> int:
        if parameter.dtype not in _DTYPES:
            raise ValueError(f"the parameter '{name}' is of {parameter.dtype}, not of float32, bfloat16 or float16")
        own = local_of(parameter)
        if not own.is_contiguous():
            raise ValueError(f"the parameter '{name}' is not contiguous: call .contiguous() on it before")
        whole, first = place_of(parameter)
        return store.add(name, own.data_ptr(), own.numel(), _DTYPES[parameter.dtype], cuda=on_gpu(parameter), whole_count=whole,
                         first=first)

    def _opened(self) -> Store:
        if self._store is None:
            raise ValueError("the optimizer is closed")
        return self._store

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._store is not None:
            raise ValueError("a store keeps the parameters that it was made with: give all groups to AdamW at once")
        super().add_param_group(param_group)

    def _check_rates(self) -> None:
        """Refuses before there is a store what its first step would refuse."""
        for group in self.param_groups:
            for name in _REFUSED:
                if group.get(name):
                    raise ValueError(f"a parameter group asks for {name}, which a store does not have")
            if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != 2:
                raise ValueError(f"betas is {group['betas']!r}: give two numbers")
            for name, value, end in (("lr", group["lr"], math.inf), ("eps", group["eps"], math.inf), ("clip", self.clip or 0.0, math.inf),
                                     ("weight_decay", group["weight_decay"], math.inf), ("betas[0]", group["betas"][0], 1.0),
                                     ("betas[1]", group["betas"][1], 1.0)):
                if isinstance(value, str) or not 0.0 <= value < end:
                    raise ValueError(f"{name} is {value!r}, and must be a number from 0 on{'' if end == math.inf else ' and below 1'}")
        self._rates()

    def _rates(self) -> dict[str, Any]:
        """Returns the rates that all groups share: the largest lr, and the one weight_decay that is not 0."""
        first, decays = self.param_groups[0], {float(group["weight_decay"]) for group in self.param_groups} - {0.0}
        for name in _ALIKE:
            if any(group[name] != first[name] for group in self.param_groups):
                raise ValueError(f"the parameter groups differ in {name}: a store has one for all of them")
        if len(decays) > 1:
            raise ValueError(f"the parameter groups have the weight decays {sorted(decays)}: a store has one, and 0")
        return {"lr": max(float(group["lr"]) for group in self.param_groups), "betas": tuple(first["betas"]),
                "eps": float(first["eps"]), "weight_decay": decays.pop() if decays else 0.0}

    def _set_factors(self, store: Store, lr: float) -> None:
        for group in self.param_groups:
            scale = float(group["lr"]) / lr if lr > 0.0 else 1.0
            factors = (scale, float(group["weight_decay"]) != 0.0)
            for parameter in group["params"]:
                if parameter in self._index and self._factors.get(parameter) != factors:
                    store.set_factors(self._index[parameter], *factors)
                    self._factors[parameter] = factors

    def _wait_for(self, parameter: torch.Tensor) -> None:
        """Waits until the parameter is that of the last step."""
        if parameter in self._running:
            self._opened().wait_tensor(self._index[parameter])
            self._running.pop(parameter, None)  # another thread may have waited, too

    def wait(self) -> None:
        """Waits until the last step is done, if `overlap` lets it go on."""
        if self._is_running:
            self.last_result = self._opened().wait()
            self._is_running, self._running = False, {}

    def _hand_in(self, store: Store, parameter: torch.Tensor, gradient: torch.Tensor, add: bool,
                 stream: Any = None) -> torch.Tensor:
        """Hands in a gradient, and returns the tensor that must stay until the step is done, unless it is added. stream: that
        of a GPU which makes it, if not the current one."""
        if parameter not in self._index:
            raise ValueError("a parameter that was frozen when the store was made has a gradient now: a store keeps the "
                             "parameters that it was made with")
        gradient = local_of(gradient)
        if gradient.is_sparse or gradient.layout != torch.strided:
            raise ValueError(f"the gradient of '{self._names[parameter]}' is sparse")
        dense = gradient.detach().contiguous()
        name_stream(store, self._gpu, stream)
        store.gradient(self._index[parameter], dense.data_ptr(), _DTYPES[dense.dtype], add=add, cuda=on_gpu(dense))
        return dense

    def _gradients(self, store: Store) -> dict[torch.Tensor, torch.Tensor]:
        """Hands in the gradients that no hook has, and returns those that must stay until the step is done."""
        kept, add = {}, self._adds
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or local_of(parameter).numel() == 0:
                    continue
                dense = self._hand_in(store, parameter, parameter.grad, add)
                if add:
                    parameter.grad = None
                else:
                    kept[parameter] = dense
        return kept

    def _check_places(self) -> None:
        for parameter, place in self._places.items():
            if place != (local_of(parameter).data_ptr(), parameter.dtype):
                raise ValueError(f"the parameter '{self._names[parameter]}' has moved to other memory or another type since "
                                 "the optimizer was made: convert the model first, and make the optimizer then")

    def _touch(self) -> None:
        """Tells autograd that the parameters have changed."""
        for parameter in self._index:
            torch.autograd.graph.increment_version(local_of(parameter))
            if hasattr(parameter, "spillway_stream"):
                parameter.spillway_stream._accept(parameter)
        self._versions = {parameter: local_of(parameter)._version for parameter in self._index}

    def _changed(self) -> list[torch.Tensor]:
        """Returns parameters that something else has given other values since the last step. Only those that were written to
        are compared with their masters. Processes read masters together, so one that was written to in any of them is
        compared in all, and the result is that of all."""
        written = self._true_in_any({parameter: local_of(parameter)._version != version
                                     for parameter, version in self._versions.items()})
        differs = {}
        for parameter in written:
            own = local_of(parameter)
            master = torch.empty(own.shape, dtype=torch.float32)
            self._opened().read(self._index[parameter], "master", master.data_ptr())
            differs[parameter] = not torch.equal(torch.empty_like(own).copy_(master), own)
        return self._true_in_any(differs)

    def _true_in_any(self, values: dict[torch.Tensor, bool]) -> list[torch.Tensor]:
        """Returns the parameters whose value is true in any process."""
        return [parameter for parameter, value in zip(values, self._any_of(list(values.values()))) if value] if values else []

    def _any_of(self, values: list[bool]) -> list[bool]:
        return self._opened().agree(flags=values) if self._is_shared else values

    @contextlib.contextmanager
    def _tells_others(self) -> Iterator[None]:
        """Lets the other processes raise what this one alone raises between calls that all make."""
        try:
            yield
        except Exception as error:
            if self._is_shared:
                with contextlib.suppress(StoreError):
                    self._opened().agree(str(error))
            raise

    def _check_values(self) -> None:
        changed = self._changed()
        if changed:
            raise ValueError(f"the parameter '{self._names[changed[0]]}' was changed by something else than the optimizer, whose "
                             "step would undo that: call take_weights() to make the values of parameters the masters")
        self._versions = {parameter: local_of(parameter)._version for parameter in self._index}

    @torch.no_grad()
    def take_weights(self) -> None:
        """Makes the values of parameters that something else has changed, such as `model.load_state_dict`, the master weights,
        and commits. The moments stay."""
        self.wait()
        self._check_places()
        store, changed = self._opened(), self._changed()
        name_stream(store, self._gpu)
        if changed:
            Replacement(masters_of(self._index, changed), store.last_step, store.applied_steps, steps_of(store)).write(store, self.note)
        self._touch()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clips, updates the parameters, and commits as the class says. Returns the closure's loss."""
        store, loss = self._opened(), None
        if self._adds and self.__dict__.pop("found_inf", None) is not None:
            raise ValueError("a GradScaler scales the loss, and the gradients of an offloaded module, or with hand_over=True, are "
                             "handed over scaled: use bfloat16, which needs none")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.wait()
        with self._tells_others():
            rates = self._rates()
            self._check_places()
        self._check_values()
        with self._tells_others():
            self._set_factors(store, rates["lr"])
            if not self._adds:
                store.forget_gradients()
            if self._trailing is not None:
                self._trailing.flush()
            kept = self._gradients(store)
        if self._overlaps:
            # A KeyboardInterrupt can come as soon as the step runs, and the step reads the gradients then.
            self._is_running, self._running = True, {parameter: kept.get(parameter) for parameter in self._index}
        name_stream(store, self._gpu)
        try:
            self.last_result = store.step(clip=self.clip or 0.0, note=self.note, wait=not self._overlaps, **rates)
        except ValueError:
            self._is_running, self._running = False, {}
            raise
        self._touch()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients, also those that backward passes have handed over. Gradients that are
        set to zero in place are waited for."""
        if not set_to_none:
            self.wait()
        super().zero_grad(set_to_none)
        if self._trailing is not None:
            self._trailing.forget()
        if self._adds:
            self._opened().forget_gradients()

    @property
    def last_step(self) -> int:
        """The number of the last step, over all processes that used the store."""
        return self._opened().last_step

    def save(self) -> None:
        """Commits the last step, unless it is committed."""
        self.wait()
        self._opened().save()

    def usage(self) -> Usage:
        """Returns the memory and the drive that the optimizer takes."""
        self.wait()
        return self._opened().usage()

    def read_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns copies of a parameter's "master", "exp_avg" and "exp_avg_sq", in fp32."""
        self.wait()
        if parameter not in self._index:
            raise ValueError("the parameter is none of the optimizer's, or is one that it does not train")
        return copies_of(parameter, self._opened(), self._index[parameter])

    def state_dict(self, full: bool | None = None) -> dict[str, Any]:
        """Commits the last step, and returns the parameter groups, and the store's folder and step. full: also the state as
        tensors, in the form of torch.optim.AdamW with the masters beside it, which takes 12 bytes of memory for each
        parameter; None: as `full_state_dict` says."""
        self.save()
        store = self._opened()
        made = {**super().state_dict(), "store": store.folder, "step": store.last_step}
        if self.full_state_dict if full is None else full:
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            made["applied_steps"] = store.applied_steps
            made["state"] = {number: {"step": torch.tensor(float(store.tensor_steps(self._index[parameter]))),
                                      **self.read_state(parameter)}
                             for number, parameter in enumerate(parameters) if parameter in self._index}
        return made

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the rates of parameter groups, and the state if the dictionary has it: that of `state_dict(full=True)`, or of
        torch.optim.AdamW, which has no masters, so the parameters' own values become them. The state is then committed.
        Without it, the store must be at the step that the dictionary was made at."""
        self.wait()
        store, replacement = self._opened(), None
        with self._tells_others():
            self._check_places()
            if state_dict["state"]:
                replacement = replacement_of(state_dict, self.param_groups, self._index, self._names)
            elif state_dict.get("step") != store.last_step:
                raise ValueError(f"the state_dict is of step {state_dict.get('step')} of {state_dict.get('store')}, and {store.folder} "
                                 f"is at step {store.last_step}: go on from that step, or make checkpoints with full_state_dict=True, "
                                 "which hold the state")
        if replacement is not None and replacement.is_in(store) and not self._changed():
            replacement = None  # trainers give an optimizer its own state back
        before = super().state_dict()
        try:
            super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
            self._rates()
            if replacement is not None:
                name_stream(store, self._gpu)
                replacement.write(store, self.note)
        except ValueError:
            super().load_state_dict(before)
            raise
        if replacement is not None:
            self._touch()

    def close(self) -> None:
        """Closes the store. Steps since the last commit are lost: call `save` before."""
        self._finalizer()
        self._store = None
        self._is_running, self._running = False, {}
        for hook in self._hooks:
            hook.remove()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the optimizer's store is open in this process, so it cannot be copied or pickled; state_dict() can")
