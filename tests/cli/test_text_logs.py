"""The log of a trainer, as its users have it: `trimtab diagnose train.log`."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.kit import forked
from typer.testing import CliRunner

from trimtab.cli.main import app

runner = CliRunner()

LINE = (
    " iteration {:8d}/    5000 | consumed samples: {:12d} | learning rate: 1.000000E-04 |{}"
    " grad norm: {:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a Megatron-LM log whose loss is NaN from step 400 on, which it does not show."""
    path = tmp_path / "train.log"
    losses = [
        f" lm loss: {3 + 0.01 * (step % 2):.6E} |" if step < 400 else "" for step in range(450)
    ]
    path.write_text("".join(LINE.format(n, n, loss, 1.0) for n, loss in enumerate(losses)))
    return path


def test_a_nan_that_the_log_hides_is_found(log: Path) -> None:
    result = runner.invoke(app, ["diagnose", str(log), "--json"])
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    [incident] = printed["incidents"]
    assert incident["incident"]["onset"]["step"] == 400
    wrong = runner.invoke(app, ["diagnose", str(log), "--format", "mlperf"])
    assert wrong.exit_code == 3
    assert "holds no record as an MLPerf submission prints them" in wrong.stderr


PASTED = "".join(f"step {step}: loss {9 - step / 50}\n" for step in range(1, 200))


def test_pasted_text_and_what_is_known_of_the_run() -> None:
    arguments = ["diagnose", "-", "--set", "dtype=bf16", "--set", "seed=7", "--json"]
    result = runner.invoke(app, arguments, input=PASTED)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["source"] == "standard input"


def test_a_pipe_that_stays_open_is_read_until_ctrl_c() -> None:
    pipe = subprocess.PIPE
    command = ["-m", "trimtab.cli", "diagnose", "-", "--json"]
    with forked.Forked(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(PASTED)
        process.stdin.flush()
        assert "Ctrl-C reports what has come so far" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.read())["records"] == 199
