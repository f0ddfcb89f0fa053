"""Experimenting: which experiment is made on an open incident, before anything is decided."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.core import signals
from trimtab.core.block import Record
from trimtab.core.config import ProbesConfig
from trimtab.core.findings import HARMLESS, Symptom
from trimtab.core.incidents import Incident
from trimtab.explain.causes.experiments import propose
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.decide.run_view import RunView
from trimtab.live.recover.experiments.questions import make_question
from trimtab.live.recover.order import Order
from trimtab.live.shield import log
from trimtab.probes.batch_or_state import Scale
from trimtab.probes.passes import Question

BEFORE_STEPS, AFTER_STEPS = 3, 12
"""Around the onset, the first odd step is looked for here. Source: onsets are dated up to 3 steps
early, and a burst of some batches is over after 12."""

MAX_BOUNDARIES = 24
"""Boundaries after which an experiment that was ordered will not be answered any more. Source: an
order reaches all ranks one step and the lag after it was given."""

MAX_AGE = 40
"""Steps since the first odd one after which it is too late. Source: later, most of the budget goes
into getting there."""

MAX_STEPS_PER_INCIDENT = 240
"""Steps that are repeated for all experiments on one incident. Source: half of what a restart by
hand costs."""


@dataclass(slots=True, kw_only=True)
class _Made:
    names: set[str] = field(default_factory=set)
    steps: int = 0


class Experimenting:
    """Orders experiments, one at a time; on the first rank."""

    def __init__(
        self, recorder: RunRecorder, order: Callable[[Order], None], config: ProbesConfig
    ) -> None:
        self._recorder = recorder
        self._order = order
        self._config = config
        self._made: dict[int, _Made] = {}
        self._waiting = 0
        """Boundaries for which an answer is still waited for."""

    @property
    def is_enabled(self) -> bool:
        """Whether experiments are made at all."""
        return self._config.enabled

    def look(self, incident: Incident, view: RunView) -> bool:
        """Order an experiment if one is worth it; whether an answer is waited for."""
        if self._waiting > 0:
            self._waiting -= 1
            return True
        if not self._config.enabled or HARMLESS.issuperset(incident.symptoms):
            return False
        records = self._recorder.recent
        if not records or records[-1].step < incident.onset.step or not view.slots:
            return False
        made = self._made.setdefault(incident.number, _Made())
        if made.steps >= MAX_STEPS_PER_INCIDENT:
            return False
        step = step_in_question(records, incident.onset.step)
        if records[-1].step < step or view.step - step > MAX_AGE or view.slots[0] > step:
            return False
        is_nonfinite = any(r.step == step and not _is_finite(r) for r in records)
        # One record shows little. But a value that is not finite may be restored at once, and after
        # that the incident is over.
        is_state_nonfinite = Symptom.NONFINITE_NORM in incident.symptoms
        if records[-1].step == step and not (is_nonfinite or is_state_nonfinite):
            return False
        explained = self._recorder.explain(incident)
        ranking = None if explained is None else explained.ranking
        if ranking is None:
            return False
        precision = ranking.results.get("half_precision")
        chosen = propose(
            ranking,
            is_nonfinite=is_nonfinite,
            is_state_nonfinite=is_state_nonfinite,
            is_half_precision=precision is not None and precision.is_yes,
            made=made.names,
        )
        if chosen is None:
            return False
        made.names.add(chosen.experiment)
        self._waiting = MAX_BOUNDARIES if view.world > 1 else 1
        log.info("trimtab: experiment %s on step %d: %s", chosen.experiment, step, chosen.reason)
        question = make_question(records, chosen.experiment, step, incident.number)
        self._order(Order(to=None, experiment=question))
        return True

    def on_answer(self, question: Question, cost: Mapping[str, Any]) -> None:
        """An experiment is over; one that was refused is the last one on its incident."""
        self._waiting = 0
        made = self._made.get(question.incident)
        if made is not None:
            refused = bool(cost.get("refused"))
            made.steps += MAX_STEPS_PER_INCIDENT if refused else int(cost["steps"])


def step_in_question(records: Sequence[Record], onset: int) -> int:
    """The first step near the onset that is not finite, or odd; else the onset."""
    near = [r for r in records if onset - BEFORE_STEPS <= r.step <= onset + AFTER_STEPS]
    bad = next((record.step for record in near if not _is_finite(record)), None)
    if bad is not None:
        return bad
    question = make_question(records, "", onset - BEFORE_STEPS)
    scale = Scale.of(question)
    if scale is None:
        return onset
    found = [question.original(record.step) for record in near]
    odd = [one.step for one in found if one is not None and scale.is_odd(one)]
    return odd[0] if odd else onset


def _is_finite(record: Record) -> bool:
    values = (record.signals.get(signals.LOSS), record.signals.get(signals.GRAD_NORM))
    return all(value is None or math.isfinite(value) for value in values)
