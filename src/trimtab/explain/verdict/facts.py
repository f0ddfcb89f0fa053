"""Facts: what is true of an incident at one record.

Every class, instruction and sentence about an incident is made from its facts, and they are
measured here alone: pure functions of the records before the onset (the reference) and of those
since.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.incident_facts import Course, Evaluation, Facts, Level, Reward, Schedule
from trimtab.core.incidents import Moment
from trimtab.core.robust import is_one_grain
from trimtab.explain.verdict.level import fit_line, level_error, longest_repeat, midmean, noise
from trimtab.explain.verdict.reference import EXPECTED_SHARE, MIN_NOISE, REACH, Reference
from trimtab.explain.verdict.rows import Losses, Row

RETURN_STEPS, RETURN_TIMES = 500, 3.0
"""A spike that heals by itself takes up to 500 steps (the playbook's type 1), or up to three times
as long as it has lasted (chosen)."""

FRACTIONS = (0.003, 0.02)
"""Fractions of the loss between which two deviations of one record count as back. Source: 2 % is
the border of the public labels; a public 32B run was restarted for 0.4 %."""

QUARTER = 0.25
"""A gap under a quarter of the noise of one record is back, however exactly it is known. Chosen."""

NOW_RECORDS = (4, 64)
"""The present level is that of the newest quarter of the records since the onset, between these."""

SURE = 2.0
"""Standard errors that a change of the gap must exceed."""

GROWING, GROWING_FRACTION = 2.5, 0.1
"""Standard errors, and fraction of the gap, by which it must grow. Chosen on drawn curves."""

TOP = 3.0
"""Deviations of one record within which a gap is as wide as its widest. Chosen: of 500 means of
three the largest lies 1.7 above their level."""

RISEN = 0.75
"""The fraction of its present width that a gap must have reached to have risen. Chosen."""

NEAR_RECORDS = 5
"""Records whose median says whether the loss is near. Source: the borders of the labelled spikes
were set by the median of 5."""

FROZEN_RECORDS = 8
"""Identical losses in a row that are no coincidence, if the losses before did not repeat."""

RECENT_RECORDS, MIN_RECENT = 32, 12
"""Newest records among which non-finite ones are counted, and how many there must be. Chosen: a
quarter of 12 are as many as the non-finite losses in a row that have come to stay."""

MIN_LEARNT = 12
"""Records before an onset that say how much had been learnt."""

YOUNG, LATE = 128, 4.0
"""A log with fewer records before an onset whose step is over so many times what they span is a
part of a run. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was known when an incident began, and never changes."""

    reference: Reference
    is_measure: bool = True
    """Whether the loss measures progress."""
    has_direction: bool | None = None
    """Whether the loss had fallen, more than it rose; None if that was too early to say."""
    stride: float = 1.0
    """Steps from record to record."""
    lrs: tuple[float, ...] = ()
    """The newest learning rates."""
    highest_lr: float = 0.0
    rewards: tuple[float, ...] = ()
    """The newest rewards."""
    evaluations: tuple[float, ...] = ()
    """The newest held-out losses."""
    longest_return: int = 0
    """Records that the slowest of the run's earlier spikes took to come back."""
    norm: float | None = None
    """The usual gradient norm."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Past":
        """Return the past that `dataclasses.asdict` saved."""
        lists = {name: tuple(state[name]) for name in ("lrs", "rewards", "evaluations")}
        return cls(**{**state, **lists, "reference": Reference.from_state(state["reference"])})


def measure(past: Past, rows: Sequence[Row], evaluations: Sequence[float] = ()) -> Facts:
    """Return what the records since an onset show, at the last of them.

    `evaluations` are the held-out losses since the onset. What does not follow from the records is
    left at its default.
    """
    reference = past.reference
    applied = [row for row in rows if row.loss is not None and not row.is_kept_out]
    bad = [not row.is_finite for row in applied]
    recent = bad[-RECENT_RECORDS:]
    steps = max(rows[-1].step - reference.onset_step, 0) if rows else 0
    known = Losses.of(applied)
    start, newest = reference.start, midmean(known.loss[-4:]) if len(known) else 0.0
    if not reference.has_level and len(known) > 2:
        newest = min(newest, float(known.loss[-2:].max()))  # it may be back just now
    has_level = reference.has_level and past.is_measure and len(known) > 0
    level = _level(reference, known, len(applied), steps) if has_level else None
    return Facts(
        records_before=reference.records,
        records=len(rows),
        steps=steps,
        is_measure=past.is_measure,
        has_direction=past.has_direction,
        start_loss=start,
        slowest_return=past.longest_return,
        times_start=newest / start if start is not None and start > 0 else 0.0,
        kept_out_at_end=next(
            (at for at, row in enumerate(reversed(rows)) if not row.is_kept_out), len(rows)
        ),
        nonfinite_at_end=next((at for at, one in enumerate(bad[::-1]) if not one), len(bad)),
        nonfinite_fraction=sum(recent) / len(recent) if len(recent) >= MIN_RECENT else 0.0,
        is_frozen=past.is_measure and len(known) > 0 and _is_frozen(reference, known.loss),
        level=level,
        factor=None if level is None else _factor(past, level, applied),
        reward=_reward(past.rewards, [row.reward for row in rows]),
        evaluation=_evaluation(past.evaluations, evaluations),
        schedule=_schedule(past, rows),
    )


def _is_frozen(reference: Reference, losses: FloatArray) -> bool:
    """Return whether the loss repeats itself for longer than ever, not because it is rounded."""
    count = max(FROZEN_RECORDS, 3 * reference.longest_repeat)
    if len(losses) < count or longest_repeat(losses[-count:]) < count:
        return False
    now = float(losses[-1])
    if reference.records <= FROZEN_RECORDS:
        return now == 0
    others = losses[losses != now]
    before = float(others[-1]) if len(others) else reference.to_loss(reference.level)
    return reference.noise > MIN_NOISE and not is_one_grain(before, now)


def _level(reference: Reference, known: Losses, records: int, steps: int) -> Level:
    """Return the present level of the loss against the trend from before, and where it goes."""
    past, sigma = reference.past, max(reference.noise, MIN_NOISE)
    values = reference.to_scale(known.loss)
    log_steps = reference.log_steps(known.step)
    expected = reference.expected(log_steps)
    gaps = values - expected
    count = len(gaps)
    newest = min(count, min(max(records // 4, NOW_RECORDS[0]), NOW_RECORDS[1]))
    gap = midmean(gaps[-newest:])
    own_error = math.hypot(level_error(past, newest, sigma), reference.level_error)
    reach = min(max(float(log_steps[-1]), 0.0), REACH)
    error = math.hypot(own_error, 0.5 * (1 - EXPECTED_SHARE) * reference.slope * reach)
    tolerance = _tolerance(reference)
    # A falling loss is never above its level of before, whatever the trend promised.
    above = gap + float(expected[-1]) - reference.level
    z = max((gap - tolerance) / error, (above - tolerance) / own_error)

    peak = _peak(gaps)
    course, back_in, excluded = Course.FLAT, None, False
    if _is_growing(gaps, peak, gap, tolerance, past, sigma):
        course = Course.GROWING
    elif gap > 0:
        # Had the loss gone on falling as before, the gap would seem to shrink by as much.
        falls = reference.likely_slope * log_steps - expected
        # On a level the widest gap may be any: what matters is where it first was about as wide.
        first = _peak(gaps, margin=TOP * sigma)
        back_in, excluded = _way_back(
            gaps[first:], known.step[first:], falls[first:], gap, tolerance, past, sigma
        )
        if back_in is not None and back_in <= max(RETURN_STEPS, RETURN_TIMES * steps):
            course = Course.SHRINKING
    before = reference.level
    stride = max(float(np.median(np.diff(known.step))), 1.0) if count > 1 else 1.0
    newest_two = gaps[-2:].max()
    to_loss = reference.to_loss
    now = float(np.clip(to_loss(gap + float(expected[-1])), known.loss.min(), known.loss.max()))
    return Level(
        before=to_loss(before),
        expected=to_loss(float(expected[-1])),
        now=now,
        gap=now - to_loss(float(expected[-1])),
        smallest=to_loss(before + tolerance + 2 * error) - to_loss(before),
        noise=to_loss(before + sigma) - to_loss(before),
        z=z,
        course=course,
        back_in=back_in if course is Course.SHRINKING else None,
        rise_steps=_rise_steps(gaps, known.step, gap),
        return_excluded=excluded,
        is_back_just_now=bool(gap - newest_two > 4 * sigma and newest_two < tolerance + 2 * sigma),
        is_doubled=gap > (math.log(2) if reference.is_log else 10 * sigma),
        is_learning=_is_learning(log_steps, values, peak, tolerance),
        lost=_lost(reference, gap, stride),
    )


def _peak(gaps: FloatArray, margin: float = 0.0) -> int:
    """Return where the gap was first as wide as at its widest, by means of three."""
    if len(gaps) < 3:
        return 0
    padded = np.pad(gaps, 1, "edge")
    means = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return int(np.argmax(means >= means.max() - margin))


def _is_growing(
    gaps: FloatArray, peak: int, gap: float, tolerance: float, past: FloatArray, sigma: float
) -> bool:
    """Return whether the last third of the gaps is clearly wider than the third before."""
    third = max(len(gaps) // 3, 1)
    if peak < len(gaps) - 2 * third:
        return False
    middle = midmean(gaps[-2 * third : -third]) if len(gaps) > 1 else float(gaps[0])
    change = midmean(gaps[-third:]) - middle
    error = level_error(past, third, sigma) * math.sqrt(2)
    return change > GROWING * error and change > max(GROWING_FRACTION * gap, tolerance / 2)


def _way_back(
    gaps: FloatArray,
    steps: FloatArray,
    falls: FloatArray,
    gap: float,
    tolerance: float,
    past: FloatArray,
    sigma: float,
) -> tuple[int | None, bool]:
    """Return when a gap will have closed, by its last two thirds, and whether a return is excluded.

    A gap that shrinks by the same fraction in each step is what weights that heal make.
    """
    third = len(gaps) // 3
    if third < 2:
        return None, False
    middle, late = midmean(gaps[third : 2 * third]), midmean(gaps[2 * third :])
    fallen = max(falls[third : 2 * third].mean() - falls[2 * third :].mean(), 0.0)
    middle = float(max(middle - fallen, late))
    error = level_error(past, third, sigma) * math.sqrt(2)
    apart = float(steps[2 * third :].mean() - steps[third : 2 * third].mean())
    # What the gap would have lost between the two if it closed within the time of a return.
    pace = math.log(max(gap, 1.5 * tolerance) / tolerance) / RETURN_STEPS
    wanted = middle * (1 - math.exp(-apart * pace))
    is_excluded = middle - late < wanted - SURE * error
    if not (middle - late > SURE * error and late > 0):
        return None, is_excluded
    back_in = apart * math.log(max(gap, tolerance) / tolerance) / math.log(middle / late)
    return math.ceil(back_in), is_excluded


def _rise_steps(gaps: FloatArray, steps: FloatArray, gap: float) -> int:
    """Return the steps until the gap, by medians of records, was three quarters of the last one."""
    if len(gaps) < NEAR_RECORDS:
        return 0
    windows = np.lib.stride_tricks.sliding_window_view(gaps, NEAR_RECORDS)
    wide = np.flatnonzero(np.median(windows, axis=1) >= RISEN * gap)
    return int(steps[wide[0]] - steps[0]) if gap > 0 and len(wide) else 0


def _is_learning(log_steps: FloatArray, values: FloatArray, peak: int, tolerance: float) -> bool:
    """Return whether the loss has fallen in the later half since its peak, surely and by more than
    what counts as no gap: of many looks at a flat loss one sees a sure fall of next to nothing."""
    half = peak + (len(values) - peak) // 2
    if len(values) - half < 8:
        return False
    _, slope, _, error = fit_line(log_steps[half:] - log_steps[-1], values[half:])
    fallen = -slope * float(log_steps[-1] - log_steps[half])
    return error > 0 and slope < -SURE * error and fallen > tolerance


def _lost(reference: Reference, gap: float, stride: float) -> float:
    """Return the fraction of what had been learnt before the onset that is gone."""
    if reference.start is None or reference.records < MIN_LEARNT:
        return 0.0
    if reference.records < YOUNG and reference.onset_step > LATE * reference.records * stride:
        return 0.0  # the log begins long after the run: nobody knows what had been learnt
    start = float(reference.to_scale(np.array([reference.start]))[0])
    learnt = start - reference.level
    return gap / learnt if learnt > 5 * reference.noise else 0.0


def back_at(reference: Reference, rows: Sequence[Row]) -> Moment | None:
    """Return the first record from which on the loss was back; None if it cannot be said."""
    near = [row for row in rows if row.is_finite]
    if not reference.has_level or len(near) < NEAR_RECORDS:
        return None
    known = Losses.of(near)
    gaps = reference.to_scale(known.loss) - reference.expected(reference.log_steps(known.step))
    windows = np.lib.stride_tricks.sliding_window_view(gaps, NEAR_RECORDS)
    limit = _tolerance(reference) + reference.noise
    away = np.flatnonzero(np.median(windows, axis=1) > limit)
    # The last window that is away holds records that are back: those after its last high one.
    first = int(away[-1]) + NEAR_RECORDS // 2 + 1 if len(away) else 0
    high = np.flatnonzero(gaps[first : first + NEAR_RECORDS] > limit + 2 * reference.noise)
    first += int(high[-1]) + 1 if len(high) else 0
    return near[min(first, len(near) - 1)].moment


def _tolerance(reference: Reference) -> float:
    """Return the gap that counts as none."""
    unit, sigma = reference.unit, reference.noise
    fraction = min(max(2 * sigma / unit, FRACTIONS[0]), FRACTIONS[1])
    return max(fraction * unit, QUARTER * sigma)


MIN_FACTOR, SAME_FACTOR, FACTOR_RECORDS, FACTOR_LEAD = 3.0, 1.5, 16, 8
"""The least factor that loss and gradient norm may both have been multiplied by, how far the two
may differ, the records that must show it, and those in which it must have appeared. Chosen: weights
that are lost cost a model of text under 3 times its loss, and hardly ever the same in its norm."""


def _factor(past: Past, level: Level, rows: Sequence[Row]) -> float | None:
    """Return the factor by which loss and gradient norm were multiplied at once; None if none."""
    norms = np.array([row.norm for row in rows if row.norm is not None])
    losses = np.array([row.loss for row in rows if row.is_finite])
    if past.norm is None or past.norm <= 0 or level.expected <= 0:
        return None
    if min(len(norms), len(losses) - FACTOR_LEAD) < FACTOR_RECORDS:
        return None
    times = losses[FACTOR_LEAD:] / level.expected
    low, factor, high = (float(value) for value in np.quantile(times, (0.05, 0.5, 0.95)))
    in_norm = float(np.median(norms[FACTOR_LEAD:])) / past.norm
    is_one = factor / SAME_FACTOR < in_norm < factor * SAME_FACTOR and high < SAME_FACTOR * low
    return factor if factor >= MIN_FACTOR and is_one else None


REWARD_LOST, REWARD_ERRORS = 0.5, 3.0
"""The fraction of its level that a reward must have lost, and by how many standard errors, to be
gone. Source: DESIGN of the collapses in public runs, 0.9 to 0.0 within 2 to 7 records."""

MIN_REWARDS = 2, 4
"""Rewards that are needed before an onset, and since."""


def _reward(before: Sequence[float], since: Sequence[float | None]) -> Reward | None:
    earlier = np.array([one for one in before if math.isfinite(one)][-64:])
    later = np.array([one for one in since if one is not None and math.isfinite(one)])
    if len(earlier) < MIN_REWARDS[0] or len(later) < MIN_REWARDS[1]:
        return None
    newest = min(len(later), max(MIN_REWARDS[1], min(32, len(later) // 2)))
    was, now = midmean(earlier[-32:]), midmean(later[-newest:])
    scatter = max(noise(earlier), noise(later), MIN_NOISE)
    error = scatter * math.sqrt(1 / newest + 1 / min(len(earlier), 32))
    # A reward that was negative has no level of its own: what counts is how far it ever moved.
    whole = abs(was) if was > 0 else max(float(np.ptp(np.concatenate((earlier, later)))), 1e-9)
    is_gone = was - now > max(REWARD_ERRORS * error, REWARD_LOST * whole)
    return Reward(before=was, now=now, is_gone=is_gone)


def _evaluation(before: Sequence[float], since: Sequence[float]) -> Evaluation | None:
    """Compare the newest two evaluations on either side; the first one since may be too early."""
    earlier = np.array([one for one in before if math.isfinite(one)])
    later = np.array([one for one in since if math.isfinite(one)])
    if not len(earlier) or not len(later):
        return None
    was, now = float(np.median(earlier[-2:])), float(np.median(later[-2:]))
    scatter = max(noise(earlier), 0.01 * abs(was))
    # Where few have fallen far, their scatter is that of the fall.
    limit = min(was, float(earlier[-1])) + min(scatter, FRACTIONS[1] * abs(was))
    return Evaluation(before=was, now=now, is_above=now - was > 2 * scatter, is_back=now <= limit)


SCHEDULE_RECORDS = 64
"""Newest records that show how fast the learning rate falls."""

ENDED = 0.02
"""The fraction of its highest value under which a learning rate has run out."""


def _schedule(past: Past, rows: Sequence[Row]) -> Schedule | None:
    later = [(row.step, row.lr) for row in rows if row.lr is not None and math.isfinite(row.lr)]
    if len(past.lrs) < 2 or not later:
        return None
    before = float(np.median(past.lrs[:-1]))  # the last one may be of the onset already
    (first_step, first), (step, now) = later[-SCHEDULE_RECORDS:][0], later[-1]
    pace = (now - first) / (step - first_step) if step > first_step else 0.0
    highest = max(past.highest_lr, *(lr for _, lr in later))
    return Schedule(
        before=before,
        now=now,
        steps_left=math.ceil(-now / pace) if pace < 0 else None,
        has_ended=now < ENDED * highest,
    )
