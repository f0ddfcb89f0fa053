"""Checkpoints are complete or invisible, damage is always noticed, the last proven one stays."""

import os
import random
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trimtab.core.errors import RestoreError
from trimtab.restore.checkpoints.dcp import DcpCheckpointer
from trimtab.restore.checkpoints.index import INDEX, CheckpointIndex, Verdict
from trimtab.restore.checkpoints.store import CheckpointStore


def open_store(folder: Path) -> CheckpointStore:
    folder.mkdir(exist_ok=True)
    return CheckpointStore(folder, DcpCheckpointer(), CheckpointIndex(folder / INDEX))


def content(value: float) -> dict[str, Any]:
    model = nn.Linear(64, 32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return {"model": model.state_dict(), "step": int(value)}


def save_three(folder: Path) -> CheckpointStore:
    store = open_store(folder)
    for step in (10, 20, 30):
        store.save(step, content(step), data_position=4 * step)
    return store


def loaded_value(store: CheckpointStore, **options: Any) -> float:
    state = content(-1.0)
    store.load(state, **options)
    values = state["model"]["weight"]
    assert (values == values[0, 0]).all()
    assert state["step"] == values[0, 0]
    return float(values[0, 0])


def test_the_newest_checkpoint_is_loaded_and_a_proven_one_is_preferred(tmp_path: Path) -> None:
    store = save_three(tmp_path / "run")
    assert loaded_value(store) == 30.0
    assert loaded_value(store, before=25) == 20.0
    store.index.healthy_until(115)
    assert [entry.verdict for entry in store.index.entries] == ["proven", "unproven", "unproven"]
    assert loaded_value(open_store(tmp_path / "run")) == 10.0


def test_checkpoints_after_the_onset_of_harm_are_bad(tmp_path: Path) -> None:
    store = save_three(tmp_path / "run")
    store.index.hurt_since(15, "a NaN was written into the weights at step 15")
    assert loaded_value(store) == 10.0
    assert "NaN" in store.index.entries[-1].reason


def test_retention_never_deletes_the_last_proven_checkpoint(tmp_path: Path) -> None:
    store = save_three(tmp_path / "run")
    store.index.healthy_until(115)
    deleted = store.keep(1)
    assert [entry.step for entry in deleted] == [20]
    assert [entry.step for entry in store.index.entries] == [10, 30]
    assert not (tmp_path / "run" / "step-00000020").exists()


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200))]
)
def test_damage_at_any_place_is_noticed_and_an_older_state_is_used(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    store = save_three(folder)
    dice = random.Random(seed)
    newest = folder / store.index.entries[-1].folder
    victim = dice.choice([path for path in sorted(newest.rglob("*")) if path.is_file()])
    damage(victim, dice)
    assert loaded_value(open_store(folder)) == 20.0
    assert open_store(folder).index.entries[-1].verdict is Verdict.BAD


def damage(path: Path, dice: random.Random) -> None:
    """Flip a bit, cut the file short, lengthen it, or remove it."""
    data = bytearray(path.read_bytes())
    match dice.choice(["flip", "flip", "cut", "lengthen", "remove"]):
        case "flip":
            place = dice.randrange(len(data))
            data[place] ^= 1 << dice.randrange(8)
            path.write_bytes(bytes(data))
        case "cut":
            path.write_bytes(bytes(data[: dice.randrange(len(data))]))
        case "lengthen":
            path.write_bytes(bytes(data) + b"x")
        case "remove":
            path.unlink()


def test_nothing_loadable_is_an_error_that_says_why(tmp_path: Path) -> None:
    store = open_store(tmp_path / "run")
    with pytest.raises(RestoreError, match="no checkpoint that is not bad"):
        store.load(content(0.0))
    store.save(10, content(10))
    for path in (tmp_path / "run" / "step-00000010").rglob("*.distcp"):
        path.unlink()
    with pytest.raises(RestoreError, match="cannot be read"):
        store.load(content(0.0))


@pytest.mark.parametrize("seed", range(8))
def test_a_kill_at_any_moment_leaves_a_state_that_loads(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "run"
    dice = random.Random(seed)
    lost = 0
    for _ in range(3):
        child = get_context("fork").Process(target=save_for_ever, args=(folder,))
        child.start()
        while len(open_store(folder).index.entries) < 2:
            time.sleep(0.01)
        time.sleep(dice.random() * 0.1)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        store = open_store(folder)
        value = loaded_value(store)
        newest = store.index.entries[-1].step
        assert value == newest
        assert newest >= lost  # what was committed before stays
        lost = newest


def save_for_ever(folder: Path) -> None:
    torch.set_num_threads(1)
    store = open_store(folder)
    step = store.index.entries[-1].step if store.index.entries else 0
    while True:
        step += 1
        store.save(step, content(step))
        store.keep(3)
