"""Two ranks decide the same, though only one of them has bad gradients."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from trimtab.selftest.rank_worker import BAD_RANK, BAD_STEP, STEPS, WORLD
from trimtab.selftest.results import CheckFailed

TIMEOUT_SECONDS = 180.0
"""Two processes that import torch take 10 s, and 60 s were seen on a machine with a load of 10."""


def check_two_ranks(device: torch.device, folder: Path) -> str:
    """Start two processes; after the bad step they must hold the same weights as before it."""
    has_gpus = device.type == "cuda" and torch.cuda.device_count() >= WORLD
    backend = "nccl" if has_gpus else "gloo"
    found = _run_workers(folder, "cuda" if has_gpus else "cpu", backend)
    for rank, facts in enumerate(found):
        if not facts["is_kept_out"]:
            raise CheckFailed(
                f"rank {rank} applied step {BAD_STEP}, whose gradients are NaN on rank {BAD_RANK}"
            )
        if not facts["is_finite"]:
            raise CheckFailed(f"the weights of rank {rank} are not finite")
        if not facts["has_trained"]:
            raise CheckFailed(f"rank {rank} applied no step after step {BAD_STEP}")
    if len({facts["digest"] for facts in found}) != 1:
        raise CheckFailed("the ranks do not hold the same weights at the end")
    where = "two GPUs" if has_gpus else "CPU tensors"
    return (
        f"{backend}, {where}, DDP: NaN gradients on rank {BAD_RANK} alone at step {BAD_STEP}, both "
        f"discard it and hold the same bits after {STEPS} steps"
    )


def _run_workers(folder: Path, kind: str, backend: str) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = []
    for rank in range(WORLD):
        with (folder / f"rank-{rank}.log").open("wb") as log:
            arguments = [str(rank), str(folder), kind, backend]
            workers.append(
                subprocess.Popen(  # noqa: S603 - this program itself
                    [sys.executable, "-m", "trimtab.selftest.rank_worker", *arguments],
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
            )
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        for worker in workers:
            worker.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"the ranks did not end within {TIMEOUT_SECONDS:.0f} s") from None
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    return [_read(folder, rank) for rank in range(WORLD)]


def _read(folder: Path, rank: int) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        text = (folder / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace")
        last = text.strip().splitlines()[-1:] or ["it printed nothing"]
        raise CheckFailed(f"rank {rank} failed: {last[0]}") from None
