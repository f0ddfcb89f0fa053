"""again: the same steps with the same batches, twice; with ranks also with exchanged batches.

Answers:
    "same"              the step gives the same bits: no hardware, it is in batch, state or code
    "hardware"          both replays agree and the run was different: something came from outside
    "device"            replays differ from each other, far more than rounding, or one rank computes
                        different gradients from the same batches: a device that errs
    "nondeterministic"  they differ by rounding alone
"""

from collections.abc import Generator, Iterable, Sequence

from trimtab.probes.passes import (
    Answer,
    Experiment,
    Original,
    Pass,
    Question,
    Result,
    StepResult,
    open_answer,
)
from trimtab.probes.which_rank import (
    ROUNDING,
    rank_of_batches,
    rank_of_loss,
    rank_of_replays,
    relative,
)

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
    affordable = question.max_steps // len(pairs) - 2
    is_waiting = bool(changed) and not apart and question.world > 1
    for _ in range(min(MAX_FURTHER, affordable) if is_waiting else 0):
        other = yield Pass(first=question.start, last=question.step)
        between = [(a, b) for a in one.steps if (b := other.step(a.step)) is not None]
        apart = [a.step for a, b in between if difference(a, b) != 0.0]
        if apart:
            break
    facts = {"steps": [a.step for a in one.steps], "between": apart, "from_run": changed}
    if not apart and not changed:
        return (yield from _same(question, one, facts))
    compared: Sequence[tuple[Numbers, Numbers]] = [*between, *known]
    if not _is_large(compared):
        return Answer(
            experiment=question.experiment,
            says="nondeterministic",
            sentence="replays differ by rounding: kernels that are not deterministic",
            facts=facts,
        )
    if apart and _is_large(between):
        first = next(pair for pair in between if pair[0].step == apart[0])
        rank = rank_of_replays(*first)
        where = "" if rank is None else f"; rank {rank} computes different gradients"
        return Answer(
            experiment=question.experiment,
            says="device",
            sentence=f"the same steps give different numbers each time (steps {apart}){where}",
            facts=facts | {"rank": rank if question.world > 1 else 0},
        )
    first_changed = next(pair for pair in known if pair[0].step == changed[0])
    rank = rank_of_loss(first_changed[1], first_changed[0]) if question.world > 1 else 0
    where = f" on rank {rank}" if question.world > 1 and rank is not None else ""
    return Answer(
        experiment=question.experiment,
        says="hardware",
        sentence=f"from step {changed[0]} on the run differs from its replays, which agree: "
        f"something changed a number once{where}",
        facts=facts | {"first": changed[0], "rank": rank},
    )


def _same(
    question: Question, one: Result, facts: dict[str, list[int]]
) -> Generator[Pass, Result, Answer]:
    """The bits repeat. A device may err in the same way each time: then it does so with the batches
    of a different rank as well."""
    before, rank = one.last, None
    if before is not None and before.rank_grads:
        step = question.step
        wanted = Pass(first=step, last=step, starts_at_step=True, exchanges_ranks=True)
        after = (yield wanted).last
        rank = None if after is None else rank_of_batches(question, before, after)
    if rank is not None:
        return Answer(
            experiment=question.experiment,
            says="device",
            sentence=f"step {question.step} gives the same bits again, but rank {rank} computes "
            "different gradients from the same batches than the other ranks",
            facts=facts | {"rank": rank},
        )
    return Answer(
        experiment=question.experiment,
        says="same",
        sentence=f"step {question.step} gives the same bits again: not the hardware",
        facts=facts,
    )


def difference(one: Numbers, other: Numbers) -> float:
    """The relative difference of two steps; infinite if only one of them is finite."""
    found = 0.0
    for a, b in ((one.loss, other.loss), (one.grad_norm, other.grad_norm)):
        if a is not None and b is not None:
            found = max(found, relative(a, b))
    return found


def _is_large(pairs: Iterable[tuple[Numbers, Numbers]]) -> bool:
    return any(difference(a, b) > ROUNDING for a, b in pairs)
