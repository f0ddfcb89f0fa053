"""A resumed run judges only the records since its judge was saved, with the same result."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.kit.synthetic import troubled_run
from trimtab.live.host.run_recorder import RunRecorder

from trimtab._version import __version__
from trimtab.core.config import Config
from trimtab.journal import RunDirectory
from trimtab.judge import Judge
from trimtab.live.host import judge_state
from trimtab.live.ranks.exchange import StepNote


def record(run: RunDirectory, first: int, last: int) -> RunRecorder:
    """Records of a run with a spike from step 130 on, closed as if the process was killed."""
    recorder = RunRecorder(run, Config(), {}, first_step=first)
    for step in range(first, last):
        noise = float(np.random.default_rng(step).normal())
        values = {
            "loss": 3.0 + 0.02 * noise + 4.0 * (130 <= step < 136),
            "grad_norm": 1.0 + 0.05 * noise,
        }
        recorder.record(StepNote(step=step, clock=1.7e9 + step), values)
    recorder._judge_pending()
    if recorder._judge_state._writer is not None:
        recorder._judge_state._writer.join()
    recorder.journal.close("killed")
    return recorder


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
    first = record(run, 0, 150)
    saved = json.loads((run.home / "judge.json").read_text())["judge"]["last_tick"] + 1
    assert 100 <= saved <= 150
    updates.clear()
    second = RunRecorder(run, Config(), {}, first_step=150)
    assert sum(updates) == 150 - saved
    assert second.incidents == first.incidents
    assert len(second.incidents) == 1
    second.journal.close("closed")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text.replace('"version": "', '"version": "9'),
        lambda text: text.replace('"last_tick": 1', '"last_tick": 9'),
        lambda text: text.replace('"recent"', '"resent"'),
        lambda text: "[1]",
    ],
)
def test_a_file_that_cannot_be_used_costs_only_time(
    tmp_path: Path,
    updates: list[int],
    damage: object,
) -> None:
    run = RunDirectory(tmp_path)
    first = record(run, 0, 150)
    file = run.home / "judge.json"
    text = damage(file.read_text())  # type: ignore[operator]
    assert text != file.read_text()
    file.write_text(text)
    updates.clear()
    second = RunRecorder(run, Config(), {}, first_step=150)
    assert sum(updates) == 150
    assert second.incidents == first.incidents
    second.journal.close("closed")


def test_a_state_that_loads_and_fails_later_costs_only_time(tmp_path: Path) -> None:
    run, block = RunDirectory(tmp_path), troubled_run()
    saved, expected, judge = Judge(), Judge(), Judge()
    saved.update(block[:500])
    state = saved.state_dict()
    state["tracker"]["warnings"] = ["not a tick"]
    run.home.mkdir(parents=True)
    (run.home / "judge.json").write_text(json.dumps({"version": __version__, "judge": state}))
    judge_state.JudgeState(run, judge).resume(block)
    expected.update(block)
    assert repr(judge.incidents) == repr(expected.incidents)  # NaN is not equal to itself
    assert judge.incidents
