"""GateWords: what the gate decided, told in the journal and the log once its numbers arrive."""

import math
from collections.abc import Mapping
from typing import Protocol

from trimtab.core import signals
from trimtab.live.protect.rule import (
    IS_ARMED,
    LETS_THROUGH,
    SCALED_BY,
    USUAL_LOG_NORM,
    USUAL_LOSS,
)
from trimtab.live.ranks.ballot import DISCARD
from trimtab.live.shield import log

VOTE = "vote"
"""The name of what the ranks agreed on; the rule names the other values of a report."""

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
        self._lets_through = False
        self._is_armed = False

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
        elif report.get(SCALED_BY, 1.0) > 1.0:
            self._event("gradient scaled down", step, {"by": report[SCALED_BY]})
        self._tell_changes(step, report)
        return found

    def _tell_changes(self, step: int, report: Mapping[str, float]) -> None:
        """Tell when the gate begins to let odd steps through, and when it is armed."""
        lets_through = report.get(LETS_THROUGH, 0.0) > 0
        if lets_through and not self._lets_through:
            log.warning(
                "trimtab: loss and gradient norm are far above the usual since some steps, at step "
                "%d still: the weights are damaged or the level has moved. The gate lets these "
                "steps through, because only training can bring them back",
                step,
            )
            self._event("gate lets steps through", step, {})
        self._lets_through = lets_through
        is_armed = report.get(IS_ARMED, 0.0) > 0
        if is_armed and not self._is_armed:
            self._event("gate armed", step, {})
        self._is_armed = self._is_armed or is_armed

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
    return reasons or ["loss and gradient norm together"]
