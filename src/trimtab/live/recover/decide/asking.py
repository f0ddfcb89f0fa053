"""Asking: with `ladder.approve = "ask"` a person decides whether the run acts.

Training continues meanwhile. The proposal is in the run directory (`journal/approval`), where
`trimtab follow` shows it and `trimtab answer` answers it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.decide.situation import Decision
from trimtab.journal.approval import Proposal, answer_to, withdraw
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.recover.decide.run_view import RunView
from trimtab.live.shield import log

DEFAULT = "the run continues without it"
"""What happens without an answer: a false alarm must not cost a run that is unattended."""

POLL_SECONDS = 1.0
"""Between two looks at the run directory, which may be on a network file system."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    proposal: Proposal
    then: Callable[[RunView], None]


class Asking:
    """The proposal that waits, if there is one."""

    def __init__(self, recorder: RunRecorder, seconds: float) -> None:
        self._recorder = recorder
        self._seconds = seconds
        self._waiting: _Waiting | None = None
        self._number = 0
        self._polled = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether a proposal has no answer yet."""
        return self._waiting is not None

    def propose(self, decision: Decision, view: RunView, then: Callable[[RunView], None]) -> None:
        """Ask; `then` is called at the boundary after the approval."""
        self._number += 1
        proposal = Proposal(
            number=self._number,
            step=view.step,
            action=_describe(decision),
            reason=decision.reason,
            default=DEFAULT,
            expires=time.time() + self._seconds,
        )
        proposal.write(self._recorder.run)
        self._waiting = _Waiting(proposal=proposal, then=then)
        self._recorder.event("proposal", view.step, {"action": proposal.action})
        log.warning(
            "trimtab: proposed at step %d: %s; answer with `trimtab answer %s yes`, or no, "
            "within %.0f s",
            view.step,
            proposal.action,
            self._recorder.run.root,
            self._seconds,
        )

    def poll(self, view: RunView) -> None:
        """Look for an answer, and act upon it."""
        waiting, now = self._waiting, time.monotonic()
        if waiting is None or now - self._polled < POLL_SECONDS:
            return
        self._polled = now
        proposal = waiting.proposal
        answer = answer_to(self._recorder.run, proposal.number)
        if answer is None and time.time() < proposal.expires:
            return
        self._waiting = None
        withdraw(self._recorder.run)
        words = {True: "approved", False: "declined", None: f"no answer, so {DEFAULT}"}[answer]
        self._recorder.event("answer", view.step, {"action": proposal.action, "answer": words})
        log.warning("trimtab: %s: %s", words, proposal.action)
        if answer:
            waiting.then(view)

    def cancel(self) -> None:
        """The run has gone back: what was proposed is about steps that are no more."""
        if self._waiting is not None:
            self._waiting = None
            withdraw(self._recorder.run)


def _describe(decision: Decision) -> str:
    chosen = decision.chosen
    parts = [decision.act.value]
    if chosen.target is not None:
        parts.append(f"from the snapshot of step {chosen.target}")
    if chosen.holds:
        parts.append(f"holding {', '.join(sorted({part.option for part in chosen.holds}))}")
    return " ".join(parts)
