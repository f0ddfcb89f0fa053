"""Checkpoints are complete or invisible, and damage is always noticed before anything is opened."""

import os
import random
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.damage import damage, files_of
from torch import nn

from trimtab.core.errors import RestoreError
from trimtab.journal.checkpoints.index import INDEX, CheckpointEntry, Verdict
from trimtab.journal.checkpoints.manifest import CheckpointFacts
from trimtab.state.checkpoints.content import DcpCheckpointer
from trimtab.state.checkpoints.store import CheckpointStore


def open_store(folder: Path, keep: int = 3) -> CheckpointStore:
    return CheckpointStore(folder, DcpCheckpointer(), keep=keep)


def facts(step: int) -> CheckpointFacts:
    return CheckpointFacts(step=step, data_position=4 * step, attempt=0, world=1, num_bytes=0)


def content(value: float) -> dict[str, Any]:
    model = nn.Linear(64, 32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return {"model": model.state_dict(), "step": int(value)}


def save_three(folder: Path) -> CheckpointStore:
    store = open_store(folder)
    for step in (10, 20, 30):
        store.save(facts(step), content(step))
    return store


def loaded_value(store: CheckpointStore) -> float:
    """Load the best checkpoint that is undamaged."""
    entry = next(e for e in store.index.candidates() if not store.verify(e))
    state = content(-1.0)
    store.load(entry, state)
    values = state["model"]["weight"]
    assert (values == values[0, 0]).all()
    assert state["step"] == values[0, 0] == entry.step
    return float(values[0, 0])


def test_the_newest_checkpoint_is_loaded_and_one_in_doubt_only_if_there_is_no_other(
    tmp_path: Path,
) -> None:
    store = save_three(tmp_path)
    assert loaded_value(store) == 30.0
    assert [entry.step for entry in store.index.candidates(before=25)] == [20, 10]
    newest = store.index.entries[-1]
    doubt = CheckpointEntry(folder=newest.folder, facts=newest.facts, in_doubt=True)
    store.index.update([doubt])
    assert loaded_value(open_store(tmp_path)) == 20.0


@pytest.mark.parametrize("seed", some_of(range(200), *range(6)))
def test_damage_at_any_place_is_noticed_and_an_older_state_is_used(
    tmp_path: Path, seed: int
) -> None:
    store = save_three(tmp_path)
    dice = random.Random(seed)
    newest = store.path(store.index.entries[-1])
    damage(dice.choice(files_of(newest)), dice)
    assert loaded_value(open_store(tmp_path)) == 20.0
    assert open_store(tmp_path).index.entries[-1].verdict is Verdict.BAD


@pytest.mark.parametrize("seed", some_of(range(12), 0, 1, 2, 3))
def test_a_damaged_index_is_made_again_from_the_folders(tmp_path: Path, seed: int) -> None:
    save_three(tmp_path)
    dice = random.Random(seed)
    damage(tmp_path / INDEX, dice)
    store = open_store(tmp_path)
    assert [entry.step for entry in store.index.entries] == [10, 20, 30]
    assert loaded_value(store) == 30.0


def test_a_checkpoint_that_was_committed_but_not_listed_is_found(tmp_path: Path) -> None:
    save_three(tmp_path)
    before = (tmp_path / INDEX).read_bytes()
    open_store(tmp_path).save(facts(40), content(40))
    (tmp_path / INDEX).write_bytes(before)  # as if killed between the rename and the index
    assert loaded_value(open_store(tmp_path)) == 40.0


def test_one_that_was_no_longer_listed_but_not_yet_deleted_is_not_taken_for_the_newest(
    tmp_path: Path,
) -> None:
    store = save_three(tmp_path)
    oldest, *others = store.index.entries
    store.index._write(others)  # as if killed between the index and the deletion
    store = open_store(tmp_path)
    assert [entry.step for entry in store.index.entries] == [10, 20, 30]
    assert loaded_value(store) == 30.0
    assert store.index.entries[0].folder == oldest.folder


def test_the_same_step_saved_again_does_not_touch_the_first_one(tmp_path: Path) -> None:
    store = save_three(tmp_path)
    store.save(facts(30), content(30))
    folders = [entry.folder for entry in store.index.entries]
    assert folders[-2:] == ["step-00000030", "step-00000030-2"]
    assert loaded_value(store) == 30.0


def test_nothing_damaged_is_opened(tmp_path: Path) -> None:
    class NeverLoads(DcpCheckpointer):
        def load(self, folder: Path, state: dict[str, Any]) -> None:
            raise AssertionError("a damaged checkpoint was opened")

    save_three(tmp_path)
    store = CheckpointStore(tmp_path, NeverLoads())
    for entry in store.index.entries:
        (store.path(entry) / ".metadata").unlink()
    with pytest.raises(StopIteration):
        loaded_value(store)


class FullDisk(DcpCheckpointer):
    def save(self, folder: Path, state: dict[str, Any]) -> None:
        super().save(folder, state)
        raise OSError(28, "No space left on device")


def test_a_save_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    store = save_three(tmp_path)
    failing = CheckpointStore(tmp_path, FullDisk())
    with pytest.raises(RestoreError, match="No space left"):
        failing.save(facts(40), content(40))
    assert not list(tmp_path.rglob("*.partial"))
    assert loaded_value(store) == 30.0


def test_a_background_save_counts_only_once_it_is_complete(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    state = content(10)
    store.save(facts(10), state, background=True)
    state["model"]["weight"].fill_(-7.0)  # training goes on
    store.wait()
    assert [entry.step for entry in store.index.entries] == [10]
    assert loaded_value(store) == 10.0


def test_a_background_save_that_fails_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class FailsLater(DcpCheckpointer):
        def save_in_background(self, folder: Path, state: dict[str, Any]) -> Any:
            future = super().save_in_background(folder / "missing" / "deeper", state)
            future.result()
            raise OSError(28, "No space left on device")

    store = CheckpointStore(tmp_path, FailsLater())
    store.save(facts(10), content(10), background=True)
    store.wait()
    assert caplog.text.count("could not be saved") == 1
    assert not store.index.entries
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("seed", some_of(range(4), 0, 1))
def test_a_kill_at_any_moment_leaves_a_state_that_loads(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    last = 0
    for _ in range(3):
        child = get_context("fork").Process(target=save_for_ever, args=(tmp_path, seed % 2 == 1))
        child.start()
        while not open_store(tmp_path).index.entries:
            time.sleep(0.01)
        time.sleep(dice.random() * 0.2)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        store = open_store(tmp_path)
        newest = store.index.entries[-1].step
        assert loaded_value(store) == newest
        assert newest >= last  # what was committed before stays
        last = newest


def save_for_ever(folder: Path, background: bool) -> None:
    torch.set_num_threads(1)
    store = open_store(folder)
    step = store.index.entries[-1].step if store.index.entries else 0
    while True:
        step += 1
        store.save(facts(step), content(step), background=background)


def test_a_failure_of_dcp_is_an_ordinary_exception(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    folder, state = tmp_path / "file" / "step", {"weight": torch.zeros(2)}
    checkpointer = DcpCheckpointer()
    with pytest.raises(RestoreError, match="rank 0: NotADirectoryError"):
        checkpointer.save(folder, state)
    with pytest.raises(RestoreError, match="rank 0: NotADirectoryError"):
        checkpointer.save_in_background(folder, state).result()
    with pytest.raises(RestoreError, match="rank 0"):
        checkpointer.load(tmp_path / "nothing", state)
