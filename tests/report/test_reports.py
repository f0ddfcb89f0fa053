import dataclasses
import io
import json
import re
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from rich.console import Console
from tests.kit.synthetic import add_spike, block_of, falling_loss, troubled_run

from trimtab.core.block import Block, Column
from trimtab.core.causes import Cause
from trimtab.core.escaping import escape_markdown
from trimtab.core.run import RunFacts
from trimtab.core.text import clause, printable
from trimtab.explain.measures import compute_discards
from trimtab.judge import Judge
from trimtab.report import wording
from trimtab.report.postmortem import in_short, write_postmortem
from trimtab.report.run_report import RunReport
from trimtab.report.terminal import MAX_ROWS, report_view


def report_of(
    block: Block,
    *,
    source: str = "run.csv",
    facts: RunFacts | None = None,
    notes: Sequence[str] = (),
) -> RunReport:
    judge = Judge(rules="textbook")
    judge.update(block)
    judge.finish()
    known = facts or RunFacts()
    return RunReport(
        source=source,
        format="csv",
        rules="textbook",
        block=block,
        facts=known,
        notes=tuple(notes),
        incidents=tuple(judge.explain(incident, block, known) for incident in judge.incidents),
    )


@cache
def troubled_report() -> RunReport:
    """The report of the troubled run, made once for all tests."""
    return report_of(troubled_run())


def drawn(report: RunReport, width: int = 120, *, questions: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(report_view(report, width, questions=questions))
    return console.export_text()


def spike_postmortem(report: RunReport) -> str:
    incident = next(o for o in report.incidents if o.incident.onset.step == 600)
    return write_postmortem(incident, report)


def test_the_postmortem_has_every_section() -> None:
    text = spike_postmortem(troubled_report())
    headings = re.findall(r"(?m)^## (.*)$", text)
    assert headings == [
        "In short",
        "1 Symptoms",
        "2 Hypotheses",
        "3 Discriminating evidence",
        "4 Root cause",
        "5 Remediation",
        "6 Verification",
        "7 Lesson",
        "Type",
        "Outcome",
        "What was done",
        "Cost",
        "Follow-ups",
        "Evidence",
        "The questions asked",
    ]
    for body in re.split(r"(?m)^## .*$", text)[1:]:
        assert body.strip()


def test_the_postmortem_of_a_lost_run_says_when_where_and_of_which_type() -> None:
    run = troubled_run()
    columns = dict(run.columns) | {
        "clock": Column.complete(1.7e9 + 60.0 * np.arange(len(run), dtype=np.float64))
    }
    timed = dataclasses.replace(run, columns=columns)
    report = report_of(timed, source="runs/x1")
    text = write_postmortem(report.incidents[-1], report)
    assert re.match(r"# Incident \d: .*, divergent \(2023-11-15 13:1\d UTC, run x1\)\n", text)
    assert "| loss 500 records after the peak | the log ends" in text
    assert "Type 3" in text
    assert "time not recorded" in spike_postmortem(report_of(run))


def test_what_became_of_the_loss_is_said_by_its_class() -> None:
    def became(decay: float, rest: float, records: int) -> str:
        loss = falling_loss(700 + records)
        loss[700:] += (3.5 - rest) * np.exp(-np.arange(records) / decay) + rest
        judge, run = Judge(), block_of({"loss": loss})
        judge.update(run)
        judge.finish()
        first = judge.explain(judge.incidents[0], run, RunFacts())
        return dict(in_short(first, report_of(run)))["what"].rpartition("; ")[2]

    back = r"back on its trajectory at step 7\d\d, after \d\d records"
    assert re.fullmatch(back, became(10, 0.0, 700))
    assert "shrinking" in became(80, 0.0, 100)
    assert "above its trend" in became(40, 0.6, 700)
    assert became(1e9, 0.0, 8) == "too early to say when the log ends"


def test_evidence_names_the_hypotheses_that_it_favours() -> None:
    run = troubled_run()
    judge = Judge()
    judge.update(run)
    judge.finish()
    report = dataclasses.replace(report_of(run), rules="trimtab")
    text = write_postmortem(judge.explain(judge.incidents[0], run, RunFacts()), report)
    decided = text.partition("## 3 Discriminating evidence")[2].partition("##")[0]
    assert re.search(r"(favours|speaks against|rules out) H\d", decided)


def test_the_postmortem_has_the_numbers() -> None:
    text = spike_postmortem(troubled_report())
    assert "| onset, step | 600 |" in text
    assert "| gradient norm, largest, before clipping | 22 |" in text
    assert "| learning rate at the onset | 0.0003 |" in text
    assert "F02" in text
    assert "Recovered" in text


def test_what_is_not_known_says_so() -> None:
    loss_only = block_of({"loss": add_spike(falling_loss(1200), 599)})
    text = spike_postmortem(report_of(loss_only))
    missing = re.findall(r"(?m)^Not recorded: (.*)\.$", text)[0]
    for line in ("dtype", "learning rate at the onset", "unusual tokens in the batch"):
        assert f"| {line} |" not in text
        assert line in missing
    assert "it would decide H" in text
    assert "The time of a step was not recorded" in text


def test_what_is_known_about_the_run_is_used() -> None:
    facts = RunFacts(dtype="bf16", seed=42, link="https://example.org/run/7")
    text = spike_postmortem(report_of(troubled_run(), facts=facts))
    assert "| dtype | bf16 |" in text
    assert "same seed (42)" in text
    assert "https://example.org/run/7" in text


def test_a_nan_that_stays_names_step_and_tensor_as_far_as_known() -> None:
    report = troubled_report()
    text = write_postmortem(report.incidents[-1], report)
    assert "wrote NaN into a parameter" in text
    assert "first seen at step 900; which tensor is not recorded" in text


def test_the_terminal_view_names_both_incidents() -> None:
    text = drawn(troubled_report())
    assert re.search(r"600\s+recovered\s.*loss spike", text)
    assert re.search(r"900\s+divergent", text)
    assert "times the mean" in text
    assert "2.3a" not in text
    assert "2.3a" in drawn(troubled_report(), questions=True)
    assert "textbook rules" in text


def test_a_clean_run_says_so() -> None:
    calm = block_of({"loss": np.linspace(2.2, 2.0, 600) + np.tile([0.01, -0.01], 300)})
    assert drawn(report_of(calm)).startswith("Healthy: no incident in 600 records.")
    few = report_of(calm[:12]).verdict
    assert few == "No incident found in 12 records; it takes 64 to be sure."
    holes = np.where(np.arange(600) % 200, np.nan, 2.0)
    block = Block.from_columns({"loss": Column(holes, ~np.isnan(holes))}, step=np.arange(600))
    assert report_of(block).verdict == "No incident found in 3 records; it takes 64 to be sure."


def test_a_row_number_is_not_given_for_a_step_without_saying_so() -> None:
    note = 'No step column: "step" below is the row number (row 50 = epoch 1.27).'
    report = dataclasses.replace(troubled_report(), notes=(note,))
    assert report.verdict.endswith("; steps are row numbers.")
    epochs = Column.complete(report.block.step / 100)
    block = dataclasses.replace(report.block, columns={**report.block.columns, "epoch": epochs})
    told = dataclasses.replace(report, block=block).verdict
    assert told.endswith("; steps are row numbers (row 900 = epoch 9).")


def test_a_loss_that_never_fell_is_not_called_healthy() -> None:
    flat = block_of({"loss": 6.9 + np.tile([0.01, -0.01], 300)})
    assert report_of(flat).verdict == "No incident, but the loss has not fallen in 600 records."


def test_the_verdict_is_that_of_the_worst_incident() -> None:
    run = troubled_run()
    over = report_of(run[:800])
    assert over.verdict.startswith("1 incident, over since step ")
    only = over.incidents[0]
    assert over.verdict.endswith(f": {only.in_short}; {clause(only.action.instruction)}.")


def test_where_nothing_is_to_be_done_no_fix_asks_for_work() -> None:
    only = report_of(troubled_run()[:800]).incidents[0]
    nothing = dataclasses.replace(only.action, instruction="Nothing to do.")
    quiet = dataclasses.replace(
        only, action=nothing, cause=Cause.LR_DISCONTINUITY, remedy="Lower it."
    )
    assert wording.action_name(quiet) == "none"
    assert wording.fix_text(quiet) == "None needed if the jump was meant; else lower it."
    assert wording.fix_text(dataclasses.replace(quiet, cause=None)) == ""
    assert wording.fix_text(dataclasses.replace(quiet, action=only.action)) == "Lower it."


def test_the_worst_names_the_verdict() -> None:
    run = troubled_run()
    worst = report_of(run)
    instruction = worst.incidents[-1].action.instruction
    assert "step 900" in instruction
    said = f"{instruction[:1].lower()}{instruction[1:].removesuffix('.')}"
    assert worst.verdict == f"Divergent since step 900: {said}; 1 more incident."


def test_a_noisy_run_does_not_flood_the_terminal() -> None:
    noisy = np.random.default_rng(0).standard_t(2, 6_000)
    report = report_of(block_of({"loss": noisy}))
    assert len(report.incidents) > MAX_ROWS
    text = drawn(report)
    assert re.search(r"(?m)^ *\d+ and \d+ alike ", text)  # those alike in one line
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize("width", [20, 60, 250])
def test_any_width_will_do(width: int) -> None:
    assert drawn(troubled_report(), width)


def test_untrusted_names_cannot_speak() -> None:
    evil = "a\x1b[31m|<script>alert(1)</script>`[bold]x[/bold]\n# Heading"
    report = report_of(troubled_run(), source=evil, notes=[evil])
    text = drawn(report)
    assert "\x1b" not in text
    assert "[bold]" in text  # shown, not obeyed
    document = spike_postmortem(report)
    assert "<script>" not in document
    assert "\n# Heading" not in document
    assert "\x1b" not in document


def test_plain_and_markdown_keep_ordinary_text() -> None:
    assert printable("loss 2.5, step 600") == "loss 2.5, step 600"
    assert escape_markdown("loss_scale 1 -> 2") == "loss_scale 1 -> 2"


def test_the_report_is_json_without_bare_nan() -> None:
    report = troubled_report()
    shown = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert shown["records"] == 1200
    last = shown["incidents"][-1]
    assert last["incident"]["incident_class"] == "divergent"
    assert last["symptoms"]["loss_peak"] == "NaN"
    assert shown["incidents"][-2]["cause"]["id"] == "F02"


def test_the_most_severe_are_the_most_severe_in_order_of_onset() -> None:
    report = troubled_report()
    (worst,) = report.most_severe(1)
    assert worst.incident.onset.step == 900
    assert report.most_severe(0) == ()
    steps = [o.incident.onset.step for o in report.most_severe(2)]
    assert steps == [600, 900]


class TestDiscards:
    def run(self) -> Block:
        """The spike at step 600, discarded together with the step after it, and one more."""
        length = 1200
        loss = add_spike(falling_loss(length), 599)
        discarded = np.zeros(length)
        discarded[[599, 600, 1000]] = 1.0
        norm = np.full(length, 0.5)
        norm[599] = 22.0
        return block_of({"loss": loss, "grad_norm": norm, "discarded": discarded})

    def test_the_terminal_and_the_json_say_how_many_and_where(self) -> None:
        report = report_of(self.run())
        assert "3 steps discarded, kept out of the weights: 600 to 601, 1,001" in drawn(report)
        shown = report.to_dict()["discarded"]
        assert shown == {"count": 3, "stretches": [[600, 601], [1001, 1001]]}

    def test_the_postmortem_names_those_of_the_incident(self) -> None:
        text = spike_postmortem(report_of(self.run()))
        assert "| done | 2 steps discarded (600 to 601) |" in text
        assert "- Lost, because discarded, undone or in vain: 2 steps" in text

    def test_a_run_that_was_not_protected_says_nothing_of_it(self) -> None:
        report = troubled_report()
        assert "discarded" not in drawn(report)
        assert "discarded" not in spike_postmortem(report)
        assert report.to_dict()["discarded"] is None

    def test_many_places_are_counted_and_not_listed(self) -> None:
        discarded = np.tile([1.0, 0.0], 10)
        found = compute_discards(block_of({"loss": np.ones(20), "discarded": discarded}))
        assert found is not None
        assert found.where() == "1, 3, 5, 7, 9, 11 and 4 more places"
