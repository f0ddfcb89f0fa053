"""Announced events reach the judge, not only the journal."""

from pathlib import Path

import pytest
from tests.kit.plugins import install_plugin

from trimtab.core.config import Config
from trimtab.journal import RunDirectory, read_journal
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.ranks.exchange import StepNote

PAUSES = (100, 110, 120)


def run_with_pauses(folder: Path, *, announced: bool) -> list[str]:
    """A run that waits three times for its data; the kinds of events in its journal."""
    recorder = RunRecorder(RunDirectory(folder), Config(), {}, first_step=0)
    clock = 1e9
    for step in range(140):
        # A record arrives two steps after its step was made, an event at once.
        if announced and step + 2 in PAUSES:
            recorder.event("evaluation", step + 2, {})
        seconds = 20.0 if step in PAUSES else 0.1
        clock += seconds
        note = StepNote(step=step, clock=clock, is_recorded_here=True)
        loss = 3.0 + 0.01 * (step % 7)
        recorder.record(note, {"loss": loss, "tokens": 4096.0, "data_seconds": 0.9 * seconds})
    recorder.close("finished")
    return [event.kind for event in read_journal(RunDirectory(folder)).block.events]


@pytest.mark.parametrize("announced", [False, True])
def test_announced_pauses_are_no_incident(tmp_path: Path, announced: bool) -> None:
    kinds = run_with_pauses(tmp_path, announced=announced)
    assert ("incident" in kinds) is not announced
    assert kinds.count("evaluation") == 3 * announced


FAILING = """
from trimtab.core.detector import Detector


class Failing(Detector):
    name = "failing"

    def update(self, row):
        raise ZeroDivisionError("at every record")
"""


def test_a_plugin_that_fails_is_logged_once_and_the_run_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_plugin(tmp_path, monkeypatch, "trimtab.detectors", "broken", "1 / 0", "X")
    install_plugin(tmp_path, monkeypatch, "trimtab.detectors", "failing", FAILING, "Failing")
    kinds = run_with_pauses(tmp_path / "run", announced=False)
    assert "incident" in kinds
    lines = [message for message in caplog.messages if "ZeroDivisionError" in message]
    assert len(lines) == 2
    assert "Plug-in 'broken'" in lines[0]
    assert "at every record" in lines[1]
    postmortem = next((tmp_path / "run").rglob("postmortem.md")).read_text()
    assert postmortem.count("ZeroDivisionError") == 2
