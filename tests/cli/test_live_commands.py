"""The commands around a live run: note, diagnose with goodput, demo."""

import getpass
import re
import time
from pathlib import Path

import pytest
from tests.kit.synthetic import add_spike, falling_loss
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.journal import JournalWriter, RunDirectory, add_note, read_journal

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
        write_run(tmp_path)
        long = runner.invoke(app, ["note", str(tmp_path), "x" * 20_000])
        assert long.exit_code == 3
        assert "at most 10000 characters" in long.stderr


def test_diagnose_prints_goodput_with_the_cost(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = runner.invoke(app, ["diagnose", str(tmp_path), "--write", "--price", "100"])
    assert result.exit_code == 1
    assert "300 of 300 steps kept (100.0 %), 3.0 hours, the run cost $299.00" in result.stdout
    text = next((tmp_path / "trimtab" / "incidents").rglob("postmortem.md")).read_text()
    assert re.search(r"minutes, x \$100.00 an hour = \$[\d.]+", text)


@pytest.mark.parametrize("flip", [60, pytest.param(80, marks=pytest.mark.slow)])
def test_the_demo_shows_a_run_that_recovers_beside_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flip: int
) -> None:
    pytest.importorskip("tokenizers")
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
    parts = re.findall(r"(?m)^(before the run|the run|afterwards)", result.stdout)
    assert parts == ["before the run", "the run", "afterwards"]
    assert "  There is no warm-up: the first step is made at 0.003" in result.stdout
    curves = re.findall(r"(?m)^  (observe|recover) .*loss (\S+)$", result.stdout)
    assert [name for name, _ in curves] == ["observe", "recover"]
    assert curves[0][1] == "nan"
    assert float(curves[1][1]) < 5.0
    assert f"  step {flip}: one bit of a weight flips" in result.stdout
    assert re.search(r"took it back \(\d+ updates are lost\) and kept the NaN", result.stdout)
    causes = ["certain: One bit of", "over 90 %: The forward pass makes the NaN"]
    whys = re.findall(rf"(?m)^  why    ({'|'.join(causes)})", result.stdout)
    assert whys == (causes if flip == 80 else causes[:1])
    home = tmp_path / "demo" / "run-1" / "recover" / "trimtab"
    events = [event.kind for event in read_journal(RunDirectory(home.parent)).block.events]
    assert {"undo", "step discarded"} <= set(events)
    names = sorted(path.parent.name[5:] for path in home.rglob("postmortem.md"))
    assert any(name.startswith(f"step-{flip:06}"[:-1]) for name in names)
    assert f"Page: {home / 'dashboard.html'}" in result.stderr
    assert result.stderr.count("Post-mortem: ") == min(len(names), 3)
    assert (home / "dashboard.html").exists()
