"""Relaunch: what would help where an undo cannot; on the first rank.

A run whose weights are lost is not repaired by undoing a few updates. What helps is a relaunch from
a proven checkpoint, with its price in steps. The log says so, and a person decides; only with
`ladder.unattended` the run ends by itself, with exit code 75. The incident comes by the pipe of the
observer that this process started: nothing in a file can end a run.
"""

from collections.abc import Callable

from trimtab.core.config import LadderConfig
from trimtab.core.events import RELAUNCH
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.live.host.bad_data import BadData
from trimtab.live.host.recorder import Recorder
from trimtab.live.shield import Shield, log

LOST = (IncidentClass.DIVERGENT, IncidentClass.DEAD)
"""What a few undone updates cannot repair."""


class Relaunch:
    """Proposes a relaunch for an incident that needs one, or ends the run."""

    def __init__(
        self,
        recorder: Recorder,
        config: LadderConfig,
        shield: Shield,
        *,
        proven_step: Callable[[int], int | None],
        relaunch: Callable[[str], None],
    ) -> None:
        """`proven_step` finds the step of the newest proven checkpoint up to a step. `relaunch`
        ends the run on all ranks, for a reason, to be started again."""
        self._recorder = recorder
        self._config = config
        self._shield = shield
        self._proven_step = proven_step
        self._relaunch = relaunch
        self._num_changes = 0
        self._proposed: set[int] = set()

    def poll(self) -> None:
        """Look whether an incident has become one that needs a relaunch."""
        if self._recorder.num_changes == self._num_changes or self._shield.is_down:
            return
        self._num_changes = self._recorder.num_changes
        with self._shield.guarding("incident"):
            for incident in self._recorder.incidents:
                is_lost = incident.incident_class in LOST and not _may_go_on(incident)
                if is_lost and incident.number not in self._proposed:
                    self._proposed.add(incident.number)
                    self._propose(incident)

    def _propose(self, incident: Incident) -> None:
        onset, now = incident.onset.step, incident.last.step
        checkpoint = self._proven_step(onset)
        if checkpoint is None:
            return  # the log has said what to do about the incident
        lost = now - checkpoint
        action = f"relaunch from the proven checkpoint of step {checkpoint}, {lost} steps back"
        reason = f"incident {incident.number} since step {onset} does not recover"
        if not self._config.unattended:
            log.warning("trimtab: step %d: stop the run and %s, because %s", now, action, reason)
            return
        log.warning("trimtab: step %d: %s, because %s", now, action, reason)
        bad_data = BadData.around(onset, self._recorder.recent)
        facts = {"reason": reason, "bad_data": bad_data.to_json()}
        self._recorder.event(RELAUNCH, now, facts)
        self._relaunch(reason)


def _may_go_on(incident: Incident) -> bool:
    """Return whether a run is dead only as its updates are kept out, which has harmed nothing.

    It goes on with the first sound batch, or ends by `live.max_nonfinite_steps`.
    """
    facts = incident.facts
    is_sound = facts.has_finite_state and not facts.nonfinite_at_end
    return incident.incident_class is IncidentClass.DEAD and facts.kept_out_at_end > 0 and is_sound
