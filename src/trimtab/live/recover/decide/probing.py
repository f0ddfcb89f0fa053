"""Probing: when the weights are probed, with which batches, and what healthy readings look like.

A healthy run is probed now and then as well (`canary.py`): those readings are the scale for later
ones.
"""

from collections.abc import Callable, Sequence

from trimtab.core import signals
from trimtab.core.block import Record
from trimtab.decide.readings import Reading, scale_of
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.decide import evidence
from trimtab.live.recover.decide.run_view import RunView
from trimtab.live.recover.order import Order, ProbeStep
from trimtab.live.recover.paired_probe import ProbeReading

PROBE_STEPS = 8
"""Steps whose batches are probed after an alarm. Source: with 8, healthy readings of the lab lie
within 0.03 of each other."""

PROBE_AGE, MIN_AGE = 128, 16
"""Steps between training on a batch and probing with it, at most and at least. All readings of a
run use batches of the same age, so that they can be compared. Old ones show what a run forgets
while a different source of data takes over: batches of 16 steps ago are of that source already."""

MAX_READINGS = 32

Then = Callable[[float, RunView], None]
"""What to do with a reading, and the run at that boundary."""


class Probing:
    """Orders probes, one at a time, and remembers the healthy readings."""

    def __init__(self, recorder: RunRecorder, order: Callable[[Order], None]) -> None:
        self._recorder = recorder
        self._order = order
        self._then: Then | None = None
        self._not_before = 0
        """Batches from before this step cannot be compared: a change was planned."""
        self.healthy: list[tuple[int, float]] = []
        """Step and reading."""
        self.by_step: tuple[float, ...] = ()
        """The last reading, for each of its steps."""
        self._trained: tuple[float, ...] = ()
        """The losses of these steps when they were trained on."""

    @property
    def is_under_way(self) -> bool:
        """Whether a probe was ordered and has not been carried out yet."""
        return self._then is not None

    @property
    def note(self) -> str:
        """What a person should know about the last reading; "" if nothing."""
        return evidence.multiple_note(self._trained, self.by_step)

    def planned_change(self, step: int) -> None:
        """The data may differ from here on: earlier readings and batches say nothing about it."""
        self._not_before = step
        self.healthy.clear()

    def rolled_back(self, step: int) -> None:
        """The run has gone back to a step: orders under way and later readings are void."""
        self._then = None
        self.healthy = [part for part in self.healthy if part[0] <= step]

    def reading(self, value: float, num_steps: int, before: int | None = None) -> Reading:
        """A value on the scale of the healthy readings, or of those before a step."""
        mean, sigma = scale_of(self.healthy_before(before), num_steps)
        return Reading(value=value, mean=mean, sigma=sigma)

    def healthy_before(self, step: int | None) -> tuple[float, ...]:
        """The healthy readings from before a step."""
        return tuple(value for at, value in self.healthy if step is None or at <= step)

    def records_before(self, step: int, view: RunView, count: int = PROBE_STEPS) -> list[Record]:
        """The last steps before this one whose batches can be run again."""
        first = self.first_step(view)
        if first is None:
            return []
        age = min(PROBE_AGE, (view.step - first) // 2)
        last = min(step, view.step - age + count // 2)
        if age < MIN_AGE:
            return []
        return evidence.probe_steps(self._recorder.recent, last, count, not_before=first)

    def first_step(self, view: RunView) -> int | None:
        """The first step whose batches can be run again; None if that is not possible."""
        if not view.can_probe or not view.slots:
            return None
        return max(self._not_before, view.slots[0])  # the tape reaches back to the first snapshot

    def start(self, records: Sequence[Record], view: RunView, then: Then, purpose: str) -> None:
        """Order a probe with the batches of these steps; its reading goes to `then`."""

        def journalled(value: float, now: RunView) -> None:
            self._trained = tuple(record.signals[signals.LOSS] for record in records)
            facts = {"value": value, "steps": len(records), "purpose": purpose}
            self._recorder.event("probe", now.step, facts)
            then(value, now)

        self._then = journalled
        steps = [
            ProbeStep(
                step=record.step,
                trained=record.signals[signals.LOSS],
                positions=tuple(
                    range(record.data_position, record.data_position + view.accumulate)
                ),
            )
            for record in records
        ]
        self._order(Order(to=None, probe=tuple(steps)))

    def on_reading(self, reading: ProbeReading | None, view: RunView) -> None:
        """A probe was carried out; None if a rank could not."""
        then, self._then = self._then, None
        if then is not None and reading is not None:
            self.by_step = reading.by_step
            then(reading.value, view)

    def add_healthy(self, step: int, value: float) -> None:
        """Remember a reading that showed no harm."""
        self.healthy.append((step, value))
        del self.healthy[:-MAX_READINGS]
