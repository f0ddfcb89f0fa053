"""What a resume has not restored: the saved state against the one that was found.

    saved, found --> compare_states --> differences --> encode --> a signal of the first record

The signal is bits, from which `ResumeAudit` makes findings: a finished journal is judged as
the live run was. The figures are in the event `resume audit`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trimtab.core.causes import Cause
from trimtab.core.findings import Severity, Symptom
from trimtab.journal.resume import facts

# Saved against found: what a resume has not restored, the most telling difference first.

SAME_NORM = 1e-6
"""Relative difference of two norms of the same tensors that counts as none. Source: norms are
summed in fp64, so machines differ by 1e-15 (in fp32 it would be 1e-5); 10 steps of the loop of the
resume benchmark change the norm of the weights by 9e-5 to 4e-3, rounding them to bf16 by 8e-7 to
2e-4."""

SAME_LR = 1e-3
"""Relative difference of two learning rates that counts as none. Chosen: printed rates are
rounded."""

LR_STEPS = 2.0
"""Times the last change of the learning rate that it may have moved: loops that set it at the top
of a step save the rate of the step before."""

SCALE_RANGE = 2.5
"""A loss scale that was journalled one step before the state was saved may since have doubled or
halved."""

LOST, CHANGED = Severity.ALARM, Severity.WARN


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it was saved."""

    symptom: Symptom
    severity: Severity
    fact: str
    """The fact that shows it."""
    found: float
    saved: float


def compare_states(
    saved: Mapping[str, float],
    found: Mapping[str, float],
    *,
    lr: float | None,
    is_planned: bool = False,
) -> list[Difference]:
    """Return what differs, the most telling first.

    Args:
        saved: The facts of the state that the run resumes from.
        found: The facts before the first update.
        lr: The learning rate of the first step.
        is_planned: Whether a change was announced: then the learning rate, the options and the
            data may differ.
    """
    wrong = _wrong_checkpoint(saved, found)
    differences = [] if wrong is None else [wrong]
    differences += _moments(saved, found, is_other_checkpoint=wrong is not None)
    if wrong is None:
        differences += _optimizer_step(saved, found)
    if not is_planned:
        differences += _learning_rate(saved, lr)
        differences += _options(saved, found)
    differences += _scaler(saved, found)
    if saved.get(facts.WORLD, found.get(facts.WORLD)) == found.get(facts.WORLD):
        # With another number of ranks, each has other batches and other random numbers.
        if not is_planned:
            differences += _data(saved, found)
        differences += _random_state(saved, found)
    return differences


def is_restarted(saved: Mapping[str, float], lr: float) -> bool:
    """Return whether a learning rate is that of the first steps, and not the saved one."""
    if not _lr_differs(saved, lr):
        return False
    first = [rate for name, rate in saved.items() if name.startswith(facts.FIRST_LR)]
    return any(_is_same(lr, rate, SAME_LR) for rate in first)


def _wrong_checkpoint(saved: Mapping[str, float], found: Mapping[str, float]) -> Difference | None:
    step, first = saved.get(facts.STEP), found.get(facts.STEP)
    if step is not None and first is not None and step != first:
        severity = LOST if abs(step - first) > 1 else CHANGED  # else a step counted differently
        return _difference(Symptom.WRONG_CHECKPOINT, severity, facts.STEP, saved, found)
    if _norm_differs(facts.PARAM_NORM, saved, found):
        return _difference(Symptom.WRONG_CHECKPOINT, LOST, facts.PARAM_NORM, saved, found)
    return None


def _moments(
    saved: Mapping[str, float], found: Mapping[str, float], *, is_other_checkpoint: bool
) -> Iterator[Difference]:
    names = [name for name in saved if name.startswith(facts.STATE_NORM) and saved[name] > 0.0]
    lost = [name for name in names if found.get(name, 0.0) == 0.0]
    if not lost and not is_other_checkpoint:
        lost = [name for name in names if _norm_differs(name, saved, found)]
    if lost:
        yield _difference(Symptom.MOMENTS_NOT_RESTORED, LOST, lost[0], saved, found)


def _optimizer_step(saved: Mapping[str, float], found: Mapping[str, float]) -> Iterator[Difference]:
    least, count = saved.get(facts.OPTIMIZER_STEP), found.get(facts.OPTIMIZER_STEP, 0.0)
    if least is None:
        return
    if not least <= count <= saved.get(facts.MAX_OPTIMIZER_STEP, least):
        symptom = Symptom.OPTIMIZER_STEP_NOT_RESTORED
        yield _difference(symptom, LOST, facts.OPTIMIZER_STEP, saved, found)


def _learning_rate(saved: Mapping[str, float], lr: float | None) -> Iterator[Difference]:
    if lr is None or not _lr_differs(saved, lr):
        return
    found = {facts.LR: lr}
    if is_restarted(saved, lr):
        yield _difference(Symptom.LR_RESTARTED, LOST, facts.LR, saved, found)
    else:
        yield _difference(Symptom.LR_CHANGED, CHANGED, facts.LR, saved, found)


def _lr_differs(saved: Mapping[str, float], lr: float) -> bool:
    expected = saved.get(facts.LR)
    if expected is None or _is_same(lr, expected, SAME_LR):
        return False
    return abs(lr - expected) > LR_STEPS * saved.get(facts.LR_CHANGE, 0.0)


def _options(saved: Mapping[str, float], found: Mapping[str, float]) -> Iterator[Difference]:
    for name, value in saved.items():
        if name.startswith(facts.OPTION) and found.get(name, value) != value:
            yield _difference(Symptom.OPTIONS_CHANGED, CHANGED, name, saved, found)
            return


def _scaler(saved: Mapping[str, float], found: Mapping[str, float]) -> Iterator[Difference]:
    scale, now = saved.get(facts.LOSS_SCALE), found.get(facts.LOSS_SCALE)
    if scale is None or now is None:
        return
    fact = facts.LOSS_SCALE
    if facts.GROWTH_TRACKER not in saved:
        is_lost = not scale / SCALE_RANGE < now < scale * SCALE_RANGE
    else:
        is_lost = now != scale
        if not is_lost:
            fact = facts.GROWTH_TRACKER
            is_lost = found.get(fact, saved[fact]) != saved[fact]
    if is_lost:
        yield _difference(Symptom.SCALER_NOT_RESTORED, LOST, fact, saved, found)


def _data(saved: Mapping[str, float], found: Mapping[str, float]) -> Iterator[Difference]:
    """Yield one difference at most: a loader that is off shows in several facts."""
    at_end = saved.get(facts.AT_EPOCH_END)
    is_in_epoch = at_end == 0.0 or facts.BATCH_KNOWN in found
    loader, yielded = saved.get(facts.LOADER_POSITION), found.get(facts.LOADER_POSITION)
    is_loader_off = at_end == 0.0 and None not in (loader, yielded) and loader != yielded
    if is_in_epoch and facts.BATCH_RESTARTED in found:
        yield _difference(Symptom.DATA_RESTARTED, LOST, facts.BATCH_RESTARTED, saved, found)
    elif is_loader_off and yielded == 0.0:
        yield _difference(Symptom.DATA_RESTARTED, LOST, facts.LOADER_POSITION, saved, found)
    elif is_loader_off:
        yield _difference(Symptom.DATA_OFF, LOST, facts.LOADER_POSITION, saved, found)
    elif found.get(facts.BATCH_OFFSET) and facts.BATCH_RESTARTED not in found:
        yield _difference(Symptom.DATA_OFF, LOST, facts.BATCH_OFFSET, saved, found)
    else:
        position, given = saved.get(facts.DATA_POSITION), found.get(facts.DATA_POSITION)
        if None not in (position, given) and position != given:
            yield _difference(Symptom.DATA_OFF, LOST, facts.DATA_POSITION, saved, found)


def _random_state(saved: Mapping[str, float], found: Mapping[str, float]) -> Iterator[Difference]:
    names = [name for name in saved if name.startswith(facts.RNG)]
    lost = [name for name in names if found.get(name, saved[name]) != saved[name]]
    if lost:
        # Libraries draw from the other two, and few loops depend on them.
        is_torch = f"{facts.RNG}torch" in lost
        name = f"{facts.RNG}torch" if is_torch else lost[0]
        severity = LOST if is_torch else CHANGED
        yield _difference(Symptom.RNG_NOT_RESTORED, severity, name, saved, found)


def _norm_differs(name: str, saved: Mapping[str, float], found: Mapping[str, float]) -> bool:
    """Return whether a norm differs; norms of different layouts cannot be compared."""
    layout = saved.get(facts.LAYOUT)
    if layout is None or layout != found.get(facts.LAYOUT):
        return False
    if name not in saved or name not in found:
        return False
    return not _is_same(found[name], saved[name], SAME_NORM)


def _is_same(one: float, other: float, tolerance: float) -> bool:
    if not math.isfinite(one) or not math.isfinite(other):
        return str(one) == str(other)  # NaN equals NaN here
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _difference(
    symptom: Symptom,
    severity: Severity,
    fact: str,
    saved: Mapping[str, float],
    found: Mapping[str, float],
) -> Difference:
    return Difference(
        symptom=symptom,
        severity=severity,
        fact=fact,
        found=found.get(fact, 0.0),
        saved=saved.get(fact, 0.0),
    )


@dataclass(frozen=True, slots=True)
class _Thing:
    """What was not restored, in words."""

    cause: Cause
    fix: str


_ANNOUNCE = 'announce a change that you want by guard.event("planned change", ...) before the '
THINGS: Mapping[Symptom, _Thing] = {
    Symptom.WRONG_CHECKPOINT: _Thing(
        Cause.WRONG_RESUME,
        "load the checkpoint of the step at which the run continues, into the model that is "
        "trained, and give that step: watch(facts={'step': ...})",
    ),
    Symptom.MOMENTS_NOT_RESTORED: _Thing(
        Cause.OPTIMIZER_STATE_LOST,
        "call optimizer.load_state_dict(...) with the state of this checkpoint, after the "
        "optimizer has all its parameters and before the first step",
    ),
    Symptom.OPTIMIZER_STEP_NOT_RESTORED: _Thing(
        Cause.OPTIMIZER_STATE_LOST,
        "restore `step` of the optimizer's state with the moments: Adam's bias correction depends "
        "on it",
    ),
    Symptom.LR_RESTARTED: _Thing(
        Cause.LR_DISCONTINUITY,
        "call scheduler.load_state_dict(...), or compute the rate from the step of the run",
    ),
    Symptom.LR_CHANGED: _Thing(Cause.LR_DISCONTINUITY, f"{_ANNOUNCE}first step"),
    Symptom.OPTIONS_CHANGED: _Thing(
        Cause.WRONG_RESUME,
        f"optimizer.load_state_dict(...) restores them with the moments; {_ANNOUNCE}first step",
    ),
    Symptom.SCALER_NOT_RESTORED: _Thing(
        Cause.WRONG_RESUME, "save scaler.state_dict() and call scaler.load_state_dict(...)"
    ),
    Symptom.DATA_RESTARTED: _Thing(
        Cause.WRONG_RESUME,
        "save and load the state of the loader (StatefulDataLoader), or skip the batches that "
        "were trained on",
    ),
    Symptom.DATA_OFF: _Thing(
        Cause.WRONG_RESUME,
        "save the state of the loader after the update and before the next batch is fetched, so "
        "that it has yielded what was trained on and no more",
    ),
    Symptom.RNG_NOT_RESTORED: _Thing(
        Cause.WRONG_RESUME,
        "save torch.get_rng_state() and those of numpy and Python, and set them after everything "
        "else is loaded",
    ),
}


ORDER = tuple(THINGS)
"""The place of each bit, and the order of findings: the most telling first. Journals depend on it:
new things go to the end."""

WARNING_BIT = 1 << 16
"""A bit of this half: the same thing, only a warning."""


def encode_differences(differences: Iterable[Difference]) -> float:
    bits = 0
    for difference in differences:
        bit = 1 << ORDER.index(difference.symptom)
        bits |= bit if difference.severity is Severity.ALARM else bit * WARNING_BIT
    return float(bits)


def describe_difference(difference: Difference) -> str:
    """Return a difference in one sentence, with its fix."""
    fact, found = difference.fact, difference.found
    values = f"{fact} is {found:.6g}, saved was {difference.saved:.6g}"
    if fact == facts.BATCH_RESTARTED:
        values = "the first batch is the first one of the run"
    elif fact == facts.BATCH_OFFSET and found < 0:
        values = f"the first batch was trained on {-found:.0f} steps before"
    elif fact == facts.BATCH_OFFSET:
        values = f"{found:.0f} steps of data were skipped"
    elif fact.startswith(facts.RNG):
        values = f"the generator of {fact.removeprefix(facts.RNG)} is not as it was saved"
    return f"{difference.symptom} ({values}): {THINGS[difference.symptom].fix}"
