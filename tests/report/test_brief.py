"""The report in a kilobyte: the same truth as the report, and what is new since an earlier look."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tests.kit.printed_json import validate
from tests.kit.synthetic import block_of, falling_loss, troubled_run
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.cli.options import ExitCode
from trimtab.core.errors import ConfigError
from trimtab.core.incidents import IncidentChange, IncidentTransition, Transition, transitions_of
from trimtab.diagnosis import diagnose
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.news import read_news, transitions_in
from trimtab.journal.notes import add_note
from trimtab.judge import Judge
from trimtab.observe.observed_run import observe_once
from trimtab.observe.run_observer import RunObserver
from trimtab.report.brief import incident_brief
from trimtab.report.run_report import RunReport


@pytest.fixture(scope="module")
def troubled() -> RunReport:
    return diagnose(troubled_run())


def test_it_says_what_the_report_says(troubled: RunReport) -> None:
    answer = troubled.brief()
    validate("brief", {"schema": "trimtab brief 4", **answer})
    worst = troubled.by_severity()[0]
    assert answer["verdict"] == troubled.verdict
    assert answer["act"] == worst.action.kind
    assert answer["incident"]["do"] == worst.action.instruction
    assert answer["incident"]["onset"] == worst.incident.onset.step
    assert answer["incident"]["class"] == worst.incident_class
    assert len(json.dumps(answer)) < 1000


def test_the_loss_of_a_run_that_is_nan_to_the_end_is_nan_now() -> None:
    losses = falling_loss(400)
    losses[300:] = np.nan
    answer = diagnose(block_of({"loss": losses})).brief()
    assert answer["incident"]["loss"]["now"] == "NaN"
    report = diagnose(block_of({"loss": losses}))
    assert (
        "now"
        not in incident_brief(
            report.incidents[0], dataclasses.replace(report, block=report.block[:200])
        )["loss"]
    )


def test_a_second_look_at_the_same_run_is_small(troubled: RunReport) -> None:
    answer = troubled.brief(troubled.brief()["token"])
    assert answer["new"] == []
    assert "incident" not in answer
    assert answer["act"] == troubled.brief()["act"]  # what stands is still to be done
    assert len(json.dumps(answer)) < 300


def test_every_look_at_a_growing_run_sees_what_changed_and_nothing_twice() -> None:
    block = troubled_run()
    token: str | None = None
    seen: list[tuple[int, str]] = []
    for end in range(200, len(block) + 1, 50):
        report = diagnose(block[:end])
        answer = report.brief(token)
        assert report.brief(answer["token"])["new"] == []
        seen += [(one["incident"], one["what"]) for one in answer.get("new", ())]
        token = answer["token"]
    for number in (1, 2):
        assert seen.count((number, "opened")) == 1
    assert (1, "closed") in seen


def test_a_tick_is_a_token_too(troubled: RunReport) -> None:
    onset = troubled.incidents[1].incident.onset.tick
    new = troubled.brief(onset - 1)["new"]
    assert {one["incident"] for one in new} == {2}
    assert troubled.brief(int(troubled.block.tick[-1]))["new"] == []
    assert troubled.brief(-1)["new"]


def test_a_run_that_was_begun_anew_is_new(troubled: RunReport) -> None:
    assert troubled.brief("99999.abcdef")["new"]


@pytest.mark.parametrize("since", ["", "x", "12.", "1.2.3", "0x10", "१२", "12.ABCDEF", "9" * 40])
def test_a_bad_token_is_refused(troubled: RunReport, since: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        troubled.brief(since)


def test_a_change_of_status_or_of_a_dismissal_is_new(troubled: RunReport) -> None:
    token = troubled.brief(status="running")["token"]
    assert troubled.brief(token, status="running")["new"] == []
    died = troubled.brief(token, status="died")
    assert died["status"] == "died"
    assert died["new"] == [{"what": "standing"}]
    healthy = diagnose(block_of({"loss": falling_loss(200)}))
    token = healthy.brief(status="running")["token"]
    assert healthy.brief(token, status="died")["new"]  # also where there is no incident
    dismissed = dataclasses.replace(
        troubled,
        incidents=tuple(
            dataclasses.replace(one, dismissed="ann", dismissed_because="meant")
            for one in troubled.incidents
        ),
    )
    assert dismissed.brief(troubled.brief()["token"])["new"]
    assert dismissed.brief()["act"] == "none"


def test_long_and_strange_names_stay_within_the_bounds(troubled: RunReport) -> None:
    strange = "\u202e\x1b[2J\U0001d54f" * 400
    incidents = tuple(
        dataclasses.replace(
            one,
            checkpoint=strange,
            action=dataclasses.replace(one.action, instruction=strange),
        )
        for one in troubled.incidents
    )
    report = dataclasses.replace(troubled, incidents=incidents)
    for since in (None, -1, report.brief()["token"]):
        text = json.dumps(report.brief(since))
        assert len(text) < 1000
        assert "\\u001b" not in text
        assert "\\u202e" not in text
    assert len(text) < 300


def test_the_command_has_an_exit_code_for_each_answer(tmp_path: Path) -> None:
    def call(log: str, *options: str) -> tuple[int, dict[str, object]]:
        path = tmp_path / "run.csv"
        path.write_text(log)
        result = CliRunner().invoke(app, ["diagnose", str(path), "--brief", *options])
        printed = json.loads(result.stdout)
        validate("brief", printed)
        return result.exit_code, printed

    def text(losses: np.ndarray) -> str:
        return "step,loss\n" + "".join(f"{at},{loss}\n" for at, loss in enumerate(losses))

    healthy = falling_loss(800)
    code, first = call(text(healthy))
    assert code == ExitCode.CLEAN
    spiked = healthy.copy()
    spiked[600:615] += 3
    code, second = call(text(spiked), "--since", str(first["token"]))
    assert (code, second["act"]) == (ExitCode.FINDINGS, "none")
    assert call(text(spiked), "--since", str(second["token"]))[0] == ExitCode.CLEAN
    dead = spiked.copy()
    dead[700:] = np.nan
    code, third = call(text(dead), "--since", str(second["token"]))
    assert (code, third["act"]) == (ExitCode.ACT, "stop")
    assert call(text(dead), "--since", str(third["token"]))[0] == ExitCode.ACT


# What changed about the incidents


def pairs(found: object) -> list[tuple[int, Transition, int]]:
    assert isinstance(found, list | tuple)
    return [(one.number, one.transition, one.tick) for one in found]


def test_how_a_run_is_cut_does_not_change_its_transitions() -> None:
    block = troubled_run()
    whole = list(diagnose(block).transitions)
    judge = Judge()
    changes: list[IncidentChange] = []
    for piece in block.cut(7):
        changes += judge.update(piece).changes
    changes += judge.finish().changes
    assert transitions_of(changes) == whole
    assert whole[0].before is None
    for one, later in ((a, b) for a in whole for b in whole if a.tick < b.tick):
        assert one.number <= later.number or later.transition is not Transition.OPENED


def write_journal(root: Path) -> RunDirectory:
    directory, block = RunDirectory(root), troubled_run()
    directory.write_manifest({"seed": 7})
    with JournalWriter(directory) as journal:
        for row in range(len(block)):
            signals = {name: float(block.column(name).values[row]) for name in block.columns}
            journal.append(step=int(block.step[row]), signals=signals)
    return directory


def test_the_journal_of_a_run_keeps_its_transitions(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run")
    observe_once(run)
    judged = diagnose(run).transitions
    assert pairs(judged)
    said = pairs(transitions_in(read_news(run)))
    assert said[: len(judged) - 1] == pairs(judged)[:-1]  # the last one comes from the end
    # An observer that begins with what an earlier one saved knows them as well.
    observer = RunObserver(run, writes=False)
    observer.poll()
    observer.finish()
    assert pairs(observer.report().transitions) == pairs(judged)
    assert observer.report().brief()["token"] == diagnose(run).brief()["token"]
    observer.close()


def test_an_incident_that_a_person_dismissed_is_a_transition(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run")
    before = diagnose(run)
    add_note(run, "meant so", dismiss=1)
    after = diagnose(run)
    assert isinstance(after.transitions[-1], IncidentTransition)
    assert after.transitions[-1].transition is Transition.DISMISSED
    new = after.brief(before.brief()["token"])["new"]
    assert [one["what"] for one in new] == ["dismissed"]


def test_a_short_run_has_no_transitions() -> None:
    assert diagnose(block_of({"loss": falling_loss(100)})).transitions == ()
