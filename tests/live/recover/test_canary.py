"""The canary: what it reads, and when it is believed."""

import math
from typing import Any, cast

import pytest

from trimtab.core import signals
from trimtab.core.block import Record
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.decide.canary import CONFIRM_BOUNDARIES, Canary
from trimtab.live.recover.decide.probing import Probing
from trimtab.live.recover.decide.run_view import RunView
from trimtab.live.recover.order import Order
from trimtab.live.recover.paired_probe import ProbeReading


class Run:
    """A run whose probes read what a test says, by step of the batch and step of the reading."""

    def __init__(self, loss: Any) -> None:
        self.orders: list[Order] = []
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.recent: list[Record] = []
        self.found: list[tuple[int, float, int]] = []
        """Last good reading, value, step at which the ladder was asked."""
        self.bad: list[int] = []
        self._loss = loss
        self._probing = Probing(cast(RunRecorder, self), self.orders.append)
        self.canary = Canary(
            self._probing,
            lambda last, value, view: self.bad.append(view.step),
            lambda last, value, view: self.found.append((last, value, view.step)),
        )

    def event(self, kind: str, step: int, facts: dict[str, Any]) -> None:
        self.events.append((step, facts))

    def train(self, steps: int, soon: int = -1, new: tuple[int, ...] = ()) -> "Run":
        for step in range(1, steps):
            self.recent.append(
                Record(
                    tick=step,
                    step=step - 1,
                    data_position=step - 1,
                    signals={signals.LOSS: 0.0},
                )
            )
            view: Any = RunView(
                step=step,
                accumulate=1,
                next_position=step,
                slots=(0,),
                settings=cast(Any, None),
                settings_at=cast(Any, None),
                rate_ratio=lambda: None,
                world=1,
                source_at=lambda position: None,
                can_probe=True,
            )
            if step == soon:
                self.canary.read_soon()
            if step in new:
                self.canary.watch_source(step)
            self.canary.look(step, view)
            while self.orders:
                parts = self.orders.pop().probe
                by_step = tuple(self._loss(part.step, step) for part in parts)
                mean = sum(by_step) / len(by_step)
                reading = ProbeReading(value=mean, num_batches=len(parts), by_step=by_step)
                self._probing.on_reading(reading, view)
        return self


def falling(batch: int, step: int) -> float:
    """The loss of a batch since it was trained on: lower, by how odd the batch is."""
    return -0.3 - 0.001 * (step - batch) + 0.1 * math.sin(batch)


def test_a_healthy_run_is_read_every_52_steps_and_nothing_is_believed() -> None:
    run = Run(falling).train(400)
    assert [step for step, _ in run.events] == [52, 104, 156, 208, 260, 312, 364]
    assert not run.found


def test_known_batches_that_become_worse_are_read_again_and_then_believed() -> None:
    run = Run(lambda batch, step: falling(batch, step) + 0.004 * max(step - 220, 0)).train(300)
    again = 260 + CONFIRM_BOUNDARIES
    assert [step for step, _ in run.events][-2:] == [260, again]
    ((last, value, step),) = run.found
    assert (last, step) == (208, again)
    assert value == pytest.approx(0.004 * 48 - 0.001 * 60)


def test_a_run_whose_readings_always_rise_and_fall_is_healthy() -> None:
    run = Run(lambda batch, step: falling(batch, step) + (0.2 if step // 52 % 2 else 0.0)).train(
        500
    )
    assert not run.found


def test_batches_that_look_different_are_read_at_once() -> None:
    run = Run(falling).train(240, soon=230)
    assert [step for step, _ in run.events][-1] == 230


def test_a_reading_in_a_bad_moment_is_not_what_later_ones_are_compared_with() -> None:
    run = Run(lambda batch, step: math.nan if 206 <= step < 210 else falling(batch, step)).train(
        400
    )
    assert any(math.isnan(facts["value"]) for _, facts in run.events)
    assert not run.found


def test_a_new_source_is_read_at_once_and_soon_again() -> None:
    run = Run(falling).train(400, new=(214,))
    assert [step for step, _ in run.events][3:] == [208, 214, 230, 246, 262, 278, 330, 382]


def test_harm_by_a_new_source_is_found_within_32_steps() -> None:
    run = Run(lambda batch, step: falling(batch, step) + 0.006 * max(step - 214, 0)).train(
        300, new=(214,)
    )
    last, _, step = run.found[0]
    assert last == 214
    assert step <= 214 + 32


def test_new_sources_do_not_cost_more_than_the_canary_itself() -> None:
    run = Run(falling).train(800, new=tuple(range(100, 800)))
    assert len(run.events) <= 800 // 52 + 4 * 2
