"""Where an undo cannot help, a relaunch is proposed; a person or `ladder.unattended` decides."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, journal_of, loss_of, make_model

import trimtab
from trimtab.core.block import Event
from trimtab.core.config import Config, LadderConfig
from trimtab.core.errors import RunStopped
from trimtab.core.incidents import IncidentClass
from trimtab.journal import RunDirectory
from trimtab.journal.approval import Proposal, answer
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.live.host.bad_data import BadData
from trimtab.live.recover import proposals
from trimtab.live.recover.proposals import Proposals
from trimtab.live.shield import Shield


class Recorder:
    """Keeps what is journalled."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder)
        self.run.home.mkdir(parents=True)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.on_change: Any = None
        self.recent = ()

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
        Shield("proposals", "nothing is proposed"),
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
    assert [kind for kind, _ in recorder.events] == ["proposal", "answer", *["relaunch"] * given]


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


def run_until_lost(
    folder: Path, config: Config, *, steps: int = 280, is_harmed: bool = True, **planted: Any
) -> Any:
    """Train, save, and lose the weights past everything that an undo can prove."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoints = trimtab.Checkpoints(model, optimizer, run_dir=folder)
    checkpoints.resume()
    guard = trimtab.watch(
        model, optimizer, run_dir=folder, mode="recover", config=config, checkpoints=checkpoints
    )
    data = batches(4, size=16)
    with guard:
        for step in guard.steps(data[at % 4] for at in range(steps)):
            if step.number == 160 and is_harmed:  # by code, so it is not undone
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.normal_(std=4.0)
                for group in optimizer.param_groups:
                    group["lr"] = 1e-7
            (batch,) = step
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step.number == 40:
                guard.checkpoint()
            if step.number == 130:
                plant(guard, **planted)
    return guard


def plant(guard: Any, *, into: str = "") -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    undo = guard._monitor.state_guard
    if into == "on_change":
        guard._monitor.recorder.on_change.__self__._proven_step = fail
    elif into == "poll":
        proposals_made = undo._polls[1].__self__
        proposals_made._waiting, proposals_made._read_answer = object(), fail
    elif into == "report":
        undo._report._give_up_after = fail
        undo.request(1)


def test_unattended_a_lost_run_ends_and_its_relaunch_discards_the_data_of_the_onset(
    tmp_path: Path,
) -> None:
    with pytest.raises(RunStopped) as stopped:
        run_until_lost(tmp_path, Config().override({"ladder.unattended": True}), steps=2000)
    assert stopped.value.code == 75
    request = ExitRequest.read(RunDirectory(tmp_path).home)
    assert request is not None
    assert request.code == RunExit.RELAUNCH
    assert "does not recover" in request.reason
    first = journal_of(tmp_path)
    assert first.step[-1] < 1900
    bad = next(e.facts["bad_data"] for e in first.events if e.kind == "relaunch")
    positions = [position for position, _ in bad]
    assert 160 in positions
    assert len(bad) == 20
    run_until_lost(tmp_path, Config(), steps=190, is_harmed=False)
    both = journal_of(tmp_path)
    again = both[len(first) :]
    assert again.step[0] == 41  # from the checkpoint, with its data
    discarded = again.column("discarded").values == 1.0
    assert again.data_position[discarded].tolist() == positions
    reasons = {str(e.facts["reasons"]) for e in both.events if e.kind == "step discarded"}
    assert reasons == {"['the run diverged at this data before it was relaunched']"}


def test_data_that_was_shuffled_anew_is_not_discarded() -> None:
    def relaunch(given: object) -> Event:
        return Event(kind="relaunch", tick=9, step=9, facts={"bad_data": given})

    bad = BadData.of_events([relaunch([[7, 11.0], [8, None], [9], 7, ["a", 1]]), relaunch(3)])
    assert bad.to_json() == [(7, 11.0), (8, None)]
    assert bad.has(7, 11.0)
    assert not bad.has(7, 12.0)  # another batch is at its place
    assert bad.has(7, None)
    assert bad.has(8, 12.0)
    assert not bad.has(9, 11.0)


@pytest.mark.parametrize("into", ["on_change", "poll", "report"])
def test_a_part_that_fails_takes_down_itself_alone(
    into: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = run_until_lost(tmp_path, Config(), into=into)
    shields = guard._monitor.shields
    expected = ["reports of undos"] if into == "report" else ["proposals"]
    assert shields.failed == expected
    assert caplog.text.count("failed in") == 1
    assert len(journal_of(tmp_path)) == 280
