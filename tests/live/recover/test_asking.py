"""A run that asks before it acts: a person approves, declines, or does not answer."""

from pathlib import Path
from typing import Any

import pytest
from tests.live.recover.test_controller import Loop, acts, events, flip_weight
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.core.config import Config
from trimtab.core.errors import ConfigError
from trimtab.journal import RunDirectory
from trimtab.journal.approval import Proposal
from trimtab.live.recover.decide import asking


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "POLL_SECONDS", 0.0)


def train(folder: Path, given: str | None, **settings: Any) -> list[Proposal]:
    """Train with a flipped weight; a person answers by a command as soon as there is a proposal."""
    seen = []

    def disturb(loop: Loop, step: int, tick: int) -> None:
        flip_weight(loop, step, tick)
        proposal = Proposal.read(RunDirectory(folder))
        if proposal is not None:
            seen.append(proposal)
            if given is not None:
                assert CliRunner().invoke(app, ["answer", str(folder), given]).exit_code == 0

    chosen: dict[str, Any] = {"ladder.approve": "ask", **settings}
    Loop(disturb).train(folder, **chosen)
    return seen


def test_an_approved_action_is_carried_out(tmp_path: Path) -> None:
    (proposal, *_) = train(tmp_path, "yes")
    assert proposal.action.startswith("restore from the snapshot of step")
    assert "non-finite" in proposal.reason
    assert [event.kind for event in events(tmp_path, "proposal", "answer", "rollback")][:3] == [
        "proposal",
        "answer",
        "rollback",
    ]


def test_a_declined_action_is_not_carried_out(tmp_path: Path) -> None:
    assert train(tmp_path, "no")
    assert "restore" in acts(tmp_path)  # decided, and written down
    assert not events(tmp_path, "rollback")
    assert {event.facts["answer"] for event in events(tmp_path, "answer")} == {"declined"}


def test_without_an_answer_the_run_continues_and_does_not_act(tmp_path: Path) -> None:
    assert train(tmp_path, None, **{"ladder.approve_seconds": 0.05})
    assert not events(tmp_path, "rollback")
    (event, *_) = events(tmp_path, "answer")
    assert event.facts["answer"] == "no answer, so the run continues without it"


def test_only_two_ways_to_approve_are_known() -> None:
    with pytest.raises(ConfigError, match="use auto or ask"):
        Config().override({"ladder.approve": "maybe"})
