"""Course: how the loss went since the onset of an incident, compared with its baseline.

The excess is how far a loss lies above the trend, in units of the trend's scale (trend.py).
"""

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from trimtab.core.incidents import Moment
from trimtab.core.robust import TINY, jump_sigma, median, sigma_around
from trimtab.detect.tools.baseline import MOST_SPREAD, SLOPE_TRUST

TREND_RECORDS = 192
"""Records before the onset that the line is fitted to. Equal results: 128 to 256."""

LEVEL_RECORDS = 96
"""The same for a thinned log, whose 192 records would be a tenth of a run: there the loss is
assumed to stay where it is."""

MIN_RECORDS, MIN_FOR_SLOPE = 8, 48
"""Fewer losses give no trend; fewer than the second give no slope."""

RELATIVE_FLOOR = 0.002
"""The smallest scale, as a share of the level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A line over the logarithm of the step, and how far losses usually lie from it."""

    level: float
    """What is expected at `step`."""
    step: int
    fall: float
    """Change per unit of the logarithm; never above 0, because a rise is no progress."""
    scale: float
    ceiling: float
    """The highest level in the records shortly before: a loss that is back up there is not lost."""

    @classmethod
    def flat(cls, *, level: float, scale: float, step: int) -> "Trend":
        return cls(level=level, step=step, fall=0.0, scale=scale, ceiling=level)

    def at(self, step: int) -> float:
        if self.fall == 0.0 or step <= self.step:
            return self.level
        return self.level + SLOPE_TRUST * self.fall * (_log(step) - _log(self.step))


def trend_of(before: Sequence[Moment], *, is_thinned: bool) -> Trend | None:
    """Fit the trend of the records before an onset; None if there are too few."""
    known = [m for m in before if m.loss is not None and math.isfinite(m.loss)]
    known = known[-(LEVEL_RECORDS if is_thinned else TREND_RECORDS) :]
    losses = [m.loss for m in known if m.loss is not None]
    if len(losses) < MIN_RECORDS:
        return None
    fall = 0.0 if is_thinned else _fall(known, losses)
    last = known[-1].step
    extended = [
        loss + (fall * (_log(last) - _log(m.step)) if fall else 0.0)
        for m, loss in zip(known, losses, strict=True)
    ]
    # Most losses fall ever more slowly, so a line through all of them runs too low at its end: the
    # newest records say where the loss is.
    level = median(extended[-32:])
    if fall:
        level = max(level, median(extended))
    spread = sigma_around(median(extended), extended)
    jumps = jump_sigma(losses)
    if not is_thinned:
        spread = max(jumps, min(spread, MOST_SPREAD * jumps))
    scale = max(spread, RELATIVE_FLOOR * abs(level), TINY)
    return Trend(level=level, step=last, fall=fall, scale=scale, ceiling=_ceiling(losses))


def _ceiling(losses: Sequence[float]) -> float:
    """Return the highest median of 16 losses among the newest 96."""
    newest = losses[-96:]
    return max(median(newest[at : at + 16]) for at in range(0, len(newest), 16))


def _fall(known: Sequence[Moment], losses: Sequence[float]) -> float:
    """Return the slope to the last third, by medians: from the first or the middle third.

    The flatter one: a loss that learns more slowly than it did is no loss that was harmed.
    """
    if len(known) < MIN_FOR_SLOPE or known[0].step < 0:
        return 0.0
    if any(after.step <= m.step for m, after in pairwise(known)):
        return 0.0  # steps went back: the records are not one line
    third = len(known) // 3
    logs = [_log(m.step) for m in known]
    newest, at = median(losses[-third:]), median(logs[-third:])
    slopes = [
        (newest - median(losses[part])) / (at - median(logs[part]))
        for part in (slice(third), slice(third, 2 * third))
    ]
    return min(max(slopes), 0.0)


def _log(step: int) -> float:
    return math.log(step + 1)


RECOVERY_STEPS, RECOVERY_RECORDS = 100, 2
"""A spike that is back within 100 steps, or 2 records of a thinned log, recovered; one that takes
longer lingers. Source: the rule by which the public runs were labelled."""

STRIDE_RECORDS = 17
"""Records before the onset that show how many steps lie between two."""

THINNED = 2.0
"""A log is thinned if it has this many steps or more from record to record."""

NEAR_RECORDS, NEAR_SCALES = 5, 1.0
"""The loss is near when the median of 5 records is within 1 scale. Source: the borders of the
labelled spikes were set by the median of 5."""

NEAR_SCALES_SINGLE = 2.5
"""The same for a log that is so thin that a single record has to do."""

CONFIRM_RECORDS, CONFIRM_SCALES = 32, 0.5
"""It is back when the median of 32 records from there on is within 0.5 scales. Half a sigma is the
textbook's limit. Equal results: 24 to 40 records, 0.3 to 0.5 scales."""

BACK_SHARE = 0.02
"""A loss within this share of its old level is back, however calm it was. Source: the rule by which
the ends of the labelled spikes were set."""

MOVED_RECORDS, MOVED_SCALES = 16, 1.0
"""The loss has left its trend when the mean of 16 records is over 1 scale. The trend is off by 0.3
after 100 steps, a mean of 16 by 0.25: that is 2.5 deviations."""

USUAL_SCALES, HIGH_SCALES = 3.0, 5.0
"""A loss over the first is unusual; a single one over the second has left its trend. Source: after
a hard batch the next two are within 3 sigma; 5 is what the lab counts as a move."""

TAIL_RECORDS = 150
"""Records that show whether a loss that stays away falls, stays or rises: the last third of them
against the first."""

FAR_NATS, FAR_SCALES = 1.0, 5.0
"""A loss that has risen by both and does not fall is divergent, if it never came down from its peak
either. Source: published diagnoses."""

DOWN_SHARE, STILL_SHARE = 0.5, 0.25
"""A loss that has lost the first share of its height has come down: it settled, and is not lost. A
change under the second is none: a divergence may swing."""

SHRINKS_TO = 0.9
"""The gap to the trend shrinks if the median of the later half of the tail is at most this share of
the earlier half's. Chosen: a spike that takes 500 steps to come back is at 0.6."""

BAD_RECORDS = 3
"""This many non-finite losses in a row have come to stay, until a finite one follows."""


@dataclass(slots=True, kw_only=True)
class Course:
    """The losses of an incident, from its onset on."""

    trend: Trend | None
    """What the loss would have been; None if too few losses came before."""
    tail_records: int
    """How many of the latest records are kept."""
    stride: float = 1.0
    """Steps from record to record before the onset."""
    tail: deque[Moment] = field(init=False)
    """The latest records with a finite loss."""
    excess: deque[float] = field(init=False)
    """How far these lie above the trend."""
    records: int = 0
    num_high: int = 0
    """Unusually high losses."""
    bad_records: int = 0
    """Non-finite losses in a row, up to the last."""
    finite_records: int = 0
    """Losses since the last one, or the last gradient, that was not finite."""
    is_finite_again: bool = False
    """Whether the last one is the first after non-finite ones that seemed to stay."""
    returned: Moment | None = None
    """Where the loss came back, as far as has been seen; not yet confirmed."""
    returned_after: int = 0
    """Records from the onset to there."""
    highest: float = -math.inf
    """The highest finite loss."""

    def __post_init__(self) -> None:
        self.tail = deque(maxlen=self.tail_records)
        self.excess = deque(maxlen=self.tail_records)

    def observe(self, moment: Moment) -> None:
        """Add a record that has a loss; one that is not finite does not undo a return."""
        self.records += 1
        if moment.loss is None or not math.isfinite(moment.loss):
            self.bad_records += 1
            self.finite_records = 0
            return
        self.is_finite_again = self.bad_records >= BAD_RECORDS
        self.bad_records = 0
        self.finite_records += 1
        self.highest = max(self.highest, moment.loss)
        self._keep([moment])
        self.num_high += bool(self.excess) and self.excess[-1] > USUAL_SCALES

    @property
    def is_finite(self) -> bool:
        return self.bad_records == 0

    @property
    def is_thinned(self) -> bool:
        """Whether the log skips steps between records."""
        return self.stride >= THINNED

    @property
    def recovery_records(self) -> int:
        return max(RECOVERY_RECORDS, math.ceil(RECOVERY_STEPS / self.stride))

    @property
    def near_records(self) -> int:
        """Records whose median says whether the loss is near."""
        return NEAR_RECORDS if self.recovery_records >= 4 * NEAR_RECORDS else 1

    def has_moved(self) -> bool:
        """Return whether the loss has just left its trend by more than its noise."""
        if not self.is_finite or not self.excess:
            return False
        if self.excess[-1] > HIGH_SCALES:
            return True
        recent = _latest(self.excess, MOVED_RECORDS)
        return len(recent) == MOVED_RECORDS and sum(recent) / MOVED_RECORDS > MOVED_SCALES

    def is_back(self, waiting: int) -> bool:
        """Return whether the loss is where it would have been, and has stayed there.

        Only the `waiting` records since the alarm count.
        """
        if not self.is_finite:
            return False
        if self.trend is None:
            self.set_returned(self.tail[-1])
            return True  # too few losses came before: any finite loss counts as back
        if self.returned is None:
            if not self._is_near(waiting):
                return False
            self.set_returned(self.tail[-1])
        if self.is_thinned:
            return True
        if min(self.records - self.returned_after, self.finite_records) < CONFIRM_RECORDS:
            return False
        limit = max(CONFIRM_SCALES, BACK_SHARE * abs(self.trend.level) / self.trend.scale)
        if median(_latest(self.excess, CONFIRM_RECORDS)) > limit:
            self.returned = None
        return self.returned is not None

    def set_returned(self, moment: Moment) -> None:
        self.returned, self.returned_after = moment, self.records

    def runs_away(self) -> bool:
        """Return whether the loss is lost: non-finite, rising, or far above and never fell."""
        if not self.is_finite or self.is_rising():
            return True
        known = self._thirds()
        if known is None or self.trend is None:
            return False
        before, recent, scale = known
        height = recent - self.trend.ceiling
        is_far = height > max(FAR_NATS, FAR_SCALES * scale)
        came_down = height < DOWN_SHARE * (self.highest - self.trend.ceiling)
        return is_far and not came_down and recent - before > -STILL_SHARE * height

    def is_rising(self) -> bool:
        """Return whether the latest losses rise."""
        known = self._thirds()
        if known is None or self.trend is None:
            return False
        before, recent, scale = known
        clear = 2 * scale * math.sqrt(2 / (len(self.tail) // 3))  # two standard errors
        return recent - before > max(scale, clear, BACK_SHARE * abs(self.trend.level))

    def back_in(self) -> int | None:
        """Return in how many steps the loss will be back; None if its gap does not shrink.

        A gap that shrinks by the same share in each record is what weights that heal make.
        """
        half = len(self.excess) // 2
        if not self.is_finite or self.trend is None or half < 3:
            return None
        latest = list(self.excess)
        before, now = median(latest[:half]), median(latest[-half:])
        usual = max(CONFIRM_SCALES, BACK_SHARE * abs(self.trend.level) / self.trend.scale)
        noise = max(1.0, jump_sigma(latest)) * math.sqrt(2 / half)
        # The excess counts half of the trend: the other half would shrink a gap that stays.
        first, last = self.tail[half // 2].step, self.tail[-1 - half // 2].step
        trend = (SLOPE_TRUST - 1) * self.trend.fall * (_log(max(last, 0)) - _log(max(first, 0)))
        least = max(2 * noise, 2 * trend / self.trend.scale)
        if before - now < least or now > SHRINKS_TO * before:
            return None
        shrinks = math.log(before / now) / half if now > 0 else math.inf
        records = math.log(max(now / usual, 1.0)) / shrinks if now > 0 else 0.0
        return math.ceil(records * self.stride)

    def _thirds(self) -> tuple[float, float, float] | None:
        """Return the mean of the first and the last third of the tail, and their noise."""
        third = len(self.tail) // 3
        if self.trend is None or third < 3:
            return None
        losses = [moment.loss for moment in self.tail if moment.loss is not None]
        scale = max(self.trend.scale, jump_sigma(losses))
        return sum(losses[:third]) / third, sum(losses[-third:]) / third, scale

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "trend": dataclasses.asdict(self.trend) if self.trend else None,
            "tail": [[moment.step, moment.tick, moment.loss] for moment in self.tail],
            "returned": dataclasses.asdict(self.returned) if self.returned else None,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Course":
        """Restore what `state_dict` returned."""
        loaded = cls(
            **{name: state[name] for name in _PLAIN},
            trend=Trend(**state["trend"]) if state["trend"] else None,
            returned=Moment(**state["returned"]) if state["returned"] else None,
        )
        loaded._keep(Moment(step=step, tick=tick, loss=loss) for step, tick, loss in state["tail"])
        return loaded

    def _keep(self, moments: Iterable[Moment]) -> None:
        for moment in moments:
            self.tail.append(moment)
            if self.trend is not None and moment.loss is not None:
                above = moment.loss - self.trend.at(moment.step)
                self.excess.append(above / (self.trend.scale or TINY))

    def _is_near(self, waiting: int) -> bool:
        count = self.near_records
        if min(waiting, len(self.excess)) < count:
            return False
        limit = NEAR_SCALES if count > 1 else NEAR_SCALES_SINGLE
        return median(_latest(self.excess, count)) <= limit


_SPECIAL = {"trend", "tail", "excess", "returned"}
_PLAIN = tuple(f.name for f in dataclasses.fields(Course) if f.name not in _SPECIAL)
"""Saved as they are, so that a new field cannot be forgotten."""


def stride_of(before: Sequence[Moment]) -> float:
    """Steps from record to record, by the latest records."""
    moves = [after.step - m.step for m, after in pairwise(before[-STRIDE_RECORDS:])]
    return max(median(moves), 1.0) if moves else 1.0


def _latest(values: Sequence[float], count: int) -> list[float]:
    return list(islice(reversed(values), count))
