"""A hung rank, and a killed one, end in a relaunch that resumes: by trimtab run or by torchrun."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from trimtab.journal import RunDirectory, read_journal

SCRIPT = """
    import os, pathlib, signal, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import trimtab
    from trimtab.core.config import Config, LiveConfig

    folder, trouble = pathlib.Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = list(torch.randn(60, 4, 8, generator=torch.Generator().manual_seed(rank)))
    checkpoints = trimtab.Checkpoints(model, optimizer, run_dir=folder)
    checkpoints.resume()
    config = Config(live=LiveConfig(hang_seconds=4.0))
    with trimtab.watch(
        model, optimizer, run_dir=folder, mode="recover", config=config, checkpoints=checkpoints
    ) as guard:
        for step in guard.steps(data):
            if step.number == 17 and rank == 1 and not (folder / "was-here").exists():
                (folder / "was-here").touch()
                if trouble == "hang":
                    time.sleep(600)
                if trouble == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
            for batch in step:
                loss = (model(batch) - batch).square().mean()
                guard.record(loss=loss, tokens=batch.numel())
                loss.backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step.number % 10 == 9:
                guard.checkpoint()
            if step.number == 39:
                break
    torch.save(model.module.state_dict(), folder / f"rank{rank}.pt")
    dist.destroy_process_group()
"""


TRIMTAB_RUN = (sys.executable, "-m", "trimtab.cli", "run", "--delay", "0", "--crashes", "--")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def launch(folder: Path, trouble: str, *command: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.run(
        [*command, str(script), str(folder), trouble],
        capture_output=True,
        text=True,
        timeout=300,
        # As docs/checkpoints.md says: else restarted workers read where the first ones listened.
        env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["hang", "kill"])
def test_a_rank_in_trouble_costs_a_relaunch_and_no_step(tmp_path: Path, trouble: str) -> None:
    done = launch(tmp_path / "run", trouble, *TRIMTAB_RUN, *TORCHRUN)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("trimtab: relaunch ") == 1
    if trouble == "hang":
        assert "stood still" in done.stderr
        stacks = RunDirectory(tmp_path / "run").home / "hang"
        assert "in backward" not in (stacks / "rank-00001.txt").read_text()  # the one that hangs
    assert_no_step_is_lost(tmp_path)


@pytest.mark.slow
def test_torchrun_restarts_a_hung_run_by_itself(tmp_path: Path) -> None:
    done = launch(tmp_path / "run", "hang", *TORCHRUN, "--max-restarts", "3")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "asks for a relaunch" in done.stderr
    assert_no_step_is_lost(tmp_path)


def assert_no_step_is_lost(tmp_path: Path) -> None:
    """Compare with a run without trouble."""
    block = read_journal(RunDirectory(tmp_path / "run")).block
    assert set(block.step.tolist()) == set(range(40))
    assert block.step[block.attempt == 1].min() == 10  # the checkpoint before the trouble
    straight = tmp_path / "straight"
    assert launch(straight, "none", *TORCHRUN).returncode == 0
    ends = [torch.load(at / "rank0.pt", weights_only=True) for at in (tmp_path / "run", straight)]
    for name, weight in ends[0].items():
        assert torch.equal(weight, ends[1][name])
