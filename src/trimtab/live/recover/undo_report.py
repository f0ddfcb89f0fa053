"""UndoReporter: an undo in one line of the log and one event of the journal, on the first rank."""

from collections.abc import Callable

from trimtab.core.events import NOT_UNDONE, UNDO
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.rules import Proof
from trimtab.live.recover.undo import UndoReport
from trimtab.live.shield import log


class UndoReporter:
    """Says what was undone and why, or why nothing was."""

    def __init__(
        self,
        recorder: Callable[[], RunRecorder | None],
        next_step: Callable[[], int],
        give_up_after: Callable[[int], None] | None = None,
    ) -> None:
        self._recorder = recorder
        self._next_step = next_step
        self._give_up_after = give_up_after
        """Doubts the checkpoints that hold what has been undone."""

    def __call__(self, report: UndoReport) -> None:
        """Log and journal one undo."""
        recorder, step = self._recorder(), self._next_step()
        if recorder is None:
            return
        why = _describe(report)
        facts: dict[str, object] = {"why": why}
        if report.tensor is not None:
            facts["tensor"] = report.tensor
        if report.proof is Proof.FLIPPED:  # measured, so the diagnosis may rely on it
            facts["is_hardware"] = True
        if report.updates_lost is None:
            log.warning("trimtab: step %d: %s; nothing is undone: %s", step, why, report.why_not)
            recorder.event(NOT_UNDONE, step, {**facts, "because": report.why_not})
        else:
            lost = report.updates_lost
            log.warning(
                "trimtab: step %d: undone, weights and optimizer are those of %d updates ago: %s",
                step,
                lost,
                why,
            )
            recorder.event(UNDO, step, {**facts, "updates_lost": lost})
            if self._give_up_after is not None:
                self._give_up_after(step - lost)


def _describe(report: UndoReport) -> str:
    if report.proof is Proof.ORDERED:
        return "asked for by guard.undo"
    if report.proof is Proof.WORSE:
        return "on the present batches the earlier weights do better than the present ones"
    where = report.tensor or "several tensors"
    return {
        Proof.FLIPPED: f"one bit of {where} flipped in memory",
        Proof.NONFINITE: f"{where} not finite",
        Proof.IMPOSSIBLE: f"{where} beyond what any gradients can lead to",
    }[report.proof]
