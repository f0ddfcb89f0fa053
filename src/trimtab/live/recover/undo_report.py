"""UndoReporter: an undo in one line, and some steps later whether it has helped; on the first rank.

Both are events of the journal, so that a post-mortem can tell what was done and what came of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.core import signals
from trimtab.core.events import (
    BUFFER_REPAIRED,
    NOT_UNDONE,
    ROLLBACK_PROPOSED,
    TRIAL,
    UNDO,
    UNDO_OUTCOME,
    UNDO_REFUSED,
)
from trimtab.core.robust import median, sigma_around
from trimtab.core.text import compared_losses, counted, digits
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.recover.rules import SECOND_COPY, Proof
from trimtab.live.recover.trial import ANSWER_UPDATES, Offer
from trimtab.live.recover.trial_rule import WINDOW, Outcome
from trimtab.live.recover.undo_plan import UndoReport
from trimtab.live.shield import Shield, log

AFTER, BEFORE = 20, 32
"""Losses that are compared: the first 20 after an undo with the last 32 before the state that it
restored. Source: 20 is the longest undo that is aimed at, so most of them are new losses."""

NEAREST = 8
"""Losses just before the fault that are told beside them. Chosen: a median hides the noise."""

SIGMAS = 4.0
"""Of the losses before, by which those after may be higher. Source: the gate's limit for a loss
that is no noise."""

_HOW_SURE = {
    Proof.FLIPPED: "certain, because exactly one bit of it changed and no code has written it",
    Proof.NONFINITE: "certain, because training does not go on with it",
    Proof.TOO_FAR: "certain, because the updates since the snapshot cannot move it that far",
    Proof.IMPOSSIBLE: "certain, because it follows from Adam's formula and torch counted no write",
    Proof.STUCK: "likely, because every update since the last finite gradient was discarded",
    Proof.ORDERED: "as asked",
    Proof.TRIED: "measured on new batches, 32 that neither state was trained on",
}


@dataclass(frozen=True, slots=True)
class _PendingOutcome:
    """An undo whose outcome is not known yet."""

    step: int
    """The first step after it."""
    restored: int
    """The first step that the restored state does not contain."""
    has_won: bool
    """Whether the restored state has won a trial."""


class UndoReporter:
    """Reports what was undone and why, or why nothing was, and what came of it."""

    def __init__(
        self, monitor: StepMonitor, shield: Shield, give_up_after: Callable[[int], None] | None
    ) -> None:
        self._monitor = monitor
        self._shield = shield
        self._give_up_after = give_up_after
        """Doubts the checkpoints that hold what has been undone."""
        self._pending: list[_PendingOutcome] = []
        self._last_undo: int | None = None
        """The first step after the last undo."""

    @property
    def _is_reporting(self) -> bool:
        return self._monitor.recorder.is_recording and not self._shield.is_down

    def undo(self, report: UndoReport) -> None:
        """Log and journal one undo, or that there is none."""
        if self._is_reporting:
            with self._shield.guarding("undo"):
                self._report(report, self._monitor.next_step)

    def trial(self, found: Offer | Outcome) -> None:
        """Journal how a trial of states has ended; log it if a person is asked."""
        if not self._is_reporting:
            return
        recorder, step = self._monitor.recorder, self._monitor.next_step
        with self._shield.guarding("trial"):
            if isinstance(found, Outcome):
                recorder.event(TRIAL, step, {"outcome": found.value})
                return
            sentence = (
                f"the state of step {step - found.updates_lost} is {_gain(found.gain)}; "
                f"{found.updates_lost} updates lost. Not restored, as {found.why_asked}: "
                f"guard.undo() within {ANSWER_UPDATES} steps restores it"
            )
            log.warning("trimtab: step %d: %s", step, sentence)
            facts = {"gain": found.gain, "updates_lost": found.updates_lost}
            more = {"because": found.why_asked, "sentence": sentence}
            recorder.event(ROLLBACK_PROPOSED, step, facts | more)

    def harm_returned(self, tensor: str | None) -> None:
        """Log and journal that the last undo was in vain."""
        undone_at = self._last_undo
        if not self._is_reporting or undone_at is None:
            return
        with self._shield.guarding("harm that returned"):
            self._pending = [undo for undo in self._pending if undo.step != undone_at]
            log.warning(
                "trimtab: the undo at step %d has NOT helped: your code has written the harm into "
                "%s again; %s",
                undone_at,
                tensor or "the weights",
                SECOND_COPY,
            )
            facts = {"undone_at": undone_at, "helped": False, "because": SECOND_COPY}
            self._monitor.recorder.event(UNDO_OUTCOME, self._monitor.next_step, facts)

    def buffers(self, name: str | None, *, is_repaired: bool) -> None:
        """Log and journal running statistics that were not finite."""
        if not self._is_reporting:
            return
        with self._shield.guarding("running statistics"):
            done = "replaced by those of the last snapshot"
            left = "left alone, as no snapshot has finite ones"
            sentence = (
                f"{name or 'running statistics of several layers'} not finite while the loss is: "
                f"evaluation would be NaN; {done if is_repaired else left}"
            )
            step = self._monitor.next_step
            log.warning("trimtab: step %d: %s", step, sentence)
            self._monitor.recorder.event(
                BUFFER_REPAIRED, step, {"tensor": name, "sentence": sentence}
            )

    def poll(self) -> None:
        """Report the outcome of an undo as soon as enough losses have followed it."""
        if not self._pending or not self._is_reporting:
            return
        if self._monitor.next_step > self._pending[0].step + AFTER:
            with self._shield.guarding("outcome of an undo"):
                self._report_outcome()

    def _report(self, report: UndoReport, step: int) -> None:
        recorder = self._monitor.recorder
        why, how_sure = _describe(report), _HOW_SURE[report.proof]
        facts: dict[str, object] = {"why": why, "how_sure": how_sure}
        if report.tensor is not None:
            facts["tensor"] = report.tensor
        if report.proof is Proof.FLIPPED:  # measured, so the diagnosis may rely on it
            facts["is_hardware"] = True
        if report.proof is Proof.TOO_FAR:
            facts["is_too_far"] = True
        if report.proof is Proof.ORDERED:
            facts["is_ordered"] = True
        if report.updates_lost is None:
            log.warning("trimtab: step %d: %s; nothing is undone: %s", step, why, report.why_not)
            kind = UNDO_REFUSED if report.proof is Proof.ORDERED else NOT_UNDONE
            recorder.event(kind, step, {**facts, "because": report.why_not})
            return
        lost = report.updates_lost
        restored = max(step - lost - report.updates_discarded, 0)
        log.warning(
            "trimtab: step %d: undone to step %d, %d updates are lost: %s (%s)%s",
            step,
            restored,
            lost,
            why,
            how_sure.partition(",")[0],  # the reason is in the event and in the report
            "; what your code has written since is taken back, too" * report.reverts_edits,
        )
        facts |= {"to_step": restored, "updates_lost": lost}
        if report.gain is not None:
            facts["gain"] = report.gain
        if report.reverts_edits:
            facts["reverts_edits"] = True
        recorder.event(UNDO, step, facts)
        self._pending.append(_PendingOutcome(step, restored, report.gain is not None))
        self._last_undo = step
        if self._give_up_after is not None:
            self._give_up_after(restored)

    def _report_outcome(self) -> None:
        undo, recorder = self._pending[0], self._monitor.recorder
        losses = [(record.step, record.signals.get(signals.LOSS)) for record in recorder.recent]
        after = [loss for step, loss in losses if loss is not None and step >= undo.step][:AFTER]
        if len(after) < AFTER:
            return  # records come some steps late
        self._pending.pop(0)
        before = [loss for step, loss in losses if loss is not None and step < undo.restored]
        before = before[-BEFORE:]
        helped = is_at_level(before, after)
        if helped is None:
            return
        during = [
            loss for step, loss in losses if loss is not None and undo.restored <= step < undo.step
        ]
        fault = next((n for n, loss in enumerate(during) if not is_at_level(before, [loss])), None)
        showed = fault is not None
        now, then = median(after), median(before)
        verdict = "works" if helped else "has NOT helped"
        if helped and not showed:
            verdict = "is over"
        facts = {"undone_at": undo.step, "helped": helped, "showed": showed}
        measured = {"loss_before": then, "loss_after": now}
        if fault:  # where it is 0, these are the losses before the restored state
            measured["loss_before_fault"] = median([*before, *during[:fault]][-NEAREST:])
        sentence = f"the undo at step {undo.step} {verdict}: {compared_losses(measured)}"
        if undo.has_won and during:
            measured["gained"] = median(during[-WINDOW:]) - now
            sentence += f"; it gained {digits(measured['gained'])}"
        (log.info if helped else log.warning)("trimtab: %s", sentence)
        recorder.event(UNDO_OUTCOME, self._monitor.next_step, facts | measured)


def is_at_level(before: Sequence[float], losses: Sequence[float]) -> bool | None:
    """Return whether losses, after the undo or during the harm, are as before the harm.

    `before` are those that the restored state has learnt from. None if it is not known.
    """
    known = [loss for loss in before if math.isfinite(loss)]
    if len(known) < BEFORE // 4 or not losses:
        return None
    usual = median(known)
    # Most of them must be finite: the median of numbers with a NaN among them is none.
    finite = [loss if math.isfinite(loss) else math.inf for loss in losses]
    return median(finite) <= usual + SIGMAS * sigma_around(usual, known)


def _gain(gain: float) -> str:
    return f"{gain:.2g} nat better on your last {WINDOW} batches"


def _describe(report: UndoReport) -> str:
    better = "" if report.gain is None else f"an older state is {_gain(report.gain)}"
    if report.proof is Proof.TRIED:
        return better
    if report.proof is Proof.ORDERED:
        return "asked for by guard.undo" + (better and f", as {better}")
    if report.proof is Proof.STUCK:
        num_updates = counted(report.num_nonfinite, "update")
        return f"no finite gradient in {num_updates}, although weights are finite"
    where = report.tensor or "several tensors"
    return {
        Proof.FLIPPED: f"one bit of {where} flipped in memory",
        Proof.NONFINITE: f"{where} not finite",
        Proof.TOO_FAR: f"{where} further from the last snapshot than updates can have moved it",
        Proof.IMPOSSIBLE: f"{where} beyond what any gradients can lead to",
    }[report.proof]
