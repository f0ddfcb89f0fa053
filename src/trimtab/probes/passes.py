"""What an experiment asks for and what comes back: question, pass, result, answer.

Question --> experiment --Pass--> the guard restores, the user's loop runs the steps again
                        <-Result-  what was measured, the same on all ranks
                        ...
                        --> Answer
"""

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

MARGIN_STEPS = 3
"""Steps before the step in question at which the run was still healthy. Source: sharp onsets are
judged 0 to 3 steps late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A step as it was when it was trained on, over all ranks."""

    step: int
    loss: float | None
    grad_norm: float | None
    position: int
    """Data position of its first batch."""
    discarded: bool = False
    """Whether the gate discarded its update."""
    largest_loss: float | None = None
    """The largest loss of a rank; None with one rank or if not recorded."""
    largest_loss_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a run is about to do against an incident."""

    name: str
    target: int
    """The step that it returns to."""
    skip: tuple[int, ...] = ()
    """Data positions that are passed over."""
    hold: tuple[str, ...] = ()
    """Options of optimizers that stay as they were there."""
    lr_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which experiment is made, about which step of the run."""

    experiment: str
    """The name of the experiment."""
    incident: int
    """The number of the incident; 0 if a person has asked."""
    step: int
    """The step in question: the first odd one."""
    originals: tuple[Original, ...]
    """The steps from before the first snapshot that is used up to the present."""
    slots: tuple[int, ...] = ()
    """The steps of the snapshots, oldest first."""
    accumulate: int = 1
    """Batches of a step."""
    present: int = 0
    """The step that the run is about to do."""
    world: int = 1
    max_steps: int = 120
    """Steps that may be done again for it (`probes.max_steps`)."""
    remedy: Remedy | None = None
    """What the experiment `remedy` tries."""

    @property
    def slot(self) -> int | None:
        """The newest snapshot from which the step can be done again."""
        older = [slot for slot in self.slots if slot <= self.step]
        return older[-1] if older else None

    @property
    def start(self) -> int:
        """Where a replay begins: a snapshot with a margin, because onsets are dated late."""
        older = [slot for slot in self.slots if slot <= self.step - MARGIN_STEPS]
        return older[-1] if older else self.step

    def original(self, step: int) -> Original | None:
        """A step as it was; None if it is not known."""
        return next((one for one in self.originals if one.step == step), None)

    def positions(self, step: int) -> tuple[int, ...]:
        """The data positions of a step's batches; empty if they are not known."""
        one = self.original(step)
        return () if one is None else tuple(range(one.position, one.position + self.accumulate))

    def healthy(self, count: int = 64) -> list[Original]:
        """The last finite steps before the one in question."""
        found = [
            one
            for one in self.originals
            if one.step < self.step and is_finite(one.loss) and is_finite(one.grad_norm)
        ]
        return found[-count:]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Question":
        """What `dataclasses.asdict` gave, on the way through JSON."""
        parts: dict[str, Any] = {**fields, "slots": tuple(fields["slots"])}
        parts["originals"] = tuple(Original(**one) for one in fields["originals"])
        remedy = fields["remedy"]
        if remedy is not None:
            lists = {name: tuple(remedy[name]) for name in ("skip", "hold")}
            parts["remedy"] = Remedy(**{**remedy, **lists})
        return cls(**parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sequences of the step's batches: all others are replaced by those of healthy batches."""

    kept: tuple[tuple[int, int, int], ...]
    """Rank, micro-batch and row of those that stay."""
    healthy: tuple[int, ...]
    """Data positions of the healthy batches, one for each micro-batch."""
    span: tuple[int, int] | None = None
    """First token that stays in these rows, and the one after the last; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Steps that are done again, from a snapshot up to one step."""

    first: int
    """The run is restored to the newest snapshot at or before this step."""
    last: int
    """The last step that is done; the changes below are made at it."""
    starts_at_step: bool = False
    """Whether it begins at the step in question, from the state with which an earlier pass of the
    experiment came there: no steps are done again to get there."""
    positions: tuple[int, ...] | None = None
    """The batches that it gets; None: its own."""
    rows: Rows | None = None
    """The sequences that it keeps; None: all."""
    finds_nonfinite: bool = False
    """Whether each operation is looked at for the first value that is not finite."""
    without_autocast: bool = False
    exchanges_ranks: bool = False
    """Whether each rank gets the batches of the next rank, and the last one those of the first."""
    lr_factor: float = 1.0
    """Multiplies the learning rate in all steps of the pass."""
    skip: tuple[int, ...] = ()
    """Data positions that are passed over in it."""
    hold: tuple[str, ...] = ()
    """Options of optimizers that stay as they are at the snapshot."""
    under_proven: bool = False
    """Whether the weights are those of the last proven checkpoint, if there is one."""
    compares_weights: bool = False
    """Whether the weights after it are compared with the present ones; `last` is the last step
    that the run has done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step that was done again, over all ranks."""

    step: int
    loss: float | None
    grad_norm: float | None
    discarded: bool = False
    was_skipped: bool = False
    """Whether the loop made no update, as with an overflow."""
    largest_loss: float | None = None
    """The largest loss of a rank."""
    rank_grads: tuple[float, ...] = ()
    """The gradient norm of each rank, as it computed it; empty with one rank or if not seen."""

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are finite, and the update was made."""
        return is_finite(self.loss) and is_finite(self.grad_norm) and not self.was_skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a pass has found; the same on all ranks."""

    steps: tuple[StepResult, ...]
    num_rows: tuple[int, int] = (0, 0)
    """Micro-batches of the last step, and rows of each."""
    num_tokens: int = 0
    """Tokens of each row; 0 if they have none."""
    nonfinite: tuple[dict[str, Any], ...] = ()
    """For each rank that has seen one: where the first value that is not finite came from."""
    proven_step: int | None = None
    """The step of the checkpoint whose weights were used; None if there was none."""
    distances: tuple[dict[str, Any], ...] = ()
    """For each rank: how far its present weights are from those of the replay."""

    @property
    def last(self) -> StepResult | None:
        """The step at which something was changed."""
        return self.steps[-1] if self.steps else None

    def step(self, number: int) -> StepResult | None:
        """The step of this number."""
        return next((one for one in self.steps if one.step == number), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an experiment has found out."""

    experiment: str
    says: str
    """The answer as one of the words in the docstring of the experiment; "open" if none."""
    sentence: str
    """The same for people, with the numbers."""
    facts: Mapping[str, Any] = field(default_factory=dict)


Experiment = Generator[Pass, Result, Answer]
"""Asks for passes, one after the other, and returns its answer."""


def is_finite(value: float | None) -> bool:
    """Whether there is a value, and it is finite."""
    return value is not None and math.isfinite(value)


def open_answer(question: Question, why: str) -> Answer:
    """The experiment could not be finished."""
    return Answer(experiment=question.experiment, says="open", sentence=why)
