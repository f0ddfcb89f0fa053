"""Every act on a run: by whom, why, what was expected, what was measured."""

import re
from pathlib import Path

from tests.kit.tiny import EVERY_10, batches, journal_of
from tests.kit.user_loop import NAN, watching
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.journal import RunDirectory
from trimtab.journal.notes import add_note
from trimtab.report.interventions import find_interventions


def train(folder: Path) -> None:
    """One discarded stretch, one planned change, one that nobody announced, and a schedule."""
    with watching(folder, "protect", config=EVERY_10) as run:
        for step, batch in enumerate(batches(120)):
            group = run.optimizer.param_groups[0]
            if step == 60:
                expected = {"what": "<b>mix</b>", "why": "more code", "expect": "lower"}
                run.guard.event("planned change", **expected)
            if step == 75:
                group["weight_decay"] = 0.3
            group["betas"] = (0.9 + step / 1e4, 0.99)  # a schedule
            run.step(batch, factor=NAN if step in (40, 41) else 1.0)


def test_each_act_has_author_reason_expectation_and_outcome(tmp_path: Path) -> None:
    train(tmp_path)
    acts = {act.what: act for act in find_interventions(journal_of(tmp_path))}
    discarded = acts["2 steps discarded"]
    assert (discarded.step, discarded.author) == (40, "trimtab")
    assert "not finite" in discarded.reason
    planned = acts["planned change: <b>mix</b>"]
    assert (planned.step, planned.author) == (60, "your code")
    assert (planned.reason, planned.expected) == ("more code", "lower")
    assert planned.outcome.startswith("median loss ")
    assert "over the next 50 records" in planned.outcome
    changed = acts["weight_decay changed from 0.01 to 0.3"]
    assert (changed.step, changed.author) == (80, "your code")  # seen with the telemetry
    assert sum(what.startswith("betas changed") for what in acts) == 3  # then it is a schedule

    add_note(RunDirectory(tmp_path), "clip at 0.5 from here on")
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--html", str(page)]).stdout
    assert "step 40, trimtab: 2 steps discarded, because loss not finite" in shown
    assert "note: clip at 0.5 from here on" in shown
    assert re.search(r"^time: .* % training, .* % discarded", shown, re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    assert "<h2>Interventions</h2>" in text
    assert "<b>mix</b>" not in text
