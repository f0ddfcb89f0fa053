"""Runs of the lab: loaded from their folders, scored against their truth."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.detect.contenders import ArrayRule
from benchmarks.detect.suite import read_suite
from benchmarks.detect.suite_scores import measure_suite, suite_tables

from trimtab.core.errors import LabError
from trimtab.journal import JournalWriter, RunDirectory


def write_run(folder: Path, name: str, losses: list[float], *, onset: int | None) -> None:
    run = RunDirectory(folder / name)
    with JournalWriter(run) as writer:
        for step, loss in enumerate(losses):
            writer.append(step, {"loss": loss})
    truth = {
        "kind": "clean" if onset is None else "F05",
        "grade": None if onset is None else "severe",
        "setting": {"split": "held-out"},
        "is_fault": onset is not None,
        "onset": onset,
        "twin": None if onset is None else "clean",
    }
    (folder / name / "truth.json").write_text(json.dumps(truth))


def test_a_suite_is_read_and_scored(tmp_path: Path) -> None:
    write_run(tmp_path, "clean", [1, 1, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1], onset=None)
    write_run(tmp_path, "F05-severe-seed2", [1, 1, 9, 9, 1, 1, 1, 1, 1, 9, 9, 1], onset=7)
    write_run(tmp_path, "F05-severe-seed3", [1, 1, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1], onset=7)
    runs = read_suite(tmp_path)
    assert [(run.name, run.onset, len(run.block)) for run in runs] == [
        ("F05-severe-seed2", 7, 12),
        ("F05-severe-seed3", 7, 12),
        ("clean", None, 12),
    ]

    over = ArrayRule(name="over 5", rule=lambda loss, _: np.asarray(loss > 5), memory=0)
    result = measure_suite(over, runs)
    assert result.num_false == {"held-out": 1}
    assert result.num_points == {"held-out": 12}
    assert [fault.delay for fault in result.faults["held-out"]] == [2, None]
    assert not any(fault.by_chance for fault in result.faults["held-out"])
    text = suite_tables([result], runs)
    assert "| over 5 | 1; 833.33 " in text
    assert "1 of 2 (0 %)" in text


def test_a_folder_without_runs_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="trimtab lab suite"):
        read_suite(tmp_path)
