"""Proposals: what would help where an undo cannot, and who decides it; on the first rank.

A run whose weights are lost is not repaired by undoing a few updates. What helps is a relaunch from
a proven checkpoint, with its price in steps. It is proposed, and a person decides (`trimtab
answer`); only with `ladder.unattended` the run ends by itself, with exit code 75.
"""

import time
from collections.abc import Callable

from trimtab.core.config import LadderConfig
from trimtab.core.events import RELAUNCH
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.journal.approval import Proposal, answer_to, withdraw
from trimtab.live.host.bad_data import BadData
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.shield import Shield, log

DEFAULT = "the run continues without it"
"""What happens without an answer: a false alarm must not cost a run that is unattended."""

POLL_SECONDS = 1.0
"""Between two looks at the run directory, which may be on a network file system."""


class Proposals:
    """The proposal that waits, if there is one."""

    def __init__(
        self,
        recorder: RunRecorder,
        config: LadderConfig,
        shield: Shield,
        *,
        proven_step: Callable[[int], int | None],
        relaunch: Callable[[str], None],
    ) -> None:
        """Propose for a run; `shield` is its own, for neither the judge nor an undo depends on it.

        `proven_step` finds the step of the newest proven checkpoint up to a step. `relaunch` ends
        the run on all ranks, for a reason, to be started again.
        """
        self._recorder = recorder
        self._config = config
        self._shield = shield
        self._proven_step = proven_step
        self._relaunch = relaunch
        self._waiting: Proposal | None = None
        self._bad_data = BadData()
        """Of the incident that a relaunch was proposed for."""
        self._proposed: set[int] = set()
        self._polled = 0.0
        recorder.on_change = self.on_change

    def poll(self) -> None:
        """Look for an answer, and act upon it."""
        proposal, now = self._waiting, time.monotonic()
        if proposal is None or now - self._polled < POLL_SECONDS or self._shield.is_down:
            return
        self._polled = now
        with self._shield.guarding("answer"):
            self._read_answer(proposal)

    def on_change(self, incident: Incident) -> None:
        """Propose a relaunch if an incident has become one that needs it."""
        if not self._shield.is_down:
            with self._shield.guarding("incident"):
                self._propose(incident)

    def _read_answer(self, proposal: Proposal) -> None:
        answer = answer_to(self._recorder.run, proposal.number)
        if answer is None and time.time() < proposal.expires:
            return
        self._waiting = None
        withdraw(self._recorder.run)
        words = {True: "approved", False: "declined", None: f"no answer, so {DEFAULT}"}[answer]
        facts = {"action": proposal.action, "answer": words}
        self._recorder.event("answer", proposal.step, facts)
        log.warning("trimtab: %s: %s", words, proposal.action)
        if answer:
            self._end(proposal.reason, proposal.step)

    def _propose(self, incident: Incident) -> None:
        is_lost = incident.incident_class is IncidentClass.DIVERGENT
        if not is_lost or incident.number in self._proposed:
            return
        self._proposed.add(incident.number)
        onset, now = incident.onset.step, incident.last.step
        checkpoint = self._proven_step(onset)
        if checkpoint is None:
            return  # the log has said what to do about the incident
        lost = now - checkpoint
        action = f"relaunch from the proven checkpoint of step {checkpoint}, {lost} steps back"
        reason = f"incident {incident.number} since step {onset} does not recover"
        self._bad_data = BadData.around(onset, self._recorder.recent)
        if self._config.unattended:
            log.warning("trimtab: step %d: %s, because %s", now, action, reason)
            self._end(reason, now)
            return
        seconds = self._config.approve_seconds
        self._waiting = Proposal(
            number=incident.number,
            step=now,
            action=action,
            reason=reason,
            default=DEFAULT,
            expires=time.time() + seconds,
        )
        self._waiting.write(self._recorder.run)
        self._recorder.event("proposal", now, {"action": action, "reason": reason})
        log.warning(
            "trimtab: proposed at step %d: %s, because %s; answer with `trimtab answer %s yes` or "
            "`no` within %.0f s",
            now,
            action,
            reason,
            self._recorder.run.root,
            seconds,
        )

    def _end(self, reason: str, step: int) -> None:
        """End the run, and journal the data that the next one discards."""
        facts = {"reason": reason, "bad_data": self._bad_data.to_json()}
        self._recorder.event(RELAUNCH, step, facts)
        self._relaunch(reason)
