"""Ranks on this machine: results, exceptions and lost ranks."""

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trimtab.lab.trainer.local_ranks import RankFailed, RanksLost, run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def _meet(rank: int, factor: int) -> tuple[int, int]:
    total = torch.tensor(factor * (rank + 1))
    dist.all_reduce(total)
    return rank, int(total)


def test_results_are_in_order_of_rank() -> None:
    assert run_ranks(_meet, 3, 10) == [(0, 60), (1, 60), (2, 60)]


def _raise(rank: int, folder: Path) -> None:
    (folder / f"try-{rank}-{os.getpid()}").touch()
    if rank == 1:
        raise ValueError("the disk of rank 1 is full")
    dist.barrier()


def test_a_rank_that_raises_is_quoted_and_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 failed:(.|\n)*the disk of rank 1 is full"):
        run_ranks(_raise, 2, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def _die(rank: int, folder: Path, times: int) -> int:
    """Rank 1 dies without an exception, `times` times."""
    deaths = len(list(folder.iterdir()))
    dist.barrier()
    if rank == 1 and deaths < times:
        (folder / f"death-{deaths}").touch()
        os._exit(3)
    dist.barrier()
    return deaths


def test_lost_ranks_are_retried_once(tmp_path: Path) -> None:
    # The other rank raises in its barrier when the first is gone; that is not its own failure.
    assert run_ranks(_die, 2, tmp_path, 1) == [1, 1]


def _hang(rank: int) -> None:
    time.sleep(60 * rank)


def test_a_rank_that_hangs_is_killed() -> None:
    started = time.monotonic()
    with pytest.raises(RanksLost, match="did not return"):
        run_ranks(_hang, 2, timeout=1)
    assert time.monotonic() - started < 30
