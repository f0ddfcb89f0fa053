"""`trimtab observe`: lines of several runs, once to the end, and the old names."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.cli.test_commands import write_run
from tests.kit import forked
from tests.kit.synthetic import block_of, falling_loss, troubled_run
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.news import read_news
from trimtab.observe.news_writer import NewsWriter

runner = CliRunner()


def test_runs_that_are_over_are_judged_written_and_left(tmp_path: Path) -> None:
    bad = write_run(troubled_run(), tmp_path / "bad")
    good = write_run(block_of({"loss": falling_loss(300)}), tmp_path / "good")
    result = runner.invoke(app, ["observe", str(bad), str(good)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("bad: step 1200: alarm: ")
    assert "good: step 300: ended; 0 incidents" in lines
    assert (bad / "trimtab" / "verdict.json").exists()
    assert len(list((bad / "trimtab" / "incidents").iterdir())) == 2


def test_once_judges_every_run_of_a_folder_and_json_has_a_line_for_each(tmp_path: Path) -> None:
    write_run(troubled_run(), tmp_path / "a" / "bad")
    write_run(block_of({"loss": falling_loss(300)}), tmp_path / "good")
    result = runner.invoke(app, ["observe", str(tmp_path), "--once", "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["schema"] for line in lines} == {"trimtab observe 4"}
    assert {line["run"]: line["kind"] for line in lines} == {"a/bad": "state", "good": "state"}
    assert (tmp_path / "a" / "bad" / "trimtab" / "verdict.json").exists()


def test_each_change_is_a_line_and_new_runs_appear(tmp_path: Path) -> None:
    process = forked.Forked(
        ["-m", "trimtab.cli", "observe", str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    journal = JournalWriter(RunDirectory(tmp_path / "x1"))
    for step, loss in enumerate(falling_loss(300)):
        journal.append(step, {"loss": float(loss)})
    assert process.stdout.readline().startswith("x1: step ")
    for step in range(300, 330):
        journal.append(step, {"loss": float("nan")})
    journal.close("end of data")
    lines: list[str] = []
    while not lines or "ended: end of data" not in lines[-1]:
        lines.append(process.stdout.readline())
    assert any("incident 1 opened: non-finite loss since step 300" in line for line in lines)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    process.stdout.close()


def test_a_second_observer_shows_and_does_not_write(tmp_path: Path) -> None:
    root = write_run(troubled_run(), tmp_path / "bad")
    lease = NewsWriter(RunDirectory(root))
    assert runner.invoke(app, ["observe", str(root)]).exit_code == 0
    assert not (root / "trimtab" / "verdict.json").exists()
    assert not read_news(RunDirectory(root))
    lease.close()


def test_a_run_is_drawn_in_a_terminal_until_it_ends(tmp_path: Path) -> None:
    root = write_run(troubled_run(), tmp_path / "x1")
    terminal = {"FORCE_COLOR": "1", "NO_COLOR": "1", "CI": "", "COLUMNS": "150"}
    drawn = runner.invoke(app, ["observe", str(root)], env=terminal).stdout
    assert "step 1,200, 1,200 records" in drawn
    assert "ended: closed" in drawn
    assert "^2" in drawn
    assert "loss spike" in drawn


def test_the_old_names_say_the_new_one(tmp_path: Path) -> None:
    root = write_run(block_of({"loss": falling_loss(300)}), tmp_path / "x1")
    assert runner.invoke(app, ["follow", str(root)]).stderr == (
        "trimtab: follow is now: trimtab observe RUN\n"
    )
    sent = forked.run(
        *("-m", "trimtab.cli", "ship", root, "--to", "tensorboard"),
        env={**os.environ, "TENSORBOARD_LOGDIR": str(tmp_path / "events")},
    )
    assert sent.stderr == "trimtab: ship is now: trimtab observe RUN --to SINK\n"
    assert "tensorboard: 300 records sent" in sent.stdout
