"""restore-check, reference, lower-lr: experiments on the state.

restore-check: do the weights equal those that the same steps give again, element by element? A
checksum would show that they changed in memory, but not which, and only since it was taken.
    "equal"       to the last bit
    "corrupted"   they differ; `facts` has the tensor furthest away and the rank
reference: the step's batches against healthy ones, both under the last proven checkpoint, or under
the oldest snapshot.
    "batch", "state"   odd there as well, or not
lower-lr: the same steps with a tenth of the learning rate, up to the present.
    "rate"        the oddity is gone
    "not the rate"  it is not
"""

from trimtab.probes.batch_or_state import MIN_HEALTHY, NOTHING_TO_COMPARE, ODD_SIGMAS, Scale
from trimtab.probes.passes import Answer, Experiment, Pass, Question, open_answer

FEW = 1.5
"""Times the usual limit, because the deviation of eight steps is itself uncertain. Source: a normal
value is that far over 8 others in 1 of 400 cases."""

LR_FACTOR = 0.1
"""Of the learning rate: so far below it that a divergence by the rate must end. Not measured."""

MAX_STEPS = 60
"""Steps from the snapshot to the present that are done again at most."""


def restore_check(question: Question) -> Experiment:
    """Do all steps since the snapshot again and compare the weights."""
    last = question.present - 1
    if question.slot is None or last - question.slot > MAX_STEPS:
        return open_answer(question, "too many steps lie between the snapshot and the present")
    result = yield Pass(first=question.step, last=last, compares_weights=True)
    apart = [part for part in result.distances if part.get("different")]
    if not apart:
        return Answer(
            experiment=question.experiment,
            says="equal",
            sentence=f"the weights are those that the steps up to {last} give again, bit by bit",
        )
    worst = max(apart, key=lambda part: part["distance"])
    rank = f" on rank {worst['rank']}" if question.world > 1 else ""
    return Answer(
        experiment=question.experiment,
        says="corrupted",
        sentence=f"the weights differ from those that the same steps give again, most in "
        f"{worst['tensor']}{rank}",
        facts=worst,
    )


def reference(question: Question) -> Experiment:
    """The batches of the step and healthy ones, under weights that are known to be good.

    An old state has a higher loss with every batch, and a different spread: so the batches are
    compared with healthy ones under the same weights.
    """
    slot = question.slots[0] if question.slots else 0
    healthy = [one.step for one in question.healthy() if one.step >= slot and not one.discarded]
    if not question.slots or len(healthy) < MIN_HEALTHY:
        return open_answer(question, NOTHING_TO_COMPARE)
    found, proven = [], None
    for step in (*healthy[-MIN_HEALTHY:], question.step):
        positions = question.positions(step)
        result = yield Pass(first=slot, last=slot, positions=positions, under_proven=True)
        proven = result.proven_step
        if result.last is None or not positions:
            return open_answer(question, "the batches are not known, or were not used again")
        found.append(result.last)
    where = (
        f"the oldest snapshot, of step {slot} (there is no proven checkpoint)"
        if proven is None
        else f"the proven checkpoint of step {proven}"
    )
    scale, asked = Scale(found[:-1]), found[-1]
    is_odd = scale.score(asked) > ODD_SIGMAS * FEW
    return Answer(
        experiment=question.experiment,
        says="batch" if is_odd else "state",
        sentence=f"under {where} the batches of step {question.step} are {'' if is_odd else 'not '}"
        f"odd: loss {asked.loss:.4g}, median of {MIN_HEALTHY} healthy steps {scale.loss:.4g}",
        facts={"loss": asked.loss, "healthy_loss": scale.loss, "checkpoint": proven},
    )


def lower_lr(question: Question) -> Experiment:
    """The steps up to the present with a lower rate, on a state that is thrown away."""
    scale, last = Scale.of(question), question.present - 1
    if scale is None or question.slot is None or last - question.slot > MAX_STEPS:
        return open_answer(question, "too many steps lie between the snapshot and the present")
    usual = yield Pass(first=question.step, last=last)
    slower = yield Pass(first=question.step, last=last, lr_factor=LR_FACTOR)
    before = [one for one in usual.steps if one.step >= question.step and scale.is_odd(one)]
    after = [one for one in slower.steps if one.step >= question.step and scale.is_odd(one)]
    if not before:
        return open_answer(question, "the steps are not odd when they are done again")
    is_gone = len(after) * 2 < len(before)
    return Answer(
        experiment=question.experiment,
        says="rate" if is_gone else "not the rate",
        sentence=f"with a tenth of the learning rate {len(after)} of {len(before)} odd steps are "
        "left",
        facts={"odd": len(before), "odd_with_lower_rate": len(after)},
    )
