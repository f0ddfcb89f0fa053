"""`trimtab lab x1`: the run, and the commands that it prints at the end, as they are printed."""

import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from typer.testing import CliRunner, Result

from trimtab.cli.main import app
from trimtab.lab.scenarios import scenario as scenarios
from trimtab.lab.scenarios import suite as suites

RUN = ("lab", "x1", "--fault", "F02", "--at", "30", "--steps", "40", "--checkpoint-seconds", "0.1")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a corpus that is tokenized in a second."""
    monkeypatch.setattr(scenarios, "CORPUS_BYTES", 400_000)
    monkeypatch.setattr(suites, "CORPUS_BYTES", 400_000)


def call(cache: Path, *words: str) -> Result:
    runner = CliRunner(env={"XDG_CACHE_HOME": str(cache), "COLUMNS": "160", "CI": ""})
    return runner.invoke(app, list(words))


def test_the_printed_commands_run_and_the_recovered_run_is_the_twin(
    cache: Path, tmp_path: Path
) -> None:
    ran = call(cache, *RUN, "--out", str(tmp_path))
    assert ran.exit_code == 0, ran.output
    assert "step 10 of 40, loss " in ran.stderr
    printed = [shlex.split(line) for line in ran.stdout.splitlines() if line.startswith("  ")]
    results = [call(cache, *words[1:]) for words in printed]
    assert [result.exit_code for result in results] == [1, 0, 0, 0, 0, 0], [
        result.output for result in results
    ]
    diagnosed, saved, recovered, beside, verified, shown = (one.output for one in results)
    assert "gradient norm spike" in diagnosed
    assert "verified" in saved
    assert "trained on from step" in recovered
    assert "loss differs by 0 on average" in beside
    assert "ok    loss at most" in verified
    assert "cause   F02          F02    yes" in shown

    # Another fault does not replace a run that did not end.
    (tmp_path / "F02-severe-seed0-0.15M-at30" / "truth.json").unlink()
    again = call(cache, *RUN, "--out", str(tmp_path))
    assert again.exit_code == 2
    assert "--recover 40" in again.output


def test_an_onset_outside_of_the_run_is_refused(cache: Path, tmp_path: Path) -> None:
    refused = call(cache, "lab", "x1", "--fault", "F02", "--at", "600", "--out", str(tmp_path))
    assert refused.exit_code == 2
    assert "the onset must be in 1 to 599" in refused.output
