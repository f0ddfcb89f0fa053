"""TrainerAdapter: a guard in a loop that belongs to a trainer.

An adapter calls these where its trainer does the same, in every mode alike:

    start(...)               training begins: makes the guard
    begin_data(loader)       an epoch begins
    note_batch(batch, ...)   a micro-batch is about to be trained on
    guard.record(...)        its loss (undivided) and tokens; then the pre-clip norm of the step
    end(how)                 training ends, by itself or by an exception

Nothing else is needed for `recover`: an undo happens inside `optimizer.step()`, and the trainer's
loop, data, schedule, counters and callbacks go on.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import nn

from trimtab.core.config import Mode
from trimtab.live.guard import Guard
from trimtab.live.measure.step_loop import Step
from trimtab.live.shield import Shield
from trimtab.live.step_iterator import StepIterator
from trimtab.live.watch import watch

T = TypeVar("T")


class TrainerAdapter:
    """Starts and ends a guard, tells it of batches, and restores what it replaced."""

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
        self._noted = _Noted()
        self._iterator: StepIterator | None = None
        self._step: Step | None = None

    def start(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        run_dir: str | Path,
        step: int,
        facts: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        batch_loss: Callable[[Any], torch.Tensor] | None = None,
        **arguments: Any,
    ) -> Guard | None:
        """Make the guard; None if it could not be made: then leave the trainer alone.

        Args:
            model: The model as the trainer calls it.
            optimizer: What the trainer steps.
            run_dir: The folder of the trainer, if the user has named none.
            step: The number of the first step, counted as the trainer's own log does.
            facts: As for `trimtab.watch`.
            state: As for `trimtab.watch`: the trainer's scaler, and averages of the weights.
            batch_loss: Computes the loss of a batch as `note_batch` was given it, leaving no trace
                in the trainer; used in `recover`.
            arguments: Arguments of `trimtab.watch`; the user's options win.
        """
        self.end("training began again")
        if self._mode == Mode.RECOVER:
            arguments["batch_loss"] = batch_loss
        given = {
            **arguments,
            **self._options,
            "facts": {"step": step, **(facts or {}), **(self._options.get("facts") or {})},
            "state": {**(state or {}), **(self._options.get("state") or {})},
        }
        found = watch(model, optimizer, run_dir=self._run_dir or run_dir, mode=self._mode, **given)
        self.guard = found if isinstance(found, Guard) else None
        return self.guard

    def begin_data(self, loader: Any, position: int | None = None) -> None:
        """Begin an epoch: the batches from now on are of this loader.

        Args:
            loader: What the trainer reads, for its length.
            position: The position of its first batch; without it the positions continue.
        """
        if self.guard is not None and not self.shield.is_down:
            with self.shield.guarding("data"):
                self._step = None
                self._iterator = self.guard.step_iterator(
                    loader, batches=self._noted, data_position=position
                )

    def note_batch(self, batch: Any, *, begins_step: bool, seconds: float = 0.0) -> None:
        """Tell the guard of a batch, before the trainer moves it to the device if possible.

        Args:
            batch: What is trained on next; it is neither changed nor handed out again.
            begins_step: Whether it is the first micro-batch of its step.
            seconds: How long the trainer has waited for it.
        """
        if self._iterator is None or self.shield.is_down:
            return
        with self.shield.guarding("batch"):
            self._noted.append(batch)
            if begins_step or self._step is None:
                self._step = self._iterator.next_step()
            else:
                self._step.load()
            if self._step is not None:
                self._step.data_seconds += seconds

    def replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Call `function(original, ...)` instead of a method of this one object, until `end`."""
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, call)

    def clip(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """Call the trainer's own clipping, and record the norm from before it."""
        norm = original(*arguments, **options)
        if self.guard is not None and norm is not None:
            self.guard.record(grad_norm=norm)
        return norm

    def end(self, how: str | None) -> None:
        """Restore what was replaced, and close the guard; None lets the guard say how."""
        for owner, name, found in reversed(self._replaced):
            if found is None:  # the method of its class is used again
                vars(owner).pop(name, None)
            else:
                setattr(owner, name, found)
        self._replaced.clear()
        self._iterator = self._step = None
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


class _Noted:
    """The batches that the guard has been told of and has not read yet."""

    def __init__(self) -> None:
        self._batches: deque[Any] = deque()

    def append(self, batch: Any) -> None:
        self._batches.append(batch)

    def __iter__(self) -> "_Noted":
        return self

    def __next__(self) -> Any:
        if not self._batches:
            raise StopIteration
        return self._batches.popleft()


GUARD_FILE = "trimtab-guard.pt"
"""The file in a checkpoint of the trainer with what the gate has learnt and where the data is."""


def write_guard_file(folder: Path, guard_state: dict[str, Any]) -> None:
    torch.save(guard_state, folder / GUARD_FILE)


def load_guard_file(folder: Path, guard: Guard) -> bool:
    """Restore the guard from a checkpoint; return whether it has such a file."""
    path = folder / GUARD_FILE
    if not path.is_file():
        return False
    guard.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return True
