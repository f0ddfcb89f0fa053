"""An observer that starts again judges only the records since its judge was saved."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.kit.observing import observe

from trimtab.core.incidents import Incident
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.judge import Judge
from trimtab.observe import judge_state
from trimtab.observe.run_observer import RunObserver


def record(run: RunDirectory, first: int, last: int) -> None:
    """Records of a run with a spike from step 130 on."""
    with JournalWriter(run) as journal:
        for step in range(first, last):
            noise = float(np.random.default_rng(step).normal())
            values = {
                "loss": 3.0 + 0.02 * noise + 4.0 * (130 <= step < 136),
                "grad_norm": 1.0 + 0.05 * noise,
                "clock": 1.7e9 + step,
            }
            journal.append(step, values)


def judge_so_far(run: RunDirectory) -> tuple[Incident, ...]:
    observer = RunObserver(run)
    observer.poll()
    observer.close()
    return observer.incidents


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records in each call of `Judge.update`."""
    seen: list[int] = []
    update = Judge.update

    def counted(self: Judge, block: object) -> object:
        seen.append(len(block))  # type: ignore[arg-type]
        return update(self, block)  # type: ignore[arg-type]

    monkeypatch.setattr(Judge, "update", counted)
    monkeypatch.setattr(judge_state, "SAVE_RECORDS", 100)
    return seen


def test_only_the_records_since_the_save_are_judged_again(
    tmp_path: Path, updates: list[int]
) -> None:
    run = RunDirectory(tmp_path)
    record(run, 0, 150)
    first = judge_so_far(run)
    assert json.loads((run.home / "judge.json").read_text())["judge"]["last_tick"] == 149
    updates.clear()
    record(run, 150, 170)
    assert judge_so_far(run)[0].onset == first[0].onset
    assert sum(updates) == 20


def test_a_run_that_is_resumed_is_judged_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, cut = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "cut")
    record(whole, 0, 400)
    record(cut, 0, 135)  # in the middle of the spike: it is open when the first part ends
    assert observe(cut.root)[0].end is None
    record(cut, 135, 400)
    assert repr(observe(cut.root)) == repr(observe(whole.root))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"version": "', '"version": "9'),
        lambda text: text.replace('"step": 149, "judge"', '"step": 7, "judge"'),
        lambda text: text.replace('"warnings": []', '"warnings": ["not a tick"]'),
    ],
)
def test_a_file_that_cannot_be_used_costs_only_time(
    tmp_path: Path, updates: list[int], damage: object
) -> None:
    run = RunDirectory(tmp_path)
    record(run, 0, 150)
    judge_so_far(run)
    file = run.home / "judge.json"
    text = damage(file.read_text())  # type: ignore[operator]
    assert text != file.read_text()
    file.write_text(text)
    updates.clear()
    record(run, 150, 170)
    found = judge_so_far(run)
    expected = Judge()
    expected.update(read_journal(run).block)
    assert repr(found) == repr(expected.incidents)
    assert found
