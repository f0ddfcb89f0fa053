"""LogicalState: what a checkpoint holds, whatever its format and however many ranks wrote it.

    weights.layers.0.bias            float32 [64], digest of its bits
    moments.layers.0.bias.exp_avg    the same; numbered moments are named by the other checkpoint
    moments.layers.0.bias.step       a number
    options.0.lr, schedule.last_epoch, scaler.scale, step, data_position

Each tensor is read, reduced to a digest and dropped before the next one.
"""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.core.errors import RestoreError
from trimtab.state.checkpoints.formats import Keys, entries_of, leaves

_USUAL = {
    "weights": ("model", "state_dict", "module", "model_state_dict", "weights"),
    "optimizer": ("optimizer", "optimizers", "optim", "optimizer_states", "optimizer_state_dict"),
    "schedule": ("scheduler", "schedulers", "lr_scheduler", "lr_schedulers"),
    "scaler": ("scaler", "grad_scaler"),
    "step": ("step", "global_step", "iteration"),
    **{name: (name,) for name in ("state", "ema", "epoch", "data_position", "buffers")},
}
_TOP = {name: ours for ours, names in _USUAL.items() for name in names}
"""What the first key of an entry is called, by its usual names; others are no part of the state."""

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_HOW = {
    *("params", "param_names", "foreach", "fused", "capturable", "differentiable"),
    *("_get_lr_called_within_step", "_is_initial", "verbose"),
}
"""What says how an update or a rate is computed, or differs between versions of torch."""


@dataclass(frozen=True, slots=True)
class Digest:
    """One entry: two are the same if all of it is equal."""

    kind: str
    """Dtype and shape of a tensor; empty for a plain value."""
    content: str
    """Digest of a tensor's bits; a plain value as text."""

    def __str__(self) -> str:
        return f"{self.kind} {self.content[:8]}" if self.kind else self.content[:60]


MAX_EXPANDED = 2**28
"""Bytes up to which a tensor may be larger than what is stored of it. Chosen."""

Difference = tuple[Digest | None, Digest | None]
"""An entry of one checkpoint and of the other; None is missing."""


@dataclass(frozen=True, slots=True)
class LogicalState:
    """The entries of a checkpoint, by names that are the same in every format."""

    entries: dict[str, Digest] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """First keys of what is not compared, such as random numbers."""

    @classmethod
    def read(cls, path: Path) -> "LogicalState":
        """Read a checkpoint, one tensor at a time; raises RestoreError if it cannot be read."""
        state = cls()
        try:
            found = list(entries_of(path))
            is_flat = not any(_TOP.get(keys[0]) == "weights" and keys[1:] for keys, _ in found)
            for keys, load in found:
                name = _name(keys, is_flat=is_flat)
                for more, value in leaves(load()) if name else ():
                    state._add(".".join((name, *more)), value)
                if not name:
                    state.left_out.add(keys[0])
        except RestoreError:
            raise
        except Exception as error:  # a stranger's file may be wrong in any way
            reason = re.split(r"\n|\. ", str(error))[0][:200] or type(error).__name__
            text = f"{path} is no checkpoint, or cannot be read without unpickling it: {reason}"
            raise RestoreError(text) from error
        if not state.entries:
            raise RestoreError(f"{path} holds no weights, moments, schedule or step")
        return state

    def differences(self, other: "LogicalState") -> dict[str, Difference]:
        """Return what differs, by name."""
        one, two = _named_by(self.entries, other.entries), _named_by(other.entries, self.entries)
        pairs = {name: (one.get(name), two.get(name)) for name in sorted({*one, *two})}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def _add(self, name: str, value: Any) -> None:
        is_weight, last = name.startswith("weights."), name.rpartition(".")[2]
        if is_weight and not isinstance(value, Tensor):
            self.left_out.add(name)
        elif is_weight or last not in _HOW:
            is_number = last == "step" or name.startswith("options.")
            if is_number and isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()  # optimizers keep it in either way
            digest = _digest(value)
            if self.entries.setdefault(name, digest) != digest:
                raise RestoreError(f"the checkpoint has two different entries for {name}")


def _name(keys: Keys, *, is_flat: bool) -> str:
    """Return the name of an entry in every format; empty if it is no part of the state."""
    top, _, rest = keys[0].partition(".")
    if len(keys) == 1 and _TOP.get(top) == "optimizer" and rest:
        keys = (top, *rest.split(".", 1))
        if keys[1] == "state":
            keys = (*keys[:2], *keys[2].rsplit(".", 1))
    elif len(keys) == 1 and is_flat and keys[0] not in _TOP:
        keys = ("weights", *keys)
    kind, parts = _TOP.get(keys[0], ""), list(keys[1:])
    while kind in ("optimizer", "schedule") and parts[:1] == ["0"]:  # a list of one
        del parts[0]
    if kind == "optimizer" and "state" in parts:
        at = parts.index("state")
        return ".".join(["moments", *parts[:at], _unwrapped(parts[at + 1]), *parts[at + 2 :]])
    if kind == "optimizer":
        return ".".join(["options", *(part for part in parts if part != "param_groups")])
    return ".".join([kind, *map(_unwrapped, parts)])


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _digest(value: Any) -> Digest:
    if not isinstance(value, Tensor):
        return Digest("", _text(value))
    stored, size = value.untyped_storage().nbytes(), value.numel() * value.element_size()
    if size > max(stored, MAX_EXPANDED):  # expanded: a small file may claim any size
        raise RestoreError(f"a tensor claims {size:,} bytes, of which {stored:,} are stored")
    plain = value.detach().contiguous().reshape(-1).view(torch.uint8)
    content = hashlib.blake2b(plain.numpy().data, digest_size=16).hexdigest()
    return Digest(f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}", content)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    is_whole = type(value) is float and value.is_integer()
    return repr(int(value)) if is_whole else repr(value)


def _named_by(entries: dict[str, Digest], other: dict[str, Digest]) -> dict[str, Digest]:
    """Return entries with names for moments that torch's optimizers save by number.

    They get the names that the other checkpoint has for the same content; what differs, the name
    of what is left there and is most like it.
    """
    numbered, named = _moments(entries), _moments(other)
    if not all(owner.isdigit() for owner in numbered) or set(numbered) & set(named):
        return entries
    found = {name: entry for name, entry in entries.items() if not name.startswith("moments.")}
    for is_second_look in (False, True):
        for number, content in list(numbered.items()):
            alike = {name: len(content.items() & part.items()) for name, part in named.items()}
            best = max(alike, key=alike.__getitem__, default=number)
            if is_second_look or named.get(best) == content:
                del numbered[number]
                named.pop(best, None)
                found |= {f"moments.{best}.{key}": entry for key, entry in content.items()}
    return found


def _moments(entries: dict[str, Digest]) -> dict[str, dict[str, Digest]]:
    groups: dict[str, dict[str, Digest]] = {}
    for name, entry in entries.items():
        if name.startswith("moments."):
            owner, _, key = name.removeprefix("moments.").rpartition(".")
            groups.setdefault(owner, {})[key] = entry
    return groups
