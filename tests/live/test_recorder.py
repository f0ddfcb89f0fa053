"""What the recorder writes is all that a judge needs."""

from pathlib import Path

import pytest
from tests.kit.observing import observe
from tests.kit.plugins import install_plugin

from trimtab.core.config import Config
from trimtab.core.incidents import Incident
from trimtab.journal import RunDirectory, read_journal
from trimtab.live.host.batch_memory import BatchMemory
from trimtab.live.host.recorder import Recorder
from trimtab.live.ranks.exchange import TrainStep
from trimtab.live.shield import Shield
from trimtab.observe.run_observer import Listener, RunObserver

PAUSES = (100, 110, 120)


def make_recorder(folder: Path) -> Recorder:
    run, config = RunDirectory(folder), Config()
    shield = Shield("observer", "it is not heard")
    batches = BatchMemory(config.live, run)
    return Recorder(run, config, {}, first_step=0, batches=batches, shield=shield, observer=False)


def run_with_pauses(folder: Path, *, announced: bool) -> list[str]:
    """A run that waits three times for its data; the kinds of events in its journal."""
    recorder = make_recorder(folder)
    clock = 1e9
    for step in range(140):
        # A record arrives two steps after its step was made, an event at once.
        if announced and step + 2 in PAUSES:
            recorder.event("evaluation", step + 2, {})
        seconds = 20.0 if step in PAUSES else 0.1
        clock += seconds
        note = TrainStep(step=step, clock=clock, is_recorded_here=True)
        loss = 3.0 + 0.01 * (step % 7)
        recorder.record(note, {"loss": loss, "tokens": 4096.0, "data_seconds": 0.9 * seconds})
    recorder.close("finished")
    return [event.kind for event in read_journal(RunDirectory(folder)).block.events]


@pytest.mark.parametrize("announced", [False, True])
def test_announced_pauses_are_no_incident(tmp_path: Path, announced: bool) -> None:
    kinds = run_with_pauses(tmp_path, announced=announced)
    assert bool(observe(tmp_path)) is not announced
    assert kinds.count("evaluation") == 3 * announced


FAILING = """
from trimtab.core.detector import Detector


class Failing(Detector):
    name = "failing"

    def update(self, row):
        raise ZeroDivisionError("at every record")
"""


class Heard(Listener):
    """Keeps the lines of an observer."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, level: int, text: str) -> None:
        self.lines.append(text)

    def incident(self, incident: Incident, *, is_new: bool) -> None:
        pass


def test_a_plugin_that_fails_is_said_once_and_the_run_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, "trimtab.detectors", "broken", "1 / 0", "X")
    install_plugin(tmp_path, monkeypatch, "trimtab.detectors", "failing", FAILING, "Failing")
    run_with_pauses(tmp_path / "run", announced=False)
    heard = Heard()
    observer = RunObserver(RunDirectory(tmp_path / "run"), heard)
    observer.poll()
    observer.close()
    assert observer.incidents
    assert sum("ZeroDivisionError" in line for line in heard.lines) == 2
