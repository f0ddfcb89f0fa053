"""The post-mortem template, and how a filled-in one compares with trimtab's."""

import re

import pytest

pytest.importorskip("torch")

from tests.kit.synthetic import troubled_run
from tests.report.test_reports import report_of

from trimtab.core.actions import ActionKind
from trimtab.lab.practice.exercise import AnswerMark, AnswerResult, Exercise, PracticeAnswer
from trimtab.lab.practice.view import (
    WriteUp,
    compare_write_ups,
    empty_write_up,
    read_write_up,
    truth_of,
    write_up_of,
)
from trimtab.report.postmortem import write_postmortem

REPORT = report_of(troubled_run())
SPIKE = REPORT.incidents[0]
TRUTH = WriteUp(onset="600", incident_class="", cause="F02", action="wait")


def filled_in(**lines: str) -> str:
    text = empty_write_up("Exercise 1")
    for name, value in lines.items():
        line = name.replace("_", " ")
        text, count = re.subn(rf"(?m)^{line}:$", f"{line}: {value}", text)
        assert count == 1, f"the template has no line {line!r}"
    return text


def test_the_template_has_the_sections_of_trimtabs_post_mortem() -> None:
    headings = r"(?m)^## (.*)$"
    ours = re.findall(headings, write_postmortem(SPIKE, REPORT))
    assert re.findall(headings, empty_write_up("Exercise 1")) == ours


@pytest.mark.parametrize("text", [empty_write_up("Exercise 1"), "", filled_in(Peak_loss="7")])
def test_an_empty_template_is_not_compared(text: str) -> None:
    assert read_write_up(text) is None


def test_a_filled_in_template_is_read() -> None:
    text = filled_in(Onset_step="598", Class="Recoverable", Cause="F02", Action="wait")
    assert read_write_up(text) == WriteUp(
        onset="598", incident_class="Recoverable", cause="F02", action="wait"
    )
    assert read_write_up(filled_in(Cause=" none ")) == WriteUp(
        onset="", incident_class="", cause="none", action=""
    )


@pytest.mark.parametrize(
    ("name", "value", "agrees"),
    [
        ("onset", "595", True),
        ("onset", "about step 605", True),
        ("onset", "594", False),
        ("onset", "", False),
        ("onset", "9" * 5000, False),
        ("incident_class", "RECOVERABLE", True),
        ("incident_class", "divergent", False),
        ("cause", "f02, rare tokens", True),
        ("cause", "F01", False),
        ("action", "wait and see", True),
        ("action", "rollback", False),
        ("action", "", False),
    ],
)
def test_each_line_is_compared(name: str, value: str, agrees: bool) -> None:
    ours = write_up_of(SPIKE)
    assert ours == WriteUp(onset="600", incident_class="recoverable", cause="F02", action="wait")
    lines = {"onset": "", "incident_class": "", "cause": "", "action": ""} | {name: value}
    compared = {line.name: line for line in compare_write_ups(WriteUp(**lines), ours, TRUTH)}
    assert list(compared) == ["onset", "class", "cause", "action"]
    assert compared[name.removeprefix("incident_")].agrees is agrees


def test_without_an_incident_the_write_up_says_none_and_wait() -> None:
    ours = write_up_of(None)
    yours = WriteUp(onset="none", incident_class="None", cause="none", action="wait")
    assert all(line.agrees for line in compare_write_ups(yours, ours, TRUTH))


def test_rollback_is_roll_back() -> None:
    ours = WriteUp(onset="1", incident_class="lingering", cause="none", action="roll back")
    yours = WriteUp(onset="1", incident_class="", cause="", action="Rollback to step 20")
    assert compare_write_ups(yours, ours, TRUTH)[-1].agrees


def test_the_truth_with_and_without_a_fault() -> None:
    same = AnswerResult(eval_loss=4.0, steps=80)
    back, discard = (
        PracticeAnswer(kind=ActionKind.ROLL_BACK, number=90),
        PracticeAnswer(kind=ActionKind.DISCARD),
    )
    best = [
        AnswerMark(answer=discard, result=same, score=100),
        AnswerMark(answer=back, result=same, score=100),
        AnswerMark(answer=PracticeAnswer(kind=ActionKind.WAIT), result=same, score=99),
    ]
    fault = Exercise.from_kind("F13w", 3)
    truth = truth_of(fault, best)
    assert truth == WriteUp(
        onset=str(fault.onset), incident_class="", cause="F13", action="discard, roll back"
    )
    none = truth_of(Exercise.from_kind("cooldown", 3), best)
    assert (none.onset, none.cause) == ("none", "none")
