"""The commands around a live run: follow, note, diagnose with goodput, demo."""

import dataclasses
import getpass
import io
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.kit import forked
from tests.kit.synthetic import add_spike, block_of, falling_loss
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.core.block import Block, Column, Event
from trimtab.explain.time_use import compute_goodput
from trimtab.journal import JournalWriter, RunDirectory, RunTotals, add_note, read_journal
from trimtab.report.terminal import LiveView

runner = CliRunner(env={"COLUMNS": "200"})


def write_run(root: Path, records: int = 300, *, close: bool = True) -> JournalWriter:
    journal = JournalWriter(RunDirectory(root))
    losses = add_spike(falling_loss(records), 250)
    for step, loss in enumerate(losses):
        clock = {"clock": 1000.0 + 36.0 * step, "step_seconds": 36.0}
        journal.append(step, {"loss": float(loss), **clock})
    journal.event(
        "incident", 250, number=1, onset=250, incident_class=None, symptoms=["loss spike"]
    )
    if close:
        journal.close()
    return journal


class TestNote:
    def test_a_follow_up_is_in_the_post_mortem_of_its_incident(self, tmp_path: Path) -> None:
        write_run(tmp_path)
        result = runner.invoke(app, ["note", str(tmp_path), "ask for QK-norm", "--incident", "1"])
        assert result.exit_code == 0
        runner.invoke(app, ["diagnose", str(tmp_path), "--write"])
        (postmortem,) = tmp_path.rglob("postmortem.md")
        assert f"{getpass.getuser()}: ask for QK-norm" in postmortem.read_text()

    def test_a_note_is_kept_at_the_step_where_the_run_is(self, tmp_path: Path) -> None:
        write_run(tmp_path)
        result = runner.invoke(app, ["note", str(tmp_path), "lowered LR by hand"])
        assert result.exit_code == 0
        assert result.stdout == "noted at step 299\n"
        (event,) = (
            e for e in read_journal(RunDirectory(tmp_path)).block.events if e.kind == "note"
        )
        assert event.step == 299
        assert event.facts["text"] == "lowered LR by hand"

    def test_while_the_run_writes(self, tmp_path: Path) -> None:
        journal = write_run(tmp_path, close=False)
        time.sleep(0.5)
        assert add_note(RunDirectory(tmp_path), "first") == 299
        journal.append(300, {"loss": 2.0})
        journal.close()
        assert add_note(RunDirectory(tmp_path), "second") == 300
        notes = [e for e in read_journal(RunDirectory(tmp_path)).block.events if e.kind == "note"]
        assert [note.facts["text"] for note in notes] == ["first", "second"]

    def test_a_damaged_note_costs_itself_only(self, tmp_path: Path) -> None:
        write_run(tmp_path)
        run = RunDirectory(tmp_path)
        add_note(run, "one")
        add_note(run, "two")
        written = run.notes.read_bytes()
        # Not a fixed byte: the line starts with its checksum, which may start with that byte.
        run.notes.write_bytes(bytes([written[0] ^ 1]) + written[1:])
        notes = [e.facts["text"] for e in read_journal(run).block.events if e.kind == "note"]
        assert notes == ["two"]

    def test_what_cannot_be_noted_is_an_error(self, tmp_path: Path) -> None:
        assert runner.invoke(app, ["note", str(tmp_path), "x"]).exit_code == 3
        write_run(tmp_path)
        long = runner.invoke(app, ["note", str(tmp_path), "x" * 20_000])
        assert long.exit_code == 3
        assert "at most 10000 characters" in long.stderr


class TestFollow:
    def test_a_run_that_has_ended_is_shown_and_left(self, tmp_path: Path) -> None:
        write_run(tmp_path)
        result = runner.invoke(app, ["follow", str(tmp_path)])
        assert result.exit_code == 0
        assert "step 299" in result.stdout
        assert "ended: closed" in result.stdout
        assert "loss spike" in result.stdout

    def test_a_live_run_is_followed_to_its_end(self, tmp_path: Path) -> None:
        journal = write_run(tmp_path, close=False)
        folder = RunDirectory(tmp_path).folder("journal")
        while not any(file.stat().st_size for file in folder.glob("*.log")):
            time.sleep(0.01)  # it is written by a thread
        follower = forked.Forked(
            ["-m", "trimtab.cli", "follow", str(tmp_path)], stdout=subprocess.PIPE
        )
        time.sleep(1.5)
        assert follower.poll() is None
        journal.append(300, {"loss": 7.77})
        journal.close("end of data")
        printed, _ = follower.communicate(timeout=20)
        assert "7.77" in printed
        assert "ended: end of data" in printed

    def test_a_folder_without_a_journal_is_an_error(self, tmp_path: Path) -> None:
        assert runner.invoke(app, ["follow", str(tmp_path)]).exit_code == 3

    def test_an_incident_is_marked_with_its_cause_as_wide_as_the_terminal(self) -> None:
        facts = {
            "number": 1,
            "onset": 250,
            "transition": "opened",
            "symptoms": ["loss spike"],
            "cause": "F02 long-tail or degenerate tokens",
        }
        block = block_of({"loss": add_spike(falling_loss(300), 249)})
        event = Event(kind="incident", tick=250, step=250, facts=facts)
        totals = RunTotals()
        totals.add(dataclasses.replace(block, events=(event,)))
        view = LiveView("x1", totals)
        view.update(block)
        console = Console(width=150, file=io.StringIO(), record=True)
        console.print(view.draw(150))
        lines = console.export_text().splitlines()
        assert len(lines[1]) == 150
        assert lines[2].index("^1") == lines[1].index("█")
        assert any("F02 long-tail or degenerate tokens" in line for line in lines)

    def test_the_view_before_the_first_record(self) -> None:
        assert "no records yet" in str(LiveView("x", RunTotals()).draw(80))


class TestGoodput:
    def test_steps_done_again_and_not_applied_are_not_kept(self) -> None:
        step = np.array([0, 1, 2, 3, 2, 3, 4, 5])
        block = Block.from_columns(
            {"clock": Column.complete(np.array([0, 10, 20, 30, 9000, 9010, 9020, 9030.0]))},
            step=step,
            events=(Event(kind="step not applied", tick=7, step=5),),
        )
        goodput = compute_goodput(block)
        assert (goodput.steps_done, goodput.steps_kept) == (8, 5)
        assert goodput.hours == pytest.approx(60 / 3600)  # the hours between are not the run's
        assert goodput.share == 5 / 8

    def test_discarded_steps_are_lost_unless_they_were_done_again(self) -> None:
        discarded = Column.complete(np.array([0, 1, 1, 0, 0, 1.0]))
        block = Block.from_columns({"discarded": discarded}, step=np.array([0, 1, 2, 2, 3, 4]))
        goodput = compute_goodput(block)
        assert (goodput.steps_done, goodput.steps_kept) == (6, 3)  # 0, 2 and 3

    def test_without_a_clock_there_are_no_hours(self) -> None:
        assert compute_goodput(block_of({"loss": np.ones(3)})).hours is None

    def test_diagnose_prints_it_with_the_cost(self, tmp_path: Path) -> None:
        write_run(tmp_path)
        result = runner.invoke(app, ["diagnose", str(tmp_path), "--write", "--price", "100"])
        assert result.exit_code == 1
        assert "300 of 300 steps kept (100.0 %), 3.0 hours, the run cost $299.00" in result.stdout
        text = next((tmp_path / "trimtab" / "incidents").rglob("postmortem.md")).read_text()
        assert re.search(r"minutes, x \$100.00 an hour = \$[\d.]+", text)


@pytest.mark.parametrize("flip", [80, pytest.param(180, marks=pytest.mark.slow)])
def test_the_demo_shows_a_run_that_recovers_beside_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flip: int
) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("torchdata")
    from trimtab.lab import demo

    if flip != demo.FLIP_STEP:  # a short one, in which both faults are one incident
        for name, value in (("FLIP_STEP", flip), ("NAN_STEP", flip + 20), ("STEPS", flip + 40)):
            monkeypatch.setattr(demo, name, value)
        monkeypatch.setattr(demo, "CORPUS_BYTES", 400_000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    started = time.process_time()  # a busy machine is not the demo's fault
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    assert time.process_time() - started < 60
    parts = re.findall(r"(?m)^(prevent|detect|write up)", result.stdout)
    assert parts == ["prevent", "detect", "write up"]
    assert "  There is no warm-up: the first step is made at 0.003" in result.stdout
    curves = re.findall(r"(?m)^  (observe|recover) .*loss (\S+)$", result.stdout)
    assert [name for name, _ in curves] == ["observe", "recover"]
    assert curves[0][1] == "nan"
    assert float(curves[1][1]) < 5.0
    assert f"step {flip}: a bit of a weight flips" in result.stdout
    assert re.search(r"undone: \d+ updates; kept out of the weights: \d+ steps", result.stdout)
    whys = re.findall(r"(?m)^  why    .*(One bit of|NaN)", result.stdout)
    assert whys == (["One bit of", "NaN"] if flip == 180 else ["One bit of"])
    home = tmp_path / "demo" / "run-1" / "recover" / "trimtab"
    events = [event.kind for event in read_journal(RunDirectory(home.parent)).block.events]
    assert {"undo", "step discarded"} <= set(events)
    names = sorted(path.parent.name[5:] for path in home.rglob("postmortem.md"))
    assert any(name.startswith(f"step-{flip:06}"[:-1]) for name in names)
    assert f"Page: {home / 'dashboard.html'}" in result.stderr
    assert result.stderr.count("Post-mortem: ") == min(len(names), 3)
    assert (home / "dashboard.html").exists()
