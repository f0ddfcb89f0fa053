"""GateReporter: what the gate decided, in the journal and the log once its numbers arrive."""

import math
from collections.abc import Callable, Mapping

from trimtab.core import signals
from trimtab.live.protect.rule import IS_ARMED, LETS_THROUGH, SCALED_BY, USUAL_LOG_NORM, USUAL_LOSS
from trimtab.live.ranks.exchange import DISCARD
from trimtab.live.shield import log

Event = Callable[[str, int, Mapping[str, object]], None]
"""Journals something that happened in a step, with its facts."""

VOTE = "vote"
"""The name of what the ranks agreed on; the rule names the other values of a report."""

HARM = "harm"
"""The name of the number of ranks whose state waits for an undo."""

BAD_DATA = "bad_data"
"""The name of whether the run was relaunched from before the data of the step."""

OF_RANKS = (
    *(signals.MAX_RANK_LOSS, signals.MAX_LOSS_RANK),
    *(signals.MAX_RANK_GRAD, signals.MAX_GRAD_RANK),
)
"""What a report may name of a single rank."""

LOG_EVERY = 10
"""Of steps discarded in a row the first is logged, then every 10th; all are journalled."""

ARMED_WITHIN = 512
"""Steps after which a gate that still knows nothing usual is reported: four windows."""


class GateReporter:
    """Turns the gate's reports into events, sentences and signals."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self._in_a_row = self._scaled_in_a_row = 0
        self._num_reports = 0
        self._is_armed = self._lets_through = False

    def report(
        self, step: int, found: Mapping[str, float], report: Mapping[str, float]
    ) -> dict[str, float]:
        """Report what was decided about a step; returns the signals that go into its record."""
        is_discarded = report[VOTE] == DISCARD
        is_scaled = not is_discarded and report.get(SCALED_BY, 1.0) > 1.0
        self._in_a_row = self._in_a_row + 1 if is_discarded else 0
        self._scaled_in_a_row = self._scaled_in_a_row + 1 if is_scaled else 0
        decided = {signals.DISCARDED: float(is_discarded)}
        for name in OF_RANKS:
            if name in report:
                decided[name] = report[name]
        if is_discarded:
            self._report_discard(step, found, report)
        elif is_scaled:
            self._report_scaled(step, found, report)
        if IS_ARMED in report:
            self._report_armed(step, report[IS_ARMED] > 0)
            self._report_level(step, report[LETS_THROUGH] > 0)
        return decided

    def _report_level(self, step: int, lets_through: bool) -> None:
        if lets_through and not self._lets_through:
            log.warning(
                "trimtab: step %d: loss and gradient norm stay far above the usual; updates are "
                "applied, because discarding them would freeze the run",
                step,
            )
            self._event("gate lets steps through", step, {})
        self._lets_through = lets_through

    def _report_armed(self, step: int, is_armed: bool) -> None:
        self._num_reports += 1
        if is_armed and not self._is_armed:
            self._is_armed = True
            log.debug("trimtab: the gate is armed from step %d on", step)
            self._event("gate armed", step, {})
        if not self._is_armed and self._num_reports == ARMED_WITHIN:
            log.warning(
                "trimtab: spike protection is off: too few of the first %d steps had a loss and a "
                "gradient norm; call guard.record(loss=...) and guard.clip_grad_norm_(...)",
                ARMED_WITHIN,
            )
            self._event("gate not armed", step, {})

    def _report_discard(
        self, step: int, found: Mapping[str, float], report: Mapping[str, float]
    ) -> None:
        reasons = _reasons(found, report)
        numbers, sentence = _numbers(found, report)
        facts: dict[str, object] = {"reasons": reasons, **numbers}
        if signals.MAX_LOSS_RANK in report:
            facts["rank_of_largest_loss"] = int(report[signals.MAX_LOSS_RANK])
        self._event("step discarded", step, facts)
        because = " and ".join(reasons)
        _warn(f"step {step} discarded, {because}{sentence}", self._in_a_row)

    def _report_scaled(
        self, step: int, found: Mapping[str, float], report: Mapping[str, float]
    ) -> None:
        by = report[SCALED_BY]
        numbers, _ = _numbers(found, report)
        self._event("gradient scaled down", step, {"by": by, **numbers})
        _warn(
            f"step {step} applied with its gradient divided by {by:.3g}, far larger than usual",
            self._scaled_in_a_row,
        )


def _numbers(
    found: Mapping[str, float], report: Mapping[str, float]
) -> tuple[dict[str, object], str]:
    """Loss and gradient norm with what is usual, as facts and as part of a sentence."""
    usual = {
        signals.LOSS: report.get(USUAL_LOSS, math.nan),
        signals.GRAD_NORM: math.exp(report.get(USUAL_LOG_NORM, math.nan)),
    }
    facts: dict[str, object] = {}
    sentence = ""
    for name, value in usual.items():
        if name in found:
            facts[name] = found[name]
        if math.isfinite(value):  # in the first steps it is not known yet
            facts[f"usual_{name}"] = value
        if math.isfinite(found.get(name, math.nan)):  # that it is not finite is said as the reason
            usually = f" (usual {value:.3g})" if math.isfinite(value) else ""
            sentence += f"; {name} {found[name]:.3g}{usually}"
    return facts, sentence


def _warn(sentence: str, in_a_row: int) -> None:
    """Log the first of several steps in a row, and one now and then."""
    if in_a_row % LOG_EVERY == 1:
        log.warning("trimtab: %s%s", sentence, f"; {in_a_row} in a row" if in_a_row > 1 else "")


def report_promotion(event: Event, step: int, name: str) -> None:
    """Report that an optimizer now runs fused and did not before, on the first rank."""
    log.warning(
        "trimtab: %s now runs fused, to discard steps on the device; rounding differs "
        "(gate.promote = false: no change)",
        name,
    )
    event("optimizer promoted", step, {"optimizer": name})


def _reasons(found: Mapping[str, float], report: Mapping[str, float]) -> list[str]:
    if report.get(HARM, 0.0) > 0:
        return ["the state was harmed"]
    if report.get(BAD_DATA, 0.0) > 0:
        return ["the run went back to before this data, and leaves it out"]
    reasons = [
        f"{name.replace('_', ' ')} not finite"
        for name in (signals.LOSS, signals.GRAD_NORM)
        if not math.isfinite(found.get(name, 0.0))
    ]
    by_rule = "loss and gradient norm together" if IS_ARMED in report else "gradients not finite"
    return reasons or [by_rule]
