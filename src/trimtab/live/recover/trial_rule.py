"""When an older state is better than the present one: the rule of the trial of states.

A loss that rose and stays is no proof of harm: purposeful changes look the same. What separates
them is that the snapshot from before and the present state compute the loss of the same batches,
each before the update, on data that neither was trained on. Read from top to bottom:

    open     a loss is 4 sigmas above the level of the last steps, or the mean of 8 as clearly
    against  the newest snapshot at least 8 updates older; snapshots stand still from here on
    score    the gap, present loss minus old loss, of each of the next 32 batches
    8, 16..  the mean of a window of 8 is not above 0:      the present state is better     closed
    16, 32   or it is within the noise of batches and gaps: not clear                       closed
    32       something was done on purpose since:           a person is asked
             else                                           the old state is restored, if allowed

After an act no other trial for 300 updates. Every number is a sum over ranks, so all rule alike.
Source of the thresholds, where no other is named: a study of 435 faults and 720 purposeful changes
in three tasks, in which their choice was a fit; new tasks are in benchmarks/RESULTS.md, "Recover:
trial of states".
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean, stdev
from typing import Any

from trimtab.core.robust import jump_sigma, median
from trimtab.live.protect.baseline import LOSS_FLOOR, LOSS_ZERO

WINDOW, NUM_WINDOWS = 8, 4
"""Batches of a window, and windows of a trial. Source: after 16 batches damage that heals by itself
is not yet told from damage that stays; most purposeful changes lose the first 8."""

LEVEL_STEPS, OPEN_SIGMAS = 32, 4.0
"""Steps that the level is the median of, up to a window ago, and sigmas above it that open."""

MIN_AGE = 8
"""Updates from the snapshot to the first high loss. Source: a snapshot 2 updates old already held
the fault. With at least 16, data that comes back won against what was learnt meanwhile."""

MAX_AGE = 32
"""The same at most, for a state that is restored unasked. Chosen: twice the 16 at which data that
came and went first won; older ones only propose."""

CLEAR_NOISE, CLEAR_ERRORS = 1.0, 3.0
"""What the last gap must exceed: standard deviations of the old state's losses from batch to batch,
and standard errors of the gap. With 0.5 data that comes and goes was taken for harm."""

MAX_MISMATCH = 0.5
"""By what share of the gap the losses that are trained on may differ from those of `batch_loss`: a
loss that code has changed, and `batch_loss` has not, is no measure. Chosen: half."""

MAX_RATE, MAX_RAISED = 1.5, 16
"""Times the learning rate of the snapshot, above which it counts as raised, and updates with such a
rate, above which it was raised on purpose: a cycle, a restart, a new schedule."""

APART = 300
"""Updates without a trial after one that led to something."""

QUIET, MAX_QUIET, AGAIN = 64, 512, 2.0
"""Updates after a trial in vain in which only a loss `AGAIN` times as many sigmas above its level
opens another one, doubled each time up to the second. Chosen: a trial of one window costs about 5
steps, so noise costs 1 % of them in the long run."""


class LossLevel:
    """Tells how far a loss is above the level of the last steps; a trend is no noise."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=2 * LEVEL_STEPS)
        self._recent: deque[float] = deque(maxlen=WINDOW - 1)
        self._num_losses = 0
        self._level = self._sigma = math.nan

    def sigmas_above(self, loss: float) -> float:
        """Return by how many sigmas this loss is too high, or the mean of the last ones with it."""
        if math.isnan(self._level):
            return -math.inf
        if not math.isfinite(loss):
            return math.inf
        mean = (sum(self._recent) + loss) / WINDOW
        far = max(loss - self._level, (mean - self._level) * math.sqrt(WINDOW))
        return far / self._sigma

    def learn(self, loss: float) -> None:
        if not math.isfinite(loss):
            return
        self._usual.append(loss)
        self._recent.append(loss)
        self._num_losses += 1
        if self._num_losses % WINDOW == 0 and len(self._usual) >= LEVEL_STEPS + WINDOW:
            losses = list(self._usual)
            self._level = median(losses[-LEVEL_STEPS - WINDOW : -WINDOW])
            floor = LOSS_ZERO + LOSS_FLOOR * abs(self._level)
            self._sigma = max(jump_sigma(losses), floor)


class Outcome(StrEnum):
    """How a trial has ended."""

    PRESENT = "the present state is better on present data"
    UNCLEAR = "the difference is within the noise"
    OTHER_LOSS = "batch_loss is not the loss that is trained on"
    OLD = "the older state is better"
    GONE = "there was no old snapshot, or no batch"


def judge(
    gaps: Sequence[float], old_losses: Sequence[float], recorded: Sequence[float]
) -> Outcome | None:
    """Return the outcome of the batches so far; None if the trial goes on.

    `recorded` are the losses that were trained on, of the same batches.
    """
    num_windows, rest = divmod(len(gaps), WINDOW)
    if rest or not num_windows:
        return None
    if not all(map(math.isfinite, old_losses)):
        return Outcome.UNCLEAR
    last = gaps[-WINDOW:]
    gap = fmean(last)
    if not gap > 0:
        return Outcome.PRESENT
    if num_windows not in (NUM_WINDOWS // 2, NUM_WINDOWS):
        return None
    # The old weights do not move, so what their losses vary by is the noise of today's data.
    windows = [old_losses[at : at + WINDOW] for at in range(0, len(old_losses), WINDOW)]
    noise = fmean(map(stdev, windows))
    error = stdev(last) / math.sqrt(WINDOW)
    if gap <= max(CLEAR_NOISE * noise, CLEAR_ERRORS * error):
        return Outcome.UNCLEAR
    present = fmean(old_losses[-WINDOW:]) + gap
    if abs(fmean(recorded[-WINDOW:]) - present) > MAX_MISMATCH * gap:
        return Outcome.OTHER_LOSS
    return Outcome.OLD if num_windows == NUM_WINDOWS else None


Groups = Sequence[Mapping[str, Any]]
_PLAIN = (bool, int, float, str, tuple, type(None))


def settings_of(groups: Groups) -> list[dict[str, Any]]:
    """Return the options of each group of an optimizer; what is a tensor is not read."""
    return [{k: v for k, v in group.items() if isinstance(v, _PLAIN)} for group in groups]


def rates_of(groups: Groups) -> tuple[float, ...]:
    """Return the learning rate of each group; NaN for one that is a tensor."""
    rates = (group.get("lr") for group in groups)
    return tuple(float(r) if isinstance(r, int | float) else math.nan for r in rates)


def what_changed(
    then: Groups,
    now: Groups,
    rates_since: Sequence[Sequence[float]],
    earlier: Sequence[Groups] = (),
) -> str:
    """Return what may have been done on purpose since a snapshot; nothing if nothing was.

    `earlier` are the settings of the snapshots before it.
    """
    if _is_raised(then, rates_of(now)):
        return "the learning rate is raised"
    keys = {k for group in (*then, *now) for k in group} - {"lr", "initial_lr"}
    pairs = [pair for one in (then, *earlier) for pair in zip(one, now, strict=False)]
    if names := sorted(k for k in keys if any(a.get(k) != b.get(k) for a, b in pairs)):
        return f"your code has changed {', '.join(names)}"
    if sum(_is_raised(then, rates) for rates in rates_since) > MAX_RAISED:
        return f"the learning rate was raised for more than {MAX_RAISED} updates"
    return ""


def _is_raised(then: Groups, now: Sequence[float]) -> bool:
    """Return whether any rate is; one that is not known, or of another group, counts as raised."""
    if len(then) != len(now):
        return True
    pairs = zip(rates_of(then), now, strict=True)
    return any(not rate <= MAX_RATE * before for before, rate in pairs)


class TrialSchedule:
    """When a trial is opened: noise that has opened one in vain must be exceeded for some time."""

    def __init__(self) -> None:
        self._apart_end = self._quiet_end = -1
        self._quiet = QUIET
        self._excess = OPEN_SIGMAS

    def opens(self, update: int, sigmas: float) -> bool:
        """Return whether a loss so many sigmas above its level opens a trial."""
        if update < self._apart_end or not sigmas > OPEN_SIGMAS:
            return False
        if update < self._quiet_end and not sigmas > AGAIN * self._excess:
            return False
        self._excess = sigmas
        if update > self._quiet_end + MAX_QUIET:
            self._quiet = QUIET
        return True

    def end(self, update: int, *, has_led_to_something: bool) -> None:
        if has_led_to_something:
            self._apart_end = update + APART
        else:
            self._quiet_end = update + self._quiet
            self._quiet = min(2 * self._quiet, MAX_QUIET)
