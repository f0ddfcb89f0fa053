"""GateWords: what the gate decided, told in the journal and the log once its numbers arrive."""

import math
from collections.abc import Mapping
from typing import Protocol

from trimtab.core import signals
from trimtab.live.ranks.ballot import DISCARD
from trimtab.live.shield import log

REASONS = {
    "odd_norm": "gradient norm",
    "odd_loss": "loss",
    "odd_both": "loss and gradient norm together",
}
"""The tests of the rule in their order, and what each looks at."""

VOTE = "vote"
FORGET = "forget"
USUAL_LOSS = "usual_loss"
USUAL_LOG_NORM = "usual_log_norm"
SHRINK = "shrink"
"""The names of the numbers that the gate reports."""

MOST_REPORTED = 16
"""At least as many numbers as a report can have."""

TELL_EVERY = 10
"""Of steps discarded in a row the first is logged and then every so many; all are journalled."""


class Notebook(Protocol):
    """Who keeps events."""

    def event(self, kind: str, step: int, facts: Mapping[str, object]) -> None:
        """Journal something that happened."""
        ...


class GateWords:
    """Turns the gate's reports into events, sentences and signals."""

    def __init__(self, notebook: Notebook | None) -> None:
        self._notebook = notebook
        self._in_a_row = 0

    def tell(
        self, step: int, told: Mapping[str, float], report: Mapping[str, float]
    ) -> dict[str, float]:
        """Tell what was decided about a step; returns the signals that go into its record."""
        is_discarded = report[VOTE] == DISCARD
        self._in_a_row = self._in_a_row + 1 if is_discarded else 0
        found = {signals.DISCARDED: float(is_discarded)}
        for name in (signals.MAX_RANK_LOSS, signals.MAX_LOSS_RANK):
            if name in report:
                found[name] = report[name]
        if is_discarded:
            self._tell_discard(step, told, report)
        elif report.get(SHRINK, 1.0) > 1.0:
            self._event("gradient scaled down", step, {"by": report[SHRINK]})
        if report[FORGET] > 0:
            log.warning(
                "trimtab: the budget of discarded steps is spent at step %d: the level has moved, "
                "so the step is taken and the gate learns anew what is usual",
                step,
            )
            self._event("gate learns anew", step, {"reasons": _reasons(told, report)})
        return found

    def _tell_discard(
        self, step: int, told: Mapping[str, float], report: Mapping[str, float]
    ) -> None:
        reasons = _reasons(told, report)
        found = {
            signals.LOSS: (told.get(signals.LOSS), report[USUAL_LOSS]),
            signals.GRAD_NORM: (told.get(signals.GRAD_NORM), math.exp(report[USUAL_LOG_NORM])),
        }
        facts: dict[str, object] = {"reasons": reasons}
        sentence = f"trimtab: step {step} discarded, {' and '.join(reasons)}"
        for name, (value, usual) in found.items():
            if value is not None:
                facts[name] = value
                sentence += f"; {name} {value:.6g}"
            if math.isfinite(usual):  # in the first steps it is not known yet
                facts[f"usual_{name}"] = usual
                sentence += f" (usual {usual:.6g})"
        if signals.MAX_LOSS_RANK in report:
            facts["rank_of_largest_loss"] = int(report[signals.MAX_LOSS_RANK])
        self._event("step discarded", step, facts)
        if self._in_a_row % TELL_EVERY == 1:
            more = f"; {self._in_a_row} in a row" if self._in_a_row > 1 else ""
            log.warning("%s%s", sentence, more)

    def _event(self, kind: str, step: int, facts: Mapping[str, object]) -> None:
        if self._notebook is not None:
            self._notebook.event(kind, step, facts)


def tell_promotion(notebook: Notebook, step: int, name: str) -> None:
    """Tell that an optimizer now runs fused and did not before."""
    log.warning(
        "trimtab: %s runs fused from now on, the form that can discard a step without waiting for "
        "the host; results differ by rounding. gate.promote = false keeps its own form",
        name,
    )
    notebook.event("optimizer promoted", step, {"optimizer": name})


def _reasons(told: Mapping[str, float], report: Mapping[str, float]) -> list[str]:
    reasons = [
        f"{name.replace('_', ' ')} not finite"
        for name in (signals.LOSS, signals.GRAD_NORM)
        if not math.isfinite(told.get(name, 0.0))
    ]
    return reasons or [reason for name, reason in REASONS.items() if report[name] > 0]
