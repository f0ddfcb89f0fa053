"""A run proposes an action; a person answers it, or nobody does."""

import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.cli.test_live_commands import write_run
from tests.kit.synthetic import block_of
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.journal import RunDirectory
from trimtab.journal.approval import Proposal, answer_to, withdraw
from trimtab.report.terminal import LiveView

runner = CliRunner()


def propose(folder: Path, number: int = 1, seconds: float = 60.0) -> RunDirectory:
    write_run(folder)
    run = RunDirectory(folder)
    Proposal(
        number=number,
        step=299,
        action="roll back to step 280",
        reason="the weights are hurt",
        default="the run continues",
        expires=time.time() + seconds,
    ).write(run)
    return run


@pytest.mark.parametrize(("given", "approved"), [("yes", True), ("no", False)])
def test_an_open_proposal_is_answered_once(tmp_path: Path, given: str, approved: bool) -> None:
    run = propose(tmp_path)
    assert answer_to(run, 1) is None
    result = runner.invoke(app, ["answer", str(tmp_path), given])
    assert result.exit_code == 0
    assert "roll back to step 280 (proposed at step 299)" in result.stdout
    assert answer_to(run, 1) is approved
    assert runner.invoke(app, ["answer", str(tmp_path), given]).exit_code == 3


def test_a_late_answer_is_not_taken_for_the_next_proposal(tmp_path: Path) -> None:
    run = propose(tmp_path)
    runner.invoke(app, ["answer", str(tmp_path), "yes"])
    assert answer_to(run, 2) is None


def test_what_has_expired_or_was_withdrawn_cannot_be_answered(tmp_path: Path) -> None:
    run = propose(tmp_path, seconds=-1.0)
    assert runner.invoke(app, ["answer", str(tmp_path), "yes"]).exit_code == 3
    run = propose(tmp_path / "second")
    withdraw(run)
    result = runner.invoke(app, ["answer", str(run.root), "no"])
    assert result.exit_code == 3
    assert "no proposal that waits for an answer" in result.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"number": null}', "\x00"])
def test_damaged_files_are_no_proposal_and_no_answer(tmp_path: Path, text: str) -> None:
    run = propose(tmp_path)
    (run.home / "answer.json").write_text(text)
    assert Proposal.read(run) is not None
    (run.home / "proposal.json").write_text(text)
    assert Proposal.read(run) is None


def test_an_answer_that_is_no_yes_or_no_counts_as_none(tmp_path: Path) -> None:
    run = propose(tmp_path)
    (run.home / "answer.json").write_text(json.dumps({"number": 1, "is_approved": "yes"}))
    assert answer_to(run, 1) is None


def test_follow_shows_the_question_and_how_to_answer_it(tmp_path: Path) -> None:
    view = LiveView("runs/x")
    view.update(block_of({"loss": np.ones(3)}))
    view.proposal = Proposal.read(propose(tmp_path))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(view.draw(120))
    shown = console.export_text()
    assert "proposed: roll back to step 280" in shown
    assert "trimtab answer runs/x yes, or no; without an answer in" in shown
    assert "the run continues" in shown
