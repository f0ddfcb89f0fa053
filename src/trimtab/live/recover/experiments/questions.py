"""From the records of a run to the question of an experiment, and from its answer to the journal.

Only on the first rank: the others get the question with the order, and need no answer.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trimtab.core import signals
from trimtab.core.block import NO_POSITION, Record
from trimtab.core.events import PROBE_ANSWER
from trimtab.decide.situation import Situation
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.order import Order
from trimtab.live.shield import Shield, log
from trimtab.probes.passes import Answer, Original, Question, Remedy

MAX_ORIGINALS = 400
"""Steps that a question remembers: the oldest snapshot is that old."""


def make_question(
    records: Sequence[Record], experiment: str, step: int, incident: int = 0
) -> Question:
    """A question about a step; the rest is filled in at the boundary where it is asked."""
    return Question(
        experiment=experiment,
        incident=incident,
        step=step,
        originals=tuple(map(_original, records[-MAX_ORIGINALS:])),
    )


def remedy_question(
    records: Sequence[Record], name: str, situation: Situation, order: Order
) -> Question:
    """Whether what is ordered helps, about the onset of an incident."""
    tried = Remedy(
        name=name,
        target=order.to or 0,
        skip=order.skip,
        hold=order.hold,
        lr_factor=1.0 if order.lr_factor is None else order.lr_factor,
    )
    question = make_question(records, "remedy", situation.onset, situation.incident)
    return dataclasses.replace(question, remedy=tried)


def _original(record: Record) -> Original:
    found = record.signals
    norm = found.get(signals.GRAD_NORM, found.get(signals.CLIPPED_GRAD_NORM))
    rank = found.get(signals.MAX_LOSS_RANK)
    return Original(
        step=record.step,
        loss=found.get(signals.LOSS),
        grad_norm=norm,
        position=record.data_position if record.data_position != NO_POSITION else 0,
        discarded=found.get(signals.DISCARDED) == 1.0,
        largest_loss=found.get(signals.MAX_RANK_LOSS),
        largest_loss_rank=None if rank is None else int(rank),
    )


class Answers:
    """Journals and logs answers, and hands them on."""

    def __init__(self, recorder: Callable[[], RunRecorder | None], shield: Shield) -> None:
        self._recorder = recorder
        self._shield = shield
        self.then: Callable[[Question, Mapping[str, Any]], None] = lambda question, cost: None
        """Called with what an answer has cost, on the first rank."""

    def __call__(self, question: Question, answer: Answer, cost: Mapping[str, Any]) -> None:
        """An experiment is over."""
        recorder = self._recorder()
        if recorder is None:
            return
        with self._shield.guarding("probe answer"):
            facts = {
                "probe": question.experiment,
                "incident": question.incident,
                "about": question.step,
                "answer": answer.says,
                "sentence": answer.sentence,
                "facts": _plain(answer.facts),
                "steps": cost["steps"],
                "seconds": round(float(cost["seconds"]), 3),
            }
            last = recorder.recent[-1].step if recorder.recent else question.step
            recorder.event(PROBE_ANSWER, last, facts)
            log.log(
                logging.INFO if cost.get("refused") else logging.WARNING,
                "trimtab: experiment %s on step %d (%d steps done again): %s",
                question.experiment,
                question.step,
                cost["steps"],
                answer.sentence,
            )
            self.then(question, cost)


def _plain(value: Any) -> Any:
    """Values that a journal takes: numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
