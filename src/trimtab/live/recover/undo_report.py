"""UndoReporter: an undo in one line, and some steps later whether it has helped; on the first rank.

Both are events of the journal, so that a post-mortem can tell what was done and what came of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.core import signals
from trimtab.core.events import NOT_UNDONE, UNDO, UNDO_OUTCOME
from trimtab.core.robust import median, sigma_around
from trimtab.core.text import digits
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.recover.rules import STUCK_STEPS, Proof
from trimtab.live.recover.undo import UndoReport
from trimtab.live.shield import Shield, log

AFTER, BEFORE = 20, 32
"""Losses that are compared: the first 20 after an undo with the last 32 before the state that it
restored. Source: 20 is the longest undo that is aimed at, so most of them are new losses."""

SIGMAS = 4.0
"""Of the losses before, by which those after may be higher. Source: the gate's limit for a loss
that is no noise."""

_HOW_SURE = {
    Proof.FLIPPED: "certain, because no code has written it",
    Proof.NONFINITE: "certain, because training would not go on",
    Proof.IMPOSSIBLE: "certain, because it follows from Adam's formula",
    Proof.STUCK: "likely, because every update since the last finite gradient was discarded",
    Proof.ORDERED: "as asked",
}


@dataclass(frozen=True, slots=True)
class _Pending:
    """An undo whose outcome is not known yet."""

    step: int
    """The first step after it."""
    restored: int
    """The first step that the restored state does not contain."""


class UndoReporter:
    """Reports what was undone and why, or why nothing was, and what came of it."""

    def __init__(
        self,
        monitor: StepMonitor,
        shield: Shield,
        give_up_after: Callable[[int], None] | None,
    ) -> None:
        self._monitor = monitor
        self._shield = shield
        self._give_up_after = give_up_after
        """Doubts the checkpoints that hold what has been undone."""
        self._pending: list[_Pending] = []

    def __call__(self, report: UndoReport) -> None:
        """Log and journal one undo, or that there is none."""
        recorder = self._monitor.recorder
        if recorder is not None and not self._shield.is_down:
            with self._shield.guarding("undo"):
                self._report(report, recorder, self._monitor.next_step)

    def poll(self) -> None:
        """Report the outcome of an undo as soon as enough losses have followed it."""
        recorder = self._monitor.recorder
        if not self._pending or recorder is None or self._shield.is_down:
            return
        if self._monitor.next_step > self._pending[0].step + AFTER:
            with self._shield.guarding("outcome of an undo"):
                self._report_outcome(recorder)

    def _report(self, report: UndoReport, recorder: RunRecorder, step: int) -> None:
        why, how_sure = _describe(report), _HOW_SURE[report.proof]
        facts: dict[str, object] = {"why": why, "how_sure": how_sure}
        if report.tensor is not None:
            facts["tensor"] = report.tensor
        if report.proof is Proof.FLIPPED:  # measured, so the diagnosis may rely on it
            facts["is_hardware"] = True
        if report.proof is Proof.ORDERED:
            facts["is_ordered"] = True
        if report.updates_lost is None:
            log.warning("trimtab: step %d: %s; nothing is undone: %s", step, why, report.why_not)
            recorder.event(NOT_UNDONE, step, {**facts, "because": report.why_not})
            return
        lost = report.updates_lost
        restored = max(step - lost - report.updates_discarded, 0)
        log.warning(
            "trimtab: step %d: undone to step %d, %d updates are lost: %s (%s)",
            step,
            restored,
            lost,
            why,
            how_sure.partition(",")[0],  # the reason is in the event and in the report
        )
        recorder.event(UNDO, step, {**facts, "to_step": restored, "updates_lost": lost})
        self._pending.append(_Pending(step, restored))
        if self._give_up_after is not None:
            self._give_up_after(restored)

    def _report_outcome(self, recorder: RunRecorder) -> None:
        undo = self._pending[0]
        losses = [(record.step, record.signals.get(signals.LOSS)) for record in recorder.recent]
        after = [loss for step, loss in losses if loss is not None and step >= undo.step][:AFTER]
        if len(after) < AFTER:
            return  # records come some steps late
        self._pending.pop(0)
        before = [loss for step, loss in losses if loss is not None and step < undo.restored]
        helped = has_helped(before[-BEFORE:], after)
        if helped is None:
            return
        now, then = median(after), median(before[-BEFORE:])
        sentence = (
            f"the undo at step {undo.step} has {'helped' if helped else 'NOT helped'}: the loss is "
            f"{digits(now)}, before the harm it was {digits(then)}"
        )
        (log.info if helped else log.warning)("trimtab: %s", sentence)
        facts = {"undone_at": undo.step, "helped": helped, "loss_before": then, "loss_after": now}
        recorder.event(UNDO_OUTCOME, self._monitor.next_step, facts)


def has_helped(before: Sequence[float], after: Sequence[float]) -> bool | None:
    """Return whether losses after an undo are like those before the harm; None if it is not known.

    Args:
        before: Losses of the steps that the restored state has learnt from.
        after: Losses of the first steps after the undo.
    """
    known = [loss for loss in before if math.isfinite(loss)]
    if len(known) < BEFORE // 4 or not after:
        return None
    usual = median(known)
    # Most of them must be finite: the median of numbers with a NaN among them is none.
    finite = [loss if math.isfinite(loss) else math.inf for loss in after]
    return median(finite) <= usual + SIGMAS * sigma_around(usual, known)


def _describe(report: UndoReport) -> str:
    if report.proof is Proof.ORDERED:
        return "asked for by guard.undo"
    if report.proof is Proof.STUCK:
        return f"no finite gradient in {STUCK_STEPS} updates, although all weights are finite"
    where = report.tensor or "several tensors"
    return {
        Proof.FLIPPED: f"one bit of {where} flipped in memory",
        Proof.NONFINITE: f"{where} not finite",
        Proof.IMPOSSIBLE: f"{where} beyond what any gradients can lead to",
    }[report.proof]
