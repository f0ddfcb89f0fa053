"""What a report advises to record is recorded by the call that it names."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, loss_of, make_model

import trimtab
from trimtab.explain.causes.conclusions import OF_POLICY, RECORDED_BY, how_to_record
from trimtab.journal import RunDirectory, read_journal


def train(run: Path, mode: str, record: Callable[..., Any], **options: Any) -> set[str]:
    """Train with a call in each step; return the signals of the journal."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trimtab.watch(model, optimizer, run_dir=run, mode=mode, **options) as guard:
        for batch in batches(24):
            loss = loss_of(model, batch)
            policy = dict.fromkeys(OF_POLICY, 0.5)
            record(guard, loss=loss, batch=batch, count=batch.numel(), **policy)
            loss.backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
    block = read_journal(RunDirectory(run)).block
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
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = batches(12)
    runs = {}
    for name in ("record", "steps"):
        with trimtab.watch(model, optimizer, run_dir=tmp_path / name, observer=False) as guard:
            steps = (
                guard.steps(data, accumulate=2)
                if name == "steps"
                else zip(data[::2], data[1::2], strict=True)
            )
            for step in steps:
                for batch in step:
                    loss = loss_of(model, batch)
                    guard.record(loss=loss, batch=batch)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        block = read_journal(RunDirectory(tmp_path / name)).block
        runs[name] = {s: block.column(s).values.tolist() for s in ("fingerprint", "token_rarity")}
    assert runs["record"] == runs["steps"]
