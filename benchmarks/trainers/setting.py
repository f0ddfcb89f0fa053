"""How a trainer is used, and what a run of it leaves."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trimtab.core.config import Config
from trimtab.selftest.promises import READS, Counting

STEPS, NAN_STEP = 16, 6
COUNTED = range(4, 12)
"""Steps whose host reads are counted: the state of the optimizer exists before them."""
BY_HAND = Config().override({"recover.snapshot_every": 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a trainer is used."""

    ranks: int
    precision: str
    accumulate: int

    def __str__(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.precision}, accumulation {self.accumulate}, {ranks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in a run."""

    mode: str | None
    """None: it is not watched."""
    has_nan: bool = False
    """Whether the loss of a batch is NaN, on the last rank only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run has left on one rank."""

    bits: str
    held: tuple[int, ...]
    """Steps that left parameters and moments as they were, counted from 1."""
    num_steps: int
    """Steps that were done, repeated ones included."""
    reads: int
    """Values that were read on the host in `COUNTED`."""


Train = Callable[[int, Path, Setting, Plan], Outcome]
"""One rank of a run."""


class Watching:
    """Compares parameters and moments from step to step, and counts host reads."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._counting = Counting()
        self._reads = 0

    def look(self, model: Any, optimizer: Any) -> None:
        """After each step."""
        if len(self._seen) == COUNTED.stop:
            self._counting.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._reads = sum(self._counting.counts[name] for name in READS)
        tensors = [*model.parameters()]
        for state in getattr(optimizer, "optimizer", optimizer).state.values():
            tensors += [torch.as_tensor(value) for value in state.values()]
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().float().numpy().tobytes())
        self._seen.append(digest.hexdigest())
        if len(self._seen) == COUNTED.start:
            self._counting.__enter__()  # type: ignore[no-untyped-call]

    def outcome(self, rate: Any) -> Outcome:
        """The bits at the end, with the schedule and the random numbers."""
        rest = repr(rate).encode() + torch.get_rng_state().numpy().tobytes()
        return Outcome(
            bits=hashlib.sha256(self._seen[-1].encode() + rest).hexdigest(),
            held=held_steps(self._seen),
            num_steps=len(self._seen),
            reads=self._reads,
        )


def held_steps(seen: list[str]) -> tuple[int, ...]:
    """The steps, counted from 1, after which everything is as it was before."""
    return tuple(n + 1 for n in range(1, len(seen)) if seen[n] == seen[n - 1])
