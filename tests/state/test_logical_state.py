"""Two checkpoints are the same whatever wrote them, and every difference has its name."""

import copy
import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from typer.testing import CliRunner

import trimtab
from trimtab.cli.main import app
from trimtab.core.errors import RestoreError
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.state.checkpoints.logical_state import LogicalState

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")

State = dict[str, Any]


def build(*, trained: bool = True) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A model with uneven shards, parameters of equal content, a bf16 layer and a buffer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 37), nn.BatchNorm1d(37), nn.LayerNorm(37), nn.Linear(37, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in range(3 if trained else 0):
        model(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model, optimizer, schedule


def named() -> State:
    """The state as torch.distributed.checkpoint saves it, with moments by name."""
    model, optimizer, schedule = build()
    weights, moments = get_state_dict(model, optimizer)
    return copy.deepcopy(
        {
            "model": weights,
            "optimizer": moments,
            "scheduler": schedule.state_dict(),
            "step": 3,
            "data_position": 12,
            "rng_state": torch.get_rng_state(),
        }
    )


def write_sharded(rank: int, folder: Path) -> None:
    saved = named()
    model, _, _ = build(trained=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    given = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
    set_state_dict(model, optimizer, **given, options=StateDictOptions(full_state_dict=True))
    saved["model"], saved["optimizer"] = get_state_dict(model, optimizer)
    save(saved, checkpoint_id=folder)


def write_dcp(folder: Path) -> Path:
    save(named(), checkpoint_id=folder, no_dist=True)
    return folder


def write_torch(path: Path) -> Path:
    """As most loops do: the optimizer numbers its moments."""
    model, optimizer, schedule = build()
    state = {"model_state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    more = {"lr_scheduler": schedule.state_dict(), "global_step": 3, "data_position": 12}
    torch.save({**state, **more}, path)
    return path


def write_folder(folder: Path) -> Path:
    """As HF's Trainer does: weights in safetensors, the rest by torch.save."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    model, optimizer, schedule = build()
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(schedule.state_dict(), folder / "scheduler.pt")
    torch.save({"data_position": 12}, folder / "data.pt")
    torch.save(torch.get_rng_state(), folder / "rng_state.pth")
    (folder / "training_args.bin").write_bytes(pickle.dumps(print))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
    return folder


def write_universal(folder: Path) -> Path:
    """As DeepSpeed's `ds_to_universal`: a folder for each parameter, a file for each part of it."""
    state = named()
    for name, weight in state["model"].items():
        parts = {"fp32": weight, **state["optimizer"]["state"].get(name, {})}
        place = folder / "zero" / name
        place.mkdir(parents=True)
        for key, value in parts.items():
            torch.save({"param": value} if key != "step" else value, place / f"{key}.pt")
    return folder


WRITERS: list[Callable[[Path], Path]] = [write_dcp, write_torch, write_folder]


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_number_of_ranks_makes_no_difference(world: int, tmp_path: Path) -> None:
    run_ranks(write_sharded, world, tmp_path / "sharded")
    sharded = LogicalState.read(tmp_path / "sharded")
    assert sharded.differences(LogicalState.read(write_dcp(tmp_path / "whole"))) == {}
    assert len(sharded.entries) == 51


def test_the_format_makes_no_difference(tmp_path: Path) -> None:
    states = [LogicalState.read(write(tmp_path / f"{n}.pt")) for n, write in enumerate(WRITERS)]
    assert [one.differences(other) for one in states for other in states] == [{}] * 9
    universal = LogicalState.read(write_universal(tmp_path / "universal"))
    assert {name.partition(".")[0] for name in states[0].differences(universal)} == {
        *("options", "schedule", "step", "data_position")
    }


def edit(key: str, change: Callable[[Any], Any], *path: Any) -> Callable[[State], str]:
    """Return what changes one entry of a state, and the name that it is to be reported by."""

    def apply(state: State) -> str:
        owner: Any = state
        for part in path[:-1]:
            owner = owner[part]
        found = change(owner[path[-1]])
        if found is None:
            del owner[path[-1]]
        else:
            owner[path[-1]] = found
        return key

    return apply


def flip(tensor: torch.Tensor) -> torch.Tensor:
    """Flip the lowest bit of one element."""
    whole = tensor.clone()
    whole.view(torch.int32).reshape(-1)[-1] ^= 1
    return whole


W, S = ("model",), ("optimizer", "state")
PLANTED = [
    edit("weights.0.weight", flip, *W, "0.weight"),
    edit("weights.0.weight", lambda t: t.reshape(16, 37), *W, "0.weight"),
    edit("weights.3.weight", lambda t: t.bfloat16(), *W, "3.weight"),
    edit("weights.3.weight", lambda t: t.roll(1, 0), *W, "3.weight"),
    edit("weights.3.bias", lambda t: t * 1.0000001, *W, "3.bias"),
    edit("weights.2.bias", lambda t: -t, *W, "2.bias"),
    edit("weights.1.running_var", flip, *W, "1.running_var"),
    edit("weights.1.num_batches_tracked", lambda t: t + 1, *W, "1.num_batches_tracked"),
    edit("weights.2.weight", lambda t: None, *W, "2.weight"),
    edit("moments.0.weight.exp_avg", torch.zeros_like, *S, "0.weight", "exp_avg"),
    edit("moments.0.bias.exp_avg_sq", flip, *S, "0.bias", "exp_avg_sq"),
    edit("moments.3.weight.exp_avg", lambda t: None, *S, "3.weight", "exp_avg"),
    edit("moments.3.bias.exp_avg", lambda t: t.double(), *S, "3.bias", "exp_avg"),
    edit("moments.3.bias.step", lambda t: t - 1, *S, "3.bias", "step"),
    edit("options.0.lr", lambda v: v * 0.5, "optimizer", "param_groups", 0, "lr"),
    edit("options.0.betas", lambda v: (0.9, 0.95), "optimizer", "param_groups", 0, "betas"),
    edit("schedule.last_epoch", lambda v: 0, "scheduler", "last_epoch"),
    edit("schedule.gamma", lambda v: None, "scheduler", "gamma"),
    edit("step", lambda v: 4, "step"),
    edit("data_position", lambda v: v + 1, "data_position"),
]


def test_every_planted_difference_is_named(tmp_path: Path) -> None:
    # Beside one whose moments are numbered, too: they are found by their content.
    states = [
        LogicalState.read(write(tmp_path / write.__name__)) for write in (write_torch, write_dcp)
    ]
    for plant in PLANTED:
        state = named()
        name = plant(state)
        torch.save(state, tmp_path / "changed.pt")
        changed = LogicalState.read(tmp_path / "changed.pt")
        for sound in states:
            assert list(changed.differences(sound)) == [name]
            assert list(sound.differences(changed)) == [name]


def test_the_state_of_a_run_is_the_same_after_a_resume(tmp_path: Path) -> None:
    for run in ("one", "two"):
        model, optimizer, schedule = build()
        checkpoints = trimtab.Checkpoints(
            model, optimizer, scheduler=schedule, run_dir=tmp_path / run
        )
        checkpoints.save(3)
    folders = [tmp_path / run / "trimtab/checkpoints/step-00000003" for run in ("one", "two")]
    result = CliRunner().invoke(app, ["checkpoints", "same", *map(str, folders)])
    assert (result.exit_code, "the same: 51 and 51 entries" in result.output) == (0, True)
    checkpoints.save(4)
    newer = folders[1].with_name("step-00000004")
    command = ["checkpoints", "same", str(folders[0]), str(newer)]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.output.splitlines()[0]) == (1, "step: 3 / 4")
    assert CliRunner().invoke(app, [*command, "--weights"]).exit_code == 0


def test_memory_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    weights = {f"layers.{n}.weight": torch.full((2**20,), float(n)) for n in range(16)}  # 64 MiB
    save({"model": weights}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    pytest.importorskip("safetensors.torch").save_file(weights, tmp_path / "x.safetensors")
    del weights
    for name in ("dcp", "x.safetensors"):
        tracemalloc.start()  # of what Python reads; torch's copy of a tensor comes beside it
        LogicalState.read(tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * 2**22  # three copies of 4 MiB


class Planted:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "planted")
    torch.save({"model": {"w": torch.ones(2)}, "x": planted}, tmp_path / "x.pt")
    folder = write_dcp(tmp_path / "dcp")
    (folder / ".metadata").write_bytes(pickle.dumps(planted))
    for path in (tmp_path / "x.pt", folder):
        with pytest.raises(RestoreError, match=r"cannot be read without|names posix.mkdir"):
            LogicalState.read(path)
    assert not (tmp_path / "planted").exists()


def test_no_file_outside_is_read_and_damage_is_said(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "dcp")
    data = folder / "__0_0.distcp"
    (tmp_path / "outside").write_bytes(data.read_bytes())
    metadata = FileSystemReader(folder).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = "../outside"
    whole = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(RestoreError, match="not a name inside its folder"):
        LogicalState.read(folder)
    (folder / ".metadata").write_bytes(whole)
    data.write_bytes(data.read_bytes()[:2000])
    with pytest.raises(RestoreError, match="shorter than what it should hold"):
        LogicalState.read(folder)
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 20)
    result = CliRunner().invoke(app, ["checkpoints", "same", str(folder), str(tmp_path)])
    assert result.exit_code == 3
    (tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    with pytest.raises(RestoreError, match="ds_to_universal"):
        LogicalState.read(tmp_path)


def test_a_pair_of_which_nothing_is_compared_or_a_name_means_two_things_is_not_the_same(
    tmp_path: Path,
) -> None:
    ones, twos = torch.ones(4), torch.full((4,), 2.0)
    moments = {"optimizer": {"state": {0: {"exp_avg": ones}}, "param_groups": []}}
    wrapped = {"model": {"module.w": ones, "w": twos}}
    both = {"model": {"w": ones}, "state_dict": {"w": twos}}
    huge = {"model": {"w": torch.ones(1).expand(2**30)}}
    for content, said in (
        (moments, "holds weights"),
        (wrapped, "two different entries for weights.w"),
        (both, "two different entries for weights.w"),
        (huge, "of which 4 are stored"),
    ):
        torch.save(content, path := tmp_path / "x.pt")
        result = CliRunner().invoke(app, ["checkpoints", "same", str(path), str(path), "--weights"])
        assert (result.exit_code, said in result.output.replace("\n", " ")) == (3, True)
