"""StateJournal: what the state is like whenever it is saved, so that a resume can be audited."""

import json

from trimtab.detect.resume.facts import DATA_POSITION, STATE_SAVED, Facts
from trimtab.live.loop.step_loop import StepLoop
from trimtab.live.loop.step_monitor import StepMonitor


class StateJournal:
    """Collects the facts of a saved state, for the journal and for the user's checkpoint."""

    def __init__(self, monitor: StepMonitor) -> None:
        self._monitor = monitor
        self._saved: int | None = None
        """The step whose state was journalled last."""

    def save(self, *, with_generators: bool) -> str | None:
        """What the state is like now, as text, also journalled; None if it cannot be found out."""
        monitor = self._monitor
        text = None
        if not monitor.shields.resume.is_down:
            with monitor.shields.resume.guarding("state"):
                self._saved = monitor.next_step
                facts = monitor.resume.collect(self._saved, with_generators=with_generators)
                self._journal(facts)
                text = json.dumps(facts)
        return text

    def load(self, text: str) -> int | None:
        """Take the facts that came with a checkpoint; returns the data position in them."""
        position = None
        with self._monitor.shields.resume.guarding("load_state_dict"):
            facts = self._monitor.resume.load(text)
            if DATA_POSITION in facts:
                position = int(facts[DATA_POSITION])
        return position

    def start(self, loop: StepLoop, *, position_is_given: bool) -> None:
        """The data is gone through by this loop."""
        self._monitor.resume.loop = loop
        self._monitor.resume.position_is_given = position_is_given

    def look_at_generators(self) -> None:
        """One of the moments at which the generators may be as they were saved."""
        resume = self._monitor.resume
        if resume.is_before_first_record:
            with self._monitor.shields.resume.guarding("steps"):
                resume.look_at_generators()

    def close(self) -> None:
        """Weights may have been exchanged since the last step; where the data is, is known."""
        monitor = self._monitor
        if monitor.resume.loop is not None and self._saved != monitor.next_step:
            with monitor.shields.resume.guarding("close"):
                self._journal(monitor.resume.collect_data())

    def _journal(self, facts: Facts) -> None:
        monitor = self._monitor
        if monitor.is_watching and monitor.recorder is not None:
            monitor.recorder.event(STATE_SAVED, monitor.next_step, {"state": facts})
