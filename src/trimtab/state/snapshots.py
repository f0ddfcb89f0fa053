"""Snapshots: copies of the trained state in host memory, taken after an update, restored in place.

One optimizer has its parameters and their state copied together, right after it has moved, and gets
them back together, right before it would move again: the other models of a GAN may be in the middle
of a backward pass then. With the first optimizer go the parts that belong to none: buffers, extra
state of modules, the scaler, and what the user named in `state=`.

Not copied, because it goes on: data, schedulers, random numbers, counters, options of the
optimizers other than those that they write themselves, `requires_grad`. Frozen parameters have not
changed.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core.errors import RestoreError
from trimtab.state import host_copy
from trimtab.state.sharded_types import is_fsdp2
from trimtab.state.training_state import HasState, parameters_of

NUM_SLOTS = 4
"""Snapshots of each optimizer. One must be from before all that is not known yet: with a snapshot
after each update that is 2 more than the 2 updates (`live.lag_steps`) that news takes."""

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and use of a container's memory, in both versions of control groups."""


@dataclass(slots=True)
class _BufferWrites:
    """How often a buffer has changed, by torch's count; fused kernels are not counted."""

    written: host_copy.WriteCount
    num_changes: int = 0
    last_change: int = -1
    """The number of updates that had been made before the last change."""


class OtherState:
    """The parts of a run that change in training and belong to no optimizer.

    A buffer that code has changed since a snapshot is not restored: a pruning mask, a temperature.
    One that changes with the training itself is: the running statistics of normalization layers,
    and what has changed in at least every second update, such as the codebook of a VQ-VAE.
    """

    def __init__(self, model: nn.Module, scaler: Any, named: Mapping[str, HasState]) -> None:
        self._model = model
        self._scaler = scaler
        self._named = dict(named)
        self._writes: dict[str, _BufferWrites] = {}
        self._num_updates = 0
        self._held: list[dict[str, torch.Tensor | None]] = []
        """The buffers of each module, as of the last snapshot."""

    def values(self) -> dict[str, Any]:
        """Return everything that is copied, tensors as they are."""
        self._held = [module._buffers for module in self._model.modules()]
        return {
            "buffers": {name: b for name, b in self._model.named_buffers() if _is_copied(b)},
            "extra state": {
                name: module.get_extra_state()
                for name, module in self._model.named_modules()
                if type(module).get_extra_state is not nn.Module.get_extra_state
            },
            "scaler": {
                name: value
                for name in ("_scale", "_growth_tracker")
                if (value := getattr(self._scaler, name, None)) is not None
            },
            "named": {name: part.state_dict() for name, part in self._named.items()},
        }

    def before_update(self, num_updates: int) -> None:
        """Note which buffers have changed since the last update, without reading any."""
        self._num_updates = num_updates
        # Most models have none: to look through all modules takes long.
        for name, buffer in self._model.named_buffers() if any(self._held) else ():
            written = host_copy.write_count(buffer)
            known = self._writes.setdefault(name, _BufferWrites(written))
            if known.written != written:
                known.written = written
                known.num_changes += 1
                known.last_change = num_updates

    def restore(self, saved: Mapping[str, Any], step: int) -> None:
        """Copy everything back as of `step` updates; what loads itself gets tensors of its own."""
        copies = host_copy.CopyToLive()
        for value, buffer in self.buffers(saved, step):
            copies.restore(value, buffer)
        for name, value in saved["scaler"].items():
            copies.restore(value, getattr(self._scaler, name))
        copies.finish()
        modules = dict(self._model.named_modules())
        for name, value in saved["extra state"].items():
            if name in modules:
                modules[name].set_extra_state(_as_tensors(value))
        for name, value in saved["named"].items():
            self._named[name].load_state_dict(_as_tensors(value))

    def buffers(
        self, saved: Mapping[str, Any], step: int
    ) -> Iterator[tuple[host_copy.HostTensor, torch.Tensor]]:
        """Yield those that a restore writes to, each with its copy."""
        # Past autograd: a graph of another optimizer may still hold these buffers.
        live = {name: b.data for name, b in self._model.named_buffers()}
        trained = running_statistics(self._model)
        for name, value in saved["buffers"].items():
            is_kept = name not in trained and self._is_written_by_code(name, step)
            if name in live and value.matches(host_copy.detached(live[name])) and not is_kept:
                yield value, live[name]

    @torch.no_grad()
    def repair(self, saved: Mapping[str, Any]) -> None:
        """Replace the running statistics that are not finite, element by element."""
        for name, buffer in running_statistics(self._model).items():
            value, live = saved["buffers"].get(name), host_copy.detached(buffer).data
            if value is not None and value.matches(live):
                then = value.data.to(live.device, non_blocking=True)
                live.copy_(torch.where(live.isfinite(), live, then))

    def _is_written_by_code(self, name: str, step: int) -> bool:
        writes = self._writes.get(name)
        if writes is None or writes.last_change < step:
            return False
        return writes.num_changes * 2 < self._num_updates


def running_statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that normalization layers compute in the forward pass, by name."""
    return {
        f"{name}.{key}" if name else key: buffer
        for name, module in model.named_modules()
        if getattr(module, "track_running_stats", False)
        for key, buffer in module.named_buffers(recurse=False)
        if buffer.is_floating_point() and _is_copied(buffer)
    }


class OptimizerNumbers:
    """Numbers that an optimizer keeps outside of its state of parameters, and writes itself.

    Prodigy has its step size in `param_groups`, schedule-free optimizers a count and a sum of
    weights. Which entries are its own shows when `step` changes them; what schedules and users
    write between two steps is theirs.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        """Whether it is one of torch's, which keep all such numbers in their state."""
        self._before: dict[tuple[int, str], Any] = {}
        self._own: set[tuple[int, str]] = set()

    def before_step(self) -> None:
        if not self._is_torchs:
            self._before = {key: _identity(value) for key, value in self.values().items()}

    def after_step(self) -> None:
        """Find those that `step` has changed."""
        for key, value in self.values().items() if self._before else ():
            if key in self._before and self._before[key] != _identity(value):
                self._own.add(key)
        self._before = {}

    def values(self) -> dict[tuple[int, str], Any]:
        """Return all numbers by group and name; those on the optimizer itself have group -1."""
        held = [(-1, vars(self._optimizer)), *enumerate(self._optimizer.param_groups)]
        return {
            (at, name): value
            for at, entries in held
            for name, value in entries.items()
            if type(value) in (int, float) or (at >= 0 and isinstance(value, torch.Tensor))
        }

    def restore(self, saved: Mapping[tuple[int, str], Any], copies: host_copy.CopyToLive) -> None:
        groups = self._optimizer.param_groups
        for at, name in self._own & saved.keys():
            if at < len(groups):
                entries = vars(self._optimizer) if at < 0 else groups[at]
                entries[name] = copies.restore(saved[at, name], entries.get(name))


def _identity(value: Any) -> Any:
    """Return what differs after a write, without reading a tensor."""
    return (id(value), value._version) if isinstance(value, torch.Tensor) else value


@dataclass(slots=True)
class _Slot:
    """One copy; taking another into it reuses its memory."""

    step: int = -1
    """The first step that it does not contain; -1 while it is empty."""
    is_clean: bool = False
    """Whether an audit of this state has found nothing, on all ranks."""
    parameters: list[int] = field(default_factory=list)
    """The ids of the parameters: one that was replaced cannot be restored."""
    content: dict[str, Any] = field(default_factory=dict)
    num_bytes: int = 0


class Snapshots:
    """The newest copies of every optimizer's state, the oldest first."""

    def __init__(
        self, optimizers: Sequence[Optimizer], others: OtherState, *, budget: Callable[[], int]
    ) -> None:
        self._optimizers = optimizers
        self._others = others
        self._numbers = [OptimizerNumbers(optimizer) for optimizer in optimizers]
        self._slots: list[list[_Slot]] = [[] for _ in optimizers]
        self._aside = host_copy.SideStream()
        self.is_cramped = False
        """Whether there is no memory for `NUM_SLOTS`."""
        self.kept_step: int | None = None
        """The snapshot that no newer one replaces; None if each may."""
        self._budget: int | None = None
        self._find_budget = budget

    @property
    def num_bytes(self) -> int:
        """Host memory that the copies take on this rank."""
        return sum(slot.num_bytes for slots in self._slots for slot in slots)

    @property
    def is_copying(self) -> bool:
        """Whether the last copy may not be whole yet: it is, from the next update on."""
        return self._aside.is_busy

    def take(self, index: int, step: int) -> bool:
        """Copy the state of an optimizer before `step`; return whether memory was reused, which
        takes a tenth of the time. Raises MemoryError if two copies do not fit."""
        slots = self._slots[index]
        content = self._content(index)
        num_fitting, size = self._num_fitting(index, content)
        self.is_cramped = num_fitting < NUM_SLOTS
        if num_fitting < 2:
            raise MemoryError(
                f"two snapshots need {2 * size / 1e9:.1f} GB of host memory and "
                f"recover.memory_share leaves {(self._budget or 0) / 1e9:.1f} GB"
            )
        del slots[: max(len(slots) - num_fitting, 0)]
        is_reused = len(slots) == num_fitting
        oldest = int(slots[0].step == self.kept_step) if is_reused else 0
        slot = slots.pop(oldest) if is_reused else _Slot()
        slot.step, slot.is_clean = -1, False  # a copy that fails half-way must not be a target
        copies, moments = host_copy.CopyToHost(), host_copy.CopyToHost()
        slot.content = {
            name: (moments if name == "state" else copies).copy(value, slot.content.get(name))
            for name, value in content.items()
        }
        # Only an update writes moments. Code may write weights and buffers before the next one.
        slot.num_bytes = copies.finish() + moments.finish(self._aside)
        slot.parameters = [id(p) for p in parameters_of([self._optimizers[index]])]
        slot.step = step
        slots.append(slot)
        return is_reused

    def mark_clean(self, index: int, step: int) -> None:
        """Remember that the audit of a state has found nothing."""
        for slot in self._slots[index]:
            slot.is_clean = slot.is_clean or slot.step == step

    def newest(self, index: int, step: int) -> int | None:
        """Return the step of the newest clean snapshot at or before a step; None without one.

        A snapshot of other parameters, such as before a layer was added, does not count.
        """
        parameters = parameters_of([self._optimizers[index]])
        ids = [id(p) for p in parameters]
        for slot in reversed(self._slots[index]):
            if slot.is_clean and slot.step <= step and slot.parameters == ids:
                pairs = zip(slot.content["parameters"], parameters, strict=True)
                if all(saved.matches(host_copy.detached(live)) for saved, live in pairs):
                    return slot.step
        return None

    def parameters(self, index: int, step: int) -> list[host_copy.HostTensor]:
        found: list[host_copy.HostTensor] = self._slot(index, step).content["parameters"]
        return found

    def forward_state(self, index: int, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the tensors that a forward pass reads, each with its values in a snapshot.

        What is written to them past autograd is counted by no version.
        """
        content = self._slot(index, step).content
        pairs = list(
            zip(content["parameters"], parameters_of([self._optimizers[index]]), strict=True)
        )
        if "others" in content:
            pairs += self._others.buffers(content["others"], step)
        return [(host_copy.detached(live).data, saved.data) for saved, live in pairs]

    def repair_buffers(self, step: int) -> None:
        """Replace running statistics that are not finite by those of a snapshot."""
        self._others.repair(self._slot(0, step).content["others"])

    def restore(self, index: int, step: int) -> None:
        """Copy a snapshot back into the same tensors, and drop the later ones.

        Raises RestoreError before anything is written if the optimizer has other parameters now.
        """
        self._aside.join()
        slots, slot = self._slots[index], self._slot(index, step)
        optimizer = self._optimizers[index]
        parameters = parameters_of([optimizer])
        if self.newest(index, step) != step:
            raise RestoreError(
                f"the parameters are not those of the snapshot before step {step}; nothing was "
                "changed"
            )
        copies = host_copy.CopyToLive()
        copies.restore(slot.content["parameters"], parameters)
        for position, parameter in enumerate(parameters):
            saved = slot.content["state"].get(position)
            if saved is None:  # made by an update that is undone
                optimizer.state.pop(parameter, None)
            else:
                optimizer.state[parameter] = copies.restore(saved, optimizer.state.get(parameter))
        shared = slot.content["shared"]
        for key in [k for k in optimizer.state if not isinstance(k, torch.Tensor)]:
            if key not in shared:
                del optimizer.state[key]
        for key, saved in shared.items():
            optimizer.state[key] = copies.restore(saved, optimizer.state.get(key))
        self._numbers[index].restore(slot.content["numbers"], copies)
        copies.finish()
        if "others" in slot.content:
            self._others.restore(slot.content["others"], step)
        self._slots[index] = slots[: slots.index(slot) + 1]

    def before_update(self, index: int, num_updates: int) -> None:
        """Note what may change in the update that comes now, and what has changed before it."""
        self._aside.join()
        self._numbers[index].before_step()
        if index == 0:
            self._others.before_update(num_updates)

    def after_update(self, index: int) -> None:
        """Note what the update has changed."""
        self._numbers[index].after_step()

    def drop(self) -> None:
        self._slots = [[] for _ in self._optimizers]

    def _slot(self, index: int, step: int) -> _Slot:
        return next(slot for slot in self._slots[index] if slot.step == step)

    def _content(self, index: int) -> dict[str, Any]:
        optimizer = self._optimizers[index]
        parameters = parameters_of([optimizer])
        content: dict[str, Any] = {
            "parameters": parameters,
            "state": {
                position: dict(optimizer.state[parameter])
                for position, parameter in enumerate(parameters)
                if parameter in optimizer.state  # a defaultdict: asking would make an entry
            },
            "shared": {
                key: value
                for key, value in optimizer.state.items()
                if not isinstance(key, torch.Tensor)
            },
            "numbers": self._numbers[index].values(),
        }
        if index == 0:
            content["others"] = self._others.values()
        return content

    def _num_fitting(self, index: int, content: dict[str, Any]) -> tuple[int, int]:
        """Return how many snapshots of an optimizer fit, at most `NUM_SLOTS`, and the size of one.

        One of each optimizer is meant, as they share the budget.
        """
        if self._budget is None:
            self._budget = self._find_budget()
        size = _num_bytes(content)
        others = (self._content(o) for o in range(len(self._optimizers)) if o != index)
        total = size + sum(map(_num_bytes, others))
        return min(NUM_SLOTS, self._budget // max(total, 1)), size


def reshard(model: nn.Module) -> None:
    """Drop unsharded parameters: FSDP gathers them again from what was restored."""
    for module in model.modules():
        if is_fsdp2(module):
            module.reshard()


def free_memory() -> int:
    """Return the bytes of host memory that are free, in the container if there is one."""
    found = []
    try:
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit, used in _CGROUPS:
        try:
            found.append(int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # "max": there is no limit
            continue
    return max(min(found), 0)


_RANKS_PER_MACHINE = (
    *("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    *("MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
)
"""Variables that torchrun, Open MPI, Intel MPI, MVAPICH and Slurm set."""


def ranks_here(world: int, num_here: int = 0) -> int:
    """Return how many of all ranks share the memory of this machine; all if that is not known.

    `num_here` have the name of this machine; 0 if they were not counted.
    """
    if num_here:
        return num_here
    for name in _RANKS_PER_MACHINE:
        # Slurm lists machines, such as "8(x4),6": the largest number is the safe one.
        counts = [int(n) for n in re.findall(r"(?<![x\d])\d+", os.environ.get(name, ""))]
        if counts and max(counts) > 0:
            return min(max(counts), world)
    return world


def _is_copied(buffer: torch.Tensor) -> bool:
    return not buffer.is_sparse and buffer.device.type != "meta"


def _as_tensors(saved: Any) -> Any:
    """Return a copy as ordinary tensors, for objects that load a state themselves."""
    copies = host_copy.CopyToLive()
    value = copies.restore(saved, None)
    copies.finish()
    return value


def _num_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        size = host_copy.detached(value).nbytes
        # Torch's allocator of pinned memory rounds up to a power of two.
        return 1 << max(size - 1, 0).bit_length() if value.is_cuda else size
    if isinstance(value, Mapping):
        return sum(map(_num_bytes, value.values()))
    return sum(map(_num_bytes, value)) if isinstance(value, list | tuple) else 0
