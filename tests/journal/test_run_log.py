"""`trimtab.record`: a run directory from any Python, without torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trimtab
from trimtab.core.errors import ConfigError, JournalError
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.run_log import RunLog

STEPS = 200


def losses(bad: int | None = None) -> Any:
    found = 3 + 0.02 * np.random.default_rng(0).normal(size=STEPS)
    if bad is not None:
        found[bad : bad + 20] = 9
    return found


def write(folder: Path, values: Any, *, start: int = 0, **options: Any) -> Any:
    with trimtab.record(folder, observer=False, **options) as run:
        for step, loss in enumerate(values, start):
            run.log(step=step, loss=loss, lr=np.float32(0.1), tokens=np.int64(64), reward=None)
    return read_journal(RunDirectory(folder)).block


def test_what_is_logged_is_recorded_and_judged(tmp_path: Path) -> None:
    found = losses(bad=150)
    block = write(tmp_path, found, facts={"model": "linear", "dtype": "fp32"})
    assert block.step.tolist() == list(range(STEPS))
    assert block.column("loss").values.tolist() == found.tolist()
    assert block.column("tokens").values.tolist() == [64.0] * STEPS
    assert block.column("step_seconds").present.sum() >= STEPS - 10  # the clock may stand still
    assert "reward" not in block.columns
    report = trimtab.diagnose(tmp_path)
    assert report.incidents[0].incident.onset.step == 150
    assert RunDirectory(tmp_path).read_manifest()["model"] == "linear"


def test_a_run_goes_on_where_it_was_and_a_repeated_step_is_another_attempt(tmp_path: Path) -> None:
    write(tmp_path, losses()[:50])
    block = write(tmp_path, losses()[:20], start=40)
    assert block.step.tolist() == [*range(50), *range(40, 60)]
    assert block.attempt.tolist() == [0] * 50 + [1] * 20
    assert [event.kind for event in block.events].count("resume") == 1


def test_nothing_that_is_logged_can_raise_into_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trimtab.record(tmp_path, observer=False) as run:
        run.log(step=0, loss=1.0, name="text", many=np.zeros(3), missing=None)
        run.log(step="three", loss=1.0)  # type: ignore[arg-type]
        run.event("evaluation", loss=np.float64(2.0), what=object())
        run.log(step=1, loss=float("nan"), huge=10**400)
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [
        "trimtab: 'name' is not a number but str",
        "trimtab: 'many' is not a number but ndarray",
        "trimtab: recording failed in run.log; training continues",
        "trimtab: 'huge' is not a number but int",
    ]
    block = read_journal(RunDirectory(tmp_path)).block
    assert block.step.tolist() == [0, 1]
    assert [event.kind for event in block.events] == ["evaluation"]


@pytest.mark.parametrize("name", ["_append", "_end", "_number"])
def test_a_bug_in_it_stops_no_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(RunLog, name, fail)
    run = trimtab.record(tmp_path, observer=False)
    run.log(step=0, loss=1.0)
    run.close()


def test_how_a_run_ended_is_known(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), trimtab.record(tmp_path, observer=False) as run:
        run.log(step=0, loss=1 / 0)
    assert read_journal(RunDirectory(tmp_path)).ended == "raised ZeroDivisionError"


def test_two_programs_cannot_write_one_run(tmp_path: Path) -> None:
    with trimtab.record(tmp_path, observer=False), pytest.raises(JournalError, match="another"):
        trimtab.record(tmp_path, observer=False)


def test_a_fact_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'colour'; known: model"):
        trimtab.record(tmp_path, facts={"colour": 1})


def test_torch_is_not_imported_and_the_observer_judges_meanwhile(tmp_path: Path) -> None:
    program = """
import sys, os, trimtab
os.environ["TRIMTAB_OBSERVER"] = "on"
with trimtab.record(sys.argv[1]) as run:
    for step in range(200):
        run.log(step=step, loss=3.0 + step % 7 / 50 if step != 150 else float("nan"))
print([incident.onset.step for incident in run.incidents], "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[150] False"
    assert "trimtab records this run" in done.stderr
    assert list((tmp_path / "trimtab" / "incidents").glob("*/postmortem.md"))
