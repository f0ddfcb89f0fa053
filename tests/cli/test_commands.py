"""`trimtab diagnose`, and what every command has: help, and plug-ins in it."""

import json
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.kit.plugins import install_plugin
from tests.kit.synthetic import troubled_run
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.core.block import Block
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.lines import encode_line

runner = CliRunner()


def write_csv(block: Block, path: Path) -> Path:
    names = list(block.columns)
    lines = [",".join(["step", *names])]
    for row in range(len(block)):
        values = [repr(float(block.column(name).values[row])) for name in names]
        lines.append(",".join([str(block.step[row]), *values]))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_run(block: Block, root: Path) -> Path:
    directory = RunDirectory(root)
    directory.write_manifest({"dtype": "bf16", "seed": 7})
    with JournalWriter(directory) as journal:
        for row in range(len(block)):
            signals = {name: float(block.column(name).values[row]) for name in block.columns}
            journal.append(step=int(block.step[row]), signals=signals)
    return root


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_csv(troubled_run(), tmp_path / "run.csv")


def test_a_log_with_a_spike_and_a_nan_names_both_exits_1_and_writes_nothing(log: Path) -> None:
    question = "The loss falls far"
    for options in ([], ["--verbose"]):
        result = runner.invoke(app, ["diagnose", "run.csv", *options])
        assert result.exit_code == 1
        rows = [line.split() for line in result.stdout.splitlines()]
        assert any(row[1:3] == ["600", "recovered"] for row in rows)
        assert any(row[1:3] == ["900", "dead"] for row in rows)
        assert (question in result.stdout) is bool(options)
        assert result.stderr == ""
    assert [path.name for path in log.parent.iterdir()] == ["run.csv"]


def test_out_writes_the_files_and_prints_where(log: Path) -> None:
    result = runner.invoke(app, ["diagnose", "run.csv", "--out", "here", "--json"])
    (folder,) = (log.parent / "here").iterdir()
    machine = json.loads((folder / "0002-step-000900" / "incident.json").read_text())
    assert machine["incident"]["onset"]["step"] == 900
    spike = folder / "0001-step-000600" / "postmortem.md"
    assert "# Incident 1: loss 2.108 -> 4.602 at step 600, recovered" in spike.read_text()
    assert str(spike.relative_to(log.parent)) in result.stderr


def test_two_logs_of_the_same_name_never_mix(log: Path) -> None:
    for name in ("a", "b"):
        (log.parent / name).mkdir()
    write_csv(troubled_run(), log.parent / "a" / "train.csv")
    write_csv(troubled_run()[:850], log.parent / "b" / "train.csv")
    for name in ("a", "b"):
        runner.invoke(app, ["diagnose", f"{name}/train.csv", "--out", "out"])
    folders = sorted((log.parent / "out").iterdir())
    assert all(folder.name.startswith("train-") for folder in folders)
    assert sorted(len(list(folder.iterdir())) for folder in folders) == [1, 2]


def test_incidents_of_an_earlier_call_do_not_stay(log: Path) -> None:
    call = ["diagnose", "run.csv", "--out", "out"]
    runner.invoke(app, call)
    (folder,) = (log.parent / "out").iterdir()
    notes = folder / "0002-step-000900" / "my-notes.txt"
    notes.write_text("mine")
    write_csv(troubled_run()[:850], log)
    runner.invoke(app, call)
    assert [path.name for path in folder.rglob("*.md")] == ["postmortem.md"]
    assert notes.read_text() == "mine"  # only what trimtab wrote is removed
    write_csv(troubled_run()[:500], log)
    assert runner.invoke(app, call).exit_code == 0
    assert not list(folder.rglob("*.md"))


def test_a_clean_log_exits_0_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clean.jsonl"
    losses = 2.0 + np.tile([0.01, -0.01], 300)
    path.write_text("".join(f'{{"step": {i}, "loss": {x}}}\n' for i, x in enumerate(losses)))
    result = runner.invoke(app, ["diagnose", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "no incident" in result.stdout.lower()
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_costs_only_the_files(log: Path) -> None:
    (log.parent / "file").write_text("")
    result = runner.invoke(app, ["diagnose", "run.csv", "--out", "file/below"])
    assert result.exit_code == 1
    assert "no post-mortem written" in result.stderr


def test_write_puts_post_mortems_into_the_run_directory(tmp_path: Path) -> None:
    root = write_run(troubled_run(), tmp_path / "x1")
    incidents = root / "trimtab" / "incidents"
    assert not incidents.exists()
    assert runner.invoke(app, ["diagnose", str(root), "--write"]).exit_code == 1
    text = (incidents / "0001-step-000600" / "postmortem.md").read_text()
    assert "| dtype | bf16 |" in text
    assert "same seed (7)" in text


def with_dropped_records(log: Path) -> str:
    """Say in a journal that three records were dropped, as its writer does."""
    entry = {"kind": "dropped", "note": 1, "first_tick": 1200, "count": 3, "notes": 0}
    log.write_bytes(log.read_bytes() + encode_line(entry))
    return "3 records are missing"


def with_torn_tail(log: Path) -> str:
    """Cut a journal in the middle of a line, as a killed writer leaves it."""
    log.write_bytes(log.read_bytes()[:-20])
    return "00000000.log: "


@pytest.mark.parametrize("damage", [with_dropped_records, with_torn_tail])
def test_what_a_journal_has_lost_is_in_every_report(
    tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    root = tmp_path / "x1"
    with JournalWriter(RunDirectory(root)) as journal:
        losses = troubled_run().column("loss").values
        for step, loss in enumerate(losses.tolist()):
            journal.append(step=step, signals={"loss": loss})
        time.sleep(0.5)
        shutil.copytree(root, tmp_path / "open")  # a journal that was not closed
    lost = damage(tmp_path / "open" / "trimtab" / "journal" / "00000000.log")
    result = runner.invoke(app, ["diagnose", str(tmp_path / "open"), "--write"])
    assert f"note: {lost}" in result.stdout
    printed = runner.invoke(app, ["diagnose", str(tmp_path / "open"), "--json"])
    assert any(note.startswith(lost) for note in json.loads(printed.stdout)["notes"])
    postmortem = next((tmp_path / "open").rglob("postmortem.md")).read_text()
    assert f"- Note: {lost}" in postmortem


@pytest.mark.parametrize("words", ["", "diagnose", "check", "corpus scan", "lab", "lab practice"])
def test_help_fits_a_screen_with_an_example_and_without_types(words: str) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words.split(), "--help"]).stdout
    assert "Example: trimtab" in shown
    assert not re.search(r"<\w+>|<list", shown)
    assert len(shown.splitlines()) <= 40


def test_help_loads_neither_torch_nor_numpy() -> None:
    script = (
        "import sys\n"
        "from trimtab.cli.main import app\n"
        "try:\n    app(['--help'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'heavy imports for --help'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_help_takes_no_longer_than_twice_the_libraries_that_print_it() -> None:
    """A ratio, because the seconds of a busy machine say nothing of the command."""
    libraries = "import typer, rich.console, rich.table, rich.panel, rich.markdown"
    command = "from trimtab.cli.main import app\ntry:\n    app(['--help'])\nexcept SystemExit: pass"
    seconds: dict[str, list[float]] = {libraries: [], command: []}
    for _ in range(3):
        for script, spent in seconds.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds[command]) < 2 * min(seconds[libraries])


@pytest.mark.parametrize("command", ["diagnose", "checkpoints list"])
def test_help_lists_the_plugins_with_their_package_and_loads_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        "my_detector"
        not in runner.invoke(app, [*command.split(), "--help"], env={"COLUMNS": "120"}).stdout
    )
    bomb = "raise RuntimeError('loaded')\n"
    for kind, name in (("detectors", "my_detector"), ("readers", "my_reader")):
        install_plugin(tmp_path, monkeypatch, f"trimtab.{kind}", name, bomb, "X")
    printed = runner.invoke(app, [*command.split(), "--help"], env={"COLUMNS": "120"}).stdout
    assert "detector my_detector (my_detector-package 1.2)" in printed
    assert "reader my_reader (my_reader-package 1.2)" in printed
