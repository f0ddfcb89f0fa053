"""Where an undo cannot help, a relaunch does: said to a person, or done with `unattended`."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kit.observing import with_observer  # noqa: F401
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import take_step

import trimtab
from trimtab.core.block import Event
from trimtab.core.config import Config, LadderConfig
from trimtab.core.errors import RunStopped
from trimtab.core.incident_facts import Facts
from trimtab.core.incidents import IncidentClass
from trimtab.journal import RunDirectory
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.live.host.bad_data import BadData
from trimtab.live.recover.relaunch import Relaunch
from trimtab.live.shield import Shield

HARMED = Facts(nonfinite_at_end=5)


class Recorder:
    """Keeps what is journalled, and has the incidents that an observer would report."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.incidents: tuple[Any, ...] = ()
        self.num_changes = 0
        self.recent = ()

    def report(self, incident: Any) -> None:
        self.incidents, self.num_changes = (incident,), self.num_changes + 1

    def event(self, kind: str, step: int, facts: dict[str, Any]) -> None:
        self.events.append(kind)


def incident(incident_class: IncidentClass, facts: Facts) -> Any:
    places = {"onset": SimpleNamespace(step=900), "last": SimpleNamespace(step=1000)}
    return SimpleNamespace(number=1, incident_class=incident_class, facts=facts, **places)


def relaunches(
    classes: Sequence[IncidentClass],
    *,
    proven: int | None = 800,
    unattended: bool = True,
    facts: Facts = HARMED,
) -> tuple[list[str], Recorder]:
    """Return the reasons for which a run with these reports of an incident ends itself."""
    recorder, reasons = Recorder(), list[str]()
    made = Relaunch(
        recorder,  # type: ignore[arg-type]
        LadderConfig(unattended=unattended),
        Shield("proposals", "nothing is proposed"),
        proven_step=lambda before: proven if proven is not None and proven <= before else None,
        relaunch=reasons.append,
    )
    for incident_class in classes:
        recorder.report(incident(incident_class, facts))
        made.poll()
    return reasons, recorder


def test_unattended_a_lost_run_ends_once() -> None:
    reasons, recorder = relaunches([IncidentClass.DIVERGENT, IncidentClass.DIVERGENT])
    assert reasons == ["incident 1 since step 900 does not recover"]
    assert recorder.events == ["relaunch"]


def test_attended_the_log_says_which_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    reasons, _ = relaunches([IncidentClass.DIVERGENT], unattended=False)
    assert reasons == []
    assert "stop the run and relaunch from the proven checkpoint of step 800" in caplog.text


def test_a_dead_run_ends_too() -> None:
    assert len(relaunches([IncidentClass.OPEN, IncidentClass.DEAD])[0]) == 1


def test_a_run_whose_updates_are_kept_out_may_go_on_by_itself() -> None:
    assert relaunches([IncidentClass.DEAD], facts=Facts(kept_out_at_end=12))[0] == []
    lost = Facts(kept_out_at_end=12, has_finite_state=False)
    assert len(relaunches([IncidentClass.DEAD], facts=lost)[0]) == 1


def test_nothing_else_ends_a_run() -> None:
    assert (
        relaunches([IncidentClass.OPEN, IncidentClass.RECOVERED, IncidentClass.LINGERING])[0] == []
    )
    assert relaunches([IncidentClass.DIVERGENT], proven=None)[0] == []


def run_until_lost(
    folder: Path, config: Config, *, steps: int = 280, is_harmed: bool = True
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
            take_step(guard, optimizer, loss_of(model, batch))
            if step.number == 40:
                guard.checkpoint()
    return guard


@pytest.mark.usefixtures("with_observer")
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
    assert reasons == {"['the run went back to before this data, and leaves it out']"}


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
