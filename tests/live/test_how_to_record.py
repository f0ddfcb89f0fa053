"""What a report advises to record is recorded by the call that it names."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kit.tiny import batches, journal_of, loss_of
from tests.kit.user_loop import column, watching

from trimtab.explain.causes.conclusions import OF_POLICY, RECORDED_BY, how_to_record


def train(run_dir: Path, mode: str, record: Callable[..., Any]) -> set[str]:
    """Train with a call in each step; return the signals of the journal."""
    with watching(run_dir, mode) as run:
        for batch in batches(24):
            loss = loss_of(run.model, batch)
            policy = dict.fromkeys(OF_POLICY, 0.5)
            record(run.guard, loss=loss, batch=batch, count=batch.numel(), **policy)
            loss.backward()
            run.guard.clip_grad_norm_(1.0)
            run.optimizer.step()
            run.optimizer.zero_grad()
    block = journal_of(run_dir)
    return {name for name, column in block.columns.items() if column.recorded}


@pytest.mark.parametrize("mode", ["observe", "recover"])
def test_what_is_advised_records_the_signal(mode: str, tmp_path: Path) -> None:
    calls = {
        name: re.findall(r"`(guard\.record\(.*?\))`", text) for name, text in RECORDED_BY.items()
    }
    advised = {name: found[0] for name, found in calls.items() if found}
    of_batch = {"fingerprint", "token_rarity", "unique_token_share", "tokens"}
    assert of_batch | set(OF_POLICY) == advised.keys()
    for number, call in enumerate(sorted(set(advised.values()))):

        def record(guard: Any, call: str = call, **names: Any) -> None:
            eval(call, {"guard": guard, **names})  # the call as the report prints it

        recorded = train(tmp_path / str(number), mode, record)
        wanted = {name for name, said in advised.items() if said == call}
        assert wanted <= recorded, call
        assert "grad_norm" in recorded  # by guard.clip_grad_norm_, as is advised for it
    assert "clip_grad_norm_" in how_to_record("grad_norm")


def test_batches_of_a_step_are_one_measurement_and_those_of_guard_steps_count_once(
    tmp_path: Path,
) -> None:
    data = batches(12)
    runs = {}
    for name in ("record", "steps"):
        with watching(tmp_path / name) as run:
            pairs = zip(data[::2], data[1::2], strict=True)
            for step in run.guard.steps(data, accumulate=2) if name == "steps" else pairs:
                for batch in step:
                    loss = loss_of(run.model, batch)
                    run.guard.record(loss=loss, batch=batch)
                    loss.backward()
                run.optimizer.step()
                run.optimizer.zero_grad()
        runs[name] = [column(tmp_path / name, s) for s in ("fingerprint", "token_rarity")]
    assert runs["record"] == runs["steps"]
