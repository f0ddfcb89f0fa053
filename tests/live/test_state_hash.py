"""Checksums of weights and moments: equal runs, the first difference, replicas out of sync."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import some_of
from tests.kit.tiny import EVERY_10, batches, journal_of, make_model
from tests.kit.user_loop import watching
from tests.live.test_ranks import ENGINES
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.core.block import Record
from trimtab.core.findings import Finding
from trimtab.core.signals import HASHES, REPLICAS_DIFFER, ROLES
from trimtab.detect.state.hard_limits import MIN_EQUAL, Replicas
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.state.host_copy import local

STEPS = 42


def run(
    folder: Path, *, changes: int | None = None, wrap: str | None = None, seed: int = 1
) -> None:
    """Train; `changes` is the step at which the lowest bit of one weight is another one."""
    model = ENGINES[wrap](make_model()) if wrap else make_model()
    with watching(folder, model=model, config=EVERY_10) as run:
        for step, batch in enumerate(batches(STEPS, seed)):
            if step == changes:
                weight = local(dict(model.named_parameters())[_last(model)].detach())
                weight.view(torch.int32).view(-1)[0] ^= 1
            run.step(batch)


def _last(model: torch.nn.Module) -> str:
    return next(name for name, _ in model.named_parameters() if "head" in name)


def test_compare_names_the_first_step_at_which_the_bits_differ(tmp_path: Path) -> None:
    for name, changes in (("one", None), ("same", None), ("other", 20)):
        run(tmp_path / name, changes=changes)
    recorded = [n for n in HASHES if journal_of(tmp_path / "one").column(n).present.any()]
    assert "weight_hash/head" in recorded
    assert "moment_hash/head" in recorded
    same, other = (
        CliRunner().invoke(app, ["compare", str(tmp_path / "one"), str(tmp_path / name)]).stdout
        for name in ("same", "other")
    )
    assert "equal, bit for bit, at all 5 common steps" in same
    assert "the bits differ from step 20 on (" in other
    assert "weight of head" in other
    assert "equal up to step 10" in other


def replica(rank: int, engine: str, folder: Path) -> None:
    run(folder, wrap=engine, changes=15 if rank == dist.get_world_size() - 1 else None, seed=rank)


@pytest.mark.parametrize(("engine", "world"), some_of([("ddp", 2), ("hsdp", 4)], ("ddp", 2)))
def test_a_replica_with_one_other_bit_is_found(engine: str, world: int, tmp_path: Path) -> None:
    run_ranks(replica, world, engine, tmp_path)
    column = journal_of(tmp_path).column(REPLICAS_DIFFER)
    found = column.values[column.present]
    assert len(found) == 5
    assert not found[:2].any()
    assert (found[2:].astype(np.int64) >> ROLES.index("head") & 1).all()


def test_without_replicas_nothing_is_compared(tmp_path: Path) -> None:
    run_ranks(replica, 2, "fsdp2", tmp_path)
    block = journal_of(tmp_path)
    assert not block.column(REPLICAS_DIFFER).present.any()
    assert block.column("weight_hash/head").present.sum() == 5


def judged(values: list[float]) -> list[list[Finding]]:
    detector = Replicas()
    records = [
        Record(step=step, tick=step, signals={REPLICAS_DIFFER: value})
        for step, value in enumerate(values)
    ]
    return [detector.update(record) for record in records]


def test_replicas_that_were_equal_raise_one_alarm_and_local_sgd_none() -> None:
    found = judged([0.0] * MIN_EQUAL + [2.0] * 5)
    assert [len(findings) for findings in found] == [0] * (MIN_EQUAL + 1) + [1] + [0] * 3
    (finding,) = found[MIN_EQUAL + 1]
    assert finding.explanation is not None
    assert finding.explanation.cause_id == "F15"
    assert "(head)" in finding.explanation.remedy
    assert not any(judged(([0.0] * 9 + [2.0] * 9) * 5))
