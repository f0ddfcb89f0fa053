"""The post-mortem template, and how a filled-in one compares with trimtab's."""

import re

import pytest
from rich.console import Console
from tests.kit.synthetic import troubled_run
from tests.report.test_reports import report_of

from trimtab.core.actions import ActionKind
from trimtab.lab.practice.exercise import AnswerMark, AnswerResult, Exercise, PracticeAnswer
from trimtab.lab.practice.view import (
    agree,
    empty_write_up,
    read_write_up,
    show_comparison,
    truth_of,
    write_up_of,
)
from trimtab.report.postmortem import write_postmortem

REPORT = report_of(troubled_run())
SPIKE = REPORT.incidents[0]


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
    assert ours[0] == "In short"  # of what the learner writes below
    # A learner goes from the symptoms to the cause; trimtab's begins with the answer.
    assert sorted(re.findall(headings, empty_write_up("Exercise 1"))) == sorted(ours[1:])


@pytest.mark.parametrize("text", [empty_write_up("Exercise 1"), "", filled_in(Peak_loss="7")])
def test_an_empty_template_is_not_compared(text: str) -> None:
    assert read_write_up(text) is None


def test_a_filled_in_template_is_read() -> None:
    text = filled_in(Onset_step="598", Class="Recovered", Cause="F02", Action="wait")
    found = {"onset": "598", "class": "Recovered", "cause": "F02", "action": "wait"}
    assert read_write_up(text) == found
    empty = {"onset": "", "class": "", "action": ""}
    assert read_write_up(filled_in(Cause=" none ")) == {**empty, "cause": "none"}


@pytest.mark.parametrize(
    ("name", "value", "agrees"),
    [
        ("onset", "595", True),
        ("onset", "about step 605", True),
        ("onset", "594", False),
        ("onset", "", False),
        ("onset", "9" * 5000, False),
        ("class", "RECOVERED", True),
        ("class", "divergent", False),
        ("cause", "f02, rare tokens", True),
        ("cause", "F01", False),
        ("action", "wait and see", True),
        ("action", "rollback", False),
        ("action", "", False),
    ],
)
def test_each_line_is_compared(name: str, value: str, agrees: bool) -> None:
    ours = write_up_of(SPIKE)
    assert ours == {"onset": "600", "class": "recovered", "cause": "F02", "action": "wait"}
    assert agree(value, ours[name]) is agrees


def test_without_an_incident_the_write_up_says_none_and_wait() -> None:
    ours = write_up_of(None)
    yours = {"onset": "none", "class": "None", "cause": "none", "action": "wait"}
    assert all(agree(yours[name], ours[name]) for name in yours)


def test_the_comparison_has_a_line_for_each_part() -> None:
    ours = write_up_of(SPIKE)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(show_comparison({**ours, "cause": "F01 [b]"}, ours, ours))
    lines = [line.split() for line in shown.get().splitlines()[1:]]
    assert [line[0] for line in lines] == ["onset", "class", "cause", "action"]
    assert ["no" in line for line in lines] == [False, False, True, False]
    assert "[b]" in shown.get()


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
    assert truth == {
        "onset": str(fault.onset),
        "class": "",
        "cause": "F13",
        "action": "discard, roll back",
    }
    none = truth_of(Exercise.from_kind("cooldown", 3), best)
    assert (none["onset"], none["cause"]) == ("none", "none")
