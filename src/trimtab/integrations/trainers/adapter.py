"""TrainerAdapter: a guard in a loop that belongs to a trainer.

An adapter calls these where its trainer does the same:

    start(...)                  training begins: makes the guard
    guard.record(...)           each micro-batch: loss (undivided), tokens; then the pre-clip norm
    next_batches(loader, ...)   the trainer asks for the batches of its next step
    end(how)                    training ends, by itself or by an exception

In `recover` the guard rolls back to an earlier step inside `next_batches`, where the trainer is
between two steps. Four things are restored:

    weights, optimizer, ...     the guard's snapshots; give schedulers and scaler to `start`
    the trainer's counters      `counters`: an object whose `state_dict` has the position of the
                                trainer (plain values and tensors), and whose `load_state_dict`
                                restores it
    data                        by the guard's tape: `next_batches` serves undone batches again and
                                leaves out those that are skipped
    callbacks of others         not by themselves: what they count goes into `counters`, if it can

A trainer that gets its batches from `next_batches` and has `counters` can recover. One that cannot
gives `cannot_recover`: the mode falls back to `protect`, and the log says why.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import nn

from trimtab.core.config import Mode
from trimtab.live.guard import Guard
from trimtab.live.loop.step_iterator import StepIterator
from trimtab.live.shield import Shield, log
from trimtab.live.watch import watch
from trimtab.state.training_state import HasState

COUNTERS = "trimtab: trainer"
"""The name of the trainer's counters among the state that returns with the run."""

T = TypeVar("T")


class TrainerAdapter:
    """Starts and ends a guard, hands out batches, and restores what it replaced."""

    def __init__(
        self, run_dir: str | Path | None, mode: Mode | str = Mode.OBSERVE, **options: Any
    ) -> None:
        """Keep what the user wants; nothing is touched before `start`.

        Args:
            run_dir: The folder of the run; None for the one that the trainer writes to.
            mode: As for `trimtab.watch`.
            options: Other arguments of `trimtab.watch`.
        """
        self._run_dir = run_dir
        self._mode = mode
        self._options = options
        self.guard: Guard | None = None
        """The guard of the present run; None before it and after it."""
        self.shield = Shield("trainer adapter", "the guard gets no numbers from it any more")
        """For what an adapter does by itself: an error in it must not reach the trainer."""
        self._replaced: list[tuple[Any, str, Any]] = []
        self._batches: Iterable[Any] | None = None
        self._iterator: StepIterator | None = None

    def start(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        run_dir: str | Path,
        step: int,
        facts: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        counters: HasState | None = None,
        cannot_recover: str = "",
        **arguments: Any,
    ) -> Guard | None:
        """Make the guard; None if it could not be made: then leave the trainer alone.

        Args:
            model: The model as the trainer calls it.
            optimizer: What the trainer steps.
            run_dir: The folder of the trainer, if the user has named none.
            step: The number of the first step, counted as the trainer's own log does.
            facts: As for `trimtab.watch`.
            state: As for `trimtab.watch`: the trainer's schedulers and scaler.
            counters: The position of the trainer, restored by a rollback.
            cannot_recover: Why this run can only be protected, if that is so.
            arguments: Arguments of `trimtab.watch`; the user's options win.
        """
        self.end("training began again")
        mode = Mode(self._mode) if self._mode in list(Mode) else self._mode
        if mode is Mode.RECOVER and cannot_recover:
            log.warning("trimtab: mode 'recover' falls back to 'protect': %s", cannot_recover)
            mode = Mode.PROTECT
        everything = {**(state or {}), **(self._options.get("state") or {})}
        if mode is Mode.RECOVER and counters is not None:
            everything[COUNTERS] = counters
        given = {
            **arguments,
            **self._options,
            "facts": {"step": step, **(facts or {}), **(self._options.get("facts") or {})},
            "state": everything,
        }
        found = watch(model, optimizer, run_dir=self._run_dir or run_dir, mode=mode, **given)
        self.guard = found if isinstance(found, Guard) else None
        return self.guard

    def next_batches(
        self, loader: Any, batches: Iterable[Any], size: int, *, position: int | None = None
    ) -> list[Any]:
        """Return the batches of the next step; fewer than `size`, or none, at the end of the data.

        Args:
            loader: What the trainer reads, for its length and number of workers.
            batches: The trainer's iterator of this epoch; a new one begins a new epoch.
            size: How many micro-batches the step has.
            position: The position of the first batch, at the start of a run or after a resume.
        """
        if self.guard is None:
            raise RuntimeError("next_batches was called before start")
        if self._iterator is None or batches is not self._batches:
            self._batches = batches
            self._iterator = self.guard.step_iterator(
                loader, size, batches=batches, data_position=position
            )
        try:
            step = self._iterator.next_step(size)
            return [] if step is None else list(step)
        except BaseException as error:  # a run that ends itself, or a loader that fails
            self.end(f"raised {type(error).__name__}")
            raise

    def replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Call `function(original, ...)` instead of a method of this one object, until `end`."""
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, call)

    def end(self, how: str | None) -> None:
        """Restore what was replaced, and close the guard; None lets the guard say how."""
        for owner, name, found in reversed(self._replaced):
            if found is None:  # the method of its class is used again
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, found)
        self._replaced.clear()
        self._batches = self._iterator = None
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.close(how)


def find_caller(kind: type[T]) -> T | None:
    """Return the object of this class that calls us: trainers do not pass themselves on."""
    callers = (variables.get("self") for variables in caller_variables())
    return next((found for found in callers if isinstance(found, kind)), None)


def caller_variables() -> list[Mapping[str, Any]]:
    """Return the local variables of each function that is being executed, the innermost first."""
    found: list[Mapping[str, Any]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append(frame.f_locals)
        frame = frame.f_back
    return found


GUARD_FILE = "trimtab-guard.pt"
"""The file in a checkpoint of the trainer with what the gate has learnt and where the data is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMark:
    """Where in the data a checkpoint was saved."""

    position: int
    """The position of the next batch."""
    skipped: int = 0
    """Batches that had been left out before it; the trainer does not know of them."""


def write_guard_file(folder: Path, guard_state: dict[str, Any], mark: DataMark) -> None:
    """Save what the guard knows beside what the trainer has saved."""
    torch.save({"guard": guard_state, **asdict(mark)}, folder / GUARD_FILE)


def load_guard_file(folder: Path, guard: Guard) -> DataMark | None:
    """Restore the guard from a checkpoint; return None if it has no such file."""
    path = folder / GUARD_FILE
    if not path.is_file():
        return None
    saved = torch.load(path, map_location="cpu", weights_only=True)
    guard.load_state_dict(saved["guard"])
    return DataMark(position=int(saved["position"]), skipped=int(saved["skipped"]))


@contextmanager
def hidden_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Hide gradients between two steps, and restore the same tensors afterwards.

    For a trainer that clears them at the start of the next step: until then they have no meaning,
    and a snapshot need not hold them. Hooks of the user may still read them, and a CUDA graph
    writes to their addresses.
    """
    used = [(p, p.grad) for p in parameters if p.grad is not None]
    for parameter, _ in used:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in used:
            parameter.grad = gradient
