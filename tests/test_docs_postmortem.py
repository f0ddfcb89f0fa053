"""The page on reports: its template, types and tree are those of the code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.synthetic import block_of, diagnosis_of, falling_loss
from trimtab.core.findings import Symptom
from trimtab.core.incidents import IncidentClass
from trimtab.explain.textbook.tree import FIRST_QUESTION, LEAVES, TEXTBOOK_TREE
from trimtab.report.postmortem import TYPES, build_postmortem
from trimtab.report.run_report import RunReport

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
TEMPLATE = ROOT / "examples" / "postmortem-template.md"


def section(title: str) -> str:
    return re.split(rf"\n##+ {title}\n", PAGE)[1].split("\n## ")[0]


def drawn(at: str, said: str = "", indent: str = "") -> Iterator[str]:
    """The tree from a question on, a line each; what was drawn before is only named."""
    question = TEXTBOOK_TREE.get(at)
    if question is None:
        leaf = LEAVES[at]
        yield f"{indent}{said}{leaf.cause.id + ' ' if leaf.cause else ''}{leaf.root_cause}"
        return
    yield f"{indent}{said}{at} {question.check.__doc__}"
    for word, following in (("yes: ", question.yes), ("no: ", question.no)):
        if following in TEXTBOOK_TREE and (following[0] != at[0] or following < at):
            yield f"{indent}    {word}go to {following}"
        else:
            yield from drawn(following, word, f"{indent}    ")


def tree() -> str:
    """The tree in its parts, each with the questions that stay in it."""
    starts = [FIRST_QUESTION, *(at for at in TEXTBOOK_TREE if at[1:] in (".1", ".0"))]
    entered = {at for q in TEXTBOOK_TREE.values() for at in (q.yes, q.no) if at in TEXTBOOK_TREE}
    parts: list[str] = []
    seen: set[str] = set()
    for at in dict.fromkeys([*starts, *sorted(entered)]):
        if at not in seen:
            lines = list(drawn(at))
            seen |= {match[0] for line in lines if (match := re.search(r"\d\.\d\w?(?= )", line))}
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def test_the_tree_is_that_of_the_textbook_rules() -> None:
    assert (ROOT / "docs" / "decision-tree.txt").read_text(encoding="utf-8") == f"{tree()}\n"


def test_the_template_is_that_of_the_exercises() -> None:
    empty_write_up = pytest.importorskip("trimtab.lab.practice.view").empty_write_up
    blank = empty_write_up("Incident N: loss A -> B at step S, class (date, run)")
    without_list = blank.split("\n<!-- The faults by their numbers:")[0]
    assert TEMPLATE.read_text(encoding="utf-8") == f"{without_list}\n"


def test_sections_and_types_are_those_of_the_code() -> None:
    report = RunReport(
        source="run",
        format="csv",
        rules="trimtab",
        incidents=(),
        block=block_of({"loss": falling_loss(400)}),
    )
    document = build_postmortem(diagnosis_of(Symptom.LOSS_SPIKE), report)
    rows = re.findall(r"(?m)^\| ([^|]*?) \|", section("What is in it"))[2:]
    assert rows == [one.title for one in document.sections]
    classes = section("What becomes of an incident")
    shown = dict(re.findall(r"(?m)^\| ([a-z ]+) \| [^|]*? \| ([^|]*?) \| [^|]*? \|$", classes))
    del shown["class"]
    assert shown == {str(one): TYPES[one] for one in IncidentClass}
