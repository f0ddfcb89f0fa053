"""Where an undo cannot help, a relaunch is proposed; a person or `ladder.unattended` decides."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.core.config import LadderConfig
from trimtab.core.incidents import IncidentClass
from trimtab.journal import RunDirectory
from trimtab.journal.approval import Proposal, answer
from trimtab.live.recover import proposals
from trimtab.live.recover.proposals import Proposals


class Recorder:
    """Keeps what is journalled."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder)
        self.run.home.mkdir(parents=True)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.on_change: Any = None

    def event(self, kind: str, step: int, facts: dict[str, Any]) -> None:
        self.events.append((kind, facts))


def incident(incident_class: IncidentClass | None, number: int = 1) -> Any:
    place = SimpleNamespace(step=900)
    last = SimpleNamespace(step=1000)
    return SimpleNamespace(number=number, incident_class=incident_class, onset=place, last=last)


def make(folder: Path, *, proven: int | None = 800, **settings: Any) -> tuple[Any, Recorder, Any]:
    recorder = Recorder(folder)
    asked: list[str] = []
    made = Proposals(
        recorder,  # type: ignore[arg-type]
        LadderConfig(**settings),
        proven_step=lambda before: proven if proven is not None and proven <= before else None,
        relaunch=asked.append,
    )
    return made, recorder, asked


@pytest.mark.parametrize("given", [True, False])
def test_a_person_decides(given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "POLL_SECONDS", 0.0)
    made, recorder, asked = make(tmp_path)
    recorder.on_change(incident(IncidentClass.DIVERGENT))
    proposal = Proposal.read(recorder.run)
    assert proposal is not None
    assert "checkpoint of step 800, 200 steps back" in proposal.action
    made.poll()
    assert asked == []
    answer(recorder.run, is_approved=given)
    made.poll()
    assert len(asked) == given
    assert [kind for kind, _ in recorder.events] == ["proposal", "answer"]


def test_only_lost_weights_and_each_incident_once(tmp_path: Path) -> None:
    _, recorder, _ = make(tmp_path)
    for incident_class in (None, IncidentClass.RECOVERABLE, IncidentClass.LINGERING):
        recorder.on_change(incident(incident_class))
    assert recorder.events == []
    recorder.on_change(incident(IncidentClass.DIVERGENT))
    recorder.on_change(incident(IncidentClass.DIVERGENT))
    assert len(recorder.events) == 1


def test_nothing_is_proposed_without_a_proven_checkpoint(tmp_path: Path) -> None:
    _, recorder, asked = make(tmp_path, proven=None)
    recorder.on_change(incident(IncidentClass.DIVERGENT))
    assert recorder.events == asked == []


def test_unattended_does_not_ask(tmp_path: Path) -> None:
    _, recorder, asked = make(tmp_path, unattended=True)
    recorder.on_change(incident(IncidentClass.DIVERGENT))
    assert len(asked) == 1
    assert Proposal.read(recorder.run) is None
