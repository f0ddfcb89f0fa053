"""Canary: a healthy run is probed now and then, to find what the training loss hides.

Garbage that is easy to learn makes the training loss fall while the model forgets. Two steps are
probed each time:

    fresh    of about 128 steps ago, against its loss in training: the scale for later readings
    known    the fresh one of the last time, against that reading: the noise between batches cancels

In a healthy run the loss of known batches falls. Where it rises, it is read once more, and only if
it is still higher the ladder decides. After a data source has come that is new to the run, a few
readings come sooner: the first of them is of weights that have hardly seen it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.core.block import Record
from trimtab.decide.readings import (
    CANARY_SHARE,
    MIN_READINGS,
    WATCH_EVERY,
    WATCH_READINGS,
    canary_every,
    watch_pause,
)
from trimtab.live.recover.decide.probing import Probing
from trimtab.live.recover.decide.run_view import RunView

RISE, BELIEVED_RISE = 0.02, 0.05
"""Nats by which known batches are worse than at the last good reading: enough to read again, and
enough to believe after that. Source: of 77 such differences in 7 healthy runs of the lab the
largest was +0.01; with 93 % garbage they were +0.04 to +0.64 within 60 steps in 4 of 5 runs."""

MIN_DIFFERENCES = 2
"""Differences before one is judged: what was trained on a moment ago is first forgotten again."""

USUAL_TIMES = 2.0
"""Times the largest rise so far that a rise must reach: small batches make noisy weights. Source:
healthy runs of the lab with an eighth of the batch rose by 0.2 in their first 100 steps."""

CONFIRM_BOUNDARIES = 8
"""Boundaries between a rise and the second reading. Chosen: detectors have dated sharp faults by
then, and the noise of the weights has changed between the two readings."""

OnBad = Callable[[int, float, RunView], None]
"""Gets the step of the last good reading and a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A step whose batches were probed."""

    record: Record
    value: float
    at: int
    """The step before which it was read."""


class Canary:
    """Probes a healthy run, on the first rank."""

    def __init__(self, probing: Probing, on_bad: OnBad, on_rise: OnBad) -> None:
        self._probing = probing
        self._on_bad = on_bad
        """A single reading is too high."""
        self._on_rise = on_rise
        """Known batches have become worse, in two readings."""
        self._last = 0.0
        self._known: _Read | None = None
        self._differences: list[float] = []
        """How known batches have changed from one reading to the next."""
        self._read_again_at: int | None = None
        """The boundary at which a rise is read once more."""
        self._watch_until: int | None = None
        """Readings come sooner up to this boundary: a source is new."""

    def planned_change(self) -> None:
        """The data may differ from here on."""
        self._known = self._read_again_at = None

    def rolled_back(self, step: int) -> None:
        """The run has gone back to a step: later readings are void."""
        self._read_again_at = None
        if self._known is not None and self._known.at > step:
            self._known = None

    def read_soon(self) -> None:
        """The batches have changed: read at the next boundary."""
        self._last = -math.inf

    def watch_source(self, boundary: int) -> None:
        """A data source is new to the run: read now and several times soon, if time permits."""
        pause = watch_pause(CANARY_SHARE)
        if pause is None:
            return
        if self._watch_until is None or boundary - self._watch_until >= pause:
            self._watch_until = boundary + WATCH_READINGS * WATCH_EVERY
            self.read_soon()

    def is_watching(self, boundary: int) -> bool:
        """Whether a source is new, so that readings come sooner."""
        return self._watch_until is not None and boundary <= self._watch_until

    def look(self, boundary: int, view: RunView) -> None:
        """Probe if it is time."""
        first = self._probing.first_step(view)
        if self._known is not None and (first is None or self._known.record.step < first):
            self._known = self._read_again_at = None  # its batches are not kept any more
        if self._known is not None and self._read_again_at is not None:
            if boundary >= self._read_again_at:
                self._confirm(self._known, view)
            return
        every = canary_every(CANARY_SHARE, boundary)
        if every is not None and self.is_watching(boundary):
            every = min(every, WATCH_EVERY)
        if every is None or boundary - self._last < every:
            return
        self._last = boundary
        if records := self._probing.records_before(view.step, view, 1):
            self._read(self._known, records[0], boundary, view)

    def _read(self, known: _Read | None, record: Record, boundary: int, view: RunView) -> None:
        def then(_: float, now: RunView) -> None:
            value = self._probing.by_step[-1]
            if known is not None:
                rise = self._probing.by_step[0] - known.value
                is_judged = len(self._differences) >= MIN_DIFFERENCES
                if is_judged and not rise <= RISE + self._usual_rise:
                    self._read_again_at = boundary + CONFIRM_BOUNDARIES
                    return
                if math.isfinite(rise):
                    self._differences.append(rise)
            if math.isfinite(value):
                self._known = _Read(record=record, value=value, at=now.step)
            self._judge(value, now)

        records = [record] if known is None else [known.record, record]
        self._probing.start(records, view, then, "canary")

    @property
    def _usual_rise(self) -> float:
        """What a rise must exceed in this run."""
        return USUAL_TIMES * max(0.0, *self._differences) if self._differences else 0.0

    def _judge(self, value: float, view: RunView) -> None:
        """A fresh reading on the scale of the earlier ones."""
        healthy = self._probing.healthy
        if len(healthy) >= MIN_READINGS and self._probing.reading(value, 1).is_suspicious:
            self._on_bad(healthy[-1][0], value, view)
        else:
            self._probing.add_healthy(view.step, value)

    def _confirm(self, known: _Read, view: RunView) -> None:
        def then(value: float, now: RunView) -> None:
            self._read_again_at = None
            if not value - known.value <= BELIEVED_RISE + self._usual_rise:
                self._on_rise(known.at, value - known.value, now)

        self._probing.start([known.record], view, then, "canary again")
