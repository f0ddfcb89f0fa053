"""Post-mortems read by a reader who knows only the text."""

from pathlib import Path

import pytest
from tests.kit.cases import some_of
from tests.kit.reader import Document, contradictions_in
from tests.observe.test_one_truth import random_run

import trimtab
from trimtab.report.postmortem import write_postmortem
from trimtab.report.run_report import RunReport


def documents(report: RunReport) -> dict[str, Document]:
    return {
        f"{report.source} {one.incident.number}": Document(
            text=write_postmortem(one, report),
            last_step=int(report.block.step.max()),
            signals=frozenset(report.block.columns),
        )
        for one in report.incidents
    }


@pytest.mark.parametrize("seed", some_of(range(300), 24))
def test_a_reader_finds_no_contradiction(seed: int) -> None:
    rows = random_run(seed)
    names = dict.fromkeys(name for _, _, row in rows for name in row)
    log = {name: [row.get(name) for _, _, row in rows] for name in names}
    report = trimtab.diagnose({"step": [step for step, _, _ in rows], **log})
    found = {name: contradictions_in(one) for name, one in documents(report).items()}
    assert {name: said for name, said in found.items() if said} == {}


OLD = Path(__file__).parents[1] / "old_runs"


def test_the_reader_can_find_something() -> None:
    files = sorted(OLD.rglob("postmortem.md"))
    assert files
    for file in files:
        assert contradictions_in(Document(text=file.read_text(), last_step=300)), file
