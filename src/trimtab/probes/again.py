"""again: the same steps with the same batches, twice.

Answers:
    "same"              the step gives the same bits: no hardware, it is in batch, state or code
    "hardware"          both replays agree and the run was different: something came from outside
    "device"            replays differ from each other, far more than rounding: a device that errs
    "nondeterministic"  they differ by rounding alone
"""

from collections.abc import Iterable, Sequence

from trimtab.probes.passes import (
    Answer,
    Experiment,
    Original,
    Pass,
    Question,
    StepResult,
    is_finite,
    open_answer,
)

ROUNDING = 1e-3
"""Relative differences of loss and gradient norm up to this may be rounding. Source: kernels that
are not deterministic differ in the sixth digit of a loss, and less than this in a norm."""

LARGE_ITSELF = 1.5
"""A gradient of one rank this many times larger in one replay than in another names the rank, at
the first step at which they differ. Source: batch and state are the same there, so a healthy rank
repeats its gradient to the last bit; kernels that are not deterministic change it by far less."""

MAX_FURTHER = 8
"""Further replays that wait for a device to err again, if there are several ranks. Source: one that
errs in a step of five does so in one of 8 replays of 4 steps with 99.9 %."""

Numbers = Original | StepResult


def again(question: Question) -> Experiment:
    """Do the steps from the snapshot up to the one in question again, twice."""
    one = yield Pass(first=question.start, last=question.step)
    other = yield Pass(first=question.start, last=question.step)
    pairs = [(a, other.step(a.step)) for a in one.steps]
    if not pairs or any(b is None for _, b in pairs):
        return open_answer(question, "the loop did not do the same steps again")
    between = [(a, b) for a, b in pairs if b is not None]
    apart = [a.step for a, b in between if difference(a, b) != 0.0]
    known = [(a, o) for a in one.steps if (o := question.original(a.step)) is not None]
    changed = [a.step for a, o in known if difference(a, o) != 0.0]
    for _ in range(MAX_FURTHER if changed and not apart and question.world > 1 else 0):
        other = yield Pass(first=question.start, last=question.step)
        between = [(a, b) for a in one.steps if (b := other.step(a.step)) is not None]
        apart = [a.step for a, b in between if difference(a, b) != 0.0]
        if apart:
            break
    facts = {"steps": [a.step for a in one.steps], "between": apart, "from_run": changed}
    if not apart and not changed:
        return Answer(
            experiment=question.experiment,
            says="same",
            sentence=f"step {question.step} gives the same bits again: not the hardware",
            facts=facts,
        )
    compared: Sequence[tuple[Numbers, Numbers]] = [*between, *known]
    if not _is_large(compared):
        return Answer(
            experiment=question.experiment,
            says="nondeterministic",
            sentence="replays differ by rounding: kernels that are not deterministic",
            facts=facts,
        )
    if apart and _is_large(between):
        rank = _rank(between)
        where = "" if rank is None else f"; rank {rank} computes different gradients"
        return Answer(
            experiment=question.experiment,
            says="device",
            sentence=f"the same steps give different numbers each time (steps {apart}){where}",
            facts=facts | {"rank": rank if question.world > 1 else 0},
        )
    return Answer(
        experiment=question.experiment,
        says="hardware",
        sentence=f"from step {changed[0]} on the run differs from its replays, which agree: "
        "something changed a number once",
        facts=facts | {"first": changed[0], "rank": 0 if question.world == 1 else None},
    )


def difference(one: Numbers, other: Numbers) -> float:
    """The relative difference of two steps; infinite if only one of them is finite."""
    found = 0.0
    for a, b in ((one.loss, other.loss), (one.grad_norm, other.grad_norm)):
        if a is None or b is None or a == b or (not is_finite(a) and not is_finite(b)):
            continue
        if not (is_finite(a) and is_finite(b)):
            return float("inf")
        found = max(found, abs(a - b) / max(abs(a), abs(b)))
    return found


def _is_large(pairs: Iterable[tuple[Numbers, Numbers]]) -> bool:
    return any(difference(a, b) > ROUNDING for a, b in pairs)


def _rank(pairs: Sequence[tuple[StepResult, StepResult]]) -> int | None:
    """The rank whose own gradient is far larger in one of the replays, where they first differ."""
    for a, b in [pair for pair in pairs if difference(*pair) != 0.0][:1]:
        large, small = sorted((a, b), key=lambda part: part.max_grad or 0.0, reverse=True)
        if large.max_grad is None or small.max_grad is None:
            continue
        if not large.max_grad < LARGE_ITSELF * small.max_grad:
            return large.max_grad_rank
    return None
