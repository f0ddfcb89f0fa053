import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.synthetic import block_of, falling_loss, troubled_run
from typer.testing import CliRunner

from trimtab._version import __version__
from trimtab.cli.main import app
from trimtab.core.block import Block
from trimtab.journal import JournalWriter, RunDirectory

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


def test_a_log_with_a_spike_and_a_nan_names_both_and_exits_1(log: Path) -> None:
    result = runner.invoke(app, ["diagnose", "run.csv"])
    assert result.exit_code == 1
    rows = [line.split() for line in result.stdout.splitlines()]
    assert any(row[1:3] == ["600", "recoverable"] for row in rows)
    assert any(row[1:3] == ["900", "divergent"] for row in rows)
    spike = log.parent / "trimtab-run" / "0001-step-000600" / "postmortem.md"
    assert "# Incident 1: loss spike at step 600, recoverable" in spike.read_text()
    assert str(spike.relative_to(log.parent)) in result.stderr


def test_json_is_for_machines_and_writes_nothing(log: Path) -> None:
    result = runner.invoke(app, ["diagnose", "run.csv", "--json"])
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert [i["diagnosis"]["incident_class"] for i in told["incidents"]] == [
        "recoverable",
        "divergent",
    ]
    assert not (log.parent / "trimtab-run").exists()


def test_json_with_out_writes_too(log: Path) -> None:
    runner.invoke(app, ["diagnose", "run.csv", "--json", "--out", "here"])
    machine = json.loads((log.parent / "here" / "0002-step-000900" / "incident.json").read_text())
    assert machine["diagnosis"]["incident"]["onset"]["step"] == 900


def test_a_clean_log_exits_0_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clean.jsonl"
    losses = 2.0 + np.tile([0.01, -0.01], 300)
    path.write_text("".join(f'{{"step": {i}, "loss": {x}}}\n' for i, x in enumerate(losses)))
    result = runner.invoke(app, ["diagnose", str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "No incident" in result.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"step,accuracy\n1,0.5\n", "no column is known to be the training loss"),
        (b"\x7fELF\x02\x01\x01\x00", "binary"),
    ],
)
def test_a_log_that_cannot_serve_exits_3_with_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    result = runner.invoke(app, ["diagnose", str(path)])
    assert result.exit_code == 3
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_wrong_call_exits_2() -> None:
    assert runner.invoke(app, ["diagnose"]).exit_code == 2
    assert runner.invoke(app, ["diagnose", "x.csv", "--rules", "folklore"]).exit_code == 2
    assert runner.invoke(app, ["diagnose", "absent.csv"]).exit_code == 3


def test_a_folder_that_cannot_be_written_is_told_and_the_findings_stand(log: Path) -> None:
    (log.parent / "file").write_text("")
    result = runner.invoke(app, ["diagnose", "run.csv", "--out", "file/below"])
    assert result.exit_code == 1
    assert "no post-mortem written" in result.stderr


def test_a_run_directory_is_diagnosed_and_reported_into_itself(tmp_path: Path) -> None:
    root = write_run(troubled_run(), tmp_path / "x1")
    for command, code in (("diagnose", 1), ("report", 0)):
        result = runner.invoke(app, [command, str(root)])
        assert result.exit_code == code, result.output
        spike = root / "trimtab" / "incidents" / "0001-step-000600" / "postmortem.md"
        text = spike.read_text()
        assert "| dtype | bf16 |" in text
        assert "same seed (7)" in text
        spike.unlink()


def test_a_journal_and_a_log_of_the_same_run_are_judged_alike(tmp_path: Path, log: Path) -> None:
    root = write_run(troubled_run(), tmp_path / "x1")
    from_log = json.loads(runner.invoke(app, ["diagnose", str(log), "--json"]).stdout)
    from_run = json.loads(runner.invoke(app, ["diagnose", str(root), "--json"]).stdout)
    for one, other in zip(from_log["incidents"], from_run["incidents"], strict=True):
        assert one["diagnosis"]["incident"] == other["diagnosis"]["incident"]


def test_report_wants_a_run_directory(log: Path) -> None:
    result = runner.invoke(app, ["report", "run.csv"])
    assert result.exit_code == 3
    assert "trimtab diagnose" in result.stderr


def test_the_version() -> None:
    assert runner.invoke(app, ["--version"]).stdout == f"trimtab {__version__}\n"


def test_help_loads_neither_torch_nor_numpy_and_is_quick() -> None:
    script = (
        "import sys\n"
        "from trimtab.cli.main import app\n"
        "try:\n    app(['--help'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'heavy imports for --help'\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The bar is 0.4 s; coverage in the child and a loaded machine may double it.
    assert spent < 0.8


def test_a_reference_shows_what_the_loss_alone_hides(log: Path) -> None:
    healthy = block_of({"loss": falling_loss(900, noise=0.1)})
    moved = healthy.column("loss").values + np.where(np.arange(900) < 600, 0.0, 0.03)
    write_csv(healthy, log.parent / "before.csv")
    write_csv(block_of({"loss": moved}), log.parent / "now.csv")
    assert runner.invoke(app, ["diagnose", "now.csv"]).exit_code == 0
    result = runner.invoke(app, ["diagnose", "now.csv", "--reference", "before.csv", "--json"])
    assert result.exit_code == 1
    (incident,) = json.loads(result.stdout)["incidents"]
    (finding,) = incident["diagnosis"]["incident"]["findings"]
    assert finding["symptom"] == "left its reference"
    assert 601 <= finding["step"] <= 611


def test_a_reference_without_a_common_step_is_told(log: Path) -> None:
    write_csv(block_of({"loss": np.ones(20)}, first_step=9000), log.parent / "other.csv")
    result = runner.invoke(app, ["diagnose", "run.csv", "--reference", "other.csv"])
    assert result.exit_code == 2
    assert "no batch in common" in result.stderr
